"""Files that are either whole or absent, whatever kills the writer, and the types that describe their content."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import re
import stat
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin

from sweeprof.errors import Damaged, Problem, UserError, shown_value

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


LONGEST_TAIL = 64 * 1024
"""Bytes that are read from the end of a log."""
ROOM_BYTES = 256 * 1024
"""A folder without room for a file of this size is treated as full."""
MOST_BYTES = 512 * 2**20
"""The largest file that is read at once; parsed it takes several times as much memory."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENOTCONN, errno.ENOTEMPTY}
_UNREACHABLE = {errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO}
"""Errors of a disk that was unmounted, or does not answer."""


def is_full(error: BaseException) -> bool:
    """True if ``error`` says that no more can be written: the disk is full, or a quota or limit is reached."""
    return isinstance(error, OSError) and error.errno in _FULL


def unwritable(error: BaseException, folder: Path) -> str | None:
    """Return why nothing can be written into the folder of a sweep, as in "is full"; None if ``error`` has another reason."""
    if not isinstance(error, OSError):
        return None
    if is_full(error):
        return "is full"
    if error.errno in _GONE and not os.path.lexists(folder / "plan.json"):
        return "was removed"
    # Some errors of writing name no file; other files, such as the locks of the host, may be on other disks.
    is_below = error.filename is None or Path(os.fsdecode(error.filename)).absolute().is_relative_to(folder)
    why = None
    if is_below and error.errno == errno.EROFS:
        why = "is read-only"
    elif is_below and error.errno in (errno.EACCES, errno.EPERM) and error.filename is not None:
        why = "may not be written by this user"
    elif is_below and error.errno in _UNREACHABLE:
        why = f"cannot be reached ({error.strerror})"
    return why


def write_atomically(path: Path, text: str, durable: bool = True) -> None:
    """Replace ``path`` by ``text``: temporary file beside it, fsync, rename; without ``durable`` no fsync."""
    # A lone surrogate, which UTF-8 cannot encode, is spelled as in JSON.
    write_bytes(path, text.encode("utf-8", "backslashreplace"), durable)


def write_bytes(path: Path, content: bytes, durable: bool = True) -> None:
    """Replace ``path`` by ``content``, likewise."""
    with replacing(path, durable) as file:
        file.write(content)


def check_room(folder: Path) -> None:
    """Raise ``OSError`` if ``folder`` has no room for further files; only writing one shows that, because of quotas and limits."""
    place = folder / "room"
    write_bytes(place, bytes(ROOM_BYTES))
    place.unlink()


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a file that replaces ``path`` once it is complete, for content that is too large for one text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A random name: processes on several hosts may have the same id, and nobody can put a link there in advance.
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of killed writers below ``folder``; no process may be writing there."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_json(path: Path, value: object, compact: bool = False, durable: bool = True) -> None:
    """Write ``value`` atomically, data classes as mappings of their fields; ``compact`` takes a tenth of the time and one line.

    Without ``durable`` there is no fsync, as in :func:`write_atomically`.

    NaN and infinities are refused, because a missing value is a reason, not a number.
    """

    def fields(value: DataclassInstance) -> dict[str, object]:
        # dataclasses.asdict would copy everything, which takes longer than writing it
        left_out = getattr(value, "NOT_STORED", ())
        return {spec.name: getattr(value, spec.name) for spec in dataclasses.fields(value) if spec.name not in left_out}

    indent = None if compact else 1
    text = json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False, default=fields) + "\n"
    try:
        content = text.encode()
    except UnicodeEncodeError:  # a lone surrogate: readers get its spelling as text, which every file can hold
        content = _SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text).encode()
    write_bytes(path, content, durable)


def tail_lines(path: Path, lines: int) -> str | None:
    """Return the last lines of a text file, of which only the end is read; None if it is empty or cannot be read."""
    try:
        with open_regular(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST_TAIL))
            text = file.read(LONGEST_TAIL).decode("utf-8", "replace")
    except (OSError, UserError):
        return None
    return "\n".join(text.strip().splitlines()[-lines:]) or None


