"""Command lines as plans: which combination others are compared with, and what an axis of the training step means."""

from __future__ import annotations

import copy
import io
import json
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from support import planning
from support.fakes import fake_config
from sweeprof.config.errors import choice_of_hydra
from sweeprof.config.validation import mode_problems
from sweeprof.errors import UserError
from sweeprof.plan import compose
from sweeprof.plan.plan import Plan, identity
from sweeprof.plan.shape import Grid


def planned(*arguments: str) -> Plan:
    """The plan of ``python -m sweeprof ARGUMENTS``."""
    return planning.planned(["model=mlp", "metrics=latency", "tracking=none", *arguments])


PRECISIONS, LAYOUTS = "backend.precision=bf16,fp32", "backend.channels_last=true,false"


@pytest.mark.parametrize(
    ("arguments", "baseline"),
    [
        ([], {"backend": "torch"}),
        (["batch_size=1,8"], {"backend": "torch"}),
        (["backend=tensorflow"], {}),
        (["backend=onnxruntime,tensorflow"], {"backend": "onnxruntime"}),
        (["backend=jax,tensorflow", PRECISIONS], {"backend": "jax", "backend.precision": "fp32"}),
        (["backend=torch,torch_compile"], {"backend": "torch"}),
        ([PRECISIONS], {"backend.precision": "fp32"}),
        (["backend.precision=bf16,int8"], {"backend": "torch"}),
        ([LAYOUTS], {"backend.channels_last": False}),
        ([PRECISIONS, LAYOUTS], {"backend.precision": "fp32", "backend.channels_last": False}),
        (["backend=torch_compile,torch", PRECISIONS], {"backend": "torch", "backend.precision": "fp32"}),
        ([PRECISIONS, "compare.baseline={backend.precision: bf16}"], {"backend.precision": "bf16"}),
        ([PRECISIONS, "compare.baseline=null"], {"backend.precision": "fp32"}),
    ],
)
def test_the_baseline_is_the_plainest_of_what_a_sweep_varies(arguments: list[str], baseline: dict[str, Any]) -> None:
    plan = planned(*arguments)
    assert plan.baseline == baseline
    assert len(plan.shards) == 1


@pytest.mark.parametrize("axis", ["training.optimizer=sgd,adamw", "training.loss=mean,cross_entropy"])
def test_an_axis_of_the_training_step_needs_one(axis: str) -> None:
    key, _, values = axis.partition("=")
    with pytest.raises(UserError) as raised:
        planned(axis)
    assert str(raised.value) == f"{key}: '{values}' has no effect with mode=inference; add mode=training."
    assert len(planned(axis, "mode=training").combinations) == 2
    assert len(planned(axis, "metrics=training").combinations) == 2
    assert len(planned(axis.partition(",")[0]).combinations) == 1


def test_a_loss_and_an_optimizer_of_the_users_key_by_key() -> None:
    """As a model and its arguments: none of these keys is in the default config, in which both are names."""
    plan = planned(
        "mode=training",
        "training.loss._target_=operator.sub",
        "training.optimizer._target_=torch.optim.SGD",
        "training.optimizer.lr=0.1,0.01",
    )
    assert [c.config["training"] for c in plan.combinations] == [
        {"loss": {"_target_": "operator.sub"}, "optimizer": {"_target_": "torch.optim.SGD", "lr": rate}}
        for rate in (0.1, 0.01)
    ]
    with pytest.raises(UserError, match=r"training\.optimizer\._target_: None is not the dotted name"):
        planned("mode=training", "training.optimizer.lr=0.1")


def test_an_axis_that_the_command_line_narrowed_to_one_value_is_no_mistake() -> None:
    assert list(mode_problems({"training.optimizer": ["adamw"]}, ["inference"])) == []


def test_an_inference_is_measured_once_whatever_trains() -> None:
    plan = planned("mode=inference,training", "training.optimizer=sgd,adamw,none")
    kinds = [(c.axes["mode"], c.axes["training.optimizer"]) for c in plan.combinations]
    assert kinds == [("inference", "sgd"), *(("training", name) for name in ("sgd", "adamw", "none"))]
    assert [excluded.axes["training.optimizer"] for excluded in plan.excluded] == ["adamw", "none"]
    assert all(excluded.reason.startswith("the same as ") for excluded in plan.excluded)


def test_an_excluded_combination_has_the_name_of_the_users_own_model() -> None:
    plan = planned("model.torch._target_=sweeprof.zoo.mlp.torch_model", "batch_size=1,8", "exclude=['batch_size > 1']")
    names = [c.axes["model"] for c in plan.combinations] + [excluded.axes["model"] for excluded in plan.excluded]
    assert names == ["torch_model", "torch_model"]


