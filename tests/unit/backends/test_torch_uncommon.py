"""Counts and times of models whose forward does uncommon things: each is counted as it runs, or refused with a reason."""

from __future__ import annotations

import asyncio
import copy
import inspect
import queue
import re
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache, lru_cache, partial
from itertools import count
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import MethodType
from typing import Any, get_type_hints

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import sweeprof
from support.torch_modules import Applied
from sweeprof.errors import Unsupported, UserError


def product(outputs: int) -> nn.Module:
    return nn.Linear(16, outputs, bias=False)


def values(model: Any, inputs: Any, *names: str, **settings: Any) -> list[Any]:
    profile = sweeprof.profile(model, inputs, names, progress=False, **settings)
    return [profile[name].value for name in names]


def macs(model: Any, *inputs: Any, **settings: Any) -> Any:
    return values(model, inputs, "compute/macs", **settings)[0]


def early(calls: Any) -> nn.Module:
    """Skips its layer after a number of calls, which is kept in a place that blocks may share."""

    def forward(module: Any, x: torch.Tensor) -> Any:
        next(calls)
        return module.layer(x) if calls.__reduce__()[1][0] <= 2 else x

    return Applied(forward, layer=product(16))


def test_equal_blocks_are_counted_each() -> None:
    x = torch.randn(3, 16)
    assert macs(nn.Sequential(*[early(count()) for _ in range(4)]), x) == 4 * 3 * 256
    calls = count()
    assert macs(nn.Sequential(*[early(calls) for _ in range(4)]), x) == 2 * 3 * 256


QUICK = sweeprof.Protocol(min_s=0.02, warmup_s=0.01)
PASSES = ("timing", "layer_times", "operators", "allocations")


def members(run: Callable[[Any, torch.Tensor], Any]) -> nn.Module:
    """Four layers that a function runs."""
    return Applied(lambda module, x: run(module.layers, x), layers=nn.ModuleList(product(8) for _ in range(4)))


def seen(name: str, model: Any, *inputs: Any, mode: Any = "inference", **settings: Any) -> Any:
    given = sweeprof.Inputs(inputs)
    return sweeprof.Profiler(model, inputs=given, mode=mode, protocol=QUICK, progress=False, **settings).seen(name)


# Other threads


EARLIER: dict[str, Any] = {}
"""Pools and an event loop whose threads are there before anything is counted."""


@pytest.fixture(scope="module", autouse=True)
def earlier_pools() -> Iterator[None]:
    with ThreadPoolExecutor(2) as executor, ThreadPool(2) as pool:
        for starts in (executor.map, pool.map):
            list(starts(abs, range(8)))
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        EARLIER.update(executor=executor, pool=pool, loop=loop)
        yield
        loop.call_soon_threadsafe(loop.stop)


class Worker(threading.Thread):
    def __init__(self, layer: nn.Module, x: torch.Tensor) -> None:
        super().__init__()
        self.layer, self.x, self.result = layer, x, x

    def run(self) -> None:
        self.result = self.layer(self.x)


def by_threads_of_a_class(layers: Any, x: torch.Tensor) -> list[torch.Tensor]:
    workers = [Worker(layer, x) for layer in layers]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [worker.result for worker in workers]


async def gathered(layers: Any, x: torch.Tensor) -> Any:
    return await asyncio.gather(*(asyncio.to_thread(layer, x) for layer in layers))


def asked(function: Callable[[], Any]) -> Any:
    """What a function returns in a thread that is no pool's."""

    async def answer() -> Any:
        return function()

    return asyncio.run_coroutine_threadsafe(answer(), EARLIER["loop"]).result()


UNSEEN: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "functions in an earlier thread": lambda layers, x: [asked(partial(torch.mm, x, m.weight.t())) for m in layers],
    "a function of a layer's output": lambda layers, x: [asked(lambda: m(x) @ m.weight) for m in layers],  # noqa: B023
}
"""Forwards that run operators in a thread from before, in no call of a module."""

