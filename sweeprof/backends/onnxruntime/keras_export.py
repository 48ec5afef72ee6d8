"""Keras models as ONNX files: Keras runs on torch here, and torch's exporter sees the layers as modules.

Keras calls its layers itself, so torch would see none of them. While a model is traced, each layer's ``call`` goes through a module
of torch that has the layer's class name and place; and the constants that Keras's variables are traced as get their names back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sweeprof.backends.onnxruntime.files import Exported, Role
from sweeprof.backends.onnxruntime.signature import Signature, is_tensor
from sweeprof.backends.onnxruntime.tidying import tidy
from sweeprof.backends.onnxruntime.torch_export import fixed_batch, saved, traced


def is_keras(model: Any) -> bool:
    """Whether it is a layer or model of Keras."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Layer)


def exported_keras(model: Any, signature: Signature, channel_axis: int | None, folder: Path, opset: int) -> Exported:
    """The file of a Keras model, which wants the channels of an image last.

    Raises:
        Exception: whatever the exporter raised.
    """
    arranged = Signature(tuple(_channels_last(leaf, channel_axis) for leaf in signature.args), signature.kwargs)
    if not model.built:
        model.build(next(leaf["shape"] for leaf in arranged.args if is_tensor(leaf)))
    with _layers_as_modules(model) as root:
        program = traced(root, arranged, opset)
    weights = _named(program, model)
    paths = tidy(program.model, weights)
    types = {"": type(model).__name__, **{path: type(layer).__name__ for path, layer in _layers(model)}}
    return Exported(
        saved(program, folder),
        fixed_batch(program),
        paths,
        weights,
        types,
        channels="first" if channel_axis is None else "last",
    )


def _channels_last(leaf: Any, axis: int | None) -> Any:
    if axis is None or not is_tensor(leaf) or len(leaf["shape"]) <= axis:
        return leaf
    shape = list(leaf["shape"])
    shape.append(shape.pop(axis))
    return {**leaf, "shape": shape}


def _layers(model: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every layer below ``model`` with its path; one that is held twice comes with the first."""
    for layer in model._layers:
        name = layer.name.replace(".", "_")
        yield above + name, layer
        yield from _layers(layer, f"{above}{name}.")


class _Shim(torch.nn.Module):
    """Stands for a layer while its model is traced."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


@contextmanager
def _layers_as_modules(model: Any) -> Iterator[torch.nn.Module]:
    root = _Shim(lambda *args, **kwargs: model(*args, training=False, **kwargs))
    changed: list[Any] = []
    try:
        for path, layer in _layers(model):
            if "call" in layer.__dict__:  # held a second time
                continue
            shim = type(type(layer).__name__, (_Shim,), {})(layer.call)
            above, _, name = path.rpartition(".")
            root.get_submodule(above).add_module(name, shim)
            layer.__dict__["call"] = shim
            changed.append(layer)
        yield root
    finally:
        for layer in changed:
            del layer.__dict__["call"]


def _named(program: torch.onnx.ONNXProgram, model: Any) -> dict[str, Role]:
    """Give the initializers that are variables of Keras the variables' names, and tell what they are."""
    initializers = program.model.graph.initializers
    constants = program.exported_program.constants  # type: ignore[union-attr]
    by_place = {tensor.data_ptr(): name for name, tensor in constants.items() if isinstance(tensor, torch.Tensor)}
    trainable = {id(variable) for variable in model.trainable_variables}
    found: dict[str, Role] = {}
    for path, layer in [("", model), *_layers(model)]:
        for variables, role in ((layer._trainable_variables, "parameter"), (layer._non_trainable_variables, "buffer")):
            for variable in variables:
                old = by_place.pop(variable.value.data_ptr(), None)
                if old is None or old not in initializers:
                    continue
                value = initializers.pop(old)
                value.name = f"{path}.{variable.name}".removeprefix(".")
                initializers.add(value)
                is_frozen = role == "parameter" and id(variable) not in trainable
                found[value.name] = "frozen" if is_frozen else role  # type: ignore[assignment]
    return found
