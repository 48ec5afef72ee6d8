"""Counts of a generation by a model of keras_hub: what it computes up to the first token, and for each further one.

The prefill reads the buffer for the prompt and all new tokens and fills the cache; the first token then takes a decode step, as
every other one. Both are calls of ``call_with_cache``, which are counted over shapes; attention reads the whole cache in each.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from sweeprof.backends.keras.calls import as_called
from sweeprof.backends.keras.tensors import described, symbolic
from sweeprof.backends.tensorflow.counting import count_layers
from sweeprof.backends.tensorflow.generation import TOKENS, prompt_of
from sweeprof.backends.tensorflow.model import graph_of
from sweeprof.counting.formulas import Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.generation_config import GenerationConfig
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.model_sources.generate_arguments import check_keras_generate
from sweeprof.results.generation import Generation
from sweeprof.results.layer_times import OUTSIDE
from sweeprof.results.layers import LayerTable

BYTES = "which rows of its tables a decode step reads is not counted for Keras models"


def count_generation(
    model: Any, inputs: Inputs, formulas: Formulas, config: GenerationConfig, skips_logits: bool
) -> Generation:
    """Return the counts of a generation with one sequence for each prompt.

    Args:
        model: of keras_hub.
        inputs: one batch of prompts; their shapes are all that is used.
        formulas: of the session.
        config: of the generation.
        skips_logits: True if the logits of the prefill, which nothing reads, are not computed, as in a graph.

    Raises:
        Unsupported: the model is not one of keras_hub with ``call_with_cache``, or the sampler makes several sequences.
        Exception: whatever the model, or a formula, raised.
    """
    if config.function is not None:
        raise Unsupported("generation.function: only the forwards of a model with its own generate are counted")
    check_keras_generate(config.arguments)
    sampler = config.arguments.get("sampler", "greedy")
    if (sampler["class_name"] if isinstance(sampler, Mapping) else sampler) == "beam":
        raise Unsupported("generation.sampler=beam: counts are those of a generation of one sequence for each prompt")
    sequences, prompt = prompt_of(model, as_called(model, inputs))[TOKENS].shape
    length = prompt + config.new_tokens
    cache = _cache(model, sequences, length)
    prefill = _counted(model, (sequences, length), cache, formulas)
    if skips_logits:
        prefill = _without_logits(prefill)
    decode = _counted(model, (sequences, 1), cache, formulas)
    return Generation(
        sequences=sequences,
        prefill_macs=prefill.macs + decode.macs,
        prefill_flops=(prefill.flops or 0) + (decode.flops or 0),
        decode_macs=decode.macs,
        decode_flops=decode.flops or 0,
        position=prompt + max(0, config.new_tokens - 2) // 2,
        weight_bytes=None,
        cache_bytes=described(cache).nbytes,
        bytes_reason=BYTES,
        uncovered=dict(Counter(prefill.uncovered) + Counter(decode.uncovered)),
        method=prefill.method,
    )


def _cache(model: Any, sequences: int, length: int) -> Any:
    """Return symbolic tensors like those of the cache for so many tokens of each sequence."""
    for name, arguments in (("_build_cache", 1), ("call_with_cache", 3)):
        function = getattr(model, name, None)
        parameters = () if function is None else inspect.signature(function).parameters.values()
        if sum(parameter.default is parameter.empty for parameter in parameters) != arguments:
            raise Unsupported(
                f"{type(model).__name__} has no call_with_cache(token_ids, cache, cache_update_index), whose calls are counted"
            )
    traced = graph_of(model._build_cache).get_concrete_function(tf.TensorSpec((sequences, length), tf.int32))
    _, cache = traced.structured_outputs
    return keras.tree.map_structure(symbolic, cache)


def _counted(model: Any, shape: tuple[int, int], cache: Any, formulas: Formulas) -> LayerTable:
    """Return the layers of one call with a cache for tokens of this shape."""

    def forward(model: Any, tokens: object, cache: object) -> object:
        return model.call_with_cache(tokens, cache, 0)

    return count_layers(model, Inputs((TensorSpec(shape, "int32"), cache), forward=forward), formulas)


def _without_logits(table: LayerTable) -> LayerTable:
    """Return the table without the last layer with products, which returns the logits; raise Unsupported if it is no layer."""
    last = max(index for index, row in enumerate(table.rows) if row.macs)
    if table.rows[last].path == OUTSIDE:
        raise Unsupported("the logits are not the outputs of a layer: those that a graph leaves out cannot be told")
    return replace(table, rows=(*table.rows[:last], *table.rows[last + 1 :]))
