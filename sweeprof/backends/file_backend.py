"""What all backends that run files have in common: their settings, and a loaded model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from sweeprof.backends import AnyArray, Backend, Build, Gap, HostOutputs, LoadedModel, outputs_on_host
from sweeprof.backends.call_signature import Shape, arrays, shapes_of
from sweeprof.backends.model_files import Converter, MadeFile
from sweeprof.backends.precision import Precision, PrecisionMethod, checked_method
from sweeprof.counting.formulas import Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import Work
from sweeprof.results.layers import LayerTable
from sweeprof.results.measurement import Artifact

GENERATION = Gap("not implemented", "a forward is converted, and not the loop over the tokens with its cache")


def gaps_of(runtime: str) -> dict[str, Gap]:
    """Return the gaps that every run-time of files has.

    Args:
        runtime: its name.
    """
    inference = Gap("makes no sense", f"{runtime} runs models, and trains none")
    return {
        "analyze_training": inference,
        "training": inference,
        "generating": GENERATION,
        "analyze_generation": GENERATION,
        "graph": Gap(
            "not implemented",
            "the operators of the file are counted by module; open the file in a viewer to see its graph",
        ),
        "own_counts": Gap("not possible upstream", f"{runtime} counts no operations"),
        "watch": Gap("makes no sense", "a loop of the user's own calls the model and not its converted file"),
        "lines": Gap("makes no sense", "a file has no source lines"),
        "peaks": Gap(
            "not implemented",
            f"there is no benchmark of the machine in {runtime}; backend=torch measures the same hardware",
        ),
    }


@dataclass(frozen=True, slots=True)
class Feed:
    """A batch as a run-time takes it."""

    values: Any
    """The tensors: in the order of the graph's inputs, or by their names."""
    rows: int | None = None
    """The samples that count, of a batch that was filled up for a file that takes no smaller one; None: all."""
    model: FileModel | None = None
    """What runs it, where that is another file of the same model; None: the one that made it."""


class FileModel(LoadedModel):
    """A file in its run-time; it is converted when the model meets its first inputs, whose shapes a converter needs.

    Inputs of other shapes than the file takes, such as texts of another length, run in a further file of the same model.
    """

    def __init__(
        self,
        conversion: Callable[[Inputs, Inputs | None], AbstractContextManager[Any]],
        settings: Any,
        channel_axis: int | None,
        device: str = "cpu",
        first: Inputs | None = None,
    ) -> None:
        """Args:
        conversion: makes the file for such inputs; it exists within the context. It is also given ``first``.
        settings: of the run-time.
        channel_axis: where the dataset has its channels.
        device: as the backend calls it.
        first: inputs of the model that another file is for; None: this is its first file.
        """
        self._conversion, self.settings, self._axis, self.device = conversion, settings, channel_axis, device
        self._first, self._others = first, list[FileModel]()
        self.converting_s = 0.0
        """Seconds that further files took, since the model met its first inputs."""
        self._held: AbstractContextManager[MadeFile] | None = None
        self._file: Any = None
        self.native: Any = None
        """What the run-time made of the file; None before the first inputs."""

    @property
    def file(self) -> Any:
        """The file that runs.

        Raises:
            Unsupported: the model has met no inputs yet.
        """
        if self._file is None:
            raise Unsupported("the model is converted for its inputs, and has met none yet")
        return self._file

    def meet(self, inputs: Inputs) -> None:
        """Convert the model for such inputs and open its file, where that has not been done.

        Raises:
            Unsupported: it cannot be converted, or takes no such inputs.
            Exception: whatever the builder raised, or the run-time.
        """
        if self._file is None:
            # A temporary file is there as long as this object.
            self._held = self._conversion(inputs, self._first)
            self._file = self._held.__enter__()
            self.open(inputs)
            self._first = inputs

    def open(self, inputs: Inputs) -> None:
        """Open the file for such inputs."""
        raise NotImplementedError

    def arrays(self, inputs: Inputs) -> tuple[list[AnyArray], dict[str, AnyArray]]:
        """Return positional and named tensors in the layout that the file wants."""
        return arrays(inputs, self._axis if self.file.channels == "last" else None)

    def put(self, inputs: Inputs) -> Feed:
        self.meet(inputs)
        model = self._that_takes(inputs)
        return replace(model.feed(inputs), model=model)

    def _that_takes(self, inputs: Inputs) -> FileModel:
        """Return this file, or another one of the same model that takes such inputs; it is made where there is none."""
        for model in (self, *self._others):
            if model.fits(inputs):
                return model
        begin = time.perf_counter()
        made = type(self)(self._conversion, self.settings, self._axis, self.device, self._first)
        made.meet(inputs)
        self._others.append(made)
        self.converting_s += time.perf_counter() - begin
        return made

    def shapes(self, inputs: Inputs) -> tuple[list[Shape], dict[str, Shape]]:
        """Return the shapes of :meth:`arrays`."""
        return shapes_of(inputs, self._axis if self.file.channels == "last" else None)

    def fits(self, inputs: Inputs) -> bool:
        """Return whether the opened file takes inputs of these shapes, those of a smaller batch among them."""
        raise NotImplementedError

    def feed(self, inputs: Inputs) -> Feed:
        """Return the inputs of a model that has met some, as the file takes them."""
        raise NotImplementedError

    @contextmanager
    def stepping(self, batch: Feed) -> Iterator[Callable[[], object]]:
        yield (batch.model or self).step_of(batch)

    def step_of(self, batch: Feed) -> Callable[[], object]:
        """Return a function that runs one forward; it returns the rows that count (None: all) and the complete outputs."""
        raise NotImplementedError

    def host_outputs(self, outputs: Any) -> HostOutputs:
        rows, values = outputs
        found = {name: array[:rows] if array.ndim else array for name, array in self.named_outputs(values).items()}
        if len(found) == 1:  # the name may be one that the export has made
            found = {"": next(iter(found.values()))}
        return outputs_on_host(
            values, found, lambda array: array.astype(np.float32 if array.dtype.kind == "f" else array.dtype)
        )

    def named_outputs(self, values: Any) -> dict[str, AnyArray]:
        """Return the outputs of a step by their names, in the order of the model."""
        raise NotImplementedError


