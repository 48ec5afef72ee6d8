"""Models of Hugging Face's transformers, called as their documentation does: all counted, on shapes alone but for named ones."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import sweeprof
from support.torch_modules import Applied
from sweeprof.backends.torch.counting import count_built, count_layers
from sweeprof.backends.torch.training import count_built_training, count_training
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layers import LayerTable

# torchvision, which transformers imports: its wheel from the package index has its operators for CUDA only.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
transformers: Any = pytest.importorskip("transformers", reason="counts the models of the extra 'transformers'")

Tensors = dict[str, torch.Tensor]

LENGTH = 24
"""Tokens of the longer of two texts."""
SIZE = 32
"""Pixels of an image."""


def tokens(length: int = LENGTH, batch: int = 2, below: int = 90) -> torch.Tensor:
    """Ids of words, none of which is special."""
    return torch.randint(5, below, (batch, length), generator=torch.Generator().manual_seed(0))


def padding(length: int = LENGTH, batch: int = 2) -> torch.Tensor:
    """The mask of texts of which the last is shorter by a quarter."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, -(length // 4) :] = 0
    return mask


def text(length: int = LENGTH, **further: torch.Tensor) -> Tensors:
    return {"input_ids": tokens(length), "attention_mask": padding(length), **further}


def typed() -> Tensors:
    return text(token_type_ids=torch.zeros(2, LENGTH, dtype=torch.long))


def translated(length: int = LENGTH) -> Tensors:
    return text(length, decoder_input_ids=tokens(8))


def image(size: int = SIZE) -> Tensors:
    return {"pixel_values": torch.ones(2, 3, size, size)}


def padded_image(size: int = 64) -> Tensors:
    return {**image(size), "pixel_mask": padding(size).unsqueeze(1).repeat(1, size, 1)}


def captioned() -> Tensors:
    """The last words are the end of the text, where CLIP's pool looks."""
    ids = tokens()
    ids[:, -8:] = 2
    return {"input_ids": ids, "attention_mask": padding(), **image()}


def with_image_tokens(count: int, first: int = 0) -> Tensors:
    """A text in which ``count`` tokens stand for the image."""
    ids = tokens()
    ids[:, first : first + count] = IMAGE_TOKEN
    return {"input_ids": ids, "attention_mask": padding(), **image()}


def sound() -> Tensors:
    return {"input_values": torch.ones(2, 1000), "attention_mask": padding(1000)}


