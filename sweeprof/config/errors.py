"""Problems of config files and overrides: the lines of files that have them, and why Hydra could not compose a config.

Hydra reports its first error only; :func:`diagnosed` has one problem for each override that is wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeprof.config.constraints import listed
from sweeprof.config.override_syntax import CONFIG_DIR, SWEEP_GROUP, TOO_MANY_DIGITS, long_number
from sweeprof.config.overrides import NOUNS, VERSION_BASE, Groups, config_file, leaf_keys, plain_message
from sweeprof.config.schema import is_merged, is_open
from sweeprof.config.validation import config_problems, is_setting, lacks_default_tracker, unknown_setting
from sweeprof.errors import Problem, UserError, choice_problem, key_problem, nearest, shown_value
from sweeprof.model_sources import choice_of_model
from sweeprof.paths import conf_folder
from sweeprof.results.record import Json


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that is part of the config."""

    path: Path
    prefix: str = ""
    """The key above its keys: "" for a sweep file, "model." for a member of the group `model`."""


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
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if word.search(line.partition("#")[0]):
            return number
    return None


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


def digits_problem(path: Path) -> Problem | None:
    """Return the problem of a file with a whole number of so many digits that Python does not convert it."""
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if value := long_number(line):
            key = line.partition(":")[0].strip() if ":" in line else "file"
            return Problem(key, value, TOO_MANY_DIGITS, source=f"{shown(path)}:{number}")
    return None


def yaml_message(error: yaml.YAMLError) -> str:
    """Return the error of a file that is not YAML, with its place first."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return f"a config file is not YAML: {' '.join(str(error).split())}"
    reason = ", ".join(filter(None, [getattr(error, "context", None), getattr(error, "problem", None)]))
    return f"{shown(Path(mark.name))}:{mark.line + 1}: is not YAML: {reason} (column {mark.column + 1})"


def located(problems: Sequence[Problem], files: Sequence[ConfigFile], given: Collection[str]) -> list[Problem]:
    """The problems, each with the line of the file that has it; not those of keys that the command line gives."""
    entries = [(file.path, list(_entries(file))) for file in files]
    return [problem if problem.source else _located(problem, entries, given) for problem in problems]


def _located(problem: Problem, files: Sequence[tuple[Path, list[_Entry]]], given: Collection[str]) -> Problem:
    key = problem.key.partition(" ")[0]
    plain = key.removeprefix("axes.")
    # Of a number shown_value() is the same as str(), which cannot convert every one.
    text = shown_value(problem.value) if isinstance(problem.value, int) else str(problem.value)
    for one in given:
        # The command line gives the key, or a wrong name below it.
        if plain == one or plain.startswith((f"{one}.", f"{one}[")) or f"{one}.".startswith(f"{plain}.{text}."):
            return problem
    in_yaml = {"None": "null", "True": "true", "False": "false"}
    value = in_yaml.get(text, text)
    # A key may stand below `axes`, `zip`, `variants` …; what is wrong may be a name below it.
    for wanted in (f"{key}.{text}", key, f"axes.{key}"):
        for path, entries in files:
            found = [entry for entry in entries if entry.key == wanted]
            found = found or [entry for entry in entries if entry.key.endswith(f".{wanted}")]
            if found:
                lists = tuple(f"{entry.key}[" for entry in found)
                items = [entry for entry in entries if entry.key.startswith(lists)]
                exact = [entry for entry in [*items, *found] if in_yaml.get(entry.text, entry.text) == value]
                return replace(problem, source=f"{shown(path)}:{(exact or found)[0].line}")
    return problem


def _entries(file: ConfigFile) -> Iterator[_Entry]:
    try:
        node = yaml.compose(read_text(file.path), Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return
    if node is not None:
        yield from _within(node, file.prefix.rstrip("."))


def _within(node: yaml.Node, key: str) -> Iterator[_Entry]:
    children: list[tuple[str, int, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        for name, child in node.value:
            children.append((f"{key}.{name.value}".lstrip("."), name.start_mark.line, child))
    elif isinstance(node, yaml.SequenceNode):
        for place, child in enumerate(node.value):
            children.append((f"{key}[{place}]", child.start_mark.line, child))
    for inner, line, child in children:
        yield _Entry(inner, line + 1, str(child.value) if isinstance(child, yaml.ScalarNode) else "")
        yield from _within(child, inner)


def empty_shape(path: Path, shape_keys: Collection[str]) -> Problem | None:
    """The problem of a sweep file that has nothing in it, or an `axes` without any and no other shape."""
    try:
        content = yaml.safe_load(read_text(path))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    if content is None:
        return Problem("file", path.name, "is empty; a sweep file has `axes` or settings.", source=shown(path))
    if not isinstance(content, dict):
        message = "is not {key: value}; a sweep file has, for example, axes: {batch_size: [1, 8]}."
        return Problem("file", path.name, message, source=shown(path))
    if "axes" in content and not any(content.get(key) for key in shape_keys):
        return Problem("axes", content["axes"], "is empty; it must be {axis: [values]} or absent.")
    return None


# ----------------------------------------------------------------------------------------------------------------------
# Why Hydra could not compose a config

CALLS = ("choice(a,b)", "doubling(first,last)", "glob(*)", "range(start,stop,step)")
"""Calls that list the values of an axis."""
CONDITIONS = ("compare.constraints", "search.subject_to")
"""Keys whose values are conditions, which need quotes."""
EXTRAS = ("joblib", "ray", "submitit_local", "submitit_slurm")
"""Launchers that extras of sweeprof install, each with its first word as the extra's name."""