def test_a_model_of_a_sweep_file_is_the_users_own(tmp_path: Path) -> None:
    """It has its name, and neither arguments nor builders of the default model, which would be measured beside it."""
    (tmp_path / "sweep").mkdir()
    node = "model: {torch: {_target_: sweeprof.zoo.mlp.torch_model, pretrained: false}}"
    (tmp_path / "sweep" / "mine.yaml").write_text(f"axes: {{backend: [torch, tensorflow]}}\n{node}\n")
    plan = planning.planned(["+sweep=mine", "tracking=none"], tmp_path)
    words = ("model.torch._target_=sweeprof.zoo.mlp.torch_model", "model.torch.pretrained=false")
    typed = planning.planned([*words, "backend=torch,tensorflow", "tracking=none"])
    assert [c.axes["model"] for c in plan.combinations] == ["torch_model", "torch_model"]
    assert [c.id for c in plan.combinations] == [c.id for c in typed.combinations]
    assert [c.unsupported is None for c in plan.combinations] == [True, False]


@pytest.mark.parametrize(
    ("named", "name"),
    [
        ("one", "one"),
        ("[one,two]", "one+two"),
        ("team/three", "team-three"),
        ("[one,team/three]", "one+team-three"),
        ("größe", "größe"),
    ],
)
def test_a_plan_with_the_name_of_its_sweep_files_can_be_read(tmp_path: Path, named: str, name: str) -> None:
    (tmp_path / "sweep" / "team").mkdir(parents=True)
    for number, file in enumerate(("one", "two", "team/three", "größe"), 1):
        (tmp_path / "sweep" / f"{file}.yaml").write_text(f"seed: {{weights: {number}}}\n")
    plan = planning.planned([f"+sweep={named}", "tracking=none"], tmp_path)
    assert plan.name == name
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))).name == name


def test_the_identity_of_an_inference_does_not_depend_on_the_training_step() -> None:
    adam = {"optimizer": "adam", "loss": "mean"}
    for mode, alike in (("inference", True), ("training", False)):
        config = {**copy.deepcopy(fake_config()), "mode": mode}
        assert config["training"] != adam
        assert (identity(config) == identity({**config, "training": adam})) == alike


@pytest.mark.parametrize("launcher", ["basic", "joblib", "submitit_local", "submitit_slurm"])
def test_launchers_of_hydra_need_no_cluster(launcher: str) -> None:
    assert planned(f"hydra/launcher={launcher}").cluster == {}


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "submitit_slurm"])
def test_a_cluster_has_no_launcher_beside_its_own(launcher: str) -> None:
    with pytest.raises(UserError, match=f"hydra/launcher: '{launcher}' cannot be combined with cluster=slurm"):
        planned("cluster=slurm", f"hydra/launcher={launcher}")


def test_our_own_launcher_is_chosen_by_the_cluster() -> None:
    assert planned("cluster=slurm").cluster
    assert planned("cluster=slurm", "hydra/launcher=slurm").cluster
    with pytest.raises(UserError, match="is selected by cluster=slurm"):
        planned("hydra/launcher=slurm")


def test_a_launcher_that_an_extra_brings_says_so_where_it_is_not_installed() -> None:
    for launcher, extra in (("ray", "ray"), ("submitit_slurm", "submitit"), ("joblib", "joblib")):
        said = str(choice_of_hydra("hydra/launcher", launcher, "launcher", ["basic", "slurm"]))
        assert said == f"hydra/launcher: '{launcher}' is not installed here: pip install 'sweeprof[{extra}]'."
    said = str(choice_of_hydra("hydra/launcher", "slrum", "launcher", ["basic", "slurm"]))
    assert said.endswith("is not a launcher. Did you mean 'slurm'? Known: basic, slurm.")


FAKE = ("model=fake", "backend=fake", "dataset=synthetic")
MILLION = ("batch_size=range(1,101)", "backend.threads=range(1,101)", "model.fake.seed=range(0,100)")
SWEEPS = {
    "whole": "axes: {backend.threads: 'range(1,101)', model.fake.seed: 'range(0,100)'}",
    "grids": "grids: [{axes: {batch_size: 'range(1,401)', backend.threads: 'range(1,301)'}}, {axes: {batch_size: [1, 2]}}]",
    "included": "include: [{model.fake.step_s: 1}, {batch_size: 7}]",
}
OF_MILLION = "1,000,000 = 100 batch_size × 100 backend.threads × 100 model.fake.seed"
OF_GRIDS = "120,000 = 400 batch_size × 300 backend.threads; 2 = 2 batch_size"