def read_json(path: Path) -> Any:
    """Return the parsed content of ``path``.

    Raises:
        Damaged: it is not JSON that a sweep writes: cut, repeats a key, nested too deeply, not a number, not a regular file, or
            larger than :data:`MOST_BYTES`.
        OSError: it cannot be read.
    """
    content = read_bytes(path)
    try:
        data = json.loads(content, object_pairs_hook=_unique, parse_constant=_refuse)
        if b"\\ud" in content or b"\\uD" in content:  # half of a pair of surrogates, which no file can hold
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise Damaged("is nested too deeply") from None
    except UnicodeEncodeError:
        raise Damaged("has text that is not Unicode") from None
    except Damaged:
        raise
    except ValueError as error:
        raise Damaged(f"is not JSON: {error}") from None
    return data


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file of at most :data:`MOST_BYTES`; raises :class:`Damaged` for another one."""
    # O_NONBLOCK: or opening a fifo would wait for its other end.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Damaged("is not a regular file")
        if status.st_size > MOST_BYTES:
            raise Damaged(f"has {status.st_size:,} bytes, more than the {MOST_BYTES:,} that are read")
        return file.read()


def open_regular(path: Path, mode: Literal["rb", "r+b", "ab", "a+b"]) -> BinaryIO:
    """Open a regular file; never waits for the other end of a FIFO, as an archive of a folder may contain one.

    Raises:
        UserError: it is something else than a regular file.
    """
    flags = {
        "rb": os.O_RDONLY,
        "r+b": os.O_RDWR,
        "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        "a+b": os.O_RDWR | os.O_CREAT | os.O_APPEND,
    }
    irregular = UserError([Problem("DIR", str(path), "is not a regular file: remove it.")])
    try:
        descriptor = os.open(path, flags[mode] | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR, errno.ELOOP):  # a FIFO or socket, a directory, a link
            raise irregular from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise irregular
    return os.fdopen(descriptor, mode, buffering=-1 if mode == "rb" else 0)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise Damaged("repeats a key")
    return data


def _refuse(constant: str) -> NoReturn:
    raise Damaged(f"has {constant}, which is not a number")


# Content as instances of types, or one error that says what does not fit.


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
    shown = type(value).__name__
    if isinstance(value, str | int | float | None):
        shown = shown_value(value)
    if len(shown) > SHOWN:
        shown = shown[:SHOWN] + "…"
    path = ""
    for key in where:
        path += f"[{key}]" if isinstance(key, int) else f".{key}"
    path = path.removeprefix(".")
    if path:
        shown = f"{path}: {shown}"
    return Damaged(f"{shown} is not {expected}")


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
    simple[bool] = _if(lambda value: type(value) is bool, "true or false")
    simple[str] = _if(lambda value: type(value) is str, "text")
    simple[type(None)] = _if(lambda value: value is None, "null")
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in simple:
        return simple[kind]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if typing.is_typeddict(kind):
        return _typed_dict(cast("type", kind))
    if origin is Literal:
        return _if(lambda value: type(value) is str and value in arguments, f"one of {', '.join(map(str, arguments))}")
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
    if type(value) is not int:
        raise _MismatchError(value, "an integer")
    if not -LARGEST <= value <= LARGEST:
        raise _MismatchError(value, "an integer of a plausible size")
    return value


def _number(value: object) -> float:
    if type(value) is float and -LARGEST_FLOAT <= value <= LARGEST_FLOAT:  # not NaN either
        return value
    if type(value) is int and -LARGEST <= value <= LARGEST:
        return value
    raise _MismatchError(value, "a finite number of a plausible size")


def _if(fits: Callable[[object], bool], expected: str) -> Check:
    def check(value: object) -> object:
        if not fits(value):
            raise _MismatchError(value, expected)
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
        if item is plain:
            return plain(data)
        return _read_fields(data, dict.fromkeys(data, item), ())

    return check


def _read_fields(data: Mapping[str, object], checks: Mapping[str, Check], needed: Iterable[str]) -> dict[str, object]:
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
            return kind(**_read_fields(data, checks, needed))
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
        fields = _read_fields(data, checks, sorted(required - optional))
        others = {key: item for key, item in data.items() if key not in checks}
        plain(others)
        return {**others, **fields}

    return check
