"""Models that are not plain: each gives numbers or a clear reason, and is left as it was found."""

from __future__ import annotations

import html
import importlib
import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sweeprof
from support.torch_modules import Applied, Functional, undisturbed
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.backends.torch.training import count_training
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.training_config import TrainingConfig
from sweeprof.profiling.session import Data, LiveSession
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import LayerTable

FIGURES = ["compute/macs", "compute/flops", "memory/act_sum_bytes", "compute/coverage"]
WEIGHTS = ["params/total", "params/trainable", "params/buffers", "size/params_bytes", "size/buffers_bytes"]


def table(module: nn.Module, inputs: Any, **given: Any) -> LayerTable:
    """The layers, with every figure there."""
    found = sweeprof.profile(module, inputs, [*FIGURES, *WEIGHTS], strict="error", **given)
    assert {name: m.reason for name, m in found.items() if m.value is None} == {}
    return found.layers


def macs_by_path(layers: LayerTable) -> dict[str, int]:
    return {row.path: row.macs for row in layers.rows if row.macs}


def reason(module: nn.Module, inputs: Any) -> str:
    """Why the forward was not counted, the same for each figure; what needs no forward is there."""
    of_forward = [*FIGURES, "compat/f1", "compat/torchinfo", "memory/footprint_est_bytes"]
    found = sweeprof.profile(module, inputs, [*of_forward, *WEIGHTS])
    assert [found[name].value for name in WEIGHTS] == [
        sum(parameter.numel() for parameter in module.parameters()),
        sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad),
        sum(buffer.numel() for buffer in module.buffers()),
        sum(parameter.nbytes for parameter in module.parameters()),
        sum(buffer.nbytes for buffer in module.buffers()),
    ]
    reasons = {found[name].reason for name in of_forward}
    assert len(reasons) == 1
    (why,) = reasons
    assert why is not None
    return why


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


MLP_MACS = {"0": 3 * 4 * 8, "2": 3 * 8 * 2}


# Models that raise


def raising(error: Exception) -> Any:
    def forward(module: Any, x: torch.Tensor) -> None:
        module.last = module.norm(module.linear(x))
        raise error

    return Applied(forward, linear=nn.Linear(4, 4), norm=nn.BatchNorm1d(4))


def test_the_parameters_of_a_model_that_raises() -> None:
    """They need no forward, which raises as soon as something else is asked for."""
    batch = (torch.ones(3, 4), torch.zeros(3, dtype=torch.long))
    profiler = sweeprof.Profiler(raising(KeyError("mine")), [batch])
    assert [profiler.compute(name).value for name in WEIGHTS] == [28, 28, 9, 112, 40]
    with pytest.raises(KeyError, match="mine"):
        profiler.compute("compute/macs")


def test_a_model_on_meta_that_raises_says_what() -> None:
    """Whether its forward needs values or has a bug cannot be told there."""
    module = raising(KeyError("mine")).to("meta")
    with undisturbed(module):
        said = reason(module, (3, 4))
    assert "the model is on the meta device: KeyError: 'mine'" in said


def test_inputs_of_the_wrong_shape_are_the_models_error() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        sweeprof.profile(mlp(), (3, 5))


# A model is left as it was found


