"""How long a model's full table of layers takes, beside other profilers in the same run, and how much memory."""

from __future__ import annotations

import copy
import gc
import math
import multiprocessing
import resource
import statistics
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
import torch
from benchmarks.measured import in_turns, is_importable, quiet
from benchmarks.models import Made, counted_models
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from support.step_memory import compiler, observed
from sweeprof.backends.tensorflow import counting as keras_counting
from sweeprof.backends.torch.counting import count_layers
from sweeprof.backends.torch.model import build_on_meta
from sweeprof.measuring.inputs import Inputs, TensorSpec

TURNS = 3
FASTER = 3
"""The goal is 5 at the median; a shared machine's noise must not fail it."""
GOAL = 5
RIGHT = 0.01
MIB = 2**20
MEMORY_MIB = 50
"""What an analysis may take above the model's structure."""

Shape = tuple[int, ...]
Count = Callable[[nn.Module, Shape], float]


def ours(module: nn.Module, shape: Shape) -> float:
    return count_layers(module, Inputs((TensorSpec(shape),))).macs


# Other profilers: the MACs that each reports


def flop_counter(module: nn.Module, given: torch.Tensor) -> float:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(given)
    return float(counter.get_total_flops()) / 2


def flop_counter_meta(module: nn.Module, shape: Shape) -> float:
    if next(module.parameters()).device.type != "meta":
        module.to("meta")
    return flop_counter(module, torch.empty(shape, device="meta"))


def flop_counter_cpu(module: nn.Module, shape: Shape) -> float:
    return flop_counter(module, torch.zeros(shape))


def fvcore(module: nn.Module, shape: Shape) -> float:
    counter = import_module("fvcore.nn").FlopCountAnalysis(module, torch.zeros(shape))
    counter.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    return float(counter.total())


def ptflops(backend: str, module: nn.Module, shape: Shape) -> float:
    options = {"as_strings": False, "print_per_layer_stat": False, "verbose": False, "backend": backend}
    macs, _ = import_module("ptflops").get_model_complexity_info(module, shape[1:], **options)
    return float(macs)


def torchinfo(module: nn.Module, shape: Shape) -> float:
    summary = import_module("torchinfo").summary(module, input_data=torch.zeros(shape), verbose=0)
    return float(summary.total_mult_adds)


def deepspeed(module: nn.Module, shape: Shape) -> float:
    session = import_module("deepspeed.profiling.flops_profiler").FlopsProfiler(module)
    session.start_profile()
    with torch.no_grad():
        module(torch.zeros(shape))
    macs = float(session.get_total_macs())
    session.end_profile()
    return macs


def moduleprofiler(module: nn.Module, shape: Shape) -> float:
    """Operations: it reports no MACs, so that it is never right."""
    found = import_module("moduleprofiler").ModuleProfiler().estimate_ops(module, torch.zeros(shape))
    return sum(float(value or 0) for row in found.values() for key, value in row.items() if key.endswith("ops"))


COUNTERS: dict[str, tuple[str, Count]] = {
    "flop_counter, meta": ("torch", flop_counter_meta),
    "flop_counter, CPU": ("torch", flop_counter_cpu),
    "ptflops, pytorch": ("ptflops", partial(ptflops, "pytorch")),
    "ptflops, aten": ("ptflops", partial(ptflops, "aten")),
    "fvcore": ("fvcore.nn", fvcore),
    "torchinfo": ("torchinfo", torchinfo),
    "deepspeed": ("deepspeed.profiling.flops_profiler", deepspeed),
    "moduleprofiler": ("moduleprofiler", moduleprofiler),
}
"""The module that must be importable, and how it counts."""


def reference_macs(module: nn.Module, shape: Shape) -> float | None:
    """What torch's own counter finds where no fused kernel hides anything; None for a model that it cannot count."""
    try:
        return flop_counter_meta(copy.deepcopy(module).to("meta"), shape)
    except (AssertionError, NotImplementedError, RuntimeError):
        return None


@dataclass
class Measured:
    """Median seconds of ours and of every profiler that can count the model; first calls are not timed."""

    own: float
    others: dict[str, float]
    right: set[str]
    """Profilers that report the right number."""

    @property
    def fastest(self) -> tuple[float, str]:
        """Ratio and name of the one to beat."""
        return min(((self.others[name] / self.own, name) for name in self.right), default=(math.inf, "none is right"))


