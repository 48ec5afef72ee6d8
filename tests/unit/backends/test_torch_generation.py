"""Generation by models of transformers: tokens, caches, counts by formulas written by hand, and what cannot be measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import sweeprof
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.backends.torch.generation import GreedyLoop, generating, own_generation, without_full_mask
from sweeprof.backends.torch.model import TorchModel, TorchVariant
from sweeprof.errors import Unsupported, UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import GenerationConfig
from sweeprof.model_sources import check_generate
from sweeprof.model_sources.transformers import import_transformers
from sweeprof.results.observations import Generation

B, T, NEW, V, H, F, LAYERS, HEADS, KV = 2, 12, 7, 97, 32, 48, 2, 4, 2
"""Batch, prompt, new tokens, vocabulary, width, width of the feed-forward, layers, heads, heads of keys and values."""
D = H // HEADS
CPU = torch.device("cpu")
QUICK = sweeprof.Protocol(warmup_steps=0, warmup_s=0, sample_s=0, min_samples=2, min_s=0)

LLAMA: dict[str, Any] = {
    "hidden_size": H, "intermediate_size": F, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV, "use_cache": False,
}  # fmt: skip
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("AutoModelForCausalLM", LLAMA),
    "mixtral": ("AutoModelForCausalLM", {**LLAMA, "num_local_experts": 4}),
    "gpt2": ("AutoModelForCausalLM", {"n_embd": H, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}),
    "t5": ("AutoModelForSeq2SeqLM", {"d_model": H, "d_kv": D, "d_ff": F, "num_layers": LAYERS, "num_heads": HEADS}),
    "whisper": (
        "AutoModelForSpeechSeq2Seq",
        {
            "d_model": H, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
            "decoder_attention_heads": HEADS, "encoder_ffn_dim": F, "decoder_ffn_dim": F, "max_source_positions": 10,
            "num_mel_bins": 8, "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
        },
    ),
}  # fmt: skip


def made(name: str, **further: object) -> torch.nn.Module:
    transformers = import_transformers()
    auto, settings = SETTINGS[name]
    ids = {"vocab_size": V, "pad_token_id": 1, "eos_token_id": 1}
    if name != "t5":  # which has none
        ids["bos_token_id"] = 1
    config = transformers.AutoConfig.for_model(name, **ids, **settings, **further)
    torch.manual_seed(0)
    model: torch.nn.Module = getattr(transformers, auto).from_config(config)
    return model.eval()


def prompt(name: str) -> dict[str, torch.Tensor]:
    if name == "whisper":
        return {"input_features": torch.linspace(-1, 1, B * 8 * 20).reshape(B, 8, 20)}
    ids = torch.arange(B * T).reshape(B, T) % (V - 3) + 3
    return {"input_ids": ids, "attention_mask": torch.ones(B, T, dtype=torch.int64)}


def counted(name: str, config: GenerationConfig, backend: TorchBackend | None = None, **further: object) -> Generation:
    inputs = Inputs(kwargs=prompt(name))
    formulas = sweeprof.Formulas({})
    return (backend or TorchBackend()).analyze_generation(lambda: made(name, **further), inputs, None, formulas, config)


def cache_bytes(name: str, config: GenerationConfig) -> int:
    with generating(TorchModel(made(name), CPU), Inputs(kwargs=prompt(name)), config) as step:
        return step.cache_bytes()


def keys_and_values(heads: int, length: int, sequences: int = B) -> int:
    """The formula of textbooks, of 4 bytes per number."""
    return 2 * LAYERS * heads * D * length * sequences * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("llama", {"cache_implementation": "static"}),
        ("llama", {"num_beams": 4, "num_return_sequences": 2}),
        ("t5", {}),
    ],
)
def test_every_token_is_told_whatever_generates(name: str, arguments: Mapping[str, object]) -> None:
    model, config = made(name), GenerationConfig(NEW, arguments)
    calls: list[int] = []
    with generating(TorchModel(model, CPU), Inputs(kwargs=prompt(name)), config) as step:
        sequences: Any = step.generate(lambda: calls.append(1))
    assert len(calls) == NEW
    assert sequences.shape == (B * step.sequences_per_prompt, NEW + (T if name == "llama" else 1))
    assert step.prompt_tokens == T


def test_the_rate_of_several_sequences_for_each_prompt() -> None:
    """By the model's own settings."""
    model: Any = made("llama")
    model.generation_config.update(do_sample=True, num_return_sequences=3)
    names, config = ["generation/decode_throughput"], GenerationConfig(2, {"do_sample": True})
    found = sweeprof.profile(model, prompt("llama"), names, mode="generation", generation=config, protocol=QUICK)
    timing: Any = found.profiler.seen("timing")
    decoding = statistics.median(gap for _, gap in timing.generation.seconds)
    assert found["generation/decode_throughput"].value == pytest.approx(3 * B / decoding)


