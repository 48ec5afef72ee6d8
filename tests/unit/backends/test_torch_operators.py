"""Operators on PyTorch: calls and FLOPs by hand, times against torch's own tables, paths in odd models, and their graph."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import networkx
import pytest
import torch
from torch import fx, nn
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

import sweeprof
from support.torch_modules import Applied, Functional, Sleeping, resnet
from sweeprof.backends.torch import operators as module_under_test
from sweeprof.backends.torch.counting import count_layers
from sweeprof.backends.torch.model import TorchModel
from sweeprof.backends.torch.operators import (
    MODULE,
    NODE,
    PHASE,
    STEP,
    TorchTrace,
    _attributed,
    busy_seconds,
    kernel_rows,
    kernels_among,
    operators,
)
from sweeprof.backends.torch.training import count_training
from sweeprof.errors import Damaged, Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.results.graph import FRAME_COLUMNS, Graph
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.observations import OperatorRow, Operators

CPU = torch.device("cpu")


def traced(module: nn.Module, *given: Any, config: TrainingConfig | None = None, **keywords: Any) -> Operators:
    return operators(TorchModel(module, CPU), Work(Inputs(given, keywords), None, config))


def trained(module: nn.Module, *given: Any, optimizer: str = "sgd") -> Operators:
    return traced(module, *given, config=TrainingConfig(optimizer))


def rows_of(found: Operators, operator: str, phase: str = "forward") -> dict[str, OperatorRow]:
    """By path, where each has one row."""
    rows = [row for row in found.rows if (row.operator, row.phase) == (operator, phase)]
    assert len({row.path for row in rows}) == len(rows)
    return {row.path: row for row in rows}


def calls_of(found: Operators, operator: str, phase: str = "forward") -> dict[str, float]:
    calls: Counter[str] = Counter()
    for row in found.rows:
        if (row.operator, row.phase) == (operator, phase):
            calls[row.path] += row.calls  # type: ignore[assignment]  # a mean over steps
    return dict(calls)


def flops_of(found: Operators, phase: str = "forward") -> int:
    return sum(row.flops or 0 for row in found.rows if row.phase == phase)


def small_resnet() -> nn.Module:
    return resnet([1, 1], 10)


pytestmark = pytest.mark.usefixtures("one_thread")


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


# Calls and FLOPs


def test_calls_shapes_and_flops_of_a_forward_are_those_of_a_hand_count() -> None:
    found = traced(mlp(), torch.randn(3, 8))
    assert (found.mode, found.steps, found.flops_reason) == ("inference", 3, None)
    linear = rows_of(found, "aten::linear")
    assert {path: (row.calls, row.flops) for path, row in linear.items()} == {
        "0": (1, 2 * 3 * 8 * 16 + 3 * 16),
        "2": (1, 2 * 3 * 16 * 4 + 3 * 4),
    }
    assert linear["0"].input_shapes == ((3, 8), (16, 8), (16,))
    inner = rows_of(found, "aten::addmm")
    assert {path: (row.calls, row.flops) for path, row in inner.items()} == {"0": (1, None), "2": (1, None)}
    assert rows_of(found, "aten::relu")["1"].flops == 3 * 16
    assert {row.phase for row in found.rows} == {"forward"}
    assert not [row for row in found.rows if row.path == ROOT]
    assert all(row.device_self_s is None and row.device_total_s is None for row in found.rows)


def test_what_the_profiler_itself_does_is_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU torch gives it the kernels of the operator that it interrupts, and a call of the driver those of any other."""
    events_of: Callable[[profile], Any] = profile.events

    def on_gpu(profiler: profile) -> Any:
        found = events_of(profiler)
        product = next(event for event in found if event.name == "aten::addmm")
        times = (product.time_range.start, product.time_range.end)
        for name in ("Activity Buffer Request", "cudaDeviceSynchronize"):
            other = FunctionEvent(product.id, name, product.thread, *times, use_device="cuda")  # type: ignore[no-untyped-call]
            for event in (product, other):
                event.append_kernel("gemm", 0, 5)
            other.set_cpu_parent(product)  # type: ignore[no-untyped-call]
            product.append_cpu_child(other)
            found.insert(found.index(product) + 1, other)
            seen.append(other)
        return found

    seen: list[Any] = []
    monkeypatch.setattr(profile, "events", on_gpu)
    found = traced(mlp(), torch.randn(3, 8))
    assert seen
    assert not any(event.kernels for event in seen)
    assert {row.operator for row in found.rows} & {event.name for event in seen} == {"cudaDeviceSynchronize"}


