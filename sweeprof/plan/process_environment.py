"""The modules that the processes of a combination import before a trial, and their environment variables."""

from __future__ import annotations

from sweeprof.metrics.metric import FAMILIES
from sweeprof.results.record import Json

EVERY_TRIAL = (
    "hydra.utils",
    *(f"sweeprof.metrics.{family}" for family in FAMILIES),
    "sweeprof.datasets.synthetic",
    "sweeprof.zoo.loading",
)
"""Modules that every worker needs, or so many that each trial would import them again."""


def preload(config: Json, pass_name: str) -> list[str]:
    """Return the modules that the fork server for this combination and pass imports."""
    backend, dataset = config["backend"], config["dataset"]
    special = backend.get("preload_for", {}).get(pass_name, [])
    of_data = [*config.get("model", {}).get("preload", []), *dataset.get("preload", [])]
    return [*EVERY_TRIAL, *backend.get("preload", []), *special, *of_data]


def environment(config: Json, pass_name: str = "") -> dict[str, str]:
    """Return the environment variables that the backend sets, including those for one pass."""
    backend = config["backend"]
    asked = {**(backend.get("environment") or {}), **backend.get("environment_for", {}).get(pass_name, {})}
    return {key: str(value) for key, value in asked.items()}
