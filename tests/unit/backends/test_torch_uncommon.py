"""Counts and times of models whose forward does uncommon things: each is counted as it runs, or refused with a reason."""

from __future__ import annotations

import asyncio
import copy
import inspect
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from itertools import count
from multiprocessing.pool import ThreadPool
from types import MethodType
from typing import Any, get_type_hints

import pytest
import torch
from torch import nn
from torch.nn import functional

import sweeprof
from sweeprof.errors import Unsupported


def macs(model: Any, *inputs: Any, **settings: Any) -> Any:
    return sweeprof.profile(model, inputs, ["compute/macs"], progress=False, **settings)["compute/macs"].value


class Early(nn.Module):
    """Skips its layer after a number of calls, which is kept in a place that the blocks share."""

    def __init__(self, calls: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16, bias=False)
        self.calls = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        next(self.calls)
        return self.layer(x) if self.calls.__reduce__()[1][0] <= 2 else x


class Narrowed(nn.Module):
    """Runs equal blocks with another setting each, and restores it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16, bias=False)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for width, block in zip((4, 8, 16), self.blocks, strict=True):
            layer: Any = next(block.children())
            whole = layer.weight
            layer.weight = nn.Parameter(whole[:width])
            results.append(block(x))
            layer.weight = whole
        return results


def test_equal_blocks_are_counted_each() -> None:
    x = torch.randn(3, 16)
    assert macs(nn.Sequential(*[Early(count()) for _ in range(4)]), x) == 4 * 3 * 256
    calls = count()
    assert macs(nn.Sequential(*[Early(calls) for _ in range(4)]), x) == 2 * 3 * 256
    assert macs(Narrowed(), x) == 3 * 16 * (4 + 8 + 16)


QUICK = sweeprof.Protocol(min_s=0.02, warmup_s=0.01)
PASSES = ("timing", "layer_times", "operators", "allocations")


class Members(nn.Module):
    """Four layers that a function runs."""

    def __init__(self, run: Callable[[nn.ModuleList, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 8, bias=False) for _ in range(4))
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self.layers, x)


def seen(name: str, model: Any, *inputs: Any, mode: str = "inference") -> Any:
    return sweeprof.Profiler(model, inputs=sweeprof.Inputs(inputs), mode=mode, protocol=QUICK, progress=False).seen(
        name
    )


# Other threads


EARLIER = ThreadPoolExecutor(2)
EARLIER_POOL = ThreadPool(2)
ASKED: queue.Queue[Callable[[], None]] = queue.Queue()


def answer() -> None:
    while True:
        ASKED.get()()


threading.Thread(target=answer, daemon=True).start()


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    yield
    EARLIER.shutdown()
    EARLIER_POOL.terminate()


class Worker(threading.Thread):
    def __init__(self, layer: nn.Module, x: torch.Tensor) -> None:
        super().__init__()
        self.layer, self.x, self.result = layer, x, x

    def run(self) -> None:
        self.result = self.layer(self.x)


def by_threads_of_a_class(layers: nn.ModuleList, x: torch.Tensor) -> list[torch.Tensor]:
    workers = [Worker(layer, x) for layer in layers]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [worker.result for worker in workers]


def by_a_queue(layers: nn.ModuleList, x: torch.Tensor) -> list[torch.Tensor]:
    results: list[torch.Tensor] = []
    done = threading.Semaphore(0)
    for layer in layers:
        ASKED.put(lambda layer=layer: (results.append(layer(x)), done.release()))  # type: ignore[misc]
        done.acquire()
    return results


async def gathered(layers: nn.ModuleList, x: torch.Tensor) -> list[torch.Tensor]:
    return await asyncio.gather(*(asyncio.to_thread(layer, x) for layer in layers))


IN_THREADS: dict[str, Callable[[nn.ModuleList, torch.Tensor], Any]] = {
    "threads of a class": by_threads_of_a_class,
    "an earlier executor": lambda layers, x: list(EARLIER.map(lambda layer: layer(x), layers)),
    "functions in an earlier executor": lambda layers, x: [
        task.result() for task in [EARLIER.submit(torch.mm, x, layer.weight.t()) for layer in layers]
    ],
    "an earlier pool": lambda layers, x: EARLIER_POOL.map(lambda layer: x @ layer.weight.t(), layers),
    "tasks of a pool": lambda layers, x: [task.get() for task in [EARLIER_POOL.apply_async(m, (x,)) for m in layers]],
    "a queue": by_a_queue,
    "asyncio": lambda layers, x: asyncio.run(gathered(layers, x)),
    "futures that are returned": lambda layers, x: [EARLIER.submit(layer, x) for layer in layers],
}


@pytest.mark.parametrize("how", IN_THREADS)
def test_operators_in_other_threads_are_counted(how: str) -> None:
    x = torch.randn(3, 16)
    profile = sweeprof.profile(Members(IN_THREADS[how]), x, ["compute/macs", "compute/coverage"], progress=False)
    assert (profile["compute/macs"].value, profile["compute/coverage"].value) == (4 * 3 * 16 * 8, 1.0)


@pytest.mark.parametrize("name", ["layer_times", "operators", "allocations"])
@pytest.mark.parametrize("how", ["threads of a class", "functions in an earlier executor", "a queue"])
def test_what_cannot_see_other_threads_says_so(how: str, name: str) -> None:
    with pytest.raises(Unsupported, match="the model runs operators in other threads"):
        seen(name, Members(IN_THREADS[how]), torch.randn(3, 16))


def test_threads_are_left_as_they_were() -> None:
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit
    macs(Members(IN_THREADS["asyncio"]), torch.randn(3, 16))
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == (start, submit)
    assert "apply_async" not in vars(ThreadPool)


# Forwards that are evaluated lazily


class Slow(nn.Module):
    def __init__(self, results: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16, bias=False)
        self.results = results

    def step(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return self.layer(x)

    def forward(self, x: torch.Tensor) -> Any:
        return self.results(partial(self.step, x))


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
    assert macs(Slow(results), x) == 3 * 3 * 256
    assert min(seen("timing", Slow(results), x).samples) >= 0.006


class Stages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(3):
            x = self.layer(x)
            yield x @ x.t()


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = Stages()

    def forward(self, x: torch.Tensor) -> Any:
        *_, last = self.stages(x)
        return last


@pytest.mark.parametrize(("model", "path"), [(Stages(), "__root__"), (Last(), "stages")])
def test_a_generator_is_counted_where_it_is_written(model: nn.Module, path: str) -> None:
    profile = sweeprof.profile(model, torch.randn(3, 16), ["compute/macs"], progress=False)
    assert {row.path: row.macs for row in profile.layers.rows}[path] == 3 * 3 * 3 * 16
    assert profile["compute/macs"].value == 3 * (3 * 3 * 16 + 3 * 256)
    with pytest.raises(Unsupported, match="a module returns a generator"):
        seen("layer_times", model, torch.randn(3, 16))


def test_a_coroutine_is_refused_with_what_runs_it() -> None:
    class Awaited(nn.Linear):
        async def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(x)

    x = torch.randn(3, 16)
    message = r"forward=lambda model, x: asyncio\.run\(model\(x\)\)"
    with pytest.raises(Unsupported, match=message):
        seen("timing", Awaited(16, 8), x)
    with pytest.raises(Unsupported, match=message):
        seen("analysis", Awaited(16, 8), x)
    assert macs(Awaited(16, 8), x, forward=lambda model, x: asyncio.run(model(x))) == 3 * 16 * 8


# Attention whose operands broadcast


@pytest.mark.parametrize(
    ("q", "k", "v", "mask", "products"),
    [
        ((3, 1, 5, 8), (1, 2, 7, 8), (3, 1, 7, 4), None, 3 * 2 * 5 * 7 * (8 + 4)),
        ((5, 8), (6, 7, 8), (7, 8), None, 6 * 5 * 7 * (8 + 8)),
        ((1, 1, 5, 8), (1, 1, 7, 8), (1, 1, 7, 8), (4, 1, 5, 7), 5 * 7 * 8 + 4 * 5 * 7 * 8),
        ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), "grouped", 2 * 4 * 5 * 7 * (8 + 8)),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_counts_the_products_of_broadcast_operands(
    q: Any, k: Any, v: Any, mask: Any, products: int, device: str
) -> None:
    is_grouped = mask == "grouped"
    given = [torch.randn(shape, device=device) for shape in (q, k, v, *([mask] if mask and not is_grouped else []))]
    attention = partial(functional.scaled_dot_product_attention, enable_gqa=is_grouped)
    assert macs(attention, *given) == products


# Models that look at their own forward


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor, last_only: bool = False) -> torch.Tensor:
        """Apply the layer."""
        return self.layer(x[:, -1:] if last_only else x)


class Looking(nn.Module):
    def __init__(self, look: Callable[[Any], bool]) -> None:
        super().__init__()
        self.head, self.look = Head(), look

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x, last_only=self.look(self.head))


LOOKS: dict[str, Callable[[Any], bool]] = {
    "source": lambda head: "last_only" in inspect.getsource(head.forward),
    "defaults": lambda head: head.forward.__defaults__ == (False,),
    "annotations": lambda head: "last_only" in get_type_hints(head.forward),
    "equal": lambda head: head.forward == Head.forward.__get__(head),
    "class": lambda head: isinstance(head.forward, MethodType) and head.forward.__self__ is head,
    "documentation": lambda head: head.forward.__doc__ == "Apply the layer.",
    "a copy": lambda head: copy.deepcopy(head).forward.__code__ is Head.forward.__code__,
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_model_finds_its_own_forward(look: str) -> None:
    model, x = Looking(LOOKS[look]), torch.randn(2, 5, 16)
    assert macs(model, x) == 2 * 1 * 256
    table = sweeprof.profile(model, x, "layers", protocol=QUICK, progress=False).layers
    assert next(row for row in table.rows if row.path == "head.layer").input_shapes == ((2, 1, 16),)
    for mode in ("inference", "training"):
        assert seen("layer_times", model, x, mode=mode).calls
        assert seen("operators", model, x, mode=mode).rows


# Gradients within a forward


class Energy(nn.Module):
    """The gradient of an energy, taken in one of several ways."""

    def __init__(self, gradient: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))
        self.gradient = gradient

    def energy(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * ((x @ self.weight) ** 2).sum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gradient(self.energy, x)


@torch.enable_grad()
def backward(energy: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().clone().requires_grad_()
    energy(x).backward(inputs=[x])
    assert x.grad is not None
    return x.grad


def by_grad_mode(energy: Any, x: torch.Tensor) -> torch.Tensor:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    try:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(energy(x), x)[0]
    finally:
        torch.set_grad_enabled(before)


def as_if_enabled(energy: Any, x: torch.Tensor) -> torch.Tensor:
    """As in networks that are trained on a differential equation."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(energy(x), x, create_graph=True)[0]


