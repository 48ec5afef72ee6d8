"""What a profiler works with: the two kinds of sessions, for a config's and for a caller's model, a caller's data, and progress."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from sweeprof.backends import Build, LoadedModel
from sweeprof.datasets import Dataset, Loads, ModelInputs, Prepares, Split, SplitName, channel_axis_of, first_batch
from sweeprof.datasets.collate import TARGETS, is_ids
from sweeprof.datasets.source import check_ids, checked_split, not_finite
from sweeprof.errors import Problem, Unsupported, UserError, choice_problem
from sweeprof.measuring.inputs import Inputs, Workload, workload_of
from sweeprof.measuring.training_config import Work
from sweeprof.nested import named_leaves, package_of
from sweeprof.passes.registry import Built, Session, Strict, passes
from sweeprof.results.layer_times import Mode
from sweeprof.results.record import PassName, Protocol
from sweeprof.text import StatusLine, printable

if TYPE_CHECKING:
    from logging import LoggerAdapter


@dataclass(frozen=True, slots=True)
class Data:
    """Batches by the name of their split, and how a batch becomes the model's arguments."""

    splits: Mapping[str, Iterable[object]] = field(default_factory=dict)
    pattern: Callable[..., Inputs] | None = None
    """From a batch to the model's arguments (:func:`sweeprof.pattern_of`); the last element of the batch, or the one of
    :data:`~sweeprof.datasets.collate.TARGETS` in a mapping, is its targets. None: the first element of a pair ``(inputs,
    targets)``, every key of a mapping but its targets, else the whole batch."""

    def __repr__(self) -> str:
        parts = []
        for name, batches in self.splits.items():
            try:
                count = f"{len(batches):,} batches"  # type: ignore[arg-type]
            except TypeError:  # an iterator, or a loader that does not know
                count = "batches, their number unknown"
            parts.append(f"{name}: {type(batches).__name__.lstrip('_')} of {count}")
        text = ", ".join(parts) or "no split"
        if self.pattern is not None:
            text += f", pattern {getattr(self.pattern, '__qualname__', self.pattern)}"
        return f"<Data of {text}>"

    @classmethod
    def of(cls, data: object, pattern: Callable[..., Inputs] | None = None) -> Data:
        """Return the data of None, an iterable of batches (which is the split ``test``), or a mapping of splits to such.

        A pair of an array (or several) and an array, as Keras's ``evaluate`` takes them, is one batch with its targets.

        Raises:
            UserError: it is none of these.
        """
        if isinstance(data, cls):
            return data
        if data is None:
            return cls({}, pattern)
        if not isinstance(data, Iterable):
            allowed = "must be an iterable of batches, or a mapping of splits to iterables of batches."
            raise UserError([Problem("data", type(data).__name__, allowed)])
        kept: dict[str, Iterable[object]] = dict(data) if isinstance(data, Mapping) else {"test": data}
        for name, batches in kept.items():
            if isinstance(batches, tuple) and len(batches) == 2 and package_of(batches[1]) is not None:
                kept[name] = [batches]
            elif isinstance(batches, Iterator):
                kept[name] = _Kept(batches)
        return cls(kept, pattern)

    def split(self, name: str) -> Iterable[object]:
        """Return the batches of a split; data of one split have it under any name.

        Raises:
            Unsupported: there are no data.
            UserError: there is no such split.
        """
        if name in self.splits:
            return self.splits[name]
        if len(self.splits) == 1:
            return next(iter(self.splits.values()))
        if not self.splits:
            raise Unsupported("there are no data: give the profiler `data=`, an iterable of batches")
        raise UserError([choice_problem("split", name, "split", self.splits)])

    def first(self) -> tuple[Inputs, object]:
        """Return arguments and targets of the first batch; targets are None where it has none.

        Raises:
            UserError: there is none.
        """
        for batch in self.split("test"):
            return self._arguments_and_targets(batch)
        raise UserError("the data have no batch")

    def labelled(self, name: str) -> Iterator[tuple[Inputs, object]]:
        """Yield arguments and targets of every batch of a split; targets are None where a batch has none.

        Raises:
            UserError: the split is known never to end.
        """
        batches: Any = self.split(name)
        if callable(getattr(batches, "cardinality", None)):  # a ``tf.data.Dataset``
            is_endless = int(batches.cardinality()) == -1  # INFINITE_CARDINALITY
        else:
            is_endless = getattr(batches, "num_batches", 0) is None  # of a ``PyDataset`` of Keras
        if is_endless:
            allowed = "never ends (repeat()), and all of it is evaluated: give it an end with take(n)."
            raise UserError([Problem("data", type(batches).__name__, allowed)])
        for batch in batches:  # not map(), which a StopIteration of the user's function would end
            yield self._arguments_and_targets(batch)

    def _arguments_and_targets(self, batch: Any) -> tuple[Inputs, object]:
        arguments, targets = batch, None
        if isinstance(batch, Mapping):
            targets = next((batch[key] for key in TARGETS if key in batch), None)
            arguments = {key: value for key, value in batch.items() if key not in TARGETS}
        elif self.pattern is not None:
            targets = batch[-1]
        elif isinstance(batch, list | tuple) and len(batch) in (1, 2):
            arguments = batch[0]
            targets = batch[1] if len(batch) == 2 else None
        if self.pattern is not None:
            return self.pattern(batch), targets
        if isinstance(arguments, Mapping | tuple):
            return Inputs.of(arguments), targets
        return Inputs((arguments,)), targets


