"""A computation costs the same however it is counted: over shapes, in a forward for real, and as the forward of a training step.

Torch hands a composite operator over whole or in parts, depending on whether autograd sees it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.rnn import pack_padded_sequence

from support.torch_modules import Functional, counted, figures
from sweeprof.backends.torch.counting import count_layers
from sweeprof.backends.torch.training import count_training
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layers import LayerTable

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]

Shape = tuple[int, ...]
MATRIX = (4, 6)
IMAGE = (2, 4, 6, 6)
ACTIVATIONS = """
relu relu6 selu celu elu gelu silu mish hardswish hardsigmoid hardtanh leaky_relu rrelu logsigmoid softplus softsign tanhshrink
hardshrink softshrink glu normalize
"""
LOSSES = """
mse_loss l1_loss smooth_l1_loss huber_loss kl_div poisson_nll_loss hinge_embedding_loss multilabel_soft_margin_loss
binary_cross_entropy_with_logits
"""
DISTANCES = "cosine_similarity pairwise_distance"
UNARY = "sigmoid tanh exp log1p erf sinc logit nan_to_num deg2rad square rsqrt lgamma"
BINARY = "add sub mul div floor_divide remainder maximum atan2 hypot logaddexp xlogy float_power"
REDUCTIONS = "sum mean prod var std amax max norm nanmean nansum var_mean std_mean aminmax median"
SCANS = "logsumexp cumsum cumprod"
PRODUCTS: dict[str, list[Shape]] = {
    "matmul": [(2, 3, 4), (4, 5)],
    "mm": [(3, 4), (4, 5)],
    "mv": [(3, 4), (4,)],
    "dot": [(4,), (4,)],
    "inner": [(3, 4), (5, 4)],
    "outer": [(3,), (4,)],
    "kron": [(2, 3), (4, 2)],
    "addmm": [(3, 5), (3, 4), (4, 5)],
    "baddbmm": [(2, 3, 5), (2, 3, 4), (2, 4, 5)],
    "addbmm": [(3, 5), (2, 3, 4), (2, 4, 5)],
    "chain_matmul": [(3, 4), (4, 5), (5, 6)],
    "cov": [(3, 6)],
}
EINSUMS: dict[str, list[Shape]] = {
    "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
    "ij,jk,kl->il": [(3, 4), (4, 5), (5, 6)],
    "bhid,bhjd->bhij": [(2, 2, 5, 4), (2, 2, 6, 4)],
    "bi,bj->bij": [(2, 3), (2, 4)],
}


def cross_entropy(x: torch.Tensor, **keywords: Any) -> torch.Tensor:
    return functional.cross_entropy(x, torch.tensor([0, 1, 2, 0]), **keywords)


def attention(**keywords: Any) -> Callable[..., torch.Tensor]:
    return lambda *args: functional.scaled_dot_product_attention(*args, **keywords)


class OfItself(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x, x, x, need_weights=False)


class Packed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(pack_padded_sequence(x, torch.tensor([3, 2])))


HEADS: list[Shape] = [(2, 2, 5, 8)] * 3
Case = tuple[Callable[..., Any], list[Shape]]
FUNCTIONS: dict[str, Case] = {
    **{name: (getattr(functional, name), [MATRIX]) for name in ACTIVATIONS.split()},
    **{
        f"{name} {by}": (partial(getattr(functional, name), reduction=by), [MATRIX] * 2)
        for name in LOSSES.split()
        for by in ("mean", "sum", "none")
    },
    **{name: (getattr(functional, name), [MATRIX] * 2) for name in DISTANCES.split()},
    **{name: (getattr(torch, name), [MATRIX]) for name in UNARY.split()},
    **{name: (getattr(torch, name), [MATRIX] * 2) for name in BINARY.split()},
    **{f"{name} of all": (getattr(torch, name), [MATRIX]) for name in REDUCTIONS.split()},
    **{f"{name} of rows": (partial(getattr(torch, name), dim=1), [MATRIX]) for name in f"{REDUCTIONS} {SCANS}".split()},
    **{name: (getattr(torch, name), shapes) for name, shapes in PRODUCTS.items()},
    **{equation: (partial(torch.einsum, equation), shapes) for equation, shapes in EINSUMS.items()},
    "vecdot": (torch.linalg.vecdot, [(3, 4), (3, 4)]),
    "tensordot": (torch.tensordot, [(2, 3, 4), (3, 4, 5)]),
    "selu in place": (lambda x: functional.selu(x * 1, inplace=True), [MATRIX]),
    "celu": (lambda x: functional.celu(x, alpha=2.0), [MATRIX]),
    "gelu by tanh": (lambda x: functional.gelu(x, approximate="tanh"), [MATRIX]),
    "softmax": (lambda x: functional.softmax(x, -1), [MATRIX]),
    "log_softmax": (lambda x: functional.log_softmax(x, -1), [MATRIX]),
    "softmin": (lambda x: functional.softmin(x, -1), [MATRIX]),
    "cross_entropy": (cross_entropy, [(4, 6)]),
    "cross_entropy, smoothed": (lambda x: cross_entropy(x, label_smoothing=0.1), [(4, 6)]),
    "cross_entropy of probabilities": (lambda x, y: functional.cross_entropy(x, y.softmax(1)), [(4, 6), (4, 6)]),
    "triplet_margin_loss": (functional.triplet_margin_loss, [MATRIX] * 3),
    "attention": (attention(), HEADS),
    "causal attention": (attention(is_causal=True), HEADS),
    "masked attention": (lambda q, k, v, m: attention(attn_mask=m)(q, k, v), [*HEADS, (5, 5)]),
    "attention of three axes": (attention(), [(2, 5, 8)] * 3),
    "attention to narrow values": (attention(), [*HEADS[:2], (2, 2, 5, 4)]),
    "grouped attention": (attention(enable_gqa=True), [(2, 4, 5, 8), *HEADS[:2]]),
    "attention with dropout": (attention(dropout_p=0.1), HEADS),
    "dropout": (lambda x: functional.dropout(x, 0.3), [IMAGE]),
    "dropout2d": (lambda x: functional.dropout2d(x, 0.3), [IMAGE]),
    "alpha_dropout": (lambda x: functional.alpha_dropout(x, 0.3, training=True), [IMAGE]),
    "feature_alpha_dropout": (lambda x: functional.feature_alpha_dropout(x, 0.3, training=True), [IMAGE]),
    "rms_norm": (lambda x: functional.rms_norm(x, (6,)), [MATRIX]),
    "local_response_norm": (lambda x: functional.local_response_norm(x, 2), [IMAGE]),
    "interpolate": (lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), [IMAGE]),
    "grid_sample": (functional.grid_sample, [IMAGE, (2, 3, 3, 2)]),
    "fft": (torch.fft.fft2, [MATRIX]),
    "rfft": (torch.fft.rfft, [MATRIX]),
    "addcmul": (torch.addcmul, [MATRIX] * 3),
    "lerp": (torch.lerp, [MATRIX] * 3),
    "index_add": (lambda x, y: x.index_add(0, torch.tensor([0, 1, 0, 1]), y), [MATRIX] * 2),
}  # fmt: skip
NETWORKS: dict[str, Case] = {
    **{
        f"{kind.__name__} {settings}": (partial(kind, 4, 6, **settings), [(3, 2, 4)])
        for kind in (nn.RNN, nn.GRU, nn.LSTM)
        for settings in ({}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True})
    },
    **{kind.__name__: (partial(kind, 4, 6), [(2, 4)]) for kind in (nn.RNNCell, nn.GRUCell, nn.LSTMCell)},
    "packed RNN": (lambda: Packed(nn.RNN(4, 6)), [(3, 2, 4)]),
    "packed GRU": (lambda: Packed(nn.GRU(4, 6)), [(3, 2, 4)]),
    "packed LSTM": (lambda: Packed(nn.LSTM(4, 6)), [(3, 2, 4)]),
    "RNN with relu": (lambda: nn.RNN(4, 6, nonlinearity="relu"), [(3, 2, 4)]),
    "LSTM with a projection": (lambda: nn.LSTM(4, 6, proj_size=3), [(3, 2, 4)]),
    "RMSNorm": (lambda: nn.RMSNorm(6), [MATRIX]),
    "RMSNorm of two axes": (lambda: nn.RMSNorm((6, 6), eps=1e-6), [IMAGE]),
    "LayerNorm": (lambda: nn.LayerNorm(6, bias=False), [MATRIX]),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), [IMAGE]),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), [IMAGE]),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True), [IMAGE]),
    "InstanceNorm2d with statistics": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), [IMAGE]),
    "Linear": (lambda: nn.Linear(6, 5), [(2, 4, 6)]),
    "Bilinear": (lambda: nn.Bilinear(3, 4, 5), [(2, 7, 3), (2, 7, 4)]),
    "PReLU": (lambda: nn.PReLU(4), [IMAGE]),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 2, padding="same"), [(2, 4, 6)]),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2, padding_mode="circular"), [IMAGE]),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2), [IMAGE]),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), [IMAGE]),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(4), [IMAGE]),
    "weight_norm": (lambda: weight_norm(nn.Linear(6, 5)), [MATRIX]),
    "spectral_norm": (lambda: spectral_norm(nn.Linear(6, 5)).eval(), [MATRIX]),
    "MultiheadAttention": (lambda: OfItself(nn.MultiheadAttention(8, 2)), [(2, 5, 8)]),
    "MultiheadAttention with a bias": (lambda: OfItself(nn.MultiheadAttention(8, 2, add_bias_kv=True)), [(2, 5, 8)]),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16), [(2, 5, 8)]),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2, 16), [(2, 5, 8), (2, 5, 8)]),
}  # fmt: skip
CASES: dict[str, Case] = {
    **{name: (partial(Functional, function), shapes) for name, (function, shapes) in FUNCTIONS.items()},
    **NETWORKS,
}


class Asking(nn.Module):
    """Asks for the values of its first argument, which a forward over shapes has not."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: torch.Tensor) -> Any:
        args[0].tolist()
        return self.inner(*args)


