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
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from sweeprof.errors import Damaged

LARGEST = 2**128
"""No integer of a sweep is larger; those of JSON may be as long as a file, and then cannot be converted to anything else."""
LARGEST_FLOAT = 1e100
"""Nothing that is measured is larger; sums and products of such numbers are finite."""
DEEPEST = 64
"""How deep values of any kind may be nested: functions that follow the nesting call themselves."""
SHOWN = 60
"""Characters of a value that an error quotes."""

T = TypeVar("T")
_Check = Callable[[object], Any]


def validated(kind: type[T], data: object) -> T:
    """``data``, parsed from JSON, as a ``kind``.

    Raises:
        Damaged: it is not one; says where in it, and why.
    """
    try:
        made: T = _check_of(cast("Any", kind))(data)
    except RecursionError:
        raise Damaged("is nested too deeply") from None
    return made


def damaged(value: object, expected: str, where: Sequence[str | int] = ()) -> Damaged:
    """The error of a value that is not what was ``expected``; ``where`` are the keys that lead to it."""
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
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
def _check_of(kind: Any) -> _Check:
    """The function that checks a value of the outermost type."""
    check = _compiled(kind)

    def outermost(value: object) -> Any:
        try:
            return check(value)
        except _MismatchError as error:
            raise damaged(error.value, error.expected, error.where[::-1]) from None

    return outermost


@cache
def _compiled(kind: Any) -> _Check:
    simple: dict[Any, _Check] = {
        Any: plain,
        object: plain,
        int: _integer,
        float: _number,
        bool: _bool,
        str: _text,
        type(None): _null,
        dict: _plain_mapping,
        list: _plain_list,
    }
    if kind in simple:
        return simple[kind]
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if typing.is_typeddict(kind):
        return _typed_dict(kind)
    return _generic(kind, get_origin(kind), get_args(kind))


def _generic(kind: Any, origin: Any, arguments: tuple[Any, ...]) -> _Check:
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _fixed(arguments)
    if origin in (tuple, list, Sequence):
        return _list(arguments[0], tuple if origin is tuple else list)
    if origin in (dict, Mapping):
        return _mapping(arguments[1])
    raise TypeError(f"{kind} cannot be read from JSON")


def plain(value: object, depth: int = 0) -> Any:
    """``value``, if it is of JSON's kinds of values, finite and not nested too deeply."""
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
    if isinstance(value, list | tuple):
        if _are_plausible(value):
            return value
        items: Any = enumerate(value)
    elif isinstance(value, dict):
        items = value.items()
    else:
        raise _MismatchError(value, "a value of JSON")
    for key, one in items:
        if type(one) in (str, bool, type(None)):
            continue  # most values, without a call
        try:
            plain(one, depth + 1)
        except _MismatchError as error:
            error.where.append(key)
            raise
    return value


def _plain_mapping(value: object) -> Any:
    if not isinstance(value, dict):
        raise _MismatchError(value, "an object")
    return plain(value)


def _plain_list(value: object) -> Any:
    if not isinstance(value, list):
        raise _MismatchError(value, "a list")
    return plain(value)


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


def _bool(value: object) -> bool:
    if type(value) is not bool:
        raise _MismatchError(value, "true or false")
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise _MismatchError(value, "text")
    return value


def _null(value: object) -> None:
    if value is not None:
        raise _MismatchError(value, "null")


def _literal(allowed: tuple[Any, ...]) -> _Check:
    listed = ", ".join(map(str, allowed))

    def check(value: object) -> Any:
        if type(value) is not str or value not in allowed:
            raise _MismatchError(value, f"one of {listed}")
        return value

    return check


def _union(kinds: tuple[Any, ...]) -> _Check:
    checks = [_compiled(kind) for kind in kinds if kind is not type(None)]
    is_optional = len(checks) < len(kinds)

    def check(value: object) -> Any:
        if value is None and is_optional:
            return None
        for one in checks[:-1]:
            try:
                return one(value)
            except _MismatchError:
                pass
        return checks[-1](value)

    return check


