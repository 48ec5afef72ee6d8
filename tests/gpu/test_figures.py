"""Figures of a device against those of other tools: torch's own timer, events, allocator and profiler, and NVML."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

import sweeprof
from support.torchs_timer import over_torchs_timer
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.backends.torch.model import synchronised
from sweeprof.backends.torch.private import sleep_on_device
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import WallClock, sampled
from sweeprof.model_sources.transformers import import_transformers
from sweeprof.profiling.conformance import CHECKS

QUICK = sweeprof.Protocol(min_s=0.2, warmup_s=0.2, min_samples=10)
ONE = sweeprof.Protocol(sample_s=0.01, min_samples=1)
PAIRS = 30
APART = 0.03
"""Of two tools that measure the same in turns."""
APART_ON_CPU = 0.25
"""Other programs run on the processor, too."""


@pytest.fixture(autouse=True)
def _configured(device: str) -> Iterator[None]:
    TorchBackend(threads=1).configure(0)
    yield
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def wide(device: str) -> tuple[nn.Module, tuple[int, int]]:
    """A model whose products take longer than launching them, and the shape of its inputs."""
    width = 256 if device == "cpu" else 4096
    layers = [nn.Linear(width, width) for _ in range(4)]
    return nn.Sequential(*layers).eval().to(device), (width // 2, width)


def narrow(device: str) -> nn.Module:
    """A model whose kernels take less time than launching them."""
    layers: list[nn.Module] = []
    for _ in range(50):
        layers += [nn.Linear(16, 16), nn.ReLU()]
    return nn.Sequential(*layers).eval().to(device)


def value(profiler: sweeprof.Profiler, name: str) -> float:
    found = profiler.compute(name)
    assert found.value is not None, f"{name}: {found.reason}"
    return float(found.value)


def profiler_of(model: nn.Module, inputs: Any, **options: Any) -> sweeprof.Profiler:
    return sweeprof.Profiler(model, inputs=inputs, protocol=QUICK, progress=False, **options)


# Times


def test_latency_is_that_of_torchs_timer(device: str) -> None:
    """Both time the same synchronised call, in turns; the median of the ratios counts."""
    model, shape = wide(device)
    backend = TorchBackend(threads=1)
    loaded = backend.load(lambda: model, device, None)
    batch = loaded.put(Inputs((TensorSpec(shape),)))
    with loaded.stepping(batch) as step:
        call = synchronised(lambda: model(batch.args[0]), torch.device(device))
        timer = Timer("call()", globals={"call": call}, num_threads=1)
        step()
        loops = max(1, round(0.01 / sampled(step, ONE, WallClock())[0]))
        ratio = over_torchs_timer(step, timer, ONE, loops, PAIRS)
    assert ratio == pytest.approx(1, abs=APART_ON_CPU if device == "cpu" else APART)


def seconds_by_events(step: Callable[[], object], steps: int = 20) -> float:
    """Seconds of a step on the device, of several that are queued one after the other."""
    step()
    begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / steps


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_time_of_the_device_is_that_of_events(cuda: str, mode: Any) -> None:
    """The step is longer than its launches, so that events around many tell the time of the device."""
    model, shape = wide(cuda)
    found = value(profiler_of(model, shape, mode=mode), "latency/device")
    x = torch.randn(shape, device=cuda)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def train() -> None:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

    def infer() -> None:
        with torch.inference_mode():
            model(x)

    expected = seconds_by_events(infer if mode == "inference" else train)
    assert found == pytest.approx(expected, rel=APART)


def test_a_step_that_is_bound_by_launches_says_so(cuda: str) -> None:
    small = profiler_of(narrow(cuda), (4, 16))
    assert value(small, "latency/device_share") < 0.7
    assert "launch_bound" in {warning.code for warning in small.compute("latency/forward").warnings}
    assert value(small, "operators/busy_share") < 0.7
    large = profiler_of(*wide(cuda))
    assert value(large, "latency/device_share") > 0.9
    assert "launch_bound" not in {warning.code for warning in large.compute("latency/forward").warnings}


class Sleeping(nn.Module):
    """Sleeps on the device, and twice as long in its backward."""

    def __init__(self, sleep: Callable[[int], object]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.sleep = sleep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Sleep.apply(x * self.scale, self.sleep)  # type: ignore[no-any-return, no-untyped-call]


class Sleep(torch.autograd.Function):
    """The identity."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sleep: Callable[[int], object]) -> torch.Tensor:
        ctx.sleep = sleep
        sleep(1)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.sleep(2)
        return gradients[0], None


