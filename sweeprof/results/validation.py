"""Data read from files as instances of the types that describe them, or one error that says what does not fit.

Files of a sweep may be cut, edited, or written by somebody else. :func:`validated` checks parsed JSON against a dataclass, a
``TypedDict`` or any other type that is made of JSON's kinds of values: names of fields, strict types (text is not a number, 1.5 is
not an integer, true is neither), the values of a ``Literal``. Fields that the type does not have are ignored, as a later version
may have added them.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from sweeprof.errors import Damaged, shown_value

LARGEST = 2**128
"""No integer of a sweep is larger; those of JSON may be as long as a file, and then cannot be converted to anything else."""
LARGEST_FLOAT = 1e100
"""Nothing that is measured is larger; sums and products of such numbers are finite."""
DEEPEST = 64
"""How deep values of any kind may be nested: functions that follow the nesting call themselves."""
SHOWN = 60
"""Characters of a value that an error quotes."""

T = TypeVar("T")
Check = Callable[[object], object]
"""Returns the value as the type that it is read as; raises :class:`_MismatchError`."""


def validated(kind: type[T], data: object) -> T:
    """Return ``data``, parsed from JSON, as a ``kind``.

    Raises:
        Damaged: it is not one; says where in it, and why.
    """
    try:
        return cast("T", _check_of(cast("Hashable", kind))(data))
    except _MismatchError as error:
        raise damaged(error.value, error.expected, error.where[::-1]) from None
    except RecursionError:
        raise Damaged("is nested too deeply") from None


def damaged(value: object, expected: str, where: Sequence[str | int] = ()) -> Damaged:
    """Return the error of a value that is not what was ``expected``; ``where`` are the keys that lead to it."""
    text = shown_value(value) if isinstance(value, str | int | float | None) else type(value).__name__
    shown = text if len(text) <= SHOWN else text[:SHOWN] + "…"
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in where).removeprefix(".")
    return Damaged(f"{path}: {shown} is not {expected}" if path else f"{shown} is not {expected}")


class _MismatchError(Exception):
    """A value does not fit; containers add where it is on the way out."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__()
        self.value, self.expected = value, expected
        self.where: list[str | int] = []


@cache
def _check_of(kind: object) -> Check:  # noqa: PLR0911  # one for each kind of type
    """Return the function that checks a value of a type; raise TypeError for a type that no JSON holds."""
    simple: dict[object, Check] = {Any: plain, object: plain, int: _integer, float: _number}
    simple |= {dict: _mapping(plain), list: _list(plain, list)}
    exact: dict[object, str] = {bool: "true or false", str: "text", type(None): "null"}
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in simple:
        return simple[kind]
    if kind in exact:
        return _exactly(kind, exact[kind])
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if typing.is_typeddict(kind):
        return _typed_dict(cast("type", kind))
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _fixed([_check_of(argument) for argument in arguments])
    if origin in (tuple, list, Sequence):
        return _list(_check_of(arguments[0]), tuple if origin is tuple else list)
    if origin in (dict, Mapping):
        return _mapping(_check_of(arguments[1]))
    raise TypeError(f"{kind} cannot be read from JSON")


