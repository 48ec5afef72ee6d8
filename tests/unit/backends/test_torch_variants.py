"""Variants of torch: each really has its effect, and answers like the plain one."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import sweeprof
from support.planning import planned
from support.torch_modules import Applied
from sweeprof.backends import Compiler, Precision
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.backends.torch.model import PRECISIONS, TorchModel, TorchVariant, quantized
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported, UserError, location_of
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.training_config import TrainingConfig
from sweeprof.zoo.lenet5 import torch_model as lenet5

TOLERANCE = {"fp32": 1e-5, "bf16": 5e-2, "fp16": 1e-2, "int8": 1e-1}
"""Largest difference from the outputs in float32, over the largest of these."""
IMAGES = np.random.default_rng(0).random((4, 1, 32, 32), dtype=np.float32)


pytestmark = pytest.mark.usefixtures("one_thread")


def run(backend: TorchBackend, *given: Any, build: Callable[[], nn.Module] = lenet5) -> tuple[TorchModel, Inputs, Any]:
    """The model that really runs, what it was given, and what it answered."""
    loaded = backend.load(build, "cpu", None)
    batch = loaded.put(Inputs(given))
    with loaded.stepping(batch) as step:
        return loaded, batch, step()


def answer(backend: TorchBackend, *given: Any, build: Callable[[], nn.Module] = lenet5) -> Any:
    """What a model answers, on the host."""
    loaded, _, outputs = run(backend, *given, build=build)
    return loaded.host_outputs(outputs)


@pytest.mark.parametrize("is_channels_last", [False, True])
@pytest.mark.parametrize("precision", TOLERANCE)
def test_a_variant_answers_like_the_plain_one(precision: Precision, is_channels_last: bool) -> None:
    plain = answer(TorchBackend(), IMAGES)
    found = answer(TorchBackend(precision=precision, channels_last=is_channels_last), IMAGES)
    assert found.dtype == np.float32
    difference = np.abs(found - plain).max() / np.abs(plain).max()
    assert difference < TOLERANCE[precision]
    if precision != "fp32":
        assert difference > 0  # it did compute in other numbers


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_precision_is_that_of_weights_inputs_and_outputs(precision: Precision) -> None:
    dtype = PRECISIONS[precision]
    loaded = TorchBackend(precision=precision).load(lenet5, "cpu", 1)
    batch = loaded.put(Inputs((IMAGES, torch.arange(3))))
    assert {parameter.dtype for parameter in loaded.native.parameters()} == {dtype}
    assert [tensor.dtype for tensor in batch.args] == [dtype, torch.int64]
    assert loaded.native(batch.args[0]).dtype == dtype


class Spectral(nn.Module):
    """A Fourier layer: its weight and a buffer are complex, its bias is real."""

    turns: torch.Tensor

    def __init__(self, dtype: torch.dtype = torch.complex64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 4, 8, dtype=torch.complex64, generator=generator).to(dtype))
        self.bias = nn.Parameter(torch.ones(4, 1, dtype=self.weight.real.dtype))
        self.register_buffer("turns", torch.polar(torch.ones(8, dtype=self.bias.dtype), torch.arange(8).to(self.bias)))

    def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x.float())[..., :8] + start
        spectrum = torch.einsum("bim,iom->bom", spectrum, self.weight) * self.turns
        found: torch.Tensor = torch.fft.irfft(spectrum, n=x.shape[-1]) + self.bias
        return found


@pytest.mark.parametrize(
    ("variant", "bias", "dtype"),
    [
        ({"precision": "fp32"}, torch.float32, torch.complex128),
        ({"precision": "bf16"}, torch.bfloat16, torch.complex128),
        ({"precision": "bf16", "precision_method": "autocast"}, torch.float32, torch.complex64),
    ],
    ids=str,
)
def test_complex_numbers_stay_complex(variant: dict[str, Any], bias: torch.dtype, dtype: torch.dtype) -> None:
    build = partial(Spectral, dtype)
    backend = TorchBackend(**variant)
    x, start = torch.linspace(0, 1, 64).view(1, 4, 16).bfloat16().float(), torch.full((8,), 2 + 3j, dtype=dtype)
    loaded, batch, found = run(backend, x, start, build=build)
    with torch.no_grad():
        assert found == pytest.approx(Spectral()(x, start.to(torch.complex64)), abs=1e-5)
    module: Any = loaded.native
    assert {tensor.dtype for tensor in (module.weight, module.turns, batch.args[1])} == {torch.complex64}
    assert module.bias.dtype == bias
    specs = Inputs((TensorSpec((1, 4, 16)), TensorSpec((8,), str(dtype).removeprefix("torch."))))
    table = backend.analyze(build, specs, None, DEFAULTS)
    assert table.params_bytes == 4 * 4 * 8 * 8 + 4 * bias.itemsize


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 8))


def eight_bits(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers from -128 to 127, and the scale of every row: its largest value is 127.5 of them."""
    scale = x.abs().amax(1, keepdim=True) / 127.5
    return (x * (1 / scale)).round().clamp(-128, 127).long(), scale


