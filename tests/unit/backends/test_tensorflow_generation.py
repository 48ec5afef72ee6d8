"""Generation by models of keras_hub: tokens, caches, counts by formulas written by hand, and what cannot be measured."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import sweeprof
from sweeprof.backends.tensorflow.adapter import FOLLOWED, TensorflowBackend
from sweeprof.backends.tensorflow.generation import BYTES
from sweeprof.errors import Unsupported, UserError
from sweeprof.measuring.generation_config import GenerationConfig
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import Work
from sweeprof.metrics.generation import FUSED
from sweeprof.results.generation import Generation

B, T, NEW, V, H, F, LAYERS, HEADS, KV = 2, 6, 4, 31, 16, 24, 2, 4, 2
"""Batch, prompt, new tokens, vocabulary, width, width of the feed-forward, layers, heads, heads of keys and values."""
D, LENGTH = H // HEADS, T + NEW
QUICK = sweeprof.Protocol(warmup_steps=0, warmup_s=0, sample_s=0, min_samples=2, min_s=0)
CONFIG = GenerationConfig(NEW)
IDS = (np.arange(B * T).reshape(B, T) * 5 + 3) % V
PROMPT = Inputs(kwargs={"token_ids": IDS, "padding_mask": np.ones_like(IDS)})

Mode = Literal["eager", "function", "xla"]
Name = Literal["llama", "gpt2"]


def made(name: Name) -> Any:
    """A decoder whose weights are large enough that tokens differ."""
    sizes = {"vocabulary_size": V, "num_layers": LAYERS, "hidden_dim": H, "intermediate_dim": F}
    if name == "llama":
        backbone = keras_hub.models.LlamaBackbone(**sizes, num_query_heads=HEADS, num_key_value_heads=KV)
        model = keras_hub.models.LlamaCausalLM(backbone=backbone, preprocessor=None)
    else:
        backbone = keras_hub.models.GPT2Backbone(**sizes, num_heads=HEADS, max_sequence_length=LENGTH)
        model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    numbers = np.random.default_rng(0)
    model.set_weights([numbers.normal(size=weight.shape) / 2 for weight in model.get_weights()])
    return model


def greedy(model: Any) -> Any:
    """The prompts with the tokens of whole forwards, without a cache."""
    tokens = IDS
    for _ in range(NEW):
        logits = np.asarray(model({"token_ids": tokens, "padding_mask": np.ones_like(tokens)}))
        tokens = np.concatenate([tokens, logits[:, -1:].argmax(-1)], axis=1)
    return tokens


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("llama", "function"),
        pytest.param("gpt2", "function", marks=pytest.mark.slow),
        pytest.param("llama", "eager", marks=pytest.mark.slow),
        pytest.param("llama", "xla", marks=pytest.mark.slow),
    ],
)
def test_tokens_are_those_of_whole_forwards_and_the_cache_is_that_of_the_formula(name: Name, mode: Mode) -> None:
    model = made(name)
    backend = TensorflowBackend(mode=mode)
    loaded = backend.load(lambda: model, "cpu", None)
    told: list[int] = []
    sampler = model.sampler
    with backend.generating(loaded, loaded.put(PROMPT), CONFIG) as step:
        assert (step.prompt_tokens, step.new_tokens) == (T, NEW)
        for _ in range(2):
            np.testing.assert_array_equal(step.generate(lambda: told.append(1)), greedy(model))
        # Keys and values of the whole buffer, 4 bytes per number.
        heads = KV if name == "llama" else HEADS
        assert step.cache_bytes() == 2 * LAYERS * heads * D * LENGTH * B * 4
    assert len(told) == 2 * (1 if mode == "xla" else NEW)
    assert model.sampler is sampler


def test_a_token_is_told_after_it_and_before_the_next() -> None:
    """A layer counts the calls of the model when each token is told."""
    calls = tf.Variable(0)

    class Counting(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            calls.assign_add(1)
            return inputs

    model = made("llama")
    model.backbone.layer_norm = keras.Sequential([model.backbone.layer_norm, Counting()])
    backend = TensorflowBackend()
    loaded = backend.load(lambda: model, "cpu", None)
    seen: list[int] = []
    with backend.generating(loaded, loaded.put(PROMPT), CONFIG) as step:
        step.generate(lambda: None)  # which traces, and so calls layers once more
        calls.assign(0)
        step.generate(lambda: seen.append(int(calls.numpy())))
    assert seen == [2, 3, 4, 5]  # the prefill and a decode step, then one each


def linear(name: Name) -> int:
    """Multiply-accumulates of the projections and the feed-forwards, per token."""
    heads, products = (KV, 3) if name == "llama" else (HEADS, 2)
    return LAYERS * (2 * H * H + 2 * H * heads * D + products * H * F)


def attention(queries: int) -> int:
    """Multiply-accumulates of the attention of a sequence, which reads the whole buffer."""
    return LAYERS * 2 * HEADS * D * queries * LENGTH


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_counts_are_those_of_the_formula(name: Name) -> None:
    def counted(mode: Mode) -> Generation:
        formulas = sweeprof.Formulas({})
        return TensorflowBackend(mode=mode).analyze_generation(lambda: made(name), PROMPT, None, formulas, CONFIG)

    found = counted("function")
    decode = B * (linear(name) + attention(1) + H * V)
    prefill = B * (LENGTH * linear(name) + attention(LENGTH))
    assert found.decode_macs == decode
    assert found.prefill_macs == prefill + decode  # the first token takes a decode step too
    assert counted("eager").prefill_macs == prefill + B * LENGTH * H * V + decode  # with logits that nothing reads
    assert found.uncovered == {}
    assert found.sequences == B
    assert found.cache_bytes == 2 * LAYERS * (KV if name == "llama" else HEADS) * D * LENGTH * B * 4
    assert found.bytes_reason == BYTES


def test_a_model_in_hands_is_profiled_and_left_as_it_was() -> None:
    model = made("gpt2")
    sampler = model.sampler
    metrics = "generation/time_to_first_token generation/time_per_token generation/first_gap generation/kv_cache_bytes".split()
    result = sweeprof.profile(model, PROMPT, metrics, mode="generation", generation=CONFIG, protocol=QUICK)
    values = {name: result[name].value for name in metrics}
    assert values["generation/kv_cache_bytes"] == 2 * LAYERS * HEADS * D * LENGTH * B * 4
    assert all(value is not None and value > 0 for value in values.values())
    assert model.sampler is sampler


@pytest.mark.slow
def test_a_program_of_xla_tells_only_of_its_first_token() -> None:
    model = made("llama")
    new = 128  # so that the further tokens take most of the time, also beside other processes
    names = "time_to_first_token time_per_token time_per_token_p90 first_gap latency decode_throughput".split()
    result = sweeprof.profile(
        model,
        PROMPT,
        [f"generation/{name}" for name in names],
        mode="generation",
        generation=GenerationConfig(new),
        protocol=QUICK,
        backend=TensorflowBackend(mode="xla"),
    )
    found = {name: result[f"generation/{name}"] for name in names}
    assert {name for name, cell in found.items() if cell.value is None} == {"time_per_token_p90", "first_gap"}
    assert found["first_gap"].reason == FUSED.reason
    first, each, whole = (found[name].value for name in ("time_to_first_token", "time_per_token", "latency"))
    assert first is not None
    assert each is not None
    assert whole is not None
    assert 0 < first < whole
    assert each < whole / (new - 1)


@pytest.mark.slow
def test_samplers_of_keras_hub() -> None:
    model, backend = made("gpt2"), TensorflowBackend()
    loaded = backend.load(lambda: model, "cpu", None)
    told: list[int] = []
    config = GenerationConfig(NEW, {"sampler": {"class_name": "top_k", "config": {"k": 1}}})
    with backend.generating(loaded, loaded.put(PROMPT), config) as step:
        np.testing.assert_array_equal(step.generate(lambda: told.append(1)), greedy(model))
    assert len(told) == NEW


@pytest.mark.slow
def test_beams_have_a_cache_each() -> None:
    model, backend = made("gpt2"), TensorflowBackend()
    loaded = backend.load(lambda: model, "cpu", None)
    told: list[int] = []
    config = GenerationConfig(NEW, {"sampler": {"class_name": "beam", "config": {"num_beams": 3}}})
    with backend.generating(loaded, loaded.put(PROMPT), config) as step:
        step.generate(lambda: told.append(1))
        assert step.cache_bytes() == 3 * 2 * LAYERS * HEADS * D * LENGTH * B * 4
    assert len(told) == NEW
    with pytest.raises(Unsupported, match="sampler=beam: counts are those"):
        backend.analyze_generation(lambda: model, PROMPT, None, sweeprof.Formulas({}), config)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampler": "gredy"}, r"generation.sampler: 'gredy' is not a sampler of keras_hub. Did you mean 'greedy'\?"),
        ({"sampler": {"class_name": "speculative"}}, "generation.sampler: 'speculative' is not a sampler"),
        ({"num_beams": 4}, "generation.num_beams: 4 is given to a key that does not exist"),
        ({"sampler": {"class_name": "top_k", "config": {"m": 1}}}, "generation.sampler: .* does not make a sampler"),
    ],
)
def test_arguments_that_are_none(arguments: dict[str, object], message: str) -> None:
    model, backend = made("gpt2"), TensorflowBackend()
    loaded = backend.load(lambda: model, "cpu", None)
    with (
        pytest.raises(UserError, match=message),
        backend.generating(loaded, loaded.put(PROMPT), GenerationConfig(NEW, arguments)),
    ):
        pass


def returned(model: Any) -> Any:
    return model


def test_models_and_prompts_that_are_not_measured() -> None:
    backend, model = TensorflowBackend(), made("gpt2")
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    padded = Inputs(kwargs={"token_ids": IDS, "padding_mask": np.ones_like(IDS) * [[1, 1, 1, 1, 1, 0]]})
    images = Inputs(kwargs={"token_ids": IDS, "images": np.ones((B, 3))})
    loop = Inputs((IDS,), forward=lambda model, ids: model(ids))
    cases: list[tuple[Any, Inputs, str]] = [
        (dense, Inputs((np.ones((1, 4), np.float32),)), "Sequential has no generate_step"),
        (model, padded, "prompts have different lengths"),
        (model, images, "reads images, token_ids: generations are measured of decoders that read text alone"),
        (model, loop, "not `forward`"),
    ]
    for native, inputs, message in cases:
        with pytest.raises(Unsupported, match=message):
            backend.analyze_generation(partial(returned, native), inputs, None, sweeprof.Formulas({}), CONFIG)
    loaded = backend.load(lambda: model, "cpu", None)
    work = Work(loaded.put(PROMPT), generation=CONFIG)
    for follow in (
        lambda: backend.layer_times(loaded, work, QUICK),
        lambda: backend.operators(loaded, work),
        lambda: backend.allocations(loaded, work),
        lambda: backend.lines(loaded, work, ()),
    ):
        with pytest.raises(Unsupported, match=FOLLOWED):
            follow()


def own(model: Any, inputs: Any, new_tokens: int, on_token: Any, scale: int = 1) -> Any:
    tokens = inputs["token_ids"]
    for _ in range(new_tokens):
        logits = model({"token_ids": tokens, "padding_mask": tf.ones_like(tokens)})
        tokens = tf.concat([tokens, tf.argmax(scale * logits[:, -1:], -1, tokens.dtype)], 1)
        on_token()
    return tokens


def test_a_function_of_the_users() -> None:
    model, backend = made("gpt2"), TensorflowBackend()
    loaded = backend.load(lambda: model, "cpu", None)
    told: list[int] = []
    with backend.generating(loaded, loaded.put(PROMPT), GenerationConfig(NEW, {"scale": 2}, own)) as step:
        np.testing.assert_array_equal(step.generate(lambda: told.append(1)), greedy(model))
        assert (step.prompt_tokens, len(told)) == (T, NEW)
        with pytest.raises(Unsupported, match="the cache of a function of your own"):
            step.cache_bytes()
