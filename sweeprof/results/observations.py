"""Results of passes beside the layers: generation, source lines, allocations, operators, and the framework's own counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

from sweeprof.display import Displayed, Rows, listing_of
from sweeprof.errors import UserError, choice_problem
from sweeprof.results.layer_times import Host, Mode, number_frame, with_host
from sweeprof.results.record import Stored, Warning

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """The tokens of the generations of a round, and the memory of the cache at their end."""

    prompt_tokens: int | None
    """Of each prompt; None where it is not text."""
    new_tokens: int
    """Of each sequence."""
    seconds: tuple[tuple[float, ...], ...]
    """Of every generation of the samples, in the order taken: from its beginning to the first token, then from each token to the
    next; one value per decode step, which makes a token of every sequence."""
    cache_bytes: int | None = None
    """Of the keys and values that the cache holds, or reserves, after the last step."""
    cache_reason: str | None = None
    """Why :attr:`cache_bytes` is not known."""
    sequences_per_prompt: int = 1
    """Sequences that are returned for each prompt, such as several samples of a distribution."""

    @property
    def steps(self) -> int:
        """Steps of a generation: as many as new tokens, unless a step makes several tokens, as in assisted decoding."""
        return max(map(len, self.seconds))


@dataclass(frozen=True, slots=True)
class RunningServer:
    """The server that a program needs."""

    name: str
    """The first word of its command."""
    pid: int
    port: int
    """The value of ``{port}``."""
    log: str
    """The file that has its output."""


@dataclass(frozen=True, slots=True)
class CommandRun:
    """One run of a program."""

    wall_s: float
    """From its start to its end."""
    user_s: float
    system_s: float
    """Processor time of it and of the processes that it started and waited for."""
    exit_code: int
    """Negative: the number of the signal that ended it."""
    memory_bytes: int | None = None
    """The most that it and all processes that it started had at one time; None: not looked at, or too short to be seen."""
    server_memory_bytes: int | None = None
    """The same of its server; None: there is none, or it was not looked at."""
    shell_s: float = 0.0
    """The wall time of an empty shell, which was subtracted; 0 without a shell."""
    reported: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Numbers that it reported, by the name of the metric."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why there is no number, by the name of the metric."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Its output."""


@dataclass(frozen=True, slots=True)
class CommandRuns:
    """The runs of a program whose wall times are the samples of a round; one value per run."""

    user_s: tuple[float, ...]
    system_s: tuple[float, ...]
    exit_codes: tuple[int, ...]
    memory_bytes: int | None = None
    """Of one run, the most that it and all processes that it started had at one time; None if it was too short to be seen."""
    server_memory_bytes: int | None = None
    """The same of its server; None if there is none, or the run was too short."""
    shell_s: float = 0.0
    """The mean wall time of an empty shell, which was subtracted from each; 0 without a shell."""
    reported: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Numbers that the program reported in all of the runs, one or several per run, by the name of the metric."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a run reported no number, by the name of the metric."""


@dataclass(frozen=True, slots=True)
class Generation(Stored):
    """Counts of the prefill, and of one decode step at the middle of the output; of the whole batch."""

    sequences: int
    """In the batch."""
    prefill_macs: int
    prefill_flops: int
    decode_macs: int
    decode_flops: int
    position: int
    """Tokens that the cache holds of each sequence when the decode step begins."""
    weight_bytes: int | None
    """Bytes of the parameters that the decode step reads, each once; of an embedding the rows that are looked up."""
    cache_bytes: int | None
    """Bytes of the cache that the decode step reads: keys and values, the new ones included."""
    bytes_reason: str | None = None
    """Why the bytes are not known."""
    uncovered: Mapping[str, int] = field(default_factory=dict)
    """Calls per operator for which no formula is known."""
    method: str = ""
    """How it was counted: over shapes, or in a real forward."""


# Source lines of chosen functions: time and memory.


MeasuredSpan = Literal["step", "call", "run"]


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
    span: MeasuredSpan = "step"
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


# Allocations of a step over time, and the tensors that are alive after it.


