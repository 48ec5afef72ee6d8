"""Layer times of torch models: known sleeps, hard cases of the backward, and hooks that do not stay."""

from __future__ import annotations

import _thread
import dataclasses
import re
import statistics
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sweeprof
from support.torch_modules import Applied
from sweeprof.backends.torch import layer_times as pass_module
from sweeprof.backends.torch import model as model_module
from sweeprof.backends.torch.callsites import tensors_in
from sweeprof.backends.torch.layer_times import ModuleProbes, calibrated
from sweeprof.backends.torch.model import EventClock
from sweeprof.backends.torch.training import TorchTraining
from sweeprof.errors import Unsupported
from sweeprof.measuring import layer_timing
from sweeprof.measuring.layer_timing import MOST_REPEATS, NOT_DIFFERENTIATED, ProbeCost
from sweeprof.measuring.timing import WallClock
from sweeprof.results.layer_times import OUTSIDE, ROOT, LayerTimes, PhaseTimes

QUICK = sweeprof.Protocol(warmup_steps=1, warmup_s=0, sample_s=0, min_samples=3, min_s=0)
SLEEPY = dataclasses.replace(QUICK, min_samples=5)
NAP = 0.05
CLOSE = 0.01
"""How near to a nap of 50 ms a figure must be."""
COST = ProbeCost(inside=4e-7, outside=5e-7, backward=1.5e-6)
"""About what is calibrated; most tests do not depend on it."""


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads that wait for each other measure the other programs on this machine; calibrating would take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if "calibrates" not in request.fixturenames:
        monkeypatch.setattr(pass_module, "calibrated", lambda *_args, **_given: COST)
        monkeypatch.setattr(
            layer_timing, "MOST_ATTEMPTS", 1
        )  # so that a busy machine takes no more steps than an idle one
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def calibrates() -> None:
    """For a test that needs what a probe really costs."""


def profiler(model: nn.Module, inputs: Any = (2, 4), mode: Any = "inference", **given: Any) -> sweeprof.Profiler:
    return sweeprof.Profiler(model, inputs=inputs, mode=mode, **{"protocol": QUICK, **given})


def timed(model: nn.Module, inputs: Any = (2, 4), mode: Any = "inference", **given: Any) -> Any:
    return profiler(model, inputs, mode, **given).seen("layer_times")


def seconds_of(times: LayerTimes) -> dict[tuple[str, int], Any]:
    return {(call.path, call.call): seconds for call, seconds in zip(times.calls, times.seconds, strict=True)}


def rows_of(model: nn.Module, inputs: Any = (2, 4), mode: Any = "inference", **given: Any) -> dict[str, Any]:
    """The rows of the layer table, by path and from the second call on its number."""
    one = profiler(model, inputs, mode, **given)
    one.seen("layer_times")
    layers: Any = one.layers
    assert layers.timing.unplaced == ()
    return {row.path if row.call < 1 else f"{row.path}:{row.call}": row for row in layers.rows}


Naps = Callable[[str], list[float]]
"""How long layers really slept in the steps with probes, by phase: on a busy machine they may oversleep."""


def no_naps() -> Naps:
    """A profiler puts back the lists that a model holds, but not a function's."""
    kept: dict[str, list[float]] = {"forward": [], "backward": []}
    return lambda phase: kept[phase]


