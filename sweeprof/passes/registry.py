"""The registry of passes: every :class:`Pass` in a module of this package.

A new pass is one new module here. The plan, the runner, the metrics and the readers of records take everything that they need to
know of it from its :class:`Pass`. A package of somebody else adds passes by an entry point in the group ``sweeprof.passes`` that
names their module.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import sweeprof.passes
from sweeprof.errors import Damaged
from sweeprof.results.record import Record, check_pass_name, stored_record

if TYPE_CHECKING:
    from sweeprof.passes.session import Session

ENTRY_POINTS = "sweeprof.passes"
"""The group of entry points that name modules with further passes."""

PassKind = Literal["exact", "once", "rounds"]
"""Certainty of a value that is computed from the result of a pass: ``exact`` if the result is the same in every process, ``once``
if it is measured in a single process, ``rounds`` if it is measured once per round, each in a fresh process."""


class PassResult(Protocol):
    """The result of a pass: a dataclass.

    ``to_dict()``, where it has one, returns its JSON data; ``files``, ``warnings`` and ``tracebacks``, where it has them, go to the
    folder of artifacts, to the record and to the log of the trial. A result of the kind ``rounds`` has ``round`` and ``warnings``.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Result_co = TypeVar("Result_co", bound=PassResult, covariant=True)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of metric functions that a pass provides."""

    name: str
    take: Callable[[Any], object] | None = None
    """Returns the parameter's value from the result of the pass; raises :class:`~sweeprof.errors.Unsupported` if there is none.
    None: the value is the whole result, or of the kind ``rounds`` the tuple of all results."""
    source: Literal["result", "baseline", "object"] = "result"
    """Whose result it is taken from: the combination's or its baseline's; ``object``: it is not taken from a result, but is an
    object that exists only while the pass runs, which calls the metric's function itself."""
    needs_success: bool = True
    """False: also of a pass that raised, where it had this part of its result before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(Generic[Result_co]):
    """One kind of measurement: how to run it, and how to read its result from a record."""

    name: str
    """As in records and file names; an identifier."""
    order: int
    """Passes run, and are listed, by ascending order; the shipped ones are multiples of ten."""
    run: Callable[[Session, Any], Result_co]
    """Called with the session and its backend, which has the :attr:`capability`."""
    read: Callable[[Mapping[str, object]], Result_co]
    """From the observations of a record; raises :class:`~sweeprof.errors.Damaged` for something else."""
    kind: PassKind
    capability: str | None = None
    """The method of :class:`sweeprof.backends.Backend` that a backend must have; None: every backend can run it."""
    is_exclusive: bool = False
    """True if nothing else may use the device, or measure on the host, while it runs."""
    provides: tuple[Parameter, ...] = ()
    """The parameters of metric functions that can be taken from its result; empty: one with the name of the pass."""
    first: Callable[[Session, Any], object] | None = None
    """Called like :attr:`run`, before the framework is set up and starts threads; ``run`` finds its result in
    :attr:`Session.measured_first`. None: there is nothing to do first."""
    pair: Callable[[tuple[Any, ...], Callable[[], tuple[Any, ...]]], tuple[Result_co, ...]] | None = None
    """Of the kind ``rounds``: given the results of a combination and a function that reads those of its baseline, returns the
    former with what a comparison needs of the latter."""

    def __post_init__(self) -> None:
        if not self.provides:
            object.__setattr__(self, "provides", (Parameter(self.name),))
        if self.kind == "rounds" and any(parameter.take is not None for parameter in self.provides):
            raise ValueError(f"the pass {self.name!r} is measured in rounds: it provides its results as they are")


@cache
def passes() -> Mapping[str, Pass[PassResult]]:
    """Return every pass by its name, in the order in which passes run.

    Raises:
        ValueError: two passes have the same name, or provide the same parameter.
    """
    modules = [
        import_module(f"{ENTRY_POINTS}.{module.name}") for module in pkgutil.iter_modules(sweeprof.passes.__path__)
    ]
    modules += [entry_point.load() for entry_point in entry_points(group=ENTRY_POINTS)]
    declared: list[Pass[PassResult]] = [
        value for module in modules for value in vars(module).values() if isinstance(value, Pass)
    ]
    providers: dict[str, str] = {}
    by_name: dict[str, Pass[PassResult]] = {}
    for new in sorted(declared, key=lambda declared_pass: (declared_pass.order, declared_pass.name)):
        check_pass_name(new.name, "name")
        if new.name in by_name:
            raise ValueError(f"two passes are called {new.name!r}")
        by_name[new.name] = new
        for parameter in new.provides:
            other = providers.setdefault(parameter.name, new.name)
            if other != new.name:
                raise ValueError(f"the passes {other!r} and {new.name!r} both provide the parameter {parameter.name!r}")
    return MappingProxyType(by_name)


@cache
def exclusive_passes() -> frozenset[str]:
    """Return the names of the passes that must not share the device with anything else."""
    return frozenset(name for name, known in passes().items() if known.is_exclusive)


@cache
def baseline_passes() -> frozenset[str]:
    """Return the names of the passes whose results of the baseline a combination is compared with."""
    read = {provider.name for provider, parameter in parameters().values() if parameter.source == "baseline"}
    return frozenset(read | {name for name, known in passes().items() if known.pair is not None})


@cache
def parameters() -> Mapping[str, tuple[Pass[PassResult], Parameter]]:
    """Return the parameters that passes provide to metric functions, each with its pass, by name."""
    return MappingProxyType({parameter.name: (p, parameter) for p in passes().values() for parameter in p.provides})


def pass_named(name: str) -> Pass[PassResult]:
    """Return a pass by the name that a record has of it; raises :class:`Damaged` if there is none."""
    if name not in passes():
        raise Damaged(f"pass: {name!r} is not one of {', '.join(passes())}")
    return passes()[name]


def checked_record(path: Path) -> Record:
    """Return the record in a file, of which also the observations can be read.

    Raises:
        Damaged: the file holds something else, or the record of another trial.
        OSError: it cannot be read.
    """
    record = stored_record(path)
    known = pass_named(record.pass_name)
    if record.observations is not None and record.status == "ok":
        try:
            known.read(record.observations)
        except Damaged as error:
            raise Damaged(f"observations: {error}") from None
    return record
