"""Where the user's config files say what is wrong: file and line of a problem, as ``conf/sweep/mine.yaml:7``."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from sweeprof.errors import Problem


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that is part of the config."""

    path: Path
    prefix: str = ""
    """What its keys are below: "" for a sweep file, "model." for a member of the group `model`."""


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    """Dotted, from the top of the config; items of lists as ``zip[0]``."""
    line: int
    text: str
    """The value, if it is a scalar."""


def shown(path: Path) -> str:
    """A path as a user would write it: from the working directory, if it is below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def read_text(path: Path) -> str:
    """The text of a config file.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    return path.read_bytes().decode("utf-8")


def line_with(name: str, path: Path) -> int | None:
    """The first line of a file that has the last part of ``name``, as ``lenet6`` of ``model/lenet6``; None if there is none."""
    word = re.compile(rf"(?<![\w]){re.escape(re.split(r'[./]', name)[-1])}(?![\w])")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((number for number, line in enumerate(lines, 1) if word.search(line.partition("#")[0])), None)


def encoding_problem(path: Path) -> Problem | None:
    """The problem of a file that is not UTF-8."""
    content = path.read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = "is not UTF-8, the encoding of config files; save the file as UTF-8."
        return Problem("file", content[error.start : error.end], message, source=f"{shown(path)}:{line}")
    return None


def yaml_message(error: yaml.YAMLError) -> str:
    """What is wrong with a file that is not YAML, with its place first."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return f"a config file is not YAML: {' '.join(str(error).split())}"
    reason = ", ".join(part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part)
    return f"{shown(Path(mark.name))}:{mark.line + 1}: is not YAML: {reason} (column {mark.column + 1})"


def located(problems: Sequence[Problem], files: Sequence[ConfigFile], given: Collection[str]) -> list[Problem]:
    """The problems, each with the line of the file that has it; not those of keys that the command line gives."""
    entries = [(file.path, list(_entries(file))) for file in files]
    return [problem if problem.source else _located(problem, entries, given) for problem in problems]


def _located(problem: Problem, files: Sequence[tuple[Path, list[_Entry]]], given: Collection[str]) -> Problem:
    key = problem.key.partition(" ")[0]
    plain = key.removeprefix("axes.")
    if any(plain == one or re.match(rf"{re.escape(one)}[.\[]", plain) for one in given):
        return problem
    value = _plain(str(problem.value))
    # A key may stand below `axes`, `zip`, `variants` …; what is wrong may be a name below it.
    for wanted in (f"{key}.{problem.value}", key, f"axes.{key}"):
        for path, entries in files:
            found = [entry for entry in entries if entry.key == wanted]
            found = found or [entry for entry in entries if entry.key.endswith(f".{wanted}")]
            if found:
                items = [entry for entry in entries if any(entry.key.startswith(f"{one.key}[") for one in found)]
                exact = [entry for entry in [*items, *found] if _plain(entry.text) == value]
                return replace(problem, source=f"{shown(path)}:{(exact or found)[0].line}")
    return problem


def _plain(text: str) -> str:
    """A scalar as it is compared: in YAML, True is true and None is null."""
    return {"None": "null", "True": "true", "False": "false"}.get(text, text)


def _entries(file: ConfigFile) -> Iterator[_Entry]:
    try:
        node = yaml.compose(read_text(file.path), Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return
    if node is not None:
        yield from _within(node, file.prefix.rstrip("."))


def _within(node: yaml.Node, key: str) -> Iterator[_Entry]:
    if isinstance(node, yaml.MappingNode):
        for name, child in node.value:
            inner = f"{key}.{name.value}".lstrip(".")
            yield _Entry(inner, name.start_mark.line + 1, _text(child))
            yield from _within(child, inner)
    elif isinstance(node, yaml.SequenceNode):
        for place, child in enumerate(node.value):
            yield _Entry(f"{key}[{place}]", child.start_mark.line + 1, _text(child))
            yield from _within(child, f"{key}[{place}]")


def _text(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def empty_shape(path: Path, shape_keys: Collection[str]) -> Problem | None:
    """The problem of a sweep file that has nothing in it, or an `axes` without any and no other shape."""
    try:
        content = yaml.safe_load(read_text(path))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    if content is None:
        return Problem("file", path.name, "is empty; a sweep file has `axes` or settings.", source=shown(path))
    if not isinstance(content, dict):
        message = "is not {key: value}, as a sweep file is: axes: {batch_size: [1, 8]}."
        return Problem("file", path.name, message, source=shown(path))
    if "axes" in content and not any(content.get(key) for key in shape_keys):
        return Problem("axes", content["axes"], "is empty; it takes {axis: [values]}, or is left out.")
    return None