def measured(made: Made, counters: dict[str, Count]) -> Measured:
    module = made.make().eval()
    macs = ours(module, made.shape)
    reference = reference_macs(module, made.shape)
    assert reference is None or abs(macs - reference) <= RIGHT * reference, made.name
    ways: dict[str, Callable[[], object]] = {"sweeprof": lambda: ours(module, made.shape)}
    right = set()
    for name, count in counters.items():
        run = partial(count, copy.deepcopy(module), made.shape)  # of its own: most move it or leave something on it
        try:
            with quiet():
                found = run()
        except Exception:  # a profiler that cannot count this model
            continue
        ways[name] = run
        if abs(found - macs) <= RIGHT * macs:
            right.add(name)
    with quiet():
        medians = in_turns(TURNS, **ways)
    return Measured(medians.pop("sweeprof"), medians, right)


@pytest.mark.timeout(1800)
def test_a_table_of_layers_is_counted_faster_than_others_count_a_total() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    counters = {name: count for name, (module, count) in COUNTERS.items() if is_importable(module)}
    missing = ", ".join(COUNTERS.keys() - counters.keys()) or "none"
    print(f"\nnot installed: {missing}\n{'model':<34}{'ours':>9}  fastest right one", flush=True)
    found = []
    for made in counted_models():
        found.append(measured(made, counters))
        ratio, fastest = found[-1].fastest
        print(f"{made.name:<34}{found[-1].own * 1e3:>6.1f} ms  {ratio:>5.1f} × {fastest}", flush=True)
    print(f"{'profiler':<34}{'ran':>7}{'right':>7}  median of theirs / ours")
    for name in counters:
        of_one = [each.others[name] / each.own for each in found if name in each.others]
        right = sum(name in each.right for each in found)
        shown = f"{statistics.median(of_one):.1f} ×" if of_one else "-"
        print(f"{name:<34}{len(of_one):>7}{right:>7}  {shown:>7}")
    ratios = [ratio for ratio, _ in (each.fastest for each in found) if math.isfinite(ratio)]
    median = statistics.median(ratios)
    print(f"fastest right one / ours: median {median:.1f}, goal {GOAL}; from {min(ratios):.1f} to {max(ratios):.1f}")
    assert len(ratios) >= 30
    assert median >= FASTER


MASKED = 3
"""How much longer a count with a mask may take than one without; 1.1 is usual."""


def test_a_mask_costs_next_to_nothing() -> None:
    """Llama-3-8B, made on the meta device, 2048 tokens of which the last quarter is padding."""
    if not is_importable("transformers"):
        pytest.skip("counts a model of transformers")
    transformers: Any = import_module("transformers")
    torch.set_num_threads(1)
    sizes = {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_key_value_heads": 8}
    config = transformers.LlamaConfig(vocab_size=128_256, num_attention_heads=32, **sizes)
    with torch.device("meta"):
        module = transformers.LlamaForCausalLM(config).eval()
    ids = torch.zeros(1, 2048, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[:, -512:] = 0
    plain, masked = (Inputs(kwargs=given) for given in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}))
    tables = [count_layers(module, inputs) for inputs in (plain, masked)]
    assert [table.method for table in tables] == ["shapes", "shapes"]
    assert tables[0].macs == tables[1].macs
    times = in_turns(TURNS, plain=lambda: count_layers(module, plain), masked=lambda: count_layers(module, masked))
    print(f"\nLlama-3-8B: {times['plain']:.2f} s without a mask, {times['masked']:.2f} s with one")
    assert times["masked"] <= MASKED * times["plain"]


def memory(index: int, connection: Any) -> None:
    """In a fresh process: peak of what Python allocates, and growth of the resident set, MiB, over one analysis."""
    made = counted_models()[index]
    ours(nn.Linear(2, 2).eval(), (1, 2))  # imports of its own are the program's, not the model's
    try:
        module = build_on_meta(made.make).eval()
    except NotImplementedError:  # torchvision's RegNet computes its widths with tensors
        module = made.make().eval()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours(module, made.shape)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    tracemalloc.start()
    ours(module, made.shape)
    traced = tracemalloc.get_traced_memory()[1] / MIB
    connection.send((traced, grown))