def test_a_training_step_has_each_gradients_product_where_its_layer_is() -> None:
    found = trained(mlp(), torch.randn(3, 8))
    products = {
        (row.path, row.input_shapes): (row.calls, row.flops) for row in found.rows if row.operator == "aten::mm"
    }
    assert products == {
        ("2", ((3, 4), (4, 16))): (1, 2 * 3 * 4 * 16),
        ("2", ((4, 3), (3, 16))): (1, 2 * 4 * 3 * 16),
        ("0", ((16, 3), (3, 8))): (1, 2 * 16 * 3 * 8),  # the input wants no gradient
    }
    nodes = calls_of(found, f"{NODE}torch::autograd::AccumulateGrad", "backward")
    assert nodes == {"0": 2, "2": 2}
    assert calls_of(found, "aten::mean") == {OUTSIDE: 1}
    assert flops_of(found, "update") == sum(parameter.numel() for parameter in mlp().parameters())
    assert {row.path for row in found.rows if row.phase == "update"} == {OUTSIDE}


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (small_resnet, (1, 3, 32, 32)),
        (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), (2, 6, 32)),
        (lambda: nn.TransformerEncoderLayer(32, 4, 64).eval(), (6, 2, 32)),
        (lambda: nn.LSTM(16, 32, 2, bidirectional=True).eval(), (5, 2, 16)),
    ],
    ids=["resnet", "fast encoder layer", "encoder layer", "lstm"],
)
def test_flops_of_a_forward_are_those_of_the_layer_table(
    build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    module, given = build(), torch.randn(shape)
    table = count_layers(module, Inputs((given,)))
    assert flops_of(traced(module, given)) == sum(count.flops for row in table.rows for count in row.operators) > 0


def test_flops_of_a_training_step_are_those_of_the_analysis() -> None:
    module, given = small_resnet(), torch.randn(2, 3, 32, 32)
    found, counted = trained(module, given), count_training(module, Inputs((given,)))
    outputs = 2 * 10  # the mean of them is the loss here; the analysis adds them up
    assert flops_of(found) == counted.forward_flops + outputs
    assert flops_of(found, "backward") == counted.backward_flops + outputs


def test_products_of_several_shapes_in_one_module_are_told_apart() -> None:
    attention = Functional(lambda q, k: torch.softmax(q @ k.transpose(1, 2), -1) @ k)
    found = traced(attention, torch.randn(2, 5, 8), torch.randn(2, 7, 8))
    products = {row.input_shapes: row.flops for row in found.rows if row.operator == "aten::matmul"}
    assert products == {((2, 5, 8), (2, 8, 7)): 2 * 2 * 5 * 7 * 8, ((2, 5, 7), (2, 7, 8)): 2 * 2 * 5 * 7 * 8}


def test_an_operator_within_one_that_is_counted_is_not_counted_again() -> None:
    weight, bias = torch.randn(4, 8), torch.randn(4)

    def twice(x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, weight, bias) + torch.addmm(bias, x, weight.t())

    found = traced(Functional(twice), torch.randn(3, 8))
    one = 2 * 3 * 8 * 4 + 3 * 4
    assert rows_of(found, "aten::linear")[ROOT].flops == one
    assert (rows_of(found, "aten::addmm")[ROOT].calls, rows_of(found, "aten::addmm")[ROOT].flops) == (2, one)
    assert flops_of(found) == 2 * one + 3 * 4


def test_where_calls_differ_from_step_to_step_there_are_no_flops() -> None:
    calls = count(1)
    growing = Functional(lambda x: sum((x.exp() for _ in range(next(calls))), x.relu()))
    rows = rows_of(traced(growing, torch.randn(3)), "aten::exp")
    assert (rows[ROOT].calls, rows[ROOT].flops) == (6, None)  # warm-up 1 2, counted 3, first trace 4; 5 6 7


def test_a_step_that_cannot_be_counted_has_a_reason() -> None:
    def refusing(x: torch.Tensor) -> torch.Tensor:
        if _get_current_dispatch_mode() is not None:
            raise RuntimeError("not below Python")
        return x.relu()

    found = traced(Functional(refusing), torch.randn(3))
    assert found.flops_reason == "the step cannot be counted: RuntimeError: not below Python"
    assert rows_of(found, "aten::relu")[ROOT].flops is None


# Times and bytes


def test_self_times_add_up_to_the_step() -> None:
    module, given = small_resnet(), torch.randn(2, 3, 64, 64)
    shares = []
    for _ in range(10):  # another process may take the processor between two operators, but not each time
        found = trained(module, given)
        assert all(row.total_s >= row.self_s >= 0 for row in found.rows)
        shares.append(sum(row.self_s for row in found.rows) / found.step_s)
        if shares[-1] >= 0.8:
            break
    assert max(shares) >= 0.7  # 0.9 where nothing else runs
    assert max(shares) <= 1.02


@pytest.mark.slow
def test_totals_are_those_of_torchs_own_table() -> None:
    """An independent run of the profiler over the same steps, without anything of ours."""
    module, given = small_resnet(), torch.randn(1, 3, 32, 32)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)

    def step() -> None:
        loss = module.train()(given).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def table() -> dict[str, tuple[int, float]]:
        """Calls and seconds of three steps by operator."""
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(3):
                step()
        averages = [a for a in profiler.key_averages() if not a.is_user_annotation and a.key != "[memory]"]
        return {a.key: (a.count, a.self_cpu_time_total / 1e6) for a in averages}

    step()
    ratios = []
    for _ in range(10):  # another process may take the processor in the middle of an operator, but not each time
        totals, theirs = trained(module, given).totals(), table()
        assert {total.operator: 3 * total.calls for total in totals} == {name: n for name, (n, _) in theirs.items()}
        ratios.append(3 * sum(total.self_s for total in totals) / sum(seconds for _, seconds in theirs.values()))
        if 0.67 < ratios[-1] < 1.5:
            return
    pytest.fail(f"ours over theirs: {ratios}")


