"""Prompts of transformers: lengths, limits and arguments are checked before anything is measured."""

from __future__ import annotations

from typing import Any

import pytest

from sweeprof.errors import UserError
from sweeprof.model_sources.transformers import inputs

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}


def described(
    architecture: str, task: str | None, generation: dict[str, Any], **sizes: int
) -> dict[str, tuple[int, ...]]:
    config = {} if architecture in ("t5", "whisper") else SMALL
    found = inputs(architecture, None, task, sizes, config, {"prompt_length": None, "new_tokens": 4, **generation})
    return {name: spec.shape for name, spec in found.inputs.items()}


def test_the_prompt_has_its_length() -> None:
    assert described("llama", "text-generation", {"prompt_length": 24}) == {"input_ids": (24,), "attention_mask": (24,)}
    assert described("llama", "text-generation", {}, sequence_length=9)["input_ids"] == (9,)
    assert described("t5", "text2text-generation", {"prompt_length": 24})["input_ids"] == (24,)
    assert described("whisper", "speech-to-text", {})["input_features"] == (80, 3000)


def test_a_function_of_ones_own_may_have_any_arguments() -> None:
    assert described("bert", "fill-mask", {"function": "my.generate", "top": 3})["input_ids"] == (128,)


@pytest.mark.parametrize(
    ("architecture", "task", "generation", "sizes", "said"),
    [
        ("llama", "text-generation", {"prompt_length": 8}, {"sequence_length": 9}, "inputs.sequence_length: 9 differs from"),
        ("whisper", "speech-to-text", {"prompt_length": 8}, {}, "generation.prompt_length: 8 has no effect: the prompt of "),
        ("whisper", "speech-to-text", {}, {"audio_frames": 100}, "audio_frames: 100 is not the length that this model takes"),
        ("gpt2", "text-generation", {"prompt_length": 1000, "new_tokens": 26}, {}, "generation.new_tokens: 26 and a prompt of"),
        ("gpt2", "text-generation", {"prompt_length": 1025}, {}, "sequence_length: 1025 is above the longest sequence"),
        ("llama", "text-generation", {"num_beam": 2}, {}, "Did you mean 'generation.num_beams'?"),
        ("llama", "text-generation", {"new_token": 2}, {}, "Did you mean 'generation.new_tokens'?"),
        ("llama", None, {}, {}, "LlamaModel has no generate"),
        ("bert", "fill-mask", {}, {}, "mode: 'generation' needs a model that generates text, and BertForMaskedLM"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_error(
    architecture: str, task: str | None, generation: dict[str, Any], sizes: dict[str, int], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        described(architecture, task, generation, **sizes)
    assert said in str(caught.value)


def test_the_longest_output_fits() -> None:
    """The last token is not read, so that its position need not exist."""
    assert described("gpt2", "text-generation", {"prompt_length": 1000, "new_tokens": 25})["input_ids"] == (1000,)
