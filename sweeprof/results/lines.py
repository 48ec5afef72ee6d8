"""Lines: time and memory of the source lines of chosen functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sweeprof.display import Displayed, listing_of
from sweeprof.results.record import Stored

Span = Literal["step", "call", "run"]


@dataclass(frozen=True, slots=True)
class Line:
    """One source line: its time over all steps that were timed, its memory in one further step."""

    number: int
    source: str
    """Without the indentation that all lines of the function share; empty where the source cannot be had."""
    hits: int
    """How often it was begun, over all timed steps."""
    seconds: float
    """Of the line and all that it called, over all timed steps."""
    allocated_bytes: int | None
    """Everything that was allocated while it ran, released or not; None where it was not measured."""
    peak_bytes: int | None
    """On the host: what it had allocated that was alive when the allocations of the step were at their highest. On an accelerator:
    how far its memory rose above where it was when the line began, in the worst of its runs. None where it was not measured."""
    usage_bytes: int | None = None
    """The memory in use when the line had ended, the highest of its runs: of the process, without pages of files, or of the
    accelerator. None where it was not measured, or the line never ran."""
    increment_bytes: int | None = None
    """The change of the memory in use over all its runs; negative where the line released memory."""


@dataclass(frozen=True, slots=True)
class FunctionLines(Displayed):
    """One function."""

    name: str
    """Qualified, e.g. ``my_package.MyNet.forward``."""
    file: str
    first_line: int
    lines: tuple[Line, ...]

    @property
    def seconds(self) -> float:
        """All its lines together."""
        return sum(line.seconds for line in self.lines)

    @property
    def is_called(self) -> bool:
        """True if a timed step ran it."""
        return any(line.hits for line in self.lines)


@dataclass(frozen=True, slots=True)
class Lines(Stored):
    """Time and memory of the source lines of functions."""

    NOT_STORED = ("files",)

    functions: tuple[FunctionLines, ...]
    steps: int
    """Number of timed steps, after a warm-up; memory is measured in a further step."""
    memory_reason: str | None = None
    """Why there is no memory per line."""
    device: str = "cpu"
    """The device whose memory is measured, e.g. ``cuda:0``; time is always that of the host."""
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Files that are stored beside the record: the reports as text, ``lines_time.txt`` and ``lines_memory.txt``."""
    span: Span = "step"
    """What was measured ``steps`` times: a step of a model, a call of a function, a run of a script. The memory of calls and of a
    run is that of all of them together, that of a step that of one."""

    @property
    def has_usage(self) -> bool:
        """True if the memory in use was read at the lines."""
        return any(line.usage_bytes is not None for function in self.functions for line in function.lines)

    @property
    def listing(self) -> str:
        """Every source line with hits, time, time per hit and share, then with its memory, as text."""
        return listing_of(self)
