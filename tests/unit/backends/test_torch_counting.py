"""Counts of torch modules against formulas written out by hand, and against ``torch.utils.flop_counter``."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from sweeprof.backends.torch.counting import count_built, count_layers
from sweeprof.backends.torch.state import unchanged
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable

HAND = runpy.run_path(str(Path(__file__).parents[1] / "zoo" / "hand_counts.py"))


def counted(build: Callable[[], nn.Module], *shape: int, method: str = "shapes") -> LayerTable:
    table = count_built(build, Inputs((TensorSpec(shape),)))
    assert table.method.partition(":")[0] == method
    return table


def complete(build: Callable[[], nn.Module], *shape: int) -> LayerTable:
    table = counted(build, *shape)
    assert table.uncovered == {}
    return table


def row(table: LayerTable, path: str, call: int = 0) -> LayerRow:
    (found,) = [r for r in table.rows if (r.path, r.call) == (path, call)]
    return found


class Functional(nn.Module):
    """A module without parameters that applies a function."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    ("build", "shape", "macs"),
    [
        (lambda: nn.Linear(8, 32), (1, 8), 8 * 32),
        (lambda: nn.Linear(8, 32, bias=False), (1, 8), 8 * 32),
        (lambda: nn.Linear(4, 8), (2, 3, 4), 2 * 3 * 4 * 8),
        (lambda: nn.Linear(4, 8), (4,), 4 * 8),
        (lambda: nn.Conv1d(2, 4, 2), (8, 2, 9), 8 * 4 * 8 * (2 * 2)),
        (lambda: nn.Conv2d(2, 4, 2, groups=2, bias=False), (8, 2, 8, 8), 8 * 4 * 7 * 7 * (1 * 2 * 2)),
        (lambda: nn.Conv2d(3, 4, 3), (3, 8, 8), 4 * 6 * 6 * (3 * 3 * 3)),  # unbatched
        (lambda: nn.Conv2d(3, 6, 3, padding="same"), (2, 3, 9, 7), 2 * 6 * 9 * 7 * (3 * 3 * 3)),
        (lambda: nn.Conv2d(3, 6, 3, dilation=2), (2, 3, 9, 9), 2 * 6 * 5 * 5 * (3 * 3 * 3)),
        (lambda: nn.Conv2d(3, 6, (3, 5), (2, 1), (1, 2)), (2, 3, 9, 9), 2 * 6 * 5 * 9 * (3 * 3 * 5)),
        (lambda: nn.Conv2d(4, 8, 3, groups=4), (1, 4, 8, 8), 8 * 6 * 6 * (1 * 3 * 3)),  # depthwise, two each
        (lambda: nn.Conv3d(2, 3, 2), (2, 2, 4, 5, 6), 2 * 3 * 3 * 4 * 5 * (2 * 2 * 2 * 2)),
        (lambda: nn.ConvTranspose2d(4, 6, 4, 2, 1), (2, 4, 8, 8), 2 * 4 * 8 * 8 * (6 * 4 * 4)),  # 49,152
        (lambda: nn.ConvTranspose1d(4, 6, 3, 2), (2, 4, 8), 2 * 4 * 8 * (6 * 3)),
        (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), (1, 4, 5, 5), 4 * 5 * 5 * (3 * 3 * 3)),
        (lambda: nn.GRU(8, 16), (5, 4, 8), 5 * 4 * 3 * 16 * (8 + 16)),  # 23,040
        (lambda: nn.GRU(8, 16, num_layers=2), (5, 4, 8), 53_760),
        (lambda: nn.GRUCell(8, 16), (4, 8), 4 * 3 * 16 * (8 + 16)),  # 4,608
        (lambda: nn.LSTM(8, 16, bidirectional=True), (5, 4, 8), 2 * 5 * 4 * 4 * 16 * (8 + 16)),  # 61,440
        (lambda: nn.LSTMCell(8, 16), (4, 8), 4 * 4 * 16 * (8 + 16)),
        (lambda: nn.RNN(8, 16), (5, 4, 8), 5 * 4 * 16 * (8 + 16)),
    ],
)
def test_layers_by_hand(build: Callable[[], nn.Module], shape: tuple[int, ...], macs: int) -> None:
    table = complete(build, *shape)
    assert table.macs == macs
    assert table.params == sum(p.numel() for p in build().parameters())


