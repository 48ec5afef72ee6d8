"""Recurrent networks, by hand; per step and sample, for input size I and hidden size H, each direction.

A gate is two products, ``W x`` and ``R h``, their biases, an addition of the two and a nonlinearity; sigmoid is 3 textbook
operations, tanh 7, relu 1. RNN has 1 gate. GRU has 3, multiplies once more, and combines with 4. LSTM has 4 (3 sigmoid, 1 tanh),
``c' = f·c + i·g`` takes 3 and ``h' = o·tanh(c')`` 8; each of its peepholes a multiplication and an addition.
"""

from __future__ import annotations

from dataclasses import dataclass

from sweeprof.backends.onnxruntime.costs.rule import Cost, Rule, given, is_added, shape_of
from sweeprof.backends.onnxruntime.graph import Node


@dataclass(frozen=True, slots=True)
class _Kind:
    """What one cell does for each hidden unit beside its matrix products and biases."""

    gates: int
    flops: int
    """With every nonlinearity one."""
    ops: int


_TANH = _Kind(1, 1 + 1, 1 + 7)
_RELU = _Kind(1, 1 + 1, 1 + 1)
_GRU = _Kind(3, 3 + 3 + 1 + 4, 3 + 2 * 3 + 7 + 1 + 4)
_LSTM = _Kind(4, 4 + 4 + 3 + 2, 4 + 3 * 3 + 7 + 3 + 8)


def _network(kind: _Kind, node: Node) -> Cost:
    """Inputs ``X (steps, batch, I)``, ``W (directions, gates·H, I)``, ``R (directions, gates·H, H)``, ``B`` of both products."""
    cells = given(node).elements // shape_of(given(node))[-1]
    directions, rows, size = shape_of(given(node, 1))
    hidden = rows // kind.gates
    outputs = directions * cells * rows
    macs = outputs * (size + hidden)
    added = 2 * outputs if is_added(node.input(3)) else 0
    peepholes = 2 * 3 * directions * cells * hidden if node.input(7) is not None else 0
    units = directions * cells * hidden
    flops = 2 * macs + added + units * kind.flops + peepholes
    return macs, flops, 2 * macs - 2 * outputs + added + units * kind.ops + peepholes


def _rnn(node: Node) -> Cost:
    named = [name.decode() for name in node.attributes.get("activations", [b"Tanh"])]
    return _network(_RELU if named[0] == "Relu" else _TANH, node)


def _gru(node: Node) -> Cost:
    return _network(_GRU, node)


def _lstm(node: Node) -> Cost:
    return _network(_LSTM, node)


RULES: dict[str, Rule] = {"onnx::RNN": _rnn, "onnx::GRU": _gru, "onnx::LSTM": _lstm}
