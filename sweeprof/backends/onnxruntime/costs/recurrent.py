"""Recurrent networks, by hand; :mod:`sweeprof.counting.recurrent_cells` has the formulas."""

from __future__ import annotations

from sweeprof.backends.onnxruntime.costs.rule import Cost, Rule, argument, is_added, shape_of
from sweeprof.backends.onnxruntime.graph import OnnxNode
from sweeprof.counting.recurrent_cells import GRU, LSTM, RELU, TANH, RecurrentCell, cost_of_steps


def _network(cell: RecurrentCell, node: OnnxNode) -> Cost:
    """Inputs ``X (steps, batch, I)``, ``W (directions, gates·H, I)``, ``R (directions, gates·H, H)``, ``B`` of both products."""
    directions, rows, size = shape_of(argument(node, 1))
    hidden = rows // cell.gates
    steps = directions * argument(node).elements // shape_of(argument(node))[-1]
    macs, flops, ops = cost_of_steps(cell, steps, size, hidden, hidden, 2 if is_added(node.input(3)) else 0)
    # each of an LSTM's three: a multiplication and an addition
    peepholes = 2 * 3 * steps * hidden if node.input(7) is not None else 0
    return macs, flops + peepholes, ops + peepholes


def _rnn(node: OnnxNode) -> Cost:
    named = [name.decode() for name in node.attributes.get("activations", [b"Tanh"])]
    return _network(RELU if named[0] == "Relu" else TANH, node)


def _gru(node: OnnxNode) -> Cost:
    return _network(GRU, node)


def _lstm(node: OnnxNode) -> Cost:
    return _network(LSTM, node)


RULES: dict[str, Rule] = {"onnx::RNN": _rnn, "onnx::GRU": _gru, "onnx::LSTM": _lstm}