class Touchy(nn.Module):
    """Remembers what it saw, moves statistics, draws numbers, freezes a layer and shares a weight; raises after some calls.

    Half of it is in training mode, with a gradient, a frozen weight, hooks, and a forward of its own as accelerate gives it.
    """

    def __init__(self, calls: int, when: str, needs_values: bool) -> None:
        super().__init__()
        self.linear, self.norm, self.drop, self.late = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 4)
        self.conv, self.attention = nn.Conv2d(2, 2, 3, padding=1), nn.MultiheadAttention(4, 2)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.linear.weight
        self.when, self.needs_values = when, needs_values
        self.seen: dict[str, Any] = {}
        left = iter(range(calls))
        # A profiler puts back what a model holds, but not a function's.
        self.is_over: Callable[[], bool] = lambda: next(left, None) is None
        self.attention.eval()
        self.norm.weight.requires_grad_(False)
        self.linear.weight.grad = torch.ones(4, 4)
        self.register_forward_hook(lambda *_: None)
        self.linear.register_forward_pre_hook(lambda *_: None)
        plain = self.drop.forward
        self.drop.forward = lambda *given: plain(given[0])  # type: ignore[method-assign]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x.view(3, 2, 2, 1)).flatten(1)
        y = self.drop(self.norm(self.tied(self.linear(y))))
        y = self.late(self.attention(y, y, y)[0] + torch.rand_like(y))
        self.late.requires_grad_(False)
        self.seen["last"], self.last = y, y
        if self.needs_values:
            y.sum().item()
        if self.is_over():
            if self.when == "forward":
                self.fail(ArithmeticError("no luck"))
            if self.when == "backward" and y.requires_grad:
                y.register_hook(lambda _: self.fail(KeyboardInterrupt()))  # type: ignore[no-untyped-call]
        return y

    def fail(self, error: BaseException) -> None:
        raise error


CALLS = {"analysis": 0, "training": 0, "timing": 3, "layer_times": 3, "operators": 3, "allocations": 1, "lines": 4}
"""After so many calls of the model a pass is in the middle of its work."""
VARIANTS: list[dict[str, Any]] = [
    {"precision": "int8"},
    {"precision": "bf16", "precision_method": "autocast"},
    {"precision": "bf16", "channels_last": True},
]


@pytest.mark.parametrize(
    ("name", "variant", "needs_values"),
    [
        *((name, {}, False) for name in CALLS),
        *((name, {}, True) for name in ("analysis", "training")),
        *(("timing", variant, False) for variant in VARIANTS),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("mode", "when"), [*itertools.product(("inference", "training"), ("never", "forward")), ("training", "backward")]
)
def test_a_model_is_left_as_it_was_found(
    mode: Any, when: str, name: str, variant: dict[str, Any], needs_values: bool
) -> None:
    model = Touchy(CALLS[name], when, needs_values)
    session = LiveSession(
        backend=TorchBackend(**variant),
        protocol=sweeprof.Protocol(warmup_steps=1, warmup_s=0, sample_s=0, min_samples=2, min_s=0),
        mode=mode,
        training_config=TrainingConfig(lambda parameters: torch.optim.SGD(parameters, lr=1.0)),
        model=model,
        arguments=Inputs((torch.randn(3, 4),)),
        batches=Data.of(None),
    )
    is_refused = variant.get("precision") == "int8" and mode == "training"
    raises: Any = suppress(KeyboardInterrupt)
    if is_refused or when == "forward":
        raises = pytest.raises(sweeprof.Unsupported if is_refused else ArithmeticError)
    with undisturbed(model, "versions"), raises:  # a step of training writes the weights back
        session.run(name)
    assert not torch._C._autograd._profiler_enabled()
    assert torch.backends.mha.get_fastpath_enabled()


# Values that shapes do not have


def kept() -> nn.Module:
    """Its second layer sees as many rows as have a positive sum."""

    def forward(module: Any, x: torch.Tensor) -> Any:
        module.first(x)
        return module.second(x[x.sum(1) > 0])

    return Applied(forward, first=nn.Linear(4, 4), second=nn.Linear(4, 2))


def until() -> nn.Module:
    """Repeats its layer until a value allows to stop."""

    def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
        while x.max() < 8:
            x = 2 * module.layer(x)
        return x

    layer = nn.Linear(4, 4, bias=False)
    nn.init.eye_(layer.weight)
    return Applied(forward, layer=layer)


def test_shapes_that_depend_on_values() -> None:
    x = torch.tensor([[1.0] * 4, [-1.0] * 4, [2.0] * 4])
    module = kept()
    with undisturbed(module):
        layers = table(module, x)
    assert layers.method.startswith("real forward: ")
    assert "nonzero" in layers.method
    assert macs_by_path(layers) == {"first": 3 * 16, "second": 2 * 8}
    assert [row.input_shapes for row in layers.rows if row.path == "second"] == [((2, 4),)]


def test_control_flow_that_depends_on_values() -> None:
    layers = table(until(), torch.ones(1, 4))
    assert layers.method.startswith("real forward: ")
    assert [(row.path, row.call, row.macs) for row in layers.rows] == [
        (ROOT, 0, 0),
        ("layer", 0, 16),
        ("layer", 1, 16),
        ("layer", 2, 16),
    ]


@pytest.mark.parametrize("module", [kept(), until()])
def test_values_are_not_there_on_meta(module: nn.Module) -> None:
    module = module.to("meta")
    said = reason(module, torch.ones(1, 4))
    assert said.startswith("analysis: unsupported: its forward needs values, and the model is on the meta device: ")


def test_layers_are_there_where_the_forward_cannot_be_traced() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(until(), nn.BatchNorm1d(4))).to("meta")
    layers: Any = sweeprof.profile(module, (3, 4), ["params/total"]).layers
    assert [(row.path, row.type, row.params, row.buffers) for row in layers.rows] == [
        (ROOT, "Sequential", 0, 0),
        ("0", "Linear", 20, 0),
        ("1", "Sequential", 0, 0),
        ("1.0", "Applied", 0, 0),
        ("1.0.layer", "Linear", 16, 0),
        ("1.1", "BatchNorm1d", 8, 9),
    ]
    assert {row.path: row.subtree.params for row in layers.rows if row.subtree}["1"] == 24
    assert LayerTable.from_dict(json.loads(json.dumps(layers.to_dict()))).uncounted == layers.uncounted
    with pytest.raises(sweeprof.Unsupported, match="the model is on the meta device"):
        assert layers.macs
    assert layers.to_frame()["macs"].tolist() == [None] * 6
    assert layers.inclusive().rows[0].macs is None
    assert "0 MACs" not in layers.summary()
    for text in (layers.tree(), layers.to_html()):
        assert f"Not counted: {layers.uncounted}" in html.unescape(text)


