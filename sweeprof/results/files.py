"""Files that are either whole or absent, whatever kills the writer."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn

from sweeprof.errors import Damaged, Problem, UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LONGEST_TAIL = 64 * 1024
"""Bytes that are read of the end of a log."""
ROOM_BYTES = 256 * 1024
"""A folder that cannot take a file of this size has no room for further records."""
MOST_BYTES = 512 * 2**20
"""Of a file that is read at once: parsed it takes several times as much memory."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENOTCONN, errno.ENOTEMPTY}
_UNREACHABLE = {errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO}
"""Errors of a disk that was unmounted, or does not answer."""


def is_full(error: BaseException) -> bool:
    """True if ``error`` says that no more can be written: the disk is full, or a quota or limit is reached."""
    return isinstance(error, OSError) and error.errno in _FULL


def unwritable(error: BaseException, folder: Path) -> str | None:
    """Why nothing can be written into the folder of a sweep, as in "is full"; None if ``error`` has another reason."""
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
    """Raise ``OSError`` if ``folder`` has no room for further files: only writing one tells, as quotas and limits count as well."""
    place = folder / "room"
    write_bytes(place, bytes(ROOM_BYTES))
    place.unlink()


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a file that replaces ``path`` once it is complete, likewise: for what is too large for one text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # By chance: processes on several hosts, such as those of pods, may have the same id, and nobody can put a link there.
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
    """Remove what writers that were killed left below ``folder``; nobody may be writing there."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_json(path: Path, value: object, compact: bool = False, durable: bool = True) -> None:
    """Write ``value`` atomically, data classes as mappings of their fields; ``compact`` takes a tenth of the time and one line.

    Without ``durable`` there is no fsync, as in :func:`write_atomically`.

    NaN and infinities are refused, because a missing value is a reason, not a number.
    """
    text = json.dumps(value, indent=None if compact else 1, allow_nan=False, ensure_ascii=False, default=_fields) + "\n"
    try:
        content = text.encode()
    except UnicodeEncodeError:  # a lone surrogate: readers get its spelling as text, which every file can hold
        content = _SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text).encode()
    write_bytes(path, content, durable)


def _fields(value: DataclassInstance) -> dict[str, object]:
    # dataclasses.asdict would copy everything, which takes longer than writing it
    return {spec.name: getattr(value, spec.name) for spec in dataclasses.fields(value)}


def tail_lines(path: Path, lines: int) -> str | None:
    """The last lines of a text file, of which only the end is read; None if it is empty or cannot be read."""
    try:
        with open_regular(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST_TAIL))
            text = file.read(LONGEST_TAIL).decode("utf-8", "replace")
    except (OSError, UserError):
        return None
    return "\n".join(text.strip().splitlines()[-lines:]) or None


def read_json(path: Path) -> Any:
    """The parsed content of ``path``.

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
    """The content of a regular file of at most :data:`MOST_BYTES`; raises :class:`Damaged` for another one."""
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
