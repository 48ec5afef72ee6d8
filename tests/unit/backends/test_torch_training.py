"""One training step over shapes: products by hand, what is alive when, and what cannot be counted."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import sweeprof
from support.torch_modules import Applied, Functional, Twice, counted, figures
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.backends.torch.counting import count_layers
from sweeprof.backends.torch.training import count_training
from sweeprof.counting.formulas import Cost, Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.training_config import TrainingConfig
from sweeprof.results.layers import LayerTable, Liveness, Training

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]


def step(module: nn.Module, *shape: int, grad: bool = False) -> Training:
    """A step counted, not estimated, with every operator known."""
    given = torch.zeros(shape, device="meta", requires_grad=True) if grad else TensorSpec(shape)
    counted = count_training(module, Inputs((given,)))
    assert counted.estimated is None
    assert counted.uncovered == {}
    return counted


def macs(module: nn.Module, *shape: int, grad: bool = False) -> tuple[int, int]:
    """Of the forward, and of the backward."""
    counted = step(module, *shape, grad=grad)
    return counted.forward_macs, counted.backward_macs


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def peak(module: nn.Module, *shape: int) -> int:
    counted: Any = step(module, *shape)
    return counted.liveness.peak_bytes  # type: ignore[no-any-return]


# Products


@pytest.mark.parametrize(
    ("module", "shape", "forward"),
    [
        (nn.Linear(4, 8), (2, 3, 4), 2 * 3 * 4 * 8),
        (nn.Conv1d(2, 4, 3, bias=False), (2, 2, 9), 2 * 4 * 7 * (2 * 3)),
        (nn.Conv2d(3, 8, 3, 2, 1), (2, 3, 8, 8), 2 * 8 * 16 * (3 * 9)),
        (nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4), 3 * 27 * (2 * 8)),
        (nn.Conv2d(4, 6, 3, groups=2), (1, 4, 8, 8), 6 * 36 * (2 * 9)),
        (nn.ConvTranspose1d(4, 6, 3), (2, 4, 8), 2 * 4 * 8 * (6 * 3)),
        (nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), (1, 4, 5, 5), 4 * 25 * (3 * 9)),
        (nn.ConvTranspose3d(4, 6, 3), (2, 4, 4, 4, 4), 2 * 4 * 64 * (6 * 27)),
    ],
)
def test_a_product_for_the_weights_and_one_for_an_input_that_wants_it(
    module: nn.Module, shape: tuple[int, ...], forward: int
) -> None:
    """Groups too: FlopCounterMode counts the backward of a grouped convolution as if it had none."""
    assert macs(module, *shape) == (forward, forward)
    assert macs(module, *shape, grad=True) == (forward, 2 * forward)


def detached() -> nn.Module:
    return Applied(lambda module, x: module.head(module.body(x).detach()), body=nn.Linear(4, 8), head=nn.Linear(8, 2))


def two_outputs() -> nn.Module:
    def forward(module: Any, x: torch.Tensor) -> dict[str, Any]:
        return {"a": module.a(x), "rest": [module.b(x), None, 3], "chosen": module.b(x).argmax(-1)}

    return Applied(forward, a=nn.Linear(4, 8), b=nn.Linear(4, 2))


def frozen(*names: str) -> nn.Module:
    """The layers or weights of these names of the small network."""
    module = mlp()
    for name in names:
        part = module.get_parameter(name) if name.endswith("weight") else module.get_submodule(name)
        part.requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("module", "forward", "backward"),
    [
        pytest.param(mlp(), 96 + 48, 96 + 2 * 48, id="the first layer has no gradient of its input"),
        pytest.param(frozen("0"), 144, 48, id="nothing before it wants a gradient"),
        pytest.param(frozen("2"), 144, 48 + 96, id="no gradient of its weights, one through it"),
        pytest.param(Twice(nn.Linear(4, 4)), 2 * 48, 2 * 48 + 48, id="shared"),
        pytest.param(detached(), 144, 48, id="detached"),
        pytest.param(two_outputs(), 96 + 2 * 24, 96 + 24, id="every output is part of the loss"),
        pytest.param(nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2)), 144, 192, id="lazy modules"),
    ],
)
def test_products_of_a_step(module: nn.Module, forward: int, backward: int) -> None:
    kinds = [type(part) for part in module.modules()]
    assert macs(module, 3, 4) == (forward, backward)
    assert [type(part) for part in module.modules()] == kinds, "a lazy module stays one"


def test_the_bias_of_a_frozen_weight_has_a_gradient() -> None:
    whole, weight = step(frozen("2"), 3, 4), step(frozen("2.weight"), 3, 4)
    assert weight.backward_flops == whole.backward_flops + 3 * 2


def test_operations_beside_the_products() -> None:
    counted = step(mlp(), 3, 4)
    biases, relu = 3 * 8 + 3 * 2, 3 * 8
    assert counted.forward_flops == 2 * counted.forward_macs + biases + relu
    # A sum for each bias; backwards a ReLU compares and chooses.
    assert counted.backward_flops == 2 * counted.backward_macs + biases + 2 * relu


def test_attention() -> None:
    """(2, 4, 8): four projections of 8 by 8 and two products of 4 by 4 by 8 a sample."""
    inner = nn.MultiheadAttention(8, 2, batch_first=True)
    module = Applied(lambda module, x: module.inner(x, x, x, need_weights=False)[0], inner=inner)
    projections, products = 2 * 4 * 4 * 64, 2 * 2 * 4 * 4 * 8
    forward, backward = macs(module, 2, 4, 8)
    assert forward == projections + products
    # The shared input wants no gradient: that of the three input projections is for their weights alone.
    assert backward == 3 * projections // 4 + 2 * projections // 4 + 2 * products


class Frozen(nn.Module):
    """A model whose ``train()`` leaves its backbone in inference mode, unless it is told not to."""

    seen: ClassVar[set[tuple[bool, ...]]] = set()
    """Of each forward the modes of the model, of the backbone's layers, and of the head."""

    def __init__(self, freezes: bool = True) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout())
        self.head = nn.Linear(8, 2)
        self.freezes = freezes

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        if self.freezes:
            self.backbone.eval()
        return self

    def forward(self, x: torch.Tensor) -> Any:
        self.seen.add(tuple(part.training for part in (self, *self.backbone, self.head)))
        return self.head(self.backbone(x))