def test_bytes_are_those_that_the_tensors_take() -> None:
    found = traced(Functional(lambda x: (x.exp(), torch.zeros(1000))), torch.randn(250))
    assert rows_of(found, "aten::exp")[ROOT].allocated_bytes == 1000
    assert rows_of(found, "aten::empty")[ROOT].allocated_bytes == 4000
    assert rows_of(found, "aten::zeros")[ROOT].allocated_bytes == 0  # empty did it


def sleeping(x: torch.Tensor) -> Any:
    time.sleep(0.03)
    return Sleeping.apply(x, 0.02, 0.02)  # type: ignore[no-untyped-call]


def test_a_function_of_the_users_own_is_an_operator_and_a_sleep_in_python_is_none() -> None:
    found = trained(nn.Sequential(nn.Linear(4, 4), Functional(sleeping)), torch.randn(2, 4))
    assert found.step_s > 0.07
    assert 0.02 < rows_of(found, "Sleeping")["1"].self_s < 0.03
    backward = rows_of(found, "SleepingBackward", "backward")["1"]
    assert 0.02 < backward.self_s < 0.03
    assert sum(row.self_s for row in found.rows) < found.step_s - 0.03
    assert calls_of(found, "aten::mul") == {"1": 1}
    assert calls_of(found, "aten::mul", "backward") == {"1": 1}


# Paths


def sharing() -> nn.Module:
    """A layer under two parents, one called as ``forward``, one reused; returns what is no tensor."""

    def forward(module: Any, x: torch.Tensor) -> dict[str, Any]:
        x = module.direct.forward(module.right(x))
        return {"answer": [module.reused(module.reused(x))]}

    shared = nn.Linear(4, 4)
    parents = {"left": nn.ModuleDict({"inner": shared}), "right": nn.Sequential(shared)}
    return Applied(forward, **parents, direct=nn.Linear(4, 4), reused=nn.Linear(4, 4)).eval()