GRADIENTS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "backward": backward,
    "set_grad_enabled": by_grad_mode,
    "as if enabled": as_if_enabled,
    "functional": lambda energy, x: torch.autograd.functional.vjp(energy, x)[1],
    "torch.func": lambda energy, x: torch.func.grad(energy)(x),
}


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
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            modes.append(torch.is_inference_mode_enabled())
            with torch.no_grad():  # which does not switch autograd on, nor does its end
                return super().forward(x)

    seen("timing", Noting(4, 4), torch.randn(2, 4))
    assert all(modes)


# Objects among the inputs


class Kept:
    """A state that a forward adds to."""

    __slots__ = ("count", "lock", "parts")

    def __init__(self) -> None:
        self.parts = deque([torch.zeros(2, 3, 8)])
        self.count = 0


class Appending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor, state: Any) -> torch.Tensor:
        kept = state["kept"] if isinstance(state, dict) else state
        kept.parts.append(self.project(x))
        kept.count += 1
        return x @ torch.cat(list(kept.parts), 1).transpose(1, 2)


@pytest.mark.parametrize("wrap", [lambda kept: kept, lambda kept: {"kept": kept}])
def test_an_object_among_the_inputs_is_copied_and_its_growth_is_told(wrap: Callable[[Kept], Any]) -> None:
    kept, x = Kept(), torch.randn(2, 1, 8)
    expected = 2 * 8 * 8 + 2 * 1 * 8 * 4
    assert macs(Appending(), x, wrap(kept)) == expected
    assert macs(Appending(), x, wrap(kept), forward=lambda model, x, state: model(x, state)) == expected
    timing = seen("timing", Appending(), x, wrap(kept))
    assert "inputs_changed" in [warning.code for warning in timing.warnings]
    assert (len(kept.parts), kept.count, kept.parts[0].device.type) == (1, 0, "cpu")


