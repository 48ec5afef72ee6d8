"""The figures of other profilers, computed from the same count by their published conventions, one metric each.

Figures of different profilers for one model differ because they count different things, not because one is wrong; these metrics
follow each one's definition, so that a published table can be reproduced. A profiler's errors are not reproduced: a module that
several parents share counts once a call, a transposed convolution by its input positions, broadcast products by what they
compute, and ``@`` is a product like any other. docs/counting.md lists where these figures differ from the programs'.
"""

from sweeprof.metrics.compat.by_module import moduleprofiler, thop, torchinfo
from sweeprof.metrics.compat.deeplite import d1, d1_footprint_bytes, d2
from sweeprof.metrics.compat.flops_profiler import f1, f2, f2_flops
from sweeprof.metrics.compat.fvcore import fvcore, fvcore_activations
from sweeprof.metrics.compat.ptflops import ptflops, ptflops_aten

__all__ = [
    "d1",
    "d1_footprint_bytes",
    "d2",
    "f1",
    "f2",
    "f2_flops",
    "fvcore",
    "fvcore_activations",
    "moduleprofiler",
    "ptflops",
    "ptflops_aten",
    "thop",
    "torchinfo",
]