@pytest.mark.parametrize(
    ("build", "shape", "macs"),
    [
        (lambda: nn.ConvTranspose2d(4, 6, 4, 2, 1), (2, 4, 8, 8), 49_152),
        (lambda: nn.LSTM(8, 16, bidirectional=True), (5, 4, 8), 61_440),
        (lambda: nn.GRU(8, 16), (5, 4, 8), 23_040),
        (lambda: nn.Conv2d(2, 4, 2, groups=2, bias=False), (8, 2, 8, 8), 6_272),
        (lambda: nn.Conv2d(3, 4, 3), (3, 8, 8), 3_888),
        (lambda: nn.Conv1d(2, 4, 2), (8, 2, 9), 1_024),
        (lambda: nn.Linear(4, 8), (2, 3, 4), 192),
    ],
)
def test_the_acceptance_numbers(build: Callable[[], nn.Module], shape: tuple[int, ...], macs: int) -> None:
    """Numbers counted by hand: the formulas above must not merely agree with the code."""
    assert complete(build, *shape).macs == macs


def test_parameters_and_bytes() -> None:
    table = complete(lambda: nn.Linear(8, 32), 1, 8)
    assert (table.params, table.trainable, table.params_bytes) == (288, 288, 1152)
    (only,) = table.rows
    assert (only.path, only.type, only.depth, only.call) == (ROOT, "Linear", 0, 0)
    assert (only.input_shapes, only.output_shapes) == (((1, 8),), ((1, 32),))


def test_mixed_types_are_each_counted_in_their_own_bytes() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), Functional(lambda x: x.half()), nn.Linear(2, 2).half())

    assert complete(build, 1, 2).params_bytes * 8 == 288


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.ReLU(), (2, 8)),
        (nn.GELU(), (2, 8)),
        (nn.Softmax(-1), (2, 8)),
        (nn.BatchNorm2d(3), (2, 3, 8, 8)),
        (nn.LayerNorm(8), (2, 8)),
        (nn.GroupNorm(3, 6), (2, 6, 8)),
        (nn.MaxPool2d(2), (2, 3, 8, 8)),
        (nn.AvgPool2d(2), (2, 3, 8, 8)),
        (nn.AdaptiveAvgPool2d(2), (2, 3, 9, 9)),
        (nn.MaxPool1d(2), (2, 3, 8)),
        (nn.AvgPool1d(2), (2, 3, 8)),
        (nn.AdaptiveAvgPool1d(2), (2, 3, 8)),
        (nn.Flatten(), (2, 3, 8)),
        (nn.Dropout(), (2, 3, 8)),
        (nn.ReflectionPad2d(1), (2, 3, 8, 8)),
        (nn.PixelShuffle(2), (2, 4, 8, 8)),
        (nn.Upsample(scale_factor=2), (2, 4, 8, 8)),
    ],
)
def test_what_does_no_multiply_accumulate_is_covered(module: nn.Module, shape: tuple[int, ...]) -> None:
    assert complete(lambda: module.to("meta"), *shape).macs == 0


def test_matrix_products_wherever_they_are_written() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:  # (2, 3, 4)
        y = x @ x.transpose(1, 2)  # 2·3·3·4
        y = torch.bmm(y, x)  # 2·3·4·3
        y = torch.einsum("bij,bkj->bik", y, x)  # 2·3·3·4
        y = functional.linear(y, torch.ones(5, 3, device=y.device))  # 2·3·5·3
        return torch.matmul(y, torch.ones(5, 7, device=y.device))  # 2·3·7·5

    table = complete(lambda: Functional(forward), 2, 3, 4)
    assert table.macs == 72 + 72 + 72 + 90 + 210


def test_scaled_dot_product_attention() -> None:
    table = complete(lambda: Functional(lambda x: functional.scaled_dot_product_attention(x, x, x)), 2, 2, 16, 8)
    assert table.macs == 2 * (2 * 2 * 16 * 16 * 8) == 16_384


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_a_mask_counts_the_same(causal: bool) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x, is_causal=causal)

    assert complete(lambda: Functional(forward), 2, 2, 16, 8).macs == 16_384


def test_transformer_encoder_layer() -> None:
    batch, length, width, hidden = 2, 5, 16, 32
    table = complete(lambda: nn.TransformerEncoderLayer(width, 4, hidden, batch_first=True), batch, length, width)
    projections = batch * length * (3 * width * width + width * width)
    attention = 2 * batch * length * length * width
    feed_forward = 2 * batch * length * width * hidden
    assert table.macs == projections + attention + feed_forward


def test_transformer_encoder() -> None:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    single = complete(lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2, 5, 16)
    assert complete(build, 2, 5, 16).macs == 3 * single.macs


def test_multi_head_attention() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x, x, x)

    assert complete(Attention, 2, 5, 16).macs == 2 * 5 * 4 * 16 * 16 + 2 * 2 * 5 * 5 * 16


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(self.linear(x))
        return result


def test_a_reused_layer_has_a_row_per_call() -> None:
    table = complete(Twice, 1, 4)
    assert table.macs == 32
    assert [(r.path, r.call, r.macs, r.params) for r in table.rows] == [
        (ROOT, 0, 0, 0),
        ("linear", 0, 16, 20),
        ("linear", 1, 16, 0),
    ]
    assert table.params == 20


