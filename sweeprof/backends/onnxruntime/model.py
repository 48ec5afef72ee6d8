"""A model in ONNX Runtime, ready to step: a session of a file, prepared for a device with the settings of a backend.

What a process has loaded by then is the run-time and numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnxruntime

from sweeprof.backends import AnyArray, by_name
from sweeprof.backends.model_files import Feed, FileModel
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs

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
        """Return the execution provider that runs models on ``device``.

        Raises:
            Unsupported: this build of ONNX Runtime does not have it.
        """
        provider = self.provider or _PROVIDERS.get(device.partition(":")[0], f"provider for {device}")
        available = onnxruntime.get_available_providers()
        if provider not in available:
            raise Unsupported(f"this ONNX Runtime has no {provider}, only {', '.join(available)}")
        return provider

    def open(self, path: str, device: str, change: OptionsChange | None = None) -> onnxruntime.InferenceSession:
        """Return an ``InferenceSession``.

        Args:
            path: of the file.
            device: as the backend calls it.
            change: sets further options in what it is given.

        Raises:
            Unsupported: this build of ONNX Runtime has no such provider, or it cannot start.
            Exception: the file is none that ONNX Runtime can run.
        """
        kind, _, number = device.partition(":")
        provider = self.provider_on(device)
        settings = {"device_id": number or "0"} if kind == "cuda" else {}
        providers: list[Any] = [(provider, settings)]
        if provider != "CPUExecutionProvider":
            providers.append("CPUExecutionProvider")  # for operators that it lacks
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = _LEVELS[self.optimization]
        options.enable_cpu_mem_arena = self.arena
        options.log_severity_level = _ERRORS_ONLY
        if change is not None:
            change(options)
        session = onnxruntime.InferenceSession(path, options, providers=providers)
        if session.get_providers()[0] != provider:  # it falls back to the processor and says so in its log only
            raise Unsupported(f"{provider} did not start: what it needs is not installed on this host")
        return session


class OnnxModel(FileModel):
    """A file in a session."""

    settings: SessionSettings

    def open(self, inputs: Inputs) -> None:
        self.native = self.settings.open(self.file.path, self.device)
        rows = self._filled(inputs)[1]
        if rows is not None:  # only the last batch of an evaluation may be filled up
            raise Unsupported(f"the graph takes a larger batch than {rows}, and no other")

    def fits(self, inputs: Inputs) -> bool:
        slots = self.native.get_inputs()
        shapes = list(by_name([slot.name for slot in slots], *self.shapes(inputs)).values())
        size = self._only_batch()
        for shape, slot in zip(shapes, slots, strict=True):
            for length, wanted in zip(shape[1:], slot.shape[1:], strict=False):
                is_batch = wanted == size and (length,) == shapes[0][:1]
                if isinstance(wanted, int) and wanted != length and not is_batch:
                    return False
        return True

    def feed(self, inputs: Inputs) -> Feed:
        given, rows = self._filled(inputs)
        return Feed({name: on_device(array, self.device) for name, array in given.items()}, rows)

    def _only_batch(self) -> int | None:
        """Return the only batch size that the graph takes; None: any."""
        first = self._first_axis()
        return self.file.batch or (first if isinstance(first, int) else None)

    def _first_axis(self) -> int | str | None:
        """Return the size of the first input's first axis, or its name in the graph; None if there is none."""
        slots = self.native.get_inputs()
        return slots[0].shape[0] if slots and slots[0].shape else None

    def _filled(self, inputs: Inputs) -> tuple[dict[str, AnyArray], int | None]:
        """Return the arrays, filled up with their last sample to the only batch that the graph takes, and the samples that count if
        not all do.

        The first input tells the batch by its first axis. An export may have one size only, for which the graph may have a name.
        Each array is filled up on whichever axis it has the batch: the state of a recurrent network has it on its second.
        """
        given, slots = self._fed(inputs), self.native.get_inputs()
        size, first = self._only_batch(), self._first_axis()
        shape = given[slots[0].name].shape if slots else ()
        if size is None or not shape or not 0 < shape[0] < size:
            return given, None
        rows = shape[0]
        for slot in slots:
            array = given[slot.name]
            for axis, (found, length) in enumerate(zip(array.shape, slot.shape, strict=False)):
                if length is not None and length in (size, first) and found == rows:
                    array = array.take(np.minimum(np.arange(size), rows - 1), axis)
            given[slot.name] = array
        return given, rows

    def _fed(self, inputs: Inputs) -> dict[str, AnyArray]:
        """Return the arrays by the names of the graph's inputs: contiguous, and of the graph's own floating-point type.

        Raises:
            Unsupported: there are not as many as the graph has.
        """
        wanted = self.native.get_inputs()
        given = by_name([slot.name for slot in wanted], *self.arrays(inputs))
        for slot in wanted:
            array, kind = given[slot.name], slot.type[7:-1]  # of ``tensor(float16)``
            dtype = {"float": "float32", "double": "float64"}.get(kind, kind)
            if "float" in dtype and "float" in str(array.dtype):
                array = array.astype(dtype, copy=False)
            given[slot.name] = np.ascontiguousarray(array)
        return given

    def step_of(self, batch: Feed) -> Callable[[], object]:
        return self.steps_of(self.native, batch)

    def steps_of(self, session: onnxruntime.InferenceSession, batch: Feed) -> Callable[[], object]:
        """Return a function that runs one forward in a session, and returns ``batch.rows`` and the complete outputs."""
        if any(isinstance(value, np.ndarray) for value in batch.values.values()):
            # Texts, which ONNX Runtime takes from arrays alone.
            given = {name: v if isinstance(v, np.ndarray) else v.numpy() for name, v in batch.values.items()}
            return lambda: (batch.rows, session.run(None, given))
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

    def named_outputs(self, values: Any) -> dict[str, AnyArray]:
        found = {}
        for slot, value in zip(self.native.get_outputs(), values, strict=True):
            if isinstance(value, np.ndarray):
                found[slot.name] = value
            elif hasattr(value, "is_tensor") and value.is_tensor():
                found[slot.name] = value.numpy()
        return found

    def transfers(self, inputs: Inputs, outputs: Any) -> Mapping[str, Callable[[], object]]:
        if _place(self.device)[0] == "cpu":
            return {}
        given = list(self._fed(inputs).values())
        _, values = outputs
        return {
            "h2d": lambda: [on_device(array, self.device) for array in given],
            "d2h": lambda: [value.numpy() for value in values],
        }


def on_device(array: AnyArray, device: str) -> onnxruntime.OrtValue | AnyArray:
    """Return a copy of an array on a device; of texts it is one on the host."""
    if array.dtype.kind in "OSU":
        return array.astype(object)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array, *_place(device))


def _place(device: str) -> tuple[str, int]:
    kind, _, number = device.partition(":")
    return kind, int(number or 0)