IN_THREADS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "threads of a class": by_threads_of_a_class,
    "an earlier executor": lambda layers, x: list(EARLIER["executor"].map(lambda layer: layer(x), layers)),
    "functions in an earlier executor": lambda layers, x: [
        task.result() for task in [EARLIER["executor"].submit(torch.mm, x, layer.weight.t()) for layer in layers]
    ],
    "an earlier pool": lambda layers, x: EARLIER["pool"].map(lambda layer: x @ layer.weight.t(), layers),
    "tasks of a pool": lambda layers, x: [
        task.get() for task in [EARLIER["pool"].apply_async(m, (x,)) for m in layers]
    ],
    "an earlier event loop": lambda layers, x: [asked(partial(layer, x)) for layer in layers],
    "asyncio": lambda layers, x: asyncio.run(gathered(layers, x)),
    "futures that are returned": lambda layers, x: [EARLIER["executor"].submit(layer, x) for layer in layers],
}


def busy_beside(layers: Any, x: torch.Tensor) -> Any:
    """Another thread works on something else."""
    EARLIER["loop"].call_soon_threadsafe(sum, range(100_000))
    return [layer(x) for layer in layers]


@pytest.mark.parametrize("run", [*IN_THREADS.values(), busy_beside], ids=[*IN_THREADS, "another thread is busy"])
def test_operators_in_other_threads_are_counted(run: Callable[[Any, torch.Tensor], Any]) -> None:
    x = torch.randn(3, 16)
    assert values(members(run), x, "compute/macs", "compute/coverage") == [4 * 3 * 16 * 8, 1.0]


@pytest.mark.parametrize("name", ["layer_times", "operators", "allocations"])
@pytest.mark.parametrize("how", ["threads of a class", "an earlier event loop", "functions in an earlier thread"])
def test_what_cannot_see_other_threads_says_so(how: str, name: str) -> None:
    with pytest.raises(Unsupported, match="the model runs operators in other threads"):
        seen(name, members((IN_THREADS | UNSEEN)[how]), torch.randn(3, 16))


@pytest.mark.parametrize("how", UNSEEN)
def test_operators_that_are_not_seen_leave_no_count(how: str) -> None:
    names = ["params/total", "compute/macs", "compute/coverage", "compute/flops_train"]
    profile = sweeprof.profile(members(UNSEEN[how]), torch.randn(3, 16), names, progress=False)
    assert [profile[name].value for name in names] == [4 * 16 * 8, None, None, None]
    for name in names[1:]:
        said = r"in other threads, which counting cannot follow: aten::\w+ ×\d.* in a thread"
        assert re.search(said, profile[name].reason or "")


def keeping_its_first_input(module: Any, x: torch.Tensor) -> Any:
    """Aligns every further input with the first one, while an earlier thread works on something else."""
    asked(partial(sum, range(100_000)))
    if not module.kept:
        module.kept.append(x)
        return module.key(x)
    return module.key(module.align(x - module.kept[0]))


def test_a_training_step_that_is_counted_again_is_the_first_one_again() -> None:
    model = Applied(keeping_its_first_input, key=product(8), align=product(16))
    model.kept = []  # type: ignore[assignment]
    counted = seen("training", model, torch.randn(3, 16), mode="training")
    assert counted.estimated is None
    assert (counted.forward_macs, counted.backward_macs) == (3 * 16 * 8, 3 * 16 * 8)


def test_threads_are_left_as_they_were() -> None:
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit
    macs(members(IN_THREADS["asyncio"]), torch.randn(3, 16))
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == (start, submit)
    assert "apply_async" not in vars(ThreadPool)


# Forwards that are evaluated lazily


def slow(results: Callable[[Any], Any]) -> nn.Module:
    def step(module: Any, x: torch.Tensor) -> Any:
        time.sleep(0.002)
        return module.layer(x)

    return Applied(lambda module, x: results(partial(step, module, x)), layer=product(16))


@pytest.mark.parametrize(
    "results",
    [
        lambda step: zip(*[(step() for _ in range(3))], strict=True),
        lambda step: {"all": (step() for _ in range(3))},
        lambda step: (step(), [iter([step()]), (step() for _ in range(1))]),
    ],
)
def test_what_is_lazy_in_the_results_is_counted_and_timed(results: Callable[[Any], Any]) -> None:
    x = torch.randn(3, 16)
    assert macs(slow(results), x) == 3 * 3 * 256
    assert min(seen("timing", slow(results), x).samples) >= 0.006


