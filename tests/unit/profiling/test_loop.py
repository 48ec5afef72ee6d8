"""Watching a model in a loop of the user's own: what is seen, and that nothing is left behind."""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sweeprof
from support.torch_modules import undisturbed
from sweeprof.backends.fake import FakeModel
from sweeprof.errors import Unsupported, UserError
from sweeprof.results.layer_times import OUTSIDE

SLEEP_S = 0.05
SLACK_S = 0.04
"""What a machine shared with others may put between our mark and the sleep's; a sleep that were missed, or seen twice, is 0.05."""


sleeps: dict[str, list[float]] = {"forward": [], "backward": [], "update": [], "data": []}
"""How long each sleep really was: on a busy machine it is longer than was asked for."""


def sleep(phase: str) -> None:
    begin = time.perf_counter()
    time.sleep(SLEEP_S)
    sleeps[phase].append(time.perf_counter() - begin)


def slept(phase: str, times: int = 1) -> float:
    """Return how long the last sleeps of ``phase`` were together."""
    assert len(sleeps[phase]) >= times
    return sum(sleeps[phase][-times:])


class SleepingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        sleep("backward")
        return gradients[0]


class Sleepy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sleep("forward")
        y: torch.Tensor = SleepingBackward.apply(x)  # type: ignore[no-untyped-call]
        return y


def sleepy_net() -> nn.Sequential:
    return nn.Sequential(OrderedDict(first=nn.Linear(8, 8), sleepy=Sleepy(), last=nn.Linear(8, 2)))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def train(model: nn.Module, steps: int = 1, batch: int = 4) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(batch, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


OF_TRAINING = ("versions", "values", "random")
"""What a step changes by itself."""


def test_a_training_step_is_seen_as_it_happens() -> None:
    model = sleepy_net()
    with undisturbed(model, *OF_TRAINING), sweeprof.session(model) as session:
        train(model, steps=3)
        session.reset()
        train(model)
    rows = {row.path: row for row in session.layers.rows}
    sleepy = rows["sleepy"]
    assert sleepy.forward_s == pytest.approx(slept("forward"), abs=SLACK_S)
    assert sleepy.backward_s == pytest.approx(slept("backward"), abs=SLACK_S)
    root = rows["__root__"]
    assert root.forward_s is not None
    assert root.forward_self_s is not None
    assert root.forward_s >= SLEEP_S > 2 * root.forward_self_s
    assert rows["first"].macs == 4 * 8 * 8, "counted for what the model was called with"
    assert rows["first"].backward_s is not None, "also of the first layer, whose input needs no gradient"
    assert session.times.mode == "training"
    assert session.times.repeats == 1


def test_the_optimizer_and_the_whole_step_are_timed() -> None:
    model = sleepy_net()

    class SleepingSGD(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            sleep("update")
            return super().step(closure)

    optimizer = SleepingSGD(model.parameters(), lr=0.1)
    with sweeprof.session(model) as session:
        model(torch.ones(4, 8)).mean().backward()
        optimizer.step()
        sleep("data")
        seen = session.iteration()
    assert seen.batch_size == 4
    phases = {"forward": seen.forward_s, "backward": seen.backward_s, "update": seen.update_s}
    for phase, seconds in phases.items():
        assert seconds == pytest.approx(slept(phase), abs=SLACK_S)
    together = sum(seconds or 0.0 for seconds in phases.values())
    assert seen.iteration_s == pytest.approx(together + slept("data"), abs=SLACK_S)
    assert seen.samples_per_s(replicas=2) == pytest.approx(2 * 4 / seen.iteration_s)


@pytest.mark.parametrize("with_gradients", [False, True])
def test_what_is_seen_of_inference(with_gradients: bool) -> None:
    """Gradients may be enabled and never asked for."""
    model = net()
    with torch.set_grad_enabled(with_gradients), sweeprof.session(model) as session:
        for batch in range(1, 21):
            model(torch.ones(batch, 8))
        assert session.times.repeats == 20
    assert (session.times.mode, session.times.repeats, session.times.backward) == ("inference", 20, None)
    assert all(row.backward_s is None for row in session.layers.rows)
    assert session.iteration().backward_s is None


def test_start_stop_and_reset() -> None:
    model = net()
    session = sweeprof.session(model)
    with pytest.raises(Unsupported, match="not been called"):
        _ = session.layers
    session.start()
    session.start()
    train(model)
    session.stop()
    session.stop()
    assert "forward" not in vars(model)
    train(model)
    assert session.times.repeats == 1, "what happens after stop is not seen"
    session.start()
    train(model, batch=6)
    assert session.times.repeats == 2, "the getters are valid in between"
    session.reset()
    with pytest.raises(Unsupported, match="not been called"):
        _ = session.times
    train(model, batch=6)
    session.stop()
    rows = {row.path: row for row in session.layers.rows}
    assert rows["0"].input_shapes == ((6, 8),)


def test_a_running_session_is_read_between_forward_and_backward() -> None:
    """Looking in between loses nothing."""
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 3))
    session = sweeprof.session(model)
    session.start()
    loss = model(torch.ones(5, 4)).sum()
    layers, times = session.layers, session.times
    assert (layers.macs, layers.params) == (5 * 4 * 2 + 5 * 2 * 3, 10 + 4 + 9)
    assert layers.flops
    assert (times.repeats, times.backward) == (1, None)
    assert layers.timings()["0"]["forward"]
    assert set(layers.to_frame(host=True)["time_reason"]) == {"the backward was not measured"}
    assert set(times.to_frame(aggr=False, host=True)["repeat"]) == {0}
    for text in (layers.tree(), layers.summary(), layers.layerwise_summary(), layers.namespace_tree(), str(times)):
        assert text
    loss.backward()
    assert session.times.repeats == 1
    assert session.times.backward is not None
    assert session.layers.timings()["0"]["backward"]
    pending = model(torch.ones(5, 4)).sum()
    assert session.times.repeats == 1, "a forward without its backward is no training step"
    assert session.layers.rows[0].backward_s is not None
    pending.backward()
    assert session.times.repeats == 2
    session.stop()
    assert session.times.repeats == 2


