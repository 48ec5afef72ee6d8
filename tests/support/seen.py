"""What passes leave, made up: times, operators, allocations and peaks whose sums are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sweeprof.results.environment import Peaks
from sweeprof.results.layer_times import CallTime, LayerTimes, PhaseTimes
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.observations import Allocations, LayerMemory, Moment, OperatorRow, Operators, TensorRow

PEAKS = Peaks(60e9, 10e9, "float32", "cpu", 2)


def timed(
    table: LayerTable,
    forward: Callable[[LayerRow], float] = lambda row: 1e-3,
    backward: Callable[[LayerRow], float | None] = lambda row: None,
) -> LayerTable:
    """The table with the seconds of each call alone; a list of modules has none of its own."""
    rows = []
    for row in table.rows:
        after = backward(row)
        own = (0.0, None if after is None else 0.0) if row.call < 0 else (forward(row), after)
        reason = None if after is not None else "its inputs need no gradient"
        rows.append(
            dataclasses.replace(row, forward_s=0.0, forward_self_s=own[0], backward_self_s=own[1], time_reason=reason)
        )
    return dataclasses.replace(table, rows=tuple(rows))


def layer_times(table: LayerTable, seconds: float = 1e-3, repeats: int = 5) -> LayerTimes:
    """Every call takes as long as every other, and its backward twice as long."""
    called = [index for index, row in enumerate(table.rows) if row.call >= 0]
    places = {index: place for place, index in enumerate(called)}
    calls = []
    for index in called:
        row = table.rows[index]
        parent = None if row.parent is None else places[row.parent]
        times = (seconds,) * repeats, (2 * seconds,) * repeats
        calls.append(CallTime(row.path, row.type, row.call, parent, *times))
    whole = (len(calls) * seconds,) * repeats
    twice = tuple(2 * value for value in whole)
    return LayerTimes("training", tuple(calls), 1, PhaseTimes(whole, whole), PhaseTimes(twice, twice))


def operators(rows: int = 40) -> Operators:
    """``aten::a`` takes three quarters of the seconds of ``aten::b``, most of it in the backward."""
    found = []
    for place in range(rows // 2):
        path = f"layer{place}"
        found.append(OperatorRow(path, "aten::b", "forward", 1.0, 4e-3, 5e-3, None, None, 10, 100, ((2, 3), ())))
        found.append(OperatorRow(path, "aten::a", "backward", 2.0, 3e-3, 3e-3, None, None, None, -100))
    return Operators("training", tuple(found), 3, 0.2)


def allocations(moments: int = 3000, layers: int = 40) -> Allocations:
    """Memory that rises by 1 KiB a moment to its peak in ``layer1`` in the middle, and falls as it rose."""
    middle = moments // 2
    timeline = tuple(
        Moment(1e-6 * place, 1024 * (middle - abs(place - middle)), f"layer{int(place >= middle)}")
        for place in range(moments)
    )
    by_layer = tuple(LayerMemory(f"layer{place}", 1024 * place, 10, 5) for place in range(layers))
    tensors = tuple(
        TensorRow((f"layer{place}.weight",), "parameter", (2, 3), "float32", "cpu", 24) for place in range(layers)
    )
    return Allocations("inference", 1, 1024 * middle, "layer1", timeline, by_layer, tensors)