def stages(module: Any, x: torch.Tensor) -> Any:
    for _ in range(3):
        x = module.layer(x)
        yield x @ x.t()


def last_stage(module: Any, x: torch.Tensor) -> Any:
    *_, last = module.stages(x)
    return last


STAGES = Applied(stages, layer=product(16))


@pytest.mark.parametrize(("model", "path"), [(STAGES, "__root__"), (Applied(last_stage, stages=STAGES), "stages")])
def test_a_generator_is_counted_where_it_is_written(model: nn.Module, path: str) -> None:
    profile = sweeprof.profile(model, torch.randn(3, 16), ["compute/macs"], progress=False)
    assert {row.path: row.macs for row in profile.layers.rows}[path] == 3 * 3 * 3 * 16
    assert profile["compute/macs"].value == 3 * (3 * 3 * 16 + 3 * 256)
    with pytest.raises(Unsupported, match="a module returns a generator"):
        seen("layer_times", model, torch.randn(3, 16))


def test_a_coroutine_is_refused_with_what_runs_it() -> None:
    class Awaited(nn.Linear):
        async def forward(self, x: torch.Tensor) -> Any:  # type: ignore[override]
            return super().forward(x)

    x = torch.randn(3, 16)
    message = r"forward=lambda model, x: asyncio\.run\(model\(x\)\)"
    for name in ("timing", "analysis"):
        with pytest.raises(Unsupported, match=message):
            seen(name, Awaited(16, 8), x)
    assert macs(Awaited(16, 8), x, forward=lambda model, x: asyncio.run(model(x))) == 3 * 16 * 8


# Attention whose operands broadcast


