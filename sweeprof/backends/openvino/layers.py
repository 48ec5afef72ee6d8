"""The times of modules and operators, from the counters that OpenVINO keeps for each operator of the compiled graph.

A compiled operator stands for one or several of the converted graph, whose names it keeps: its time belongs to the module of the
most expensive of them. Counters have whole microseconds. What a step takes beside its operators is the root's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from sweeprof.backends.openvino.counting import ModelGraph, read
from sweeprof.backends.openvino.model import Feed, OpenvinoModel
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported
from sweeprof.measuring.timing import Clock, lasting, without_collection
from sweeprof.results.layer_times import ROOT, CallTime, LayerTimes, PhaseTimes, above
from sweeprof.results.layers import Shapes
from sweeprof.results.operators import OperatorRow, Operators
from sweeprof.results.protocol import Protocol

MOST_REPEATS = 200
OPERATOR_STEPS = 5
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
    """A request of the model that keeps the time of each operator."""

    def __init__(self, model: OpenvinoModel, batch: Feed) -> None:
        compiled = model.settings.compiled(model.graph, counters=True)
        self._request = compiled.create_infer_request()
        self.step = model.steps_of(self._request, batch)
        graph = read(model.graph, model.file)
        self.operators = {
            node.get_friendly_name(): _described(node, graph) for node in compiled.get_runtime_model().get_ordered_ops()
        }

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each operator in the last step, by its name."""
        counted = [entry for entry in self._request.profiling_info if entry.exec_type != FUSED]
        return {
            entry.node_name: entry.real_time.total_seconds() for entry in counted if entry.node_name in self.operators
        }


def _described(node: object, graph: ModelGraph) -> CompiledOperator:
    info = {key: value.astype(str) for key, value in node.get_rt_info().items()}
    names = [name for name in info["originalLayersNames"].split(",") if name]
    if not names:  # a change of layout, named after the operator that it is for
        names = [name for name in graph.operators if node.get_friendly_name().endswith(name)]
    members = [graph.operators[name] for name in names if name in graph.operators]
    costs = [(cost.flops, member) for member in members if (cost := graph.cost_of(member, DEFAULTS)) is not None]
    flops = sum(known for known, _ in costs) if members and len(costs) == len(members) else None
    main = max(costs, key=lambda cost: cost[0], default=(0, members[0] if members else None))[1]
    shapes = tuple(tuple(slot.get_shape()) for slot in node.inputs())
    return CompiledOperator(info["layerType"], main.path if main is not None else ROOT, flops or None, shapes)


def layer_times(model: OpenvinoModel, batch: Feed, protocol: Protocol) -> LayerTimes:
    """The modules' times of inference; steps with and without counters alternate, each kind in its own request.

    Raises:
        Unsupported: the compiled graph has no operators.
    """
    counters = Counters(model, batch)
    clock = model.clock()
    with model.stepping(batch) as plain, without_collection():
        counters.step()
        if not counters.seconds():
            raise Unsupported("the compiled graph has no operators: its results are constants")
        warmup = _repeats(plain, counters, clock, protocol.warmup_steps, protocol.warmup_s, protocol.max_s)
        kept = _repeats(plain, counters, clock, protocol.min_samples, protocol.min_s, protocol.max_s)
    repeats = [*warmup[: protocol.warmup_steps], *kept]
    added = max(0.0, statistics.median(repeat.counted - repeat.plain for repeat in kept))
    return LayerTimes(
        mode="inference",
        calls=_calls(repeats, added, counters, model.file.types),
        warmup=len(repeats) - len(kept),
        forward=PhaseTimes(tuple(r.plain for r in repeats), tuple(r.counted for r in repeats)),
        probe_s={"outside": added},
        unmet=(f"min_samples={protocol.min_samples}",) if len(kept) < protocol.min_samples else (),
    )


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A step without counters and one with them, in seconds."""

    plain: float
    counted: float
    operators: Mapping[str, float]


def _repeats(
    plain: Callable[[], object], counters: Counters, clock: Clock, fewest: int, seconds: float, most_s: float
) -> list[_Repeat]:
    taken: list[_Repeat] = []
    begin = clock.now()
    for number in count():
        spent = clock.now() - begin
        if number >= MOST_REPEATS or (taken and (spent >= most_s or (number >= fewest and spent >= seconds))):
            return taken
        if number % 2:  # the second finds warmer caches
            without = lasting(plain, 1, clock)
            with_counters = lasting(counters.step, 1, clock)
        else:
            with_counters = lasting(counters.step, 1, clock)
            without = lasting(plain, 1, clock)
        taken.append(_Repeat(without, with_counters, counters.seconds()))
    return taken


def _calls(
    repeats: Sequence[_Repeat], added: float, counters: Counters, types: Mapping[str, str]
) -> tuple[CallTime, ...]:
    """One per module that operators belong to, and those around it."""
    own: dict[str, list[float]] = {ROOT: []}
    for name in repeats[0].operators:
        path = counters.operators[name].path
        for place in [*above(path), path]:
            own.setdefault(place, [])
    for repeat in repeats:
        sums = dict.fromkeys(own, 0.0)
        for name, seconds in repeat.operators.items():
            sums[counters.operators[name].path] += seconds
        sums[ROOT] += max(0.0, repeat.counted - added - sum(repeat.operators.values()))
        for path, seconds in sums.items():
            own[path].append(seconds)
    position = {path: index for index, path in enumerate(own)}
    return tuple(
        CallTime(
            path=path,
            type=types.get("" if path == ROOT else path, ""),
            call=0,
            parent=position[above(path)[-1]] if above(path) else None,
            forward=tuple(values),
        )
        for path, values in own.items()
    )


def operators(model: OpenvinoModel, batch: Feed) -> Operators:
    """Return the operators of the compiled graph that a step runs: means over a few steps."""
    counters, clock = Counters(model, batch), model.clock()
    lasting(counters.step, OPERATOR_STEPS, clock)
    steps: list[float] = []
    sums: dict[str, float] = {}
    for _ in range(OPERATOR_STEPS):
        steps.append(lasting(counters.step, 1, clock))
        for name, seconds in counters.seconds().items():
            sums[name] = sums.get(name, 0.0) + seconds
    rows: dict[tuple[str, str, Shapes], OperatorRow] = {}
    for name, seconds in sums.items():
        operator = counters.operators[name]
        key = (operator.path, operator.kind, operator.input_shapes)
        known = rows.get(key)
        calls = 1 + (known.calls if known else 0)
        flops = _sum(known.flops if known else 0, operator.flops)
        mean = seconds / OPERATOR_STEPS + (known.self_s if known else 0.0)
        rows[key] = OperatorRow(
            operator.path, operator.kind, "forward", calls, mean, mean, None, None, flops, None, operator.input_shapes
        )
    return Operators("inference", tuple(rows.values()), OPERATOR_STEPS, sum(steps) / OPERATOR_STEPS)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