def frozen_by_its_caller() -> nn.Module:
    model = Frozen(freezes=False).train()
    model.backbone.eval()
    return model


@pytest.mark.parametrize(("build", "as_function"), [(lambda: Frozen().eval(), False), (frozen_by_its_caller, True)])
def test_frozen_layers_are_trained_as_the_caller_trains_them(build: Callable[[], Any], as_function: bool) -> None:
    """A norm in training mode would also reject the batch of one sample."""
    Frozen.seen.clear()
    model = build()
    called: Any = (lambda x: model(x).relu()) if as_function else model
    names = ["compute/flops_train", "latency/iteration"]
    quick = sweeprof.Protocol(warmup_s=0, min_s=0)
    profile = sweeprof.profile(called, torch.ones(1, 4), names, mode="training", protocol=quick)
    assert all(profile[name].value for name in names)
    assert Frozen.seen == {(True, False, False, False, True)}


def test_a_built_model_is_trained_as_its_own_train_says() -> None:
    Frozen.seen.clear()
    model = TorchBackend().load(Frozen, "cpu", None)
    with TorchBackend().training(model, model.put(Inputs((torch.ones(1, 4),))), None, TrainingConfig()) as training:
        training.backward(training.forward())
    assert Frozen.seen == {(True, False, False, False, True)}
    assert not any(part.training for part in model.native.modules())


# What is alive


def test_liveness_by_hand() -> None:
    """The peak is in the backward of the ReLU: its result is kept until then, and both its gradients are there."""
    y, loss, of_loss = 4 * 3 * 2, 4, 4
    of_weight, of_bias = 4 * 8 * 2, 4 * 2
    kept = outer = inner = 4 * 3 * 8
    peak = y + loss + of_loss + of_weight + of_bias + kept + outer + inner
    assert step(mlp(), 3, 4).liveness == Liveness(peak, "1", 4 * 3 * 4)


