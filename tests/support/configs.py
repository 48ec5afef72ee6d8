"""Composed configs, as the sweeper makes them."""

from __future__ import annotations

from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from sweeprof.config.overrides import VERSION_BASE
from sweeprof.paths import conf_folder


def composed(**overrides: Any) -> dict[str, Any]:
    """The resolved config of the defaults with some groups or top-level keys chosen anew."""
    with initialize_config_dir(str(conf_folder()), **VERSION_BASE):
        config = compose("config", overrides=[f"{key}={value}" for key, value in overrides.items()])
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    return plain