def test_paths_are_those_of_the_layer_table() -> None:
    module, given = sharing(), torch.randn(2, 4)
    found = traced(module, given)
    assert calls_of(found, "aten::linear") == {"right.0": 1, "direct": 1, "reused": 2}
    table = count_layers(module, Inputs((given,)))
    assert set(calls_of(found, "aten::linear")) == {row.path for row in table.rows if row.operators}
    assert calls_of(trained(module, given), "aten::mm", "backward") == {"right.0": 1, "direct": 2, "reused": 4}


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_what_a_checkpoint_computes_again_stays_with_its_modules(is_reentrant: bool) -> None:
    def forward(module: Any, x: torch.Tensor) -> Any:
        return checkpoint(module.inner, module.first(x), use_reentrant=is_reentrant)

    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    found = trained(Applied(forward, first=nn.Linear(4, 4), inner=inner), torch.randn(2, 4))
    assert calls_of(found, "aten::linear") == {"first": 1, "inner.0": 1, "inner.2": 1}
    assert calls_of(found, "aten::linear", "backward") == {"inner.0": 1, "inner.2": 1}
    assert calls_of(found, "aten::mm", "backward") == {"first": 1, "inner.0": 2, "inner.2": 2}


def test_a_scripted_model_has_no_modules_and_a_compiled_one_is_one() -> None:
    with pytest.warns((DeprecationWarning, FutureWarning)):
        script = torch.jit.trace(mlp(), torch.randn(3, 8))  # type: ignore[no-untyped-call]
    scripted = traced(script, torch.randn(3, 8))
    assert {row.path for row in scripted.rows} == {OUTSIDE}
    compiled = torch.compile(mlp(), backend="eager")
    found = traced(compiled, torch.randn(3, 8))  # type: ignore[arg-type]
    assert {row.path for row in found.rows} == {ROOT}
    assert calls_of(found, "aten::linear") == {ROOT: 2}


def event(id: int, name: str, start: float, end: float, thread: int = 1, **keywords: Any) -> FunctionEvent:
    made = FunctionEvent(id, name, thread, start, end, structured_input_shapes=[], **keywords)  # type: ignore[no-untyped-call]
    made.sequence_nr = keywords.get("sequence_nr", -1)
    return made


def test_on_an_accelerator_the_backward_runs_in_another_thread() -> None:
    """Events as the profiler makes them there, by hand."""
    cuda: dict[str, Any] = {"use_device": "cuda"}
    step, forward = event(0, STEP, 0, 100), event(1, f"{PHASE}forward", 0, 50)
    module = event(2, f"{MODULE}a", 1, 40)
    linear = event(3, "aten::linear", 2, 30, sequence_nr=7, fwd_thread=0, **cuda)
    backward = event(4, f"{PHASE}backward", 50, 100)
    node = event(5, f"{NODE}AddmmBackward0", 60, 70, 2, sequence_nr=7, fwd_thread=1, **cuda)
    mm = event(6, "aten::mm", 61, 69, 2, **cuda)
    adding = event(7, f"{NODE}torch::autograd::AccumulateGrad", 71, 75, 2, **cuda)
    for child, parent in ((forward, step), (module, forward), (linear, module), (backward, step), (mm, node)):
        child.set_cpu_parent(parent)  # type: ignore[no-untyped-call]
        parent.append_cpu_child(child)  # type: ignore[no-untyped-call]
    mm.append_kernel("gemm", 0, 5.0)  # type: ignore[no-untyped-call]
    found, entered = _attributed([step, forward, module, linear, backward, node, mm, adding])
    assert [(operator.path, operator.phase) for operator in found] == [("a", "forward"), *[("a", "backward")] * 3]
    assert entered == {"a": 1}
    rows = module_under_test._rows(TorchTrace(found, entered, 1, 1e-4, b""), {}, torch.device("cuda"))
    times = {row.operator: (row.device_self_s, row.device_total_s) for row in rows}
    assert times["aten::mm"] == pytest.approx((5e-6, 5e-6))
    assert times[f"{NODE}AddmmBackward0"] == pytest.approx((0, 5e-6))
    assert times["aten::linear"] == (0, 0)


