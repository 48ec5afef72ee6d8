"""The samplers of Optuna that a search can use, by their names."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # A search has few trials: only a few of them are chosen at random.
    "GPSampler": {"n_startup_trials": 6},
    # Axes depend on each other: the best batch size is another one for each backend.
    "TPESampler": {"n_startup_trials": 6, "multivariate": True},
}
"""Options that are not Optuna's defaults, by sampler."""
UNSUITABLE = ("BruteForceSampler",)
"""Samplers that work only within Optuna's own loop."""
PACKAGES = {"CmaEsSampler": "cmaes", "GPSampler": "torch"}
"""Packages that samplers need beside Optuna."""


def is_installed() -> bool:
    """True if Optuna is installed."""
    return find_spec("optuna") is not None


def default_sampler() -> str:
    """Return the sampler of a search that names none: Gaussian processes need fewer trials, and PyTorch."""
    return "GPSampler" if find_spec("torch") is not None else "TPESampler"


def samplers() -> dict[str, type[BaseSampler]]:
    """Return the samplers that can be made from a seed alone and whose packages are installed, by name."""
    import optuna.samplers

    found = {}
    for name in optuna.samplers.__all__:
        kind = getattr(optuna.samplers, name)
        if not (inspect.isclass(kind) and issubclass(kind, optuna.samplers.BaseSampler)):
            continue
        parameters = inspect.signature(kind.__init__).parameters
        needed = [
            one for one in parameters.values() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        package = PACKAGES.get(name)
        if name in UNSUITABLE:
            continue
        if "seed" in parameters and len(needed) == 1 and (package is None or find_spec(package) is not None):
            found[name] = kind
    return found


def make_sampler(name: str, seed: int) -> BaseSampler:
    """Return a new sampler."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of options that Optuna calls experimental
        return samplers()[name](seed=seed, **OPTIONS.get(name, {}))  # type: ignore[call-arg]