class Nap(torch.autograd.Function):
    """An identity layer whose forward and backward sleep."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sleeper: Sleeper) -> torch.Tensor:
        ctx.sleeper = sleeper
        sleeper.sleep(sleeper.forward_s, sleeper.naps("forward"))
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.sleeper.sleep(ctx.sleeper.backward_s, ctx.sleeper.naps("backward"))
        return gradients[0], None


class Sleeper(nn.Module):
    def __init__(self, forward_s: float = NAP, backward_s: float = NAP, naps: Naps | None = None) -> None:
        super().__init__()
        self.forward_s, self.backward_s, self.naps = forward_s, backward_s, naps or no_naps()

    def forward(self, x: torch.Tensor) -> Any:
        return Nap.apply(x, self)  # type: ignore[no-untyped-call]

    def sleep(self, seconds: float, naps: list[float]) -> None:
        begin = time.monotonic()
        time.sleep(seconds)
        if "forward" in vars(self):
            naps.append(time.monotonic() - begin)


def assert_slept(seconds: float | None, naps: list[float], count: int = 1) -> None:
    """That ``seconds`` are those of so many naps, as closely as a machine tells that others use too."""
    assert seconds is not None
    assert naps
    assert count * min(naps) - CLOSE <= seconds <= count * max(naps) + CLOSE


def linear(width: int = 4) -> nn.Linear:
    return nn.Linear(width, width)


# Known times


@pytest.mark.slow
def test_a_layer_that_sleeps_takes_as_long_as_it_slept_forward_and_backward() -> None:
    sleeper = Sleeper()
    model = nn.Sequential(linear(), nn.Sequential(linear(), sleeper), linear())
    errors = []
    for _ in range(5):  # another process may take the processor between a mark and the sleep, but not each time
        found = seconds_of(timed(model, mode="training", protocol=SLEEPY))
        own = found["1.1", 0]
        assert_slept(own.forward_self, sleeper.naps("forward"))
        assert_slept(own.backward_self, sleeper.naps("backward"))
        pairs = ((own.forward_self, sleeper.naps("forward")), (own.backward_self, sleeper.naps("backward")))
        errors.append(max(abs((seconds or 0.0) - statistics.median(naps)) for seconds, naps in pairs))
        if errors[-1] <= 0.002:
            break
    assert min(errors) <= 0.002
    for path in (ROOT, "1", "1.1"):
        assert_slept(found[path, 0].forward, sleeper.naps("forward"))
        assert_slept(found[path, 0].backward, sleeper.naps("backward"))
    for key, other in found.items():
        if key != ("1.1", 0):
            assert other.forward_self < NAP / 5
            assert other.backward_self < NAP / 5


def test_inference_is_timed_without_a_backward_and_gives_no_reason_for_that() -> None:
    model = Sleeper()
    times = timed(nn.Sequential(linear(), model))
    assert times.mode == "inference"
    assert times.backward is None
    assert times.backward_covered is None
    sleeper = seconds_of(times)["1", 0]
    assert_slept(sleeper.forward_self, model.naps("forward"))
    assert (sleeper.backward, sleeper.backward_self, sleeper.reason) == (None, None, None)


class SlowAtFirst(nn.Module):
    """Its first five calls are slow."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls <= 5:
            time.sleep(NAP)
        return x


def test_slow_steps_for_warming_up_are_in_the_raw_rows_alone() -> None:
    times = timed(nn.Sequential(linear(), SlowAtFirst()), protocol=dataclasses.replace(QUICK, warmup_steps=5))
    assert times.warmup == 5
    assert seconds_of(times)["1", 0].forward < NAP / 10
    assert times.summary.forward.plain_s < NAP / 10
    frame = times.to_frame(aggr=False)
    rows = frame[frame.path == "1"]
    assert list(rows.warmup) == [True] * 5 + [False] * 3
    slow = (rows.forward_s[rows.warmup] > NAP * 0.9).sum()
    assert slow in {2, 3}  # every other slow call was in a step without probes
    assert (rows.forward_s[~rows.warmup] < NAP / 10).all()


@pytest.mark.parametrize(
    ("limits", "repeats"),
    [
        ({"min_samples": 4}, {4}),
        ({"min_samples": 50, "max_s": 0.1}, range(2, 9)),
        ({"min_samples": 1, "min_s": 0.1}, range(2, 9)),
    ],
)
def test_repeats_are_as_many_as_the_protocol_asks_for(limits: dict[str, Any], repeats: Container[int]) -> None:
    """A pair of steps takes 20 ms; once in a while far longer."""
    times = timed(Sleeper(0.01, 0), protocol=dataclasses.replace(QUICK, **limits))
    assert times.repeats - times.warmup in repeats
    assert len(times.forward.plain) == len(times.forward.probed) == times.repeats


def test_a_small_model_stops_at_the_most_repeats_and_too_few_are_told() -> None:
    most = timed(linear(), protocol=dataclasses.replace(QUICK, min_s=5))
    few = timed(linear(), protocol=dataclasses.replace(QUICK, min_samples=10, max_s=1e-9))
    assert (most.repeats - most.warmup, most.unmet) == (MOST_REPEATS, ())
    assert (few.repeats - few.warmup, few.unmet) == (1, ("min_samples=10",))


def test_warming_up_lasts_as_long_as_the_protocol_says() -> None:
    model = SlowAtFirst()
    times = timed(model, protocol=dataclasses.replace(QUICK, warmup_steps=0, warmup_s=NAP * 4.5))
    assert times.warmup == 0
    assert all(seconds.forward < NAP / 10 for seconds in times.seconds)