def diagnosed(error: Exception, arguments: Sequence[str]) -> UserError:
    """The user's mistakes behind an error that Hydra raised while composing the command line ``arguments``."""
    extra = config_dir(arguments)
    problems: list[Problem] = []
    good: list[str] = []
    if extra is not None and extra.is_dir():
        good.append(f"hydra.searchpath=[file://{extra}]")
    elif extra is not None:
        problems.append(no_folder(extra))
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder()), **VERSION_BASE):
        groups = _groups()
        # The choices of config groups that exist decide which keys there are.
        choices = []
        for line in arguments:
            key, _, value = line.partition("=")
            if key in groups.names() and value in groups.options(key):
                choices.append(f"{key}={value}")
        try:
            base = compose("config", overrides=[*good, *choices], return_hydra_config=True)
        except (HydraException, OmegaConfBaseException):
            return UserError(problems) if problems else _of_a_file(error, arguments)
        listed = set()
        """Keys of axes, whose values are not among those that are checked."""
        for line in arguments:
            if "=" not in line or line.startswith("-"):
                continue
            found = list(_override_problems(line, base, groups, extra))
            problems += found
            if found:
                continue
            if OverridesParser.create().parse_override(line).is_sweep_override():
                listed.add(line.partition("=")[0].lstrip("+"))
            else:
                good.append(line)
        with suppress(HydraException, OmegaConfBaseException, KeyError, AttributeError):
            config = compose("config", overrides=good)
            if lacks_default_tracker(config.tracking, good):
                config.tracking = {"_target_": None}
            plain: Json = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
            problems += [problem for problem in config_problems(plain) if problem.key not in listed]
        return UserError(problems) if problems else _of_a_file(error, arguments)


def _of_a_file(error: Exception, arguments: Sequence[str]) -> UserError:
    """Return the message of Hydra or OmegaConf about a config file, with the line that it means."""
    message = plain_message(error).partition(" Config search path: ")[0]
    named = re.match(r"In '([^']+)': ", message)
    problem_text = message[named.end() :] if named else message
    if named and named[1] != "config":  # of which sweep files are a part
        names = [named[1]]
    else:
        names = []
        for line in arguments:
            key, _, value = line.partition("=")
            if key.lstrip("+") == SWEEP_GROUP:
                names += [f"sweep/{name}" for name in re.findall(r"[^\[\],\s]+", value)]
    word = re.search(r"full_key: ([^\s\[]+)|'([^']+)'", problem_text)
    folders = _folders(config_dir(arguments))
    for name in names:
        group, _, member = name.rpartition("/")
        path = config_file(folders, group, member)
        line_number = line_with(word[1] or word[2], path) if word and path else None
        if path and (line_number or named):
            place = shown(path) if line_number is None else f"{shown(path)}:{line_number}"
            problem_text = re.sub(r" full_key: .*", "", problem_text)
            problem = _in_defaults(problem_text) or Problem("file", path.name, f"- {problem_text}.")
            return UserError([replace(problem, source=place)])
    return UserError(message)


