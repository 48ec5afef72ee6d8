"""The modules that the processes of a combination import before a trial, and their environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeprof.metrics.metric import FAMILIES

EVERY_TRIAL = (
    "hydra.utils",
    *(f"sweeprof.metrics.{family}" for family in FAMILIES),
    "sweeprof.datasets.synthetic",
    "sweeprof.zoo.loading",
)
"""Modules that every worker needs, or so many that each trial would import them again."""


def preload(config: Mapping[str, Any], pass_name: str) -> list[str]:
    """Return the modules that the fork server for this combination and pass imports."""
    backend, dataset = config["backend"], config["dataset"]
    special = backend.get("preload_for", {}).get(pass_name, [])
    return [*EVERY_TRIAL, *backend.get("preload", []), *special, *dataset.get("preload", [])]


def environment(config: Mapping[str, Any], pass_name: str = "") -> dict[str, str]:
    """Return the environment variables that the backend asks for, including those for one pass."""
    backend = config["backend"]
    asked = {**(backend.get("environment") or {}), **backend.get("environment_for", {}).get(pass_name, {})}
    return {key: str(value) for key, value in asked.items()}