class Counter:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.state = {"h": tensor}


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_replaced_tensor_of_a_state_is_a_change(is_kept: bool) -> None:
    class Recurrent(nn.Linear):
        def forward(self, x: torch.Tensor, counter: Counter) -> torch.Tensor:  # type: ignore[override]
            new = super().forward(x + counter.state["h"]).tanh()
            if is_kept:
                counter.state["h"] = new
            return new

    timing = seen("timing", Recurrent(8, 8), torch.randn(2, 8), Counter(torch.zeros(2, 8)))
    assert ("inputs_changed" in [warning.code for warning in timing.warnings]) is is_kept


# Parameters


def test_parameters_of_decorated_bound_methods() -> None:
    def twice(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def inner(*args: Any) -> Any:
            return function(*args)

        return inner

    class Coder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        @twice
        @torch.no_grad()
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    coder = Coder()

    class Service:
        """Holds a module, and is none."""

        def __init__(self) -> None:
            self.coder = coder

        @torch.inference_mode()
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return self.coder.layer(x)

    for model in (coder.encode, twice(coder.encode), partial(coder.encode), Service().run):
        profile = sweeprof.profile(model, torch.randn(3, 16), ["params/total", "compute/macs"], progress=False)
        assert (profile["params/total"].value, profile["compute/macs"].value) == (272, 768)


class Viewed(nn.Module):
    """A parameter, and a buffer in its memory or beside it."""

    def __init__(self, view: Callable[[torch.Tensor], torch.Tensor], *, before: bool) -> None:
        super().__init__()
        weight = nn.Parameter(torch.randn(8, 16))
        if before:
            self.register_buffer("mirror", view(weight.data))
        self.inner = nn.Module()
        self.inner.weight = weight
        if not before:
            self.register_buffer("mirror", view(weight.data))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.get_parameter("inner.weight").t()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("view", "buffers"),
    [
        (lambda weight: weight[2:5], 0),
        (lambda weight: weight.t(), 0),
        (lambda weight: weight[:, ::2], 0),
        (lambda weight: weight[2:5].clone(), 48),
    ],
)
def test_a_buffer_in_the_memory_of_a_parameter_is_no_further_one(
    view: Callable[[torch.Tensor], torch.Tensor], buffers: int, before: bool
) -> None:
    names = ["params/total", "params/buffers", "size/params_bytes", "size/buffers_bytes"]
    profile = sweeprof.profile(Viewed(view, before=before), torch.randn(3, 16), names, progress=False)
    assert [profile[name].value for name in names] == [128, buffers, 512, 4 * buffers]
    assert profile.layers.inclusive().rows[0].subtree is not None
    assert profile.layers.inclusive().rows[0].subtree.params == 128


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(("layout", "indices"), [("csc", 3 + 5), ("bsr", 2 + 3), ("parameter", 2 * 3)])
def test_a_sparse_tensor_has_the_bytes_that_it_stores(layout: str, indices: int) -> None:
    matrix = torch.zeros(4, 4)
    matrix[0, 1] = matrix[1, 0] = matrix[3, 2] = 1.0
    values = 3
    if layout == "csc":
        sparse = matrix.to_sparse_csc()
    elif layout == "bsr":
        sparse, values = matrix.to_sparse_bsr((2, 2)), 8
    else:
        sparse = nn.Parameter(matrix.to_sparse())

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if layout == "parameter":
                self.matrix = sparse
            else:
                self.register_buffer("matrix", sparse)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(self.matrix, x) if layout == "parameter" else x + 1

    name = "size/params_bytes" if layout == "parameter" else "size/buffers_bytes"
    profile = sweeprof.profile(Graph(), torch.randn(4, 2), [name], progress=False)
    assert profile[name].value == values * 4 + indices * 8
