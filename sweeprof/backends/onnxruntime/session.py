"""Sessions of ONNX Runtime: a file, prepared for a device with the settings of a backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import onnxruntime

from sweeprof.errors import Unsupported

OptionsChange = Callable[[Any], object]
Optimization = Literal["disabled", "basic", "extended", "layout", "all"]

_LEVELS = {
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "layout": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_LAYOUT,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_ERRORS_ONLY = 3
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of a session."""

    threads: int
    optimization: Optimization
    provider: str | None
    arena: bool

    def provider_on(self, device: str) -> str:
        """The execution provider that runs models on ``device``.

        Raises:
            Unsupported: this build of ONNX Runtime does not have it.
        """
        provider = self.provider or _PROVIDERS.get(device.partition(":")[0], f"provider for {device}")
        available = onnxruntime.get_available_providers()
        if provider not in available:
            raise Unsupported(f"this ONNX Runtime has no {provider}, only {', '.join(available)}")
        return provider

    def open(self, model: str | bytes, device: str, change: OptionsChange | None = None) -> Any:
        """An ``InferenceSession``.

        Args:
            model: path of a file, or its content.
            device: as the backend calls it.
            change: sets further options in what it is given.

        Raises:
            Unsupported: this build of ONNX Runtime has no such provider, or it cannot start.
            Exception: the file is none that ONNX Runtime can run.
        """
        kind, _, number = device.partition(":")
        provider = self.provider_on(device)
        settings = {"device_id": number or "0"} if kind == "cuda" else {}
        session = onnxruntime.InferenceSession(
            model, self._options(change), providers=[(provider, settings), *_fallback(provider)]
        )
        if session.get_providers()[0] != provider:  # it falls back to the processor and says so in its log only
            raise Unsupported(f"{provider} did not start: what it needs is not installed on this host")
        return session

    def _options(self, change: OptionsChange | None) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = _LEVELS[self.optimization]
        options.enable_cpu_mem_arena = self.arena
        options.log_severity_level = _ERRORS_ONLY
        if change is not None:
            change(options)
        return options


def _fallback(provider: str) -> list[str]:
    """Return the providers that run the operators which ``provider`` lacks."""
    return [] if provider == "CPUExecutionProvider" else ["CPUExecutionProvider"]
