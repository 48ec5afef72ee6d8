"""The times of modules and operators, from the counters that OpenVINO keeps for each operator of the compiled graph.

A compiled operator stands for one or several of the converted graph, whose names it keeps: its time belongs to the module of the
most expensive of them. What a step takes beside its operators is the root's.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import openvino

from sweeprof.backends.openvino.counting import OpenvinoGraph, cost_of, path_of, read
from sweeprof.backends.openvino.files import Converted
from sweeprof.backends.openvino.model import Feed, OpenvinoModel
from sweeprof.counting.file_graph import NEVER_CALLED, modules_of
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.counting.operators import NOTHING
from sweeprof.errors import Unsupported
from sweeprof.measuring.timing import lasting, without_collection
from sweeprof.results.layer_times import ROOT, CallTime, LayerTimes, PhaseTimes, above
from sweeprof.results.layers import Shapes
from sweeprof.results.operators import OperatorRow, Operators
from sweeprof.results.protocol import Protocol

FIRST_STEPS = 2
"""Of a request, which are not counted: they allocate."""
FEWEST_STEPS, OPERATOR_STEPS = 20, 50
NOT_RUN = ("Const", "Input", "Output")
"""Kinds of operators of the compiled graph that a step does not run."""
FUSED = "undef"
"""The kernel of an operator that is part of another one; it has no time of its own."""


@dataclass(frozen=True, slots=True)
class CompiledOperator:
    """An operator of the compiled graph."""

    kind: str
    path: str
    """Of its module."""
    flops: int | None
    """Of all that it stands for; None where that is not known, or it does none."""
    input_shapes: Shapes


class Counters:
    """A request of the model that keeps the time of each operator.

    A counter shows the mean of all steps so far in whole microseconds, so that only differences over many steps are exact.
    """

    def __init__(self, model: OpenvinoModel, batch: Feed) -> None:
        compiled = model.settings.compiled(model.graph, counters=True)
        self._request = compiled.create_infer_request()
        self._step = model.steps_of(self._request, batch)
        self._steps = 0
        self.operators = _described(compiled.get_runtime_model(), read(model.graph, model.file), model.file)
        for _ in range(FIRST_STEPS):
            self.step()
        self._first = self._totals()

    def step(self) -> None:
        """Run one forward."""
        self._step()
        self._steps += 1

    def means(self) -> dict[str, float]:
        """Return the mean seconds of each operator since the first steps, by its name."""
        steps = self._steps - FIRST_STEPS
        return {name: max(0.0, total - self._first[name]) / steps for name, total in self._totals().items()}

    def _totals(self) -> dict[str, float]:
        counted = [entry for entry in self._request.profiling_info if entry.exec_type != FUSED]
        return {
            entry.node_name: entry.real_time.total_seconds() * self._steps
            for entry in counted
            if entry.node_name in self.operators
        }


def _described(compiled: openvino.Model, graph: OpenvinoGraph, file: Converted) -> dict[str, CompiledOperator]:
    """Return the operators of the compiled graph by their names."""
    known = {node.name: node for node in graph.operators}
    makers = {value: node for node in graph.operators for value in node.outputs}
    originals: dict[str, list[str]] = {}
    for node in compiled.get_ordered_ops():
        names = node.get_rt_info()["originalLayersNames"].astype(str).split(",")
        originals[node.get_friendly_name()] = [name for name in names if name]
    owned = {known[name] for names in originals.values() for name in names if name in known}
    found = {}
    for node in compiled.get_ordered_ops():
        kind, name = node.get_rt_info()["layerType"].astype(str), node.get_friendly_name()
        if kind in NOT_RUN:
            continue
        members = [known[original] for original in originals[name] if original in known]
        for member in members:  # which grows on the way: what is fused may have lost its name
            before = [makers[value] for value in member.inputs if value in makers]
            members += [node for node in before if node not in owned and node not in members]
        paths = [path_of(original, file) for original in originals[name]]
        if not originals[name]:  # a change of layout, named after the operator that it is for
            paths = [known[other].path for other in known if name.endswith(other)]
        costs = [cost_of(member, DEFAULTS) for member in members]
        flops = sum(cost[1] for cost in costs if cost is not None) if None not in costs else None
        if members:
            heaviest = max(range(len(members)), key=lambda index: (costs[index] or NOTHING)[1])
            paths = [members[heaviest].path]
        shapes = tuple(tuple(slot.get_shape()) for slot in node.inputs() if slot.get_partial_shape().is_static)
        found[name] = CompiledOperator(kind, next(iter(paths), ROOT), flops or None, shapes)
    return found


def layer_times(model: OpenvinoModel, batch: Feed, protocol: Protocol) -> LayerTimes:
    """The modules' times of inference: means over steps with and without counters, which alternate, each kind in its own request.

    Raises:
        Unsupported: the compiled graph has no operators.
    """
    counters, clock = Counters(model, batch), model.clock()
    with model.stepping(batch) as plain, without_collection():
        begin, steps = clock.now(), 0
        while steps < protocol.warmup_steps or clock.now() - begin < min(protocol.warmup_s, protocol.max_s):
            plain()
            steps += 1
        without: list[float] = []
        counted: list[float] = []
        begin = clock.now()
        while len(without) < FEWEST_STEPS or (
            (len(without) < protocol.min_samples or clock.now() - begin < protocol.min_s)
            and clock.now() - begin < protocol.max_s
        ):
            pair = [(plain, without), (counters.step, counted)]
            for step, seconds in pair if len(without) % 2 else reversed(pair):  # the second finds warmer caches
                seconds.append(lasting(step, 1, clock))
    means = counters.means()
    if not means:
        raise Unsupported("the compiled graph has no operators: its results are constants")
    step_s, counted_s = statistics.fmean(without), statistics.fmean(counted)
    return LayerTimes(
        mode="inference",
        calls=_calls(means, min(step_s, counted_s), counters, model.file.types),
        warmup=0,
        forward=PhaseTimes((step_s,), (counted_s,)),
        probe_s={"outside": max(0.0, counted_s - step_s)},
        unmet=(f"min_samples={protocol.min_samples}",) if len(without) < protocol.min_samples else (),
    )


def _calls(
    means: Mapping[str, float], step_s: float, counters: Counters, types: Mapping[str, str]
) -> tuple[CallTime, ...]:
    """One per module that operators belong to, and those around it."""
    paths = modules_of(counters.operators[name].path for name in means)
    own = {path: 0.0 for path in paths if types.get(path) not in NEVER_CALLED}
    for name, seconds in means.items():
        own[counters.operators[name].path] += seconds
    own[ROOT] += max(0.0, step_s - sum(means.values()))
    position = {path: index for index, path in enumerate(own)}
    return tuple(
        CallTime(
            path=path,
            type=types.get("" if path == ROOT else path, ""),
            call=0,
            parent=next((position[one] for one in reversed(above(path)) if one in position), None),
            forward=(seconds,),
        )
        for path, seconds in own.items()
    )


def operators(model: OpenvinoModel, batch: Feed) -> Operators:
    """Return the operators of the compiled graph that a step runs: means over some steps."""
    counters, clock = Counters(model, batch), model.clock()
    step_s = lasting(counters.step, OPERATOR_STEPS, clock) / OPERATOR_STEPS
    rows: dict[tuple[str, str, Shapes], OperatorRow] = {}
    for name, seconds in counters.means().items():
        operator = counters.operators[name]
        key = (operator.path, operator.kind, operator.input_shapes)
        known = rows.get(key)
        calls = 1 + (known.calls if known else 0)
        flops = _sum(known.flops if known else 0, operator.flops)
        mean = seconds + (known.self_s if known else 0.0)
        rows[key] = OperatorRow(
            operator.path, operator.kind, "forward", calls, mean, mean, None, None, flops, None, operator.input_shapes
        )
    return Operators("inference", tuple(rows.values()), OPERATOR_STEPS, step_s)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
