"""Output shapes of whole recurrent networks on the meta device, where torch itself would run every time step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sweeprof.backends.torch.layouts import new
from sweeprof.counting.formulas import Args


def _padded(args: Args, kwargs: Mapping[str, Any]) -> Any:
    """``(input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first)``; an LSTM's ``hx`` is a pair.

    The output lies in memory time step by time step, also where the batch comes first.
    """
    given, states, bidirectional, batch_first = args[0], args[1], args[7], args[8]
    if not given.is_meta or given.dim() != 3:
        return None
    hidden = states if isinstance(states, torch.Tensor) else states[0]
    width = hidden.shape[-1] * (2 if bidirectional else 1)
    samples, steps = given.shape[:2] if batch_first else reversed(given.shape[:2])
    output = new((steps, samples, width), given.dtype)
    return (output.transpose(0, 1) if batch_first else output, *_final(states, given))


def _packed(args: Args, kwargs: Mapping[str, Any]) -> Any:
    """``(data, batch_sizes, hx, params, has_biases, layers, dropout, train, bidirectional)``."""
    data, states, bidirectional = args[0], args[2], args[8]
    if not data.is_meta:
        return None
    hidden = states if isinstance(states, torch.Tensor) else states[0]
    output = new((data.shape[0], hidden.shape[-1] * (2 if bidirectional else 1)), data.dtype)
    return (output, *_final(states, data))


def _final(states: Any, given: torch.Tensor) -> list[torch.Tensor]:
    """States after the last step, in the shapes of those before the first."""
    before = [states] if isinstance(states, torch.Tensor) else states
    return [new(tuple(state.shape), given.dtype) for state in before]


RECURRENT = {
    **{f"aten::{kind}.input": _padded for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    **{f"aten::{kind}.data": _packed for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
"""Shortcut by qualified name of the overload, like those of shapes.py."""
