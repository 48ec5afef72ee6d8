"""The cost of each operator: multiply-accumulates, floating-point operations and textbook scalar operations.

docs/counting.md is the table for readers. One file per family; a rule is a function of an operator's arguments and its result:

    def linear(args, kwargs, output) -> (macs, flops, ops)

* macs: multiply-accumulates of matrix products, convolutions, attention and the gates of recurrent networks, nothing else.
* flops: two for each multiply-accumulate, one for each bias that is added, and what elementwise operators, norms, pooling and
  softmax do, by the table. Only on floating-point results: index arithmetic is no FLOP.
* ops: multiplications and additions apart (a sum of n products has n - 1 additions), ``exp`` and its like one.
"""

from __future__ import annotations

from sweeprof.backends.torch.costs import backward, pointwise, products, recurrent, reductions
from sweeprof.backends.torch.costs.rule import TorchRule

COSTS: dict[str, TorchRule] = {
    **pointwise.RULES,
    **reductions.RULES,
    **reductions.LOSS_RULES,
    **products.RULES,
    **recurrent.RULES,
    **backward.RULES,
    **products.QUANTIZED_RULES,
}
"""Rule by qualified name, e.g. ``aten::linear``."""