IMAGE_TOKEN = 98
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, **ENDS,
}  # fmt: skip
DECODER = {**ENCODER, "num_key_value_heads": 2}
GPT = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
EXPERTS = {**DECODER, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    **DECODER, "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip
MAMBA = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
LAYERS = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip
BART = {**LAYERS, "vocab_size": 99, "max_position_embeddings": 64, **ENDS, "decoder_start_token_id": 2}
T5 = {
    "vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0,
}  # fmt: skip
SPEECH = {
    **LAYERS, "vocab_size": 99, **ENDS, "decoder_start_token_id": 2, "max_source_positions": 30, "max_target_positions": 40,
    "num_mel_bins": 16,
}  # fmt: skip
WAVES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 32,
    "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3), "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": SIZE,
    "patch_size": 8,
}  # fmt: skip
SWIN = {"image_size": SIZE, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
RESNET = {
    "model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 32, 32], "depths": [1, 1, 1, 1],
    "out_features": ["stage4"],
}  # fmt: skip
STAGES = ["stage2", "stage3", "stage4"]
DETR = {
    **LAYERS, "num_queries": 5, "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
    "backbone_config": RESNET,
}  # fmt: skip
LARGE_SWIN = {
    "model_type": "swin", "image_size": 64, "patch_size": 2, "embed_dim": 16, "depths": [1, 1, 1, 1],
    "num_heads": [2, 2, 2, 2], "window_size": 4, "out_features": STAGES,
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """A kind of model, with two layers or so."""

    kind: str
    """``model_type`` of its config."""
    model: str
    """The class, or the automatic class that chooses it."""
    config: dict[str, Any]
    inputs: Callable[[], Tensors]
    runs_experts: bool = field(default=False, kw_only=True)
    """True if it multiplies all experts' weights in one operator, which torch's counter does not know."""
    further_macs: int = field(default=0, kw_only=True)
    """MACs, by hand, of operators that torch's counter leaves out."""

    def build(self, **options: Any) -> nn.Module:
        config = transformers.AutoConfig.for_model(self.kind, **self.config)
        model = getattr(transformers, self.model)
        from_config = model.from_config if self.model.startswith("Auto") else model._from_config
        return from_config(config, **options)  # type: ignore[no-any-return]


MASKED = "AutoModelForMaskedLM"
CAUSAL = "AutoModelForCausalLM"
TRANSLATES = "AutoModelForSeq2SeqLM"
CLASSIFIES = "AutoModelForSequenceClassification"
SEES = "AutoModelForImageClassification"
DETECTS = "AutoModelForObjectDetection"
SEGMENTS = "AutoModelForSemanticSegmentation"
HEARS = "AutoModelForCTC"

ARCHITECTURES = [
    Architecture("bert", CLASSIFIES, ENCODER, typed),
    Architecture(
        "deberta-v2", CLASSIFIES, {**ENCODER, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"],
        "type_vocab_size": 0}, text
    ),
    Architecture("longformer", CLASSIFIES, {**ENCODER, "attention_window": 8}, text),
    Architecture("gpt2", CAUSAL, GPT, text),
    Architecture("llama", CAUSAL, DECODER, text),
    Architecture("mistral", CAUSAL, {**DECODER, "sliding_window": 8, "head_dim": 8}, text),
    Architecture("qwen2_moe", CAUSAL, {**EXPERTS, "shared_expert_intermediate_size": 32}, text, runs_experts=True),
    Architecture("mamba", CAUSAL, MAMBA, text),
    Architecture("t5", TRANSLATES, T5, translated),
    Architecture("bart", TRANSLATES, BART, translated),
    Architecture(
        "whisper", "AutoModelForSpeechSeq2Seq", SPEECH,
        lambda: {"input_features": torch.ones(2, 16, 60), "decoder_input_ids": tokens(8)}
    ),
    Architecture("wav2vec2", HEARS, WAVES, sound),
    Architecture("beit", SEES, {**VISION, "use_relative_position_bias": True}, image),
    Architecture("swin", SEES, SWIN, image),
    Architecture("clip", "AutoModel", {"text_config": ENCODER, "vision_config": VISION, "projection_dim": 16}, captioned),
    Architecture("detr", DETECTS, DETR, padded_image),
    Architecture(
        "segformer", SEGMENTS, {"depths": [1] * 4, "hidden_sizes": [16, 16, 32, 32], "num_attention_heads": [1, 2, 4, 4],
        "decoder_hidden_size": 32}, lambda: image(64)
    ),
]  # fmt: skip
"""Those that are most used, of every kind."""

FURTHER = [
    Architecture(
        "big_bird", MASKED, {**ENCODER, "block_size": 4, "num_random_blocks": 2, "max_position_embeddings": 128}, lambda: text(96)
    ),
    Architecture(
        "modernbert", MASKED, {**ENCODER, "cls_token_id": 3, "sep_token_id": 4, "global_attn_every_n_layers": 2,
        "local_attention": 8}, text
    ),
    Architecture(
        "funnel", MASKED, {"vocab_size": 99, "d_model": 32, "block_sizes": [1, 1], "num_decoder_layers": 1, "n_head": 4,
        "d_head": 8, "d_inner": 64}, text
    ),
    Architecture(
        "reformer", MASKED, {"vocab_size": 99, "hidden_size": 32, "attention_head_size": 8, "num_attention_heads": 4,
        "feed_forward_size": 64, "attn_layers": ["local", "lsh"], "axial_pos_shape": [4, 6], "axial_pos_embds_dim": [16, 16],
        "num_buckets": 4, "is_decoder": False, "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4}, text
    ),
    Architecture("xlnet", CLASSIFIES, {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, text),
    Architecture("canine", CLASSIFIES, {**ENCODER, "local_transformer_stride": 16}, lambda: text(64)),
    Architecture("bloom", CAUSAL, {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}, text),
    Architecture(
        "gpt_oss", CAUSAL, {**DECODER, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
        text, runs_experts=True
    ),
    Architecture("deepseek_v3", CAUSAL, LATENT, text, runs_experts=True),
    Architecture("mamba2", CAUSAL, {**MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8}, text),
    Architecture(
        "recurrent_gemma", CAUSAL, {**DECODER, "head_dim": 8, "lru_width": 32, "attention_window_size": 8,
        "block_types": ["recurrent", "attention"]}, text
    ),
    Architecture("rwkv", CAUSAL, {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64}, text),
    Architecture(
        "longt5", TRANSLATES, {**T5, "local_radius": 4, "encoder_attention_type": "transient-global", "global_block_size": 4},
        translated
    ),
    Architecture("wav2vec2-conformer", HEARS, {**WAVES, "conv_depthwise_kernel_size": 5}, sound),
    Architecture("swinv2", SEES, SWIN, image),
    Architecture("deformable_detr", DETECTS, {**DETR, "backbone_config": {**RESNET, "out_features": STAGES}}, padded_image),
    Architecture(
        "grounding-dino", "GroundingDinoForObjectDetection", {**DETR, "backbone_config": LARGE_SWIN, "text_config": {**ENCODER,
        "model_type": "bert"}, "max_text_len": 64}, lambda: {**typed(), **padded_image()}
    ),
    Architecture(
        "llava", "AutoModelForImageTextToText", {"text_config": {**DECODER, "model_type": "llama"}, "vision_config": {**VISION,
        "model_type": "clip_vision_model"}, "image_token_id": IMAGE_TOKEN, "vision_feature_layer": -1},
        lambda: with_image_tokens(16, first=1)
    ),
]  # fmt: skip
"""The long tail."""


def two_images_in_patches() -> Tensors:
    """Sixteen patches of each image, of which four become one token of the text."""
    ids = with_image_tokens(4)["input_ids"]
    patches, grid = torch.ones(32, 3 * 2 * 8 * 8), torch.tensor([[1, 4, 4], [1, 4, 4]])
    kinds = (ids == IMAGE_TOKEN).long()
    return {**text(), "input_ids": ids, "pixel_values": patches, "image_grid_thw": grid, "mm_token_type_ids": kinds}


STATES = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_chunk_size": 8}
DELTA = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "shared_expert_intermediate_size": 16, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
PIXELS = {
    "depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 8, "mlp_ratio": 2,
}  # fmt: skip
ROTARY = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
SPECIALS = {"image_token_id": IMAGE_TOKEN, "vision_start_token_id": 95, "vision_end_token_id": 96, "video_token_id": 97}
SCREEN = {
    "text_config": {**T5, "hidden_size": 32},
    "vision_config": {**VISION, "patch_embed_hidden_size": 16, "d_ff": 64, "d_kv": 8, "seq_len": 64},
}  # fmt: skip
WAV = {
    "num_filters": 4, "hidden_size": 16, "codebook_size": 16, "codebook_dim": 16, "num_lstm_layers": 1, "kernel_size": 3,
    "upsampling_ratios": [4, 2],
}  # fmt: skip
SERIES = {
    "num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8, "d_model": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "ffn_dim": 64, "prediction_length": 8,
}  # fmt: skip

NEWER = [
    Architecture("bamba", CAUSAL, {**DECODER, **STATES, "attn_layer_indices": [1]}, text),
    # Two systems of each of 2 · 4 heads: 64 rows, as a chunk has, and 8 columns each.
    Architecture(
        "qwen3_next", CAUSAL, {**EXPERTS, **DELTA, "head_dim": 8}, text, runs_experts=True,
        further_macs=2 * 2 * 4 * (64 * 63 // 2) * 8
    ),
    Architecture("diffllama", CAUSAL, DECODER, text),
    Architecture("pegasus_x", TRANSLATES, {**BART, "block_size": 8, "num_global_tokens": 4}, translated),
    Architecture(
        "qwen2_vl", "AutoModelForImageTextToText", {"text_config": {**DECODER, "rope_parameters": ROTARY},
        "vision_config": PIXELS, **SPECIALS}, two_images_in_patches
    ),
    Architecture(
        "pix2struct", "Pix2StructForConditionalGeneration", SCREEN, lambda: {"flattened_patches": torch.ones(2, 16, 18),
        "attention_mask": padding(16), "decoder_input_ids": tokens(8)}
    ),
    Architecture("patchtst", "PatchTSTForPrediction", SERIES, lambda: {"past_values": torch.ones(2, 32, 3)}),
]  # fmt: skip
"""Of later years, and other kinds of inputs."""

SWITCH = {**T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
NLLB = {**BART, "num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2}
DECISIONS = {"state_dim": 4, "act_dim": 2, "hidden_size": 32, "n_layer": 2, "n_head": 4, "max_ep_len": 64}


def decided() -> Tensors:
    """Six steps; the mask is of floating-point numbers, as in the documentation."""
    floats = {"states": 4, "actions": 2, "rewards": 1, "returns_to_go": 1}
    given = {name: torch.ones(1, 6, width) for name, width in floats.items()}
    return {**given, "timesteps": torch.arange(6)[None], "attention_mask": torch.ones(1, 6)}


FOR_REAL = [
    # What computes with real constants: the forward is over shapes, and the model is built with values.
    # An LSTM of 16 units before and after the codes, over 120 steps.
    (
        Architecture(
            "encodec", "AutoModel", WAV, lambda: {"input_values": torch.ones(1, 1, 960)},
            further_macs=2 * 120 * 4 * 16 * (16 + 16)
        ), r"shapes$"
    ),
    # What needs values of floating-point numbers: experts that are called for the tokens that a router sends to them,
    # where other models multiply with all experts in one operator; and a mask of floating-point numbers.
    (Architecture("switch_transformers", TRANSLATES, SWITCH, translated), "real forward: .*nonzero"),
    (Architecture("nllb-moe", TRANSLATES, NLLB, translated), "real forward: .*nonzero"),
    (Architecture("decision_transformer", "DecisionTransformerModel", DECISIONS, decided), "real forward: .*item"),
]  # fmt: skip


def named(architectures: list[Architecture], *marks: pytest.MarkDecorator) -> list[Any]:
    return [pytest.param(architecture, id=architecture.kind, marks=marks) for architecture in architectures]


@contextmanager
def counting_products() -> Iterator[FlopCounterMode]:
    """Torch's own counter, which knows attention only by its parts."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        yield counter


def expected(architecture: Architecture) -> tuple[int, int]:
    """MACs of a real forward by torch's own counter, and parameters.

    Experts are called one by one there: each token passes through as many as in one operator for all of them.
    """
    module = architecture.build(**({"experts_implementation": "eager"} if architecture.runs_experts else {}))
    with counting_products() as counter:
        module.eval().requires_grad_(False)(**architecture.inputs())
    flops = counter.get_total_flops()
    assert flops % 2 == 0
    return flops // 2 + architecture.further_macs, sum(parameter.numel() for parameter in module.parameters())


def assert_counted(table: LayerTable, architecture: Architecture) -> None:
    assert table.uncovered == {}
    assert (table.macs, table.params) == expected(architecture)


@pytest.mark.parametrize("architecture", [*named(ARCHITECTURES), *named([*FURTHER, *NEWER], pytest.mark.thorough)])
def test_on_shapes_alone(architecture: Architecture) -> None:
    builds = []

    def build() -> nn.Module:
        builds.append(torch.get_default_device())
        return architecture.build()

    table = count_built(build, Inputs(kwargs=architecture.inputs()))
    assert table.method == "shapes"
    assert [device.type for device in builds] == ["meta"], "it was not built for real"
    assert_counted(table, architecture)


@pytest.mark.slow(rows=1)
@pytest.mark.parametrize(("architecture", "method"), FOR_REAL, ids=[case[0].kind for case in FOR_REAL])
def test_built_for_real(architecture: Architecture, method: str) -> None:
    torch.manual_seed(0)
    table = count_built(architecture.build, Inputs(kwargs=architecture.inputs()))
    assert re.match(method, table.method)
    assert_counted(table, architecture)


# Masks

LLAMA = {
    "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 8192,
}  # fmt: skip
"""The config of Llama-3-8B."""


def llama_8b() -> nn.Module:
    return Architecture("llama", CAUSAL, LLAMA, text).build()


def test_llama_3_with_eight_billion_parameters() -> None:
    """With a mask, in a sweep and on the meta device, by hand."""
    length, width, inner, kept, vocabulary = 100, 4096, 14_336, 8 * 128, 128_256
    weights = 32 * (2 * width * width + 2 * width * kept + 3 * width * inner) + width * vocabulary
    attention = 32 * 2 * length * length * width
    given = {"input_ids": tokens(length), "attention_mask": padding(length)}
    with torch.device("meta"):
        on_meta = llama_8b()
    for table in (count_built(llama_8b, Inputs(kwargs=given)), count_layers(on_meta, Inputs(kwargs=given))):
        assert (table.method, table.uncovered) == ("shapes", {})
        assert table.macs == 2 * (length * weights + attention)
        assert table.params == weights + width * vocabulary + 65 * width == 8_030_261_248


def test_bert_base() -> None:
    """flops-profiler prints 22,363,078,656 FLOPs; ours are those of the table, derived here for each part."""
    build = Architecture("bert", "AutoModel", {}, text).build
    table = count_built(build, Inputs(kwargs={"input_ids": TensorSpec((1, 128), "int64")}))
    assert (table.params, table.macs) == (109_482_240, 11_174_215_680)
    width, length, heads = 768, 128, 12
    x, scores, inner = length * width, heads * length**2, 4 * length * width
    biases = 5 * x + inner
    layer = 2 * 931_135_488 + biases + 2 * scores + 2 * x + 2 * 5 * x + inner  # scale, softmax; two sums, norms; gelu
    embedded, pooler = 2 * x + 5 * x, 2 * width**2 + 2 * width
    assert table.flops == 12 * layer + embedded + pooler


def small() -> nn.Module:
    return Architecture("bert", "AutoModel", ENCODER, text).build().eval()


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.long), ("meta", torch.bool)])
def test_padding_adds_a_mask_to_the_scores_and_no_products(device: str, dtype: torch.dtype) -> None:
    """Transformers leaves out a mask without padding; its values are those of the caller, in every form of input."""
    module = small().to(device)
    masks = torch.ones(2, LENGTH, dtype=dtype), padding().to(dtype)
    full, padded = (
        cast(Any, count_layers(module, Inputs(kwargs={"input_ids": tokens(), "attention_mask": mask})))
        for mask in masks
    )
    assert full.method == padded.method == "shapes"
    assert full.macs == padded.macs
    scores = 2 * 2 * 4 * LENGTH * LENGTH
    assert padded.flops == full.flops + scores, "the mask is added to each score"


def test_inputs_of_every_form() -> None:
    """A tokenizer's mapping as an argument, arrays of NumPy, and shapes, which stand for zeros."""
    mask = padding()
    given = transformers.BatchEncoding({"input_ids": tokens(), "attention_mask": mask})
    spec = TensorSpec((2, LENGTH), "int64")

    takes = Applied(lambda module, encoding: module.inner(**encoding), inner=small())
    tables = [
        count_layers(takes, Inputs((given,))),
        count_layers(small(), Inputs(kwargs={"input_ids": tokens().numpy(), "attention_mask": mask.numpy()})),
        count_layers(small(), Inputs(kwargs={"input_ids": spec, "attention_mask": spec})),
    ]
    assert {table.method for table in tables} == {"shapes"}
    assert len({(table.macs, table.flops) for table in tables}) == 1


def test_a_mask_on_the_meta_device_is_zeros_where_its_values_are_needed() -> None:
    with torch.device("meta"):
        module, ids = small(), torch.ones(2, LENGTH, dtype=torch.long)
    plain = sweeprof.profile(module, {"input_ids": ids}, ["compute/macs"])
    masked = sweeprof.profile(module, {"input_ids": ids, "attention_mask": ids}, ["compute/macs"])
    assert plain.layers.method == "shapes"
    assert masked.layers.method == "shapes, with zeros for integers on the meta device"
    assert masked["compute/macs"].value == plain["compute/macs"].value


@pytest.mark.parametrize("architecture", named([a for a in ARCHITECTURES if a.kind in ("llama", "t5")]))
def test_a_training_step_with_a_mask(architecture: Architecture) -> None:
    module = architecture.build().train()
    step = count_training(module, Inputs(kwargs=architecture.inputs()))
    assert (step.estimated, step.uncovered) == (None, {})
    module = architecture.build(attn_implementation="eager").train()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        outputs = module(**architecture.inputs())
        forward = counter.get_total_flops()
        outputs.logits.sum().backward()
    assert 2 * step.forward_macs == forward
    assert 2 * step.backward_macs == counter.get_total_flops() - forward


@pytest.mark.thorough
def test_a_training_step_that_is_only_estimated_is_built_for_real() -> None:
    """A router's choice has no values on the meta device."""
    architecture = Architecture("switch_transformers", TRANSLATES, SWITCH, translated)
    step = count_built_training(architecture.build, Inputs(kwargs=architecture.inputs()))
    assert step.estimated is not None
    assert step.backward_macs == 2 * step.forward_macs
    assert step.forward_macs == expected(architecture)[0]


@pytest.mark.slow
def test_a_mask_of_every_token_by_every_other() -> None:
    """Longformer makes it of four million bytes and more at its own length, and asks whether any token is global."""
    config = {**ENCODER, "attention_window": 8, "max_position_embeddings": 4098}
    table = count_built(Architecture("longformer", MASKED, config, text).build, Inputs(kwargs=text(4096)))
    assert table.method == "shapes"
