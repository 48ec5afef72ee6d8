"""The reasons why Hydra could not compose a config: one problem per override, instead of only Hydra's first error."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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

from sweeprof.config.override_syntax import CONFIG_DIR, SWEEP_GROUP, TOO_MANY_DIGITS, long_number
from sweeprof.config.overrides import NOUNS, VERSION_BASE, Groups, config_file, leaf_keys, plain_message
from sweeprof.config.schema import is_merged, is_open
from sweeprof.config.validation import config_problems, is_setting, lacks_default_tracker, unknown_setting
from sweeprof.errors import Problem, UserError, choice_problem, key_problem, nearest, shown_value
from sweeprof.paths import conf_folder


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
    # Of a number shown_value() is the same as str(), which cannot convert every one.
    text = shown_value(problem.value) if isinstance(problem.value, int) else str(problem.value)
    if any(f"{one}.".startswith(f"{plain}.{text}.") for one in given):  # a wrong name below the key
        return problem
    value = _plain(text)
    # A key may stand below `axes`, `zip`, `variants` …; what is wrong may be a name below it.
    for wanted in (f"{key}.{text}", key, f"axes.{key}"):
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
        message = "is not {key: value}; a sweep file has, for example, axes: {batch_size: [1, 8]}."
        return Problem("file", path.name, message, source=shown(path))
    if "axes" in content and not any(content.get(key) for key in shape_keys):
        return Problem("axes", content["axes"], "is empty; it must be {axis: [values]} or absent.")
    return None


PUBLISHED = "A published model has a name: model=timm model.name=resnet18; also of torchvision, transformers and Keras."
"""What an unknown model may be."""
CALLS = ("choice(a,b)", "doubling(first,last)", "glob(*)", "range(start,stop,step)")
"""Calls that list the values of an axis."""
CONDITIONS = ("compare.constraints", "search.subject_to")
"""Keys whose values are conditions, which need quotes."""
EXTRAS = ("joblib", "ray", "submitit_local", "submitit_slurm")
"""Launchers that extras of sweeprof install, each with its first word as the extra's name."""


def diagnosed(error: Exception, arguments: Sequence[str]) -> UserError:
    """The user's mistakes behind an error that Hydra raised while composing the command line ``arguments``."""
    extra = config_dir(arguments)
    problems = [] if extra is None or extra.is_dir() else [no_folder(extra)]
    search = [f"hydra.searchpath=[file://{extra}]"] if extra and extra.is_dir() else []
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder()), **VERSION_BASE):
        try:
            base = compose("config", overrides=[*search, *_good_choices(arguments)], return_hydra_config=True)
        except (HydraException, OmegaConfBaseException):
            return UserError(problems) if problems else _of_a_file(error, arguments)
        good = list(search)
        listed = set()
        """Keys of axes, whose values are not among those that are checked."""
        for line in arguments:
            if "=" not in line or line.startswith("-"):
                continue
            found = list(_override_problems(line, base, extra))
            problems += found
            if not found and _sweeps(line):
                listed.add(line.partition("=")[0].lstrip("+"))
            elif not found:
                good.append(line)
        problems += [problem for problem in _value_problems(good) if problem.key not in listed]
        return UserError(problems) if problems else _of_a_file(error, arguments)


def _of_a_file(error: Exception, arguments: Sequence[str]) -> UserError:
    """Return the message of Hydra or OmegaConf about a config file, with the line that it means."""
    message = plain_message(error).partition(" Config search path: ")[0]
    named = re.match(r"In '([^']+)': ", message)
    problem_text = message[named.end() :] if named else message
    sweeps = [line.partition("=")[2] for line in arguments if line.lstrip("+").startswith(f"{SWEEP_GROUP}=")]
    names = [f"sweep/{name}" for line in sweeps for name in re.findall(r"[^\[\],\s]+", line)]
    if named and named[1] != "config":  # of which sweep files are a part
        names = [named[1]]
    word = re.search(r"full_key: ([^\s\[]+)|'([^']+)'", problem_text)
    folders = [folder for folder in (config_dir(arguments), conf_folder()) if folder]
    for name in names:
        group, _, member = name.rpartition("/")
        path = config_file(folders, group, member)
        line = line_with(word[1] or word[2], path) if word and path else None
        if path and (line or named):
            place = shown(path) if line is None else f"{shown(path)}:{line}"
            problem_text = re.sub(r" full_key: .*", "", problem_text)
            return UserError(
                [replace(_in_defaults(problem_text) or Problem("file", path.name, f"- {problem_text}."), source=place)]
            )
    return UserError(message)


