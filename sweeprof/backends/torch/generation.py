"""Generation of text: by a model's own ``generate``, by a function of the user's, and by a loop of our own.

A stopping criterion reports the tokens of ``generate``: every way to generate asks it after each step (greedy, sampling,
beams, assisted), with any cache. The loop of our own is greedy; each of its steps is one forward, so that layers, operators and
allocations can be followed.

Counts are of prefill and of one decode step at the middle of the output, from the model's own forward with a cache. Three forwards
are counted in one pass over shapes: the prompt; the prompt and half of the output, which fills a cache; and one token more with
this cache.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch

from sweeprof.backends import Build
from sweeprof.backends.torch.callsites import tensors_in
from sweeprof.backends.torch.costs import GATHERS
from sweeprof.backends.torch.counting import count_built
from sweeprof.backends.torch.model import TorchModel
from sweeprof.backends.torch.private import OpOverload
from sweeprof.backends.torch.state import DispatchMode, is_compiled
from sweeprof.counting.formulas import Args, Formulas, Kwargs
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import GenerationConfig
from sweeprof.model_sources import check_generate
from sweeprof.results.layer_times import ROOT
from sweeprof.results.observations import Generation

NOT_OF_PROMPTS = ("labels", "decoder_input_ids", "decoder_attention_mask", "decoder_inputs_embeds")
"""Arguments of a forward that ``generate`` is not given: it makes what the decoder reads."""
COMPILED = (
    "generate calls the model's own forward, which torch.compile has not changed: choose backend=torch; on an accelerator "
    "generation.cache_implementation=static compiles the decode step"
)


class GenerateStep:
    """One generation by the model's ``generate``."""

    def __init__(self, model: TorchModel, batch: Inputs, config: GenerationConfig) -> None:
        prompt = prompt_of(model.native, batch)
        self.new_tokens = config.new_tokens
        self.sequences_per_prompt = sequences_per_prompt(model.native, config)
        self.prompt_tokens = prompt_tokens(prompt)
        self._module: Any = model.native
        self._device = model.device
        # The model's configuration may be made for a forward without a cache.
        settings = {"do_sample": False, "use_cache": True, **config.arguments}
        self._uses_cache = settings["use_cache"]
        start = start_token(self._module, config)
        if start is not None:
            settings["decoder_start_token_id"] = start
        self._generate = partial(
            model.within_autocast(cast("Callable[..., Any]", self._module.generate)),
            **prompt,
            **settings,
            min_new_tokens=config.new_tokens,
            max_new_tokens=config.new_tokens,
        )

    def generate(self, on_token: Callable[[], object]) -> object:
        told = after_device(on_token, self._device)

        def never(_tokens: torch.Tensor, _scores: object, **_: object) -> bool:
            told()
            return False

        return self._generate(stopping_criteria=[never])

    def cache_bytes(self) -> int:
        if not self._uses_cache:
            raise Unsupported("generation.use_cache=false: there is no cache")
        seen: list[Any] = []

        def remember(_module: object, _args: object, kwargs: Mapping[str, Any], outputs: Any) -> None:
            cache = kwargs.get("past_key_values")
            if cache is None:
                cache = getattr(outputs, "past_key_values", None)
            seen[:] = [cache]

        base: Any = self._module
        if hasattr(base, "get_base_model"):
            base = base.get_base_model()
        handle = base.register_forward_hook(remember, with_kwargs=True)
        try:
            self._generate()
        finally:
            handle.remove()
        return bytes_of_cache(seen)


class FunctionStep:
    """One generation by a function of the user's."""

    sequences_per_prompt = 1

    def __init__(self, model: TorchModel, batch: Inputs, config: GenerationConfig) -> None:
        assert config.function is not None
        self.new_tokens = config.new_tokens
        self.prompt_tokens = prompt_tokens(batch.kwargs)
        self._device = model.device
        inputs: object = dict(batch.kwargs) or batch.args
        if not batch.kwargs and len(batch.args) == 1:
            inputs = batch.args[0]
        self._generate = partial(model.within_autocast(config.function), model.native, inputs, config.new_tokens)
        self._arguments = config.arguments

    def generate(self, on_token: Callable[[], object]) -> object:
        return self._generate(after_device(on_token, self._device), **self._arguments)

    def cache_bytes(self) -> int:
        cache = getattr(self.generate(lambda: None), "past_key_values", None)
        if cache is None:
            raise Unsupported("generation.function: what it returned has no past_key_values")
        return bytes_of_cache(cache)