def test_what_a_builder_imports_has_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder runs on meta; tensors of a module that it imports are there for the whole process."""
    (tmp_path / "sizes_of_anchors.py").write_text("import torch\n\nSIZES = torch.tensor([1, 2, 4])\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def build() -> nn.Module:
        sizes = importlib.import_module("sizes_of_anchors").SIZES
        linear = nn.Linear(4, 8)
        return Functional(lambda x: sum(linear(x) for _ in range(sum(sizes.tolist()))))

    rows = TorchBackend().analyze(build, Inputs((TensorSpec((3, 4)),)), None, DEFAULTS).rows
    assert sum(row.macs or 0 for row in rows) == 7 * 3 * 4 * 8


def test_a_real_model_with_inputs_on_meta_is_run_on_zeros() -> None:
    layers = table(kept(), torch.ones(3, 4, device="meta"))
    assert layers.method.startswith("real forward: ")
    assert macs_by_path(layers) == {"first": 3 * 16}


def test_constants_of_the_forward_have_values() -> None:
    """What depends on no input may be asked for, such as a length or a mask."""

    def masked(x: torch.Tensor) -> torch.Tensor:
        steps = int(torch.tensor([1, 2, 3]).sum().item())
        keep = torch.arange(x.shape[1]) < 2
        return x.repeat(steps, 1) @ torch.ones(4, 2) + keep.sum().item()

    layers = table(Functional(masked), (3, 4))
    assert (layers.method, layers.macs) == ("shapes", 18 * 4 * 2)
    remembered: list[torch.Tensor] = []

    def positioned(x: torch.Tensor) -> torch.Tensor:
        if not remembered:  # an index of positions, for example
            remembered.append(torch.arange(10_000).view(100, 100).flip(0))
        return x + remembered[0].sum()

    assert table(Functional(positioned), (3, 4)).method == "shapes"
    assert remembered[0][0, 0] == 9900


# Values that integers among the inputs have


@pytest.mark.parametrize(
    ("forward", "rows"),
    [
        (lambda x, kept: x[kept > 0] @ torch.ones(4, 4), 3),
        (lambda x, kept: torch.masked_select(x, (kept > 0)[:, None]).view(-1, 4) @ torch.ones(4, 4), 3),
        (lambda x, kept: x.repeat_interleave(kept, 0) @ torch.ones(4, 4), 4),
        (lambda x, kept: [part @ torch.ones(4, 4) for part in x.split(kept.tolist())], 4),
        (lambda x, kept: torch.narrow(x, 0, kept[0], 2) @ torch.ones(4, 4), 2),
        (lambda x, kept: x.repeat(int(kept.to(x.device).numpy().max()), 1) @ torch.ones(4, 4), 8),
        (lambda x, kept: torch.cond(kept.sum() > 3, lambda y: y @ y, lambda y: y + 1, (x,)), 4),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_integers_decide_is_counted_by_their_values(forward: Any, rows: int, device: str) -> None:
    x, kept = torch.ones(4, 4, device=device), torch.tensor([1, 0, 2, 1])
    layers = table(Functional(forward), (x, kept))
    assert (layers.method, layers.macs) == ("shapes", rows * 4 * 4)
    assert kept.tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize(
    "read",
    [
        lambda filled, view: filled.sum().item(),
        lambda filled, view: sum(filled.tolist()),
        lambda filled, view: view.detach().numpy().sum(),
        lambda filled, view: len(filled[filled > 0]),
    ],
)
def test_a_constant_that_was_overwritten_has_no_values(read: Any) -> None:
    """Those that it had before would be wrong."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        filled = torch.zeros(4)
        view = filled.view(2, 2)
        filled.add_(x[0])
        return x.repeat(int(read(filled, view)), 1) @ torch.ones(4, 2)

    layers = table(Functional(forward), torch.ones(3, 4))
    assert layers.method.startswith("real forward: ")
    assert layers.macs == 4 * 3 * 4 * 2


