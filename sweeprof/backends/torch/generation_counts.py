"""Counts of a generation: prefill, and one decode step at the middle of the output, from the model's own forward with a cache.

Three forwards are counted in one pass over shapes: the prompt; the prompt and half of the output, which fills a cache; and one
token more with this cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from sweeprof.backends import Build
from sweeprof.backends.torch.callsites import tensors_in
from sweeprof.backends.torch.counting import count_built
from sweeprof.backends.torch.generation import (
    GreedyLoop,
    bytes_of_cache,
    prompt_of,
    prompt_tokens,
    without_full_mask,
)
from sweeprof.counting.formulas import Args, Formulas, Kwargs
from sweeprof.errors import Unsupported
from sweeprof.measuring.generation_config import GenerationConfig
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.generation import Generation
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow

_LOOKUPS = frozenset({"aten::embedding", "aten::index_select", "aten::index", "aten::gather"})
"""Operators that read as many bytes of a table as they return."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(slots=True)
class _Read:
    """What the decode step of the last attempt read."""

    sequences: int = 0
    position: int = 0
    weight_bytes: int | None = None
    cache_bytes: int | None = None
    reason: str | None = None


def count_generation(
    build: Build, inputs: Inputs, formulas: Formulas, config: GenerationConfig, bytes_reason: str | None = None
) -> Generation:
    """Return the counts of a greedy generation by the module that ``build`` makes.

    Args:
        build: makes the module, on meta where that is possible.
        inputs: one batch of prompts.
        formulas: of the session.
        config: of the generation.
        bytes_reason: why the bytes of the weights are not those of the module; None: they are.

    Raises:
        Unsupported: the generation is not greedy, or the model returns no cache.
        Exception: whatever the builder raised, or the module in a forward for real.
    """
    if config.function is not None:
        raise Unsupported("generation.function: only the forwards of a model with its own generate are counted")
    read = _Read()
    failed: list[Unsupported] = []

    def forwards(module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        failed.clear()
        try:
            _run(module, Inputs(args, kwargs), config, read)
        except Unsupported as error:  # which no other attempt would change
            failed.append(error)

    table = count_built(build, replace(_without_full_mask(inputs), forward=forwards), formulas)
    if failed:
        raise failed[0]
    if table.uncounted is not None:
        raise Unsupported(table.uncounted)
    calls = _root_calls(table.rows)
    (prefill_macs, prefill_flops), (decode_macs, decode_flops) = calls[0], calls[-1]
    reason = bytes_reason or read.reason
    return Generation(
        sequences=read.sequences,
        prefill_macs=prefill_macs,
        prefill_flops=prefill_flops,
        decode_macs=decode_macs,
        decode_flops=decode_flops,
        position=read.position,
        weight_bytes=read.weight_bytes if reason is None else None,
        cache_bytes=read.cache_bytes,
        bytes_reason=reason,
        uncovered=table.uncovered,
        method=table.method,
    )


def _without_full_mask(inputs: Inputs) -> Inputs:
    """Return the inputs without a mask that masks nothing; it may still be an array of the host."""
    kwargs = {name: torch.as_tensor(v) if name == "attention_mask" else v for name, v in inputs.kwargs.items()}
    return replace(inputs, kwargs=without_full_mask(kwargs))


def _run(module: torch.nn.Module, batch: Inputs, config: GenerationConfig, read: _Read) -> None:
    """Run the forwards that are counted: two, or three if the middle of the output is not its beginning."""
    loop = GreedyLoop.of(module, config)
    prompt = prompt_of(module, batch)
    # The decode steps begin with 0 … new_tokens - 2 generated tokens in the cache.
    extra = max(0, config.new_tokens - 2) // 2
    outputs, mask = loop.prefill(prompt)
    if extra:
        outputs, mask = loop.prefill(prompt, extra)
    tokens = next(value for value in prompt.values() if isinstance(value, torch.Tensor))
    read.sequences = len(tokens)
    read.position = extra + (1 if loop.is_encoder_decoder else prompt_tokens(prompt) or 0)
    new = torch.zeros((len(tokens), 1), dtype=torch.int64, device=tokens.device)
    with _WeightReads(module) as reads:
        outputs, _ = loop.decode(outputs, mask, new)
    read.weight_bytes, read.cache_bytes, read.reason = reads.bytes, bytes_of_cache(outputs.past_key_values), None
    experts = [name for name in _EXPERTS if (getattr(module.config.get_text_config(), name, None) or 0) > 1]  # type: ignore[union-attr, operator]
    if experts:
        read.reason = "a mixture of experts: the experts that a step reads depend on the data"


def _root_calls(rows: Sequence[LayerRow]) -> list[tuple[int, int]]:
    """Return MACs and FLOPs of every call of the root, with the calls below it."""
    sums: dict[int, list[int]] = {}
    roots: list[int] = []
    for index, row in enumerate(rows):
        if row.path == ROOT and row.call >= 0:
            sums[index] = [0, 0]
            roots.append(index)
        else:
            roots.append(-1 if row.parent is None else roots[row.parent])
        if roots[index] >= 0:
            sums[roots[index]][0] += row.macs or 0
            sums[roots[index]][1] += row.flops or 0
    return [(macs, flops) for macs, flops in sums.values()]


class _WeightReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums the bytes of the parameters that operators read: each byte once, of a table the rows that are looked up."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._largest: dict[int, int] = {}
        self._looked_up: dict[int, int] = {}
        self._sizes = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in module.parameters()}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        if func.is_view:
            return returned
        is_lookup = func._schema.name in _LOOKUPS
        for tensor in tensors_in((args, kwargs)):
            key = tensor.untyped_storage()._cdata
            if key not in self._sizes:
                continue
            if is_lookup:
                rows = tensors_in(returned)[0]
                self._looked_up[key] = self._looked_up.get(key, 0) + rows.numel() * rows.itemsize
            else:
                size = min(tensor.numel() * tensor.itemsize, self._sizes[key])
                self._largest[key] = max(self._largest.get(key, 0), size)
        return returned

    @property
    def bytes(self) -> int:
        """Bytes that were read."""
        total = 0
        for key, size in self._sizes.items():
            read = max(self._largest.get(key, 0), self._looked_up.get(key, 0))
            total += min(read, size)
        return total
