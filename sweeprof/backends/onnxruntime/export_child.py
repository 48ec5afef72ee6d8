"""The process that exports a model; :mod:`sweeprof.backends.model_files` has how it is asked and how it answers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sweeprof.backends.model_files import ChildFailure, ChildRequest, answer
from sweeprof.backends.onnxruntime.exporting import message_of
from sweeprof.backends.onnxruntime.files import CallSignature, Exported
from sweeprof.backends.onnxruntime.torch_export import exported_keras, exported_module, is_keras, is_module
from sweeprof.measuring.instantiate import instantiate


def exported(request: ChildRequest) -> ChildFailure | None:
    """Build, export, and say what failed."""
    try:
        model = _built(request["node"], request["seed"])
    except Exception as error:  # a builder may raise anything
        return ChildFailure.of("build", error)
    try:
        _exported(model, request).write_facts()
    except Exception as error:  # and so may the exporter
        kind, _, message = message_of(error).partition(": ")
        return ChildFailure("export", kind, message)
    return None


def _built(node: Mapping[str, Any], seed: int) -> Any:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    model = instantiate(node)
    if not is_module(model) and not is_keras(model):
        raise TypeError(
            f"the model's builder returned a {type(model).__name__}, not a torch or Keras model or an OnnxFile"
        )
    return model


def _exported(model: Any, request: Mapping[str, Any]) -> Exported:
    given = request["signature"]
    signature, folder = CallSignature(tuple(given["args"]), given["kwargs"]), Path(request["folder"])
    if is_keras(model):
        return exported_keras(model, signature, request["channel_axis"], folder, request["opset"])
    return exported_module(model, signature, folder, request["opset"])


if __name__ == "__main__":
    answer(exported)
