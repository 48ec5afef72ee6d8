"""Decoders of keras_hub by configuration alone: what is described is what the model takes, and mistakes are one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sweeprof.datasets.auto import Auto
from sweeprof.errors import UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.model_sources import keras_hub

CONFIG = {"vocabulary_size": 31, "num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}


def test_the_model_takes_what_is_described() -> None:
    described = keras_hub.inputs("gpt2", {"sequence_length": 9}, CONFIG)
    assert (described.unit, described.units_per_sample, described.vocabulary) == ("tokens", 9, 31)
    split = Auto(described.to_dict(), samples=2).split("test")
    inputs = Inputs.from_batch(split.batch(np.arange(2))[0], split.pass_as)
    assert set(inputs.kwargs) == {"token_ids", "padding_mask"}
    assert (inputs.kwargs["padding_mask"] == 1).all()
    model = keras_hub.build("gpt2", CONFIG)
    assert model(inputs.kwargs).shape == (2, 9, 31)


def test_the_prompt_has_its_length() -> None:
    generation = {"prompt_length": 7, "new_tokens": 4, "function": None, "sampler": "top_k"}
    assert keras_hub.inputs("gpt2", {}, CONFIG, generation).inputs["token_ids"].shape == (7,)
    assert keras_hub.inputs("gpt2", {}, CONFIG).inputs["token_ids"].shape == (128,)
    longest = {**generation, "prompt_length": 1020}
    assert keras_hub.inputs("gpt2", {}, CONFIG, longest).inputs["token_ids"].shape == (1020,)


def test_decoders_that_read_text_alone_are_known() -> None:
    assert {"gpt2", "llama", "gemma", "mistral", "opt"} <= set(keras_hub.architectures())
    assert not {"bart", "bert", "pali_gemma"} & set(keras_hub.architectures())


@pytest.mark.parametrize(
    ("architecture", "config", "sizes", "generation", "said"),
    [
        (None, {}, {}, None, "model.architecture: None is missing. Known: bloom, "),
        ("gpt3", {}, {}, None, "model.architecture: 'gpt3' is not an architecture of keras_hub. Did you mean 'gpt2'?"),
        ("gpt2", {"num_layers": 1}, {}, None, "lacks vocabulary_size, num_heads, hidden_dim, intermediate_dim"),
        ("gpt2", {**CONFIG, "num_layer": 1}, {}, None, "Did you mean 'model.config.num_layers'?"),
        ("gpt2", CONFIG, {"length": 1}, None, "inputs.length"),
        ("gpt2", CONFIG, {"sequence_length": 1025}, None, "inputs.sequence_length: 1025 is above the longest sequence"),
        ("gpt2", CONFIG, {"sequence_length": 8}, {"prompt_length": 9}, "differs from generation.prompt_length=9"),
        ("gpt2", CONFIG, {}, {"prompt_length": 1020, "new_tokens": 5}, "generation.new_tokens: 5 and a prompt of 1020 are above"),
        ("gpt2", CONFIG, {}, {"sampler": "gredy"}, "Did you mean 'greedy'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_error(
    architecture: str | None,
    config: dict[str, int],
    sizes: dict[str, int],
    generation: dict[str, Any] | None,
    said: str,
) -> None:
    with pytest.raises(UserError) as caught:
        keras_hub.inputs(architecture, sizes, config, generation)
    assert said in str(caught.value)
