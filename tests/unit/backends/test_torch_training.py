"""One training step over shapes: products by hand, what is alive when, and what cannot be counted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from support.torch_modules import Functional, Twice
from sweeprof.backends.torch.dispatch import UNKNOWN_TO_TORCH
from sweeprof.backends.torch.training import count_training
from sweeprof.counting.formulas import Cost, Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layers import Liveness, Training


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


class Using(nn.Module):
    """Applies a function of a module and the input."""

    def __init__(self, inner: nn.Module, function: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.inner, x)


# Products


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("build", "shape", "forward"),
    [
        (lambda bias: nn.Linear(4, 8, bias), (3, 4), 3 * 4 * 8),
        (lambda bias: nn.Linear(4, 8, bias), (2, 3, 4), 2 * 3 * 4 * 8),
        (lambda bias: nn.Conv1d(2, 4, 3, bias=bias), (2, 2, 9), 2 * 4 * 7 * (2 * 3)),
        (lambda bias: nn.Conv2d(3, 8, 3, bias=bias), (2, 3, 8, 8), 2 * 8 * 36 * (3 * 9)),
        (lambda bias: nn.Conv2d(3, 8, 3, 2, 1, bias=bias), (2, 3, 8, 8), 2 * 8 * 16 * (3 * 9)),
        (lambda bias: nn.Conv3d(2, 3, 2, bias=bias), (1, 2, 4, 4, 4), 3 * 27 * (2 * 8)),
        (lambda bias: nn.Conv2d(4, 8, 3, groups=4, bias=bias), (1, 4, 8, 8), 8 * 36 * (1 * 9)),
        (lambda bias: nn.Conv2d(4, 6, 3, groups=2, bias=bias), (1, 4, 8, 8), 6 * 36 * (2 * 9)),
        (lambda bias: nn.ConvTranspose2d(4, 6, 4, 2, 1, bias=bias), (2, 4, 8, 8), 2 * 4 * 64 * (6 * 16)),
        (lambda bias: nn.ConvTranspose2d(4, 6, 3, groups=2, bias=bias), (1, 4, 5, 5), 4 * 25 * (3 * 9)),
    ],
)
def test_a_product_for_the_weights_and_one_for_an_input_that_wants_it(
    build: Any, shape: tuple[int, ...], forward: int, bias: bool
) -> None:
    """Groups too: FlopCounterMode counts the backward of a grouped convolution as if it had none."""
    assert macs(build(bias), *shape) == (forward, forward)
    assert macs(build(bias), *shape, grad=True) == (forward, 2 * forward)


def test_case_18() -> None:
    counted = step(nn.ConvTranspose2d(4, 6, 4, 2, 1), 2, 4, 8, 8, grad=True)
    assert 2 * (counted.forward_macs + counted.backward_macs) == 294_912


def test_the_first_layer_has_no_gradient_of_its_input() -> None:
    assert macs(mlp(), 3, 4) == (96 + 48, 96 + 2 * 48)
    assert macs(mlp(), 3, 4, grad=True) == (96 + 48, 2 * 96 + 2 * 48)


def test_operations_beside_the_products() -> None:
    counted = step(mlp(), 3, 4)
    biases, relu = 3 * 8 + 3 * 2, 3 * 8
    assert counted.forward_flops == 2 * counted.forward_macs + biases + relu
    # A sum for each bias; backwards a ReLU compares and chooses.
    assert counted.backward_flops == 2 * counted.backward_macs + biases + 2 * relu


def test_frozen_layers() -> None:
    first, last, whole = mlp(), mlp(), mlp()
    first[0].requires_grad_(False)
    last[2].requires_grad_(False)
    whole[2].weight.requires_grad_(False)
    assert macs(first, 3, 4) == (144, 48)  # nothing before it wants a gradient
    assert macs(last, 3, 4) == (144, 48 + 96)  # no gradient of its weights, one through it
    assert macs(whole, 3, 4) == (144, 48 + 96)
    assert step(whole, 3, 4).backward_flops == step(last, 3, 4).backward_flops + 3 * 2


def test_shared_weights() -> None:
    assert macs(Twice(nn.Linear(4, 4)), 3, 4) == (2 * 48, 2 * 48 + 48)


def test_tied_weights() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[1].weight = module[0].weight
    assert macs(module, 3, 4) == (2 * 48, 2 * 48 + 48)


def test_a_part_that_is_detached() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.body(x).detach())
            return out

    assert macs(Detached(), 3, 4) == (144, 48)


def test_recurrent_networks_go_back_through_time() -> None:
    steps, batch, gates = 5, 4, 4 * 16
    weights = steps * batch * gates * (8 + 16)
    through = (steps - 1) * batch * gates * 16  # the first state wants no gradient
    assert macs(nn.LSTM(8, 16), steps, batch, 8) == (weights, weights + through)


def test_attention() -> None:
    """(2, 4, 8): four projections of 8 by 8 and two products of 4 by 4 by 8 a sample."""
    inner = nn.MultiheadAttention(8, 2, batch_first=True)
    module = Using(inner, lambda attention, x: attention(x, x, x, need_weights=False)[0])
    projections, products = 2 * 4 * 4 * 64, 2 * 2 * 4 * 4 * 8
    forward, backward = macs(module, 2, 4, 8)
    assert forward == projections + products
    # The shared input wants no gradient: that of the three input projections is for their weights alone.
    assert backward == 3 * projections // 4 + 2 * projections // 4 + 2 * products


def test_normalisation_is_in_training_mode() -> None:
    n = 2 * 8 * 4
    assert step(nn.BatchNorm1d(8).eval(), 2, 8, 4).forward_flops == 5 * n
    assert step(nn.BatchNorm1d(8).eval(), 2, 8, 4).backward_flops == 8 * n


def test_every_output_is_part_of_the_loss() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"a": self.a(x), "rest": [self.b(x), None, 3], "chosen": self.b(x).argmax(-1)}

    assert macs(Two(), 3, 4) == (96 + 2 * 24, 96 + 24)


def test_complex_numbers() -> None:
    counted = count_training(nn.Linear(4, 2, dtype=torch.complex64), Inputs((TensorSpec((3, 4), "complex64"),)))
    assert counted.estimated is None
    assert (counted.forward_macs, counted.backward_macs) == (24, 24)


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


def test_liveness_of_a_single_layer() -> None:
    """Its output, the loss and its gradient, then those of weight and bias; the input is not counted, nor are weights."""
    y, loss, of_loss, of_weight, of_bias = 4 * 3 * 8, 4, 4, 4 * 4 * 8, 4 * 8
    live = step(nn.Linear(4, 8), 3, 4).liveness
    assert live is not None
    assert live.peak_bytes == y + loss + of_loss + of_weight + of_bias
    assert live.input_bytes == 48


def test_activations_are_kept_for_the_backward() -> None:
    """Of sigmoids the results, all of them until the backward begins."""
    module = nn.Sequential(*[layer for _ in range(10) for layer in (nn.Linear(4, 4), nn.Sigmoid())])
    one = 4 * 100 * 4
    live = step(module, 100, 4).liveness
    assert live is not None
    assert 10 * one < live.peak_bytes < 15 * one


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool, depth: int = 1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()) for _ in range(depth))
        self.head = nn.Linear(4, 2)
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        out: torch.Tensor = self.head(x)
        return out


def test_checkpoints_are_computed_again() -> None:
    forward, again = 48 + 24, 48
    assert macs(Checkpointed(False), 3, 4) == (forward, 48 + 2 * 24 + again)


def test_checkpoints_save_memory() -> None:
    class Wide(nn.Module):
        def __init__(self, saves: bool) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(*[nn.Linear(4, 4), nn.Sigmoid()] * 5) for _ in range(4))
            self.saves = saves

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.saves else block(x)
            return x

    plain, saving = step(Wide(False), 100, 4).liveness, step(Wide(True), 100, 4).liveness
    assert plain is not None
    assert saving is not None
    assert saving.peak_bytes < 0.6 * plain.peak_bytes


def test_reentrant_checkpoints_are_computed_again() -> None:
    """The input of the first wants a gradient, without which torch gives none to what is inside."""
    given = torch.zeros(3, 4, requires_grad=True)
    assert macs(Checkpointed(True), 3, 4, grad=True) == (48 + 24, 2 * 48 + 2 * 24 + 48)
    assert macs(Checkpointed(True, depth=2), 3, 4, grad=True) == (2 * 48 + 24, 2 * (2 * 48 + 48) + 2 * 24)
    module = Checkpointed(True)
    plain = macs(Checkpointed(False), 3, 4, grad=True)
    assert (count_training(module, Inputs((given,))).backward_macs, given.grad) == (plain[1], None)
    assert all(parameter.grad is None for parameter in module.parameters())
    reentrant, other = step(Checkpointed(True, 8), 100, 4, grad=True), step(Checkpointed(False, 8), 100, 4, grad=True)
    assert reentrant.backward_flops == other.backward_flops


# What cannot be counted


@torch.library.custom_op("sweeprof_training::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halved.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Halving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = halved(self.linear(x))
        return out


def test_an_operator_without_a_backward_makes_it_an_estimate() -> None:
    counted = count_training(Halving(), Inputs((TensorSpec((3, 4)),)))
    assert counted.estimated is not None
    assert counted.estimated.startswith("the backward does not run on shapes: ")
    assert "sweeprof_training" in counted.estimated
    assert (counted.forward_macs, counted.backward_macs) == (96, 2 * 96)
    assert (counted.forward_flops, counted.backward_flops) == (216, 2 * 216)
    assert counted.liveness is None
    assert counted.uncovered == {"sweeprof_training::halved": 1}


def test_a_forward_that_needs_values_makes_it_an_estimate() -> None:
    module = nn.Sequential(nn.Linear(4, 8), Functional(lambda x: x if x.sum().item() else -x))
    counted = count_training(module, Inputs((torch.ones(3, 4),)))
    assert counted.estimated is not None
    assert "item()" in counted.estimated
    assert (counted.forward_macs, counted.backward_macs) == (96, 192)


@pytest.mark.parametrize("is_training", [False, True])
def test_the_forward_of_an_estimate_is_in_training_mode(is_training: bool) -> None:
    """Statistics are computed, and dropout applied, whatever mode the caller left the model in; its own are not changed."""
    asking = Functional(lambda x: x if x.sum().item() else -x)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), asking).train(is_training)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    counted = count_training(module, Inputs((torch.rand(3, 4),)))
    assert counted.estimated is not None
    outputs = 3 * 8
    assert counted.forward_flops == 2 * 4 * outputs + (1 + 5 + 2 + 1) * outputs  # bias, norm, dropout, sum
    assert [inner.training for inner in module.modules()] == [is_training] * 5
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("module", [nn.ReLU(), nn.Linear(4, 2).requires_grad_(False)])
def test_no_parameter_to_train(module: nn.Module) -> None:
    with pytest.raises(Unsupported, match="no parameter requires a gradient"):
        count_training(module, Inputs((TensorSpec((3, 4)),)))


@pytest.mark.parametrize(
    "function",
    [
        torch.no_grad()(lambda layer, x: layer(x)),
        lambda layer, x: layer(x).detach(),
        lambda layer, x: None,
        lambda layer, x: layer(x).argmax(-1),
    ],
)
def test_no_output_to_train(function: Any) -> None:
    """Twice the forward would be a number for what does not exist."""
    module = Using(nn.Linear(4, 2), function)
    with pytest.raises(Unsupported, match="no output depends on a parameter that requires a gradient"):
        count_training(module, Inputs((TensorSpec((3, 4)),)))


def test_a_model_that_raises() -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no luck")

    with pytest.raises(ArithmeticError, match="no luck"):
        count_training(nn.Sequential(nn.Linear(4, 2), Functional(raises)), Inputs((TensorSpec((3, 4)),)))


def test_lazy_modules() -> None:
    module = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))
    assert macs(module, 3, 4) == (144, 192)
    assert isinstance(module[0], nn.LazyLinear)


def test_scripted_modules_have_an_estimated_backward() -> None:
    with pytest.warns((DeprecationWarning, FutureWarning), match=r"torch\.jit\.script"):
        module = torch.jit.script(mlp())
    counted = count_training(module, Inputs((TensorSpec((3, 4)),)))
    assert counted.forward_macs == 144
    assert counted.estimated is not None
    assert counted.backward_macs == 288


# The model is left as it was


def test_nothing_is_left_behind() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 4)).eval()
    module[2].train()
    module[3].weight.requires_grad_(False)
    module[0].weight.grad = kept = torch.ones(4, 4)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    attributes = [dict(vars(inner)) for inner in module.modules()]
    given = torch.ones(3, 4, requires_grad=True)
    random = torch.get_rng_state()
    counted = count_training(module, Inputs((given,)))
    assert counted.estimated is None
    assert [dict(vars(inner)) for inner in module.modules()] == attributes
    assert [inner.training for inner in module] == [False, False, True, False]
    assert module[0].weight.grad is kept
    assert module[0].bias.grad is module[3].bias.grad is given.grad is None
    assert not module[3].weight.requires_grad
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.is_grad_enabled()


def test_nothing_is_left_on_a_model_and_an_input_on_meta() -> None:
    with torch.device("meta"):
        module, given = mlp(), torch.ones(3, 4, requires_grad=True)
    assert count_training(module, Inputs((given,))).backward_macs == 288
    assert given.grad is None
    assert all(parameter.grad is None for parameter in module.parameters())


def test_gradients_may_be_switched_off_around_it() -> None:
    with torch.no_grad():
        assert macs(mlp(), 3, 4) == (144, 192)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        assert macs(mlp(), 3, 4) == (144, 192)
        assert torch.is_inference_mode_enabled()


def test_a_forward_that_takes_gradients_itself() -> None:
    """Products of a backward within the forward are the forward's."""

    def penalty(layer: Any, x: torch.Tensor) -> torch.Tensor:
        given = torch.zeros_like(x, requires_grad=True)
        (found,) = torch.autograd.grad(functional.silu(layer(given)).sum(), given, create_graph=True)
        return found.square().sum()

    counted = count_training(Using(nn.Linear(4, 2, bias=False), penalty), Inputs((TensorSpec((3, 4)),)))
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