def filled_layer_by_layer(x: torch.Tensor) -> torch.Tensor:
    """As transformers fills its caches, and the rows of experts."""
    joined = torch.zeros(4, 3, 3, device=x.device)
    for index in range(4):
        joined[index] = x @ x
    return joined[1:].flatten(1) @ joined[0].view(9, 1)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_depends_on_the_input_may_be_written_into_a_constant(device: str) -> None:
    layers = table(Functional(filled_layer_by_layer), torch.ones(3, 3, device=device))
    assert (layers.method, layers.macs) == ("shapes", 4 * 27 + 3 * 9)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_constant_that_was_overwritten_is_live_no_longer_than_it_is_referred_to(device: str) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            filled = torch.zeros(100)
            filled[:] = x
            x = filled + 1
        return x

    layers: Any = table(Functional(forward), torch.ones(100, device=device))
    assert layers.method == "shapes"
    assert layers.liveness.peak_bytes == 3 * 400, "the two of a step and the constant of the step before"


# Nothing to count


def test_no_parameters() -> None:
    found = sweeprof.profile(nn.Sequential(nn.ReLU(), nn.Flatten()), (2, 3, 4))
    weights = {name: m.value for name, m in found.items() if name.startswith(("params/", "size/"))}
    assert weights == dict.fromkeys([*WEIGHTS, "params/frozen", "size/params_bits"], 0)
    assert (found["compute/macs"].value, found["compute/flops"].value) == (0, 24)
    assert found.layers.to_frame()["params_share"].isna().all()


def test_nothing_at_all() -> None:
    coverage = sweeprof.profile(nn.Identity(), (2, 3))["compute/coverage"]
    assert coverage.value is None
    assert coverage.reason