# Calls and paths


def test_a_layer_that_is_used_again_has_its_calls_apart_and_its_parent_their_sum() -> None:
    calls = lambda model, x: model.last(model.sleeper(model.sleeper(model.last(x))))  # noqa: E731
    model: Any = Applied(calls, sleeper=Sleeper(0.01, 0.02), last=linear())
    rows, naps = rows_of(model, mode="training"), model.sleeper.naps
    for row in (rows["sleeper"], rows["sleeper:1"]):
        assert_slept(row.forward_s, naps("forward"))
        assert_slept(row.backward_s, naps("backward"))
    assert_slept(rows[ROOT].forward_s, naps("forward"), 2)
    assert_slept(rows[ROOT].backward_s, naps("backward"), 2)


def shares(forward_s: float, backward_s: float) -> Any:
    """One module under three parents; the root, which calls it too, is registered last."""
    shared = nn.Sequential(linear(), Sleeper(forward_s, backward_s))
    left, right = (Applied(lambda holder, x: holder.shared(x), shared=shared) for _ in range(2))
    return Applied(lambda model, x: model.left(x) + model.right(model.own(x)), left=left, right=right, own=shared)


def test_a_container_that_is_not_called_has_what_is_below_it() -> None:
    """A list and a mapping are never called, one layer is called as a function, one never."""

    def forward(model: Any, x: torch.Tensor) -> Any:
        x = model.first(x)
        for module in model.several:
            x = module(x)
        return model.named["direct"].forward(x)

    naps = no_naps()
    one, two, direct = (Sleeper(0.005, 0.01, naps) for _ in range(3))
    several, named = nn.ModuleList([one, nn.Sequential(two)]), nn.ModuleDict({"direct": direct, "unused": linear()})
    model = Applied(forward, several=several, named=named, first=linear())
    rows = rows_of(model, mode="training")
    assert rows["several"].call == rows["named"].call == -1
    assert_slept(rows["several"].forward_s, naps("forward"), 2)
    assert_slept(rows["several"].backward_s, naps("backward"), 2)
    assert_slept(rows["named"].forward_s, naps("forward"))
    assert_slept(rows["named.direct"].backward_s, naps("backward"))
    assert rows["named.unused"].forward_s is None
    assert rows["named.unused"].time_reason is not None


def test_a_caller_who_steps_a_part_of_the_model_times_that_part() -> None:
    model = nn.Sequential(linear(), Sleeper(0.01, 0))
    times = timed(model, forward=lambda whole, x: whole[1](x))
    assert [(call.path, call.parent) for call in times.calls] == [(OUTSIDE, None), ("1", None)]


def test_a_layer_that_some_steps_skip_is_there_with_nothing_for_those() -> None:
    """As where layers are dropped at random; of the steps for warming up none counts."""
    forwards = count(1)

    def forward(model: Any, x: torch.Tensor) -> Any:
        number = next(forwards)
        if number == 1:
            x = model.once(x)
        return model.always(model.early(x) if number <= 4 else x)

    model = Applied(forward, once=linear(), early=linear(), always=linear())
    times = timed(model, mode="training", protocol=SLEEPY)  # the forwards 1, 4, 5, 8, 9, 12 have probes
    found = {call.path: call for call in times.calls}
    assert list(found) == [OUTSIDE, ROOT, "early", "always"]
    assert [seconds > 0 for seconds in found["early"].forward] == [True, True, *[False] * 4]
    assert times.calls[found["early"].parent or 0].path == ROOT
    assert [seconds > 0 for seconds in found["early"].backward] == [True, True, *[False] * 4]
    assert found["early"].reason is None


# Backward


def test_what_adds_to_a_gradient_belongs_to_the_layer_that_used_the_parameter() -> None:
    model = nn.Sequential(linear(), linear(), linear())
    model[1].weight.register_post_accumulate_grad_hook(lambda _: time.sleep(0.02))  # type: ignore[operator]
    found = seconds_of(timed(model, mode="training"))
    slow = {key for key, seconds in found.items() if (seconds.backward_self or 0) >= 0.02}
    assert slow == {("1", 0)}


def in_place() -> nn.Module:
    """Views that are written in place, and sums in place after a module."""

    def forward(model: Any, x: torch.Tensor) -> Any:
        y = model.first(x)
        y += 1
        y[:, :2].mul_(2)
        z = model.last(model.second(y))
        z += y
        return z

    return Applied(forward, first=linear(), second=nn.Sequential(linear(), nn.ReLU(inplace=True)), last=linear())