def by_hand(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """A product of whole numbers."""
    (given, scale), (weight, weight_scale) = eight_bits(x), eight_bits(layer.weight.detach())
    return (given @ weight.T) * scale * weight_scale.T + layer.bias.detach()


def test_torchao_multiplies_integers() -> None:
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    loaded, _, found = run(TorchBackend(precision="int8"), x, build=linear)
    expected = by_hand(linear()[0], x)  # type: ignore[index]
    assert found == pytest.approx(expected, abs=1e-5)
    assert (found - linear()(x)).abs().max() > 1e-4
    assert TorchBackend(precision="int8").settings_in_effect(loaded)["precision method"] == "torchao"


def mixed() -> nn.Module:
    """Layers of sizes that have 4-bit kernels, of sizes that have 8-bit kernels alone, and of others."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 16, bias=False), nn.Linear(16, 10))


def four_bits(weight: torch.Tensor) -> torch.Tensor:
    """Each group of 128 in 16 steps from its least to its largest value; the step and the middle are bfloat16."""
    groups = weight.detach().bfloat16().reshape(-1, 128)
    least = groups.amin(1, keepdim=True)
    step = (groups.amax(1, keepdim=True) - least) / 15
    middle = least + 8 * step
    steps = ((groups - (middle - 8 * step)) / step).round().clamp(0, 15)
    return ((steps - 8).float() * step.float() + middle.float()).reshape(weight.shape)


def test_four_bits_of_groups_of_128() -> None:
    def build() -> Any:
        return mixed()[0]  # type: ignore[index]

    backend = TorchBackend(precision="int4")
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    loaded, batch, found = run(backend, x, build=build)
    with torch.no_grad():
        expected = x @ four_bits(build().weight).T + build().bias
        plain = build()(x)
    largest = plain.abs().max()
    assert (found - expected).abs().max() < 0.008 * largest  # two roundings to bfloat16, which has 8 bits
    assert (expected - plain).abs().max() > 0.03 * largest
    assert batch.args[0].dtype == torch.bfloat16
    assert backend.settings_in_effect(loaded)["precision method"] == "torchao"


def stored_bytes(module: nn.Module) -> int:
    size = 0
    for tensor in module.parameters():
        parts = [tensor]
        if hasattr(tensor, "__tensor_flatten__"):
            parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        size += sum(part.untyped_storage().nbytes() for part in parts)
    return size


@pytest.mark.parametrize(
    ("precision", "expected", "dtypes"),
    [
        # A byte each, 4 bytes of scale and a zero point per row; the biases in float32.
        ("int8", 256 * 32 + 32 * 16 + 16 * 10 + 5 * (32 + 16 + 10) + 4 * (32 + 10), {"int8", "float32"}),
        # 4 bits each, 2 bytes of scale and 2 of zero point per group; the other layers and the biases in bfloat16.
        ("int4", 256 * 32 // 2 + 4 * 2 * 32 + 2 * (32 + 32 * 16 + 16 * 10 + 10), {"int4", "bfloat16"}),
        # A byte each, 4 bytes of scale per row.
        ("fp8", 256 * 32 + 4 * 32 + 32 * 16 + 4 * 16 + 2 * (32 + 16 * 10 + 10), {"float8_e4m3fn", "bfloat16"}),
    ],
)
def test_bytes_of_weights_of_fewer_bits(precision: Precision, expected: int, dtypes: set[str]) -> None:
    """Counted without a device; as much as the tensors take, and as torchao says."""
    inputs = Inputs((TensorSpec((4, 256)),))
    table = TorchBackend(precision=precision).analyze(mixed, inputs, None, DEFAULTS)
    plain = TorchBackend(precision="fp32" if precision == "int8" else "bf16").analyze(mixed, inputs, None, DEFAULTS)
    from torchao.quantization import Float8WeightOnlyConfig, PerRow, quantize_
    from torchao.utils import get_model_size_in_bytes

    if precision == "fp8":  # the weights are stored alike without activations in fp8, which every device can do
        module = mixed().bfloat16()
        config = Float8WeightOnlyConfig(granularity=PerRow(), set_inductor_config=False)
        quantize_(module, config, lambda inner, _: isinstance(inner, nn.Linear) and inner.out_features % 16 == 0)
    else:
        module = TorchBackend(precision=precision).load(mixed, "cpu", None).native
    assert table.params_bytes == stored_bytes(module) == get_model_size_in_bytes(module) == expected
    assert set().union(*(row.dtypes for row in table.rows)) == dtypes
    assert (table.params, table.macs, table.flops) == (plain.params, plain.macs, plain.flops)
    assert [row.act_bytes for row in table.rows] == [row.act_bytes for row in plain.rows]


def test_what_a_device_does_not_quantize() -> None:
    with pytest.raises(Unsupported, match=r"precision=fp8 has no kernels for device=cpu \(only for cuda, xpu\)"):
        TorchBackend(precision="fp8").load(mixed, "cpu", None)
    if not torch.cuda.is_available():  # torchao knows which devices are too old
        with pytest.raises(
            Unsupported, match="torchao does not quantize to fp8 here: Float8 dynamic quantization requires"
        ):
            quantized(mixed().bfloat16(), "fp8")
    with pytest.raises(Unsupported, match="no linear layer with outputs and inputs that are multiples of 16 and 128"):
        TorchBackend(precision="int4").load(linear, "cpu", None)


def test_autocast_is_torchs_own() -> None:
    loaded, batch, found = run(TorchBackend(precision="bf16", precision_method="autocast"), IMAGES)
    assert {tensor.dtype for tensor in (*loaded.native.parameters(), *batch.args)} == {torch.float32}
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        expected = lenet5().eval()(torch.from_numpy(IMAGES))
    assert found.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    assert TorchBackend().settings_in_effect(loaded)["precision method"] == "autocast"


def test_autocast_holds_for_whatever_a_step_runs() -> None:
    """A method beside the model's forward, a generator that runs after the call, and the loss."""
    seen: dict[str, torch.dtype] = {}

    def forward(model: Any, x: torch.Tensor) -> Any:
        hidden = model[0](x)
        seen.update(method=hidden.dtype)
        yield hidden
        seen.update(generator=model[1](x).dtype)

    def loss(outputs: Any, targets: object) -> torch.Tensor:
        seen.update(loss=(outputs[0] @ outputs[0].T).dtype)
        return outputs[0].sum()  # type: ignore[no-any-return]

    backend = TorchBackend(precision="bf16", precision_method="autocast")
    loaded = backend.load(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "cpu", None)
    batch = loaded.put(Inputs((torch.ones(2, 4),), forward=forward))
    with loaded.stepping(batch) as step:
        step()
    assert seen == dict.fromkeys(("method", "generator"), torch.bfloat16)
    with backend.training(loaded, batch, None, TrainingConfig(loss=loss)) as training:
        training.backward(training.forward())
    assert seen == dict.fromkeys(("method", "generator", "loss"), torch.bfloat16)


def test_each_of_many_equal_quantized_layers_has_its_bytes() -> None:
    backend = TorchBackend(precision="int8")
    many = partial(nn.Sequential, *(nn.Linear(64, 64) for _ in range(20)))
    table: Any = backend.analyze(many, Inputs((TensorSpec((1, 64)),)), None, DEFAULTS)
    per_layer = 64 * 64 + 4 * 64 + 5 * 64
    assert [row.params_bytes for row in table.rows] == [0] + [per_layer] * 20
    assert table.rows[0].subtree.params_bytes == 20 * per_layer


def test_what_has_no_layer_to_quantize_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="the model has no linear layer, and torchao quantizes no other"):
        TorchBackend(precision="int8").load(lambda: nn.LSTM(2, 2), "cpu", None)