def test_an_iteration_may_end_between_forward_and_backward() -> None:
    model = nn.Linear(4, 2)
    with sweeprof.session(model) as session:
        loss = model(torch.ones(3, 4)).sum()
        first = session.iteration()
        assert (first.batch_size, first.backward_s) == (3, None)
        assert first.forward_s
        loss.backward()
        assert session.layers.timings()["__root__"]["backward"]
        assert session.iteration().forward_s is None, "which the one before has"
        model(torch.ones(3, 4))
        assert session.iteration().batch_size == 3
        model(torch.ones(5, 4)).sum().backward()
        assert session.iteration().batch_size == 5, "the forward before it is no part of its step"
        assert session.times.repeats == 2


def test_a_training_profiler_is_read_within_its_step() -> None:
    model = nn.Linear(4, 2)
    profiler = sweeprof.TrainingProfiler(model, profile_step=0)
    with profiler.step():
        loss = model(torch.ones(1, 4)).sum()
        assert profiler.layers.macs == 8
        loss.backward()
    assert profiler.layers.timings()["__root__"]["backward"]


def test_a_step_that_raises_leaves_the_model_as_it_was() -> None:
    model = net()
    session = sweeprof.session(model)
    mistake = pytest.raises(RuntimeError, match="shapes cannot be multiplied")
    with undisturbed(model, *OF_TRAINING), mistake, session:
        train(model)
        model(torch.ones(1, 9))
    assert session.times.repeats == 1