def around() -> nn.Module:
    """A layer, and the model as a whole, that return more than a tensor."""

    def nested(x: torch.Tensor) -> Any:
        return [{"a": (x * 2, [OrderedDict(b=x)])}, 3]

    def forward(model: Any, x: torch.Tensor) -> Any:
        outputs = model.inner(x)
        return outputs, model.last(tensors_in(outputs)[0])

    inner = Applied(lambda module, x: nested(module.layer(x)), layer=linear())
    return Applied(forward, inner=inner, last=linear())


def recurrent() -> nn.Module:
    layers = {"lstm": nn.LSTM(4, 4, batch_first=True), "head": linear()}
    return Applied(lambda model, x: model.head(model.lstm(x[:, None])[0]), **layers)


def partly() -> nn.Module:
    """Parts that no gradient reaches: without gradients, frozen below everything trained, and unused by the loss."""

    def forward(model: Any, x: torch.Tensor) -> Any:
        with torch.no_grad():
            x = model.detached(x)
        y = model.head(model.frozen(x))
        model.unused(y)
        return model.frozen_above(y)

    layers: dict[str, nn.Module] = {name: linear() for name in ("detached", "frozen", "unused", "head", "frozen_above")}
    for name in ("frozen", "frozen_above"):
        layers[name].requires_grad_(False)
    return Applied(forward, **layers)


def checkpointed(reentrant: bool) -> nn.Module:
    def forward(model: Any, x: torch.Tensor) -> Any:
        x = model.first(x)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return model.last(x)

    blocks = nn.ModuleList(nn.Sequential(linear(), nn.Tanh(), linear()) for _ in range(3))
    return Applied(forward, first=linear(), blocks=blocks, last=linear())


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


X = torch.linspace(-1, 1, 8).reshape(2, 4)
CASES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, set[str]]] = {
    "in place": (in_place, X, set()),
    "nested": (around, X, set()),
    "convolutions": (lambda: nn.Sequential(nn.Conv1d(1, 3, 1), nn.ReLU(), nn.Conv1d(3, 2, 1)), X[:, None], set()),
    "lstm": (recurrent, X, set()),
    "encoder": (
        _encoder,
        torch.linspace(-1, 1, 48).reshape(2, 3, 8),
        {f"layers.{n}.{name}" for n in (0, 1) for name in ("dropout", "dropout1", "dropout2")},  # which drop nothing
    ),
    "partly": (partly, X, {"detached", "frozen", "unused"}),
    "reentrant": (lambda: checkpointed(True), X, set()),
    "not reentrant": (lambda: checkpointed(False), X, set()),
    "function": (lambda: nn.Sequential(linear(), Sleeper(0, 0)), X, set()),
    "shared": (lambda: shares(0, 0), X, set()),
}
"""How each is made, what it is called with, and the layers that have no backward."""