def test_liveness_of_a_forward_that_replaces_a_buffer() -> None:
    """Nothing that is made later is taken for the buffer that is gone, at the address of which it may be."""

    class Replacing(nn.Module):
        def __init__(self, replaces: bool) -> None:
            super().__init__()
            self.replaces = replaces
            self.weight = nn.Parameter(torch.ones(1000))
            self.register_buffer("offset", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.replaces:
                self.offset = None
            for _ in range(8):
                x = torch.sigmoid(x * self.weight)
            return x

    assert step(Replacing(True), 1000).liveness == step(Replacing(False), 1000).liveness


def checkpointed(use_reentrant: bool) -> nn.Module:
    def forward(module: Any, x: torch.Tensor) -> Any:
        for block in module.blocks:
            x = checkpoint(block, x, use_reentrant=use_reentrant)
        return module.head(x)

    blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()) for _ in range(2))
    return Applied(forward, blocks=blocks, head=nn.Linear(4, 2))


def test_checkpoints_save_memory() -> None:
    def wide(saves: bool) -> nn.Module:
        def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
            for block in module.blocks:
                x = checkpoint(block, x, use_reentrant=False) if saves else block(x)
            return x

        blocks = nn.ModuleList(nn.Sequential(*[nn.Linear(4, 4), nn.Sigmoid()] * 5) for _ in range(4))
        return Applied(forward, blocks=blocks)

    assert peak(wide(True), 100, 4) < 0.6 * peak(wide(False), 100, 4)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_are_computed_again(use_reentrant: bool) -> None:
    """The input of the first wants a gradient, without which torch gives none to what is inside a reentrant one."""
    module, given = checkpointed(use_reentrant), torch.zeros(3, 4, requires_grad=True)
    counted = count_training(module, Inputs((given,)))
    assert counted.estimated is None
    assert (counted.forward_macs, counted.backward_macs) == (2 * 48 + 24, 2 * (2 * 48 + 48) + 2 * 24)
    assert [tensor.grad for tensor in (given, *module.parameters())] == [None] * 7


# What cannot be counted


@torch.library.custom_op("sweeprof_training::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halved.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operator_without_a_backward_makes_it_an_estimate() -> None:
    module = Applied(lambda module, x: halved(module.linear(x)), linear=nn.Linear(4, 8))
    counted = count_training(module, Inputs((TensorSpec((3, 4)),)))
    assert counted.estimated is not None
    assert counted.estimated.startswith("the backward does not run on shapes: ")
    assert "sweeprof_training" in counted.estimated
    assert (counted.forward_macs, counted.backward_macs) == (96, 2 * 96)
    assert (counted.forward_flops, counted.backward_flops) == (216, 2 * 216)
    assert counted.liveness is None
    assert counted.uncovered == {"sweeprof_training::halved": 1}


def test_a_forward_that_needs_values_or_is_scripted_makes_it_an_estimate() -> None:
    module = nn.Sequential(nn.Linear(4, 8), Functional(lambda x: x if x.sum().item() else -x))
    counted = count_training(module, Inputs((torch.ones(3, 4),)))
    assert "item()" in (counted.estimated or "")
    assert (counted.forward_macs, counted.backward_macs) == (96, 192)
    with pytest.warns((DeprecationWarning, FutureWarning), match=r"torch\.jit\.script"):
        scripted = torch.jit.script(mlp())
    counted = count_training(scripted, Inputs((TensorSpec((3, 4)),)))
    assert "returned an invalid gradient" in (counted.estimated or "")  # of torch, and not of looking for masks
    assert (counted.forward_macs, counted.backward_macs) == (144, 288)


def test_the_forward_of_an_estimate_is_in_training_mode() -> None:
    """Statistics are computed, and dropout applied, whatever mode the caller left the model in."""
    asking = Functional(lambda x: x if x.sum().item() else -x)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), asking).eval()
    counted = count_training(module, Inputs((torch.rand(3, 4),)))
    assert counted.estimated is not None
    outputs = 3 * 8
    assert counted.forward_flops == 2 * 4 * outputs + (1 + 5 + 2 + 1) * outputs  # bias, norm, dropout, sum


