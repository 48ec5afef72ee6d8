"""timm's and torchvision's models: how each is built, and what is published of it."""

from __future__ import annotations

import csv
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from sweeprof.backends.torch.counting import count_built
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.metrics.compat import NORMS, kind, operators, scores
from sweeprof.results.layers import LayerTable

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Model:
    """A model of one of the two libraries."""

    source: str
    name: str
    family: str
    size: int
    """Height and width of its input."""
    channels: int
    make: Callable[[], Any]
    gmacs: float | None = None
    """What is published, in 10⁹, as the library defines it; None for a model without a published row."""
    params: float | None = None
    macts: float | None = None
    """Activations, in 10⁶."""
    params_rounding: float = 0.5
    gmacs_rounding: float = 0.0051


@dataclass(frozen=True)
class Count:
    """What sweeprof says of a model."""

    model: Model
    params: int
    macs: int
    compared: float
    """The figure that the library defines as it publishes it."""
    activations: float
    method: str
    uncovered: str

    @property
    def is_params_exact(self) -> bool | None:
        published = self.model.params
        return None if published is None else abs(self.params - published) <= self.model.params_rounding

    @property
    def off(self) -> float | None:
        """Share by which the compared figure is off the published one; 0 within its rounding."""
        published = self.model.gmacs
        if published is None:
            return None
        off = abs(self.compared / 1e9 - published)
        return 0.0 if off <= self.model.gmacs_rounding else off / published

    @property
    def is_activations_exact(self) -> bool | None:
        published = self.model.macts
        return None if published is None else abs(self.activations / 1e6 - published) <= 0.0051


def timm_models() -> Iterator[Model]:
    """Every model of the installed timm, at the size it is published for, otherwise at its own."""
    timm = _timm()
    rows = {row["model"]: row for row in _rows("timm.csv")}
    for family in timm.models.list_modules():
        for name in timm.list_models(module=family):
            own = timm.get_pretrained_cfg(name)
            channels, size, _ = own.input_size if own is not None else (3, 224, 224)
            row = rows.get(name)
            yield Model(
                "timm",
                name,
                family,
                size if row is None else int(row["img_size"]),
                channels,
                partial(timm.create_model, name),
                None if row is None else float(row["gmacs"]),
                None if row is None else 1e6 * float(row["params_m"]),
                None if row is None else float(row["macts"]),
                params_rounding=5_100,
            )


def torchvision_models() -> Iterator[Model]:
    """torchvision's classification models that have published figures."""
    models = _torchvision().models
    for row in _rows("torchvision.csv"):
        name = row["model"]
        family = models.get_model_builder(name).__module__.rpartition(".")[2]
        options: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        if name == "googlenet":  # published as it is with weights: without the heads it was trained with
            options["aux_logits"] = False
        if family == "vision_transformer":
            options["image_size"] = int(row["img_size"])
        yield Model(
            "torchvision",
            name,
            family,
            int(row["img_size"]),
            3,
            partial(models.get_model, name, weights=None, **options),
            float(row["gops"]),
            float(row["params"]),
            gmacs_rounding=0.00051,
        )


def count(model: Model) -> Count:
    """Build the model and count it; batch 1."""
    table = count_built(model.make, Inputs((TensorSpec((1, model.channels, model.size, model.size)),)))
    compared = fvcore(table) if model.source == "timm" else table.macs
    activations = fvcore_activations(table)
    uncovered = " ".join(sorted(table.uncovered))
    return Count(model, table.params, table.macs, compared, activations, table.method, uncovered)


FVCORE_PRODUCTS = frozenset({"convolution", "linear", "matmul"})


def fvcore(layers: LayerTable) -> int:
    """Flops of fvcore 0.1.5, which timm publishes as MACs: MACs, 2 to 5 an element of norms, 1 of adaptive average pooling.

    Upsampling: 1 an output for nearest, 4 for bilinear. Activations, other pools, softmax, ``baddbmm`` and elementwise operators
    are nothing. timm publishes its models with its fused attention switched off, which makes attention's two products visible.
    """
    total = 0
    for operator in operators(layers):
        name = kind(operator)
        if name in FVCORE_PRODUCTS or name == "attention":
            total += operator.macs
        elif name in NORMS:
            total += operator.flops
        elif name == "nearest":
            total += operator.outputs
        elif name in ("bilinear_upsample", "grid_sampler", "grid_sampler_2d"):
            total += 4 * operator.outputs
        elif name == "adaptive_avg_pool":
            total += operator.inputs
    return total


def fvcore_activations(layers: LayerTable) -> int:
    """Elements that convolutions and matrix products return, attention's scores included, as fvcore counts them."""
    total = 0
    for operator in operators(layers):
        if kind(operator) in FVCORE_PRODUCTS:
            total += operator.outputs
        elif kind(operator) == "attention":
            total += scores(operator) + operator.outputs
    return total


def _timm() -> Any:
    _torchvision()
    return import_module("timm")


def _torchvision() -> Any:
    """torchvision; without its operators, which its wheel from the package index has for CUDA only."""
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    return import_module("torchvision")


def _rows(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