def gradients_of(model: nn.Module, step: Callable[[], Any]) -> list[list[torch.Tensor]]:
    """Per parameter, what every backward within ``step`` left in its gradient."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found: list[list[torch.Tensor]] = [[] for _ in parameters]
    handles = [
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda p, kept=kept: kept.append(None if p.grad is None else p.grad.clone())
        )
        for parameter, kept in zip(parameters, found, strict=True)
    ]
    step()
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_a_step_without_probes(case: str) -> None:
    make, inputs, _ = CASES[case]
    torch.manual_seed(0)
    model = make()

    def plain_step() -> None:
        outputs = [tensor for tensor in tensors_in(model(inputs)) if tensor.requires_grad]
        sum((tensor.mean() for tensor in outputs[1:]), start=outputs[0].mean()).backward()  # type: ignore[no-untyped-call]

    (plain, profiled) = (gradients_of(model, step) for step in (plain_step, lambda: timed(model, inputs, "training")))
    model.zero_grad()
    uses = [len(kept) for kept in plain]
    kept_by_steps = [[steps * count for count in uses] for steps in (8, 9, 10)]
    # 4 pairs, and steps that are looked at again if another thread of this process has worked meanwhile.
    assert [len(kept) for kept in profiled] in kept_by_steps
    for alone, many in zip(plain, profiled, strict=True):
        assert all(torch.equal(many[index], alone[index % len(alone)]) for index in range(len(many)))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # a checkpoint's, where layers are counted
@pytest.mark.parametrize("case", CASES)
def test_every_layer_that_computes_a_gradient_has_a_backward_and_the_others_a_reason(case: str) -> None:
    make, inputs, without = CASES[case]
    rows = rows_of(make(), inputs, "training")
    called = {name: row for name, row in rows.items() if row.call >= 0 and row.path != OUTSIDE}
    assert {name for name, row in called.items() if row.time_reason == NOT_DIFFERENTIATED} == without
    assert {name for name, row in called.items() if row.backward_s is None} == without
    assert all(row.forward_s is not None and row.forward_s > 0 for row in called.values())
    leaves = [row for name, row in called.items() if row.type in ("Linear", "Conv1d") and name not in without]
    assert all(row.backward_s is not None and row.backward_s > 0 for row in leaves)


def checkpointed_naps(reentrant: bool) -> Any:
    """One call after the other within a segment that is a function."""

    def forward(model: Any, x: torch.Tensor) -> Any:
        def segment(y: torch.Tensor) -> Any:
            return model.quick(model.slow(model.quick(y)))

        return model.after(checkpoint(segment, model.before(x), use_reentrant=reentrant))

    return Applied(forward, before=linear(), quick=linear(), slow=Sleeper(0.02, 0.03), after=linear())


def check_naps(reentrant: bool) -> None:
    """A layer's backward has the nap in its forward once more, and no other layer has any of its naps."""
    model = checkpointed_naps(reentrant)
    found = seconds_of(timed(model, mode="training"))
    naps = model.slow.naps
    again = naps("forward")[1::2]
    assert_slept(found["slow", 0].forward_self, naps("forward")[::2])
    assert_slept(found["slow", 0].backward_self, [pick(again) + pick(naps("backward")) for pick in (min, max)])
    for key, other in found.items():
        if key != ("slow", 0):
            assert other.backward_self < 0.01, key


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_backward_of_a_checkpointed_layer_has_what_is_computed_once_more(reentrant: bool) -> None:
    check_naps(reentrant)


def test_the_backward_may_run_in_a_thread_that_numbers_its_nodes_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does on an accelerator."""
    backward = TorchTraining.backward

    def elsewhere(self: TorchTraining, loss: torch.Tensor) -> None:
        done = threading.Event()

        def run() -> None:
            backward(self, loss)
            done.set()

        _thread.start_new_thread(run, ())  # like a thread of the engine, it is none of Python's
        done.wait()

    monkeypatch.setattr(TorchTraining, "backward", elsewhere)
    check_naps(True)


def test_a_layer_within_a_scripted_one_is_part_of_what_called_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(linear(), nn.ReLU()))
    sleeper = Sleeper(0.01, 0.01)
    times = timed(nn.Sequential(linear(), scripted, sleeper), mode="training")
    assert [call.path for call in times.calls] == [OUTSIDE, ROOT, "0", "2"]
    assert_slept(seconds_of(times)["2", 0].backward, sleeper.naps("backward"))
    with pytest.raises(Unsupported, match="scripted"):
        timed(scripted)


def test_a_layer_within_a_compiled_one_is_part_of_it() -> None:
    inner = nn.Sequential(linear(), nn.ReLU())
    wrapped: Any = torch.compile(inner, backend="eager")
    in_place = nn.Sequential(linear(), nn.ReLU())
    in_place.compile(backend="eager")
    for child, path in ((wrapped, ["1"]), (in_place, [])):
        times = timed(nn.Sequential(linear(), child, nn.Tanh()))  # a probe that is compiled would warn
        assert [call.path for call in times.calls] == [OUTSIDE, ROOT, "0", *path, "2"]
    for whole in (wrapped, in_place):
        with pytest.raises(Unsupported, match="compiled"):
            timed(whole)


def test_an_encoder_takes_the_way_through_it_that_it_takes_without_probes() -> None:
    """Without gradients its layers run as one operator, which hooks would turn off."""
    times = timed(_encoder().eval(), (2, 3, 8))
    assert {call.path for call in times.calls} == {OUTSIDE, ROOT, "layers.0", "layers.1"}


# As it was found


def test_no_node_of_the_graph_keeps_a_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes that add to a gradient live as long as anybody holds them."""
    begun: list[int] = []
    make = ModuleProbes._begun

    def counting(self: ModuleProbes, number: int) -> Callable[[Any], None]:
        inner = make(self, number)
        return lambda gradients: (begun.append(number), inner(gradients))[1]  # type: ignore[func-returns-value]

    monkeypatch.setattr(ModuleProbes, "_begun", counting)

    def raises(_gradient: torch.Tensor) -> None:
        raise ValueError("mine")

    model = nn.Sequential(nn.BatchNorm1d(4), linear(), linear())
    hook = model[1].weight.register_hook(raises)  # type: ignore[operator]
    held = [node for p in model.parameters() for node, _ in p.view_as(p).grad_fn.next_functions]  # type: ignore[union-attr]
    assert held
    with pytest.raises(ValueError, match="mine"):
        timed(model, mode="training")
    assert begun
    begun.clear()
    hook.remove()
    model(torch.rand(2, 4)).sum().backward()
    assert begun == []


