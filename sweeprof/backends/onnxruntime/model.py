"""A model in ONNX Runtime, ready to step: a session of a file, prepared for a device with the settings of a backend.

What a process has loaded by then is the run-time and numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import onnxruntime

from sweeprof.backends import AnyArray
from sweeprof.backends.call_signature import arrays, by_name, moved_last
from sweeprof.backends.onnxruntime.files import Exported
from sweeprof.backends.outputs import HostArray, HostOutputs, floating_outputs
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.timing import WallClock

OptionsChange = Callable[[onnxruntime.SessionOptions], object]
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

    def open(
        self, model: str | bytes, device: str, change: OptionsChange | None = None
    ) -> onnxruntime.InferenceSession:
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

    def _options(self, change: OptionsChange | None) -> onnxruntime.SessionOptions:
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


Export = Callable[[Inputs], AbstractContextManager[Exported]]


@dataclass(frozen=True, slots=True)
class SessionFeed:
    """A batch on the device, by the names of the graph's inputs."""

    values: Mapping[str, onnxruntime.OrtValue]
    """``OrtValue`` each."""
    shapes: Mapping[str, tuple[int, ...]]
    rows: int | None = None
    """The samples that count, of a batch that was filled up for a graph of a larger one; None: all."""


class OnnxModel:
    """A file in a session; it is exported when it meets its first inputs, whose shapes an exporter needs."""

    compiles = False

    def __init__(self, export: Export, settings: SessionSettings, device: str, channel_axis: int | None) -> None:
        self._export, self.settings, self.device, self._axis = export, settings, device, channel_axis
        self._held: AbstractContextManager[Exported] | None = None
        self._file: Exported | None = None
        self._session: Any = None

    def meet(self, inputs: Inputs) -> None:
        """Export the model for such inputs and prepare it, where that has not been done.

        Raises:
            Unsupported: it cannot be exported, or takes no batch of this size.
            Exception: whatever the builder raised, or ONNX Runtime.
        """
        if self._file is None:
            self._held = self._export(inputs)  # a temporary file is there as long as this object
            self._file = self._held.__enter__()
            self._session = self.settings.open(self._file.path, self.device)
            self._refuse_less(inputs)

    def _refuse_less(self, inputs: Inputs) -> None:
        """Raise if a batch is smaller than requested; only the last batch of an evaluation may be padded."""
        assert self._file is not None
        _, rows = _filled(self.fed(inputs), self._session.get_inputs(), self._file.batch)
        if rows is not None:
            raise Unsupported(f"the graph takes a larger batch than {rows}, and no other")

    @property
    def native(self) -> Any:
        """The ``InferenceSession``; None before the first inputs."""
        return self._session

    @property
    def file(self) -> Exported:
        """The exported file that a session runs.

        Raises:
            Unsupported: the model has met no inputs yet.
        """
        if self._file is None:
            raise Unsupported("the model is exported for its inputs, and has met none yet")
        return self._file

    def clock(self) -> WallClock:
        return WallClock()

    def put(self, inputs: Inputs) -> SessionFeed:
        self.meet(inputs)
        given, rows = _filled(self.fed(inputs), self._session.get_inputs(), self.file.batch)
        values = {name: self._on_device(array) for name, array in given.items()}
        return SessionFeed(values, {name: array.shape for name, array in given.items()}, rows)

    def fed(self, inputs: Inputs) -> dict[str, AnyArray]:
        """The arrays by the names of the graph's inputs, in the layout and data type that it wants.

        Raises:
            Unsupported: there are not as many as the graph has.
        """
        positional, named = arrays(inputs)
        wanted = self._session.get_inputs()
        if self.file.channels == "last" and self._axis is not None:
            positional = [moved_last(array, self._axis) for array in positional]
        given = by_name([slot.name for slot in wanted], positional, named)
        return {slot.name: _as_wanted(given[slot.name], slot.type) for slot in wanted}

    @contextmanager
    def stepping(self, batch: SessionFeed) -> Iterator[Callable[[], object]]:
        yield self.steps_of(self._session, batch)

    def steps_of(self, session: onnxruntime.InferenceSession, batch: SessionFeed) -> Callable[[], object]:
        """A function that runs one forward of ``batch`` in a session; when its outputs are complete it returns ``batch.rows``
        and them.
        """
        binding = session.io_binding()
        for name, value in batch.values.items():
            binding.bind_ortvalue_input(name, value)
        place, number = _place(self.device)
        for slot in session.get_outputs():
            binding.bind_output(slot.name, place, number)
        run, rows = session.run_with_iobinding, batch.rows

        def step() -> object:
            run(binding)
            return rows, binding.get_outputs()

        def synchronised_step() -> object:
            run(binding)
            binding.synchronize_outputs()
            return rows, binding.get_outputs()

        return step if place == "cpu" else synchronised_step

    def host_outputs(self, outputs: Any) -> HostOutputs:
        rows, values = outputs
        found = {}
        for slot, value in zip(self._session.get_outputs(), values, strict=True):
            if value.is_tensor():
                found[slot.name] = value
        return floating_outputs(values, found, _is_floating, partial(_on_host, rows))

    def transfers(self, inputs: Inputs, outputs: Any) -> Mapping[str, Callable[[], object]]:
        if _place(self.device)[0] == "cpu":
            return {}
        given = list(self.fed(inputs).values())
        _, values = outputs
        return {
            "h2d": lambda: [self._on_device(array) for array in given],
            "d2h": lambda: [value.numpy() for value in values],
        }

    def _on_device(self, array: AnyArray) -> onnxruntime.OrtValue:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, *_place(self.device))