def test_quantizing_without_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeprof.backends.torch.model.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="precision=int4 needs the package torchao: pip install torchao"):
        TorchBackend(precision="int4").load(mixed, "cpu", None)


@pytest.mark.thorough
def test_torchao_is_quiet() -> None:
    """It says which of its extensions could not be loaded, and which functions of torch are deprecated."""
    code = """
import logging
from torch import nn
from sweeprof.backends.torch.adapter import TorchBackend
loaded = TorchBackend(precision="int8").load(lambda: nn.Linear(4, 4), "cpu", None)
assert loaded.precision_method == "torchao" and logging.root.manager.disable == 0
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.thorough
@pytest.mark.parametrize("is_compiled", [False, True])
def test_settings_that_torchao_changes_are_no_deviation(is_compiled: bool) -> None:
    """They are for compiled models; rows with 8 bits could not be compared with any other, as settings of inductor differed."""
    code = f"""
from torch import nn
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.backends.torch.private import inductor_settings
from sweeprof.results.compared_rows import deviations_of
import torch._inductor.config
backend = TorchBackend(precision="int8", compile={is_compiled})
before = backend.settings_in_effect()
loaded = backend.load(lambda: nn.Linear(4, 4), "cpu", None)
assert loaded.precision_method == "torchao"
assert ("coordinate_descent_tuning = True" in inductor_settings()) is {is_compiled}
assert deviations_of(before, backend.settings_in_effect(loaded)) == {{}}
torch._inductor.config.max_autotune = True
eager = TorchBackend().load(lambda: nn.Linear(4, 4), "cpu", None)
assert list(deviations_of(before, TorchBackend().settings_in_effect(eager))) == ["inductor"]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_channels_last_holds_for_weights_inputs_and_what_layers_pass_on() -> None:
    seen: list[torch.Tensor] = []
    images = np.random.default_rng(0).random((2, 3, 8, 8), dtype=np.float32)

    def build() -> nn.Module:
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(80, 2))
        module[2].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        return module

    loaded = TorchBackend(channels_last=True).load(build, "cpu", 1)
    batch = loaded.put(Inputs((images,)))
    loaded.native(*batch.args)
    tensors = [batch.args[0], seen[0], *(p for p in loaded.native.parameters() if p.dim() == 4)]
    assert len(tensors) == 4
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors)
    assert not any(tensor.is_contiguous() for tensor in tensors)