class Trained(nn.Module):
    """Has a parameter, as every model has that is trained."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.unused = nn.Parameter(torch.ones(()))

    def forward(self, *args: torch.Tensor) -> Any:
        return self.inner(*args)


def for_real(module: nn.Module, *args: torch.Tensor) -> LayerTable:
    table = count_layers(Asking(module), Inputs(args))
    assert table.method.startswith("real forward")
    return table


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_real_forward_costs_what_shapes_do(name: str, is_training: bool) -> None:
    build, shapes = CASES[name]
    module = build().train(is_training)
    over_shapes = counted(module, *shapes)
    table = for_real(module, *(torch.rand(shape) for shape in shapes))
    assert (figures(table), table.uncovered) == (figures(over_shapes), {})


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["selu", "RMSNorm", "GRU {}", "attention of three axes"])
def test_the_callers_mode_makes_no_difference(name: str, context: Callable[[], AbstractContextManager[Any]]) -> None:
    build, shapes = CASES[name]
    expected = figures(counted(build(), *shapes))
    with context():
        assert figures(counted(build(), *shapes)) == expected
        assert figures(for_real(build(), *(torch.rand(shape) for shape in shapes))) == expected


@pytest.mark.parametrize("name", CASES)
def test_the_forward_of_a_training_step_costs_what_it_does_without_gradients(name: str) -> None:
    build, shapes = CASES[name]
    module = Trained(build()).train()
    macs, flops, _ = figures(counted(module, *shapes))
    given = tuple(torch.zeros(shape, device="meta", requires_grad=True) for shape in shapes)
    step = count_training(module, Inputs(given))
    assert (step.forward_macs, step.forward_flops, step.uncovered) == (macs, flops, {})


def test_a_training_step_does_not_warn_of_missing_gradients() -> None:
    """As a reentrant checkpoint does, wherever they are off."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            if not torch.is_grad_enabled():
                warnings.warn("gradients will be None", stacklevel=1)
            return self.inner(x)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        step = count_training(Checkpointed(), Inputs((torch.zeros(3, 4, device="meta"),)))
    assert (step.forward_macs, step.estimated, warned) == (48, None, [])


