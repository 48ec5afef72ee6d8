"""The peak of live bytes: each tensor takes memory from the operator that makes it to the last one that reads it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import Bytes, Liveness


@dataclass(slots=True)
class OperatorRun:
    """One run of an operator; tensors are known by keys of any kind."""

    path: str
    """Of its module."""
    operands: Sequence[Hashable]
    results: Mapping[Hashable, Bytes]
    """Bytes of each result; a constant, which takes memory before the model runs, is left out."""
    memory_of: Hashable | None = None
    """The operand whose memory the results share; None: they have memory of their own."""


def peak_of(runs: Sequence[OperatorRun], outputs: Iterable[Hashable], input_bytes: Bytes) -> Liveness:
    """Return the peak over runs in their order: what they make, without weights and the model's inputs.

    A result that nothing reads lives while its operator runs, an output of the model to the end. The results of a view live in
    its operand: in no memory of their own, and as long as any of both is read.

    Args:
        runs: in their order.
        outputs: keys of the model's outputs.
        input_bytes: of the model's inputs.
    """
    owner: dict[Hashable, Hashable] = {}
    last_use: dict[Hashable, int] = {}
    for position, run in enumerate(runs):
        if run.memory_of is not None:
            owner.update(dict.fromkeys(run.results, owner.get(run.memory_of, run.memory_of)))
        for key in (*run.operands, *run.results):
            last_use[owner.get(key, key)] = position
    for key in outputs:
        last_use[owner.get(key, key)] = len(runs)
    freed: dict[int, Bytes] = {}
    live: Bytes = 0
    peak: Bytes = 0
    peak_path = ROOT
    for position, run in enumerate(runs):
        if run.memory_of is None:
            for key, size in run.results.items():
                live += size
                freed[last_use[key]] = freed.get(last_use[key], 0) + size
        if live > peak:
            peak, peak_path = live, run.path
        live -= freed.get(position, 0)
    return Liveness(int(peak), peak_path, int(input_bytes))