@contextmanager
def generating(model: TorchModel, batch: Inputs, config: GenerationConfig) -> Iterator[GenerateStep | FunctionStep]:
    """Within the context: one generation from the prompts of ``batch``.

    Raises:
        Unsupported: the model has no ``generate`` that reports its tokens.
        UserError: ``generate`` has no such argument.
    """
    if config.function is None:
        check_model(model.native, batch, config)
    with torch.inference_mode():
        yield GenerateStep(model, batch, config) if config.function is None else FunctionStep(model, batch, config)


def check_model(module: torch.nn.Module, batch: Inputs, config: GenerationConfig) -> None:
    """Raise :class:`Unsupported`, or for an argument ``UserError``, if the model's ``generate`` cannot be measured."""
    if batch.forward is not None:
        raise Unsupported(
            "mode=generation calls the model's generate, not `forward`: give GenerationConfig(function=...)"
        )
    if is_compiled(module):
        raise Unsupported(COMPILED)
    generate = getattr(module, "generate", None)
    if generate is None:
        raise Unsupported(
            f"{type(module).__name__} has no generate: name a function by generation.function, or choose a model with a head, such "
            "as model.task=text-generation"
        )
    names = inspect.signature(generate).parameters
    if "stopping_criteria" not in names and all(p.kind is not p.VAR_KEYWORD for p in names.values()):
        raise Unsupported(
            f"the generate of {type(module).__name__} takes no stopping_criteria, which tells when a token is complete: name a "
            "function by generation.function"
        )
    if "stopping_criteria" in names:
        check_generate(type(module), config.arguments)