def test_by_hand() -> None:
    """For real; of the GRU 3 steps of 2 samples, 4 inputs and 6 units."""
    assert figures(for_real(nn.SELU(), torch.rand(4, 6))) == (0, 24, 7 * 24)
    assert figures(for_real(nn.RMSNorm(6), torch.rand(4, 6))) == (0, 4 * 24, 4 * 24 + 2 * 4)
    macs, units, gates = 3 * 2 * 18 * (4 + 6), 3 * 2 * 6, 3 * 2 * 18
    # 11 FLOPs for a unit; in operations 3 sums, two sigmoids, a tanh and 5 more.
    flops, ops = 2 * macs + 2 * gates + 11 * units, 2 * macs + (3 + 2 * 3 + 7 + 5) * units
    assert figures(for_real(nn.GRU(4, 6), torch.rand(3, 2, 4))) == (macs, flops, ops)
    assert figures(for_real(nn.Dropout(0.5), torch.rand(4, 6))) == (0, 2 * 24, 2 * 24)


def test_a_forward_that_needs_autograd() -> None:
    """Such as one that returns a force, the gradient of an energy: it is counted as autograd sees it."""

    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Linear(6, 1, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                (force,) = torch.autograd.grad(self.energy(x).sum(), x)
            return force

    table = count_layers(Force(), Inputs((torch.rand(4, 6),)))
    assert table.method == "shapes"
    assert table.macs == 4 * 6 + 4 * 6