Kind = Literal["parameter", "buffer", "gradient", "optimizer", "input", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class TensorRow(Displayed):
    """One storage: however many tensors share it, it is one row."""

    names: tuple[str, ...]
    """Of parameters and buffers, two where they are tied; ``NAME.grad`` and ``optimizer.NAME.KEY`` for what belongs to them;
    empty for a tensor without a name."""
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    device: str
    """``meta`` for a tensor that takes no memory."""
    bytes: int
    """Of the storage, as the framework asked for it."""


@dataclass(frozen=True, slots=True)
class TensorDifference(Displayed):
    """The tensors that were added and removed between two tables; one whose size, type or names changed is in both."""

    added: tuple[TensorRow, ...]
    removed: tuple[TensorRow, ...]


def tensor_difference(before: Iterable[TensorRow], after: Iterable[TensorRow]) -> TensorDifference:
    """The differences of two tables of live tensors, each part with its largest rows first."""
    was, now = Counter(before), Counter(after)
    return TensorDifference(largest_first((now - was).elements()), largest_first((was - now).elements()))


def largest_first(rows: Iterable[TensorRow]) -> Rows[TensorRow]:
    """The rows by their size; those of one size by kind and name."""
    return Rows(sorted(rows, key=lambda row: (-row.bytes, KINDS.index(row.kind), row.names, row.shape)))


def bytes_by_kind(rows: Iterable[TensorRow]) -> dict[Kind, int]:
    """Bytes in memory for every kind that there is, in the order of :data:`KINDS`; tensors without memory are left out."""
    sizes = Counter[Kind]()
    for row in rows:
        if row.device != "meta":
            sizes[row.kind] += row.bytes
    return {kind: sizes[kind] for kind in KINDS if kind in sizes}


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes alive after an allocation or a release."""

    s: float
    """Seconds within the steps since the first began; the pauses between steps are left out."""
    bytes: int
    """Above what was alive when the first step began."""
    path: str
    """Of the module that ran, or whose backward did; ``__outside__`` for none."""


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """The memory that one module used in all of its calls."""

    path: str
    peak_bytes: int
    """Most that was alive, of whatever, while it, a module within it or the backward of one of them ran."""
    allocated_bytes: int
    """Everything that it allocated itself in the last step, its backward included, whether it was released or not."""
    kept_bytes: int
    """The part of its own allocations that is alive after the last step."""
    at_peak_bytes: int = 0
    """The part of its own allocations that was alive at the peak: over all modules and ``__outside__`` this is the peak."""


@dataclass(frozen=True, slots=True)
class Allocations(Stored):
    """Allocations of the first steps; the model and one batch were loaded before.

    They are those that the framework asked its allocator for, scratch space of its kernels included; memory that a mathematics
    library keeps for itself is not among them.
    """

    NOT_STORED = ("files",)

    mode: Mode
    steps: int
    peak_bytes: int
    """Largest number of bytes that were allocated at once, in addition to those at the start of the first step."""
    peak_at: str
    """Path of the module that ran when the peak was reached."""
    timeline: tuple[Moment, ...]
    """At most a few thousand moments, each peak among them."""
    by_layer: tuple[LayerMemory, ...]
    """In the order in which the modules first ran; ``__outside__`` stands for code outside any module, such as an optimizer."""
    tensors: tuple[TensorRow, ...]
    """Alive after the last step, largest first."""
    device: Mapping[str, int] = field(default_factory=dict)
    """Of an accelerator: ``allocated_pre_bytes``, ``allocated_peak_bytes``, ``allocated_post_bytes``, ``reserved_peak_bytes``,
    ``process_peak_bytes`` and ``device_peak_bytes``, each where it can be had; empty on the host."""
    step_peaks_bytes: tuple[int, ...] = ()
    """The peak of each step; the first one begins without gradients and optimizer state."""
    allocated_per_step_bytes: int | None = None
    """Everything that was allocated in the last step, whether it was released or not."""
    files: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    """Files that are stored beside the record: of CUDA ``memory_snapshot.pickle``, which https://pytorch.org/memory_viz draws."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", Rows(self.tensors))
        object.__setattr__(self, "by_layer", Rows(self.by_layer))


# Operators that the framework ran in one step, by module.


Phase = Literal["forward", "backward", "update"]

SortKey = Literal["self_s", "total_s", "average_s", "calls", "device_self_s", "device_total_s"]
"""Columns by which totals are sorted."""

FRAME_COLUMNS = [
    *("path", "operator", "phase", "calls", "self_s", "total_s", "device_self_s", "device_total_s"),
    *("flops", "allocated_bytes", "input_shapes"),
]
_NUMBERS = ("calls", "self_s", "total_s", "device_self_s", "device_total_s", "flops", "allocated_bytes")


@dataclass(frozen=True, slots=True)
class OperatorRow(Displayed):
    """One operator in one module with one set of input shapes: of one step, means over the steps that were traced."""

    path: str
    """Of the module that ran it, or whose backward did; ``__outside__`` for none."""
    operator: str
    """The framework's name, e.g. ``aten::addmm``."""
    phase: Phase
    calls: float
    self_s: float
    """Seconds on the host, without the operators that it called."""
    total_s: float
    """Seconds on the host, with them."""
    device_self_s: float | None
    """Seconds on the accelerator; None where there is none."""
    device_total_s: float | None
    flops: int | None
    """By the formulas of docs/counting.md, at the operator that has the formula; None where it is not known."""
    allocated_bytes: int | None
    """Bytes that it allocated itself, without the operators that it called, less those that it freed: rows add up. On an
    accelerator those of the accelerator. None where it is not known."""
    input_shapes: tuple[tuple[int, ...], ...] = ()
    """Of the tensors that have dimensions, those in lists too, in the order of the arguments."""


@dataclass(frozen=True, slots=True)
class OperatorTotal(Displayed):
    """One operator in all of its rows: of one step."""

    operator: str
    calls: float
    self_s: float
    device_self_s: float | None
    """None if it is not known of one of the rows."""
    total_s: float = 0.0
    """Seconds on the host with the operators that it called; an operator that calls itself has both calls in it."""
    device_total_s: float | None = None
    step_self_s: float = 0.0
    """Own seconds on the host of all operators of the step together, of which this one has a share."""

    @property
    def average_s(self) -> float:
        """Seconds of one call on the host, with the operators that it called."""
        return self.total_s / self.calls

    @property
    def self_share(self) -> float | None:
        """Own seconds as a share of those of all operators; None if these took no time."""
        return self.self_s / self.step_self_s if self.step_self_s else None

    @property
    def total_share(self) -> float | None:
        """Seconds with the operators that it called, as a share of the own seconds of all operators."""
        return self.total_s / self.step_self_s if self.step_self_s else None


@dataclass(frozen=True, slots=True)
class KernelRow(Displayed):
    """One kernel of an accelerator, or one kind of copy: of one step, means over the steps that were traced."""

    name: str
    calls: float
    device_s: float
    share: float
    """Of the seconds of all kernels and copies."""


BUSY = 0.7
"""A device that works in less of a step than this waits for the host."""


def launch_bound(busy_share: float | None) -> tuple[Warning, ...]:
    """Return a warning if a device waits for the host.

    Args:
        busy_share: of a step that the device works in; None: not known.
    """
    if busy_share is None or busy_share >= BUSY:
        return ()
    text = f"the device works in {busy_share:.0%} of the step, and waits for the host to launch kernels in the rest"
    graphs = "use CUDA graphs (backend.compile_mode=reduce-overhead)"
    advice = f"raise batch_size, compile the model (backend=torch_compile), or {graphs}"
    return (Warning("launch_bound", text, advice),)


@dataclass(frozen=True, slots=True)
class Operators(Stored):
    """The operators of a step, by module and shapes."""

    NOT_STORED = ("files", "host")

    mode: Mode
    rows: tuple[OperatorRow, ...]
    steps: int
    """Steps that were traced."""
    step_s: float
    """Seconds of one traced step, the tracer's own cost included."""
    flops_reason: str | None = None
    """Why no row has FLOPs, where the step could not be counted."""
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Files that are stored beside the record, by name: ``trace.json.gz`` opens in Perfetto."""
    host: Host = field(default_factory=dict, repr=False, compare=False)
    """The host on which they were traced, by the columns of :meth:`to_frame`; empty if it is not known."""
    kernels: tuple[KernelRow, ...] = ()
    """What ran on the accelerator, the longest first; empty on the host."""
    busy_s: float | None = None
    """Seconds of a step in which any of the kernels and copies ran; None on the host."""
    untraced_step_s: float | None = None
    """Seconds of one step before the trace, until the accelerator was done; None on the host."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernels", Rows(self.kernels))

    @property
    def device_s(self) -> float | None:
        """Seconds of all kernels and copies of a step together; None on the host."""
        if self.kernels:
            return sum(kernel.device_s for kernel in self.kernels)
        known = [row.device_self_s for row in self.rows if row.device_self_s is not None]
        return sum(known) if known else None

    @property
    def busy_share(self) -> float | None:
        """Share of an untraced step in which the accelerator works; None on the host."""
        if self.busy_s is None or not self.untraced_step_s:
            return None
        return min(1.0, self.busy_s / self.untraced_step_s)

    @property
    def warnings(self) -> tuple[Warning, ...]:
        """A warning if the accelerator waits for the host."""
        return launch_bound(self.busy_share)

    def top(self, n: int = 10, column: str = "self_s") -> Rows[OperatorRow]:
        """The ``n`` largest rows of a column."""
        known = [row for row in self.rows if getattr(row, column) is not None]
        return Rows(sorted(known, key=lambda row: getattr(row, column), reverse=True)[:n])

    def totals(self, sort_by: SortKey = "self_s", top: int | None = None) -> Rows[OperatorTotal]:
        """Return one row per operator, printed like ``key_averages().table()`` of torch.profiler.

        Args:
            sort_by: the largest comes first.
            top: so many of the first rows; None: all.

        Raises:
            UserError: there is no such column.
        """
        if sort_by not in get_args(SortKey):
            raise UserError([choice_problem("sort_by", sort_by, "column of operators", get_args(SortKey))])
        step_s = sum(row.self_s for row in self.rows)
        totals: dict[str, OperatorTotal] = {}
        for row in self.rows:
            before = totals.get(row.operator) or OperatorTotal(row.operator, 0, 0, 0, 0, 0, step_s)
            totals[row.operator] = replace(
                before,
                calls=before.calls + row.calls,
                self_s=before.self_s + row.self_s,
                device_self_s=_sum_if_known(before.device_self_s, row.device_self_s),
                total_s=before.total_s + row.total_s,
                device_total_s=_sum_if_known(before.device_total_s, row.device_total_s),
            )
        return Rows(sorted(totals.values(), key=lambda total: getattr(total, sort_by) or 0.0, reverse=True)[:top])

    def to_frame(self, host: bool = False) -> pandas.DataFrame:
        """Return a line per row, in the columns of :data:`FRAME_COLUMNS`, and the ``reason`` why a value is missing.

        Args:
            host: also columns that describe the host, ``host_name``, ``host_cpu``, ``host_threads`` …, the same in each row.
        """
        lines = []
        for row in self.rows:
            line = {name: getattr(row, name) for name in FRAME_COLUMNS}
            reasons = []
            if row.flops is None:
                reasons.append(f"FLOPs: {self.flops_reason or 'the operator that has the formula has them'}")
            if row.device_self_s is None:
                reasons.append("device: its time on an accelerator is not known, or there is none")
            if row.allocated_bytes is None:
                reasons.append("allocated: not traced")
            lines.append({**line, "reason": "; ".join(reasons) or None})
        return with_host(number_frame(lines, [*FRAME_COLUMNS, "reason"], _NUMBERS), self.host, host)


def _sum_if_known(first: float | None, second: float | None) -> float | None:
    if first is None or second is None:
        return None
    return first + second


@dataclass(frozen=True, slots=True)
class OwnCounts(Stored):
    """Counts of one forward of the whole batch by other counters, each with its own unit and rules."""

    counts: Mapping[str, int]
    """By the name of the counter, e.g. ``{"tfprof": 845_862}``."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Of counters that gave nothing."""
