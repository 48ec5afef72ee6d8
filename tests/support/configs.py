"""Configs as a run composes them, without the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

CONF = Path(__file__).parents[2] / "conf"


def composed(*overrides: str) -> dict[str, Any]:
    """The resolved config for ``overrides``, as plain data."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: dict[str, Any] = OmegaConf.to_container(compose("config", list(overrides)), resolve=True)  # type: ignore[assignment]
    return config


def fake_config(*overrides: str) -> dict[str, Any]:
    """The config of the fake model on the fake backend."""
    return composed("model=fake", "backend=fake", *overrides)