def test_kernels_by_name_and_the_time_in_which_any_ran() -> None:
    """Events of a trace of two steps, by hand: two kernels overlap, one ends within another, an annotation is none."""
    cuda: dict[str, Any] = {"device_type": DeviceType.CUDA, "use_device": "cuda"}
    events = [
        event(0, "aten::mm", 0, 50),
        event(1, "gemm", 10, 20, **cuda),
        event(2, "relu", 15, 25, **cuda),
        event(3, "gemm", 40, 70, **cuda),
        event(4, "Memcpy DtoD", 50, 60, **cuda),
        event(5, "my range", 0, 100, is_user_annotation=True, **cuda),
    ]
    trace = TorchTrace((), {}, 2, 1e-4, b"", kernels_among(events))
    rows = kernel_rows(trace)
    assert [(row.name, row.calls) for row in rows] == [("gemm", 1.0), ("relu", 0.5), ("Memcpy DtoD", 0.5)]
    assert [row.device_s for row in rows] == pytest.approx([20e-6, 5e-6, 5e-6])
    assert [row.share for row in rows] == pytest.approx([2 / 3, 1 / 6, 1 / 6])
    assert busy_seconds(trace) == pytest.approx((15e-6 + 30e-6) / 2)
    on_host = TorchTrace((), {}, 2, 1e-4, b"", kernels_among(events[:1]))
    assert (kernel_rows(on_host), busy_seconds(on_host)) == ((), None)


def test_threads_number_their_nodes_each_for_itself() -> None:
    """A forward that a checkpoint computes again in the backward's thread, while that runs a node of the same number."""
    events = [
        event(0, f"{PHASE}backward", 0, 100),
        event(1, f"{MODULE}b", 10, 20, 2),
        event(2, "aten::relu", 11, 19, 2, sequence_nr=7, fwd_thread=0),
        event(3, "SumBackward0", 30, 40, 2, sequence_nr=7, fwd_thread=1),
        event(4, f"{NODE}ReluBackward0", 50, 60, 2, sequence_nr=7, fwd_thread=2),
    ]
    events[2].set_cpu_parent(events[1])  # type: ignore[no-untyped-call]
    found, _ = _attributed(events)
    assert [operator.path for operator in found] == ["b", OUTSIDE, "b"]


# The trace


def test_the_trace_has_modules_around_their_operators() -> None:
    found = trained(nn.Sequential(mlp(), nn.Tanh()), torch.randn(3, 8))
    packed = found.files["trace.json.gz"]
    assert len(packed) < 100_000
    events = [e for e in json.loads(gzip.decompress(packed))["traceEvents"] if e.get("ph") == "X"]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for one in events:
        by_name.setdefault(one["name"], []).append(one)

    def within(inner: str, outer: str) -> int:
        """How many of the inner have an outer around them."""
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in by_name[outer]]
        return sum(any(a <= e["ts"] and e["ts"] + e["dur"] <= b for a, b in spans) for e in by_name[inner])

    assert len(by_name[STEP]) == found.steps == 3
    for phase in ("forward", "backward", "update"):
        assert within(PHASE + phase, STEP) == 3
    assert within(f"{MODULE}{ROOT}", f"{PHASE}forward") == 3
    assert within(f"{MODULE}0", f"{MODULE}{ROOT}") == 3
    assert within("aten::linear", f"{MODULE}0") == 6
    assert within("aten::linear", f"{MODULE}0.2") == 3
    assert within("aten::tanh", f"{MODULE}0") == 0
    assert not any("Call stack" in e.get("args", {}) for e in events)


def test_a_module_may_have_any_name() -> None:
    module = nn.Sequential()
    module.add_module('a"b\\c\n☃', nn.ReLU())
    found = traced(module, torch.randn(2))
    assert list(rows_of(found, "aten::relu")) == ['a"b\\c\n☃']
    json.loads(gzip.decompress(found.files["trace.json.gz"]))


def test_long_steps_are_traced_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_under_test, "MOST_EVENTS", 20)
    found = traced(nn.Sequential(*[nn.ReLU() for _ in range(5)]), torch.randn(2))
    assert found.steps == 2
    assert sum(calls_of(found, "aten::relu").values()) == 5


def test_within_a_profiler_there_cannot_be_another() -> None:
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(Unsupported, match="there can be only one"):
        traced(mlp(), torch.randn(3, 8))
    assert traced(mlp(), torch.randn(3, 8)).rows