class _Kept(Iterable[object]):
    """The elements of an iterator, kept for the passes that follow."""

    def __init__(self, batches: Iterator[object]) -> None:
        self._coming = batches
        self._kept: list[object] = []

    def __iter__(self) -> Iterator[object]:
        yield from self._kept
        for batch in self._coming:
            self._kept.append(batch)
            yield batch


@dataclass(slots=True, kw_only=True)
class BuiltSession(Session):
    """A model that a builder makes for each pass, on a dataset: what a config describes."""

    build: Build
    dataset: Dataset
    batch_size: int = 1
    device: str = "cpu"
    seed: int = 0
    """Seed of the weights and of whatever the framework draws."""
    describe_inputs: Callable[[], ModelInputs] | None = None
    """Describes what the model takes, where the dataset has not been checked against that; None: it has, or it is not known."""
    _checked: set[SplitName] = field(default_factory=set)
    """Splits that have been loaded."""

    def prepare(self) -> None:
        if isinstance(self.dataset, Prepares):
            self._split("test")  # before any clock runs, also where it was not decoded for all trials of the host
        self.backend.configure(self.seed)

    def device_name(self) -> str:
        return self.device

    def inputs(self) -> Inputs:
        split = self._split("test")
        return self._arguments(first_batch(split, self.batch_size)[0], split)

    def workload(self, inputs: Inputs) -> Workload:
        return workload_of(self.dataset, inputs, self.batch_size)

    def targets(self) -> object:
        return self.accepted(first_batch(self._split("test"), self.batch_size)[1])

    def samples(self, limit: int) -> Inputs | None:
        split = self._split("train")
        return self._arguments(split.batch(np.arange(min(limit, len(split))))[0], split)

    def _arguments(self, batch: object, split: Split) -> Inputs:
        """Return the model's arguments for the inputs of a batch."""
        arguments: Inputs = self.accepted(Inputs.from_batch(batch, split.pass_as))
        return arguments

    def _split(self, name: SplitName) -> Split:
        """Return the samples of a split, checked when they are first loaded."""
        if name in self._checked:
            return self.dataset.split(name)
        split = checked_split(self.dataset, name)
        self.warnings += not_finite(name, split)
        if self.describe_inputs is not None:
            first = split.inputs[0] if isinstance(split.inputs, list) else split.inputs
            leaves = named_leaves(first).items()
            vocabulary = None
            if any(is_ids(path) and np.asarray(leaf).dtype.kind in "iu" for path, leaf in leaves):
                with suppress(Exception):  # a source may raise anything; without a description nothing is checked
                    vocabulary = self.describe_inputs().vocabulary
            if vocabulary is not None:
                check_ids(self.dataset, name, split, vocabulary)
        self._checked.add(name)
        return split

    def described(self, is_run: bool = False) -> AbstractContextManager[Built]:
        return nullcontext((self.build, channel_axis_of(self.dataset)))

    def configured_settings(self) -> Mapping[str, object]:
        threads = getattr(self.backend, "threads", None)
        return {} if threads is None else {"threads": threads}

    def labelled(self) -> Iterator[tuple[Inputs, object]]:
        test = self._split("test")
        for inputs, targets in self._batches(test):
            yield self._arguments(inputs, test), self.accepted(targets) if test.is_evaluated else None

    def batch_sizes(self) -> Iterator[int]:
        if isinstance(self.dataset, Loads):
            yield from self.dataset.batch_sizes("test", self.batch_size)
            return
        test = self._split("test")
        left = len(test)
        for _ in self._batches(test):
            yield min(self.batch_size, left)
            left -= self.batch_size

    def _batches(self, split: Split) -> Iterator[tuple[Any, Any]]:
        for begin in range(0, len(split), self.batch_size):
            yield split.batch(np.arange(begin, min(begin + self.batch_size, len(split))))

    @property
    def data(self) -> Dataset:
        return self.dataset


