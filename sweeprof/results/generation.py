"""Generation: the times of its tokens, and what its prefill and one decode step compute and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sweeprof.results.record import Stored


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """The tokens of the generations of a round, and the memory of the cache at their end."""

    prompt_tokens: int | None
    """Of each sequence; None where the prompt is not text."""
    new_tokens: int
    """Of each sequence."""
    seconds: tuple[tuple[float, ...], ...]
    """Of every generation of the samples, in the order taken: from its beginning to the first token, then from each token to the
    next; one value per decode step, which makes a token of every sequence."""
    cache_bytes: int | None = None
    """Of the keys and values that the cache holds, or reserves, after the last step."""
    cache_reason: str | None = None
    """Why :attr:`cache_bytes` is not known."""

    @property
    def steps(self) -> int:
        """Steps of a generation: as many as new tokens, unless a step makes several tokens, as in assisted decoding."""
        return max(map(len, self.seconds))


@dataclass(frozen=True, slots=True)
class Generation(Stored):
    """Counts of the prefill, and of one decode step at the middle of the output; of the whole batch."""

    sequences: int
    """In the batch."""
    prefill_macs: int
    prefill_flops: int
    decode_macs: int
    decode_flops: int
    position: int
    """Tokens that the cache holds of each sequence when the decode step begins."""
    weight_bytes: int | None
    """Bytes of the parameters that the decode step reads, each once; of an embedding the rows that are looked up."""
    cache_bytes: int | None
    """Bytes of the cache that the decode step reads: keys and values, the new ones included."""
    bytes_reason: str | None = None
    """Why the bytes are not known."""
    uncovered: Mapping[str, int] = field(default_factory=dict)
    """Calls per operator for which no formula is known."""
    method: str = ""
    """How it was counted: over shapes, or in a real forward."""