def test_totals_have_the_calls_and_times_of_key_averages() -> None:
    """The table of PyTorch's recipe on its profiler: ``prof.key_averages().table(sort_by="cpu_time_total")``."""
    model, x = mlp().eval(), torch.randn(3, 8)
    totals = traced(model, x).totals("total_s")
    by_name = {total.operator: total for total in totals}
    linear, addmm = by_name["aten::linear"], by_name["aten::addmm"]
    assert linear.total_s >= linear.self_s + addmm.total_s
    assert sum(total.self_s for total in totals) == pytest.approx(linear.step_self_s)
    assert [total.total_s for total in totals] == sorted((total.total_s for total in totals), reverse=True)


# The graph of a forward: its operators, the tensors between them, costs, memory and times


class WithinModules(fx.Tracer):
    """Traces the functions that modules call, instead of the calls of modules."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


class Residual(nn.Module):
    """A layer that is called twice, an operator with two results, a sum, and a weight that the model itself uses."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.LayerNorm(8), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu(self.norm(self.conv(x)))
        z = y + self.norm(y)
        first, second = z.chunk(2, 1)
        z = torch.cat([second, first], 1) * 2
        return self.head(z.mean((2, 3))) @ self.head.weight


def sparse_products(x: torch.Tensor) -> torch.Tensor:
    """By sparse matrices that it makes, one after the other."""
    for _ in range(4):
        places = torch.tensor([[0, 1], [1, 2]])
        edges = torch.sparse_coo_tensor(places, torch.ones(2), (5, 5))
        x = torch.sparse.mm(edges * 2, x)
    return x


