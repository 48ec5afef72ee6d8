"""Peak memory of this process as the operating system sees it.

``VmHWM`` is the high-water mark of the resident set; writing 5 to ``clear_refs`` resets it to the present value, so that the
peak belongs to what follows. Source: proc(5).
"""

from __future__ import annotations

import re
import typing
from pathlib import Path

from sweeprof.errors import Unsupported

PROC = Path("/proc/self")


class MemoryMeter(typing.Protocol):
    """Reads the memory of this process."""

    def reset_peak(self) -> None:
        """Let the peak begin at the present value."""

    def rss(self) -> int:
        """Return the resident bytes now."""

    def rss_peak(self) -> int:
        """Return the highest resident bytes since :meth:`reset_peak`."""


class ProcessMemory:
    """The meter of a Linux process.

    Raises:
        Unsupported: the system has no ``/proc`` with high-water marks.
    """

    def reset_peak(self) -> None:
        try:
            (PROC / "clear_refs").write_text("5")
        except OSError as error:
            raise Unsupported(
                f"this system does not let a process reset its memory high-water mark: {error}"
            ) from error

    def rss(self) -> int:
        return self._read("VmRSS")

    def rss_peak(self) -> int:
        return self._read("VmHWM")

    def _read(self, field: str) -> int:
        try:
            text = (PROC / "status").read_text()
        except OSError as error:
            raise Unsupported(f"this system has no {PROC}/status: {error}") from error
        match = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
        if match is None:
            raise Unsupported(f"{PROC}/status has no {field}")
        return int(match.group(1)) * 1024