class Packed(nn.Module):
    """A recurrent network on sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(4, 6, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return padded


@pytest.mark.parametrize("batch", [1, 4000])
def test_packed_sequences_go_back_too(batch: int) -> None:
    """10 steps of three sequences: a gradient of W and of U in each, and of h in the 7 that follow others."""
    lengths = torch.tensor([5, 2, 3] * batch)
    counted = count_training(Packed(), Inputs((torch.zeros(3 * batch, 5, 4), lengths)))
    assert counted.estimated is None
    assert counted.forward_macs == batch * 10 * 6 * (4 + 6)
    assert counted.backward_macs == batch * (10 * 6 * 4 + 10 * 36 + 7 * 36)


class Transcriber(nn.Module):
    """Returns its loss: connectionist temporal classification, with targets of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 6)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.first(x)).log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(scores, ids, frames, lengths)


def test_a_model_whose_loss_compares_sequences() -> None:
    module = Transcriber()
    lengths = torch.tensor([5, 3, 4])
    given = (torch.randn(3, 20, 8), torch.randint(1, 6, (3, 9)), torch.full((3,), 20), lengths)
    counted = count_training(module, Inputs(given))
    assert counted.estimated is None
    assert sorted(counted.uncovered) == ["_ctc_loss", "_ctc_loss_backward"]
    forward = 3 * 20 * (8 * 16 + 16 * 6)
    assert (counted.forward_macs, counted.backward_macs) == (forward, 2 * forward - 3 * 20 * 8 * 16)