@pytest.mark.parametrize(
    ("shapes", "products"),
    [
        ([(3, 1, 5, 8), (1, 2, 7, 8), (3, 1, 7, 4)], 3 * 2 * 5 * 7 * (8 + 4)),
        ([(5, 8), (6, 7, 8), (7, 8)], 6 * 5 * 7 * (8 + 8)),
        ([(1, 1, 5, 8), (1, 1, 7, 8), (1, 1, 7, 8), (4, 1, 5, 7)], 5 * 7 * 8 + 4 * 5 * 7 * 8),  # the last is a mask
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_counts_the_products_of_broadcast_operands(shapes: Any, products: int, device: str) -> None:
    given = [torch.randn(shape, device=device) for shape in shapes]
    assert macs(functional.scaled_dot_product_attention, *given) == products


# Models that look at their own forward


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = product(16)

    def forward(self, x: torch.Tensor, last_only: bool = False) -> Any:
        """Apply the layer."""
        return self.layer(x[:, -1:] if last_only else x)


LOOKS: dict[str, Callable[[Any], bool]] = {
    "source": lambda head: "last_only" in inspect.getsource(head.forward),
    "defaults": lambda head: head.forward.__defaults__ == (False,),
    "annotations": lambda head: "last_only" in get_type_hints(head.forward),
    "equal": lambda head: head.forward == Head.forward.__get__(head),
    "class": lambda head: isinstance(head.forward, MethodType) and head.forward.__self__ is head,
    "documentation": lambda head: head.forward.__doc__ == "Apply the layer.",
    "a copy": lambda head: copy.deepcopy(head).forward.__code__ is Head.forward.__code__,
}


def test_a_model_finds_its_own_forward() -> None:
    looked: list[list[str]] = []

    def forward(module: Any, x: torch.Tensor) -> Any:
        looked.append([name for name, finds in LOOKS.items() if finds(module.head)])
        return module.head(x, last_only=True)

    model, x = Applied(forward, head=Head()), torch.randn(2, 5, 16)
    table = sweeprof.profile(model, x, ["compute/macs"], progress=False).layers
    assert next(row for row in table.rows if row.path == "head.layer").input_shapes == ((2, 1, 16),)
    assert seen("layer_times", model, x, mode="training").calls
    assert seen("operators", model, x).rows
    assert looked == [list(LOOKS)] * len(looked)


# Gradients within a forward


class Energy(nn.Module):
    """The gradient of an energy, taken in one of several ways."""

    def __init__(self, gradient: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.gradient = nn.Parameter(torch.eye(4)), gradient

    def energy(self, x: torch.Tensor) -> Any:
        return 0.5 * ((x @ self.weight) ** 2).sum()

    def forward(self, x: torch.Tensor) -> Any:
        return self.gradient(self.energy, x)


@torch.enable_grad()
def backward(energy: Any, x: torch.Tensor) -> Any:
    x = x.detach().clone().requires_grad_()
    energy(x).backward(inputs=[x])
    assert x.grad is not None
    return x.grad


def as_if_enabled(energy: Any, x: torch.Tensor) -> Any:
    """As in networks that are trained on a differential equation."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(energy(x), x, create_graph=True)[0]


GRADIENTS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "backward": backward,
    "as if enabled": as_if_enabled,
    "functional": lambda energy, x: torch.autograd.functional.vjp(energy, x)[1],  # type: ignore[no-untyped-call]
    "torch.func": lambda energy, x: torch.func.grad(energy)(x),
}


def tangent(module: Any, x: torch.Tensor) -> Any:
    """How the outputs change along the inputs, by forward-mode differentiation."""
    ad: Any = forward_ad
    with ad.dual_level():
        return ad.unpack_dual(module.layers(ad.make_dual(x, x))).tangent


@pytest.mark.filterwarnings("ignore:`torch.jit")  # torch scripts formulas of its own
@pytest.mark.filterwarnings("ignore::sweeprof.UncountedWarning")  # the sum of biases' tangents, which are zero
@pytest.mark.parametrize("take", [tangent, lambda module, x: torch.func.jvp(module.layers, (x,), (x,))[1]])
def test_a_forward_that_takes_tangents(take: Any) -> None:
    """Of each product: itself, its tangent by the inputs, and by the weights, which is multiplied though it is zero."""
    results: list[object] = []

    def noting(module: Any, x: torch.Tensor) -> Any:
        results.append(take(module, x))
        return results[-1]

    model, x = Applied(noting, layers=nn.Sequential(product(8), nn.Tanh(), nn.Linear(8, 2))), torch.randn(4, 16)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    assert macs(model, x) == counter.get_total_flops() // 2
    results.clear()
    for name in PASSES:
        seen(name, model, x)
        assert isinstance(results[-1], torch.Tensor)


@pytest.mark.parametrize("how", GRADIENTS)
def test_a_forward_that_takes_gradients(how: str) -> None:
    labels = torch.arange(8) % 4
    x = functional.one_hot(labels, 4).float()
    profiler = sweeprof.Profiler(Energy(GRADIENTS[how]), data={"test": [(x, labels)]}, progress=False)
    assert profiler.compute("quality/accuracy").value == 1.0
    assert profiler.compute("compute/macs").value == 2 * 8 * 16
    for name in PASSES:
        seen(name, Energy(GRADIENTS[how]), x)


def test_a_model_that_takes_no_gradients_runs_in_inference_mode() -> None:
    modes: list[bool] = []

    class Noting(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            modes.append(torch.is_inference_mode_enabled())
            with torch.no_grad():  # which does not switch autograd on, nor does its end
                return super().forward(x)

    seen("timing", Noting(4, 4), torch.randn(2, 4))
    assert all(modes)


def test_a_forward_that_takes_gradients_leaves_the_next_one_in_inference_mode() -> None:
    modes: list[bool] = []
    model, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)
    model.register_forward_pre_hook(lambda *_: modes.append(torch.is_inference_mode_enabled()))

    def forces(model: Any, x: torch.Tensor) -> Any:
        return torch.autograd.grad(model(x.clone().requires_grad_()).sum(), model.weight)

    sweeprof.profile(model, x, ["latency/forward"], protocol=QUICK, progress=False, forward=forces)
    assert not modes[-1]
    modes.clear()
    seen("timing", model, x)
    assert modes
    assert all(modes)


# Autocast


class Autocast(nn.Linear):
    def __init__(self, is_enabled: bool) -> None:
        super().__init__(16, 8)
        self.is_enabled = is_enabled

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_enabled):
            return super().forward(x)


BY_DEVICE = "autocast chooses data types by the device of a tensor"


@pytest.mark.parametrize(
    ("make", "around", "dtype", "method"),
    [
        (lambda: Autocast(True), None, "bfloat16", f"real forward: {BY_DEVICE}"),
        (lambda: Autocast(False), None, "float32", "shapes"),
        (lambda: nn.Linear(16, 8), True, "bfloat16", f"real forward: {BY_DEVICE}"),
        (lambda: nn.Linear(16, 8, device="meta"), True, "float32", f"shapes, without autocast: {BY_DEVICE}"),
    ],
)
def test_autocast_is_counted_as_it_runs(
    make: Callable[[], nn.Module], around: bool | None, dtype: str, method: str
) -> None:
    switch = torch.set_autocast_enabled
    with nullcontext() if around is None else torch.autocast("cpu", torch.bfloat16, enabled=around):
        profile = sweeprof.profile(make(), (3, 16), ["compute/macs", "memory/act_sum_bytes"], progress=False)
    assert torch.set_autocast_enabled is switch
    assert profile["compute/macs"].value == 3 * 16 * 8
    assert profile["memory/act_sum_bytes"].value == 3 * 8 * (2 if dtype == "bfloat16" else 4)
    layers = profile.layers
    assert layers.method == method
    assert layers.rows[0].output_dtypes == (dtype,)


# Objects among the inputs


class Kept:
    """A state that a forward adds to."""

    __slots__ = ("count", "lock", "parts")

    def __init__(self, *parts: torch.Tensor) -> None:
        self.parts, self.count = deque(parts), 0


def append(module: Any, x: torch.Tensor, state: Any) -> Any:
    kept = state["kept"] if isinstance(state, dict) else state
    kept.parts.append(module.project(x))
    kept.count += 1
    return x @ torch.cat(list(kept.parts), 1).transpose(1, 2)


@pytest.mark.parametrize("wrap", [lambda kept: kept, lambda kept: {"kept": kept}])
def test_an_object_among_the_inputs_is_copied_and_its_growth_is_told(wrap: Callable[[Kept], Any]) -> None:
    kept, x = Kept(torch.zeros(2, 3, 8)), torch.randn(2, 1, 8)
    model = Applied(append, project=nn.Linear(8, 8, bias=False))
    expected = 2 * 8 * 8 + 2 * 1 * 8 * 4
    assert macs(model, x, wrap(kept)) == expected
    assert macs(model, x, wrap(kept), forward=lambda model, x, state: model(x, state)) == expected
    timing = seen("timing", model, x, wrap(kept))
    assert "inputs_changed" in [warning.code for warning in timing.warnings]
    assert (len(kept.parts), kept.count, kept.parts[0].device.type) == (1, 0, "cpu")


class Counter:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.state = {"h": tensor}


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_replaced_tensor_of_a_state_is_a_change(is_kept: bool) -> None:
    def forward(module: Any, x: torch.Tensor, counter: Counter) -> Any:
        new = module.layer(x + counter.state["h"]).tanh()
        if is_kept:
            counter.state["h"] = new
        return new

    model = Applied(forward, layer=nn.Linear(8, 8))
    timing = seen("timing", model, torch.randn(2, 8), Counter(torch.zeros(2, 8)))
    assert ("inputs_changed" in [warning.code for warning in timing.warnings]) is is_kept


# What a model holds beside its parameters and buffers, and what its forward writes into these


class Grown(list[Any]):
    """Cannot be copied, and counts its elements itself."""

    __slots__ = ("appended",)

    def __init__(self, *, appended: int) -> None:
        self.appended = appended

    def append(self, element: Any) -> None:
        self.appended += 1
        super().append(element)


class Stateful(nn.Module):
    """Keeps something of each call in every kind of place; its results have as many rows as all calls had."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.cache, self.grown = Kept(), Grown(appended=0)
        self.last: deque[Any] = deque(maxlen=4)
        self.by_name, self.nested = defaultdict(list), {"a": ({"b": []}, set())}  # type: ignore[var-annotated]
        self.ordered = OrderedDict(first=0, last=0)
        self.mean, self.generator = torch.ones(8), torch.Generator().manual_seed(0)
        self.queue: queue.Queue[int] = queue.Queue()

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        self.cache.parts.append(y)
        self.cache.count += 1
        self.grown.append(y)
        self.last.append(y)
        self.by_name["y"].append(y)
        self.nested["a"][0]["b"].append(y)
        self.nested["a"][1].add(y)
        self.ordered.move_to_end("first")
        self.mean.mul_(0.5).add_(y.mean(0), alpha=0.5)
        self.queue.put(1)
        return y @ torch.cat(list(self.cache.parts)).T * torch.rand(1, generator=self.generator)

    def state(self) -> tuple[object, ...]:
        lists = (self.cache.parts, self.grown, self.last, self.by_name, self.nested["a"][0]["b"], self.nested["a"][1])
        counts = (self.cache.count, self.grown.appended, list(self.ordered))
        return *map(len, lists), *counts, self.mean.tolist(), self.generator.get_state().tolist()


def test_what_a_forward_keeps_of_its_calls_is_forgotten() -> None:
    model, x = Stateful().eval(), torch.randn(2, 8)
    model(x)
    before = model.state()
    for _ in range(2):
        assert macs(model, x) == 2 * 8 * 8 + 2 * (2 + 2) * 8
        assert model.state() == before
    for name in PASSES:
        seen(name, model, x)
        assert model.state() == before, name
    assert model.queue.qsize() > 1  # other threads may wait for it
    model(x)
    assert len(model.last) == 2


def test_an_executor_and_what_threads_share_go_on() -> None:
    class Shared:
        def __init__(self) -> None:
            self.lock, self.done = threading.Lock(), []  # type: ignore[var-annotated]

    def forward(module: Any, x: torch.Tensor) -> Any:
        with module.shared.lock:
            module.shared.done.append(len(x))
        return module.executor.submit(module.layer, x).result()

    model: Any = Applied(forward, layer=product(8))
    model.shared, model.executor = Shared(), ThreadPoolExecutor(1)
    x = torch.randn(3, 16)
    with model.executor:
        assert macs(model, x) == macs(model, x) == 3 * 16 * 8
        assert model(x).shape == (3, 8)
    assert model.shared.done == [3] * len(model.shared.done) != [3]


class Clamped(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        self.weight.data.clamp_(min=0)
        return super().forward(x)


@lru_cache
def causal(tokens: int) -> torch.Tensor:
    return torch.full((tokens, tokens), float("-inf")).triu(1)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    @staticmethod
    @cache
    def rotation(tokens: int) -> torch.Tensor:
        return torch.outer(torch.arange(tokens), torch.ones(8)).cos()

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x) * self.rotation(len(x))
        return torch.softmax(y @ y.T + causal(len(x)), -1) @ y


def test_results_that_functions_remember_are_forgotten() -> None:
    tokens = 300  # the mask of so many is on meta while it is counted
    model, x = Masked(), torch.randn(tokens, 8)
    assert macs(model, x) == tokens * 8 * 8 + 2 * tokens * tokens * 8
    assert causal.cache_info().currsize == 0
    assert model.rotation.cache_info().currsize == 0
    seen("timing", model, x)
    model(x).sum().backward()
    mask = causal(tokens)
    seen("timing", model, x)
    assert causal(tokens) is mask


@pytest.mark.parametrize(
    ("model", "x", "mode"),
    [
        (nn.Embedding(16, 8, max_norm=0.1), torch.arange(16), "inference"),
        (Clamped(8, 8), torch.randn(16, 8), "training"),
    ],
)
def test_what_a_forward_writes_into_its_parameters_is_undone(model: Any, x: torch.Tensor, mode: str) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    held = [tensor for parameter in model.parameters() for tensor in (parameter, parameter.grad)]
    before = [tensor.detach().clone() for tensor in held]
    for name in PASSES:
        seen(name, model, x, mode=mode)
        after = [tensor for parameter in model.parameters() for tensor in (parameter, parameter.grad)]
        assert all(one is other for one, other in zip(held, after, strict=True))
        assert all(map(torch.equal, before, held)), name


# Parameters


def test_parameters_of_decorated_bound_methods() -> None:
    class Coder(nn.Linear):
        @torch.no_grad()
        def encode(self, x: torch.Tensor) -> Any:
            return self(x)

    encode = Coder(16, 16).encode
    for model in (encode, torch.no_grad()(encode), partial(encode)):
        assert values(model, torch.randn(3, 16), "params/total", "compute/macs") == [272, 768]


@pytest.mark.parametrize(
    ("view", "buffers"), [(lambda weight: weight[2:5], 0), (lambda weight: weight[2:5].clone(), 48)]
)
def test_a_buffer_in_the_memory_of_a_parameter_is_no_further_one(
    view: Callable[[torch.Tensor], torch.Tensor], buffers: int
) -> None:
    model: Any = Applied(lambda module, x: module.inner(x), inner=product(8))
    model.register_buffer("mirror", view(model.inner.weight.data))
    names = ["params/total", "params/buffers", "size/params_bytes", "size/buffers_bytes"]
    profile = sweeprof.profile(model, torch.randn(3, 16), names, progress=False)
    assert [profile[name].value for name in names] == [128, buffers, 512, 4 * buffers]
    tree: Any = profile.layers.inclusive().rows[0].subtree
    assert tree.params == 128


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_sparse_tensor_has_the_bytes_that_it_stores() -> None:
    matrix = torch.zeros(4, 4)
    matrix[0, 1] = matrix[1, 0] = matrix[3, 2] = 1.0
    graph = Applied(lambda module, x: torch.sparse.mm(module.matrix, x))
    graph.matrix = nn.Parameter(matrix.to_sparse())
    graph.register_buffer("other", matrix.to_sparse_csc())
    sizes = values(graph, torch.randn(4, 2), "size/params_bytes", "size/buffers_bytes")
    assert sizes == [3 * 4 + 2 * 3 * 8, 3 * 4 + (3 + 5) * 8]


# Kinds of models and inputs


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_frozen_modules_have_the_weights_in_their_graph(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4, bias=False)).eval()
    frozen = torch.jit.freeze(torch.jit.script(net))
    torch.jit.save(frozen, tmp_path / "frozen.pt")
    x = torch.randn(3, 8)
    for model in (frozen, torch.jit.load(tmp_path / "frozen.pt"), nn.Sequential(frozen)):  # type: ignore[no-untyped-call]
        found = values(model, x, "compute/macs", "params/total", "size/params_bytes")
        assert found == [3 * (8 * 16 + 16 * 4), 208, 832]
        assert seen("timing", model, x).samples


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_module_runs_in_the_mode_of_the_pass() -> None:
    """Its flag is in C++."""
    zeros: list[bool] = []

    def noting(module: Any, x: torch.Tensor) -> Any:
        result = module.inner(x)
        zeros.append(not result.is_meta and bool((result == 0).any()))
        return result

    x = torch.rand(16, 8)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout())
    scripted = torch.jit.script(net)
    seen("timing", Applied(noting, inner=scripted), x)
    assert zeros
    assert not any(zeros)
    assert [inner.training for inner in scripted.modules()] == [True] * 4
    seen("timing", Applied(noting, inner=scripted).eval(), x, mode="training")
    assert any(zeros)
    assert torch.equal(scripted(x), scripted(x))


def gram(x: torch.Tensor) -> torch.Tensor:
    return x @ x.t()


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_programs_and_functions_of_torch_are_models() -> None:
    x = torch.randn(3, 8)
    program = torch.export.export(nn.Sequential(nn.Linear(8, 16), nn.ReLU()).eval(), (x,))
    assert values(program, x, "compute/macs", "params/total") == [3 * 8 * 16, 144]
    for function in (torch.jit.script(gram), torch.jit.trace(gram, x), torch.ops.aten.mm):  # type: ignore[no-untyped-call]
        given = (x,) if function is not torch.ops.aten.mm else (x, x.t())
        assert macs(function, *given) == 3 * 3 * 8
        assert seen("timing", function, *given).samples


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("thing", [torch.optim.Adam([torch.zeros(1)]), torch.zeros(1)])
def test_what_is_no_model_is_refused(thing: object, backend: str) -> None:
    with pytest.raises(UserError, match=f"model: '{type(thing).__name__}' is not a model of a framework"):
        sweeprof.profile(thing, (1, 8), backend=backend, progress=False)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [([2, 8], torch.bfloat16), (torch.Size((2, 8)), torch.complex64), ({"input": [2, 8]}, torch.float64)],
)
def test_a_shape_becomes_a_tensor_of_the_type_of_the_weights(shape: Any, dtype: torch.dtype) -> None:
    model = nn.Linear(8, 4, dtype=dtype)
    profile = sweeprof.profile(model, shape, "layers", protocol=QUICK, progress=False)
    assert profile["compute/macs"].value == 2 * 8 * 4
    assert profile.layers.rows[0].input_dtypes == (str(dtype).removeprefix("torch."),)