def test_the_time_of_a_layer_is_how_long_it_sleeps(device: str) -> None:
    sleep_s = 0.02

    def sleep(times: int) -> None:
        if device.startswith("cuda"):
            sleep_on_device(times * 20_000_000)
        else:
            time.sleep(times * sleep_s)

    if device.startswith("cuda"):
        sleep_s = seconds_by_events(lambda: sleep(1), 10)
    model = nn.Sequential(nn.Linear(8, 8), Sleeping(sleep), nn.Linear(8, 8)).to(device)
    times: Any = profiler_of(model, (4, 8), mode="training").seen("layer_times")
    (found,) = (seconds for call, seconds in zip(times.calls, times.seconds, strict=True) if call.path == "1")
    assert found.forward_self == pytest.approx(sleep_s, rel=APART)
    assert found.backward_self == pytest.approx(2 * sleep_s, rel=APART)


# Memory


def test_the_allocators_peak_is_torchs(cuda: str) -> None:
    model, shape = wide(cuda)
    found = value(profiler_of(model, shape), "memory/cuda_allocated_peak_bytes")
    torch.cuda.empty_cache()
    x = torch.randn(shape, device=cuda)
    torch.cuda.reset_peak_memory_stats()
    with torch.inference_mode():
        model(x)
    assert found == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.01)


def test_the_snapshot_of_the_allocator_has_segments_and_events(cuda: str) -> None:
    model, shape = wide(cuda)
    seen: Any = profiler_of(model, shape).seen("allocations")
    snapshot = pickle.loads(seen.files["memory_snapshot.pickle"])
    assert sum(segment["total_size"] for segment in snapshot["segments"]) >= sum(p.nbytes for p in model.parameters())
    assert any(snapshot["device_traces"])


# Operators


def test_operators_are_those_of_torchs_profiler(device: str) -> None:
    model, shape = wide(device)
    seen: Any = profiler_of(model, shape).seen("operators")
    x = torch.randn(shape, device=device)
    activities = [ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
    with torch.inference_mode():
        model(x)
        with profile(activities=activities) as theirs:
            model(x)
            if device.startswith("cuda"):
                torch.cuda.synchronize()
    # Operators begin as the framework calls them; besides, the profiler has calls of the driver.
    expected = Counter(event.name for event in theirs.events() if event.name.startswith("aten::"))
    found = {total.operator: total.calls for total in seen.totals() if total.operator.startswith("aten::")}
    assert found == expected
    if device.startswith("cuda"):
        kernels = [event for event in theirs.events() if event.device_type.name == "CUDA"]
        assert {kernel.name for kernel in seen.kernels} == {kernel.name for kernel in kernels}
        seconds = sum(kernel.time_range.elapsed_us() for kernel in kernels) / 1e6
        assert seen.device_s == pytest.approx(seconds, rel=0.1)
        assert sum(row.device_self_s for row in seen.rows) == pytest.approx(seen.device_s, rel=0.01)
        assert seen.busy_share > 0.9


# Energy, counts, compiled models, generation


def test_the_power_is_that_of_nvml(cuda: str) -> None:
    nvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    model, shape = wide(cuda)
    profiler = profiler_of(model, shape)
    found = profiler.compute("energy/power")
    if found.value is None:
        pytest.skip(str(found.reason))
    energy: Any = profiler.seen("energy")
    (watts,) = (joules / energy.seconds for name, joules in energy.joules.items() if "gpu" in name.lower())
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(cuda).uuid}")
    x = torch.randn(shape, device=cuda)
    begin_s, begin_mj = time.perf_counter(), nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    with torch.inference_mode():
        while time.perf_counter() - begin_s < 5:
            model(x)
            torch.cuda.synchronize()
    spent_j = (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) - begin_mj) / 1e3
    assert watts == pytest.approx(spent_j / (time.perf_counter() - begin_s), rel=0.1)


