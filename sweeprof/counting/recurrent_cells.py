"""The cost of recurrent cells, written by hand because their kernels hide the matrix products.

Per time step and sample, with input size I and hidden size H, a gate is two products, ``W x + b`` and ``U h + b'``, an addition
of the two and a nonlinearity. Textbook operations: sigmoid 3, tanh 7, relu 1.

* RNN: 1 gate.
* GRU: 3 gates; ``n = tanh(W x + r·(U h))`` multiplies once more, ``h' = (1 - z)·n + z·h`` takes 4. Without biases 15 H, with 21 H
  beside the products.
* LSTM: 4 gates (3 sigmoid, 1 tanh); ``c' = f·c + i·g`` takes 3, ``h' = o·tanh(c')`` takes 8. With biases 31 H. With a projection
  to P, ``h`` has size P and ``W h'`` is added.
"""

from __future__ import annotations

from dataclasses import dataclass

from sweeprof.counting.formulas import OperatorCost


@dataclass(frozen=True, slots=True)
class RecurrentCell:
    """The cost of one cell for each hidden unit, apart from its matrix products and biases."""

    gates: int
    flops: int
    """With every nonlinearity one."""
    ops: int


TANH = RecurrentCell(1, 1 + 1, 1 + 7)
RELU = RecurrentCell(1, 1 + 1, 1 + 1)
GRU = RecurrentCell(3, 3 + 3 + 1 + 4, 3 + 2 * 3 + 7 + 1 + 4)
LSTM = RecurrentCell(4, 4 + 4 + 3 + 2, 4 + 3 * 3 + 7 + 3 + 8)


def cost_of_steps(
    cell: RecurrentCell, steps: int, inputs: int, hidden: int, projected: int, biases: int
) -> OperatorCost:
    """Return the cost of ``steps`` cells from ``inputs`` inputs to ``hidden`` units, of which ``projected`` are fed back.

    Args:
        cell: which.
        steps: time steps times samples.
        inputs: I.
        hidden: H.
        projected: P, or ``hidden`` where there is no projection.
        biases: vectors added per gate, 0, 1 or 2.
    """
    outputs = steps * cell.gates * hidden
    macs = outputs * (inputs + projected)
    sums = 2 * outputs
    if projected != hidden:
        macs += steps * hidden * projected
        sums += steps * projected
    added = biases * outputs
    flops = 2 * macs + added + steps * hidden * cell.flops
    return macs, flops, 2 * macs - sums + added + steps * hidden * cell.ops