def profile_of(model: nn.Module, inputs: Any = (2, 3, 8, 8), **settings: Any) -> sweeprof.Profile:
    metrics = ["compute/macs", "compute/flops", "memory/act_peak_live_bytes"]
    return sweeprof.profile(model, inputs, metrics, **settings)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (2, 3, 8, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16)),
    "sparse": (lambda: Functional(sparse_products), (5, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_totals_are_those_of_the_layers(name: str) -> None:
    build, shape = MODELS[name]
    model = build()
    profile_of(model, shape)  # the first one in a process also imports parts of torch, whose frames hold tensors
    profile = profile_of(model, shape)
    graph: Any = profile.graph
    layers: Any = profile.layers
    assert graph.macs == profile["compute/macs"].value
    assert graph.macs > 0
    assert graph.flops == profile["compute/flops"].value
    assert graph.peak.live_bytes == profile["memory/act_peak_live_bytes"].value
    assert graph.peak.scope == layers.liveness.peak_at
    for row in layers.rows:
        nodes = [node for node in graph.nodes if (node.scope, node.call) == (row.path, row.call)]
        assert sum(node.macs or 0 for node in nodes) == row.macs
        assert {node.type for node in nodes} <= {row.type}


def test_nodes_and_edges_are_those_of_torch_fx() -> None:
    model = Residual()
    graph = profile_of(model).graph
    traced = [node for node in WithinModules().trace(model).nodes if node.op != "get_attr"]
    # fx has a node for each element that is taken from a tuple.
    elements = [node for node in traced if getattr(node.target, "__name__", "") == "getitem"]
    steps = [node for node in traced if node not in elements]

    def sources(node: fx.Node) -> set[fx.Node]:
        found = [given.all_input_nodes[0] if given in elements else given for given in node.all_input_nodes]
        return {given for given in found if given.op != "get_attr"}

    expected = {(steps.index(source), place) for place, node in enumerate(steps) for source in sources(node)}
    assert len(graph.nodes) == len(steps)
    assert {(edge.source, edge.target) for edge in graph.edges} == expected


def test_a_node_has_scope_shapes_types_and_memory() -> None:
    graph = profile_of(Residual()).graph
    node = next(node for node in graph.nodes if node.name == "layer_norm_1")
    assert (node.operator, node.scope, node.call, node.type) == ("layer_norm", "norm", 1, "LayerNorm")
    assert [tensor.weight for tensor in node.weights] == ["norm.weight", "norm.bias"]
    assert [(tensor.shape, tensor.dtype) for tensor in node.inputs] == [((2, 4, 8, 8), "float32")]
    assert [tensor.shape for tensor in node.outputs] == [(2, 4, 8, 8)]
    # The result of relu, which is added afterwards, and its own.
    assert [graph.nodes[maker].name for maker in node.active] == ["relu", "layer_norm_1"]
    assert node.live_bytes == 2 * 4 * 2 * 4 * 8 * 8
    last = graph.nodes[-2]
    assert last.operator == "matmul"
    assert [tensor.weight for tensor in last.weights] == ["head.weight"]
    text = graph.to_text(width=400)
    assert "layer_norm_1" in text
    assert "float32" in text
    assert "<table" in graph._repr_html_()


def in_place(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    made = x * 2
    flat = made.view(-1)
    flat.add_(1)
    return made.sum(), torch.relu_(made)


def moving(module: Any, ids: torch.Tensor) -> torch.Tensor:
    """Each line is an operator; the comment has the elements read and written."""
    x = module.table(ids)  # 12 of the table, and 3 ids of 8 bytes; 12
    y = module.linear(x)  # 12 + 20 + 5; 15
    z = y.reshape(5, 3)  # a view
    z = z + z.mean(1, keepdim=True).expand(5, 3)  # 15; 5, a view, 15 + 5; 15
    z.mul_(2)  # 15; 15, in place
    z.zero_()  # 0; 15
    return torch.cat([z, z])  # 30; 30


def test_bytes_read_and_written_by_hand() -> None:
    model = Applied(moving, table=nn.Embedding(100, 4), linear=nn.Linear(4, 5))
    graph = profile_of(model, (torch.tensor([1, 2, 3]),)).graph
    found = {node.operator: (node.bytes_read, node.bytes_written) for node in graph.nodes if node.kind == "operator"}
    assert found["embedding"] == (4 * 12 + 3 * 8, 4 * 12)
    assert found["linear"] == (4 * 37, 4 * 15)
    assert found["mean"] == (4 * 15, 4 * 5)
    assert found["add"] == (4 * 20, 4 * 15)
    assert found["mul"] == (4 * 15, 4 * 15)
    assert found["zero"] == (0, 4 * 15)
    assert found["cat"] == (4 * 30, 4 * 30)
    views = [node for node in graph.nodes if node.operator in ("view", "reshape", "_unsafe_view", "expand")]
    assert views
    assert {(node.bytes_read, node.bytes_written) for node in views} == {(0, 0)}


def test_what_is_written_in_place_comes_from_the_last_writer() -> None:
    graph = profile_of(Functional(in_place), (2, 3)).graph
    names = [node.name for node in graph.nodes]
    edges = {(names[edge.source], names[edge.target]) for edge in graph.edges}
    assert edges == {("input", "mul"), ("mul", "view"), ("view", "add"), ("add", "sum"), ("add", "relu")} | {
        ("sum", "output"),
        ("relu", "output"),
    }
    assert [node.live_bytes for node in graph.nodes][1:-1] == [24, 24, 24, 28, 28]


def test_a_formula_of_a_module_replaces_the_costs_of_its_operators() -> None:
    def cost(module: Any, inputs: Any, outputs: Any) -> sweeprof.Cost:
        return sweeprof.Cost(macs=7)

    profile = profile_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), (2, 3), formulas={nn.Linear: cost})
    graph = profile.graph
    linear = graph.nodes[1]
    assert linear.macs is None
    assert linear.reason == "counted by the formula of Linear"
    assert graph.macs == profile["compute/macs"].value == 7
    assert graph.flops == profile["compute/flops"].value
    assert (graph.formulas[0].scope, graph.formulas[0].macs) == ("0", 7)


def test_an_operator_without_a_formula_has_a_reason() -> None:
    graph = profile_of(Functional(lambda x: torch.linalg.eigvals(x).abs()), (3, 3), strict="ignore").graph
    node = next(node for node in graph.nodes if node.operator == "linalg_eig")
    assert (node.macs, node.reason) == (None, "no formula for linalg_eig")


def by_value(module: Any, x: torch.Tensor) -> Any:
    return module.layer(x) if float(x.sum()) > 0 else x + 1


def test_a_forward_that_needs_values() -> None:
    model = Applied(by_value, layer=nn.Linear(3, 3))
    graph = profile_of(model, torch.ones(2, 3)).graph
    assert graph.method.startswith("real forward")
    assert [node.operator for node in graph.nodes if node.kind == "operator"][-1] == "linear"
    profiler = sweeprof.Profiler(model.to("meta"), inputs=torch.ones(2, 3, device="meta"))
    with pytest.raises(sweeprof.Unsupported, match="needs values"):
        _ = profiler.graph


def test_as_json_frame_and_networkx(tmp_path: Path) -> None:
    graph = profile_of(Residual()).graph
    data = json.loads(graph.to_json(tmp_path / "graph.json", indent=1))
    assert json.loads((tmp_path / "graph.json").read_text(encoding="utf-8")) == data
    assert Graph.from_dict(data) == graph
    assert [(edge["source"], edge["target"]) for edge in data["edges"]] == [(e.source, e.target) for e in graph.edges]
    frame = graph.to_frame()
    assert list(frame.columns) == FRAME_COLUMNS
    assert frame["macs"].sum() == graph.macs
    assert frame.set_index("name").loc["chunk", "out_nodes"] == ["cat"]
    drawn = graph.to_networkx()
    assert networkx.is_directed_acyclic_graph(drawn)
    assert next(iter(drawn)) == "input"
    assert drawn.nodes["conv2d"]["macs"] == 2 * 4 * 64 * 27
    assert drawn.edges["chunk", "cat"]["shapes"] == [(2, 2, 8, 8)]
    assert networkx.dag_longest_path(drawn)[-1] == "output"
    assert json.dumps(networkx.node_link_data(drawn, edges="edges"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda nodes: nodes[2]["arguments"][0].update(source=5), "an earlier node"),
        (lambda nodes: nodes[1].update(active=[9]), "up to this one"),
    ],
)
def test_damaged_data(change: Callable[[Any], None], message: str) -> None:
    data = json.loads(profile_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), (2, 3)).graph.to_json())
    change(data["nodes"])
    with pytest.raises(Damaged, match=message):
        Graph.from_dict(data)