def test_a_call_that_raises_before_a_backward_is_no_part_of_it() -> None:
    model = sleepy_net()
    with sweeprof.session(model) as session:
        loss = model(torch.ones(4, 8)).mean()
        last = model[2].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(torch.ones(4, 8))
        last.remove()
        loss.backward()
        seen = session.iteration()
    assert seen.backward_s == pytest.approx(slept("backward"), abs=SLACK_S)
    rows = {row.path: row for row in session.layers.rows}
    assert rows["sleepy"].backward_s == pytest.approx(slept("backward"), abs=SLACK_S)


def test_two_backwards_of_one_step_add_up() -> None:
    model = sleepy_net()
    with sweeprof.session(model) as session:
        loss = model(torch.ones(4, 8)).mean()
        loss.backward(retain_graph=True)
        loss.backward()
    (sleepy,) = (row for row in session.layers.rows if row.path == "sleepy")
    assert sleepy.backward_s == pytest.approx(slept("backward", 2), abs=SLACK_S)


def test_what_runs_outside_the_model_is_no_layers() -> None:
    model = sleepy_net()
    with sweeprof.session(model) as session:
        for _ in range(3):
            loss = SleepingBackward.apply(model(torch.ones(4, 8))).mean()  # type: ignore[no-untyped-call]
            loss.backward()
    times = {call.path: call for call in session.times.calls}
    expected = statistics.median(sleeps["backward"][-5::2])  # the model's sleep is the second of each backward
    assert statistics.median(times["sleepy"].backward) == pytest.approx(expected, abs=SLACK_S)
    assert statistics.median(times["last"].backward) < SLEEP_S / 2
    assert times[OUTSIDE].path == OUTSIDE


def test_a_model_of_another_framework_is_refused_with_a_reason() -> None:
    with pytest.raises(Unsupported, match="not applicable: a fake model runs nothing"):
        sweeprof.session(FakeModel())


def test_a_copy_made_while_watching_is_the_models_own(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    x = torch.ones(2, 8)
    with sweeprof.session(model):
        copied = copy.deepcopy(model)
        torch.save(model, tmp_path / "model.pt")
        expected = model(x)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    saved = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.equal(copied(x), expected)
    assert torch.equal(saved(x), expected)


def test_several_calls_of_one_backward_are_one_step() -> None:
    model = sleepy_net()
    with sweeprof.session(model) as session:
        for _ in range(2):
            (model(torch.ones(4, 8)) - model(torch.zeros(2, 8)).sum()).square().mean().backward()
        seen = session.iteration()
    times = session.times
    assert times.repeats == 2
    assert [call.call for call in times.calls if call.path == "sleepy"] == [0, 1]
    longest = max(sleeps["forward"][-4:] + sleeps["backward"][-4:])
    for call in times.calls:
        if call.path == "sleepy":
            assert len(call.forward) == len(call.backward) == 2
            assert all(SLEEP_S <= seconds < longest + SLACK_S for seconds in (*call.forward, *call.backward))
    assert seen.batch_size == 2 * (4 + 2)
    assert seen.forward_s is not None
    assert seen.forward_s > 4 * SLEEP_S


def test_a_pause_between_two_backwards_is_nobodys() -> None:
    model = net()
    with sweeprof.session(model) as session:
        loss = model(torch.ones(4, 8)).mean()
        loss.backward(retain_graph=True)
        time.sleep(SLEEP_S)
        loss.backward()
    times = session.times
    assert times.backward is not None
    assert times.backward.probed[0] < SLEEP_S / 2
    assert sum(sum(call.backward) for call in times.calls) < SLEEP_S / 2


def test_an_iteration_adds_up_what_is_accumulated() -> None:
    model = sleepy_net()
    with sweeprof.session(model) as session:
        for _ in range(2):
            model(torch.ones(4, 8)).mean().backward()
        with torch.no_grad():
            model(torch.ones(16, 8))
        first, second = session.iteration(), session.iteration()
    assert first.batch_size == 8, "the evaluation trains nothing"
    assert session.times.repeats == 2
    assert first.forward_s == pytest.approx(slept("forward", 3) - slept("forward"), abs=SLACK_S)
    assert first.backward_s == pytest.approx(slept("backward", 2), abs=SLACK_S)
    assert (second.forward_s, second.backward_s, second.batch_size) == (None, None, None)


def test_a_model_is_watched_once_at_a_time() -> None:
    model = net()
    with sweeprof.session(model), pytest.raises(UserError, match="is watched already"):
        sweeprof.session(model[0]).start()
    assert all("forward" not in vars(module) for module in model.modules())
    with sweeprof.session(model):
        train(model)


def test_what_changes_before_the_start_is_seen() -> None:
    model = net()
    session = sweeprof.session(model)
    model[1] = nn.Tanh()
    with session:
        train(model)
    assert [call.type for call in session.times.calls if call.path == "1"] == ["Tanh"]


def compiled_in_place() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8))
    model.compile()
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, and of what the compiler imports
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.compile(nn.Linear(8, 8)),
        compiled_in_place,
        lambda: torch.jit.trace(nn.Linear(8, 8), torch.ones(1, 8)),  # type: ignore[no-untyped-call]
    ],
)
def test_a_model_without_layers_at_run_time_is_refused(make: Callable[[], Any]) -> None:
    model = make()
    before = set(vars(model))
    session = sweeprof.session(model)
    with pytest.raises(Unsupported, match="no layers when it runs"):
        session.start()
    assert set(vars(model)) == before


