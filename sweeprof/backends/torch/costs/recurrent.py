"""Recurrent networks and their cells, by hand; :mod:`sweeprof.counting.recurrent_cells` has the formulas."""

# every rule takes an operator's arguments, keyword arguments and result
from __future__ import annotations

import torch

from sweeprof.backends.torch.costs.rule import TorchRule, argument
from sweeprof.counting.formulas import Args, Kwargs, OperatorCost
from sweeprof.counting.recurrent_cells import GRU, LSTM, RELU, TANH, RecurrentCell, cost_of_steps


def _network(kind: RecurrentCell, steps: int, weights: list[torch.Tensor], has_biases: bool) -> OperatorCost:
    """Every layer and direction of a network; ``weights`` as torch lays them out: ``w_ih, w_hh[, b_ih, b_hh][, w_hr]`` each."""
    total = (0, 0, 0)
    index = 0
    while index < len(weights):
        w_ih, w_hh = weights[index], weights[index + 1]
        hidden, projected = w_hh.shape[0] // kind.gates, w_hh.shape[1]
        cost = cost_of_steps(kind, steps, w_ih.shape[1], hidden, projected, 2 if has_biases else 0)
        total = (total[0] + cost[0], total[1] + cost[1], total[2] + cost[2])
        index += 2 + 2 * has_biases + (projected != hidden)
    return total


def _rnn(kind: RecurrentCell) -> TorchRule:
    def rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
        """``(input, hx, params, has_biases, ...)``, packed: ``(data, batch_sizes, hx, params, has_biases, ...)``."""
        given = args[0]
        packed = isinstance(args[3], list | tuple)
        weights, has_biases = (args[3], args[4]) if packed else (args[2], args[3])
        return _network(kind, given.numel() // given.shape[-1], list(weights), has_biases)

    return rule


def _cell(kind: RecurrentCell) -> TorchRule:
    def rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
        """``(input, hx, w_ih, w_hh, b_ih, b_hh)``."""
        given, w_ih, w_hh = args[0], args[2], args[3]
        biases = sum(argument(args, position) is not None for position in (4, 5))
        return cost_of_steps(
            kind, given.numel() // given.shape[-1], w_ih.shape[1], w_hh.shape[1], w_hh.shape[1], biases
        )

    return rule


def _mkldnn(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """One layer and direction.

    ``(input, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, batch_sizes, mode, hidden, layers, has_biases, ...)``.
    """
    given, w_ih, mode, hidden = args[0], args[1], args[9], args[10]
    kind = {0: RELU, 1: TANH, 2: LSTM, 3: GRU}[mode]
    steps = given.numel() // given.shape[-1]
    return cost_of_steps(kind, steps, w_ih.shape[1], hidden, hidden, 2 if args[12] else 0)


def _thnn_lstm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """CUDA's fused gates, after the matrix products: ``(input_gates, hidden_gates, cx, input_bias, hidden_bias)``."""
    units = args[2].numel()
    added = 4 * sum(argument(args, position) is not None for position in (3, 4))
    return 0, units * (LSTM.flops + added), units * (LSTM.ops + added)


def _quantized(kind: RecurrentCell) -> TorchRule:
    """Weights of 8 bits, packed: an integer multiply-accumulate is one, and no FLOP. The rest is done in floating point."""

    def rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
        """``(input, hx, params, has_biases, layers, dropout, train, bidirectional, ...)``; packed: one more before hx."""
        first = 2 if isinstance(args[1], torch.Tensor) and not args[1].is_floating_point() else 1
        hidden = (args[first] if isinstance(args[first], torch.Tensor) else args[first][0]).shape[-1]
        biases = 2 if args[first + 2] else 0
        layers, directions = args[first + 3], 2 if args[first + 6] else 1
        size = args[0].shape[-1]
        steps = directions * args[0].numel() // size
        total = (0, 0, 0)
        for given in (size, *(hidden * directions,) * (layers - 1)):
            macs, _, ops = cost_of_steps(kind, steps, given, hidden, hidden, biases)
            total = (total[0] + macs, total[1] + steps * hidden * kind.flops, total[2] + ops)
        return total

    return rule


def _quantized_cell(kind: RecurrentCell) -> TorchRule:
    def rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
        """``(input, hx, w_ih, w_hh, b_ih, b_hh)``, where the weights are packed."""
        hidden = (args[1] if isinstance(args[1], torch.Tensor) else args[1][0]).shape[-1]
        size = args[0].shape[-1]
        steps = args[0].numel() // size
        macs, _, ops = cost_of_steps(kind, steps, size, hidden, hidden, 2)
        return macs, steps * hidden * kind.flops, ops

    return rule


def _mkldnn_backward(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, w_ih, w_hh, b_ih, b_hh, ..., reverse, mode, hidden, layers, has_biases, ...)``: twice the forward's products."""
    macs, flops, ops = _mkldnn((*args[:8], None, *args[14:]), kwargs, output)
    return 2 * macs, 2 * flops, 2 * ops


RULES: dict[str, TorchRule] = {
    "aten::rnn_tanh": _rnn(TANH),
    "aten::rnn_relu": _rnn(RELU),
    "aten::gru": _rnn(GRU),
    "aten::lstm": _rnn(LSTM),
    "aten::rnn_tanh_cell": _cell(TANH),
    "aten::rnn_relu_cell": _cell(RELU),
    "aten::gru_cell": _cell(GRU),
    "aten::lstm_cell": _cell(LSTM),
    "aten::mkldnn_rnn_layer": _mkldnn,
    "aten::mkldnn_rnn_layer_backward": _mkldnn_backward,
    "aten::_thnn_fused_lstm_cell": _thnn_lstm,
    "aten::quantized_lstm": _quantized(LSTM),
    "aten::quantized_gru": _quantized(GRU),
    "quantized::quantized_lstm_cell_dynamic": _quantized_cell(LSTM),
    "quantized::quantized_gru_cell_dynamic": _quantized_cell(GRU),
    "quantized::quantized_rnn_tanh_cell_dynamic": _quantized_cell(TANH),
    "quantized::quantized_rnn_relu_cell_dynamic": _quantized_cell(RELU),
}