def test_counts_of_a_training_step_are_those_of_the_cpu(device: str) -> None:
    names = ("compute/macs_train", "compute/flops_train", "memory/act_peak_live_bytes_train", "params/total")
    here, there = (profiler_of(narrow(place), (4, 16), mode="training") for place in (device, "cpu"))
    assert {name: value(here, name) for name in names} == {name: value(there, name) for name in names}


def test_a_compiled_model_has_the_outputs_of_the_eager_one(device: str) -> None:
    compiler = "eager" if device == "cpu" else "inductor"
    mode = None if device == "cpu" else "reduce-overhead"
    torch.compiler.reset()
    backend = TorchBackend(compile=compiler, compile_mode=mode, compile_fullgraph=True)  # type: ignore[arg-type]
    plain, compiled = (one.load(lambda: narrow(device), device, None) for one in (TorchBackend(), backend))
    compiled.native._orig_mod.load_state_dict(plain.native.state_dict())  # type: ignore[union-attr]
    x = torch.linspace(-1, 1, 64).reshape(4, 16)
    outputs: list[Any] = []
    for loaded in (plain, compiled):
        with loaded.stepping(loaded.put(Inputs((x,)))) as step:
            for _ in range(5):
                found = loaded.host_outputs(step())
        outputs.append(found)
    assert outputs[1] == pytest.approx(outputs[0], abs=1e-3)
    assert (plain.graphs, compiled.graphs) == (None, 1)


@pytest.mark.parametrize(("precision", "apart"), [("fp8", 0.05), ("int4", 0.15)])
def test_weights_of_fewer_bits(device: str, precision: Any, apart: float) -> None:
    """The outputs are near those in single precision, and the weights take the bytes that are counted."""
    if find_spec("torchao") is None:
        pytest.skip("torchao is not installed")
    backend = TorchBackend(precision=precision)

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10)).eval()

    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(1))
    try:
        loaded = backend.load(build, device, None)
    except sweeprof.Unsupported as error:
        pytest.skip(str(error))  # an older GPU, or a CPU
    with loaded.stepping(loaded.put(Inputs((x,)))) as step:
        found = torch.tensor(loaded.host_outputs(step()))
    with torch.no_grad():
        expected = build()(x)
    assert 1e-4 < (found - expected).abs().max() / expected.abs().max() < apart
    from torchao.utils import get_model_size_in_bytes

    stored = get_model_size_in_bytes(loaded.native)
    table = backend.analyze(build, Inputs((TensorSpec((64, 1024)),)), None, DEFAULTS)
    assert table.params_bytes == stored


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation(device: str, cache: str) -> None:
    """A small Llama; on an accelerator transformers compiles the steps of a static cache."""
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    transformers = import_transformers()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=97, num_key_value_heads=2, pad_token_id=1, **sizes)
    model = transformers.LlamaForCausalLM(config).eval().to(device)
    inputs = {
        "input_ids": torch.arange(24).reshape(2, 12) % 90 + 3,
        "attention_mask": torch.ones(2, 12, dtype=torch.int64),
    }
    generation = sweeprof.GenerationConfig(new_tokens=8, arguments={"cache_implementation": cache})
    options: dict[str, Any] = {"mode": "generation", "generation": generation}
    profiler = profiler_of(model, inputs, **options)
    first, each = value(profiler, "generation/time_to_first_token"), value(profiler, "generation/time_per_token")
    assert 0 < first < value(profiler, "generation/latency")
    assert 8 * each < 2 * value(profiler, "generation/latency")
    assert value(profiler, "generation/kv_cache_bytes") > 0


# The checks of ``sweeprof doctor device=NAME``


@pytest.mark.parametrize("name", CHECKS)
def test_a_device_measures_as_the_cpu_does(name: str, device: str) -> None:
    try:
        CHECKS[name](device)
    except Unsupported as error:
        pytest.skip(str(error))
