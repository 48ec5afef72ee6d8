"""The progress display of planning: the number of composed combinations; live on a terminal, else in plain lines."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console

WAKE_S = 1.0
LINE_S = 3.0


class PlanningDisplay:
    """Shows how far planning is, once it takes a while: a context.

    Args:
        console: what shows it, live on a terminal, else in lines; None: nothing does.
    """

    def __init__(self, console: Console | None) -> None:
        self.total = 0
        """Combinations to be planned, before any is left out."""
        self._done, self._console = 0, console
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sweeprof-planning", daemon=True)

    def advance(self) -> None:
        """Count a combination."""
        self._done += 1

    def __enter__(self) -> PlanningDisplay:
        if self._console:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._console:
            self._thread.join()

    def _follow(self) -> None:
        assert self._console is not None
        if not self._console.is_terminal:
            written = ""
            while not self._stop.wait(LINE_S):
                line = self._line()
                if line != written:  # in a log a line that says the same again says nothing
                    self._console.print(line, highlight=False, soft_wrap=True)
                    written = line
        elif not self._stop.wait(WAKE_S):
            with self._console.status(self._line()) as status:
                while not self._stop.wait(WAKE_S):
                    status.update(self._line())

    def _line(self) -> str:
        if self._done < self.total:
            return f"planning: {self._done:,} of {self.total:,} combinations"
        noun = "combination" if self.total == 1 else "combinations"
        return f"planning: checking {self.total:,} {noun}" if self.total else "planning"