def test_no_parameter_to_train() -> None:
    with pytest.raises(Unsupported, match="no parameter requires a gradient"):
        count_training(nn.Linear(4, 2).requires_grad_(False), Inputs((TensorSpec((3, 4)),)))


@pytest.mark.parametrize("function", [lambda module, x: module.inner(x).detach(), lambda module, x: None])
def test_no_output_to_train(function: Any) -> None:
    """Twice the forward would be a number for what does not exist."""
    module = Applied(function, inner=nn.Linear(4, 2))
    with pytest.raises(Unsupported, match="no output depends on a parameter that requires a gradient"):
        count_training(module, Inputs((TensorSpec((3, 4)),)))


# The model is left as it was


def test_nothing_is_left_on_a_model_and_an_input_on_meta() -> None:
    with torch.device("meta"):
        module, given = mlp(), torch.ones(3, 4, requires_grad=True)
    assert count_training(module, Inputs((given,))).backward_macs == 288
    assert given.grad is None
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_forward_that_takes_gradients_itself() -> None:
    """Products of a backward within the forward are the forward's."""

    def penalty(module: Any, x: torch.Tensor) -> torch.Tensor:
        given = torch.zeros_like(x, requires_grad=True)
        (found,) = torch.autograd.grad(functional.silu(module.inner(given)).sum(), given, create_graph=True)
        return found.square().sum()

    module = Applied(penalty, inner=nn.Linear(4, 2, bias=False))
    counted = count_training(module, Inputs((TensorSpec((3, 4)),)))
    assert counted.estimated is None
    assert counted.forward_macs == 24 + 24  # and the gradient of its input
    # Of the found gradient by the weights and by what it was made from; of that by the weights and, as `loss.backward()`
    # fills in every tensor that requires one, by the input made within.
    assert counted.backward_macs == 2 * 24 + 2 * 24


def test_a_forward_that_holds_on_to_the_module_it_was_made_for() -> None:
    """As a patched forward may: a copy of the module calls the original, whose parameters are not those of the copy."""
    module = mlp()
    plain = module[0].forward

    def patched(x: torch.Tensor) -> Any:
        return plain(x)

    module[0].forward = patched
    counted = count_training(module, Inputs((TensorSpec((3, 4)),)))
    assert counted.forward_macs == 144
    assert counted.estimated is not None
    assert counted.backward_macs == 288


def test_what_a_forward_does_outside_the_model_has_a_backward_too() -> None:
    """``(x Wᵀ) W``: two products forward; backward both operands of the second, the weight of the first."""
    inputs = Inputs((TensorSpec((2, 4)),), forward=lambda model, x: model(x) @ model.weight)
    counted = count_training(nn.Linear(4, 4), inputs)
    assert (counted.forward_macs, counted.backward_macs) == (2 * 32, 3 * 32)