@pytest.mark.parametrize("overload", ["", ".Tensor"])
def test_shapes_of_the_loss_of_sequences(overload: str) -> None:
    scores, ids = torch.randn(20, 3, 6).log_softmax(-1), torch.randint(1, 6, (3, 9))
    frames, lengths = torch.full((3,), 20), torch.tensor([5, 3, 4])
    given = (ids, frames, lengths) if overload else (ids, frames.tolist(), lengths.tolist())
    operator, name = (torch.ops.aten._ctc_loss, overload.removeprefix(".") or "default")
    wanted = getattr(operator, name)(scores, *given)
    found = UNKNOWN_TO_TORCH[f"aten::_ctc_loss{overload}"]((scores.to("meta"), *given), {})
    assert [(made.shape, made.stride()) for made in found] == [(made.shape, made.stride()) for made in wanted]
    gradient = getattr(torch.ops.aten._ctc_loss_backward, name)(torch.ones(3), scores, *given, *wanted, 0)
    made = UNKNOWN_TO_TORCH[f"aten::_ctc_loss_backward{overload}"]((torch.ones(3), scores.to("meta"), *given), {})
    assert (made.shape, made.stride(), made.is_meta) == (gradient.shape, gradient.stride(), True)


def test_each_operand_of_a_bilinear_form_costs_as_much_as_the_forward() -> None:
    """38 samples, 5 and 7 numbers, 3 outputs: contracted over the first numbers, then over the second."""
    forward = 38 * 3 * (5 + 1) * 7
    for wants in (False, True):
        inputs = Inputs(tuple(torch.zeros(38, width, requires_grad=wants) for width in (5, 7)))
        counted = count_training(nn.Bilinear(5, 7, 3), inputs)
        assert (counted.forward_macs, counted.backward_macs) == (forward, (3 if wants else 1) * forward)


