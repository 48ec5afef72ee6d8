"""Counts the graph of an ONNX file as it was exported: before the run-time fuses and folds, which changes how it is computed.

Loops and branches are uncovered: what they run is not known from shapes. A node whose shapes the standard's rules do not tell is
uncovered too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sweeprof.backends.onnxruntime.costs import COSTS, FREE
from sweeprof.backends.onnxruntime.files import Exported
from sweeprof.backends.onnxruntime.graph import read
from sweeprof.counting.formulas import Formulas
from sweeprof.counting.graph import GraphFacts, cost_by, layer_table
from sweeprof.results.layers import LayerTable


def count_file(
    file: Exported, shapes: Sequence[tuple[int, ...]], named: dict[str, tuple[int, ...]], formulas: Formulas
) -> LayerTable:
    """The layers of a file for inputs of these shapes, in their order and by name.

    Raises:
        Exception: it is no ONNX file.
    """
    graph, facts = read(file, shapes, named), GraphFacts(file.types, file.weights, file.sizes)
    return layer_table(graph, facts, partial(cost_by, formulas=formulas, rules=COSTS, free=FREE))
