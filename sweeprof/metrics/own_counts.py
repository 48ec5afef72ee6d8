"""What the frameworks' own counters say, by their own rules, for the whole batch; docs/counting.md has what each leaves out."""

from __future__ import annotations

from sweeprof.metrics.metric import Missing, Result, metric
from sweeprof.results.own_counts import OwnCounts


@metric(name="compat/tfprof", unit="FLOP", better="lower")
def tfprof(own_counts: OwnCounts) -> Result:
    """``total_float_ops`` of TensorFlow's profiler on the traced graph."""
    return _said(own_counts, "tfprof")


@metric(name="compat/xla", unit="FLOP", better="lower")
def xla(own_counts: OwnCounts) -> Result:
    """``flops`` of XLA's cost analysis of the compiled program."""
    return _said(own_counts, "xla")


@metric(name="compat/flop_counter", unit="FLOP", better="lower")
def flop_counter(own_counts: OwnCounts) -> Result:
    """``torch.utils.flop_counter`` on the model's operators: twice the MACs of the products it knows."""
    return _said(own_counts, "flop_counter")


def _said(found: OwnCounts, counter: str) -> Result:
    if counter in found.counts:
        return found.counts[counter]
    return Missing(found.reasons.get(counter, "it is no counter of this framework"))
