"""A module compiled by ``torch.compile``, with one of the compilers that are installed."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import warnings
from importlib.util import find_spec
from typing import Any

import torch

from sweeprof.backends import Compiler
from sweeprof.backends.torch import private
from sweeprof.errors import Unsupported

PACKAGES = {
    "openvino": ("openvino", "openvino"),
    "tensorrt": ("torch_tensorrt", "torch-tensorrt"),
    "openxla": ("torch_xla", "torch-xla"),
    "tvm": ("tvm", "apache-tvm"),
}
"""By compiler, the package that has it: as it is imported, and as it is installed. torch has the others."""
_FELL_BACK = ("Failed in OpenVINO execution", "OpenVINO execution failed")


def compiled(module: torch.nn.Module, compiler: Compiler) -> torch.nn.Module:
    """Return the module as a compiler runs it; what it cannot compile is never run by another one instead.

    Raises:
        Unsupported: it is not installed, or lacks what it needs on this host.
    """
    options: dict[str, Any] = {}
    if compiler in PACKAGES and find_spec(PACKAGES[compiler][0]) is None:
        raise Unsupported(f"compile={compiler} needs a package: pip install {PACKAGES[compiler][1]}")
    if compiler == "inductor":
        _check_inductor(module)
    elif compiler == "openvino":
        _prepare_openvino()
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
        # Without aot_autograd, OpenVINO traces in a way that torch 2.13 rejects.
        options = {"device": "CPU", "aot_autograd": True, "config": settings}
    made: torch.nn.Module = torch.compile(module, backend=compiler, options=options or None)  # type: ignore[assignment]
    return made


def _check_inductor(module: torch.nn.Module) -> None:
    device = next((parameter.device.type for parameter in module.parameters()), "cpu")
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if device == "cpu" and shutil.which(compiler) is None:
        raise Unsupported(
            f"torch.compile builds its kernels with a C++ compiler, and there is no {compiler}: install it, or set CXX"
        )


def _prepare_openvino() -> None:
    """Let OpenVINO's compiler raise where it would only note in its log, at level DEBUG, that something else runs the model."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it sends statistics of use to a server
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about what it and OpenVINO import
        private.find_compiler("openvino")
    for module in ("backend", "execute"):
        logger = logging.getLogger(f"openvino.frontend.pytorch.torchdynamo.{module}")
        logger.setLevel(logging.DEBUG)
        logger.addFilter(_raise_if_fell_back)
        logger.propagate = False


def _raise_if_fell_back(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if message.startswith(_FELL_BACK):
        raise Unsupported(f"torch.compile with OpenVINO: {message}")
    return False
