"""Peak memory of this process as the operating system sees it.

``VmHWM`` is the high-water mark of the resident set; writing 5 to ``clear_refs`` resets it to the present value, so that the
peak belongs to what follows. ``RssFile`` is the part of the resident set that is pages of files: programs, libraries and mapped
data. Source: proc(5).
"""

from __future__ import annotations

import ctypes
import re
import typing
from pathlib import Path

from sweeprof.errors import Unsupported

PROC = Path("/proc/self")
LARGE = 64 * 1024
"""Bytes from which on an allocation is pages of its own after :meth:`ProcessMemory.give_back_freed`."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of ``mallopt``, from glibc's ``malloc.h``."""


class MemoryMeter(typing.Protocol):
    """Reads the memory of this process."""

    def reset_peak(self) -> None:
        """Let the peak begin at the present value."""

    def rss(self) -> int:
        """Return the resident bytes now."""

    def rss_peak(self) -> int:
        """Return the highest resident bytes since :meth:`reset_peak`."""

    def own(self) -> int:
        """Return the resident bytes now without programs, libraries and the files that were mapped before the first call."""

    def own_peak(self) -> int:
        """Return the highest of :meth:`own` since :meth:`reset_peak`, if since then no pages of files were added or given back."""

    def give_back_freed(self) -> None:
        """Let freed memory leave the resident set at once, now and from now on."""


class ProcessMemory:
    """The meter of a Linux process.

    Raises:
        Unsupported: the system has no ``/proc`` with high-water marks.
    """

    def __init__(self) -> None:
        self._mapped_before: frozenset[str] | None = None

    def reset_peak(self) -> None:
        try:
            (PROC / "clear_refs").write_text("5", encoding="ascii")
        except OSError as error:
            raise Unsupported(
                f"this system does not let a process reset its memory high-water mark: {error}"
            ) from error

    def rss(self) -> int:
        return self._read("VmRSS")

    def rss_peak(self) -> int:
        return self._read("VmHWM")

    def own(self) -> int:
        return self._without_programs("VmRSS")

    def own_peak(self) -> int:
        return self._without_programs("VmHWM")

    def give_back_freed(self) -> None:
        libc = ctypes.CDLL(None)
        try:
            libc.mallopt(_M_MMAP_THRESHOLD, LARGE)
            libc.mallopt(_M_TRIM_THRESHOLD, LARGE)
            libc.malloc_trim(0)
        except AttributeError as error:
            raise Unsupported(f"the C library of this system is not glibc: {error}") from error

    def _without_programs(self, field: str) -> int:
        mapped = _mapped_files()
        if self._mapped_before is None:
            self._mapped_before = frozenset(mapped)
        data = sum(size for path, size in mapped.items() if path not in self._mapped_before)
        return self._read(field) - self._read("RssFile") + data

    def _read(self, field: str) -> int:
        try:
            text = (PROC / "status").read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise Unsupported(f"this system has no {PROC}/status: {error}") from error
        match = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
        if match is None:
            raise Unsupported(f"{PROC}/status has no {field}")
        return int(match.group(1)) * 1024


def _mapped_files() -> dict[str, int]:
    """Return the resident bytes of every mapped file that is no program or library, by its path.

    Files in memory (``/dev/shm``, ``memfd``) are not among them: their pages are not in ``RssFile`` either.
    """
    try:
        # The name of a file may be any bytes.
        text = (PROC / "smaps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise Unsupported(f"this system has no {PROC}/smaps: {error}") from error
    sizes: dict[str, int] = {}
    programs: set[str] = set()
    for rights, path, rss in re.findall(
        r"^[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ \d+ +(/.*)\n(?:\w+: .*\n)*?Rss: +(\d+) kB$", text, re.MULTILINE
    ):
        if "x" in rights:
            programs.add(path)
        if not path.startswith(("/dev/", "/memfd:", "/SYSV")):
            sizes[path] = sizes.get(path, 0) + int(rss) * 1024
    return {path: size for path, size in sizes.items() if path not in programs}
