"""A command that stays, in a process of its own: what it printed so far, and its end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.servers import isolated

START_S = 180.0


class Started:
    """A running ``python -m MODULE``."""

    def __init__(self, module: str, words: Sequence[str], cwd: Path, variables: dict[str, str]) -> None:
        self._log = cwd / "stderr.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                cwd=cwd,
                env={**isolated(cwd), **variables},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def err(self) -> str:
        """What it printed as errors."""
        return self._log.read_text(errors="replace")

    def line(self, beginning: str) -> str:
        """The rest of the line that begins so, waited for."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            ended = self.process.poll() is not None and not self._reader.is_alive()
            for line in self.lines:
                if line.startswith(beginning):
                    return line.removeprefix(beginning).strip()
            assert not ended, f"ended with {self.process.returncode}: {self.lines} {self.err}"
            time.sleep(0.1)
        raise AssertionError(f"never printed {beginning!r}: {self.lines} {self.err}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal to it alone; returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def join(self) -> None:
        """Wait until all that it printed is read."""
        self._reader.join(60)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))


@contextmanager
def started(module: str, *words: str, cwd: Path, **variables: str) -> Iterator[Started]:
    """The command, in a folder that is its home, too."""
    found = Started(module, words, cwd, variables)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.end(signal.SIGTERM)
        found.join()