# TrainingProfiler: one step of a training loop, and what a DeepSpeed config says of it


PARAMS = 8 * 16 + 16 + 16 * 2 + 2
MACS = 4 * (8 * 16 + 16 * 2)


def loop(model: nn.Module, profiler: sweeprof.TrainingProfiler, steps: int) -> list[bool]:
    """Whether the model had probes in each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probed = []
    for _ in range(steps):
        with profiler.step():
            probed.append("forward" in vars(model))
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return probed


def test_only_the_step_that_is_asked_for_is_profiled() -> None:
    model = net()
    profiler = sweeprof.TrainingProfiler(model, profile_step=2)
    assert loop(model, profiler, 2) == [False, False]
    assert not profiler.is_done
    with pytest.raises(Unsupported, match="step 2 has not been made yet; 2 steps have"):
        _ = profiler.layers
    with pytest.raises(Unsupported, match="step 2"):
        _ = profiler.iteration
    assert loop(model, profiler, 2) == [True, False]
    assert profiler.is_done
    assert profiler.steps == 4
    assert (profiler.layers.params, profiler.layers.macs) == (PARAMS, MACS)
    assert profiler.layers.rows[0].backward_s is not None
    step = profiler.iteration
    phases = [seconds for seconds in (step.forward_s, step.backward_s, step.update_s) if seconds is not None]
    assert len(phases) == 3
    assert sum(phases) < step.iteration_s
    assert step.batch_size == 4


def test_the_summary_says_it_all_and_goes_to_a_file(tmp_path: Path) -> None:
    model, seen = net(), list[Any]()
    profiler = sweeprof.TrainingProfiler(
        model, profile_step=1, top=1, output_file=tmp_path / "step.txt", on_result=seen.append, model_parallel_size=4
    )
    loop(model, profiler, 3)
    text = (tmp_path / "step.txt").read_text()
    assert text == profiler.summary() + "\n"
    assert seen == [profiler.layers]
    for word in ("forward", "backward", "update", "samples/s", "Linear", "on 4 devices"):
        assert word in text
    assert sweeprof.scaled(4 * PARAMS, "params") in text


def test_a_depth_hides_what_is_deeper() -> None:
    model = nn.Sequential(net(), net()[2].__class__(2, 2))
    profiler = sweeprof.TrainingProfiler(model, profile_step=0, depth=1)
    loop(model, profiler, 1)
    assert "(1): Linear" in profiler.summary()
    assert "ReLU" not in profiler.summary().partition("Sequential(")[2]


def test_a_step_that_raises_is_the_callers_and_leaves_no_probes() -> None:
    """It is not made up for."""
    model = net()
    profiler = sweeprof.TrainingProfiler(model, profile_step=0)
    with pytest.raises(ZeroDivisionError), profiler.step():  # noqa: PT012
        model(torch.ones(4, 8))
        raise ZeroDivisionError
    assert "forward" not in vars(model)
    assert not profiler.is_done
    assert loop(model, profiler, 2) == [False, False]
    assert profiler.steps == 3


@pytest.mark.parametrize(("name", "as_file"), [("flops_profiler", True), ("pytorch_profiler", False)])
def test_the_settings_of_a_deepspeed_config(tmp_path: Path, name: str, as_file: bool) -> None:
    older = name == "pytorch_profiler"
    section = {
        "enabled": True,
        "profile_step": 3,
        "profile_depth" if older else "module_depth": 2,
        "profile_top_num" if older else "top_modules": 4,
        "detailed": False,
        "output_file": None,
    }
    config: Any = {"train_batch_size": 8, name: section}
    if as_file:
        path = tmp_path / "ds_config.json"
        path.write_text(json.dumps(config))
        config = path
    profiler = sweeprof.TrainingProfiler.from_deepspeed(net(), config, replicas=2)
    assert profiler is not None
    assert (profiler.profile_step, profiler.depth, profiler.top, profiler.detailed) == (3, 2, 4, False)
    assert profiler.replicas == 2


def test_the_flat_settings_of_a_deepspeed_config() -> None:
    config = {"pytorch_profiler": True, "profile_step": 7, "profile_depth": 1, "profile_top_num": 4}
    profiler = sweeprof.TrainingProfiler.from_deepspeed(net(), {"train_batch_size": 8, **config})
    assert profiler is not None
    assert (profiler.profile_step, profiler.depth, profiler.top) == (7, 1, 4)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"flops_profiler": {"enabled": False}},
        {"flops_profiler": {}},
        {"pytorch_profiler": False, "profile_step": 7, "profile_depth": 1, "profile_top_num": 4},
    ],
)
def test_a_deepspeed_config_that_asks_for_nothing(config: dict[str, Any]) -> None:
    assert sweeprof.TrainingProfiler.from_deepspeed(net(), config) is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("absent.json", "'absent.json' cannot be read"),
        ({"flops_profiler": 3}, "flops_profiler: 3 is neither a mapping of settings nor true or false"),
        ({"flops_profiler": {"enabled": True, "profile_step": -1}}, "profile_step: -1 is not a whole number"),
        (
            {"flops_profiler": {"enabled": True, "top_module": 3}},
            "'top_module' is not a setting.* Did you mean 'top_modules'",
        ),
        (
            {"pytorch_profiler": True, "profile_steps": 3},
            "'profile_steps' is not a setting.* Did you mean 'profile_step'",
        ),
    ],
)
def test_mistakes_are_named(config: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        sweeprof.TrainingProfiler.from_deepspeed(net(), config)


def test_every_mistake_at_once() -> None:
    with pytest.raises(UserError) as caught:
        sweeprof.TrainingProfiler(net(), profile_step=-1, depth=-2, top=0)
    assert [problem.key for problem in caught.value.problems] == ["profile_step", "depth", "top"]


def test_a_step_without_the_model_ends_no_training() -> None:
    profiler = sweeprof.TrainingProfiler(net(), profile_step=0)
    with profiler.step():
        pass
    assert profiler.steps == 1
    assert profiler.iteration.forward_s is None
    with pytest.raises(Unsupported, match="has not been called"):
        _ = profiler.layers


def test_a_report_that_fails_ends_no_training(tmp_path: Path) -> None:
    model = net()
    profiler = sweeprof.TrainingProfiler(model, profile_step=0, output_file=tmp_path / "absent" / "step.txt")
    with pytest.warns(UserWarning, match="the profile of step 0 is not reported: FileNotFoundError"):
        loop(model, profiler, 1)
    assert profiler.layers.params == PARAMS
