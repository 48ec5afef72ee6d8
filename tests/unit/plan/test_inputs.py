"""Plans of data: which keys of the default dataset a dataset of one's own has, and inputs that a model's source describes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from unit.model_sources.test_sources import onnx_file

from support.planning import composed_of, fake_config, planned, write_configs
from sweeprof.plan.plan import TORCHMETRICS, identity, preload

FAKE = ("model=fake", "backend=fake", "tracking=none")
TIMM = ("model=timm", "tracking=none")
DIGITS = "sweeprof.datasets.arrays.Digits"
MINE = "sweeprof.datasets.arrays.Synthetic"
SHAPED = {"_target_": MINE, "shape": [1, 2]}

described_here = pytest.mark.usefixtures("described_here")


def datasets(*arguments: str, configs: Path | None = None) -> list[dict[str, Any]]:
    return [c.config["dataset"] for c in planned([*FAKE, *arguments], configs).combinations]


def test_a_class_of_ones_own_has_no_keys_of_the_default_dataset() -> None:
    plan = planned([*FAKE, f"dataset._target_={MINE}", "dataset.shape=[1,2]", "dataset.samples=4,8"])
    assert [c.config["dataset"] for c in plan.combinations] == [{**SHAPED, "samples": 4}, {**SHAPED, "samples": 8}]
    assert "dataset.seed" not in plan.combinations[0].command
    assert [set(node) for node in datasets(f"dataset._target_={MINE},{DIGITS}", "dataset.seed=1")] == [
        {"_target_", "seed"},
        {"_target_", "seed"},
    ]


@pytest.mark.parametrize(("target", "axis"), [(f"_target_: {MINE}, ", ""), ("", f", dataset._target_: [{MINE}]")])
def test_nor_in_a_sweep_file(tmp_path: Path, target: str, axis: str) -> None:
    text = f"dataset: {{{target}shape: [1, 2], seed: 0}}\naxes: {{batch_size: [1, 2]{axis}}}\n"
    write_configs(tmp_path, {"sweep/mine": f"# @package _global_\n{text}"})
    assert datasets("+sweep=mine", configs=tmp_path) == [{**SHAPED, "seed": 0}] * 2


def test_who_chooses_a_file_keeps_its_keys() -> None:
    (found,) = datasets("dataset=synthetic", f"dataset._target_={MINE}", "dataset.samples=2")
    assert (found["shape"], found["samples"], found["channels"]) == ([1, 32, 32], 2, 1)


# Inputs that the model's source describes


@pytest.mark.slow
@described_here
def test_the_inputs_are_those_of_each_model_and_size() -> None:
    plan = planned([*TIMM, "model.name=resnet10t,vit_tiny_patch16_224", "inputs.image_size=64,96"])
    assert list(plan.axes) == ["model", "backend", "device", "batch_size", "model.name", "inputs.image_size"]
    shapes = {
        (c.axes["model.name"], c.axes["inputs.image_size"]): c.config["dataset"]["inputs"]["inputs"]["x"]["shape"]
        for c in plan.combinations
    }
    assert {key: tuple(shape) for key, shape in shapes.items()} == {
        (name, side): (3, side, side) for name in ("resnet10t", "vit_tiny_patch16_224") for side in (64, 96)
    }
    first = plan.combinations[0]
    (alone,) = planned(shlex.split(first.command)[3:]).combinations
    assert alone.id == first.id


@pytest.mark.slow
@described_here
def test_a_pattern_stands_for_every_name_that_matches() -> None:
    plan = planned([*TIMM, "model.name=resnet1?t,vit_tiny_patch16_224"])
    assert plan.axes["model.name"] == ["resnet10t", "resnet14t", "vit_tiny_patch16_224"]


@pytest.mark.slow
@described_here
def test_a_dataset_of_ones_own_goes_before_generated_inputs() -> None:
    (own,) = planned([*TIMM, "dataset=digits"]).combinations
    generated, other = planned(["model=timm,lenet5", "tracking=none"]).combinations
    targets = [c.config["dataset"]["_target_"] for c in (own, generated, other)]
    assert targets == [DIGITS, "sweeprof.datasets.Auto", DIGITS]


@pytest.mark.slow
def test_a_file_runs_on_the_backend_that_reads_it(tmp_path: Path) -> None:
    model = ("model=file", f"model.path={onnx_file(tmp_path)}", "inputs.sequence=4,8")
    plan = planned([*model, "backend=onnxruntime,torch", "tracking=none"])
    assert {(c.axes["backend"], c.unsupported) for c in plan.combinations} == {
        ("onnxruntime", None),
        ("torch", "the backend does not run a .onnx file"),
    }


@described_here
def test_an_attention_that_a_model_lacks_is_unsupported_when_it_is_planned() -> None:
    tiny = "model.config={num_hidden_layers: 1, hidden_size: 32, num_attention_heads: 2, intermediate_size: 37}"
    line = ["model=transformers", "model.architecture=deberta-v2", tiny, "model.attn_implementation=eager,sdpa"]
    eager, sdpa = planned([*line, "tracking=none"]).combinations
    assert eager.unsupported is None
    assert str(sdpa.unsupported).startswith("model.attn_implementation=sdpa: DebertaV2Model does not support")


@described_here
def test_a_batch_that_a_file_does_not_take_is_unsupported_when_it_is_planned(tmp_path: Path) -> None:
    model = ("model=file", f"model.path={onnx_file(tmp_path, batch=2)}", "inputs.sequence=4")
    one, two, four = planned([*model, "backend=onnxruntime", "tracking=none", "batch_size=1,2,4"]).combinations
    assert two.unsupported is None
    assert one.unsupported == four.unsupported == "the model takes batches of 2 only: batch_size=2"


# What is imported once, and not by each trial


@pytest.mark.parametrize("source", ["timm", "torchvision", "transformers"])
def test_a_source_is_imported_once_and_not_by_each_trial(source: str) -> None:
    """In the fork server of all passes, as it imports torch's compiler anyway; and in none of a backend that borrows the model."""
    own, borrowing = (composed_of(f"model={source}", f"backend={backend}") for backend in ("torch", "onnxruntime"))
    modules = preload(own, "timing")
    assert f"sweeprof.model_sources.{source}:import_{source}" in modules
    assert preload(own, "analysis") == modules
    assert not [m for m in preload(borrowing, "timing") if "model_sources" in m or "torch" in m]
    model = {key: value for key, value in own["model"].items() if key != "preload"}
    assert identity({**own, "model": model}) == identity(own)


def test_torchmetrics_is_imported_once_and_only_where_outputs_are_scored() -> None:
    config = fake_config("+quality.f1._target_=torchmetrics.classification.MulticlassF1Score")
    assert preload(config, "quality")[-1] == TORCHMETRICS
    assert TORCHMETRICS not in preload(config, "timing")  # whose memory and times are those of the model alone
    assert TORCHMETRICS not in preload(fake_config(), "quality")
    assert TORCHMETRICS not in preload(fake_config("+quality.own._target_=my_quality.certain"), "quality")