@pytest.mark.parametrize("output", [None, "text", [1, (2, {"b": 3})]])
def test_outputs_that_are_no_tensors(output: Any) -> None:
    model = Applied(lambda module, x: (module.layer(x), output)[1], layer=nn.Linear(4, 2))
    layers = table(model, (3, 4))
    assert macs_by_path(layers) == {"layer": 24}
    assert layers.rows[0].output_shapes == ()
    profiler = sweeprof.Profiler(model, [(torch.ones(3, 4), torch.zeros(3, dtype=torch.long))])
    assert "without a tensor" in str(profiler.compute("quality/accuracy").reason)


# Lazy modules


def lazy() -> nn.Sequential:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))


def assert_lazy(module: nn.Sequential) -> None:
    """Still lazy, and able to become a layer for another shape."""
    assert [type(inner) for inner in module] == [nn.LazyConv2d, nn.LazyBatchNorm2d, nn.Flatten, nn.LazyLinear]
    assert all(isinstance(p, nn.UninitializedParameter) for p in module[0].parameters())
    assert module(torch.ones(2, 5, 6, 6)).shape == (2, 2)
    assert module[0].in_channels == 5
    assert module[3].in_features == 4 * 16


def test_lazy_modules_on_shapes() -> None:
    module = lazy()
    layers = table(module, (2, 3, 8, 8))
    assert macs_by_path(layers) == {"0": 2 * 4 * 36 * 27, "3": 2 * 144 * 2}
    assert layers.params == (4 * 27 + 4) + 8 + (144 * 2 + 2)
    assert_lazy(module)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_lazy_modules_for_real(mode: Any) -> None:
    module = lazy()
    batch = (torch.ones(2, 3, 8, 8), torch.zeros(2, dtype=torch.long))
    quick = sweeprof.Protocol(warmup_s=0, min_s=0)
    profiler = sweeprof.Profiler(module, [batch], mode=mode, optimizer="adam", protocol=quick)
    assert profiler.compute("latency/forward").value is not None
    assert profiler.compute("quality/accuracy").value is not None
    assert_lazy(module)


# Compiled, scripted, wrapped


@pytest.mark.parametrize("way", ["script", "trace"])
def test_modules_that_torch_interprets(way: str) -> None:
    with pytest.warns((DeprecationWarning, FutureWarning), match=rf"torch\.jit\.{way}"):
        module = torch.jit.script(mlp()) if way == "script" else torch.jit.trace(mlp(), torch.ones(3, 4))  # type: ignore[no-untyped-call]
    layers = table(module, (3, 4))
    assert (layers.macs, layers.params, layers.uncovered) == (144, 58, {})
    assert layers.flops == 2 * 144 + 3 * 8 + 3 * 2 + 3 * 8


def compiled(module: nn.Module) -> nn.Module:
    made: Any = torch.compile(module, backend="eager")
    assert isinstance(made, nn.Module)
    return made


def compiled_in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="eager")
    return module


def with_hooks(module: nn.Sequential) -> nn.Module:
    """What they return or are given has another number of rows."""
    module[0].register_forward_hook(lambda layer, inputs, output: output[:1])
    module[2].register_forward_pre_hook(lambda layer, inputs: (inputs[0].repeat(5, 1),))
    return module


def within_itself(module: Any) -> nn.Module:
    module[1].above = module
    return module  # type: ignore[no-any-return]


WRAPPED: dict[str, tuple[nn.Module, dict[str, int]]] = {
    "compiled": (compiled(mlp()), MLP_MACS),
    "partly compiled": (
        nn.Sequential(compiled(mlp()), nn.Linear(2, 2)),
        {"0._orig_mod.0": 96, "0._orig_mod.2": 48, "1": 12},
    ),
    "compiled in place": (compiled_in_place(mlp()), MLP_MACS),
    "for several devices": (nn.DataParallel(mlp()), {"module.0": 96, "module.2": 48}),
    "without hooks": (Applied(lambda module, x: module.inner.forward(x), inner=nn.Linear(4, 2)), {"inner": 24}),
    "with hooks": (with_hooks(mlp()), {"0": 96, "2": 5 * 16}),
    "within itself": (within_itself(mlp()), MLP_MACS),
}


