"""What the framework ran in one step, in a few numbers; the table of operators is an artifact.

Times are those of traced steps, the tracer's own cost included: they say where time goes, ``latency`` how much there is.
"""

from __future__ import annotations

from sweeprof.metrics.metric import Estimate, Missing, metric
from sweeprof.results.operators import Operators

NOTHING = Missing("no operator of the framework ran in the step")


@metric(name="operators/calls", unit="calls", better="lower")
def calls(operators: Operators) -> Estimate:
    """Operator calls in one step, those made within operators included."""
    made = sum(row.calls for row in operators.rows)
    return _of_steps(operators, made if made % 1 else int(made))


@metric(name="operators/kinds", unit="operators", better=None)
def kinds(operators: Operators) -> Estimate:
    """How many different operators one step runs."""
    return Estimate(len(operators.totals()), "exact")


@metric(name="operators/self_s", unit="s", better="lower")
def self_s(operators: Operators) -> Estimate | Missing:
    """Seconds on the host inside operators in one traced step, each second once."""
    if not operators.rows:
        return NOTHING
    return _of_steps(operators, sum(row.self_s for row in operators.rows))


@metric(name="operators/slowest_share", unit="ratio", better=None)
def slowest_share(operators: Operators) -> Estimate | Missing:
    """Share of the host seconds inside operators that the operator with the most of them has; on an accelerator its seconds."""
    totals = operators.totals()
    if not totals:
        return NOTHING
    device = {total.operator: total.device_self_s or 0.0 for total in totals}
    seconds = device if any(device.values()) else {total.operator: total.self_s for total in totals}
    slowest = max(seconds, key=lambda name: seconds[name])
    whole = sum(seconds.values())
    if not whole:
        return Missing("no operator took a time that could be measured")
    return _of_steps(operators, seconds[slowest] / whole, operator=slowest)


@metric(name="operators/python_share", unit="ratio", better="lower")
def python_share(operators: Operators) -> Estimate | Missing:
    """Share of the host seconds of a traced step that is outside operators: Python, dispatch, and waiting for a device."""
    if not operators.rows:
        return NOTHING
    inside = sum(row.self_s for row in operators.rows) / operators.step_s
    return _of_steps(operators, max(0.0, 1.0 - inside))  # operators in two threads can take more than the step


def _of_steps(operators: Operators, value: float, **detail: str) -> Estimate:
    return Estimate(value, f"mean of {operators.steps} traced steps", detail={"n": operators.steps, **detail})
