"""Plans of models whose source describes their inputs."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.fakes import composed_of, fake_config
from support.planning import planned
from sweeprof.errors import UserError
from sweeprof.metrics.quality import import_torchmetrics
from sweeprof.plan.plan import TORCHMETRICS, identity, preload

TIMM = ("model=timm", "tracking=none")


described_here = pytest.mark.usefixtures("described_here")


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
    (combination,) = planned([*TIMM, "dataset=digits"]).combinations
    assert combination.config["dataset"]["_target_"] == "sweeprof.datasets.arrays.Digits"
    one, other = planned(["model=timm,lenet5", "tracking=none"]).combinations
    assert one.config["dataset"]["_target_"] == "sweeprof.datasets.Auto"
    assert other.config["dataset"]["_target_"] == "sweeprof.datasets.arrays.Digits"


def test_a_file_runs_on_the_backend_that_reads_it(tmp_path: Path) -> None:
    from unit.model_sources.test_sources import onnx_file

    path = onnx_file(tmp_path)
    plan = planned(
        ["model=file", f"model.path={path}", "inputs.sequence=4,8", "backend=onnxruntime,torch", "tracking=none"]
    )
    assert {(c.axes["backend"], c.unsupported) for c in plan.combinations} == {
        ("onnxruntime", None),
        ("torch", "the backend does not run a .onnx file"),
    }


@pytest.mark.slow
@described_here
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model=timm", "model.name=resnet81"], "model.name: 'resnet81' is not a model of timm. Did you mean 'resnet18'"),
        (["model=timm", "model.name=zzz*"], "model.name: 'zzz*' matches no model."),
        (["model=timm", "model.nam=resnet18"], "model: 'nam' is not a setting of this model. Did you mean 'name'"),
        (["model=timm", "inputs.image_siz=64"], "inputs.image_siz: 64 is given to a key that does not exist. Did you mean"),
        (["model=lenet5", "inputs.image_size=64"], "inputs: {'image_size': 64} has an effect only with a dataset"),
        (["model=lenet5", "dataset=auto"], "needs a model whose source describes its inputs, and lenet5 has none"),
        (["model=lenet5", "model.name=a*"], "model.name: 'a*' is a pattern, and this model's source cannot list its models."),
        (["model=file", "backend=onnxruntime"], "model.path: None is missing: it must name a file."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_error(arguments: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        planned([*arguments, "tracking=none"])
    assert said in str(caught.value)


def test_a_prompt_needs_generated_inputs() -> None:
    def error_of(*arguments: str) -> str:
        with pytest.raises(UserError) as caught:
            planned([*arguments, "tracking=none"])
        return str(caught.value)

    generation = ("mode=generation", "generation.prompt_length=8")
    assert error_of("model=mlp", *generation) == "generation.prompt_length: 8 has an effect with dataset=auto only."
    planned(["model=mlp", "generation.prompt_length=8", "tracking=none"])  # mode=inference does not read it
    said = error_of("model=mlp", "generation.new_tokens=4,8")
    assert said == "generation.new_tokens: '4,8' has no effect with mode=inference; add mode=generation."


def test_a_function_that_generates_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_generation_module.py").write_text(
        "def generate(model, inputs, new_tokens, on_token, top=1): pass\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    common = ("model=mlp", "mode=generation", "metrics.select=[generation/latency]", "tracking=none")
    planned([*common, "generation.function=my_generation_module.generate", "generation.top=3"])
    for key, said in (
        ("generation.function=my_generation_module.generat", "has no 'generat'. Did you mean 'generate'?"),
        ("generation.function=my_generation_modul.generate", "cannot be imported"),
    ):
        with pytest.raises(UserError, match=r"generation\.function") as caught:
            planned([*common, key])
        assert said in str(caught.value)


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


@pytest.mark.thorough
@pytest.mark.parametrize("source", ["timm", "torchvision", "transformers"])
def test_a_source_imports_the_compiler_of_torch(source: str) -> None:
    *targets, last = composed_of(f"model={source}", "backend=torch")["model"]["preload"]
    assert last == "torch._dynamo"
    imports = f"import sys; from sweeprof.run.fork_server import _imported; [_imported(one) for one in {targets}]"
    program = f"{imports}; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_torchmetrics_is_imported_once_and_only_where_outputs_are_scored() -> None:
    config = fake_config("+quality.f1._target_=torchmetrics.classification.MulticlassF1Score")
    assert preload(config, "quality")[-1] == TORCHMETRICS
    assert TORCHMETRICS not in preload(config, "timing")  # whose memory and times are those of the model alone
    assert TORCHMETRICS not in preload(fake_config(), "quality")
    assert TORCHMETRICS not in preload(fake_config("+quality.own._target_=my_quality.certain"), "quality")


@pytest.mark.slow
def test_torchmetrics_can_be_imported_beforehand() -> None:
    import_torchmetrics()
    assert "torchmetrics" in sys.modules


@described_here
def test_an_attention_that_a_model_lacks_is_unsupported_when_it_is_planned() -> None:
    tiny = "model.config={num_hidden_layers: 1, hidden_size: 32, num_attention_heads: 2, intermediate_size: 37}"
    line = ["model=transformers", "model.architecture=deberta-v2", tiny, "model.attn_implementation=eager,sdpa"]
    eager, sdpa = planned([*line, "tracking=none"]).combinations
    assert eager.unsupported is None
    assert str(sdpa.unsupported).startswith("model.attn_implementation=sdpa: DebertaV2Model does not support")


@described_here
def test_a_batch_that_a_file_does_not_take_is_unsupported_when_it_is_planned(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    save(
        helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [value], [out])),
        tmp_path / "net.onnx",
    )
    line = ["model=file", f"model.path={tmp_path / 'net.onnx'}", "backend=onnxruntime", "tracking=none"]
    one, two, four = planned([*line, "batch_size=1,2,4"]).combinations
    assert two.unsupported is None
    assert one.unsupported == four.unsupported == "the model takes batches of 2 only: batch_size=2"