def test_channels_last_leaves_other_shapes_alone() -> None:
    layers = (nn.Conv3d(2, 3, 3), nn.Conv2d(2, 3, 3), nn.LazyConv2d(4, 3))
    module: Any = TorchVariant(channels_last=True).of(nn.Sequential(*layers))
    assert module[0].weight.is_contiguous()
    assert module[1].weight.is_contiguous(memory_format=torch.channels_last)


def test_what_is_prepared() -> None:
    variant = TorchVariant("bf16")
    assert variant.prepared("text") == "text"
    assert variant.prepared(pack_sequence([torch.ones(2, 3)])).data.dtype == torch.bfloat16
    wanting = variant.prepared(torch.ones(2, requires_grad=True))
    assert wanting.requires_grad
    assert wanting.is_leaf


def test_a_variant_is_counted_like_the_plain_one() -> None:
    inputs = Inputs((TensorSpec((2, 1, 32, 32)),))
    plain = TorchBackend().analyze(lenet5, inputs, 1, DEFAULTS)
    found = TorchBackend(precision="bf16", channels_last=True).analyze(lenet5, inputs, 1, DEFAULTS)
    assert (found.macs, found.params, found.uncovered) == (plain.macs, plain.params, {})
    assert found.params_bytes == 2 * plain.params


@pytest.mark.slow(rows=1)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch.compile itself
@pytest.mark.parametrize("compiler", ["aot_eager", "openvino"])
def test_other_compilers(compiler: Compiler) -> None:
    """Each captures the graph of the same module, and OpenVINO generates kernels for it, with the threads of the backend."""
    backend = TorchBackend(compile=compiler)
    backend.configure(0)
    torch.compiler.reset()  # a model that other tests compiled for another batch size would have its sizes as variables
    images = torch.ones(2, 1, 32, 32)
    plain, _, wanted = run(TorchBackend(), images)
    compiled, _, found = run(backend, images)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert (plain.compiles, compiled.compiles) == (False, True)
    if compiler == "openvino":
        execute: Any = import_module("openvino.frontend.pytorch.torchdynamo.execute")
        (made,) = execute.compiled_cache.values()
        assert made.get_property("INFERENCE_NUM_THREADS") == 1


