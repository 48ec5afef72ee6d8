"""Collections and files of models: what is built takes the inputs that its source describes; prompts are checked."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
import yaml
from onnx import TensorProto, helper

import sweeprof
from support.onnx_graphs import floats, node, saved
from sweeprof.backends import FILES
from sweeprof.datasets import ArraySpec, Auto, ModelInputs
from sweeprof.errors import Unsupported, UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.model_sources import file, keras_applications, timm, torchvision, transformers
from sweeprof.model_sources.transformers import inputs
from sweeprof.paths import conf_folder

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own


def call(described: ModelInputs, samples: int = 2) -> Inputs:
    """The arguments of a batch of generated samples."""
    split = Auto(described.to_dict(), samples=samples).split("test")
    return Inputs.from_batch(split.batch(np.arange(samples))[0], split.pass_as)


def torch_outputs(model: Any, described: ModelInputs) -> Any:
    with torch.no_grad():
        return call(described).map(torch.from_numpy).call(model)


@pytest.mark.parametrize(
    ("name", "sizes", "shape"),
    [
        ("resnet10t", {"image_size": 64}, (3, 64, 64)),
        ("vit_tiny_patch16_224", {"image_size": 32}, (3, 32, 32)),  # built for that size
        ("vit_tiny_patch16_224", {}, (3, 224, 224)),
    ],
)
def test_timm(name: str, sizes: dict[str, int], shape: tuple[int, ...]) -> None:
    described = timm.inputs(name, sizes, {"num_classes": 7})
    assert (described.inputs, described.targets) == ({"x": ArraySpec(shape)}, ArraySpec((), "int64", high=7))
    assert (described.pass_as, described.channel_axis, described.unit) == ("positional", 1, "images")
    assert torch_outputs(timm.build(name, sizes, {"num_classes": 7}).eval(), described).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "sizes", "shape"),
    [
        ("squeezenet1_1", {"image_size": 64}, (3, 64, 64)),
        ("inception_v3", {}, (3, 299, 299)),
        ("r3d_18", {"frames": 4, "image_size": 32}, (3, 4, 32, 32)),
    ],
)
def test_torchvision(name: str, sizes: dict[str, int], shape: tuple[int, ...]) -> None:
    described = torchvision.inputs(name, sizes, {"num_classes": 7})
    assert (described.inputs, described.targets) == ({"x": ArraySpec(shape)}, ArraySpec((), "int64", high=7))
    if sizes:
        assert torch_outputs(torchvision.build(name).eval(), described).shape[0] == 2


TINY = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 37}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
WHISPER = {"d_model": 32, **LAYERS}
CLIP = {"text_config": TINY, "vision_config": TINY}
ARCHITECTURES = [
    ("bert", "text-classification", TINY, {}, ["input_ids", "attention_mask"], "logits", (2, 2)),
    ("gpt2", "text-generation", {"n_layer": 1, "n_embd": 32, "n_head": 2}, {"sequence_length": 9}, None, "logits", (2, 9, 50257)),
    ("llama", "text-generation", {**TINY, "num_key_value_heads": 1}, {"sequence_length": 9}, None, "logits", (2, 9, 32000)),
    ("t5", "text2text-generation", {"num_layers": 1, "d_model": 32}, {"decoder_length": 5}, None, "logits", (2, 5, 32128)),
    ("vit", "image-classification", TINY, {}, ["pixel_values"], "logits", (2, 2)),
    ("wav2vec2", "speech-to-characters", TINY, {"audio_samples": 4000}, ["input_values"], "logits", (2, 12, 32)),
    ("whisper", "speech-to-text", WHISPER, {"decoder_length": 4}, ["input_features", "decoder_input_ids"], "logits", (2, 4, 51865)),
    ("clip", None, CLIP, {}, ["input_ids", "pixel_values", "attention_mask"], "logits_per_image", (2, 2)),
]  # fmt: skip


@pytest.mark.parametrize("case", ARCHITECTURES, ids=lambda case: case[0])
def test_transformers(case: Any) -> None:
    architecture, task, config, sizes, names, output, shape = case
    described = transformers.inputs(architecture, None, task, sizes, config)
    assert list(described.inputs) == (names or list(described.inputs))
    assert {name: described.sizes[name] for name in sizes} == sizes
    model = transformers.build(architecture, None, task, config)
    assert torch_outputs(model.eval(), described)[output].shape == shape


@pytest.mark.parametrize("name", ["net.h5", "net.hdf5", "net"])
def test_files_and_folders_of_keras_and_tensorflow(name: str, tmp_path: Path) -> None:
    """The folder is a SavedModel; the figures are those of the layer that was saved."""
    given = keras.Input((8,), name="given")
    model = keras.Model(given, keras.layers.Dense(3)(given))
    path = tmp_path / name
    if path.suffix:
        model.save(path)
    else:
        model.export(path, verbose=False)
    described = file.inputs(str(path), {})
    assert [spec.shape for spec in described.inputs.values()] == [(8,)]
    samples = np.ones((2, 8), np.float32)
    np.testing.assert_allclose(file.keras_model(str(path))(samples), model(samples), rtol=1e-6)
    found = sweeprof.profile(path, (2, 8), ["params/total", "compute/macs"], progress=False)
    assert (found["params/total"].value, found["compute/macs"].value) == (27, 48)


@pytest.mark.parametrize(
    ("architecture", "task", "config", "kind"),
    [
        ("wav2vec2", "automatic-speech-recognition", TINY, "Wav2Vec2ForCTC"),
        ("bert", "sentiment-analysis", TINY, "BertForSequenceClassification"),
        ("t5", "translation_en_to_fr", {"num_layers": 1, "d_model": 32}, "T5ForConditionalGeneration"),
        ("vit", "image-feature-extraction", TINY, "ViTModel"),
    ],
)
def test_tasks_by_the_names_of_pipelines(architecture: str, task: str, config: dict[str, Any], kind: str) -> None:
    assert type(transformers.build(architecture, None, task, config)).__name__ == kind
    assert transformers.inputs(architecture, None, task, {}, config).inputs


@pytest.mark.slow
def test_every_task_of_pipelines_is_known() -> None:
    transformers.import_transformers()
    pipelines = import_module("transformers.pipelines")
    assert {*pipelines.SUPPORTED_TASKS, *pipelines.TASK_ALIASES} <= set(transformers.TASKS)


def test_a_saved_model_of_transformers(tmp_path: Path) -> None:
    made = transformers.build("bert", None, "text-classification", {**TINY, "num_labels": 5})
    made.save_pretrained(tmp_path)  # type: ignore[operator]
    described = transformers.inputs(None, str(tmp_path), None, {"sequence_length": 8})
    assert described.targets == ArraySpec((), "int64", high=5)
    assert (described.unit, described.units_per_sample) == ("tokens", 8)
    loaded = transformers.build(None, str(tmp_path), None, dtype="bfloat16")
    assert type(loaded).__name__ == "BertForSequenceClassification"
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    before, after = torch_outputs(made.eval(), described).logits, torch_outputs(loaded.float().eval(), described).logits
    torch.testing.assert_close(before, after, rtol=0.05, atol=0.05)


def slots(types: dict[str, tuple[int, list[Any]]]) -> dict[str, Any]:
    """Inputs of an ONNX file, by their names, of these types and sides, of which some have names."""
    return {name: helper.make_tensor_value_info(name, *of) for name, of in types.items()}


def onnx_file(folder: Path, batch: int | str = "batch") -> str:
    tokens = (TensorProto.INT64, [batch, "sequence"])
    inputs = slots({"ids": tokens, "attention_mask": tokens, "scale": (TensorProto.FLOAT, [batch, 3])})
    nodes = [node("Cast", "ids", "narrow", to=TensorProto.INT32), node("Gather", "table narrow", "y")]
    return saved(folder, nodes, inputs, {"table": floats(50, 4)})


def test_a_size_that_an_onnx_file_leaves_open_is_one_of_the_inputs(tmp_path: Path) -> None:
    path = onnx_file(tmp_path)
    described = file.inputs(path, {"sequence": 12})
    assert described.inputs == {
        "ids": ArraySpec((12,), "int64", high=50),  # the rows of the table
        "attention_mask": ArraySpec((12,), "int64", low=1),
        "scale": ArraySpec((3,)),
    }
    assert described.batch_size is None
    assert (described.pass_as, described.sizes) == ("keywords", {"sequence": 12})
    with pytest.raises(UserError, match=r"leaves open: add inputs\.sequence=…"):
        file.inputs(path, {})
    with pytest.raises(UserError, match=r"inputs\.sequenc: 3 is given to a key .* Did you mean 'inputs\.sequence'"):
        file.inputs(path, {"sequenc": 3})
    with pytest.raises(UserError, match=r"inputs\.sequence: 0 is not a size"):
        file.inputs(path, {"sequence": 0})


def decoder_file(folder: Path, mask: str) -> str:
    """A decoder with keys of the past, whose mask covers these and the tokens; a table of four bits has 50 rows."""
    inputs = slots(
        {
            "input_ids": (TensorProto.INT64, ["batch", "sequence_length"]),
            "attention_mask": (TensorProto.INT64, ["batch", mask]),
            "past.key": (TensorProto.FLOAT, ["batch", 2, "past_sequence_length", 8]),
        }
    )
    weights = {"table": np.ones((50, 16), np.uint8), "scales": floats(50, 1)}
    made = node("GatherBlockQuantized", "table input_ids scales", "y", domain="com.microsoft")
    return saved(folder, [made], inputs, weights)


@pytest.mark.parametrize("past", [0, 7])
@pytest.mark.parametrize("mask", ["past_sequence_length + sequence_length", "past_sequence_length+1", "total_length"])
def test_sizes_of_a_decoder_with_keys_of_the_past(mask: str, past: int, tmp_path: Path) -> None:
    """A side may be a sum of sizes, as optimum writes it. There are no keys of the past before the first token."""
    path = decoder_file(tmp_path, mask)
    sizes = {"sequence_length": 3, "past_sequence_length": past}
    if mask == "total_length":
        sizes["total_length"] = past + 3
    described = file.inputs(path, sizes)
    assert described.inputs == {
        "input_ids": ArraySpec((3,), "int64", high=50),
        "attention_mask": ArraySpec((past + (1 if mask.endswith("+1") else 3),), "int64", low=1),
        "past.key": ArraySpec((2, past, 8)),
    }
    assert described.sizes == sizes
    with pytest.raises(UserError, match=r"add inputs\.past_sequence_length=…"):
        file.inputs(path, {name: value for name, value in sizes.items() if name != "past_sequence_length"})
    with pytest.raises(UserError, match=r"inputs\.past_sequence_length: -1 is not a size: a whole number, 0 or more"):
        file.inputs(path, {**sizes, "past_sequence_length": -1})


def test_a_file_of_a_fixed_batch_names_it(tmp_path: Path) -> None:
    assert file.inputs(onnx_file(tmp_path, batch=2), {"sequence": 3}).batch_size == 2


def test_an_exported_program(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) * mask

    program = torch.export.export(Net(), (torch.ones(2, 5), torch.ones(2, 5, dtype=torch.bool)))
    torch.export.save(program, tmp_path / "net.pt2")
    path = str(tmp_path / "net.pt2")
    described = file.inputs(path, {})
    assert list(described.inputs.values()) == [ArraySpec((5,)), ArraySpec((5,), "bool", low=1)]
    assert described.batch_size == 2
    assert torch_outputs(file.torch_module(path), described).shape == (2, 5)


def test_an_exported_program_whose_sizes_are_open(tmp_path: Path) -> None:
    open_sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=99)}
    program = torch.export.export(
        torch.nn.Embedding(50, 3), (torch.ones(2, 6, dtype=torch.int64),), dynamic_shapes=(open_sizes,)
    )
    torch.export.save(program, tmp_path / "net.pt2")
    path = str(tmp_path / "net.pt2")
    as_exported, longer = file.inputs(path, {}), file.inputs(path, {"size_1": 9})
    assert list(as_exported.inputs.values()) == [ArraySpec((6,), "int64", high=50)]
    assert (longer.sizes, longer.batch_size) == ({"size_1": 9}, None)
    assert torch_outputs(file.torch_module(path), longer).shape == (2, 9, 3)


def test_a_keras_model(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((None, 4), name="frames"), keras.layers.GRU(3)])
    model.save(tmp_path / "net.keras")
    described = file.inputs(str(tmp_path / "net.keras"), {"size_1": 6})
    assert described.inputs == {"frames": ArraySpec((6, 4))}
    assert file.keras_model(str(tmp_path / "net.keras")).count_params() == model.count_params()


def test_ids_of_a_keras_model_are_below_the_rows_of_its_embedding(tmp_path: Path) -> None:
    ids, mask = keras.Input((4,), dtype="int32", name="ids"), keras.Input((4,), dtype="bool", name="mask")
    words = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(33, 2)(ids), mask=mask)
    keras.Model({"ids": ids, "mask": mask}, words).save(tmp_path / "net.keras")
    described = file.inputs(str(tmp_path / "net.keras"), {})
    assert described.inputs == {"ids": ArraySpec((4,), "int32", high=33), "mask": ArraySpec((4,), "bool", low=1)}


@pytest.mark.slow(rows=1)
@pytest.mark.parametrize("name", ["MobileNetV2", "InceptionV3"])
def test_keras_applications_are_made_for_the_size_that_is_described(name: str) -> None:
    described = keras_applications.inputs(name, {})
    model = keras_applications.build(name, {})
    assert described.inputs == {"x": ArraySpec((3, *model.input_shape[1:3]))}
    small = keras_applications.inputs(name, {"image_size": 96}, {"classes": 4})
    assert (small.inputs["x"].shape, small.targets) == ((3, 96, 96), ArraySpec((), "int64", high=4))
    assert keras_applications.build(name, {"image_size": 96}, {"classes": 4}).input_shape == (None, 96, 96, 3)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: keras_applications.inputs("MobilNetV2", {}), "is not a model of keras.applications. Did you mean 'MobileNetV2'"),
        (lambda: file.inputs("net.pkl", {}), r"is not a model file that is known here: \.onnx, \.keras, \.h5, \.hdf5, SavedModel"),
        (lambda: file.inputs("net.onnx", {}), "model.path: 'net.onnx' is not a file"),
        (lambda: transformers.inputs("brt", None, None, {}), "'brt' is not an architecture of transformers. Did you mean 'bert'"),
        (lambda: transformers.inputs(None, None, None, {}), "model.architecture: None is missing"),
        (lambda: transformers.inputs(None, "/nowhere", None, {}), "model.path: '/nowhere' is not a saved model"),
        (lambda: transformers.inputs("bert", None, "text-clasification", {}), "Did you mean 'text-classification'"),
        (lambda: transformers.inputs("bert", None, "image-classification", {}), "is not a task of bert, which has feature-ex"),
        (lambda: transformers.inputs("bert", None, None, {}, dtype="bf16"), "'bf16' is not .* Did you mean 'bfloat16'"),
        (lambda: transformers.inputs("bert", None, None, {}, {"num_layer": 3}), "model.config.num_layer: 3 is given to a key"),
        (lambda: transformers.inputs("bert", None, None, {"sequence_length": 1024}), r"1024 is above .*position_embeddings=512"),
        (lambda: transformers.inputs("bert", None, None, {}, attn_implementation="sdap"), "'sdap' .* Did you mean 'sdpa'"),
        (lambda: transformers.inputs("bert", None, None, {}, TINY, {"add_poling_layer": 1}), "Did you mean 'add_pooling_layer'"),
        (lambda: keras_applications.inputs("MobileNetV2", {}, {"clases": 3}), r"model.arguments.clases: .* Did you mean 'classes'"),
        (lambda: keras_applications.inputs("MobileNetV2", {}, {}, "no.h5"), "'no.h5' is neither a file nor imagenet"),
        (lambda: file.inputs(".", {}), r"model\.path: .* is a folder without a saved_model\.pb"),
        (lambda: timm.inputs("resnet18", {}, {"num_clases": 5}), r"num_clases: .* of ResNet\. Did you mean 'num_classes'"),
        (lambda: torchvision.inputs("resnet18", {}, {"num_clases": 5}), r"num_clases: .* of ResNet\. Did you mean 'num_classes'"),
        (lambda: torchvision.inputs("resnet18", {}, {}, "IMAGENET1K_V9"), "'IMAGENET1K_V9' is not .* mean 'IMAGENET1K_V1'"),
        (lambda: transformers.inputs("bert", None, None, {"image_size": 10}), r"inputs.image_size: 10 is .*inputs.sequence_l"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_error(call: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        call()


@pytest.mark.parametrize("call", [transformers.inputs, transformers.build])
def test_an_attention_that_a_model_lacks_is_unsupported(call: Any) -> None:
    sizes: list[dict[str, int]] = [{}] if call is transformers.inputs else []
    with pytest.raises(Unsupported, match="attn_implementation=sdpa: DebertaV2Model does not support"):
        call("deberta-v2", None, None, *sizes, TINY, attn_implementation="sdpa")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of transformers, in peft
def test_adapters_of_peft() -> None:
    llama = ("llama", None, "text-generation")
    config = {**TINY, "num_key_value_heads": 1}
    lora = {"_target_": "peft.LoraConfig", "r": 2}
    adapted = transformers.build(*llama, config, peft=lora)
    trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    assert trained == 2 * (32 + 32) + 2 * (32 + 16)  # of the products of queries and values
    transformers.inputs(*llama, {}, config, peft=lora)
    for wrong, said in (
        ({"_target_": "peft.LoraConfg"}, "Did you mean 'peft.LoraConfig'"),
        ({**lora, "lora_alfa": 3}, "Did you mean 'lora_alpha'"),
        ({**lora, "target_modules": ["none"]}, "model.peft: .* does not fit LlamaForCausalLM"),
    ):
        with pytest.raises(UserError, match=said):
            transformers.inputs(*llama, {}, config, peft=wrong)


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs the package transformers: pip install 'sweeprof\[transformers\]'"):
        transformers.inputs("bert", None, None, {})


def test_generated_samples_are_of_the_described_kind() -> None:
    specs = {
        "ids": ArraySpec((5,), "int64", 3, 9),
        "mask": ArraySpec((5,), "bool", 1),
        "image": ArraySpec((2, 4), "float16"),
    }
    described = ModelInputs(specs, targets=ArraySpec((), "int64", high=4))
    auto = Auto(described.to_dict(), samples=300)
    split = auto.split("test")
    assert set(np.unique(split.inputs["ids"])) == set(range(3, 9))
    assert split.inputs["mask"].all()
    assert split.inputs["mask"].dtype == bool
    assert split.inputs["image"].dtype == np.float16
    assert set(np.unique(split.targets)) == set(range(4))
    assert not split.is_evaluated


def test_a_path_in_python_makes_the_model_that_the_config_makes() -> None:
    config = yaml.safe_load((conf_folder() / "model" / "file.yaml").read_text(encoding="utf-8"))
    nodes = [node for node in config.values() if isinstance(node, dict) and "for_files" in node]
    assert {suffix: node["_target_"] for node in nodes for suffix in node["for_files"]} == FILES


@pytest.mark.parametrize(
    "suffix", [".onnx", ".tflite", ".xml", *(pytest.param(name, marks=pytest.mark.slow) for name in (".pt2", ".keras"))]
)
@pytest.mark.parametrize("content", [b"", b"\x00\xffgarbage" * 300, b"<net/>"], ids=["empty", "garbage", "text"])
def test_a_file_that_is_no_model_is_named(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        file.inputs(str(path), {})
    (problem,) = caught.value.problems
    assert (problem.key, problem.value) == ("model.path", str(path))
    assert problem.allowed.startswith(f"cannot be read as a {suffix} file: ")


# Prompts


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}


def prompt_of(
    architecture: str, task: str | None, generation: dict[str, Any], **sizes: int
) -> dict[str, tuple[int, ...]]:
    config = {} if architecture in ("t5", "whisper") else SMALL
    asked = {"prompt_length": None, "new_tokens": 4, **generation}
    found = inputs(architecture, None, task, sizes, config, generation=asked)
    return {name: spec.shape for name, spec in found.inputs.items()}


def test_the_prompt_has_its_length() -> None:
    assert prompt_of("llama", "text-generation", {"prompt_length": 24}) == {"input_ids": (24,), "attention_mask": (24,)}
    assert prompt_of("llama", "text-generation", {}, sequence_length=9)["input_ids"] == (9,)
    assert prompt_of("t5", "text2text-generation", {"prompt_length": 24})["input_ids"] == (24,)
    assert prompt_of("whisper", "speech-to-text", {})["input_features"] == (80, 3000)


def test_a_function_of_ones_own_may_have_any_arguments() -> None:
    assert prompt_of("bert", "fill-mask", {"function": "my.generate", "top": 3})["input_ids"] == (128,)


@pytest.mark.parametrize(
    ("architecture", "task", "generation", "sizes", "said"),
    [
        ("llama", "text-generation", {"prompt_length": 8}, {"sequence_length": 9}, "inputs.sequence_length: 9 differs from"),
        ("whisper", "speech-to-text", {"prompt_length": 8}, {}, "generation.prompt_length: 8 has no effect: the prompt of "),
        ("whisper", "speech-to-text", {}, {"audio_frames": 100}, "audio_frames: 100 is not the length that this model takes"),
        ("gpt2", "text-generation", {"prompt_length": 1000, "new_tokens": 26}, {}, "generation.new_tokens: 26 and a prompt of"),
        ("gpt2", "text-generation", {"prompt_length": 1025}, {}, "sequence_length: 1025 is above the longest sequence"),
        ("llama", "text-generation", {"num_beam": 2}, {}, "Did you mean 'generation.num_beams'?"),
        ("llama", None, {}, {}, "LlamaModel has no generate"),
        ("bert", "fill-mask", {}, {}, "mode: 'generation' needs a model that generates text, and BertForMaskedLM"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_prompt_is_one_clear_error(
    architecture: str, task: str | None, generation: dict[str, Any], sizes: dict[str, int], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        prompt_of(architecture, task, generation, **sizes)
    assert said in str(caught.value)


def test_the_longest_output_fits() -> None:
    """The last token is not read, so that its position need not exist."""
    assert prompt_of("gpt2", "text-generation", {"prompt_length": 1000, "new_tokens": 25})["input_ids"] == (1000,)
