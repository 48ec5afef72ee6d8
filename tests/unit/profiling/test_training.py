"""TrainingProfiler: one step of a training loop, and what a DeepSpeed config says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sweeprof
from sweeprof.errors import Unsupported, UserError

PARAMS = 8 * 16 + 16 + 16 * 2 + 2
MACS = 4 * (8 * 16 + 16 * 2)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


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
    assert step.forward_s is not None
    assert step.backward_s is not None
    assert step.update_s is not None
    assert step.forward_s + step.backward_s + step.update_s < step.iteration_s
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
    model = net()
    profiler = sweeprof.TrainingProfiler(model, profile_step=0)
    with pytest.raises(ZeroDivisionError), profiler.step():  # noqa: PT012
        model(torch.ones(4, 8))
        raise ZeroDivisionError
    assert "forward" not in vars(model)
    assert not profiler.is_done


@pytest.mark.parametrize("name", ["flops_profiler", "pytorch_profiler"])
@pytest.mark.parametrize("as_file", [True, False])
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
    assert sweeprof.TrainingProfiler.from_deepspeed(net(), {**config, "pytorch_profiler": False}) is None


@pytest.mark.parametrize("config", [{}, {"flops_profiler": {"enabled": False}}, {"flops_profiler": {}}])
def test_a_deepspeed_config_that_asks_for_nothing(config: dict[str, Any]) -> None:
    assert sweeprof.TrainingProfiler.from_deepspeed(net(), config) is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("absent.json", "'absent.json' cannot be read"),
        ({"flops_profiler": 3}, "flops_profiler: 3 is neither a mapping of settings nor true or false"),
        ({"flops_profiler": {"enabled": True, "profile_step": -1}}, "profile_step: -1 is not a whole number"),
        ({"flops_profiler": {"enabled": True, "top_modules": "many"}}, "top_modules: 'many' is not a whole number"),
        (
            {"flops_profiler": {"enabled": True, "top_module": 3}},
            "'top_module' is not a setting.* Did you mean 'top_modules'",
        ),
        (
            {"pytorch_profiler": True, "profile_steps": 3},
            "'profile_steps' is not a setting.* Did you mean 'profile_step'",
        ),
        ({"pytorch_profiler": True, "profile_depth": "all"}, "profile_depth: 'all' is not a whole number"),
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


def test_a_step_that_raised_is_not_made_up_for() -> None:
    model = net()
    profiler = sweeprof.TrainingProfiler(model, profile_step=0)
    with pytest.raises(ZeroDivisionError), profiler.step():
        raise ZeroDivisionError
    assert loop(model, profiler, 2) == [False, False]
    assert profiler.steps == 3
