"""The registry of passes: every module of this package with a :class:`Pass` called ``PASS``.

A new pass is one new module here. The plan, the runner, the metrics and the readers of records take everything that they need to
know of it from its :class:`Pass`. A package of somebody else adds a pass by an entry point in the group ``sweeprof.passes`` that
names such a module.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
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


Result = TypeVar("Result", bound=PassResult)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of metric functions that a pass provides."""

    name: str
    take: Callable[[Any], Any] | None = None
    """Returns the parameter's value from the result of the pass; raises :class:`~sweeprof.errors.Unsupported` if there is none.
    None: the value is the whole result, or of the kind ``rounds`` the tuple of all results."""
    source: Literal["result", "baseline", "object"] = "result"
    """Whose result it is taken from: the combination's or its baseline's; ``object``: it is not taken from a result, but is an
    object that exists only while the pass runs, which calls the metric's function itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(Generic[Result]):
    """One kind of measurement: how to run it, and how to read its result from a record."""

    name: str
    """As in records and file names; an identifier."""
    order: int
    """Passes run, and are listed, by ascending order; the shipped ones are multiples of ten."""
    run: Callable[[Session, Any], Result]
    """Called with the session and its backend, which has the :attr:`capability`."""
    read: Callable[[Mapping[str, Any]], Result]
    """From the observations of a record; raises :class:`~sweeprof.errors.Damaged` for something else."""
    kind: PassKind
    measured_fields: frozenset[str] = frozenset()
    """Fields of an exact result that are measured once all the same."""
    capability: type | None = None
    """The protocol of :mod:`sweeprof.backends` that a backend must have; None: every backend can run it."""
    is_exclusive: bool = False
    """True if nothing else may use the device, or measure on the host, while it runs."""
    provides: tuple[Parameter, ...]
    """The parameters of metric functions that can be taken from its result."""
    pair: Callable[[tuple[Result, ...], Callable[[], tuple[Result, ...]]], tuple[Result, ...]] | None = None
    """Of the kind ``rounds``: given the results of a combination and a function that reads those of its baseline, returns the
    former with what a comparison needs of the latter."""

    def __post_init__(self) -> None:
        if self.kind == "rounds" and any(parameter.take is not None for parameter in self.provides):
            raise ValueError(f"the pass {self.name!r} is measured in rounds: it provides its results as they are")


@cache
def passes() -> Mapping[str, Pass[Any]]:
    """Return every pass by its name, in the order in which passes run.

    Raises:
        ValueError: two passes have the same name, or provide the same parameter.
    """
    found = sorted(_declared(), key=lambda one: (one.order, one.name))
    providers: dict[str, str] = {}
    by_name: dict[str, Pass[Any]] = {}
    for one in found:
        check_pass_name(one.name, "name")
        if one.name in by_name:
            raise ValueError(f"two passes are called {one.name!r}")
        by_name[one.name] = one
        for parameter in one.provides:
            other = providers.setdefault(parameter.name, one.name)
            if other != one.name:
                raise ValueError(f"the passes {other!r} and {one.name!r} both provide the parameter {parameter.name!r}")
    return MappingProxyType(by_name)


def _declared() -> Iterator[Pass[Any]]:
    modules = [
        import_module(f"{ENTRY_POINTS}.{found.name}") for found in pkgutil.iter_modules(sweeprof.passes.__path__)
    ]
    modules += [entry_point.load() for entry_point in entry_points(group=ENTRY_POINTS)]
    for module in modules:
        declared = getattr(module, "PASS", None)
        if isinstance(declared, Pass):
            yield declared


@cache
def exclusive_passes() -> frozenset[str]:
    """Return the names of the passes that must not share the device with anything else."""
    return frozenset(name for name, one in passes().items() if one.is_exclusive)


@cache
def baseline_passes() -> frozenset[str]:
    """Return the names of the passes whose results of the baseline a combination is compared with."""
    taken = {one.name for one, parameter in parameters().values() if parameter.source == "baseline"}
    return frozenset(taken | {name for name, one in passes().items() if one.pair is not None})


@cache
def parameters() -> Mapping[str, tuple[Pass[Any], Parameter]]:
    """Return the parameters that passes provide to metric functions, each with its pass, by name."""
    return MappingProxyType(
        {parameter.name: (one, parameter) for one in passes().values() for parameter in one.provides}
    )


def pass_named(name: str) -> Pass[Any]:
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
