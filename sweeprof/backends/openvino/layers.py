"""The times of modules and operators, from the counters that OpenVINO keeps for each operator of the compiled graph.

A compiled operator stands for one or several of the converted graph, whose names it keeps: its time belongs to the module of the
most expensive of them. What a step takes beside its operators is the root's.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial

import openvino

from sweeprof.backends.file_backend import Feed
from sweeprof.backends.openvino.convert import Converted
from sweeprof.backends.openvino.counting import OpenvinoGraph, cost_of, path_of, read
from sweeprof.backends.openvino.model import OpenvinoModel
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported
from sweeprof.measuring.layer_timing import NodeRun, in_turns, module_times, operator_rows, origin_of, pairs_in_turns
from sweeprof.measuring.timing import lasting, without_collection
from sweeprof.results.layer_times import ROOT, LayerTimes, PhaseTimes
from sweeprof.results.operators import Operators
from sweeprof.results.record import Protocol

FIRST_STEPS = 2
"""Of a request, which are not counted: they allocate."""
FEWEST_STEPS, OPERATOR_STEPS = 20, 50
NOT_RUN = ("Const", "Input", "Output")
"""Kinds of operators of the compiled graph that a step does not run."""
FUSED = "undef"
"""The kernel of an operator that is part of another one; it has no time of its own."""


class Counters:
    """A request of the model that keeps the time of each operator.

    A counter shows the mean of all steps so far in whole microseconds, so that only differences over many steps are exact.
    """

    def __init__(self, model: OpenvinoModel, batch: Feed) -> None:
        compiled = model.settings.compiled(model.graph, counters=True)
        self._request = compiled.create_infer_request()
        self._step = model.steps_of(self._request, batch)
        self._steps = 0
        self._operators = _described(compiled.get_runtime_model(), read(model.graph, model.file), model.file)
        for _ in range(FIRST_STEPS):
            self.step()
        self._first = self._totals()

    def step(self) -> None:
        """Run one forward."""
        self._step()
        self._steps += 1

    def nodes(self) -> list[NodeRun]:
        """Return the operators with their mean seconds since the first steps."""
        steps = self._steps - FIRST_STEPS
        totals = self._totals().items()
        return [
            replace(self._operators[name], seconds=max(0.0, total - self._first[name]) / steps)
            for name, total in totals
        ]

    def _totals(self) -> dict[str, float]:
        counted = [entry for entry in self._request.profiling_info if entry.exec_type != FUSED]
        return {
            entry.node_name: entry.real_time.total_seconds() * self._steps
            for entry in counted
            if entry.node_name in self._operators
        }


def _described(compiled: openvino.Model, graph: OpenvinoGraph, file: Converted) -> dict[str, NodeRun]:
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
        path, flops = next(iter(paths), ROOT), None
        if members:
            path, flops = origin_of(members, partial(cost_of, formulas=DEFAULTS))
        shapes = tuple(tuple(slot.get_shape()) for slot in node.inputs() if slot.get_partial_shape().is_static)
        found[name] = NodeRun(kind, path, flops, 0.0, None, shapes)
    return found


def layer_times(model: OpenvinoModel, batch: Feed, protocol: Protocol) -> LayerTimes:
    """The modules' times of inference: means over steps with and without counters, which alternate, each kind in its own request.

    Raises:
        Unsupported: the compiled graph has no operators.
    """
    counters, clock, longest = Counters(model, batch), model.clock(), protocol.max_s
    with model.stepping(batch) as plain, without_collection():
        bare = partial(lasting, plain, 1, clock)
        warming = in_turns(bare, bare)
        pairs_in_turns(warming, clock, protocol.warmup_steps, protocol.warmup_s, longest, protocol.warmup_steps)
        pair = in_turns(bare, partial(lasting, counters.step, 1, clock))
        pairs = pairs_in_turns(pair, clock, protocol.min_samples, protocol.min_s, longest, FEWEST_STEPS)
    nodes = counters.nodes()
    if not nodes:
        raise Unsupported("the compiled graph has no operators: its results are constants")
    step_s, counted_s = map(statistics.fmean, zip(*pairs, strict=True))
    return LayerTimes(
        mode="inference",
        calls=module_times([nodes], [min(step_s, counted_s)], model.file.types),
        warmup=0,
        forward=PhaseTimes((step_s,), (counted_s,)),
        probe_s={"outside": max(0.0, counted_s - step_s)},
        unmet=(f"min_samples={protocol.min_samples}",) if len(pairs) < protocol.min_samples else (),
    )


def operators(model: OpenvinoModel, batch: Feed) -> Operators:
    """Return the operators of the compiled graph that a step runs: means over some steps."""
    counters = Counters(model, batch)
    step_s = lasting(counters.step, OPERATOR_STEPS, model.clock()) / OPERATOR_STEPS
    return Operators("inference", operator_rows(counters.nodes(), 1), OPERATOR_STEPS, step_s)