def test_lists_beside_tensors_are_arguments() -> None:
    class Padded(nn.Linear):
        def forward(self, x: torch.Tensor, sizes: list[int]) -> Any:  # type: ignore[override]
            assert sizes == [2, 1]
            return super().forward(x)

    assert values(Padded(8, 4), {"x": (2, 8), "sizes": [2, 1]}, "compute/macs") == [64]


def ragged(layout: torch.layout, *lengths: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(length, 8) for length in lengths], layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_count_their_own_elements(layout: torch.layout) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4, bias=False)).eval()
    x = ragged(layout, 5, 3, 1)
    profile = sweeprof.profile(model, (x,), ["compute/macs", "compute/flops", "compute/coverage"], progress=False)
    flat = sweeprof.profile(model, torch.randn(9, 8), ["compute/flops"], progress=False)
    assert profile["compute/macs"].value == 9 * (8 * 16 + 16 * 4)
    assert profile["compute/flops"].value == flat["compute/flops"].value
    assert profile["compute/coverage"].value == 1.0
    assert profile.layers.rows[0].input_shapes == ((5, 8), (3, 8), (1, 8))
    assert "float32[3, 5, 8]" in repr(sweeprof.Inputs((x,)))
    for name in PASSES:
        seen(name, model, x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_attention_of_nested_tensors() -> None:
    parts = [torch.randn(2, 5, 8), torch.randn(2, 3, 8)]
    attention = functional.scaled_dot_product_attention
    expected = 2 * (25 + 9) * (8 + 8)
    q = torch.nested.nested_tensor(parts)
    assert macs(lambda q: attention(q, q, q), q) == expected
    assert macs(lambda q, k: torch.softmax(q @ k, -1) @ q, q, q.transpose(-1, -2)) == expected


class Sharpness(torch.optim.SGD):
    """Moves up the gradient before it moves down."""

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        closure()
        return super().step()


@pytest.mark.parametrize("optimizer", [torch.optim.LBFGS, Sharpness])
def test_an_optimizer_that_needs_a_closure_is_refused(optimizer: Any) -> None:
    with pytest.raises(Unsupported, match=f"training.optimizer={optimizer.__name__}: its step needs a closure"):
        seen("timing", nn.Linear(8, 4), torch.randn(2, 8), mode="training", optimizer=optimizer)


@pytest.mark.parametrize("kind", ["dispatch", "nested"])
def test_offloaded_models_are_measured_where_they_run(kind: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    net = nn.Sequential(nn.Linear(16, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False)).eval()
    if kind == "nested":
        model = nn.Sequential(accelerate.cpu_offload(net, execution_device="cpu"), nn.Linear(4, 2))
    else:
        parts = {"0": "cpu", "1": "cpu", "2": "disk"}
        model = accelerate.dispatch_model(net, parts, main_device="cpu", offload_dir=tmp_path)
    x = torch.randn(3, 16)
    expected = model(x)
    assert macs(model, x) == 3 * (256 + 64) + (3 * 8 if kind == "nested" else 0)
    for name in PASSES:
        assert seen(name, model, x)
    assert torch.equal(model(x), expected)