def test_no_sequence_ends_early() -> None:
    """The most likely token is the one that ends a sequence."""
    model = made("llama")
    with torch.inference_mode():
        likely = int(model(**prompt("llama")).logits[0, -1].argmax())
    model.generation_config.eos_token_id = likely  # type: ignore[union-attr]
    calls: list[int] = []
    with generating(TorchModel(model, CPU), Inputs(kwargs=prompt("llama")), GenerationConfig(NEW)) as step:
        step.generate(lambda: calls.append(1))
    assert len(calls) == NEW


@pytest.mark.parametrize(
    ("name", "cache"),
    [("llama", None), ("gpt2", None), ("t5", "static"), ("whisper", "static")],
)
def test_the_loop_of_our_own_generates_the_same_tokens(name: str, cache: str | None) -> None:
    model = made(name)
    config = GenerationConfig(NEW, {} if cache is None else {"cache_implementation": cache})
    loaded = TorchModel(model, CPU)
    batch = loaded.put(Inputs(kwargs=prompt(name)))
    # A token that ends sequences is masked by `generate` alone.
    model.generation_config.eos_token_id = None  # type: ignore[union-attr]
    with generating(loaded, batch, config) as step:
        theirs: Any = step.generate(lambda: None)
        ours: Any = own_generation(loaded, batch, config)()
    assert ours.shape == (B, NEW)
    assert torch.equal(ours, theirs[:, -NEW:])
    assert len(ours.unique()) > 1 or name in ("t5", "whisper")  # with random weights these repeat a token


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("llama", {"cache_implementation": "static"}, keys_and_values(KV, T + NEW - 1)),
        ("gpt2", {}, keys_and_values(HEADS, T + NEW - 1)),
        ("t5", {}, keys_and_values(HEADS, NEW) + keys_and_values(HEADS, T)),
        ("whisper", {"num_beams": 3}, keys_and_values(HEADS, NEW, 3 * B) + keys_and_values(HEADS, 10, 3 * B)),
    ],
)
def test_the_bytes_of_the_cache(name: str, arguments: Mapping[str, object], expected: int) -> None:
    assert cache_bytes(name, GenerationConfig(NEW, arguments)) == expected


def test_without_a_cache_there_are_no_bytes() -> None:
    with pytest.raises(Unsupported, match=r"generation\.use_cache=false: there is no cache"):
        cache_bytes("llama", GenerationConfig(NEW, {"use_cache": False}))


MIDDLE = (NEW - 2) // 2
"""Generated tokens in the cache when the step at the middle of the output begins: of 0 … 5 the third."""


def llama_token(keys: int) -> int:
    layer = H * H + 2 * H * KV * D + H * H + 3 * H * F
    return LAYERS * (layer + 2 * keys * H)


def gpt2_token(keys: int) -> int:
    return LAYERS * (12 * H * H + 2 * keys * H)


@pytest.mark.parametrize(("name", "token"), [("llama", llama_token), ("gpt2", gpt2_token)])
def test_counts_of_a_decoder(name: str, token: Callable[[int], int]) -> None:
    """Prefill makes the logits of the last token alone, as `generate` does; attention over the prompt is computed in full."""
    head = H * V
    found = counted(name, GenerationConfig(NEW))
    assert found.uncovered == {}
    assert found.sequences == B
    assert found.position == T + MIDDLE
    assert found.prefill_macs == B * (T * token(T) + head)
    assert found.decode_macs == B * (token(T + MIDDLE + 1) + head)
    assert found.cache_bytes == keys_and_values(KV if name == "llama" else HEADS, T + MIDDLE + 1)


