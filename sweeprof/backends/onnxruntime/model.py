"""A model in ONNX Runtime, ready to step. What a process has loaded by then is the run-time and numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from sweeprof.backends.onnxruntime.files import Exported, arrays, by_name
from sweeprof.backends.onnxruntime.session import SessionSettings
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.timing import WallClock

Export = Callable[[Inputs], AbstractContextManager[Exported]]


@dataclass(frozen=True, slots=True)
class SessionFeed:
    """A batch on the device, by the names of the graph's inputs."""

    values: Mapping[str, Any]
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

    def fed(self, inputs: Inputs) -> dict[str, Any]:
        """The arrays by the names of the graph's inputs, in the layout and data type that it wants.

        Raises:
            Unsupported: there are not as many as the graph has.
        """
        positional, named = arrays(inputs)
        wanted = self._session.get_inputs()
        if self.file.channels == "last" and self._axis is not None:
            positional = [_channels_last(array, self._axis) for array in positional]
        given = by_name([slot.name for slot in wanted], positional, named)
        return {slot.name: _as_wanted(given[slot.name], slot.type) for slot in wanted}

    @contextmanager
    def stepping(self, batch: SessionFeed) -> Iterator[Callable[[], Any]]:
        yield self.steps_of(self._session, batch)

    def steps_of(self, session: Any, batch: SessionFeed) -> Callable[[], Any]:
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

        def step() -> Any:
            run(binding)
            return rows, binding.get_outputs()

        def synchronised_step() -> Any:
            run(binding)
            binding.synchronize_outputs()
            return rows, binding.get_outputs()

        return step if place == "cpu" else synchronised_step

    def host_outputs(self, outputs: Any) -> npt.NDArray[np.float32]:
        rows, values = outputs
        if not values or not values[0].is_tensor():
            raise Unsupported("the model returned no tensor")
        answer: npt.NDArray[np.float32] = values[0].numpy().astype(np.float32)
        return answer[:rows] if answer.ndim else answer

    def transfers(self, inputs: Inputs, outputs: Any) -> Mapping[str, Callable[[], object]]:
        if _place(self.device)[0] == "cpu":
            return {}
        given = list(self.fed(inputs).values())
        _, values = outputs
        return {
            "h2d": lambda: [self._on_device(array) for array in given],
            "d2h": lambda: [value.numpy() for value in values],
        }

    def _on_device(self, array: Any) -> Any:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, *_place(self.device))


def _place(device: str) -> tuple[str, int]:
    kind, _, number = device.partition(":")
    return kind, int(number or 0)


def _filled(given: Mapping[str, Any], slots: Sequence[Any], batch: int | None) -> tuple[Mapping[str, Any], int | None]:
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


def _stretched(array: Any, wanted: Sequence[Any], same: set[Any], rows: int, size: int) -> Any:
    """An array whose batch is filled up, on whichever axis it has it: the state of a recurrent network has it on its second."""
    for axis, (found, length) in enumerate(zip(array.shape, wanted, strict=False)):
        if length in same and found == rows:
            array = array.take(np.minimum(np.arange(size), rows - 1), axis)
    return array


def _channels_last(array: Any, axis: int) -> Any:
    return np.moveaxis(array, axis, -1) if array.ndim > axis else array


def _as_wanted(array: Any, kind: str) -> Any:
    """Contiguous, and of the graph's own floating-point type: ``tensor(float16)``."""
    name = {"float": "float32", "double": "float64"}.get(found := kind[7:-1], found)
    is_other = "float" in name and "float" in str(array.dtype) and str(array.dtype) != name
    return np.ascontiguousarray(array.astype(name) if is_other else array)