def _folders(extra: Path | None) -> list[Path]:
    return [conf_folder()] if extra is None else [extra, conf_folder()]


def _groups() -> Groups:
    return Groups(GlobalHydra.instance().config_loader(), {})


def _in_defaults(said: str) -> Problem | None:
    """The problem behind what Hydra says of a defaults list; None if it is about something else."""
    if missing := re.match(r"Could not find '([^']+)/([^'/]+)'", said):
        group, name = missing.groups()
        known = re.search(r"Available options in '[^']+': (.*)", said)
        return choice_problem(group, name, NOUNS.get(group, group), known[1].split() if known else ())
    if unknown := re.match(r"Could not override '([^']+)'", said):
        groups = [group for group in _groups().names() if group != "hydra"]
        return choice_problem("defaults", unknown[1], "config group", groups)
    return None


def no_folder(path: Path) -> Problem:
    """Return the problem of ``--config-dir`` naming what is not a folder."""
    close = None
    if path.parent.is_dir():
        close = nearest(path.name, [one.name for one in path.parent.iterdir() if one.is_dir()])
    return Problem("--config-dir", shown(path), "is not a folder.", close and shown(path.parent / close))


def config_dir(arguments: Sequence[str]) -> Path | None:
    """The folder of the user's configs that the command line names."""
    found = None
    for before, argument in zip(["", *arguments], arguments, strict=False):
        flag, _, value = argument.partition("=")
        if flag in CONFIG_DIR and value:
            found = value
        elif before in CONFIG_DIR:
            found = argument
    return None if found is None else Path(found).absolute()


def _override_problems(line: str, base: DictConfig, groups: Groups, extra: Path | None) -> Iterator[Problem]:
    try:
        override = OverridesParser.create(config_loader=groups.loader).parse_override(line)
    except HydraException as error:
        yield _unreadable(line, plain_message(error))
        return
    # `cli/run.py` takes a key that it does not know for the name of an axis.
    is_known = not line.startswith("++axes.")
    key = override.key_or_group if is_known else override.key_or_group.removeprefix("axes.")
    if "/" in key or (key in groups.names() and key != "hydra"):
        yield from _choice_problems(key, override, groups, extra)
    elif (not is_known or not (override.is_add() or override.is_force_add())) and _is_absent(base, key):
        values = _texts(override)
        if key.partition(".")[0] == "cluster" and base.cluster.scheduler is None:
            message = "is a setting of a cluster, but no cluster is chosen: add cluster=slurm."
            yield Problem(key, ",".join(values), message)
            return
        names = [group for group in groups.names() if group != "hydra"]
        problem = key_problem(key, ",".join(values), [*leaf_keys(base), *names])
        # The key may misspell a config group of which all values are names.
        fitting = [group for group in groups.names() if set(values) <= set(groups.options(group))]
        yield replace(problem, nearest=nearest(key, fitting, 0.5) or problem.nearest)
    elif line.startswith("++backend."):
        # The targets of all backends: which of them a sweep has is not known while it cannot be composed.
        targets = [str(base.backend.get("_target_"))]
        for name in groups.options("backend"):
            if file := config_file(_folders(extra), "backend", name):
                text = file.read_text(encoding="utf-8", errors="replace")
                targets += re.findall(r"^_target_: (\S+)", text, re.MULTILINE)
        if not is_setting(key, targets):
            yield unknown_setting(key, ",".join(_texts(override)), targets)
    elif not (is_open(f"{key}.") or is_merged(key) or key.startswith("training.")):
        value = override.value()
        if isinstance(value, Mapping):  # as in ``limits={timeot_s: 3}``
            for name, inner in value.items():
                if _is_absent(base, f"{key}.{name}"):
                    yield key_problem(f"{key}.{name}", inner, leaf_keys(base))