def test_a_static_cache_is_read_in_full() -> None:
    found = counted("llama", GenerationConfig(NEW, {"cache_implementation": "static"}))
    assert found.decode_macs == B * (llama_token(T + NEW - 1) + H * V)
    assert found.cache_bytes == keys_and_values(KV, T + NEW - 1)


def test_counts_of_an_encoder_and_a_decoder() -> None:
    found = counted("t5", GenerationConfig(NEW))
    products, feed_forward, head = 4 * H * H, 2 * H * F, H * V
    encoder = LAYERS * (T * (products + feed_forward) + 2 * T * T * H)

    def decoder(keys: int) -> int:
        """One token; keys and values of the encoder's output are in the cache."""
        return LAYERS * (products + 2 * keys * H + 2 * H * H + 2 * T * H + feed_forward) + head

    assert found.prefill_macs == B * (encoder + decoder(1) + LAYERS * 2 * T * H * H)
    assert found.decode_macs == B * decoder(1 + MIDDLE + 1)
    assert found.position == 1 + MIDDLE
    assert found.cache_bytes == keys_and_values(HEADS, 1 + MIDDLE + 1) + keys_and_values(HEADS, T)


@pytest.mark.parametrize("new_tokens", [1, 3])
def test_a_short_output_has_its_middle_at_the_beginning(new_tokens: int) -> None:
    found = counted("llama", GenerationConfig(new_tokens))
    assert found.position == T
    assert found.decode_macs == B * (llama_token(T + 1) + H * V)


def test_the_weights_that_a_step_reads() -> None:
    """All but the table of the tokens, of which each sequence reads a row; a tied table is read by the head."""
    params = sum(p.numel() for p in made("llama").parameters())
    assert counted("llama", GenerationConfig(NEW)).weight_bytes == 4 * (params - V * H + B * H)
    tied = sum(p.numel() for p in made("gpt2").parameters())
    positions = (64 - 1) * H  # all sequences are at the same one
    assert counted("gpt2", GenerationConfig(NEW)).weight_bytes == 4 * (tied - positions)
    half = counted("llama", GenerationConfig(NEW), TorchBackend(precision="bf16"))
    assert half.weight_bytes == 2 * (params - V * H + B * H)
    assert half.cache_bytes == keys_and_values(KV, T + MIDDLE + 1) // 2


def test_the_encoder_and_the_keys_of_its_output_are_not_read_again() -> None:
    model = made("t5")
    named = dict(model.named_parameters())
    read = {n: p for n, p in named.items() if n.startswith("decoder.") and "EncDecAttention.k" not in n}
    read = {n: p for n, p in read.items() if "EncDecAttention.v" not in n and "relative_attention_bias" not in n}
    sizes = sum(p.numel() for p in read.values()) + V * H  # the tied table is the head
    found: Any = counted("t5", GenerationConfig(NEW)).weight_bytes
    relative = found - 4 * sizes
    assert relative == 4 * HEADS * (1 + MIDDLE + 1)  # the rows of the biases that were looked up


@pytest.mark.parametrize(
    ("name", "backend", "said"),
    [
        ("mixtral", TorchBackend(), "a mixture of experts: the experts that a step reads depend on the data"),
        ("llama", TorchBackend(precision="int8"), "backend.precision=int8: the bytes of quantized"),
    ],
)
def test_bytes_that_are_not_known_have_a_reason(name: str, backend: TorchBackend, said: str) -> None:
    found = counted(name, GenerationConfig(NEW), backend)
    assert found.weight_bytes is None
    assert str(found.bytes_reason).startswith(said)
    assert found.decode_macs > 0
    assert Generation.from_dict(found.to_dict()) == found


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (GenerationConfig(NEW, {"num_beams": 2}), "generation.num_beams=2: counts, layers, operators"),
        (GenerationConfig(NEW, {"cache_implementation": "quantized"}), "generation.cache_implementation=quantized: "),
        (GenerationConfig(NEW, {"use_cache": False}), "generation.use_cache=false: a decode step reads a cache"),
        (GenerationConfig(NEW, {}, print), "generation.function: only the forwards of a model with its own generate"),
    ],
)
def test_what_cannot_be_counted(config: GenerationConfig, said: str) -> None:
    with pytest.raises(Unsupported) as caught:
        counted("llama", config)
    assert str(caught.value).startswith(said)