def test_a_layer_shared_by_three_parents() -> None:
    def build() -> nn.Module:
        shared = nn.Linear(100, 100)
        return nn.Sequential(nn.Sequential(shared), nn.Sequential(shared), nn.Sequential(shared))

    table = complete(build, 1, 100)
    assert table.macs == 30_000
    assert table.params == 10_100


def test_tied_weights_count_once_and_compute_twice() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(10, 4, bias=False)
            self.out = nn.Linear(10, 4, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> Any:
            return self.embed(x) + self.out(x)

    table = complete(Tied, 3, 10)
    assert (table.params, table.macs) == (40, 2 * 3 * 40)


def test_a_transposed_view_is_tied_too() -> None:
    """Each tensor counts once, also if tied by its storage."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(10, 4))
            self.again = nn.Parameter(self.weight.detach().t())

        def forward(self, x: torch.Tensor) -> Any:
            return x @ self.weight @ self.again

    assert complete(Tied, 3, 10).params == 40


def test_frozen_parameters_are_parameters() -> None:
    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        model[0].requires_grad_(False)
        return model

    table = complete(build, 1, 4)
    assert (table.params, table.trainable) == (20 + 10, 10)
    assert row(table, "0").trainable == 0


def test_moving_statistics_are_buffers() -> None:
    table = complete(lambda: nn.Sequential(nn.BatchNorm1d(5)), 2, 5)
    assert (table.params, row(table, "0").buffers) == (10, 11)  # mean, variance and the number of batches


def test_a_buffer_that_is_not_saved_is_not_counted() -> None:
    def build() -> nn.Module:
        module = Functional(lambda x: x)
        module.register_buffer("kept", torch.zeros(3))
        module.register_buffer("scratch", torch.zeros(100), persistent=False)
        return module

    assert complete(build, 1).rows[0].buffers == 3


def test_a_module_that_is_never_called_has_a_row() -> None:
    def build() -> nn.Module:
        module = Functional(lambda x: x)
        module.spare = nn.Linear(4, 2)
        return module

    table = complete(build, 1, 4)
    spare = row(table, "spare", -1)
    assert (spare.params, spare.macs, spare.output_shapes) == (10, 0, ())
    assert table.params == 10


class DependsOnValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x) if x.isfinite().all().item() else self.linear(self.linear(x))
        return result


def test_what_depends_on_values_is_run_for_real() -> None:
    table = counted(DependsOnValues, 2, 4, method="real forward")
    assert (table.macs, table.params, table.uncovered) == (32, 20, {})


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: torch.linalg.inv_ex(x)[0], {"linalg_inv_ex": 1}),
        (torch.linalg.inv, None),
        (torch.linalg.svdvals, None),
    ],
)
def test_an_operator_without_a_formula_is_listed(
    function: Callable[[torch.Tensor], Any], names: dict[str, int] | None
) -> None:
    table = count_built(lambda: Functional(function), Inputs((TensorSpec((4, 4), "float32"),)))
    assert table.uncovered == names if names else table.uncovered


def hooks(module: nn.Module) -> int:
    return sum(
        len(getattr(m, name))
        for m in module.modules()
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs")
    )


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear(x)
        raise RuntimeError("no luck")


def test_a_layer_that_was_added_meanwhile_is_put_back_like_the_others() -> None:
    model = nn.Sequential(nn.ReLU())
    with unchanged(model):
        added = nn.ReLU()
        model.append(added)
        with unchanged(model):
            vars(added)["note"] = "of the forward"
        assert list(model.children())[1:] == [added]
        assert "note" not in vars(added)
    assert len(model) == 1


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("build", [lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), Raises])
def test_nothing_is_left_behind(build: Callable[[], nn.Module], fast: bool) -> None:
    """The functions of torch are the originals after counting."""
    names: list[tuple[Any, str]] = [
        (torch, "bmm"),
        (functional, "linear"),
        (torch.Tensor, "__matmul__"),
        (nn.Module, "__call__"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    attributes: list[tuple[nn.Module, set[str]]] = []

    def built() -> nn.Module:
        module = build()
        attributes.extend((m, set(vars(m))) for m in module.modules())
        return module

    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        try:
            count_built(built, Inputs((TensorSpec((1, 4), "float32"),)))
        except RuntimeError as error:
            assert str(error) == "no luck"  # noqa: PT017  # the other module raises nothing
        assert torch.backends.mha.get_fastpath_enabled() is fast
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert [getattr(owner, name) for owner, name in names] == before
    assert attributes
    assert all(hooks(m) == 0 and set(vars(m)) == names for m, names in attributes)
    assert torch.get_default_device() == torch.device("cpu")
    assert torch.is_grad_enabled()


def test_the_models_own_error_comes_through() -> None:
    with pytest.raises(RuntimeError, match="no luck"):
        count_built(Raises, Inputs((TensorSpec((1, 4), "float32"),)))


def test_counting_twice_gives_the_same() -> None:
    model = Twice()
    first = count_built(lambda: model, Inputs((TensorSpec((1, 4), "float32"),)))
    assert count_built(lambda: model, Inputs((TensorSpec((1, 4), "float32"),))) == first


def test_token_inputs() -> None:
    table = count_built(
        lambda: nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)), Inputs((TensorSpec((2, 3), "int64"),))
    )
    assert (table.macs, table.params, table.uncovered) == (2 * 3 * 4 * 2, 50, {})


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("name", sorted(HAND["MACS"]))
def test_the_zoo_is_as_counted_by_hand(name: str, batch: int) -> None:
    table = complete(import_module(f"sweeprof.zoo.{name}").torch_model, batch, 1, 32, 32)
    assert table.macs == batch * HAND["MACS"][name]
    assert table.params == table.trainable == HAND["PARAMS"][name]


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet18(stem: list[nn.Module], classes: int) -> nn.Module:
    blocks = [Block(max(64, n // (2 if i == 0 and n > 64 else 1)), n, 2 if i == 0 and n > 64 else 1)
              for n in (64, 128, 256, 512) for i in range(2)]  # fmt: skip
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def test_resnet18_of_imagenet() -> None:
    def build() -> nn.Module:
        stem: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        return resnet18([*stem, nn.MaxPool2d(3, 2, 1)], 1000)

    table = complete(build, 1, 3, 224, 224)
    assert (table.params, table.macs) == (11_689_512, 1_814_073_344)


def test_resnet18_of_cifar100() -> None:
    def build() -> nn.Module:
        return resnet18([nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 100)

    table = complete(build, 1, 3, 32, 32)
    assert (table.params, table.macs) == (11_220_132, 555_468_800)
    assert sum(r.buffers for r in table.rows) == 9_620


def test_a_model_far_larger_than_the_machine() -> None:
    table = complete(lambda: nn.Sequential(*[nn.Linear(10**6, 10**6, bias=False) for _ in range(4)]), 1, 10**6)
    assert table.params == table.macs == 4 * 10**12


sizes = st.integers(1, 3)


@settings(max_examples=40, deadline=None)
@given(
    dimensions=st.integers(1, 3),
    batch=sizes,
    groups=sizes,
    inputs=sizes,
    outputs=sizes,
    kernel=sizes,
    stride=sizes,
    padding=st.integers(0, 2),
    dilation=sizes,
    bias=st.booleans(),
    transposed=st.booleans(),
    size=st.integers(7, 10),
)
def test_convolutions_of_any_shape(  # noqa: PLR0917
    dimensions: int, batch: int, groups: int, inputs: int, outputs: int, kernel: int, stride: int, padding: int,
    dilation: int, bias: bool, transposed: bool, size: int,
) -> None:  # fmt: skip
    kind: Any = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dimensions}d")
    keywords = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}

    def build() -> nn.Module:
        made: nn.Module = kind(groups * inputs, groups * outputs, kernel, **keywords)
        return made

    shape = (batch, groups * inputs, *[size] * dimensions)
    table = complete(build, *shape)
    with torch.device("meta"), FlopCounterMode(display=False) as oracle:
        result = build()(torch.empty(shape))
    assert 2 * table.macs == oracle.get_total_flops()
    spread, over = (math.prod(shape), outputs) if transposed else (result.numel(), inputs)
    assert table.macs == spread * over * kernel**dimensions
    assert table.rows[0].output_shapes == (tuple(result.shape),)


class Reordered(nn.Module):
    """Returns the result of a layer, (100, 64) and 25,600 bytes, and what a function makes of it."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self._function = function

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.layer(x)
        return made, self._function(made)


@pytest.mark.parametrize(
    ("function", "copied"),
    [
        (lambda made: made.reshape(-1), 0),
        (lambda made: made.t().reshape(-1), 25_600),
        (lambda made: made.t().flatten(), 25_600),
        (lambda made: made.contiguous(), 0),
        (lambda made: made.t().contiguous(), 25_600),
        (lambda made: made.to(torch.float32), 0),
        (lambda made: made.to(torch.float64), 51_200),
        (lambda made: made.chunk(2)[1], 0),
    ],
)
def test_memory_of_a_result_that_is_a_view_or_a_copy(
    function: Callable[[torch.Tensor], torch.Tensor], copied: int
) -> None:
    """In inference mode torch runs these as operators whose schema says that the result is a view."""
    table = count_layers(Reordered(function).eval(), Inputs((TensorSpec((100, 64)),)))
    assert table.liveness is not None
    assert table.liveness.peak_bytes == 25_600 + copied