@pytest.mark.parametrize(
    ("words", "total", "told"),
    [
        (MILLION, 1_000_000, OF_MILLION),
        (["+sweep=whole", MILLION[0]], 1_000_000, "100 batch_size"),
        (["+sweep=grids"], 120_002, f"120,002: {OF_GRIDS}"),
        # The first included point is there once for every point of the axes, the second one for every one with its batch size.
        (["+sweep=included", *MILLION], 2_010_000, "100 model.fake.seed + 1,010,000 of include"),
    ],
)
def test_a_product_that_is_too_large_is_rejected_before_it_is_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], total: int, told: str
) -> None:
    def expanded(*_: object) -> None:
        raise AssertionError("it was expanded")

    monkeypatch.setattr(Grid, "product", expanded)
    monkeypatch.setattr(Grid, "narrowed", expanded)
    (tmp_path / "sweep").mkdir()
    for name, text in SWEEPS.items():
        (tmp_path / "sweep" / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")
    with pytest.raises(UserError) as raised:
        planning.planned([*FAKE, "tracking=none", *words], tmp_path)
    said = str(raised.value)
    assert said.startswith(
        f"combinations: {total} is more than the 100,000 combinations that a sweep can have before `exclude` ("
    )
    assert told in said
    assert said.endswith("give the axes fewer values.")


def test_the_command_is_stored_as_it_was_typed() -> None:
    words = [*FAKE, "tracking=none", "name=20240101", "batch_size=1,2", "compare.baseline={batch_size: 1}"]
    command = planning.planned(words).command
    assert shlex.split(command)[3:] == words
    assert " name=20240101 " in command


def test_a_range_is_counted_before_it_is_listed() -> None:
    for text, count in (("range(0,1000000000000)", "1,000,000,000,000"), ("shuffle(range(0,1,1e-9))", "1,000,000,000")):
        with pytest.raises(UserError, match=f"has {count} values, but an axis can have at most 100,000."):
            planned(f"batch_size={text}")
    assert planned("protocol.max_s=range(1,2,0.25)").axes["protocol.max_s"] == [1, 1.25, 1.5, 1.75]


def test_planning_that_takes_long_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "LINE_S", 0.02)
    composer = planning.composer([*FAKE, "tracking=none", "batch_size=range(1,41)", "backend.threads=range(1,41)"])
    composer.live = Console(file=io.StringIO(), width=200)
    composer.plan()
    lines = cast("io.StringIO", composer.live.file).getvalue().splitlines()
    counted = [found for line in lines if (found := re.fullmatch(r"planning: ([\d,]+) of 1,600 combinations", line))]
    assert len({found[1] for found in counted}) > 1, lines
    assert len(set(lines)) == len(lines)


def test_a_line_of_planning_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "LINE_S", 0.01)
    out = io.StringIO()
    with compose.PlanningDisplay(Console(file=out, width=200)) as display:
        display.total = 1
        display.advance()
        time.sleep(0.1)
    assert out.getvalue() == "planning: checking 1 combination\n"


def test_the_command_line_overrides_what_a_sweep_file_gives_the_sweeper() -> None:
    params = "hydra.sweeper.params={batch_size: '1,2', backend.threads: 3}"
    plan = planned(params, "batch_size=4,8")
    assert [(c.axes["batch_size"], c.config["backend"]["threads"]) for c in plan.combinations] == [(4, 3), (8, 3)]


def test_names_of_config_files_may_have_any_letters(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    steps = {"my-größtes-模型": 1, "my-2": 2, "my own": 3}
    for name, step_s in steps.items():
        text = f"fake: {{_target_: sweeprof.backends.fake.FakeModel, step_s: {step_s}}}\n"
        (tmp_path / "model" / f"{name}.yaml").write_text(text, encoding="utf-8")
    plan = planning.planned(["backend=fake", "dataset=synthetic", "tracking=none", "model=glob(my*)"], configs=tmp_path)
    assert {c.axes["model"]: c.config["model"]["fake"]["step_s"] for c in plan.combinations} == steps


@pytest.mark.parametrize("key", ["zip", "include", "grids"])
def test_a_number_in_place_of_a_list_of_points_is_a_mistake(key: str) -> None:
    with pytest.raises(UserError, match=f"{key}: 5 is not a list"):
        planning.planned([f"{key}=5", "tracking=none"])