def test_a_mask_that_masks_something_stays() -> None:
    given = prompt("llama")
    assert set(without_full_mask(given)) == {"input_ids"}
    given["attention_mask"][0, 0] = 0
    assert set(without_full_mask(given)) == {"input_ids", "attention_mask"}
    loop = GreedyLoop.of(made("llama"), GenerationConfig(NEW))
    with torch.inference_mode():
        assert loop.run(given).shape == (B, NEW)


@pytest.mark.thorough
def test_every_pass_measures_a_generation() -> None:
    names = [
        *("generation/latency", "generation/time_to_first_token", "generation/time_per_token", "generation/kv_cache_bytes"),
        *("compute/macs_prefill", "compute/macs_decode", "memory/alloc_peak_bytes", "layers/slowest_self_s"),
        *("operators/self_s", "latency/forward"),
    ]  # fmt: skip
    model = made("llama")
    found = sweeprof.profile(
        model, prompt("llama"), names, mode="generation", generation=GenerationConfig(3), protocol=QUICK
    )
    missing = {name: m.reason for name, m in found.items() if m.value is None}
    assert missing == {"latency/forward": "mode=generation: a step is a whole generation; see generation/*"}
    seconds = {name: float(found[name].value or 0) for name in names[:3]}
    assert seconds["generation/time_to_first_token"] + seconds["generation/time_per_token"] < (
        2 * seconds["generation/latency"]
    )
    times: Any = found.profiler.seen("layer_times")
    assert times.mode == "generation"
    assert max(call.call for call in times.calls if call.path == "model.layers.0.mlp") == 2  # three calls
    assert found["generation/kv_cache_bytes"].value == keys_and_values(KV, T + 2)
    assert not any(module.__dict__.get("forward") for module in model.modules())


@pytest.mark.thorough
def test_a_function_of_ones_own() -> None:
    seen: dict[str, object] = {}

    def generate(model: Any, inputs: Any, new_tokens: int, on_token: Callable[[], None], top: int = 0) -> None:
        seen.update(inputs=set(inputs), top=top)
        ids = inputs["input_ids"]
        for _ in range(new_tokens):
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
            on_token()
        seen.update(length=ids.shape[1])

    of_generation = ("time_per_token", "prefill_throughput", "kv_cache_bytes")
    names = [*(f"generation/{name}" for name in of_generation), "operators/self_s"]
    config = GenerationConfig(4, {"top": 3}, generate)
    found = sweeprof.profile(
        made("llama"), prompt("llama"), names, mode="generation", generation=config, protocol=QUICK
    )
    assert {name for name, m in found.items() if m.value is None} == {"generation/kv_cache_bytes"}
    assert found["generation/kv_cache_bytes"].reason == ("generation.function: what it returned has no past_key_values")
    assert seen == {"inputs": {"input_ids", "attention_mask"}, "top": 3, "length": T + 4}


def test_autocast_holds_for_all_that_generates() -> None:
    """Both ``generate`` and the loop of our own call an encoder beside the model's forward."""
    model, dtypes = made("t5"), set()
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda _, given, found, name=name: dtypes.add((name[:7], found.dtype)))
    variant = TorchVariant("bf16", method="autocast")
    loaded, batch = TorchModel(variant.of(model), CPU, variant), Inputs(kwargs=prompt("t5"))
    config = GenerationConfig(3)
    found = {(part, torch.bfloat16) for part in ("encoder", "decoder", "lm_head")}
    with generating(loaded, batch, config) as step:
        step.generate(lambda: None)
    assert dtypes == found
    dtypes.clear()
    with torch.inference_mode():
        own_generation(loaded, batch, config)()
    assert dtypes == found