def breaking(breaks: int) -> nn.Module:
    """Two calls of a function that torch.compile does not follow, and a branch by a value."""

    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        x = model.layer(x)
        if breaks > 0:
            print(end="")
        x = model.layer(x)
        if breaks > 1:
            print(end="")
        x = model.layer(x)
        if breaks > 2 and x.sum() > 1e9:
            x = -x
        return model.layer(x)  # type: ignore[no-any-return]

    return Applied(forward, layer=nn.Linear(4, 4))


@pytest.mark.slow(rows=1)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch.compile itself
@pytest.mark.parametrize("breaks", [0, 3])
def test_graph_breaks(breaks: int) -> None:
    """As many as ``torch._dynamo.explain`` finds."""
    model, x = breaking(breaks).eval(), torch.ones(2, 4)
    torch.compiler.reset()
    with torch.inference_mode():
        explained: Any = torch._dynamo.explain(model)(x)
    assert explained.graph_break_count == breaks
    torch.compiler.reset()
    compiled: Any = torch.compile(model, backend="eager")
    quick = sweeprof.Protocol(min_s=0.01, warmup_s=0.0, min_samples=2)
    found = sweeprof.profile(compiled, x, ["latency/graph_breaks", "latency/forward"], protocol=quick)
    assert found["latency/graph_breaks"].value == breaks
    again = sweeprof.profile(compiled, x, ["latency/graph_breaks"], protocol=quick)
    assert "the model had been compiled before" in str(again["latency/graph_breaks"].reason)
    eager = sweeprof.profile(model, x, ["latency/graph_breaks"], protocol=quick)
    assert eager["latency/graph_breaks"].reason == "this backend does not capture graphs"


class Encoder(nn.Linear):
    def encode(self, x: torch.Tensor) -> Any:
        return super().forward(x)


def encoded(model: Any, x: torch.Tensor, new_tokens: int, on_token: Callable[[], object]) -> None:
    for _ in range(new_tokens):
        model.encode(x)
        on_token()