@dataclass(slots=True, kw_only=True)
class LiveSession(Session):
    """A caller's model, which is left as it was found."""

    owns_process = False
    model: object
    arguments: Inputs | None
    """The arguments of the model; None: the first batch of the data."""
    batches: Data
    device: str | None = None
    """Where to run it; None: where it is."""
    forward: Callable[..., object] | None = None
    """Runs one step of the model; None: the model is called."""
    unit: str | None = None
    """In which the work of a step is counted, a noun in the plural; None: samples."""
    units: float | Callable[[Any], float] | None = None
    """Of a batch, or a function that returns them from its inputs; None: tokens by the attention masks."""
    _first: tuple[Inputs, object] | None = None
    """Arguments and targets of the first batch of the data: the same for every pass, also where a loader shuffles."""

    def prepare(self) -> None:
        """Nothing: threads and seeds are the caller's."""

    def __post_init__(self) -> None:
        """Raise :class:`UserError` for settings that are not among those allowed."""
        problems = []
        if self.strict not in get_args(Strict):
            noun = "way to handle operators without a formula"
            problems.append(choice_problem("strict", self.strict, noun, get_args(Strict)))
        if self.mode not in get_args(Mode):
            problems.append(choice_problem("mode", self.mode, "kind of step", get_args(Mode)))
        protocol: object = self.protocol  # the caller's, whatever that is
        if isinstance(protocol, Protocol):
            problems += protocol.problems()
        else:
            example = "is not a sweeprof.Protocol, such as sweeprof.Protocol(min_s=0.2)."
            problems.append(Problem("protocol", protocol, example))
        if problems:
            raise UserError(problems)
        if self.device is not None:
            self.device = self._checked_device(str(self.device))

    def _checked_device(self, name: str) -> str:
        """Return the device by sweeprof's name, in which ``gpu`` is ``cuda`` and capitals make no difference.

        Raises:
            UserError: this host does not offer it to the framework.
        """
        kind, colon, number = name.lower().partition(":")
        if kind == "gpu":
            kind = "cuda"
        device = kind + colon + number
        offered = list(dict.fromkeys([*self.backend.devices(), self.backend.device_of(self.model)]))
        if device not in offered:
            problem = choice_problem("device", device, "device of this host", offered)
            raise UserError([replace(problem, value=name)])
        return device

    def device_name(self) -> str:
        return self.device or self.backend.device_of(self.model)

    def caller_model(self) -> object:
        return self.model

    def inputs(self) -> Inputs:
        if self.arguments is not None:
            return self._arguments(self.arguments)
        if not self.batches.splits:
            raise UserError("there is nothing to call the model with: give `inputs=` or `data=`")
        return self._arguments(self._first_batch()[0])

    def described_inputs(self) -> str:
        inputs = self.arguments
        if inputs is None and self._first is not None:
            inputs = self._first[0]
        return "" if inputs is None else repr(inputs).removeprefix("<Inputs(").removesuffix(")>")

    def workload(self, inputs: Inputs) -> Workload | None:
        if self.unit is None and self.units is None:
            return Session.workload(self, inputs)
        given = SimpleNamespace(unit=self.unit)
        if self.units is not None:
            given.units_in = self.units if callable(self.units) else lambda _: self.units
        return workload_of(given, inputs, 1, "Profiler")

    def targets(self) -> object:
        if self.arguments is not None or not self.batches.splits:
            return None
        return self.accepted(self._first_batch()[1])

    def _first_batch(self) -> tuple[Inputs, object]:
        if self._first is None:
            with self.described():  # a loader draws random numbers
                self._first = self.batches.first()
        return self._first

    def _arguments(self, inputs: Inputs) -> Inputs:
        """Return the caller's arguments as the backend takes them."""
        arguments: Inputs = self.accepted(inputs)
        if self.forward is not None:
            arguments = replace(arguments, forward=self.forward)
        return arguments

    @contextmanager
    def described(self, is_run: bool = False) -> Iterator[Built]:
        with self.backend.borrowed(self.model, is_run, is_trained=self.mode == "training"):
            yield lambda: self.model, None

    @contextmanager
    def loaded(self) -> Iterator[LoadedModel]:
        if self.device_name() == "meta":
            raise Unsupported("the model is on the meta device: it has no weights to run with")
        with Session.loaded(self) as model:
            yield model

    def work(self, model: LoadedModel, inputs: Inputs) -> Work:
        return replace(Session.work(self, model, inputs), given=inputs)

    def labelled(self) -> Iterator[tuple[Inputs, object]]:
        for inputs, targets in self.batches.labelled("test"):
            yield self._arguments(inputs), self.accepted(targets)

    def batch_sizes(self) -> Iterator[int]:
        for batch in self.batches.split("test"):
            arrays = [leaf for leaf in named_leaves(batch).values() if getattr(leaf, "ndim", 0)]
            if not arrays:
                raise Unsupported("a batch of the data has no array with a sample per row")
            yield len(arrays[0])

    @property
    def data(self) -> Data:
        return self.batches