@pytest.mark.parametrize("how", WRAPPED)
def test_a_wrapped_module(how: str) -> None:
    module, macs = WRAPPED[how]
    with undisturbed(module):
        layers = table(module, (3, 4))
    assert macs_by_path(layers) == macs
    assert layers.params == sum(parameter.numel() for parameter in module.parameters())
    assert module(torch.ones(3, 4)).shape[1:] == (2,)


# Functions outside any module


def test_what_runs_outside() -> None:
    layers = table(nn.Linear(4, 2), (3, 4), forward=lambda model, x: model(x @ torch.ones(4, 4)).relu())
    assert [(row.path, row.type, row.macs, row.params) for row in layers.rows] == [
        (ROOT, "Linear", 24, 10),
        (OUTSIDE, "", 48, 0),
    ]
    assert layers.flops == 2 * (24 + 48) + 6 + 6


def test_a_step_that_calls_the_model_several_times() -> None:
    layers = table(nn.Linear(4, 4), (3, 4), forward=lambda model, x: model(model(model(x))))
    assert [(row.path, row.call, row.macs, row.params) for row in layers.rows] == [
        (ROOT, 0, 48, 20),
        (ROOT, 1, 48, 0),
        (ROOT, 2, 48, 0),
    ]


# Data of other kinds


quantization: Any = torch.ao.quantization
"""Untyped."""


def dynamic_lstm() -> Any:
    return quantization.quantize_dynamic(nn.Sequential(nn.LSTM(8, 16)).eval(), {nn.LSTM}, dtype=torch.qint8)


def static_convolution() -> Any:
    module = nn.Sequential(quantization.QuantStub(), nn.Conv2d(3, 8, 3), nn.ReLU(), quantization.DeQuantStub())
    module.eval().qconfig = quantization.get_default_qconfig("onednn")
    prepared = quantization.prepare(module)
    prepared(torch.ones(1, 3, 8, 8))
    return quantization.convert(prepared)


@pytest.mark.parametrize(
    ("build", "shape", "uncovered", "weights", "biases"),
    [
        (dynamic_lstm, (5, 4, 8), "quantized_lstm", 64 * (8 + 16), 2 * 64),
        (static_convolution, (2, 3, 8, 8), "quantized::conv2d", 216, 8),
    ],
)
def test_layers_of_eight_bits(
    build: Callable[[], Any], shape: tuple[int, ...], uncovered: str, weights: int, biases: int
) -> None:
    """Weights have one byte, biases four."""
    with pytest.warns(
        (DeprecationWarning, UserWarning)
    ):  # torch warns of what it will remove, and of its own internals
        layers = sweeprof.profile(build(), shape, WEIGHTS).layers
    assert layers.uncovered == {uncovered: 1}
    assert layers.method.startswith("real forward: ")
    assert (layers.macs, layers.params, layers.params_bytes) == (0, weights + biases, weights + 4 * biases)


def five_elements(layout: str) -> torch.Tensor:
    dense = torch.eye(4)
    dense[0, 3] = 2
    return dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_buffer_is_not_counted_as_a_dense_one(layout: str) -> None:
    """A view of it is not possible in inference mode, so that the forward is run outside of it; the backward is estimated."""

    def forward(module: Any, x: torch.Tensor) -> Any:
        return torch.sparse.mm(module.matrix.t(), module.layer.weight * x)

    module = Applied(forward, layer=nn.Linear(2, 4, bias=False))
    module.register_buffer("matrix", five_elements(layout))
    layers = table(module, torch.ones(1))
    assert (layers.macs, layers.buffers) == (5 * 2, 5)
    step = count_training(module, sweeprof.Inputs((torch.ones(1),)))
    assert (step.forward_macs, step.backward_macs) == (5 * 2, 2 * 5 * 2)
    assert step.estimated is not None