def test_packed_sequences_go_back_too() -> None:
    """10 steps of three sequences: a gradient of W and of U in each, and of h in the 7 that follow others."""
    batch = 4000

    def forward(module: Any, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(module.rnn(packed)[0], batch_first=True)[0]

    module = Applied(forward, rnn=nn.RNN(4, 6, batch_first=True))
    lengths = torch.tensor([5, 2, 3] * batch)
    counted = count_training(module, Inputs((torch.zeros(3 * batch, 5, 4), lengths)))
    assert counted.estimated is None
    assert counted.forward_macs == batch * 10 * 6 * (4 + 6)
    assert counted.backward_macs == batch * (10 * 6 * 4 + 10 * 36 + 7 * 36)


@pytest.mark.parametrize("wrap", [torch.tensor, tuple])
def test_a_model_whose_loss_compares_sequences(wrap: Callable[[Any], Any]) -> None:
    """It returns its loss: connectionist temporal classification, with targets of different lengths."""

    def loss(module: Any, x: torch.Tensor, *targets: Any) -> torch.Tensor:
        scores = module.head(module.first(x)).log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(scores, *targets)

    module = Applied(loss, first=nn.Linear(8, 16), head=nn.Linear(16, 6))
    given = (torch.randn(3, 20, 8), torch.randint(1, 6, (3, 9)), wrap([20, 20, 20]), wrap([5, 3, 4]))
    counted = count_training(module, Inputs(given))
    assert counted.estimated is None
    assert sorted(counted.uncovered) == ["_ctc_loss", "_ctc_loss_backward"]
    forward = 3 * 20 * (8 * 16 + 16 * 6)
    assert (counted.forward_macs, counted.backward_macs) == (forward, 2 * forward - 3 * 20 * 8 * 16)


def test_each_operand_of_a_bilinear_form_costs_as_much_as_the_forward() -> None:
    """38 samples, 5 and 7 numbers, 3 outputs: contracted over the first numbers, then over the second."""
    forward = 38 * 3 * (5 + 1) * 7
    for wants in (False, True):
        inputs = Inputs(tuple(torch.zeros(38, width, requires_grad=wants) for width in (5, 7)))
        counted = count_training(nn.Bilinear(5, 7, 3), inputs)
        assert (counted.forward_macs, counted.backward_macs) == (forward, (3 if wants else 1) * forward)


def test_a_formula_holds_for_the_forward_of_a_step_too() -> None:
    formulas = Formulas({nn.Linear: lambda module, inputs, outputs: Cost(macs=1000, flops=3000)})
    counted = count_training(nn.Linear(4, 4), Inputs((TensorSpec((2, 4)),)), formulas)
    assert (counted.forward_macs, counted.forward_flops) == (1000, 3000)
    assert counted.backward_macs == 32


COUNTED_TWICE = """
import sys
import torch
from torch import nn
from sweeprof.backends.torch.counting import count_layers
from sweeprof.measuring.inputs import Inputs, TensorSpec

class Log(nn.Linear):
    def forward(self, x):
        for _ in range(3):
            x = torch.logaddexp(super().forward(x), x)
        return x

assert "torch._dynamo" not in sys.modules
inputs = Inputs((TensorSpec((4, 64, 32, 32)),))
print(*(count_layers(Log(32, 32), inputs).liveness.peak_bytes for _ in range(2)))
assert "torch._dynamo" in sys.modules
"""


@pytest.mark.thorough
def test_the_import_of_the_compiler_keeps_nothing_alive_that_is_counted() -> None:
    """Shape rules of torch import it when they first run, as in the process of a trial."""
    done = subprocess.run([sys.executable, "-c", COUNTED_TWICE], capture_output=True, text=True, check=True)
    # the input of logaddexp, its other input and its result
    assert list(map(int, done.stdout.split())) == [3 * 4 * 64 * 32 * 32 * 4] * 2


# A computation costs the same however it is counted: over shapes, in a forward for real, and as the forward of a training step


Shape = tuple[int, ...]
MATRIX = (4, 6)
IMAGE = (2, 4, 6, 6)
ACTIVATIONS = """
relu relu6 selu celu elu gelu silu mish hardswish hardsigmoid hardtanh leaky_relu rrelu logsigmoid softplus softsign tanhshrink
hardshrink softshrink glu normalize
"""
LOSSES = """
mse_loss l1_loss smooth_l1_loss huber_loss kl_div poisson_nll_loss hinge_embedding_loss multilabel_soft_margin_loss
binary_cross_entropy binary_cross_entropy_with_logits
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
    **{name: (partial(getattr(functional, name), kernel_size=2), [IMAGE]) for name in ("avg_pool2d", "max_pool2d")},
    "adaptive_max_pool2d": (lambda x: functional.adaptive_max_pool2d(x, 2), [IMAGE]),
    **{f"pad, {mode}": (partial(functional.pad, pad=[2] * 4, mode=mode), [IMAGE]) for mode in ("reflect", "replicate")},
    "interpolate to the nearest": (lambda x: functional.interpolate(x, scale_factor=2), [IMAGE]),
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
    "packed LSTM": (
        lambda: Applied(lambda module, x: module.inner(pack_padded_sequence(x, torch.tensor([3, 2]))), inner=nn.LSTM(4, 6)),
        [(3, 2, 4)]
    ),
    "RNN with relu": (lambda: nn.RNN(4, 6, nonlinearity="relu"), [(3, 2, 4)]),
    "LSTM with a projection": (lambda: nn.LSTM(4, 6, proj_size=3), [(3, 2, 4)]),
    "RMSNorm": (lambda: nn.RMSNorm(6), [MATRIX]),
    "LayerNorm": (lambda: nn.LayerNorm(6, bias=False), [MATRIX]),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), [IMAGE]),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), [IMAGE]),
    "InstanceNorm2d with statistics": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), [IMAGE]),
    "Linear": (lambda: nn.Linear(6, 5), [(2, 4, 6)]),
    "Bilinear": (lambda: nn.Bilinear(3, 4, 5), [(2, 7, 3), (2, 7, 4)]),
    "PReLU": (lambda: nn.PReLU(4), [IMAGE]),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 2, padding="same"), [(2, 4, 6)]),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2, padding_mode="circular"), [IMAGE]),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2), [IMAGE]),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), [IMAGE]),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(4), [IMAGE]),
    "spectral_norm": (lambda: spectral_norm(nn.Linear(6, 5)).eval(), [MATRIX]),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True), [(2, 5, 8)] * 3),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16), [(2, 5, 8)]),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2, 16), [(2, 5, 8), (2, 5, 8)]),
}  # fmt: skip
CASES: dict[str, Case] = {
    **{name: (partial(Functional, function), shapes) for name, (function, shapes) in FUNCTIONS.items()},
    **NETWORKS,
}


ONLY_MOVED_BACK = {"add", "sum of all", "sum of rows", "max of rows", "median of rows", "index_add"}


def for_real(module: nn.Module, *args: torch.Tensor) -> LayerTable:
    """The table of a module that is called by one which asks for the values of its first argument."""

    def forward(asking: Any, *args: torch.Tensor) -> Any:
        args[0].tolist()
        return asking.inner(*args)

    table = count_layers(Applied(forward, inner=module), Inputs(args))
    assert table.method.startswith("real forward")
    return table


@pytest.mark.parametrize("name", CASES)
def test_a_computation_costs_the_same_however_it_is_counted(name: str) -> None:
    build, shapes = CASES[name]
    for is_training in (False, True):
        module = build().train(is_training)
        macs, flops, ops = figures(counted(module, *shapes))
        table = for_real(module, *(torch.rand(shape) for shape in shapes))
        assert (figures(table), table.uncovered) == ((macs, flops, ops), {})
    with_parameter = Applied(lambda module, *args: module.inner(*args), inner=module)
    with_parameter.unused = nn.Parameter(torch.ones(()))
    given = tuple(torch.zeros(shape, device="meta", requires_grad=True) for shape in shapes)
    step = count_training(with_parameter, Inputs(given))
    assert (step.forward_macs, step.forward_flops, step.uncovered) == (macs, flops, {})
    assert (step.estimated is None) == (name != "floor_divide")  # which has no backward
    assert (step.backward_flops > 0) == (name not in ONLY_MOVED_BACK)


@pytest.mark.parametrize("context", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["RMSNorm", "GRU {}", "attention"])
def test_the_callers_mode_makes_no_difference(name: str, context: Callable[[], AbstractContextManager[Any]]) -> None:
    build, shapes = CASES[name]
    expected = figures(counted(build(), *shapes))
    with context():
        assert figures(counted(build(), *shapes)) == expected
        assert figures(for_real(build(), *(torch.rand(shape) for shape in shapes))) == expected


def test_a_training_step_does_not_warn_of_missing_gradients() -> None:
    """As a reentrant checkpoint does, wherever they are off."""

    def forward(module: Any, x: torch.Tensor) -> Any:
        if not torch.is_grad_enabled():
            warnings.warn("gradients will be None", stacklevel=1)
        return module.inner(x)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        step = count_training(Applied(forward, inner=nn.Linear(4, 4)), Inputs((torch.zeros(3, 4, device="meta"),)))
    assert (step.forward_macs, step.estimated, warned) == (48, None, [])