def test_an_argument_that_generate_does_not_have() -> None:
    config = GenerationConfig(NEW, {"num_beam": 4})
    with pytest.raises(UserError) as caught, generating(TorchModel(made("llama"), CPU), Inputs(), config):
        pass
    assert "generation.num_beam: 4" in str(caught.value)
    assert "Did you mean 'generation.num_beams'?" in str(caught.value)
    with pytest.raises(UserError, match=r"is set by sweeprof: give generation\.new_tokens"):
        GenerationConfig(NEW, {"max_new_tokens": 4})
    with pytest.raises(UserError, match=r"generation\.new_tokens: 0 is not a number of new tokens"):
        GenerationConfig(0)


class Numbers(torch.nn.Module):
    """Has a method of the name, which reports no token."""

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (torch.nn.Linear(2, 2), "Linear has no generate: name a function by generation.function"),
        (Numbers(), "the generate of Numbers takes no stopping_criteria"),
    ],
)
def test_models_that_generate_nothing(model: torch.nn.Module, said: str) -> None:
    loaded = TorchModel(model, CPU)
    for use in (
        lambda: generating(loaded, Inputs(), GenerationConfig(NEW)).__enter__(),
        lambda: own_generation(loaded, Inputs(), GenerationConfig(NEW)),
    ):
        with pytest.raises(Unsupported) as caught:
            use()
        assert str(caught.value).startswith(said)


def test_a_compiled_model_is_not_measured_as_if_it_were() -> None:
    loaded = TorchModel(torch.compile(made("llama"), backend="eager"), CPU)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match=r"which torch\.compile has not changed"):
        own_generation(loaded, Inputs(kwargs=prompt("llama")), GenerationConfig(NEW))


def test_a_model_without_its_head_generates_no_text() -> None:
    body: Any = made("llama").model
    with pytest.raises(UserError, match="needs a model that generates text, and LlamaModel has no generate"):
        check_generate(type(body), {})
    check_generate(type(made("llama")), {"num_beams": 2, "top_k": 3})


# The forward of a caller that reads a cache or generates


@pytest.mark.parametrize("kind", ["filled", "empty", "static"])
def test_a_cache_among_the_inputs_is_read_and_left_to_its_caller(kind: str) -> None:
    model: Any = made("llama")
    transformers = import_transformers()
    ids = torch.randint(3, 50, (B, 1))
    cache = transformers.DynamicCache()
    if kind == "static":
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    if kind != "empty":
        with torch.no_grad():
            model(torch.randint(3, 50, (B, 10)), past_key_values=cache, use_cache=True)
    before = int(cache.get_seq_length())
    given = {"input_ids": ids, "past_key_values": cache, "use_cache": True}
    keys = {"empty": 1, "filled": 11, "static": 16}[kind]
    names = ["compute/macs", *(["latency/forward"] if kind != "static" else [])]  # which is full after some steps
    for _ in range(2):
        profile = sweeprof.profile(model, given, names, protocol=QUICK, progress=False)
        assert profile["compute/macs"].value == B * (llama_token(keys) + H * V)
        assert profile[names[-1]].value
    assert int(cache.get_seq_length()) == before
    assert all(layer.keys is None or layer.keys.device.type == "cpu" for layer in cache.layers)
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)


def test_generate_finds_the_arguments_of_the_forward() -> None:
    """It looks at the signature for what it may pass on."""
    ids = prompt("llama")["input_ids"]

    def generate(model: Any, ids: Any) -> Any:
        arguments = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "use_cache": True}
        return model.generate(ids, attention_mask=torch.ones_like(ids), **arguments)

    forwards = T * llama_token(T) + llama_token(T + 1) + llama_token(T + 2) + 3 * H * V
    profile = sweeprof.profile(made("llama"), (ids,), ["compute/macs"], forward=generate, progress=False)
    assert profile["compute/macs"].value == B * forwards
