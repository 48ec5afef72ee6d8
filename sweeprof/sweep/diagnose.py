"""Why Hydra could not compose: one problem per override, instead of its first complaint alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeprof.configs import conf_folder
from sweeprof.errors import Problem, UserError, choice_problem, key_problem
from sweeprof.sweep.check import config_problems
from sweeprof.sweep.conf import leaf_keys
from sweeprof.sweep.groups import NOUNS, VERSION_BASE, plain_message

EXTRAS = ("joblib", "ray", "submitit_local", "submitit_slurm")
"""Launchers that extras of ours bring, each with its first word as the extra's name."""


def diagnosed(error: Exception, arguments: Sequence[str]) -> UserError:
    """The user's mistakes behind an error that Hydra raised while composing the command line ``arguments``."""
    extra = _config_dir(arguments)
    search = [f"hydra.searchpath=[file://{extra}]"] if extra and extra.is_dir() else []
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder()), **VERSION_BASE):
        try:
            base = compose("config", overrides=[*search, *_good_choices(arguments)], return_hydra_config=True)
        except (HydraException, OmegaConfBaseException):
            return UserError(plain_message(error))
        problems, good = [], list(search)
        for line in arguments:
            if "=" not in line or line.startswith("-"):
                continue
            found = list(_override_problems(line, base, extra))
            problems += found
            good += [] if found or _sweeps(line) else [line]
        problems += _value_problems(good)
    return UserError(problems) if problems else UserError(plain_message(error))


def _good_choices(arguments: Sequence[str]) -> list[str]:
    """The choices of config groups that exist, because they decide which keys there are."""
    loader = GlobalHydra.instance().config_loader()
    groups = loader.list_groups("")
    chosen = [argument.partition("=") for argument in arguments]
    return [f"{key}={value}" for key, _, value in chosen if key in groups and value in loader.get_group_options(key)]


def _config_dir(arguments: Sequence[str]) -> Path | None:
    for position, argument in enumerate(arguments):
        if argument in ("--config-dir", "-cd") and position + 1 < len(arguments):
            return Path(arguments[position + 1]).absolute()
        if argument.startswith("--config-dir="):
            return Path(argument.partition("=")[2]).absolute()
    return None


def _sweeps(line: str) -> bool:
    return OverridesParser.create().parse_override(line).is_sweep_override()


def _override_problems(line: str, base: DictConfig, extra: Path | None) -> Iterator[Problem]:
    loader = GlobalHydra.instance().config_loader()
    try:
        override = OverridesParser.create(config_loader=loader).parse_override(line)
    except HydraException as error:
        yield Problem(line.partition("=")[0], line.partition("=")[2], f"cannot be read: {plain_message(error)}")
        return
    # `app.py` takes a key that it does not know for the name of an axis.
    is_known = not line.startswith("++axes.")
    key = override.key_or_group if is_known else override.key_or_group.removeprefix("axes.")
    groups = loader.list_groups("")
    if key in groups and key != "hydra":
        own = [path.stem for path in (extra / key).glob("*.yaml")] if extra else []
        known = [*loader.get_group_options(key), *own]
        yield from (
            choice_problem(key, value, NOUNS.get(key, key), known) for value in _values(override) if value not in known
        )
    elif "/" in key:
        parent, _, name = key.rpartition("/")
        if name in loader.list_groups(parent):
            known = loader.get_group_options(key)
            yield from (choice_of_hydra(key, value, name, known) for value in _values(override) if value not in known)
        else:
            yield choice_problem(
                key, key, "config group", [f"{parent}/{g}" for g in loader.list_groups(parent)] or groups
            )
    elif (not is_known or not (override.is_add() or override.is_force_add())) and _is_absent(base, key):
        value = ",".join(_values(override))
        if key.partition(".")[0] == "cluster" and base.cluster.scheduler is None:
            yield Problem(key, value, "is a setting of a cluster, and none is chosen: cluster=slurm.")
        else:
            yield key_problem(key, value, [*leaf_keys(base), *(g for g in groups if g != "hydra")])


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
    """What else is wrong with the overrides that can be composed."""
    try:
        config = compose("config", overrides=list(overrides))
        return config_problems(OmegaConf.to_container(config, resolve=True))  # type: ignore[arg-type]
    except (HydraException, OmegaConfBaseException, KeyError, AttributeError):
        return []