def plain(value: object, depth: int = 0) -> object:
    """Return ``value``, if it is of JSON's kinds of values, finite and not nested too deeply."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _MismatchError(value, "a finite number")
        return value
    if depth == DEEPEST:
        raise _MismatchError(value, f"allowed: it is nested more than {DEEPEST} levels deep")
    items: Iterable[tuple[str | int, object]]
    if isinstance(value, dict):
        items = value.items()
    elif not isinstance(value, list | tuple):
        raise _MismatchError(value, "a value of JSON")
    elif _are_plausible(value):
        return value
    else:
        items = enumerate(value)
    for key, item in items:
        if type(item) in (str, bool, type(None)):
            continue  # most values, without a call
        try:
            plain(item, depth + 1)
        except _MismatchError as error:
            error.where.append(key)
            raise
    return value


def _integer(value: object) -> int:
    if type(value) is not int or not -LARGEST <= value <= LARGEST:
        raise _MismatchError(value, "an integer of a plausible size" if type(value) is int else "an integer")
    return value


def _number(value: object) -> float:
    if type(value) is float and -LARGEST_FLOAT <= value <= LARGEST_FLOAT:  # not NaN either
        return value
    if type(value) is int and -LARGEST <= value <= LARGEST:
        return value
    raise _MismatchError(value, "a finite number of a plausible size")


def _exactly(kind: object, expected: str) -> Check:
    def check(value: object) -> object:
        if type(value) is not kind:
            raise _MismatchError(value, expected)
        return value

    return check


def _literal(allowed: Collection[object]) -> Check:
    listed = ", ".join(map(str, allowed))

    def check(value: object) -> object:
        if type(value) is not str or value not in allowed:
            raise _MismatchError(value, f"one of {listed}")
        return value

    return check


def _union(kinds: Sequence[object]) -> Check:
    checks = [_check_of(kind) for kind in kinds if kind is not type(None)]
    is_optional = len(checks) < len(kinds)

    def check(value: object) -> object:
        if value is None and is_optional:
            return None
        for alternative in checks[:-1]:
            try:
                return alternative(value)
            except _MismatchError:
                pass
        return checks[-1](value)

    return check


def _are_plausible(values: Sequence[object]) -> bool:
    """Return True if all values are floats that :func:`_number` takes; quick, for thousands of samples."""
    if not values or type(values[0]) is not float or set(map(type, values)) != {float}:
        return False
    floats = cast("Sequence[float]", values)
    return all(map(math.isfinite, floats)) and min(floats) >= -LARGEST_FLOAT and max(floats) <= LARGEST_FLOAT


def _list(item: Check, kind: Callable[[Sequence[object]], object]) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, list | tuple):
            raise _MismatchError(value, "a list")
        if item is _number and _are_plausible(value):
            return kind(value)
        checked: list[object] = []
        for element in value:
            try:
                checked.append(item(element))
            except _MismatchError as error:
                error.where.append(len(checked))
                raise
        return kind(checked)

    return check


def _fixed(items: Sequence[Check]) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            raise _MismatchError(value, f"a list of {len(items)}")
        return tuple(item(element) for item, element in zip(items, value, strict=True))

    return check


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _MismatchError(value, "an object")
    return value


def _mapping(item: Check) -> Check:
    def check(value: object) -> object:
        data = _object(value)
        return plain(data) if item is plain else _fields(data, dict.fromkeys(data, item), ())

    return check


def _fields(data: Mapping[str, object], checks: Mapping[str, Check], needed: Iterable[str]) -> dict[str, object]:
    """Return the checked values of the keys of ``checks`` that are in ``data``, which must have the ``needed`` ones."""
    fields = {}
    key = ""
    try:
        for key, check in checks.items():
            if key in data:
                fields[key] = check(data[key])
    except _MismatchError as error:
        error.where.append(key)
        raise
    for name in needed:
        if name not in fields:
            raise _MismatchError(data, f"complete: it has no {name!r}")
    return fields


def _dataclass(kind: type) -> Check:
    fields = [spec for spec in dataclasses.fields(kind) if spec.init]
    missing = dataclasses.MISSING
    needed = [spec.name for spec in fields if spec.default is missing and spec.default_factory is missing]
    checks: dict[str, Check] = {}  # filled at first use: a type may have fields of its own type

    def check(value: object) -> object:
        data = _object(value)
        if not checks:
            hints = typing.get_type_hints(kind)
            for spec in fields:
                try:
                    checks[spec.name] = _check_of(hints[spec.name])
                except TypeError:  # what no JSON holds, as bytes, is never read from it
                    checks[spec.name] = _refused
        try:
            return kind(**_fields(data, checks, needed))
        except ValueError as error:  # what the type itself refuses
            raise _MismatchError(value, f"valid: {error}") from None

    return check


def _refused(value: object) -> object:
    raise _MismatchError(value, "stored in JSON")


def _typed_dict(kind: type) -> Check:
    # Where annotations are text, __required_keys__ has those of NotRequired, too.
    hints = typing.get_type_hints(kind, include_extras=True)
    optional = {key for key, hint in hints.items() if get_origin(hint) is typing.NotRequired}
    checks = {key: _check_of(hint) for key, hint in typing.get_type_hints(kind).items()}
    required: frozenset[str] = vars(kind)["__required_keys__"]

    def check(value: object) -> object:
        data = _object(value)
        fields = _fields(data, checks, sorted(required - optional))
        others = {key: item for key, item in data.items() if key not in checks}
        plain(others)
        return {**others, **fields}

    return check