@pytest.mark.timeout(1200)
def test_an_analysis_takes_little_memory() -> None:
    fork = multiprocessing.get_context("fork")
    print(f"\n{'MiB above the structure':<34}{'traced':>9}{'resident':>10}")
    worst = 0.0
    for index, made in enumerate(counted_models()):
        receiver, sender = fork.Pipe(duplex=False)
        process = fork.Process(target=memory, args=(index, sender))
        process.start()
        sender.close()
        traced, grown = receiver.recv()
        process.join()
        assert process.exitcode == 0
        print(f"{made.name:<34}{traced:>9.1f}{grown:>10.1f}")
        worst = max(worst, traced, grown)
    print(f"worst {worst:.1f} MiB")
    assert worst < MEMORY_MIB


# Keras: beside freezing the graph and asking TensorFlow's profiler

FASTER_THAN_FREEZING = 10
IMAGE = (1, 224, 224, 3)


def frozen(model: keras.Model) -> int:
    """Float operations, by the way that most tutorials go."""
    traced = tf.function(lambda x: model(x, training=False)).get_concrete_function(tf.TensorSpec(IMAGE))
    graph = convert_variables_to_constants_v2(traced).graph
    builder = tf.compat.v1.profiler.ProfileOptionBuilder
    options = builder(builder.float_operation()).with_empty_output().build()
    return int(tf.compat.v1.profiler.profile(graph=graph, options=options).total_float_ops)


@pytest.mark.parametrize("name", ["MobileNetV2", "ResNet50"])
def test_a_full_count_takes_a_tenth_of_freezing_and_asking(name: str) -> None:
    model = getattr(keras.applications, name)(weights=None)
    inputs = Inputs((TensorSpec(IMAGE),))
    table, theirs = keras_counting.count_layers(model, inputs), frozen(model)
    assert keras_counting.own_counts(model, inputs).counts["tfprof"] == theirs
    assert abs(theirs - 2 * table.macs) < 0.05 * theirs
    times = in_turns(
        TURNS,
        ours=lambda: keras_counting.count_layers(model, inputs),
        frozen=lambda: frozen(model),
        asked=lambda: keras_counting.own_counts(model, inputs),
    )
    ratio, without = times["frozen"] / times["ours"], times["asked"] / times["ours"]
    print(f"\n{name}: freezing and asking takes {ratio:.1f} of a full count, asking without freezing {without:.1f}")
    assert ratio > FASTER_THAN_FREEZING


# The peak of allocations beside an independent measurement: an interposed malloc under plain torch code, see step_memory


WITHIN = 0.02
MODELS = ("resnet18", "vit_tiny", "swin_tiny", "densenet121", "mobilenet_v3", "lstm")
MODES = ("inference", "training")
MB = 1e6
_TITLES = ("ours MB", "malloc MB", "ratio", "first MB", "estimate MB", "ratio", "kept by libraries MB")


@pytest.mark.timeout(1200)
@pytest.mark.skipif(compiler() is None, reason="there is no C compiler for the interposed malloc")
@pytest.mark.skipif(
    not (find_spec("timm") and find_spec("torchvision")), reason="timm and torchvision are not installed"
)
def test_the_peak_of_allocations_is_that_of_malloc(tmp_path: Path) -> None:
    print(f"\n{'model':<14}{'mode':<11}" + "".join(f"{title:>{len(title) + 2}}" for title in _TITLES), flush=True)
    off = {}
    for model in MODELS:
        for mode in MODES:
            job = [f"support.memory_models:{model}:{mode}"]
            (own,), (truth,) = observed("ours", job, tmp_path), observed("malloc", job, tmp_path)
            ratio = own["peak"] / truth["peak"]
            figures = (
                f"{own['peak'] / MB:.1f}",
                f"{truth['peak'] / MB:.1f}",
                f"{ratio:.3f}",
                f"{own['first'] / MB:.1f}",
                f"{own['estimate'] / MB:.1f}",
                f"{own['first'] / own['estimate']:.3f}",
                f"{truth['kept'] / MB:.1f}",
            )
            cells = (f"{figure:>{len(title) + 2}}" for title, figure in zip(_TITLES, figures, strict=True))
            print(f"{model:<14}{mode:<11}" + "".join(cells), flush=True)
            if abs(ratio - 1) > WITHIN:
                off[model, mode] = ratio
    assert off == {}
