"""fvcore 0.1.5, and with it the tables that timm publishes (infer_gmacs and infer_macts)."""

from __future__ import annotations

from sweeprof.metrics.compat.calls import NORMS, convention, kind, operators, scores
from sweeprof.results.layers import LayerTable

PRODUCTS = frozenset({"convolution", "linear", "matmul"})
FUSED_PRODUCTS = PRODUCTS | {"attention"}


@convention(name="fvcore")
def fvcore(layers: LayerTable, fused_attention: bool = True) -> int:
    """Return fvcore's flops, which timm publishes as MACs: MACs, 2 to 5 an element of norms, 1 of adaptive average pooling.

    Norms: 2 an element in inference, 5 for those that compute statistics, one less without an affine transform. Upsampling: 1 an
    output for nearest, 4 for bilinear. Activations, other pools, softmax, ``baddbmm`` and elementwise operators are nothing. timm
    publishes its models with its fused attention switched off, which makes attention's two products visible. With
    ``fused_attention`` they count, as published; without it they are left out where one kernel does both, as fvcore leaves them.
    """
    products = FUSED_PRODUCTS if fused_attention else PRODUCTS
    total = 0
    for operator in operators(layers):
        match kind(operator):
            case name if name in products:
                total += operator.macs
            case name if name in NORMS:
                total += operator.flops
            case "nearest":
                total += operator.outputs
            case "bilinear_upsample" | "grid_sampler" | "grid_sampler_2d":
                total += 4 * operator.outputs
            case "adaptive_avg_pool":
                total += operator.inputs
    return total


@convention(name="fvcore_activations", unit="elements")
def fvcore_activations(layers: LayerTable, fused_attention: bool = True) -> int:
    """Elements that convolutions and matrix products return, attention's included, as fvcore counts and timm publishes them.

    Attention returns the scores and its result. Without ``fused_attention`` it is left out where one kernel does both.
    """
    total = 0
    for operator in operators(layers):
        if kind(operator) in PRODUCTS:
            total += operator.outputs
        elif kind(operator) == "attention" and fused_attention:
            total += scores(operator) + operator.outputs
    return total