# Marks of a device


def test_no_mark_is_read_before_the_step_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading one waits for the device, which would have nothing to do meanwhile."""
    letters: list[str] = []

    class FakeEvent:
        """A point on the host's clock that says when it is made and when it is read."""

        def __init__(self) -> None:
            letters.append("M")
            self.at = time.perf_counter()

        def synchronize(self) -> None:
            letters.append("R")

        def elapsed_time(self, later: FakeEvent) -> float:
            return (later.at - self.at) * 1e3

    def forward(model: Any, x: torch.Tensor) -> Any:
        letters.append("F")
        y = model.first(x)
        if y.requires_grad:
            y.register_hook(lambda _: letters.append("B"))
        return model.last(y)

    monkeypatch.setattr(model_module, "clock_of", lambda _device: EventClock(FakeEvent, lambda _: None, 1))
    times = timed(Applied(forward, first=linear(), last=linear()), mode="training")
    assert len(times.calls) == 4
    assert all(sum(call.forward) > 0 for call in times.calls)
    steps = "".join(letters)
    assert steps.count("B") == steps.count("F") == 2 * times.repeats
    assert re.search("F[^B]*R", steps) is None  # read within a step
    assert re.search("B[^M]*R", steps) is None  # read before its last mark
    assert re.search("BM+R", steps) is not None


# Coverage and calibration


def test_the_cost_of_a_probe_is_about_what_probes_add_to_a_model_that_only_calls(calibrates: None) -> None:
    cost = calibrated(WallClock(), torch.device("cpu"), with_backward=False)
    assert min(cost.inside, cost.outside) > 0
    assert cost.backward == 0
    times = timed(
        nn.Sequential(*(nn.Identity() for _ in range(200))), protocol=dataclasses.replace(QUICK, min_samples=30)
    )
    added = (min(times.forward.probed) - min(times.forward.plain)) / 201
    # It is calibrated for a model that has work between the calls, where a probe costs three to four times as much.
    assert added / 2 < cost.inside + cost.outside < added * 10
    assert times.probe_s["inside"] + times.probe_s["outside"] < added * 10


class ThreadClock(WallClock):
    """Without what other programs take meanwhile, so that two steps can be compared to a few per cent on a shared machine.

    Nothing sleeps here and there is one thread, so that it is the time that a wall clock has on an idle machine.
    """

    mark = staticmethod(time.thread_time)


ATTEMPTS = 10
"""Another process may disturb a run, but not each of them."""


def block(inner: int, outer: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(inplace=True))


@pytest.mark.slow
def test_the_parts_add_up_to_the_step_without_probes(calibrates: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "clock_of", lambda _device: ThreadClock())
    blocks = block(3, 32), block(32, 32), nn.MaxPool2d(2), block(32, 64)
    model, inputs = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 16 * 16, 10)), torch.rand(2, 3, 32, 32)
    seen = []
    for _ in range(ATTEMPTS):
        times = timed(model, inputs, "training", protocol=dataclasses.replace(QUICK, min_samples=20))
        assert times.forward_covered == pytest.approx(_covered(times, "forward", times.forward))
        assert times.backward_covered == pytest.approx(_covered(times, "backward", times.backward))
        seen.append((times.forward_covered, times.backward_covered))
        if all(covered is not None and abs(covered - 1) <= 0.05 for covered in seen[-1]):
            return
    pytest.fail(f"forward and backward covered: {seen}")


def _covered(times: LayerTimes, phase: str, whole: PhaseTimes) -> float:
    """What the raw rows add up to over the step without probes, the median of the repeats."""
    rows = [samples for call in times.calls if (samples := getattr(call, phase))]
    ratios = [sum(own) / plain for *own, plain in zip(*rows, whole.plain, strict=True)]
    found: float = statistics.median(ratios[times.warmup :])
    return found