def _are_plausible(values: Sequence[Any]) -> bool:
    """True if all values are floats that :func:`_number` takes; quick, for thousands of samples."""
    if (
        not values
        or type(values[0]) is not float
        or set(map(type, values)) != {float}
        or not all(map(math.isfinite, values))
    ):
        return False
    return bool(min(values) >= -LARGEST_FLOAT and max(values) <= LARGEST_FLOAT)


def _list(kind: Any, made: Callable[[Any], Any]) -> _Check:
    item = _compiled(kind)

    def check(value: object) -> Any:
        if not isinstance(value, list | tuple):
            raise _MismatchError(value, "a list")
        if item is _number and _are_plausible(value):
            return made(value)
        found = []
        for one in value:
            try:
                found.append(item(one))
            except _MismatchError as error:
                error.where.append(len(found))
                raise
        return made(found)

    return check


def _fixed(kinds: tuple[Any, ...]) -> _Check:
    items = [_compiled(kind) for kind in kinds]

    def check(value: object) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            raise _MismatchError(value, f"a list of {len(items)}")
        return tuple(item(one) for item, one in zip(items, value, strict=True))

    return check


def _mapping(kind: Any) -> _Check:
    item = _compiled(kind)

    def check(value: object) -> Any:
        if not isinstance(value, dict):
            raise _MismatchError(value, "an object")
        if item is plain:
            return plain(value)
        return _items(value, dict.fromkeys(value, item))

    return check


def _items(value: Mapping[str, Any], checks: Mapping[str, _Check]) -> dict[str, Any]:
    """Return the checked values of the keys of ``checks`` that are in ``value``."""
    found = {}
    key = ""
    try:
        for key, check in checks.items():
            if key in value:
                found[key] = check(value[key])
    except _MismatchError as error:
        error.where.append(key)
        raise
    return found


def _dataclass(kind: Any) -> _Check:
    fields = [spec for spec in dataclasses.fields(kind) if spec.init]
    missing = dataclasses.MISSING
    needed = [spec.name for spec in fields if spec.default is missing and spec.default_factory is missing]
    checks: dict[str, _Check] = {}  # filled at first use: a type may have fields of its own type

    def check(value: object) -> Any:
        if not isinstance(value, dict):
            raise _MismatchError(value, "an object")
        if not checks:
            hints = typing.get_type_hints(kind)
            checks.update({spec.name: _readable(hints[spec.name]) for spec in fields})
        found = _items(value, checks)
        for name in needed:
            if name not in found:
                raise _MismatchError(value, f"complete: it has no {name!r}")
        try:
            return kind(**found)
        except ValueError as error:  # what the type itself refuses
            raise _MismatchError(value, f"valid: {error}") from None

    return check


def _readable(kind: Any) -> _Check:
    """The check of a field; what no JSON holds, as bytes, is never read from it."""
    try:
        return _compiled(kind)
    except TypeError:

        def refuse(value: object) -> Any:
            raise _MismatchError(value, "stored in JSON")

        return refuse


def _typed_dict(kind: Any) -> _Check:
    # Where annotations are text, __required_keys__ has those of NotRequired, too.
    hints = typing.get_type_hints(kind, include_extras=True)
    optional = {key for key, hint in hints.items() if get_origin(hint) is typing.NotRequired}
    checks = {key: _compiled(hint) for key, hint in typing.get_type_hints(kind).items()}
    needed = sorted(kind.__required_keys__ - optional)

    def check(value: object) -> Any:
        if not isinstance(value, dict):
            raise _MismatchError(value, "an object")
        found = _items(value, checks)
        for name in needed:
            if name not in found:
                raise _MismatchError(value, f"complete: it has no {name!r}")
        others = {key: one for key, one in value.items() if key not in checks}
        return {**plain(others), **found}

    return check