class Formulated(nn.Linear):
    """Has a formula below."""


def test_a_formula_holds_for_the_forward_of_a_step_too() -> None:
    formulas = Formulas({Formulated: lambda module, inputs, outputs: Cost(macs=1000, flops=3000)})
    counted = count_training(Formulated(4, 4), Inputs((TensorSpec((2, 4)),)), formulas)
    assert (counted.forward_macs, counted.forward_flops) == (1000, 3000)
    assert counted.backward_macs == 32


COUNTED_TWICE = """
import sys
import torch
from torch import nn
from sweeprof.backends.torch.counting import count_layers
from sweeprof.backends.torch.training import count_training
from sweeprof.measuring.inputs import Inputs, TensorSpec

class Log(nn.Linear):
    def forward(self, x):
        for _ in range(3):
            x = torch.logaddexp(super().forward(x), x)
        return x

class Mean(nn.Conv2d):
    def forward(self, x):
        return super().forward(super().forward(x).relu()).relu().mean((2, 3))

assert "torch._dynamo" not in sys.modules
inputs = Inputs((TensorSpec((4, 64, 32, 32)),))
count, module = {"forward": (count_layers, Log(32, 32)), "training": (count_training, Mean(64, 64, 1))}[sys.argv[1]]
print(*(count(module, inputs).liveness.peak_bytes for _ in range(2)))
assert "torch._dynamo" in sys.modules
"""


@pytest.mark.parametrize("kind", ["forward", "training"])
def test_the_import_of_the_compiler_keeps_nothing_alive_that_is_counted(kind: str) -> None:
    """Shape rules of torch import it when they first run, as in the process of a trial."""
    done = subprocess.run([sys.executable, "-c", COUNTED_TWICE, kind], capture_output=True, text=True, check=True)
    first, again = map(int, done.stdout.split())
    assert first == again
    if kind == "forward":  # the input of logaddexp, its other input and its result
        assert first == 3 * 4 * 64 * 32 * 32 * 4