def test_times_are_those_of_the_traced_operators() -> None:
    profiler = sweeprof.Profiler(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU()), inputs=(2, 3))
    assert {node.seconds for node in profiler.graph.nodes} == {None}
    operators: Any = profiler.seen("operators")
    nodes = [node for node in profiler.graph.nodes if node.kind == "operator"]
    rows = {(row.path, row.operator): row for row in operators.rows}
    assert [node.scope for node in nodes] == ["0", "1", "2", "3"]
    for node in nodes:
        row = rows[node.scope, f"aten::{node.operator}"]
        assert node.seconds == pytest.approx(row.total_s / row.calls)
    assert "  seconds  " in profiler.graph.to_text(width=400)
    fewer = profiler.graph.with_times(sweeprof.Operators("inference", (), 1, 1.0))
    assert "ran it 0 times in this module, the graph 1 times" in str(fewer.nodes[1].seconds_reason)


def test_custom_metrics_read_the_graph() -> None:
    @sweeprof.metric(name="mine/widest", unit="tensors", better=None)
    def widest(graph: Graph) -> int:
        """Most tensors alive at once."""
        return max(len(node.active) for node in graph.nodes)

    profiler = sweeprof.Profiler(Residual(), inputs=(2, 3, 8, 8))
    profiler.register(widest)
    assert profiler.compute("mine/widest").value == 5


class MyModule(nn.Module):
    """The example of the page on torch.fx, which the tutorial on profiling links to."""

    def __init__(self) -> None:
        super().__init__()
        self.param = nn.Parameter(torch.rand(3, 4))
        self.linear = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(torch.sum(self.linear(x + self.linear.weight).relu(), dim=-1), 3)  # type: ignore[return-value]


def test_the_example_of_torch_fx() -> None:
    graph = profile_of(MyModule(), (5, 4)).graph
    assert [node.operator for node in graph.nodes if node.kind == "operator"] == [
        "add",
        "linear",
        "relu",
        "sum",
        "topk",
    ]
    assert [tensor.weight for tensor in graph.nodes[1].arguments] == [None, "linear.weight"]
    assert functional.linear.__name__ == graph.nodes[2].operator