def is_fitting(shape: Shape, wanted: Shape) -> bool:
    """Return whether :func:`fitting` can fill up an array of this shape."""
    return shape == wanted or (len(shape) == len(wanted) > 0 and shape[1:] == wanted[1:] and shape[0] <= wanted[0])


def fitting(array: AnyArray, shape: tuple[int, ...], taker: str) -> AnyArray:
    """Return an array, filled up with its last sample to the batch of a shape.

    Raises:
        Unsupported: it does not fit; the message begins with ``taker``.
    """
    if array.shape == shape:
        return array
    if not is_fitting(array.shape, shape):
        raise Unsupported(f"{taker} a {shape}, not a {array.shape}")
    return array[np.minimum(np.arange(shape[0]), len(array) - 1)]


@dataclass(slots=True)
class FileBackend(Backend):
    """Runs files of one format; a model of a framework is converted once, and its file is kept."""

    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]]
    precision_gaps: ClassVar[Mapping[str, str]] = {}
    MODEL: ClassVar[type[FileModel]]
    out_of_memory: ClassVar[tuple[str, ...]]
    """What the run-time says when memory runs out."""
    threads: int = 1
    """Threads within an operator."""
    precision: Precision | None = None
    precision_method: PrecisionMethod | None = None
    cache: str | None = None
    """Folder of converted models; None: one in the user's cache."""
    seed: int = field(default=0, init=False)
    expected: Inputs | None = field(default=None, init=False)
    samples: Callable[[int], Inputs | None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.method()

    def method(self) -> str | None:
        """Return the method by which models get their precision."""
        return checked_method(type(self), self.precision, self.precision_method)

    def configure(self, seed: int) -> None:
        self.seed = seed  # of the process that builds and converts; threads are a setting of each model

    def expect(self, inputs: Inputs) -> None:
        self.expected = inputs

    def ranges_from(self, samples: Callable[[int], Inputs | None]) -> None:
        self.samples = samples

    def converter(self) -> Converter[Any]:
        """Return what makes the files, with the settings of this backend."""
        raise NotImplementedError

    def session_settings(self, device: str) -> Any:
        """Return the run-time's settings for a device.

        Raises:
            Unsupported: it cannot run there, or not with the settings of this backend.
        """
        raise NotImplementedError

    def counted(self, file: Any, stored: Any, inputs: Inputs, axis: int | None, formulas: Formulas) -> LayerTable:
        """Return the layers of a file.

        Args:
            file: whose operators are counted: of a quantized one the file that it was made of, which computes the same.
            stored: whose bytes are counted.
            inputs: of one step.
            axis: where the file has the channels last, their axis in the inputs.
            formulas: of the session.
        """
        raise NotImplementedError

    def load(self, build: Build, device: str, channel_axis: int | None) -> Any:
        converter, settings = self.converter(), self.session_settings(device)  # before anything is converted for it

        def conversion(inputs: Inputs, first: Inputs | None) -> AbstractContextManager[Any]:
            chosen = converter if first is None else converter.for_further(inputs, first)
            return chosen.converted(build, inputs, channel_axis)

        model = self.MODEL(conversion, settings, channel_axis, device)
        if self.expected is not None:
            model.meet(self.expected)
        return model

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        converter = self.converter()
        plain = converter.plain() if self.precision == "int8" else converter
        with ExitStack() as stack:
            stored = file = stack.enter_context(converter.converted(build, inputs, channel_axis))
            if plain != converter:
                file = stack.enter_context(plain.converted(build, inputs, channel_axis))
            axis = channel_axis if file.channels == "last" else None
            return self.counted(file, stored, inputs, axis, formulas)

    def artifact(self, build: Build, channel_axis: int | None) -> Artifact:
        if self.expected is None:
            raise Unsupported("the model is converted for its inputs, and they are not known")
        with self.converter().converted(build, self.expected, channel_axis) as file:
            return file.artifact()  # type: ignore[no-any-return]

    def settings_in_effect(self, model: FileModel | None = None) -> Mapping[str, Any]:
        # They belong to each loaded model; its builder has no influence on them.
        if model is None or model.native is None:
            return {}
        method = self.method()
        return {**self.settings_of(model.native), **({} if method is None else {"precision method": method})}

    def settings_of(self, native: Any) -> dict[str, Any]:
        """Return the settings of what the run-time made of a file."""
        return {}

    def is_out_of_memory(self, error: BaseException) -> bool:
        return Backend.is_out_of_memory(self, error) or any(text in str(error).lower() for text in self.out_of_memory)

    def check_inference(self, work: Work) -> None:
        """Raise if the work is training."""
        if work.training is not None:
            raise self.lacking("training")