def after_device(on_token: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return a function that waits for the device, and then calls ``on_token``."""
    if device.type == "cpu":
        return on_token

    def wait() -> None:
        torch.accelerator.synchronize(device)
        on_token()

    return wait


def prompt_of(module: torch.nn.Module, batch: Inputs) -> dict[str, Any]:
    """Return what ``generate`` reads, by names: the arguments of a forward without those of its decoder, and without labels."""
    named = dict(zip(inspect.signature(module.forward).parameters, batch.args, strict=False)) | dict(batch.kwargs)
    return {name: value for name, value in named.items() if name not in NOT_OF_PROMPTS}


def start_token(module: torch.nn.Module, config: GenerationConfig) -> int | None:
    """Return the token that the decoder of an encoder-decoder model begins with; None for other models.

    A model with random weights may name none: then it is the one that pads, as in T5.
    """
    own: Any = getattr(module, "config", None)
    if not getattr(own, "is_encoder_decoder", False):
        return None
    sources = [config.arguments.get("decoder_start_token_id")]
    for settings in (getattr(module, "generation_config", None), own):
        sources += [getattr(settings, name, None) for name in ("decoder_start_token_id", "bos_token_id")]
    sources.append(getattr(own, "pad_token_id", None))
    return next((token for token in sources if isinstance(token, int)), 0)


def sequences_per_prompt(module: torch.nn.Module, config: GenerationConfig) -> int:
    """Return how many sequences ``generate`` returns for each prompt."""
    own = config.arguments.get("generation_config") or getattr(module, "generation_config", None)
    return config.arguments.get("num_return_sequences") or getattr(own, "num_return_sequences", None) or 1


def prompt_tokens(prompt: Mapping[str, Any]) -> int | None:
    """Return the tokens of the prompt of each sequence; None where it is not text."""
    ids = prompt.get("input_ids")
    if ids is None:
        return None
    return int(ids.shape[1])


def bytes_of_cache(cache: object) -> int:
    """Return the bytes of all keys, values and other states that a cache holds, or has reserved.

    Raises:
        Unsupported: there is no cache.
    """
    found = {(t.untyped_storage()._cdata, t.storage_offset()): t.nbytes for t in _states(cache)}
    if not found:
        raise Unsupported("the model returned no past_key_values")
    return sum(found.values())


def _states(cache: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a cache; counters, which have no more than one dimension, are left out."""
    if isinstance(cache, torch.Tensor):
        if cache.dim() > 1:
            yield cache
    elif isinstance(cache, list | tuple):
        for item in cache:
            yield from _states(item)
    elif hasattr(cache, "self_attention_cache"):
        yield from _states([cache.self_attention_cache, cache.cross_attention_cache])
    elif hasattr(cache, "layers"):
        yield from _states(list(cache.layers))
    elif cache is not None and hasattr(cache, "__dict__"):
        yield from _states(list(vars(cache).values()))


@dataclass(frozen=True, slots=True)
class GreedyLoop:
    """Prefill, then one token after the other, each by one forward of the model with a cache."""

    module: torch.nn.Module
    new_tokens: int
    is_static: bool
    """True: the cache reserves its memory at the beginning."""
    start: int = 0
    """The token that a decoder with an encoder begins with."""

    @classmethod
    def of(cls, module: torch.nn.Module, config: GenerationConfig) -> GreedyLoop:
        """Return the loop for a generation.

        Raises:
            Unsupported: the generation is not greedy, or has another cache.
        """
        if getattr(module, "generate", None) is None or getattr(module, "config", None) is None:
            raise Unsupported(f"{type(module).__name__} is not a model of transformers that generates text")
        if config.arguments.get("use_cache") is False:
            raise Unsupported("generation.use_cache=false: a decode step reads a cache")
        own = getattr(module, "generation_config", None)
        for name, plain in _PLAIN.items():
            value = config.arguments.get(name, getattr(own, name, None))
            if value not in plain:
                reason = "counts, layers, operators and allocations are those of a greedy generation"
                raise Unsupported(f"generation.{name}={value}: {reason}")
        return cls(
            module,
            config.new_tokens,
            config.arguments.get("cache_implementation") == "static",
            start_token(module, config) or 0,
        )

    @property
    def is_encoder_decoder(self) -> bool:
        """True if the prompt is read by an encoder."""
        return bool(self.module.config.is_encoder_decoder)  # type: ignore[union-attr]

    def run(self, prompt: Mapping[str, Any]) -> torch.Tensor:
        """Return the new tokens ``(batch, new_tokens)``."""
        outputs, mask = self.prefill(prompt)
        tokens = [_chosen(outputs)]
        while len(tokens) < self.new_tokens:
            outputs, mask = self.decode(outputs, mask, tokens[-1])
            tokens.append(_chosen(outputs))
        return torch.cat(tokens, dim=1)

    def prefill(self, prompt: Mapping[str, Any], extra: int = 0) -> tuple[Any, torch.Tensor | None]:
        """Return the outputs of the forward that reads the prompt, and the prompt's mask.

        Args:
            prompt: as of :func:`prompt_of`.
            extra: tokens that the forward reads after the prompt, as if they had been generated.

        Raises:
            Unsupported: the model returned no cache.
        """
        given, mask = dict(prompt), prompt.get("attention_mask")
        first = next(value for value in prompt.values() if isinstance(value, torch.Tensor))
        if self.is_encoder_decoder:
            started = torch.full((len(first), 1 + extra), self.start, dtype=torch.int64, device=first.device)
            given["decoder_input_ids"] = started
        elif extra:
            ids = given["input_ids"]
            given["input_ids"] = torch.cat([ids, ids.new_zeros((len(ids), extra))], dim=1)
            if mask is not None:
                mask = given["attention_mask"] = _longer(mask, extra)
        cache = None
        if self.is_static:
            cache = self._cache(prompt_tokens(prompt))
        outputs = self._forward(given, cache)
        if getattr(outputs, "past_key_values", None) is None:
            raise Unsupported("the model returned no past_key_values: its cache is of another kind")
        return outputs, mask

    def decode(self, outputs: Any, mask: torch.Tensor | None, tokens: torch.Tensor) -> tuple[Any, torch.Tensor | None]:
        """Return the outputs of the forward that reads one token ``(batch, 1)`` more, and the mask of all that has been read."""
        if self.is_encoder_decoder:
            encoded = outputs.encoder_last_hidden_state
            given = {"encoder_outputs": (encoded,), "decoder_input_ids": tokens, "attention_mask": mask}
            following = self._forward(given, outputs.past_key_values)
            following.encoder_last_hidden_state = encoded
            return following, mask
        if mask is not None:
            mask = _longer(mask, 1)
        return self._forward({"input_ids": tokens, "attention_mask": mask}, outputs.past_key_values), mask

    def _forward(self, given: Mapping[str, Any], cache: object) -> Any:
        named = {name: value for name, value in given.items() if value is not None}
        if "logits_to_keep" in inspect.signature(type(self.module).forward).parameters:
            named["logits_to_keep"] = 1  # as `generate` does: of the prompt, only the last token's logits are needed
        return self.module(**named, past_key_values=cache, use_cache=True, return_dict=True)

    def _cache(self, length: int | None) -> object:
        """Return a cache that reserves memory for the prompt and all new tokens but the last, which is not read."""
        import transformers

        config: Any = self.module.config
        kind: Any = transformers.StaticCache
        decoder = config.get_text_config(decoder=True)
        if not self.is_encoder_decoder:
            return kind(config=decoder, max_cache_len=(length or 0) + self.new_tokens - 1)
        encoded = self.module.get_encoder()  # type: ignore[operator]
        longest = length or getattr(encoded.config, "max_source_positions", None)
        if longest is None:
            raise Unsupported("the length of the encoder's output is not known, which a static cache needs")
        own = kind(config=decoder, max_cache_len=self.new_tokens)
        return transformers.EncoderDecoderCache(own, kind(config=decoder, max_cache_len=longest))


_PLAIN: dict[str, tuple[object, ...]] = {
    "num_beams": (None, 1),
    "num_return_sequences": (None, 1),
    "prompt_lookup_num_tokens": (None,),
    "assistant_early_exit": (None,),
    "custom_generate": (None,),
    "cache_implementation": (None, "dynamic", "static"),
}
"""Arguments of ``generate`` with the values of a greedy generation; sampling costs as much as the greedy choice."""


def own_generation(model: TorchModel, batch: Inputs, config: GenerationConfig) -> Callable[[], object]:
    """Return a function that runs one generation step by step; it does not wait for the device.

    Raises:
        Unsupported: the generation is not greedy, or has another cache than a dynamic or a static one.
    """
    if config.function is not None:
        return partial(FunctionStep(model, batch, config).generate, lambda: None)
    check_model(model.native, batch, config)
    loop = GreedyLoop.of(model.native, config)
    return partial(model.within_autocast(loop.run), without_full_mask(prompt_of(model.native, batch)))


def without_full_mask(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return a prompt without its mask where that masks nothing, as ``generate`` does."""
    mask = prompt.get("attention_mask")
    kept = dict(prompt)
    if isinstance(mask, torch.Tensor) and not mask.is_meta and bool((mask == 1).all()):
        del kept["attention_mask"]
    return kept


def _longer(mask: torch.Tensor, tokens: int) -> torch.Tensor:
    return torch.cat([mask, mask.new_ones((len(mask), tokens))], dim=1)


def _chosen(outputs: Any) -> torch.Tensor:
    chosen: torch.Tensor = outputs.logits[:, -1:].argmax(dim=-1)
    return chosen


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def count_generation(
    build: Build, inputs: Inputs, formulas: Formulas, config: GenerationConfig, bytes_reason: str | None = None
) -> Generation:
    """Return the counts of a greedy generation by the module that ``build`` makes.

    Args:
        build: makes the module, on meta where that is possible.
        inputs: one batch of prompts.
        formulas: of the session.
        config: of the generation.
        bytes_reason: why the bytes of the weights are not those of the module; None: they are.

    Raises:
        Unsupported: the generation is not greedy, or the model returns no cache.
        Exception: whatever the builder raised, or the module in a forward for real.
    """
    if config.function is not None:
        raise Unsupported("generation.function: only the forwards of a model with its own generate are counted")
    attempts: list[Callable[..., Generation] | Unsupported] = []

    def forwards(module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        try:
            attempts.append(_run(module, Inputs(args, kwargs), config, bytes_reason))
        except Unsupported as error:  # which no other attempt would change
            attempts.append(error)

    # The mask may still be an array of the host.
    prompt = dict(inputs.kwargs)
    if "attention_mask" in prompt:
        prompt["attention_mask"] = torch.as_tensor(prompt["attention_mask"])
    table = count_built(build, replace(inputs, kwargs=without_full_mask(prompt), forward=forwards), formulas)
    if not attempts:
        raise Unsupported(table.uncounted or "the forward was not run")
    generation = attempts[-1]
    if isinstance(generation, Unsupported):
        raise generation
    if table.uncounted is not None:
        raise Unsupported(table.uncounted)
    calls = [row for row in table.inclusive().rows if row.path == ROOT and row.call >= 0]
    prefill, decode = calls[0], calls[-1]
    return generation(
        prefill_macs=prefill.macs or 0,
        prefill_flops=prefill.flops or 0,
        decode_macs=decode.macs or 0,
        decode_flops=decode.flops or 0,
        uncovered=table.uncovered,
        method=table.method,
    )


def _run(
    module: torch.nn.Module, batch: Inputs, config: GenerationConfig, bytes_reason: str | None
) -> Callable[..., Generation]:
    """Run the forwards that are counted: two, or three if the middle of the output is not its beginning.

    Returns a function from their counts to what is known of the generation.
    """
    loop = GreedyLoop.of(module, config)
    prompt = prompt_of(module, batch)
    # The decode steps begin with 0 … new_tokens - 2 generated tokens in the cache.
    extra = max(0, config.new_tokens - 2) // 2
    outputs, mask = loop.prefill(prompt)
    if extra:
        outputs, mask = loop.prefill(prompt, extra)
    tokens = next(value for value in prompt.values() if isinstance(value, torch.Tensor))
    with _WeightReads(module) as reads:
        outputs, _ = loop.decode(outputs, mask, torch.zeros((len(tokens), 1), dtype=torch.int64, device=tokens.device))
    text: Any = module.config.get_text_config()  # type: ignore[union-attr, operator]
    has_experts = any((getattr(text, name, None) or 0) > 1 for name in _EXPERTS)
    if has_experts and bytes_reason is None:
        bytes_reason = "a mixture of experts: the experts that a step reads depend on the data"
    return partial(
        Generation,
        sequences=len(tokens),
        position=extra + (1 if loop.is_encoder_decoder else prompt_tokens(prompt) or 0),
        weight_bytes=reads.bytes if bytes_reason is None else None,
        cache_bytes=bytes_of_cache(outputs.past_key_values),
        bytes_reason=bytes_reason,
    )


class _WeightReads(DispatchMode):
    """Sums the bytes of the parameters that operators read: each byte once, of a table the rows that are looked up."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._largest, self._looked_up = Counter[int](), Counter[int]()
        self._sizes = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in module.parameters()}

    def __torch_dispatch__(self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        if func.is_view:
            return returned
        is_lookup = func._schema.name.removeprefix("aten::") in GATHERS
        for tensor in tensors_in((args, kwargs)):
            key = tensor.untyped_storage()._cdata
            if key not in self._sizes:
                continue
            if is_lookup:
                self._looked_up[key] += tensors_in(returned)[0].nbytes
            else:
                self._largest[key] = max(self._largest[key], tensor.nbytes)
        return returned

    @property
    def bytes(self) -> int:
        """Bytes that were read."""
        return sum(min(size, max(self._largest[key], self._looked_up[key])) for key, size in self._sizes.items())