@pytest.mark.slow  # importing what compiles takes seconds
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch.compile itself
@pytest.mark.parametrize("mode", ["inference", "generation"])
def test_what_was_not_compiled_has_a_reason(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that runs in Python, and a generation that calls another method."""
    model: Any = Encoder(4, 4).eval()
    model.forward = torch.compiler.disable(model.encode)  # type: ignore[no-untyped-call]
    compiled: Any = torch.compile(model, backend="eager")
    counters: Any = import_module("torch._dynamo.utils").counters
    monkeypatch.setitem(counters["stats"], "unique_graphs", 0)  # as in a process of its own
    quick = sweeprof.Protocol(min_s=0.01, warmup_s=0.0, min_samples=2)
    config = sweeprof.GenerationConfig(2, function=encoded)
    found = sweeprof.profile(
        compiled, torch.ones(2, 4), ["latency/first_step"], mode=mode, generation=config, protocol=quick
    )
    said = "timing: unsupported: torch.compile has compiled nothing: what ran does not call"
    assert str(found["latency/first_step"].reason).startswith(said)


@pytest.mark.slow  # importing what compiles takes seconds
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch.compile itself
def test_a_forward_that_has_to_be_one_graph() -> None:
    torch.compiler.reset()
    backend = TorchBackend(compile="eager", compile_fullgraph=True)
    whole, broken = (backend.load(partial(breaking, breaks), "cpu", None) for breaks in (0, 1))
    x = torch.ones(2, 4)
    with whole.stepping(whole.put(Inputs((x,)))) as step:
        assert torch.equal(whole.native(x), whole.native._orig_mod(x))  # type: ignore[operator]
        step()
    reason = "compile_fullgraph=true: the forward is not one graph: Failed to trace builtin operator"
    with broken.stepping(broken.put(Inputs((x,)))) as step, pytest.raises(Unsupported, match=reason):
        step()


def test_the_precision_of_matrix_products() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        backend = TorchBackend(matmul_precision="medium")
        backend.configure(0)
        assert backend.settings_in_effect()["float32 matmul precision"] == "medium"
        TorchBackend().configure(0)
        assert torch.get_float32_matmul_precision() == "medium"  # None leaves it
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_asks_for_cuda_graphs_needs_cuda() -> None:
    for backend in (TorchBackend(compile="cudagraphs"), TorchBackend(compile=True, compile_mode="reduce-overhead")):
        with pytest.raises(Unsupported, match="launches CUDA graphs, and device=cpu has none"):
            backend.load(lenet5, "cpu", 1)


def test_a_compiler_that_is_not_installed() -> None:
    with pytest.raises(Unsupported, match="compile=tvm needs a package: pip install apache-tvm"):
        TorchBackend(compile="tvm").load(lenet5, "cpu", 1)


@pytest.mark.slow  # importing what compiles takes seconds
def test_what_openvino_does_not_compile_is_not_run_by_another_compiler() -> None:
    """OpenVINO would run the whole graph by inductor or by PyTorch, and say so in its log only."""
    TorchBackend(compile="openvino").load(lenet5, "cpu", 1)
    logger = logging.getLogger("openvino.frontend.pytorch.torchdynamo.execute")
    with pytest.raises(Unsupported, match=r"torch.compile with OpenVINO: OpenVINO execution failed with no luck"):
        logger.debug("OpenVINO execution failed with no luck. Falling back to native PyTorch execution.")


def test_compiling_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unsupported, match="there is no no-such-compiler: install it, or set CXX"):
        TorchBackend(compile=True).load(lenet5, "cpu", 1)


@pytest.mark.slow  # importing what compiles takes seconds
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile itself
def test_an_error_in_a_compiled_forward_has_the_line_of_the_users_code() -> None:
    """torch.compile reads the forward without running it: the traceback has frames of torch alone."""

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(7, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return self.linear(x)

    with pytest.raises(Exception, match="must have same reduction dim") as caught:
        torch.compile(Narrow())(torch.zeros(2, 5))
    place = f"{Path(__file__).relative_to(Path.cwd())}:{Narrow.forward.__code__.co_firstlineno + 1} in forward"
    assert location_of(caught.value) == place


def test_a_precision_that_there_is_not() -> None:
    with pytest.raises(UserError, match="'bf61' is not a precision") as raised:
        TorchBackend(precision="bf61").load(lenet5, "cpu", 1)  # type: ignore[arg-type]
    assert raised.value.problems[0].nearest == "bf16"
    with pytest.raises(UserError, match=r"'autocats' is not a method of a precision\. Did you mean 'autocast'\?"):
        TorchBackend(precision="bf16", precision_method="autocats").load(lenet5, "cpu", 1)  # type: ignore[arg-type]


def test_settings_of_inductor_that_a_compilation_restored_are_not_listed() -> None:
    from torch._inductor import config

    backend = TorchBackend()
    name = "comprehensive_padding"
    default = getattr(config, name)
    try:
        setattr(config, name, not default)
        assert f"{name} = {not default}" in backend.settings_in_effect()["inductor"]
        setattr(config, name, default)
        assert name not in backend.settings_in_effect()["inductor"]
    finally:
        setattr(config, name, default)


# What the fork servers of PyTorch import ahead: no trial imports torch's compiler itself, which takes a second


PROGRAM = """
import importlib, json, sys
from sweeprof.plan.plan import preload
from sweeprof.profiling.profiler import Profiler
import sweeprof.backends.torch.adapter

config, name = json.loads(sys.argv[1])
for entry in preload(config, name):
    importlib.import_module(entry.partition(":")[0])
is_ahead = "torch._dynamo" in sys.modules
Profiler.from_config(config).run(name)
print(is_ahead, "torch._dynamo" in sys.modules)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "name", "is_needed"),
    [("inference", "timing", False), ("inference", "operators", True), ("training", "timing", True)],
)
def test_the_compiler_is_imported_ahead_of_trials_that_need_it(mode: str, name: str, is_needed: bool) -> None:
    words = ["model=mlp", "backend=torch", f"mode={mode}", "metrics=latency", "protocol=quick", "tracking=none"]
    (combination,) = planned(words).combinations
    command = [sys.executable, "-c", PROGRAM, json.dumps([combination.config, name])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{is_needed} {is_needed}"
