"""ONNX files whose counts depend on more than the shapes of their inputs: weights in branches, values that decide shapes, texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sweeprof
from support.onnx_graphs import floats

QUICK = sweeprof.Protocol(min_s=0.02, warmup_s=0.01)
FLOAT, INT, BOOL, TEXT = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING


def info(name: str, kind: int, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def saved(folder: Path, nodes: Any, inputs: Any, outputs: Any, weights: dict[str, Any], opset: int = 17) -> str:
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, held)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 2)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return str(path)


# Weights in graphs within nodes


def product(name: str, weight: Any, *, constant: bool, extra: Any = ()) -> Any:
    """A graph that multiplies the outer value ``v`` by a weight of its own, and by one of the graph around it."""
    nodes = [
        helper.make_node("MatMul", ["v", "W"], [f"{name}0"]),
        helper.make_node("MatMul", [f"{name}0", "S"], [name]),
    ]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["W"], value=numpy_helper.from_array(weight, "W")))
    held = [] if constant else [numpy_helper.from_array(weight, "W")]
    return helper.make_graph([*nodes, *extra], name, [], [info(name, FLOAT, None)], held)


def parameters(path: str, given: dict[str, Any]) -> Any:
    names = ["params/total", "size/params_bytes"]
    profile = sweeprof.profile(path, given, names, progress=False)
    return [profile[name].value for name in names]


@pytest.mark.parametrize("constant", [True, False])
def test_weights_of_branches_that_read_one_around_them(constant: bool, tmp_path: Path) -> None:
    branches = {
        "then_branch": product("t", floats(8, 6), constant=constant),
        "else_branch": product("e", floats(8, 6), constant=constant),
    }
    node = helper.make_node("If", ["c"], ["y"], **branches)
    given = [info("v", FLOAT, [3, 8]), info("c", BOOL, [])]
    path = saved(tmp_path, [node], given, [info("y", FLOAT, None)], {"S": floats(6, 4)})
    expected = 2 * 8 * 6 + 6 * 4
    assert parameters(path, {"v": floats(3, 8), "c": np.array(True)}) == [expected, 4 * expected]


def test_weights_of_a_branch_within_a_loop(tmp_path: Path) -> None:
    inner = helper.make_node(
        "If",
        ["ci"],
        ["vo"],
        then_branch=product("t", floats(8, 8), constant=False),
        else_branch=product("e", floats(8, 8), constant=True),
    )
    keep = helper.make_node("Identity", ["ci"], ["co"])
    states = [info("i", INT, []), info("ci", BOOL, []), info("v", FLOAT, [3, 8])]
    body = helper.make_graph([inner, keep], "body", states, [info("co", BOOL, []), info("vo", FLOAT, [3, 8])])
    loop = helper.make_node("Loop", ["n", "c", "x"], ["y"], body=body)
    weights = {"n": np.array(5), "c": np.array(True), "S": floats(8, 8)}
    path = saved(tmp_path, [loop], [info("x", FLOAT, [3, 8])], [info("y", FLOAT, [3, 8])], weights)
    assert parameters(path, {"x": floats(3, 8)}) == [3 * 64, 4 * 3 * 64]


def test_weights_of_a_scan(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["s", "W", "B"], ["g"]),
        helper.make_node("Add", ["g", "x_in"], ["s_out"]),
        helper.make_node("Identity", ["s_out"], ["scan"]),
    ]
    ends = [info("s", FLOAT, [1, 4]), info("x_in", FLOAT, [1, 4])]
    results = [info("s_out", FLOAT, [1, 4]), info("scan", FLOAT, [1, 4])]
    held = [numpy_helper.from_array(floats(4, 4), "W"), numpy_helper.from_array(floats(4), "B")]
    body = helper.make_graph(nodes, "body", ends, results, held)
    scan = helper.make_node("Scan", ["s0", "xs"], ["last", "all"], body=body, num_scan_inputs=1)
    given = [info("s0", FLOAT, [1, 4]), info("xs", FLOAT, [5, 1, 4])]
    path = saved(tmp_path, [scan], given, [info("last", FLOAT, None), info("all", FLOAT, None)], {})
    assert parameters(path, {"s0": floats(1, 4), "xs": floats(5, 1, 4)}) == [20, 80]


# Values that decide shapes


SHAPED: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any], int]] = {
    "sizes that are computed from a given number": (
        [
            helper.make_node("Mul", ["k", "two"], ["k2"]),
            helper.make_node("Concat", ["k2", "eight"], ["shape"], axis=0),
            helper.make_node("Expand", ["v", "shape"], ["e"]),
        ],
        {"v": floats(1, 8), "k": np.array([3])},
        {"two": np.array([2]), "eight": np.array([8])},
        6 * 40,
    ),
    "a slice to a given end": (
        [helper.make_node("Slice", ["v", "zero", "k", "zero"], ["e"])],
        {"v": floats(9, 8), "k": np.array([4], np.int64)},
        {"zero": np.array([0])},
        4 * 40,
    ),
    "repeats": ([helper.make_node("Tile", ["v", "k"], ["e"])], {"v": floats(2, 8), "k": np.array([5, 1])}, {}, 10 * 40),
    "the rows that a given mask keeps": (
        [helper.make_node("Compress", ["v", "k"], ["e"], axis=-2)],
        {"v": floats(4, 8), "k": np.array([True, False, True, True])},
        {},
        3 * 40,
    ),
    "the places of a given mask": (
        [
            helper.make_node("NonZero", ["k"], ["places"]),
            helper.make_node("Squeeze", ["places", "zero"], ["flat"]),
            helper.make_node("Gather", ["v", "flat"], ["e"]),
        ],
        {"v": floats(4, 8), "k": np.array([True, False, True, False])},
        {"zero": np.array([0])},
        2 * 40,
    ),
}


@pytest.mark.parametrize("case", SHAPED)
def test_given_values_decide_shapes(case: str, tmp_path: Path) -> None:
    nodes, given, weights, macs = SHAPED[case]
    nodes = [*nodes, helper.make_node("MatMul", ["e", "W"], ["y"])]
    kinds = {"f": FLOAT, "i": INT, "b": BOOL}
    inputs = [info(name, kinds[value.dtype.kind], value.shape) for name, value in given.items()]
    path = saved(tmp_path, nodes, inputs, [info("y", FLOAT, None)], {**weights, "W": floats(8, 5)})
    profile = sweeprof.profile(path, given, ["compute/macs", "compute/coverage"], progress=False)
    assert (profile["compute/macs"].value, profile["compute/coverage"].value) == (macs, 1.0)


def test_what_is_computed_from_given_values_is_counted_in_every_step(tmp_path: Path) -> None:
    """Unlike what is computed from constants alone."""
    nodes = [
        helper.make_node("Cast", ["k"], ["kf"], to=FLOAT),
        helper.make_node("Mul", ["kf", "c"], ["kc"]),
        helper.make_node("Mul", ["c", "c"], ["cc"]),
        helper.make_node("Add", ["kc", "cc"], ["y"]),
    ]
    path = saved(tmp_path, nodes, [info("k", INT, [4])], [info("y", FLOAT, None)], {"c": floats(4)})
    profile = sweeprof.profile(path, {"k": np.arange(4)}, ["compute/ops"], progress=False)
    assert [(o.name, o.calls) for row in profile.layers.rows for o in row.operators] == [("Mul", 1), ("Add", 1)]


# Texts


@pytest.mark.parametrize("texts", [np.array(["a", "b", "a"], dtype=object), np.array(["a", "b", "a"])])
def test_texts_beside_numbers(texts: Any, tmp_path: Path) -> None:
    known: dict[str, Any] = {"keys_strings": ["a", "b"], "values_int64s": [0, 1]}
    nodes = [
        helper.make_node("LabelEncoder", ["s"], ["i"], domain="ai.onnx.ml", **known),
        helper.make_node("Gather", ["E", "i"], ["g"]),
        helper.make_node("Add", ["g", "x"], ["a"]),
        helper.make_node("MatMul", ["a", "W"], ["y"]),
        helper.make_node("Identity", ["s"], ["same"]),
    ]
    inputs = [info("s", TEXT, ["n"]), info("x", FLOAT, ["n", 8])]
    outputs = [info("y", FLOAT, None), info("same", TEXT, None)]
    path = saved(tmp_path, nodes, inputs, outputs, {"E": floats(2, 8), "W": floats(8, 3)})
    given = sweeprof.Inputs(kwargs={"s": texts, "x": floats(3, 8)})
    profiler = sweeprof.Profiler(path, inputs=given, protocol=QUICK, progress=False)
    assert profiler.compute("compute/macs").value == 3 * 24
    assert profiler.compute("latency/forward").value
    for name in ("operators", "layer_times"):
        profiler.seen(name)


def test_a_classifier_of_texts_is_evaluated(tmp_path: Path) -> None:
    known: dict[str, Any] = {"keys_strings": ["a", "b"], "values_int64s": [0, 1]}
    nodes = [
        helper.make_node("LabelEncoder", ["s"], ["i"], domain="ai.onnx.ml", **known),
        helper.make_node("Gather", ["E", "i"], ["y"]),
    ]
    path = saved(
        tmp_path, nodes, [info("s", TEXT, ["n"])], [info("y", FLOAT, None)], {"E": np.eye(2, dtype=np.float32)}
    )
    texts, labels = np.array(["b", "a", "b"], dtype=object), np.array([1, 0, 0])
    profiler = sweeprof.Profiler(path, data={"test": [(texts, labels)]}, progress=False)
    assert profiler.compute("quality/accuracy").value == pytest.approx(2 / 3)
