"""From the calls that were followed to the rows of a table."""

from __future__ import annotations

from collections import Counter

import torch

from sweeprof.backends.torch.callsites import CallSites, ModuleCall, costs_of, operator_counts
from sweeprof.backends.torch.state import children_of
from sweeprof.backends.torch.weights import inventory
from sweeprof.counting.formulas import Cost
from sweeprof.results.layer_times import OUTSIDE, ROOT, above
from sweeprof.results.layers import LayerRow, Weights

_AS_COUNTED = Cost()
_NO_WEIGHTS = Weights()


def rows_of(sites: CallSites) -> tuple[LayerRow, ...]:
    """One row per call in the order of the calls; a list of modules comes before the first call below it."""
    declared = {c.module: c.counted.param_size for c in sites.calls if c.module is not None and c.counted is not None}
    weights = inventory(sites.paths, declared)
    called = {call.path for call in sites.calls}
    waiting = {names[0]: module for module, names in sites.paths.items() if names[0] not in called}
    lists = {path for path, module in waiting.items() if children_of(module)}
    position: dict[ModuleCall | None, int] = {}
    times: Counter[str] = Counter()
    rows: list[LayerRow] = []

    def add(call: ModuleCall, module: torch.nn.Module, index: int) -> None:
        position[call] = len(rows)
        own = weights.own.pop(module, _NO_WEIGHTS)
        rows.append(
            _row(call, type(module).__name__, own, weights.subtree.get(module), index, position.get(call.parent))
        )

    for call in sites.calls:
        for path in above(call.path)[1:] if lists else ():
            if path in lists:
                lists.discard(path)
                add(ModuleCall(None, path, None), waiting.pop(path), -1)
        if call.module is not None:
            add(call, call.module, times[call.path])
            times[call.path] += 1
    for path, module in waiting.items():
        add(ModuleCall(None, path, None), module, -1)
    if sites.outside.operators:
        rows.append(_row(sites.outside, "", _NO_WEIGHTS, None, 0, None))
    return tuple(rows)


def _row(
    call: ModuleCall, kind: str, own: Weights, subtree: Weights | None, index: int, parent: int | None
) -> LayerRow:
    macs, flops, ops = costs_of(call)
    inputs, outputs, said = call.inputs, call.outputs, call.counted or _AS_COUNTED
    scale = said.activation_size
    output_bytes = outputs.nbytes if scale is None else outputs.elements * scale
    return LayerRow(
        path=call.path,
        type=kind,
        depth=0 if call.path in (ROOT, OUTSIDE) else call.path.count(".") + 1,
        call=index,
        params=own.params,
        trainable=own.trainable,
        params_bytes=own.params_bytes,
        buffers=own.buffers,
        macs=macs,
        input_shapes=said.input_shapes or inputs.shapes,
        output_shapes=said.output_shapes or outputs.shapes,
        flops=flops,
        ops=ops,
        act_bytes=0 if call.children else output_bytes,
        input_bytes=inputs.nbytes,
        output_bytes=output_bytes,
        input_dtypes=inputs.dtypes,
        output_dtypes=outputs.dtypes,
        buffers_bytes=own.buffers_bytes,
        dtypes=own.dtypes,
        subtree=subtree,
        parent=parent,
        operators=operator_counts(call),
    )
