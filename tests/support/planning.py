"""Composed configs, those of the fake model above all, and plans of command lines: what the sweeper does before it measures."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir, version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import OmegaConf

from sweeprof.cli.run import hydra_arguments
from sweeprof.config.overrides import VERSION_BASE, Arguments
from sweeprof.paths import conf_folder
from sweeprof.plan.compose import Composer
from sweeprof.plan.plan import Plan
from sweeprof.run.reports import find_baseline


def composer(arguments: Sequence[str], configs: Path | None = None) -> Composer:
    """What plans ``python -m sweeprof ARGUMENTS``, with a folder of further configs; flags among the arguments are left out."""
    flags = [] if configs is None else ["--config-dir", str(configs)]
    lines = [word for word in hydra_arguments([*flags, *arguments]) if "=" in word or word.startswith("~")]
    Plugins.instance()
    if VERSION_BASE:
        version.setbase(VERSION_BASE["version_base"])
    path = create_config_search_path(str(conf_folder()))
    if configs is not None:
        path.prepend("command-line", f"file://{configs}", anchor="schema")
    loader = ConfigLoaderImpl(path)
    config = loader.load_configuration("config", lines, RunMode.MULTIRUN)
    find_sweep = partial(find_baseline, Path(str(config.output)).absolute(), config.tracking.get("uri"))
    return Composer(loader, config, Arguments.parsed(loader, lines, config.hydra.sweeper.params), find_sweep)


def planned(arguments: Sequence[str], configs: Path | None = None) -> Plan:
    """The plan of ``python -m sweeprof ARGUMENTS``."""
    return composer(arguments, configs).plan()


def write_configs(folder: Path, files: Mapping[str, str]) -> Path:
    """Write config files, by their names such as ``sweep/mine``, and return their folder."""
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def composed_of(*overrides: str) -> dict[str, Any]:
    """The resolved config for ``overrides``, which are written as on the command line; each caller has its own."""
    return copy.deepcopy(_composed(overrides))


@cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    with initialize_config_dir(str(conf_folder()), **VERSION_BASE):
        config = compose("config", list(overrides))
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    return plain


def fake_config(*overrides: str) -> dict[str, Any]:
    """The config of the fake model on the fake backend."""
    return composed_of("model=fake", "backend=fake", *overrides)