def _groups() -> Groups:
    return Groups(GlobalHydra.instance().config_loader(), {})


def _in_defaults(said: str) -> Problem | None:
    """The problem behind what Hydra says of a defaults list; None if it is about something else."""
    if missing := re.match(r"Could not find '([^']+)/([^'/]+)'", said):
        known = re.search(r"Available options in '[^']+': (.*)", said)
        return choice_problem(
            missing[1], missing[2], NOUNS.get(missing[1], missing[1]), known[1].split() if known else ()
        )
    if unknown := re.match(r"Could not override '([^']+)'", said):
        groups = [group for group in _groups().names() if group != "hydra"]
        return choice_problem("defaults", unknown[1], "config group", groups)
    return None


def no_folder(path: Path) -> Problem:
    """Return the problem of ``--config-dir`` naming what is not a folder."""
    beside = [one.name for one in path.parent.iterdir() if one.is_dir()] if path.parent.is_dir() else []
    close = nearest(path.name, beside)
    return Problem(
        "--config-dir", shown(path), "is not a folder.", None if close is None else shown(path.parent / close)
    )


def _good_choices(arguments: Sequence[str]) -> list[str]:
    """The choices of config groups that exist, because they decide which keys there are."""
    groups = _groups()
    chosen = [argument.partition("=") for argument in arguments]
    return [f"{key}={value}" for key, _, value in chosen if key in groups.names() and value in groups.options(key)]


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


def _sweeps(line: str) -> bool:
    return OverridesParser.create().parse_override(line).is_sweep_override()


def _override_problems(line: str, base: DictConfig, extra: Path | None) -> Iterator[Problem]:
    groups = _groups()
    try:
        override = OverridesParser.create(config_loader=groups.loader).parse_override(line)
    except HydraException as error:
        yield _unreadable(line, plain_message(error))
        return
    # `cli/run.py` takes a key that it does not know for the name of an axis.
    is_known = not line.startswith("++axes.")
    key = override.key_or_group if is_known else override.key_or_group.removeprefix("axes.")
    if key in groups.names() and key != "hydra":
        if not all(isinstance(value, str) for value in _plain_values(override)):
            options = sorted(groups.options(key))
            message = f"is not a {NOUNS.get(key, key)}; a choice is a name. Known: {', '.join(options)}."
            yield Problem(key, override.get_value_string(), message)
            return
        own = [path.stem for path in (extra / key).glob("*.yaml")] if extra else []
        known = [*groups.options(key), *own]
        yield from (_choice_problem(key, value, known) for value in _values(override) if value not in known)
    elif "/" in key:
        parent, _, name = key.rpartition("/")
        if key in groups:
            known = groups.options(key)
            yield from (choice_of_hydra(key, value, name, known) for value in _values(override) if value not in known)
        else:
            inner = [f"{parent}/{group}" for group in groups.names(parent)]
            yield choice_problem(key, key, "config group", inner or groups.names())
    elif (not is_known or not (override.is_add() or override.is_force_add())) and _is_absent(base, key):
        value = ",".join(_values(override))
        if key.partition(".")[0] == "cluster" and base.cluster.scheduler is None:
            yield Problem(key, value, "is a setting of a cluster, but no cluster is chosen: add cluster=slurm.")
        else:
            problem = key_problem(key, value, [*leaf_keys(base), *(g for g in groups.names() if g != "hydra")])
            yield replace(problem, nearest=_group_with(key, _values(override), groups) or problem.nearest)
    elif line.startswith("++backend."):
        targets = _backend_targets(base, groups, extra)
        if not is_setting(key, targets):
            yield unknown_setting(key, ",".join(_values(override)), targets)
    elif not is_open(f"{key}."):
        yield from _inner_problems(key, override.value(), base)


