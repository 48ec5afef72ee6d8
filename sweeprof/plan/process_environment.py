"""The modules that the processes of a combination import before a trial, and their environment variables."""

from __future__ import annotations

from sweeprof.metrics.metric import FAMILIES
from sweeprof.results.record import Json

EVERY_TRIAL = (
    "hydra.utils",
    *(f"sweeprof.metrics.{family}" for family in FAMILIES),
    "sweeprof.datasets.synthetic",
    *(f"sweeprof.zoo.{model}" for model in ("mlp", "lenet5", "digits_resnet")),
)
"""Modules that every worker needs, or so many that each trial would import them again."""

TORCHMETRICS = "sweeprof.metrics.output_scores:import_torchmetrics"
"""Imports torchmetrics, which takes seconds, where the metrics of quality are of it."""


def preload(config: Json, pass_name: str) -> list[str]:
    """Return the modules that the fork server for this combination and pass imports, and functions that it calls.

    A function is ``MODULE:FUNCTION``. ``preload_for`` has those of passes and modes. Those of the model are for the framework that
    it is made in; a backend that borrows the model has it made by another process.
    """
    backend, dataset, model = config["backend"], config["dataset"], config.get("model", {})
    of_model = model.get("preload", []) if backend.get("framework") in model else []
    preload_for = backend.get("preload_for", {})
    special = [module for name in (config.get("mode"), pass_name) for module in preload_for.get(name, [])]
    # The times and the memory of the other passes are those of the model alone.
    metrics = config.get("quality", {}).values() if pass_name == "quality" else ()
    is_torchmetrics = any(str(node.get("_target_")).startswith("torchmetrics.") for node in metrics)
    of_metrics = [TORCHMETRICS] if is_torchmetrics else []
    everything = [
        *EVERY_TRIAL,
        *backend.get("preload", []),
        *of_model,
        *dataset.get("preload", []),
        *special,
        *of_metrics,
    ]
    # Without repetitions, passes that need nothing more than the others have the same fork server.
    return list(dict.fromkeys(everything))


def environment(config: Json, pass_name: str = "") -> dict[str, str]:
    """Return the environment variables that the backend sets, including those for one pass."""
    backend = config["backend"]
    asked = {**(backend.get("environment") or {}), **backend.get("environment_for", {}).get(pass_name, {})}
    return {key: str(value) for key, value in asked.items()}
