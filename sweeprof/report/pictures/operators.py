"""A picture of the operators that take the most time."""

from __future__ import annotations

from collections import defaultdict

from sweeprof.numbers import rounded
from sweeprof.report.figure import Figure, axis, backend_colour, figure, plain, text_beside
from sweeprof.results.operators import OperatorRow, Operators, Phase
from sweeprof.text import one_line

MOST_OPERATORS = 15
_BAR_HEIGHT = 26
"""Pixels."""
_PHASES: tuple[Phase, ...] = ("forward", "backward", "update")


def top_operators(operators: Operators, most: int = MOST_OPERATORS) -> Figure | None:
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
    # Names may be alike where they were cut: the places tell them apart.
    places = list(range(len(shown)))
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase,
            "y": places,
            "x": [1e3 * seconds[name][phase] for name in shown],
            "marker": {"color": backend_colour(phase, _PHASES)},
            "hovertemplate": f"%{{x:,.4g}} {phase}<extra></extra>",
        }
        for phase in phases
    ]
    ends = []
    for place, name in enumerate(shown):
        text = f"{sums[name] / whole:.1%}, {calls[name]:,.4g} ×"
        ends.append(text_beside(1e3 * sums[name], place, text, is_right=True, gap=0))
    layout = {
        "barmode": "stack",
        "annotations": ends,
        "xaxis": {**axis("self time of one step (ms)"), "range": [0, 1.25e3 * sums[shown[0]]]},
        "yaxis": {
            "autorange": "reversed",
            "tickvals": places,
            "ticktext": [plain(one_line(name)) for name in shown],
            "showgrid": False,
        },
        "showlegend": len(phases) > 1,
        "legend": {"traceorder": "normal"},
    }
    where = " on the accelerator" if on_device else ""
    title = f"Operators by self time{where}: {operators.mode}, {rounded(whole, 's')} in total"
    left_out = f"{len(rest)} further operators take {sum(sums[name] for name in rest) / whole:.1%}. " if rest else ""
    caption = f"{left_out}The times include the cost of tracing."
    return figure("operators", title, bars, layout, caption, 90 + _BAR_HEIGHT * len(shown))


def is_on_device(operators: Operators) -> bool:
    """True if the step ran on an accelerator; its device seconds are then the relevant ones."""
    return any(row.device_self_s is not None for row in operators.rows)


def own_seconds(row: OperatorRow, on_device: bool) -> float:
    """Return the seconds on the accelerator or on the host; an operator on the host alone takes no time of the accelerator."""
    return (row.device_self_s or 0.0) if on_device else row.self_s
