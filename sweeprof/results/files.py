"""Files that are either whole or absent, whatever kills the writer."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_full(error: BaseException) -> bool:
    """Whether ``error`` says that no more can be written: the disk is full, or a quota or limit is used up."""
    return isinstance(error, OSError) and error.errno in _FULL


def unwritable(error: BaseException, folder: Path) -> str | None:
    """Why nothing can be written below ``folder``, as in "the disk is full"; None if ``error`` has another reason."""
    if not isinstance(error, OSError):
        return None
    if is_full(error):
        return "is full"
    # Some errors of writing name no file; other files, such as the locks of the host, may be on other disks.
    is_below = error.filename is None or Path(os.fsdecode(error.filename)).absolute().is_relative_to(folder)
    if error.errno == errno.EROFS and is_below:
        return "is read-only"
    if error.errno in (errno.EACCES, errno.EPERM) and error.filename is not None and is_below:
        return "may not be written by this user"
    return None


def write_atomically(path: Path, text: str, durable: bool = True) -> None:
    """Replace ``path`` by ``text``: temporary file beside it, fsync, rename; without ``durable`` no fsync."""
    write_bytes(path, text.encode(), durable)


def write_bytes(path: Path, content: bytes, durable: bool = True) -> None:
    """Replace ``path`` by ``content``, likewise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
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


def write_json(path: Path, value: Any, compact: bool = False) -> None:
    """Write ``value`` atomically, data classes as mappings of their fields; ``compact`` takes a tenth of the time and one line.

    NaN and infinities are refused, because a missing value is a reason, not a number.
    """
    indent = None if compact else 1
    text = json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False, default=_fields)
    write_atomically(path, text + "\n")


def _fields(value: Any) -> dict[str, Any]:
    # dataclasses.asdict would copy everything, which takes longer than writing it
    return {spec.name: getattr(value, spec.name) for spec in dataclasses.fields(value)}


def read_json(path: Path) -> Any:
    """The parsed content of ``path``."""
    return json.loads(path.read_text(encoding="utf-8"))