# Progress: which pass runs. It is written between passes only, so that no measurement contains any of it.


LOG = logging.getLogger("sweeprof")
"""Passes and their durations at the level INFO, warnings about results at the level WARNING; without handlers of its own."""


class _Forward(logging.Handler):
    """Hands every message on to another logger."""

    def __init__(self, target: logging.Logger | LoggerAdapter[Any], level_before: int) -> None:
        super().__init__()
        self.target, self.level_before = target, level_before

    def emit(self, record: logging.LogRecord) -> None:
        self.target.log(record.levelno, "%s", record.getMessage(), exc_info=record.exc_info)


def set_logger(logger: logging.Logger | LoggerAdapter[Any] | None = None) -> None:
    """Send the messages of the library to ``logger``, which replaces the logger ``sweeprof``; None: to ``sweeprof`` again.

    The level and the handlers of ``logger`` decide which messages are shown, and where. Messages of sweeps, which are logged by
    loggers below ``sweeprof``, are sent to it, too.

    Raises:
        TypeError: it is neither a ``logging.Logger`` nor a ``logging.LoggerAdapter``.
        ValueError: it is a logger below ``sweeprof``.

    Example:
        >>> sweeprof.set_logger(logging.getLogger("my_package.profiling"))
    """
    if logger is not None and not isinstance(logger, logging.Logger | logging.LoggerAdapter):
        raise TypeError(f"{logger!r} is not a logger: it must be a logging.Logger or a logging.LoggerAdapter")
    if logger is not None and logger.name.startswith(f"{LOG.name}."):
        raise ValueError(f"{logger!r} passes its messages on to {LOG.name}, which would send them to it again")
    for handler in list(LOG.handlers):
        if isinstance(handler, _Forward):
            LOG.removeHandler(handler)
            LOG.setLevel(handler.level_before)
            LOG.propagate = True
    if logger is not None and logger.name != LOG.name:
        LOG.addHandler(_Forward(logger, LOG.level))
        LOG.setLevel(1)  # of any level: those of the other logger decide
        LOG.propagate = False


class PassProgress:
    """Shows one line while measuring passes run, and logs every pass.

    Args:
        is_shown: None: on a terminal and in a notebook; True: everywhere, as lines where stderr is neither; False: nowhere.
        is_verbose: True: every message of the log is a line on stderr, too, and there is no other line.
    """

    def __init__(self, is_shown: bool | None, is_verbose: bool = False) -> None:
        self.is_shown, self.is_verbose = is_shown, is_verbose
        self._pending: Sequence[PassName] = ()
        self._line = StatusLine()
        self._began = 0.0

    @contextmanager
    def over(self, names: Sequence[PassName]) -> Iterator[None]:
        """Around passes that follow each other; the line is removed at the end. Within another such context: nothing."""
        if self._pending or not names:
            yield
            return
        self._pending, self._began = names, time.monotonic()
        try:
            yield
        finally:
            self._pending = ()
            self._remove()

    @contextmanager
    def running(self, name: PassName) -> Iterator[None]:
        """Around one pass."""
        text, done, total = name, 0, 0
        if name in self._pending and len(self._pending) > 1:
            done, total = self._pending.index(name), len(self._pending)
            text += f", pass {done + 1} of {total}"
        self.log(logging.INFO, text)
        begin = time.monotonic()
        if any(passes()[pending].kind != "exact" for pending in self._pending or (name,)):
            line = f"sweeprof: {text}"
            if self._pending and begin - self._began >= 1:
                line += f", {begin - self._began:.0f} s so far"
            self._show(line, done, total)
        try:
            yield
        finally:
            self.log(logging.INFO, f"{name} took {time.monotonic() - begin:.3g} s")
            if not self._pending:
                self._remove()

    def log(self, level: int, message: str) -> None:
        """Log a message; a verbose profiler also prints it, unless the program shows such messages itself."""
        target: logging.Logger | LoggerAdapter[Any] = LOG
        for handler in LOG.handlers:
            if isinstance(handler, _Forward):
                target = handler.target
        if self.is_verbose and not target.isEnabledFor(logging.INFO):
            print(f"sweeprof: {printable(message)}", file=sys.stderr, flush=True)
        LOG.log(level, "%s", message)

    def _show(self, line: str, done: int, total: int) -> None:
        if self.is_shown is False or self.is_verbose:
            return
        if self._line.can_show():
            self._line.show(line, done, total)
        elif self.is_shown:
            print(line, file=sys.stderr, flush=True)

    def _remove(self) -> None:
        if self.is_shown is not False and not self.is_verbose:
            self._line.remove()
