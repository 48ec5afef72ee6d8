"""Composed configs, those of the fake model above all."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from sweeprof.config.overrides import VERSION_BASE
from sweeprof.paths import conf_folder


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
