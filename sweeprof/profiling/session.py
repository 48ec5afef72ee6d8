"""The two kinds of sessions: a model that a config describes, and a model that a caller has built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from sweeprof.backends import Borrows, Build, LoadedModel
from sweeprof.datasets import Dataset, Split, SplitName, batch_of, targets_of
from sweeprof.datasets.checks import checked_split, not_finite
from sweeprof.errors import Unsupported, UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.passes.session import Built, Session
from sweeprof.profiling.data import Data


@dataclass(slots=True, kw_only=True)
class BuiltSession(Session):
    """A model that a builder makes for each pass, on a dataset: what a config describes."""

    build: Build
    dataset: Dataset
    batch_size: int = 1
    device: str = "cpu"
    seed: int = 0
    """Seed of the weights and of whatever the framework draws."""
    _checked: set[SplitName] = field(default_factory=set)
    """Splits that have been loaded."""

    def prepare(self) -> None:
        self.backend.configure(self.seed)

    def device_name(self) -> str:
        return self.device

    def inputs(self) -> Inputs:
        return Inputs((batch_of(self._split("test"), self.batch_size),))

    def targets(self) -> Any:
        return targets_of(self._split("test"), self.batch_size)

    def samples(self) -> Any:
        return self._split("train").inputs

    def _split(self, name: SplitName) -> Split:
        """The samples of a split, checked when they are first loaded."""
        if name in self._checked:
            return self.dataset.split(name)
        split = checked_split(self.dataset, name)
        self.warnings += not_finite(name, split)
        self._checked.add(name)
        return split

    def described(self) -> AbstractContextManager[Built]:
        return nullcontext((self.build, self.dataset.channel_axis))

    @contextmanager
    def loaded(self) -> Iterator[LoadedModel]:
        with self.timed("build"):
            model = self.backend.load(self.build, self.device, self.dataset.channel_axis)
        try:
            yield model
        finally:
            self._observe(model)

    def _configured(self) -> dict[str, Any]:
        threads = getattr(self.backend, "threads", None)
        return {} if threads is None else {"threads": threads}

    def labelled(self) -> Iterator[tuple[Inputs, Any]]:
        test = self._split("test")
        for begin in range(0, len(test.inputs), self.batch_size):
            batch = slice(begin, begin + self.batch_size)
            yield Inputs((test.inputs[batch],)), None if test.targets is None else test.targets[batch]

    @property
    def data(self) -> Dataset:
        return self.dataset


@dataclass(slots=True, kw_only=True)
class LiveSession(Session):
    """A caller's model, which is left as it was found."""

    owns_process = False
    model: Any
    given: Inputs | None
    """The arguments of the model; None: the first batch of the data."""
    given_data: Data
    device: str | None = None
    """Where to run it; None: where it is."""
    forward: Callable[..., Any] | None = None
    """Runs one step of the model; None: the model is called."""
    _first: tuple[Inputs, Any] | None = None
    """Arguments and targets of the first batch of the data: the same for every pass, also where a loader shuffles."""

    def prepare(self) -> None:
        """Nothing: threads and seeds are the caller's."""

    def device_name(self) -> str:
        if self.device is None and isinstance(self.backend, Borrows):
            return self.backend.device_of(self.model)
        return self.device or "cpu"

    def caller_model(self) -> Any:
        return self.model

    def inputs(self) -> Inputs:
        if self.given is None and not self.given_data.splits:
            raise UserError("there is nothing to call the model with: give `inputs=` or `data=`")
        if self.given is not None:
            return self._stepped(self.given)
        return self._stepped(self._first_batch()[0])

    def targets(self) -> Any:
        return self._first_batch()[1] if self.given is None and self.given_data.splits else None

    def _first_batch(self) -> tuple[Inputs, Any]:
        if self._first is None:
            with self._borrowed():  # a loader draws random numbers
                self._first = self.given_data.first()
        return self._first

    def _stepped(self, inputs: Inputs) -> Inputs:
        return inputs if self.forward is None else replace(inputs, forward=self.forward)

    @contextmanager
    def described(self) -> Iterator[Built]:
        with self._borrowed():
            yield lambda: self.model, None

    @contextmanager
    def loaded(self) -> Iterator[LoadedModel]:
        device = self.device_name()
        if device == "meta":
            raise Unsupported("the model is on the meta device: it has no weights to run with")
        with self._borrowed():
            with self.timed("build"):
                model = self.backend.load(lambda: self.model, device, None)
            try:
                yield model
            finally:
                self._observe(model)

    def _borrowed(self) -> AbstractContextManager[None]:
        is_trained = self.mode == "training"
        return self.backend.borrowed(self.model, is_trained) if isinstance(self.backend, Borrows) else nullcontext()

    def labelled(self) -> Iterator[tuple[Inputs, Any]]:
        return ((self._stepped(inputs), targets) for inputs, targets in self.given_data.labelled("test"))

    @property
    def data(self) -> Data:
        return self.given_data
