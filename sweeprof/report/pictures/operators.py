"""A picture of the operators that take the most time."""

from __future__ import annotations

from collections import defaultdict

from sweeprof.numbers import rounded
from sweeprof.report.figure import Axis, Bars, BarSeries, backend_colour
from sweeprof.results.operators import OperatorRow, Operators, Phase
from sweeprof.text import one_line

MOST_OPERATORS = 15
_PHASES: tuple[Phase, ...] = ("forward", "backward", "update")


def top_operators(operators: Operators, most: int = MOST_OPERATORS) -> Bars | None:
    """The operators by self time, all their modules and shapes together; None where nothing was traced."""
    on_device = is_on_device(operators)
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(_PHASES, 0.0))
    calls: dict[str, float] = defaultdict(float)
    for row in operators.rows:
        seconds[row.operator][row.phase] += own_seconds(row, on_device)
        calls[row.operator] += row.calls
    sums = {name: sum(parts.values()) for name, parts in seconds.items()}
    whole = sum(sums.values())
    if whole <= 0:
        return None
    ranked = sorted(sums, key=lambda name: -sums[name])
    shown, rest = ranked[:most], ranked[most:]
    phases = [phase for phase in _PHASES if any(seconds[name][phase] for name in shown)]
    series = [
        BarSeries(phase, backend_colour(phase, _PHASES), tuple(1e3 * seconds[name][phase] for name in shown))
        for phase in phases
    ]
    where = " on the accelerator" if on_device else ""
    left_out = f"{len(rest)} further operators take {sum(sums[name] for name in rest) / whole:.1%}. " if rest else ""
    return Bars(
        key="operators",
        title=f"Operators by self time{where}: {operators.mode}, {rounded(whole, 's')} in total",
        x=Axis("self time of one step (ms)"),
        names=tuple(one_line(name) for name in shown),
        series=tuple(series),
        ends=tuple(f"{sums[name] / whole:.1%}, {calls[name]:,.4g} ×" for name in shown),
        caption=f"{left_out}The times include the cost of tracing.",
    )


def is_on_device(operators: Operators) -> bool:
    """True if the step ran on an accelerator; its device seconds are then the relevant ones."""
    return any(row.device_self_s is not None for row in operators.rows)


def own_seconds(row: OperatorRow, on_device: bool) -> float:
    """Return the seconds on the accelerator or on the host; an operator on the host alone takes no time of the accelerator."""
    return (row.device_self_s or 0.0) if on_device else row.self_s