def _choice_problem(group: str, value: str, known: Sequence[str]) -> Problem:
    """Return the problem of a choice that a config group does not have."""
    problem = choice_problem(group, value, NOUNS.get(group, group), known)
    if group == "model" and problem.nearest is None:
        return replace(problem, allowed=f"{problem.allowed} {PUBLISHED}")
    return problem


def _unreadable(line: str, message: str) -> Problem:
    """Return the problem of an override that is not in Hydra's grammar."""
    key, _, value = line.partition("=")
    key = key.lstrip("+~").removeprefix("axes.")
    unknown = re.search(r"Unknown function '(\w+)'", message)
    if unknown:
        close = nearest(unknown[1], [call.partition("(")[0] for call in CALLS])
        call = next((call for call in CALLS if call.partition("(")[0] == close), None)
        return Problem(key, value, f"is not a call that lists values. Known: {', '.join(CALLS)}.", call)
    if key in CONDITIONS:
        return Problem(
            key, value, f"is not a list of conditions; write '{key}=[\"latency < 5 ms\"]', with both kinds of quotes."
        )
    return Problem(key, value, f"cannot be read: {message}")


def _plain_values(override: Override) -> list[object]:
    """The values of an override, of the types that they have."""
    if override.is_sweep_override():
        parser = OverridesParser.create()
        return [parser.parse_override(f"x={text}").value() for text in override.sweep_string_iterator()]
    value = override.value()
    return value if isinstance(value, list) else [value]


def _group_with(key: str, values: Sequence[str], groups: Groups) -> str | None:
    """The config group that a key misspells whose values are all names of that group."""
    fitting = [group for group in groups.names() if set(values) <= set(groups.options(group))]
    return nearest(key, fitting, 0.5)


def _backend_targets(base: DictConfig, groups: Groups, extra: Path | None) -> list[str]:
    """The targets of all backends: which of them a sweep has is not known while it cannot be composed."""
    folders = [folder for folder in (extra, conf_folder()) if folder]
    files = [config_file(folders, "backend", name) for name in groups.options("backend")]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if file]
    return [
        str(base.backend.get("_target_")),
        *(t for text in texts for t in re.findall(r"^_target_: (\S+)", text, re.M)),
    ]


def _inner_problems(key: str, value: object, base: DictConfig) -> Iterator[Problem]:
    """Keys of a mapping that its key does not have, as in ``limits={timeot_s: 3}``."""
    if not isinstance(value, Mapping) or is_merged(key) or key.startswith("training."):
        return
    for name, inner in value.items():
        if _is_absent(base, f"{key}.{name}"):
            yield key_problem(f"{key}.{name}", inner, leaf_keys(base))


def choice_of_hydra(key: str, value: str, name: str, known: Sequence[str]) -> Problem:
    """A choice that Hydra does not know, as that of a launcher whose package is not installed here."""
    extra = value.partition("_")[0]
    if key == "hydra/launcher" and value in EXTRAS:
        return Problem(key, value, f"is not installed here: pip install 'sweeprof[{extra}]'.")
    return choice_problem(key, value, name, known)


def _values(override: Override) -> list[str]:
    if override.is_sweep_override():
        return list(override.sweep_string_iterator())
    value = override.value()
    return [str(v) for v in value] if isinstance(value, list) else [str(value)]


def _is_absent(base: DictConfig, key: str) -> bool:
    absent = object()
    try:
        return OmegaConf.select(base, key, default=absent) is absent
    except OmegaConfBaseException:
        return True


def _value_problems(overrides: Sequence[str]) -> list[Problem]:
    """Return the problems of the values of the overrides that can be composed."""
    try:
        config = compose("config", overrides=list(overrides))
        if lacks_default_tracker(config.tracking, overrides):
            config.tracking = {"_target_": None}
        return config_problems(OmegaConf.to_container(config, resolve=True))  # type: ignore[arg-type]
    except (HydraException, OmegaConfBaseException, KeyError, AttributeError):
        return []