def _choice_problems(key: str, override: Override, groups: Groups, extra: Path | None) -> Iterator[Problem]:
    """Return the problems of choices that a config group does not have."""
    if "/" in key:
        parent, _, name = key.rpartition("/")
        if key not in groups:
            inner = [f"{parent}/{group}" for group in groups.names(parent)]
            yield choice_problem(key, key, "config group", inner or groups.names())
            return
        known = groups.options(key)
        for value in _texts(override):
            if value not in known:
                yield choice_of_hydra(key, value, name, known)
        return
    noun = NOUNS.get(key, key)
    known = sorted(groups.options(key))
    values = listed(override.value())
    if override.is_sweep_override():
        parser = OverridesParser.create()
        values = [parser.parse_override(f"x={text}").value() for text in override.sweep_string_iterator()]
    if not all(isinstance(value, str) for value in values):
        message = f"is not a {noun}; a choice is a name. Known: {', '.join(known)}."
        yield Problem(key, override.get_value_string(), message)
        return
    if extra:
        known += [path.stem for path in (extra / key).glob("*.yaml")]
    for text in _texts(override):
        if text not in known:
            yield unknown_choice(key, text, known)


def unknown_choice(group: str, name: object, known: Collection[str]) -> Problem:
    """Return the problem of a name that a config group does not have."""
    if group == "model":
        return choice_of_model(name, known)
    return choice_problem(group, name, NOUNS.get(group, group), known)


def _unreadable(line: str, message: str) -> Problem:
    """Return the problem of an override that is not in Hydra's grammar."""
    key, _, value = line.partition("=")
    key = key.lstrip("+~").removeprefix("axes.")
    if unknown := re.search(r"Unknown function '(\w+)'", message):
        names = {call.partition("(")[0]: call for call in CALLS}
        close = nearest(unknown[1], list(names))
        return Problem(
            key, value, f"is not a call that lists values. Known: {', '.join(CALLS)}.", close and names[close]
        )
    if key in CONDITIONS:
        advice = f"write '{key}=[\"latency < 5 ms\"]', with both kinds of quotes."
        return Problem(key, value, f"is not a list of conditions; {advice}")
    if not re.fullmatch(r"[\w.@:/$-]+", key):
        return Problem("command line", line, "does not begin with a key: KEY=VALUE.")
    return Problem(key, value, _syntax_reason(key, value))


def _syntax_reason(key: str, value: str) -> str:
    """Return what is wrong with a value that is not in Hydra's grammar."""
    unquoted = re.sub(r"""'[^']*'|"[^"]*\"""", "", value)
    for quote in "'\"":
        if quote in unquoted:
            return f"has a {quote} that is not closed."
    for opening, closing in ("()", "[]", "{}"):
        if unquoted.count(opening) > unquoted.count(closing):
            return f"has a {opening} without a {closing}."
        if unquoted.count(opening) < unquoted.count(closing):
            return f"has a {closing} without a {opening}."
    if re.search(r"(?:^|[,(\[{])\s*,|,\s*(?:$|[)\]}])", unquoted):
        return "has a comma without a value beside it."
    return f"has characters that need two kinds of quotes: \"{key}='{value}'\"."


def _texts(override: Override) -> list[str]:
    """The values of an override as text."""
    if override.is_sweep_override():
        return list(override.sweep_string_iterator())
    return [str(value) for value in listed(override.value())]


def choice_of_hydra(key: str, value: str, name: str, known: Sequence[str]) -> Problem:
    """A choice that Hydra does not know, as that of a launcher whose package is not installed here."""
    extra = value.partition("_")[0]
    if key == "hydra/launcher" and value in EXTRAS:
        return Problem(key, value, f"is not installed here: pip install 'sweeprof[{extra}]'.")
    return choice_problem(key, value, name, known)


def _is_absent(base: DictConfig, key: str) -> bool:
    absent = object()
    try:
        return OmegaConf.select(base, key, default=absent) is absent
    except OmegaConfBaseException:
        return True