def _is_floating(value: onnxruntime.OrtValue) -> bool:
    return value.data_type() in ("tensor(float)", "tensor(float16)", "tensor(double)", "tensor(bfloat16)")


def _on_host(rows: int | None, value: onnxruntime.OrtValue) -> HostArray:
    array: HostArray = value.numpy().astype(np.float32)
    return array[:rows] if array.ndim else array


def _place(device: str) -> tuple[str, int]:
    kind, _, number = device.partition(":")
    return kind, int(number or 0)


def _filled(
    given: Mapping[str, AnyArray], slots: Sequence[onnxruntime.NodeArg], batch: int | None
) -> tuple[Mapping[str, AnyArray], int | None]:
    """The arrays, filled up with their last sample to the only batch that the graph takes; and the samples that count, if not all.

    Args:
        given: by the names of the graph's inputs.
        slots: these, of which the first tells the batch by its first axis.
        batch: the only size, where an export told: the graph may still call it by a name.
    """
    opening = slots[0].shape[:1] if slots else []
    size = batch or next((axis for axis in opening if isinstance(axis, int)), None)
    rows = given[slots[0].name].shape[:1] if slots else ()
    if size is None or not rows or not 0 < rows[0] < size:
        return given, None
    same = {size, *(axis for axis in opening if axis is not None)}
    return {slot.name: _stretched(given[slot.name], slot.shape, same, rows[0], size) for slot in slots}, rows[0]


def _stretched(
    array: AnyArray, wanted: Sequence[int | str | None], same: set[int | str | None], rows: int, size: int
) -> AnyArray:
    """An array whose batch is filled up, on whichever axis it has it: the state of a recurrent network has it on its second."""
    for axis, (found, length) in enumerate(zip(array.shape, wanted, strict=False)):
        if length in same and found == rows:
            array = array.take(np.minimum(np.arange(size), rows - 1), axis)
    return array


def _as_wanted(array: AnyArray, kind: str) -> AnyArray:
    """Contiguous, and of the graph's own floating-point type: ``tensor(float16)``."""
    name = {"float": "float32", "double": "float64"}.get(found := kind[7:-1], found)
    is_other = "float" in name and "float" in str(array.dtype) and str(array.dtype) != name
    return np.ascontiguousarray(array.astype(name) if is_other else array)
