"""What is counted of ONNX graphs: domains, weights wherever they are stored, rows, shapes that values decide, texts, operators."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sweeprof
from support.onnx_graphs import Shape, call, cost_of_call, counted, floats, given, graph_of, node, one, saved
from sweeprof import Cost
from sweeprof.backends.onnxruntime import graph
from sweeprof.backends.onnxruntime.counting import cost_of, count_file
from sweeprof.backends.onnxruntime.files import Exported, OnnxFile
from sweeprof.counting.formulas import DEFAULTS, Formulas
from sweeprof.errors import Unsupported
from sweeprof.results.layer_times import ROOT

QUICK = sweeprof.Protocol(min_s=0.02, warmup_s=0.01)
BATCH_NORM = {name: floats(4) for name in ("s", "b", "m", "v")}


def run(path: str, **arrays: Any) -> Any:
    """The first result on ONNX Runtime."""
    return onnxruntime.InferenceSession(path).run(None, arrays)[0]


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no ONNX file nowhere\.onnx"):
        OnnxFile("nowhere.onnx").known()


# Operators and their order


def test_no_silent_zero(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "a", "b", "relu"),
        node("Mystery", "b", "c", "mystery", domain="mine"),
        node("Relu", "c", "d", "after"),
        node("Det", "a", "y", "det"),
        *(node(op, "a", f"my{op}", domain="mine") for op in ("Relu", "Identity")),
    ]
    table = counted(saved(tmp_path, nodes, {"a": (2, 3, 3)}, {}, ["d", "y", "myRelu", "myIdentity"]), (2, 3, 3))
    unknown_shape, others = {"Relu": 1}, {"Det": 1, **{f"mine::{op}": 1 for op in ("Mystery", "Relu", "Identity")}}
    assert table.uncovered == unknown_shape | others
    assert (table.flops, table.liveness) == (18, None)
    assert table.coverage == pytest.approx(1 / 6)


@pytest.mark.parametrize(("of_node", "of_file"), [("", "ai.onnx"), ("ai.onnx", "")])
def test_the_standards_domain_has_two_names(of_node: str, of_file: str, tmp_path: Path) -> None:
    path = saved(tmp_path, [node("Gemm", "a w", "y", "product")], {"a": (3, 8)}, {"w": floats(8, 5)})
    model = onnx.load(path)
    model.graph.node[0].domain = of_node
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid(of_file, 17))
    onnx.save(model, path)
    table = counted(path, (3, 8))
    shape = run(path, a=floats(3, 8)).shape
    assert (table.macs, table.uncovered, table.rows[0].output_shapes) == (120, {}, (shape,))


def test_as_many_shapes_as_the_graph_has_inputs(tmp_path: Path) -> None:
    """An input that nothing is given for has open dimensions, and they are no zeros."""
    path = saved(tmp_path, [node("MatMul", "x z", "y", "product")], {"x": (2, 3), "z": (3, 4)}, {})
    assert counted(path, (2, 3), (3, 4)).macs == 24
    for shapes in ([(2, 3)], [(2, 3), (3, 4), (1,)]):
        with pytest.raises(Unsupported, match=f"^the graph takes x, z, and {len(shapes)} tensors are given$"):
            counted(path, *shapes)


def test_a_formula_of_the_users(tmp_path: Path) -> None:
    def mystery(inputs: Any, attributes: Any, outputs: Any) -> Cost:
        return Cost(macs=inputs[0].elements * attributes["k"])

    path = saved(tmp_path, [node("Mystery", "a", "y", "mystery", domain="mine", k=5)], {"a": (2, 3)}, {})
    table = counted(path, (2, 3), formulas=Formulas({"mine::Mystery": mystery}))
    assert (table.macs, table.flops, table.uncovered) == (30, 60, {})


def test_nodes_in_any_order(tmp_path: Path) -> None:
    """ONNX Runtime runs a file whose nodes are not in order, too."""
    nodes = [
        node("MatMul", "c w", "y", "/second/MatMul"),
        node("Relu", "b", "c", "/first/Relu"),
        node("MatMul", "a w", "b", "/first/MatMul"),
    ]
    path = saved(tmp_path, nodes, {"a": (2, 4)}, {"w": floats(4, 4)})
    onnxruntime.InferenceSession(path)
    table = counted(path, (2, 4))
    assert (table.macs, table.flops, table.uncovered) == (64, 136, {})
    assert [row.path for row in table.rows] == [ROOT, "first", "second"]


def test_a_result_that_is_omitted(tmp_path: Path) -> None:
    """As exporters write a recurrent network of which only the last state is needed."""
    weights = {"w": floats(1, 48, 8), "r": floats(1, 48, 16)}
    path = saved(tmp_path, [node("GRU", "a w r", "- y", "gru", hidden_size=16)], {"a": (5, 4, 8)}, weights)
    table = counted(path, (5, 4, 8))
    assert (table.macs, table.uncovered, table.rows[0].output_shapes) == (23_040, {}, ((1, 4, 16),))


def test_the_module_of_a_node_that_an_optimiser_made(tmp_path: Path) -> None:
    """Its result has the name that the last of the nodes gave it which it replaces."""
    nodes = [
        node("MatMul", "a w", "/stage/Mul_output_0", "/stage/MatMul/MatMulScaleFusion/"),
        node("FastGelu", "/stage/Mul_output_0", "/act/Mul_output_0", "FastGelu", domain="com.microsoft"),
        node("Relu", "/act/Mul_output_0", "y", "last"),
    ]
    table = counted(saved(tmp_path, nodes, {"a": (3, 8)}, {"w": floats(8, 5)}), (3, 8))
    assert [(row.path, row.flops) for row in table.rows] == [(ROOT, 15), ("stage", 240), ("act", 15)]


def test_peak_live_bytes_by_hand(tmp_path: Path) -> None:
    """``a`` (24 elements) is not counted; a view has no memory of its own, and keeps c alive until y is made."""
    nodes = [
        node("Relu", "a", "b", "/first/Relu"),
        node("Concat", "b b b", "c", "/second/Concat", axis=1),
        node("Flatten", "c", "f", "/second/Flatten"),
        node("MatMul", "f w", "y", "/third/MatMul"),
    ]
    table = counted(saved(tmp_path, nodes, {"a": (2, 3, 4)}, {"w": floats(36, 20)}), (2, 3, 4))
    assert table.liveness is not None
    assert (table.liveness.peak_bytes, table.liveness.peak_at) == (4 * (72 + 40), "third")
    assert (table.liveness.input_bytes, table.act_bytes) == (96, 4 * (24 + 72 + 40))


# Weights


def held(name: str, value: Any) -> Any:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value), name))


def test_parameters_buffers_and_constants_of_a_file_that_does_not_tell(tmp_path: Path) -> None:
    """Weights in constant nodes, as some exporters write them, count like initializers."""
    nodes = [
        node("Conv", "a w wb", "c", "/stage/stage.0/conv/Conv"),
        node("BatchNormalization", "c s b m v", "n", "/stage/stage.0/bn/BatchNormalization"),
        node("Mul", "n two", "d", "/stage/Mul"),
        node("GlobalAveragePool", "d", "p", "/pool/GlobalAveragePool"),
        node("Reshape", "p shape", "f", "/Reshape"),
        node("Transpose", "dense", "t", "/dense/Transpose", perm=[1, 0]),
        node("MatMul", "f t", "h", "/dense/MatMul"),
        node("Add", "h db", "e", "/dense/Add"),
        node("Gemm", "e g", "y", "/head/Gemm"),
    ]
    weights = {"w": floats(4, 3, 3, 3), "wb": floats(4), **BATCH_NORM, "two": np.float32(2), "shape": np.array([0, -1])}
    # A matrix of 5,000 elements is larger than what is computed from constants.
    weights |= {"dense": floats(1250, 4), "db": floats(1250), "g": floats(1250, 2)}
    path = saved(tmp_path, nodes, {"a": (2, 3, 8, 8)}, weights)
    table = counted(path, (2, 3, 8, 8))
    params = 4 * 27 + 4 + 2 * 4 + 5000 + 1250 + 2500
    assert (table.params, table.params_bytes, table.buffers, table.trainable) == (params, 4 * params, 8, params)
    assert [(row.path, row.params, row.buffers, row.macs) for row in table.rows] == [
        *((ROOT, 0, 0, 0), ("stage", 0, 0, 0), ("stage.0", 0, 0, 0)),
        ("stage.0.conv", 112, 0, 2 * 4 * 36 * 27),
        *(("stage.0.bn", 8, 8, 0), ("pool", 0, 0, 0)),
        ("dense", 6250, 0, 2 * 1250 * 4),
        ("head", 2500, 0, 2 * 1250 * 2),
    ]
    assert table.inclusive().rows[1].macs == 2 * 4 * 36 * 27
    model = onnx.load(path)
    constants = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in model.graph.initializer]
    constants += model.graph.node
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.node.extend(constants)
    onnx.save(model, path)
    assert counted(path, (2, 3, 8, 8)) == table


def test_constants_of_the_code_are_no_parameters(tmp_path: Path) -> None:
    """As torch's exporter writes tensors that a forward makes, scalars, shapes and settings of operators."""
    nodes = [
        held("mean", floats(1, 2, 1, 1)),
        held("shift", floats(6)),
        held("half", np.float32(0.5)),
        held("scales", np.array([1, 1, 2, 2], np.float32)),
        held("shape", np.array([0, 2, -1, 6])),
        held("w", floats(6, 5)),
        node("Sub", "a mean", "b"),
        node("Resize", "b - scales", "r"),
        node("Reshape", "r shape", "q"),
        node("Mul", "q half", "h"),
        node("Add", "h shift", "s"),
        node("MatMul", "s w", "y"),
    ]
    table = counted(saved(tmp_path, nodes, {"a": (1, 2, 3, 3)}, {}), (1, 2, 3, 3))
    assert (table.params, table.buffers, table.macs, table.uncovered) == (30, 0, 2 * 6 * 6 * 5, {})


def test_a_constant_of_unknown_shape(tmp_path: Path) -> None:
    """It is computed by an operator of another domain."""
    nodes = [
        held("c", floats(5)),
        node("Mystery", "c", "d", domain="mine"),
        node("MatMul", "a w", "b"),
        node("Add", "b d", "y"),
    ]
    table = counted(saved(tmp_path, nodes, {"a": (3, 8)}, {"w": floats(8, 5)}), (3, 8))
    assert (table.params, table.macs, table.uncovered) == (40, 120, {"mine::Mystery": 1, "Add": 1})


@pytest.mark.parametrize(
    ("nodes", "shape", "weights", "figures"),
    [
        # such as exporters make where a convolution has none
        (
            [node("ConstantOfShape", "size", "zeros"), node("Conv", "a w zeros", "y")],
            (1, 3, 8, 8),
            {"size": np.array([4]), "w": floats(4, 3, 3, 3)},
            (4 * 27, 3888, 7776),
        ),
        # as torch's exporter wrote a product without a bias when Gemm needed one
        (
            [held("w", floats(8, 5)), held("zero", floats(5) * 0), node("Gemm", "a w zero", "y")],
            (3, 8),
            {},
            (40, 120, 240),
        ),
    ],
    ids=["computed", "constant"],
)
def test_a_bias_of_zeros_is_none(nodes: Any, shape: Any, weights: Any, figures: Any, tmp_path: Path) -> None:
    """Parameters, MACs and FLOPs; a bias that is a weight counts, whatever it holds."""
    table = counted(saved(tmp_path, nodes, {"a": shape}, weights), shape)
    assert (table.params, table.macs, table.flops) == figures


def test_a_constant_node_with_its_values_in_another_file(tmp_path: Path) -> None:
    path = saved(tmp_path, [held("w", floats(100, 50)), node("MatMul", "a w", "y", "product")], {"a": (3, 100)}, {})
    external: dict[str, Any] = {"size_threshold": 0, "convert_attribute": True, "location": "w.data"}
    onnx.save(onnx.load(path), path, save_as_external_data=True, **external)
    table = counted(path, (3, 100))
    assert (table.params, table.macs) == (5000, 3 * 100 * 50)


@pytest.mark.parametrize("name", ["model.onnx.data", "model.onnx_data", "w.bin"])
def test_the_size_of_a_file_includes_the_file_of_its_weights(name: str, tmp_path: Path) -> None:
    """Whatever a tool has called it."""
    path = saved(tmp_path, [node("MatMul", "a w", "y")], {"a": (3, 100)}, {"w": floats(100, 50)})
    assert OnnxFile(path).known().artifact().bytes == Path(path).stat().st_size
    onnx.save(onnx.load(path), path, save_as_external_data=True, size_threshold=0, location=name)
    assert OnnxFile(path).known().artifact().bytes == Path(path).stat().st_size + 4 * 5000
    assert (tmp_path / name).stat().st_size == 4 * 5000


def test_a_sparse_weight_counts_with_its_zeros(tmp_path: Path) -> None:
    """ONNX Runtime expands it, and multiplies all of it; PyTorch's sparse parameters count so, too."""
    weight = np.zeros((8, 4), np.float32)
    places = np.array([0, 3, 9, 20, 31])
    weight.ravel()[places] = np.arange(1, 6)
    stored = helper.make_sparse_tensor(
        numpy_helper.from_array(weight.ravel()[places], "w"), numpy_helper.from_array(places, "places"), weight.shape
    )
    path = saved(tmp_path, [node("MatMul", "a w", "y", "/dense/MatMul")], {"a": (3, 8)}, {})
    model = onnx.load(path)
    model.graph.sparse_initializer.append(stored)
    onnx.save(model, path)
    np.testing.assert_array_equal(run(path, a=floats(3, 8)), floats(3, 8) @ weight)
    table = counted(path, (3, 8))
    assert (table.params, table.params_bytes, table.macs, table.flops) == (32, 128, 96, 192)
    assert {row.path: row.params for row in table.rows} == {ROOT: 0, "dense": 32}


def test_weights_of_four_bits_take_half_a_byte(tmp_path: Path) -> None:
    """The file has two in a byte; numpy has each in a byte of its own."""
    nodes = [
        node("DequantizeLinear", "w scale", "k", "/dense/DequantizeLinear"),
        node("MatMul", "a k", "y", "/dense/MatMul"),
    ]
    path = saved(tmp_path, nodes, {"a": (3, 8)}, {"scale": np.float32(0.1)})
    model = onnx.load(path)
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, [8, 6], [1] * 48))
    onnx.save(model, path)
    table = counted(path, (3, 8))
    assert (table.params, table.params_bytes, table.macs) == (48, 24, 3 * 8 * 6)


def test_a_weight_that_is_read_twice_counts_once(tmp_path: Path) -> None:
    nodes = [node("MatMul", "a w", "b", "/first/MatMul"), node("MatMul", "b w", "y", "/second/MatMul")]
    table = counted(saved(tmp_path, nodes, {"a": (2, 4)}, {"w": floats(4, 4)}), (2, 4))
    assert (table.params, table.macs) == (16, 64)
    assert [(row.path, row.params) for row in table.rows] == [(ROOT, 0), ("first", 16), ("second", 0)]


def test_an_initializer_that_nothing_reads(tmp_path: Path) -> None:
    """As optimisers leave them behind; what a branch reads is read."""
    branch = helper.make_graph([node("Identity", "v", "r")], "branch", [], [helper.make_empty_tensor_value_info("r")])
    nodes = [
        node("MatMul", "a w", "y", "product"),
        node("If", "yes", "z", "if", then_branch=branch, else_branch=branch),
    ]
    weights = {"w": floats(8, 5), "v": floats(7), "left": floats(8, 9), "yes": np.array(True)}
    assert counted(saved(tmp_path, nodes, {"a": (3, 8)}, weights, ["y", "z"]), (3, 8)).params == 40 + 7


def test_the_roles_that_an_export_tells(tmp_path: Path) -> None:
    weights = {"head.w": floats(4, 3), "head.c": floats(3)}
    path = saved(tmp_path, [node("Gemm", "a head.w head.c", "y", "gemm")], {"a": (2, 4)}, weights)
    roles: Any = {"head.w": "frozen", "head.c": "parameter"}
    file = Exported(path, paths={"gemm": "head"}, weights=roles, types={"head": "Linear"})
    table = count_file(file, [(2, 4)], {}, DEFAULTS)
    assert (table.params, table.trainable) == (15, 3)
    assert [(row.path, row.type, row.params, row.frozen) for row in table.rows] == [
        (ROOT, "Graph", 0, 0),
        ("head", "Linear", 15, 12),
    ]


def test_an_export_without_weights_has_constants_and_no_parameters(tmp_path: Path) -> None:
    scales = {"scales": np.array([1, 1, 2, 2], np.float32)}
    path = saved(tmp_path, [node("Resize", "a - scales", "y", "resize")], {"a": (1, 2, 4, 4)}, scales)
    for file, params in ((Exported(path, types={"": "Upsample"}), 0), (Exported(path), 4)):
        assert count_file(file, [(1, 2, 4, 4)], {}, DEFAULTS).params == params


# Weights in graphs within nodes


def product(name: str, weight: Any, *, constant: bool) -> Any:
    """A graph that multiplies the outer value ``v`` by a weight of its own, and by one of the graph around it."""
    own = [held("W", weight)] if constant else []
    nodes = [*own, node("MatMul", "v W", f"{name}0"), node("MatMul", f"{name}0 S", name)]
    return inner_graph(name, nodes, [], [name], {} if constant else {"W": weight})


def inner_graph(name: str, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[str], weights: Any) -> Any:
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    results = [helper.make_empty_tensor_value_info(output) for output in outputs]
    return helper.make_graph(nodes, name, inputs, results, stored)


def figures(path: str, arrays: dict[str, Any], *names: str) -> list[Any]:
    profile = sweeprof.profile(path, arrays, names, progress=False)
    return [profile[name].value for name in names]


def test_weights_of_a_branch_within_a_loop(tmp_path: Path) -> None:
    branches = {
        "then_branch": product("t", floats(8, 8), constant=False),
        "else_branch": product("e", floats(8, 8), constant=True),
    }
    nodes = [node("If", "ci", "vo", **branches), node("Identity", "ci", "co")]
    states = [given(*state) for state in (("i", np.int64(0)), ("ci", np.bool_(1)), ("v", floats(3, 8)))]
    body = inner_graph("body", nodes, states, ["co", "vo"], {})
    weights = {"n": np.array(5), "c": np.array(True), "S": floats(8, 8)}
    path = saved(tmp_path, [node("Loop", "n c x", "y", body=body)], {"x": floats(3, 8)}, weights)
    assert figures(path, {"x": floats(3, 8)}, "params/total", "size/params_bytes") == [3 * 64, 4 * 3 * 64]


# Values that decide shapes


def test_shapes_follow_the_batch_through_arithmetic_on_them(tmp_path: Path) -> None:
    """As exporters flatten: the shape of the input, sliced and joined, is that of a reshape."""
    nodes = [
        node("Shape", "a", "s", "shape", end=1),
        node("Concat", "s rest", "t", "concat", axis=0),
        node("Reshape", "a t", "f", "reshape"),
        node("MatMul", "f w", "y", "product"),
    ]
    path = saved(tmp_path, nodes, {"a": (1, 3, 4)}, {"rest": np.array([-1]), "w": floats(12, 5)})
    for batch in (1, 7):
        table = counted(path, (batch, 3, 4))
        assert (table.macs, table.uncovered) == (batch * 60, {})
        assert table.rows[0].output_shapes == ((batch, 5),)


FROM_ZERO = {"zero": np.array([0])}
SHAPED: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any], int]] = {
    "sizes that are computed from a given number": (
        [node("Mul", "k two", "k2"), node("Concat", "k2 eight", "shape", axis=0), node("Expand", "v shape", "e")],
        {"v": floats(1, 8), "k": np.array([3])},
        {"two": np.array([2]), "eight": np.array([8])},
        6,
    ),
    "a slice to a given end": (
        [node("Slice", "v zero k zero", "e")], {"v": floats(9, 8), "k": np.array([4], np.int64)}, FROM_ZERO, 4,
    ),
    "repeats": ([node("Tile", "v k", "e")], {"v": floats(2, 8), "k": np.array([5, 1])}, {}, 10),
    "the rows that a given mask keeps": (
        [node("Compress", "v k", "e", axis=-2)], {"v": floats(4, 8), "k": np.array([True, False, True, True])}, {}, 3,
    ),
    "the places of a given mask": (
        [node("NonZero", "k", "places"), node("Squeeze", "places zero", "flat"), node("Gather", "v flat", "e")],
        {"v": floats(4, 8), "k": np.array([True, False, True, False])},
        FROM_ZERO,
        2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SHAPED)
def test_given_values_decide_shapes(case: str, tmp_path: Path) -> None:
    nodes, arrays, weights, rows = SHAPED[case]
    path = saved(tmp_path, [*nodes, node("MatMul", "e W", "y")], arrays, {**weights, "W": floats(8, 5)}, opset=17)
    assert figures(path, arrays, "compute/macs", "compute/coverage") == [rows * 40, 1.0]


def test_what_is_computed_from_given_values_is_counted_in_every_step(tmp_path: Path) -> None:
    """Unlike what is computed from constants alone."""
    nodes = [
        node("Cast", "k", "kf", to=TensorProto.FLOAT),
        node("Mul", "kf c", "kc"),
        node("Mul", "c c", "cc"),
        node("Add", "kc cc", "y"),
    ]
    path = saved(tmp_path, nodes, {"k": np.arange(4)}, {"c": floats(4)})
    profile = sweeprof.profile(path, {"k": np.arange(4)}, ["compute/ops"], progress=False)
    assert [(o.name, o.calls) for row in profile.layers.rows for o in row.operators] == [("Mul", 1), ("Add", 1)]


# Texts


ENCODED = node("LabelEncoder", "s", "i", domain="ai.onnx.ml", keys_strings=["a", "b"], values_int64s=[0, 1])


@pytest.mark.parametrize("texts", [np.array(["a", "b", "a"], dtype=object), np.array(["a", "b", "a"])])
def test_texts_beside_numbers(texts: Any, tmp_path: Path) -> None:
    nodes = [
        ENCODED,
        node("Gather", "E i", "g"),
        node("Add", "g x", "a"),
        node("MatMul", "a W", "y"),
        node("Identity", "s", "same"),
    ]
    arrays = {"s": texts, "x": floats(3, 8)}
    path = saved(tmp_path, nodes, arrays, {"E": floats(2, 8), "W": floats(8, 3)}, ["y", "same"], opset=17)
    profiler = sweeprof.Profiler(path, inputs=sweeprof.Inputs(kwargs=arrays), protocol=QUICK, progress=False)
    assert profiler.compute("compute/macs").value == 3 * 24
    assert profiler.compute("latency/forward").value
    for name in ("operators", "layer_times"):
        profiler.seen(name)


def test_a_classifier_of_texts_is_evaluated(tmp_path: Path) -> None:
    texts, labels = np.array(["b", "a", "b"], dtype=object), np.array([1, 0, 0])
    path = saved(tmp_path, [ENCODED, node("Gather", "E i", "y")], {"s": texts}, {"E": np.eye(2, dtype=np.float32)})
    profiler = sweeprof.Profiler(path, data={"test": [(texts, labels)]}, progress=False)
    assert profiler.compute("quality/accuracy").value == pytest.approx(2 / 3)


# Costs of operators of ONNX and of those that ONNX Runtime adds, written out by hand, and the shapes that it computes itself


IMAGE: list[Shape] = [(2, 3, 4, 4)]
N = 2 * 3 * 4 * 4
NORM = {name: floats(3) for name in ("s", "b", "m", "v")}
DOUBLED = {"": None, "scales": np.array([1, 1, 2, 2], np.float32)}
GRU = {"w": floats(1, 48, 8), "r": floats(1, 48, 16)}
RNN = {"w": floats(1, 16, 8), "r": floats(1, 16, 16)}
# MACs, FLOPs and operations of shapes and weights
GRAPHS: list[tuple[str, list[Shape], dict[str, Any], dict[str, Any], tuple[int, int, int]]] = [
    ("MatMul", [(3, 8)], {"w": floats(8, 5)}, {}, (120, 240, 225)),
    ("MatMul", [(2, 3, 4), (2, 4, 6)], {}, {}, (144, 288, 252)),
    ("Gemm", [(3, 8)], {"w": floats(5, 8), "c": floats(5)}, {"transB": 1}, (120, 255, 240)),
    ("Gemm", [(3, 8)], {"w": floats(5, 8)}, {"transB": 1}, (120, 240, 225)),
    # 1·4·6·6 outputs of sums over 3·3·3
    ("Conv", [(1, 3, 8, 8)], {"w": floats(4, 3, 3, 3), "c": floats(4)}, {}, (3888, 7776 + 144, 7776)),
    ("Conv", [(8, 2, 8, 8)], {"w": floats(4, 1, 2, 2)}, {"group": 2}, (6272, 12544, 12544 - 8 * 4 * 49)),
    ("Conv", [(8, 2, 9)], {"w": floats(4, 2, 2)}, {}, (1024, 2048, 1792)),
    ("ConvTranspose", [(2, 4, 8, 8)], {"w": floats(4, 6, 4, 4)},
     {"strides": [2, 2], "pads": [1, 1, 1, 1]}, (49_152, 98_304, 98_304 - 2 * 6 * 16 * 16)),
    ("Einsum", [(2, 3, 4), (2, 4, 6)], {}, {"equation": "bij,bjk->bik"}, (144, 288, 252)),
    ("Einsum", [(2, 5, 3, 4), (2, 5, 4, 6)], {}, {"equation": "...ij,...jk->...ik"}, (720, 1440, 1260)),
    ("Einsum", [(3, 4), (4, 5), (5, 6)], {}, {"equation": "ij,jk,kl->il"}, (60 + 90, 300, 300 - 15 - 18)),
    ("Einsum", [(2, 3), (2, 4)], {}, {"equation": "bi,bj->bij"}, (0, 24, 24)),
    ("Einsum", [(3, 4)], {}, {"equation": "ij->ji"}, (0, 0, 0)),
    ("Einsum", [(3, 4)], {}, {"equation": "ij->i"}, (0, 12, 9)),
    # 5 steps of 4 samples, 8 inputs, 16 units
    ("GRU", [(5, 4, 8)], GRU | {"c": floats(1, 96)}, {"hidden_size": 16}, (23_040, 51_520, 52_800)),
    ("GRU", [(5, 4, 8)], GRU, {"hidden_size": 16}, (23_040, 49_600, 50_880)),
    ("LSTM", [(5, 4, 8)], {"w": floats(2, 64, 8), "r": floats(2, 64, 16), "c": floats(2, 128)},
     {"hidden_size": 16, "direction": "bidirectional"}, (61_440, 136_320, 142_720)),
    ("RNN", [(5, 4, 8)], RNN, {"hidden_size": 16}, (7680, 16_000, 17_280)),
    ("RNN", [(5, 4, 8)], RNN, {"hidden_size": 16, "activations": ["Relu"]}, (7680, 16_000, 15_360)),
    # 2·2·16 rows over 16 keys; a softmax is 4·16 - 1 a row
    ("Attention", [(2, 2, 16, 8)] * 3, {}, {}, (16_384, 34_816, 36_288)),
    ("Attention", [(2, 16, 16)] * 3, {}, {"q_num_heads": 2, "kv_num_heads": 2}, (16_384, 34_816, 36_288)),
    ("Attention", [(2, 4, 16, 8), (2, 2, 16, 8), (2, 2, 16, 8)], {"m": floats(16, 16)}, {}, (32_768, 71_680, 74_624)),
    ("Relu", IMAGE, {}, {}, (0, N, N)),
    ("Sigmoid", IMAGE, {}, {}, (0, N, 3 * N)),
    ("Tanh", IMAGE, {}, {}, (0, N, 7 * N)),
    ("Gelu", IMAGE, {}, {}, (0, N, 5 * N)),
    ("Gelu", IMAGE, {}, {"approximate": "tanh"}, (0, N, 15 * N)),
    ("HardSwish", IMAGE, {}, {}, (0, N, 5 * N)),
    ("Softsign", IMAGE, {}, {}, (0, 3 * N, 3 * N)),
    ("Softmax", IMAGE, {}, {"axis": 1}, (0, N, 4 * N - 32)),
    ("LogSoftmax", IMAGE, {}, {"axis": 1}, (0, N, 4 * N)),
    ("AveragePool", IMAGE, {}, {"kernel_shape": [2, 2], "strides": [2, 2]}, (0, N, N)),
    ("MaxPool", IMAGE, {}, {"kernel_shape": [2, 2], "strides": [2, 2]}, (0, N, N // 4)),
    ("GlobalAveragePool", IMAGE, {}, {}, (0, N, N)),
    ("BatchNormalization", IMAGE, NORM, {}, (0, 2 * N, 4 * N + 6)),
    ("InstanceNormalization", IMAGE, {"s": floats(3), "b": floats(3)}, {}, (0, 5 * N, 7 * N + 4 * 6)),
    ("GroupNormalization", IMAGE, {"s": floats(3), "b": floats(3)}, {"num_groups": 3}, (0, 5 * N, 7 * N + 4 * 6)),
    ("LayerNormalization", IMAGE, {"s": floats(4), "b": floats(4)}, {}, (0, 5 * N, 7 * N + 4 * 24)),
    ("LayerNormalization", IMAGE, {"s": floats(4, 4)}, {"axis": 2}, (0, 5 * N, 6 * N + 4 * 6)),
    ("RMSNormalization", IMAGE, {"s": floats(4)}, {}, (0, 4 * N, 4 * N + 2 * 24)),
    ("ReduceSum", IMAGE, {"axes": np.array([2, 3])}, {}, (0, N, N - 6)),
    ("ReduceMean", IMAGE, {"axes": np.array([2, 3])}, {}, (0, N, N)),
    ("ReduceL2", IMAGE, {"axes": np.array([2, 3])}, {}, (0, 2 * N, 2 * N)),
    ("CumSum", IMAGE, {"axis": np.array(1)}, {}, (0, N, N)),
    ("Resize", IMAGE, DOUBLED, {"mode": "linear"}, (0, 28 * N, 28 * N)),
    ("Resize", IMAGE, DOUBLED, {"mode": "nearest"}, (0, 0, 0)),
    ("Transpose", IMAGE, {}, {"perm": [0, 2, 3, 1]}, (0, 0, 0)),
    ("Clip", IMAGE, {"least": np.array(0, np.float32)}, {}, (0, N, N)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "weights", "attributes", "cost"), GRAPHS, ids=[g[0] for g in GRAPHS])
def test_graphs_of_one_node(
    op: str, inputs: list[Shape], weights: Any, attributes: Any, cost: tuple[int, int, int], tmp_path: Path
) -> None:
    table = one(tmp_path, op, inputs, weights, **attributes)
    assert (table.uncovered, table.macs, table.flops, table.ops) == ({}, *cost)


def whole(*shape: int) -> Any:
    return np.ones(shape, np.uint8)


def signed(*shape: int) -> Any:
    return np.ones(shape, np.int8)


def places(*shape: int) -> Any:
    return np.zeros(shape, np.int64)


def lengths(keys: int) -> list[Any]:
    """Of all sequences the place of the last key, and how many keys there are."""
    return [np.full(B, keys - 1, np.int32), np.array(keys, np.int32)]


def scores(keys: int, masks: int = 0) -> tuple[int, int]:
    """MACs and FLOPs of an attention of 4 heads of 8 numbers."""
    rows = B * H * L
    macs = rows * keys * 2 * W
    return macs, 2 * macs + (2 + masks) * rows * keys


B, L, S, H, W, E = 2, 6, 9, 4, 8, 32
"""Batch, queries, keys, heads, the width of a head, and that of all."""
R = B * L
T = R * E
SCALE, ZERO = np.array(0.1, np.float32), np.array(0, np.uint8)
Q = (SCALE, ZERO)
TOKENS, KEYS, MASK = floats(B, L, E), floats(B, S, E), np.ones((B, L), np.int32)
PACKED = (floats(E, 3 * E), floats(3 * E))
GROUPED = (floats(B, 1, E), floats(B, 1, 16), floats(B, 1, 16))
PICTURE = floats(2, 3, 8, 8)
CONV = 2 * 4 * 6 * 6
CONTRIB: list[tuple[str, list[Any], dict[str, Any], tuple[int, ...]]] = [
    ("FusedConv", [PICTURE, floats(4, 3, 3, 3), floats(4)], {"activation": "Relu"}, (CONV * 27, CONV * (54 + 2))),
    ("FusedConv", [PICTURE, floats(4, 3, 3, 3), None, floats(2, 4, 6, 6)], {}, (CONV * 27, CONV * (54 + 1))),
    ("FusedMatMul", [floats(2, 5, 8), floats(8, 3)], {}, (240, 480)),
    ("FusedMatMul", [floats(2, 8, 5), floats(3, 8)], {"transA": 1, "transB": 1, "alpha": 0.5}, (240, 480 + 30)),
    ("FusedMatMul", [floats(5, 2, 8), floats(2, 8, 3)], {"transBatchA": 1}, (240, 480)),
    ("FusedMatMul", [floats(2, 1, 5, 8), floats(3, 8, 7)], {}, (2 * 3 * 5 * 7 * 8, 2 * 2 * 3 * 5 * 7 * 8)),
    ("FusedGemm", [floats(3, 8), floats(5, 8), floats(5)], {"transB": 1, "activation": "Relu"}, (120, 240 + 15 + 15)),
    ("QGemm", [whole(3, 8), *Q, whole(5, 8), *Q, np.ones(5, np.int32), *Q], {"transB": 1}, (120, 0)),
    # The result is multiplied by its scale.
    ("MatMulIntegerToFloat", [whole(2, 5, 8), whole(8, 3), SCALE, SCALE], {}, (240, 30)),
    ("MatMulIntegerToFloat", [whole(2, 5, 8), whole(8, 3), SCALE, *Q, ZERO, floats(3)], {}, (240, 60)),
    ("DynamicQuantizeMatMul", [floats(2, 5, 8), whole(8, 3), *Q], {}, (240, 30)),
    ("DynamicQuantizeMatMul", [floats(2, 5, 8), whole(8, 3), *Q, floats(3)], {}, (240, 60)),
    ("MatMulNBits", [floats(2, 5, 40), whole(3, 2, 16), floats(6)], {"K": 40, "N": 3, "bits": 4, "block_size": 32},
     (2 * 5 * 3 * 40, 2 * 2 * 5 * 3 * 40)),
    ("MatMulNBits", [floats(2, 32), whole(3, 1, 16), floats(3), None, None, floats(3)],
     {"K": 32, "N": 3, "bits": 4, "block_size": 32}, (192, 384 + 6)),
    # 5 steps of 4 samples, 8 inputs, 16 units: 13 FLOPs for each unit and step
    ("DynamicQuantizeLSTM", [floats(5, 4, 8), signed(1, 8, 64), signed(1, 16, 64), floats(1, 128), None, None, None,
                             None, floats(1), signed(1), floats(1), signed(1)],
     {"hidden_size": 16}, (20 * 4 * 16 * 24, 20 * 16 * 13)),
    ("Attention", [TOKENS, *PACKED], {"num_heads": H},
     (B * L * E * 96 + scores(L)[0], 2 * B * L * E * 96 + B * L * 96 + scores(L)[1])),
    ("Attention", [TOKENS, *PACKED, MASK], {"num_heads": H},
     (B * L * E * 96 + scores(L)[0], 2 * B * L * E * 96 + B * L * 96 + scores(L, masks=1)[1])),
    # q and k have 16 numbers in all, v 32
    ("Attention", [TOKENS, floats(E, 64), floats(64)], {"num_heads": H, "qkv_hidden_sizes": [16, 16, 32]},
     (B * L * E * 64 + B * H * L * L * 12, 2 * B * L * E * 64 + B * L * 64 + B * H * L * L * (24 + 2))),
    ("QAttention", [whole(B, L, E), whole(E, 3 * E), floats(3 * E), SCALE, SCALE, None, ZERO, ZERO], {"num_heads": H},
     (B * L * E * 96 + scores(L)[0], 2 * B * L * 96 + scores(L)[1])),
    ("MultiHeadAttention", [TOKENS, KEYS, KEYS], {"num_heads": H}, scores(S)),
    ("MultiHeadAttention", [TOKENS, KEYS, KEYS, floats(3 * E)], {"num_heads": H},
     (scores(S)[0], scores(S)[1] + B * E * (L + 2 * S))),
    ("MultiHeadAttention", [TOKENS, floats(B, H, S, W), floats(B, H, S, W)], {"num_heads": H}, scores(S)),
    ("MultiHeadAttention", [TOKENS, TOKENS, floats(B, L, 64), None, MASK],
     {"num_heads": H}, (B * H * L * L * 24, B * H * L * L * (48 + 3))),
    ("GroupQueryAttention", [TOKENS, floats(B, L, 16), floats(B, L, 16), None, None,
                             *lengths(L)],
     {"num_heads": H, "kv_num_heads": 2}, scores(L)),
    # Of heads of 16 numbers all are rotated, those of the values apart
    ("GroupQueryAttention", [floats(B, L, 128), None, None, None, None,
                             *lengths(L), floats(64, 8), floats(64, 8)],
     {"num_heads": H, "kv_num_heads": 2, "do_rotary": 1},
     (2 * scores(L)[0], 4 * scores(L)[0] + 2 * B * H * L * L + 3 * B * L * 16 * (H + 2))),
    # Keys of the past are further keys: of attention with its projections in one tensor, of one without, of grouped queries
    # whose number of keys is a weight or an input, and of a cache that is larger than its content, as onnxruntime-genai has it.
    ("Attention", [TOKENS, *PACKED, None, floats(2, B, H, 5, W)], {"outputs": 2, "num_heads": H},
     (B * L * E * 96 + scores(L + 5)[0],)),
    ("MultiHeadAttention", [TOKENS, TOKENS, TOKENS, None, None, None, *[floats(B, H, 5, W)] * 2],
     {"outputs": 3, "num_heads": H}, scores(L + 5)[:1]),
    ("GroupQueryAttention", [*GROUPED, *[floats(B, 2, 5, W)] * 2, *lengths(6)],
     {"outputs": 3, "weights": [6], "num_heads": H, "kv_num_heads": 2}, (B * H * 6 * 2 * W,)),
    ("GroupQueryAttention", [*GROUPED, *[floats(B, 2, 5, W)] * 2, *lengths(6)],
     {"outputs": 3, "num_heads": H, "kv_num_heads": 2}, (B * H * 6 * 2 * W,)),
    ("GroupQueryAttention", [*GROUPED, *[floats(B, 2, 32, W)] * 2, *lengths(7)],
     {"outputs": 3, "weights": [6], "num_heads": H, "kv_num_heads": 2}, (B * H * 7 * 2 * W,)),
    # A bias of the scores is one FLOP for each, a soft cap three.
    ("GroupQueryAttention", [TOKENS, floats(B, L, 16), floats(B, L, 16), None, None, *lengths(L)],
     {"num_heads": H, "kv_num_heads": 2, "softcap": 20.0}, scores(L, masks=3)),
    ("GroupQueryAttention", [TOKENS, floats(B, L, 16), floats(B, L, 16), None, None, *lengths(L), None, None, None,
                             floats(B, H, L, L)],
     {"num_heads": H, "kv_num_heads": 2}, scores(L, masks=1)),
    ("BiasGelu", [TOKENS, floats(E)], {}, (0, 2 * T, 6 * T)),
    ("Gelu", [TOKENS], {}, (0, T, 5 * T)),
    ("FastGelu", [TOKENS], {}, (0, T, 15 * T)),
    ("FastGelu", [TOKENS, floats(E)], {}, (0, 2 * T, 16 * T)),
    ("QuickGelu", [TOKENS], {}, (0, 2 * T, 5 * T)),
    ("QuickGelu", [TOKENS], {"alpha": 1.0}, (0, T, 4 * T)),
    ("SkipLayerNormalization", [TOKENS, TOKENS, floats(E)], {}, (0, 6 * T, 7 * T + 4 * R)),
    ("SkipLayerNormalization", [TOKENS, TOKENS, floats(E), floats(E), floats(E)], {}, (0, 7 * T, 9 * T + 4 * R)),
    ("SkipSimplifiedLayerNormalization", [TOKENS, TOKENS, floats(E)], {}, (0, 5 * T, 5 * T + 2 * R)),
    ("SkipSimplifiedLayerNormalization", [TOKENS, TOKENS, floats(E), floats(E)], {}, (0, 6 * T, 6 * T + 2 * R)),
    ("EmbedLayerNormalization", [MASK, None, floats(50, E), floats(20, E), None, floats(E),
                                 floats(E)], {"outputs": 2}, (0, 6 * T, 8 * T + 4 * R)),
    ("EmbedLayerNormalization", [MASK, MASK, floats(50, E), floats(20, E),
                                 floats(2, E), floats(E), floats(E)], {"outputs": 2}, (0, 7 * T, 9 * T + 4 * R)),
    # 3 FLOPs for each number that is rotated: all of a head, or its first four
    ("RotaryEmbedding", [TOKENS, places(B, L), floats(64, 4), floats(64, 4)], {}, (0, 3 * T, 3 * T)),
    ("RotaryEmbedding", [floats(B, H, L, W), places(B, L), floats(64, 4), floats(64, 4)], {}, (0, 3 * T, 3 * T)),
    ("RotaryEmbedding", [TOKENS, places(B, L), floats(64, 2), floats(64, 2)],
     {"num_heads": H, "rotary_embedding_dim": 4}, (0, 3 * T // 2, 3 * T // 2)),
    ("QLinearAdd", [whole(3, 8), *Q, whole(8), *Q, *Q], {}, (0, 0, 0)),
    ("QLinearMul", [whole(3, 8), *Q, whole(8), *Q, *Q], {}, (0, 0, 0)),
    ("QLinearConcat", [*Q, whole(3, 8), *Q, whole(3, 2), *Q], {"axis": 1, "weights": [0, 1, 3, 4, 6, 7]}, (0, 0, 0)),
    ("QLinearSigmoid", [whole(3, 8), *Q, *Q], {}, (0, 0, 0)),
    ("QLinearLeakyRelu", [whole(3, 8), *Q, *Q], {}, (0, 0, 0)),
    ("QLinearSoftmax", [whole(3, 8), *Q, *Q], {"opset": 13}, (0, 0, 0)),
    ("QLinearAveragePool", [whole(2, 3, 8, 8), *Q, *Q], {"kernel_shape": [3, 3]}, (0, 0, 0)),
    ("QLinearGlobalAveragePool", [whole(2, 3, 8, 8), *Q, *Q], {}, (0, 0, 0)),
    ("QuantizeLinear", [floats(3, 8), SCALE, np.array(0, np.uint16)], {}, (0, 0, 0)),
    ("DequantizeLinear", [np.ones((3, 8), np.uint16), SCALE, np.array(0, np.uint16)], {}, (0, 0, 0)),
    ("GatherBlockQuantized", [whole(50, 16), places(B, L), floats(50, 1)],
     {"block_size": 32, "bits": 4, "quantize_axis": 1, "gather_axis": 0, "weights": [0]}, (0, 0, 0)),
]  # fmt: skip
X = floats(2, 6, 8, 8)
M = X.size
STANDARD: list[tuple[str, list[Any], dict[str, Any], tuple[int, ...]]] = [
    ("LRN", [X], {"size": 5}, (0, 6 * M, 9 * M)),
    ("LpPool", [X], {"kernel_shape": [2, 2], "strides": [2, 2]}, (0, 2 * M + M // 4, 2 * M)),
    ("GlobalLpPool", [X], {}, (0, 2 * M, 2 * M)),
    ("LpNormalization", [X], {"axis": 1}, (0, 3 * M + M // 6, 3 * M + M // 6)),
    ("MeanVarianceNormalization", [X], {}, (0, 4 * M, 5 * M + 4 * 6)),
    ("MeanVarianceNormalization", [X], {"axes": [2, 3]}, (0, 4 * M, 5 * M + 4 * 12)),
    # 2·4·6·6 sums over 6·3·3; what is multiplied is interpolated between four neighbours
    ("DeformConv", [X, floats(4, 6, 3, 3), floats(2, 18, 6, 6)], {},
     (288 * 54, 2 * 288 * 54 + 7 * 2 * 6 * 9 * 36, 2 * 288 * 54 - 288 + 7 * 2 * 6 * 9 * 36)),
    ("DeformConv", [X, floats(4, 6, 3, 3), floats(2, 18, 6, 6), floats(4), floats(2, 9, 6, 6)], {},
     (288 * 54, 2 * 288 * 54 + 288 + 8 * 2 * 6 * 9 * 36, 2 * 288 * 54 + 8 * 2 * 6 * 9 * 36)),
    # 3 · 6 · 4 results, each the mean of four values
    ("RoiAlign", [X, floats(3, 4), places(3)], {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
     (0, 8 * 4 * 72, 8 * 4 * 72)),
    ("RotaryEmbedding", [floats(B, 4, L, 8), floats(64, 4), floats(64, 4), places(B, L)], {"version": 23},
     (0, 3 * B * 4 * L * 8, 3 * B * 4 * L * 8)),
    ("RotaryEmbedding", [floats(B, L, 32), floats(64, 2), floats(64, 2), places(B, L)],
     {"num_heads": 4, "rotary_embedding_dim": 4, "version": 23}, (0, 3 * B * L * 16, 3 * B * L * 16)),
    ("Col2Im", [floats(1, 12, 9), np.array([4, 4]), np.array([2, 2])], {"weights": [1, 2]}, (0, 108, 108)),
    ("STFT", [floats(2, 64, 1), np.array(8), floats(16)], {"weights": [1]},
     (0, 14 * (round(16 * 2.5 * log2(16)) + 16), 14 * (round(16 * 2.5 * log2(16)) + 16))),
    ("AffineGrid", [floats(2, 2, 3), np.array([2, 1, 4, 5])], {"weights": [1]}, (240, 480, 480 - 80)),
    ("ReduceSum", [X], {"noop_with_empty_axes": 1}, (0, 0, 0)),
    ("ReduceSum", [X], {"noop_with_empty_axes": 0}, (0, M, M - 1)),
    ("ReduceSum", [X, np.array([1])], {"noop_with_empty_axes": 1, "weights": [1]}, (0, M, M - M // 6)),
    ("ReduceMean", [X], {"noop_with_empty_axes": 1}, (0, 0, 0)),
    ("SimplifiedLayerNormalization", [TOKENS, floats(E)], {}, (0, 4 * T, 4 * T + 2 * R)),
]  # fmt: skip
CALLS = [("com.microsoft", *case) for case in CONTRIB] + [("", *case) for case in STANDARD]


@pytest.mark.parametrize(("domain", "op", "operands", "attributes", "cost"), CALLS, ids=[c[1] for c in CALLS])
def test_operators_that_onnxruntime_runs(
    domain: str, op: str, operands: list[Any], attributes: Any, cost: tuple[int, ...], tmp_path: Path
) -> None:
    """MACs, FLOPs and operations, as far as they are written out."""
    found = cost_of_call(tmp_path, op, operands, domain=domain, **attributes)
    assert found is not None
    assert found[: len(cost)] == cost


needs_version_27 = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 27, reason="ONNX has this operator from version 27 on"
)
V = 5
TRIPLE = [floats(B, V, 16)] * 3
GATES = floats(B, V, 4)
# 4 heads of 4 numbers: per token and head the state of 16 is added to, is read, and is corrected by the delta rule
LINEAR: list[tuple[str, list[Any], int, int]] = [
    ("linear", [*TRIPLE, None, None, None], 2, 16),
    ("gated", [*TRIPLE, None, GATES, None], 2, 16 + 4 * 17),
    ("delta", [*TRIPLE, None, None, GATES], 3, 16 + 4 * 2 * 4),
    ("gated_delta", [*TRIPLE, None, GATES, GATES], 3, 16 + 4 * 17 + 4 * 2 * 4),
]


def without_kernel(folder: Path, op: str, operands: list[Any], outputs: int = 1, **attributes: Any) -> tuple[Any, Any]:
    """Shapes and cost of an operator that the installed ONNX Runtime does not run."""
    path = call(folder, op, operands, outputs, domain="", **attributes)
    (found,) = graph_of(path, {f"x{i}": value for i, value in enumerate(operands) if value is not None}).operators
    return [value.shape for value in found.outputs], cost_of(found, DEFAULTS)


@needs_version_27
@pytest.mark.parametrize(("rule", "operands", "products", "others"), LINEAR)
def test_linear_attention(rule: str, operands: list[Any], products: int, others: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 4, "update_rule": rule, "version": 27}
    shapes, cost = without_kernel(tmp_path, "LinearAttention", operands, 2, **settings)
    macs = B * V * 4 * 16 * products
    assert shapes == [(B, V, 16), (B, 4, 4, 4)]
    assert cost[:2] == (macs, 2 * macs + B * V * others)


@needs_version_27
def test_a_causal_convolution(tmp_path: Path) -> None:
    operands = [floats(B, 6, V), floats(6, 1, 4), floats(6)]
    shapes, cost = without_kernel(tmp_path, "CausalConvWithState", operands, 2, version=27, activation="silu")
    assert shapes == [(B, 6, V), (B, 6, 3)]
    assert cost[:2] == (B * 6 * V * 4, B * 6 * V * (8 + 1 + 1))


@pytest.mark.parametrize(("op", "each"), [("ReduceL2", 2), ("ReduceSumSquare", 1), ("ReduceLogSumExp", 2)])
def test_what_a_reduction_of_no_axes_computes(op: str, each: int, tmp_path: Path) -> None:
    """The squares and roots are left of it."""
    _, cost = without_kernel(tmp_path, op, [X], noop_with_empty_axes=1)
    assert cost == (0, each * M, each * M)


def test_regions_whose_size_decides_how_many_values_are_read(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"output_height": 2, "output_width": 2}
    assert cost_of_call(tmp_path, "RoiAlign", [X, floats(3, 4), places(3)], domain="", **sizes) is None


def test_a_quantised_product(tmp_path: Path) -> None:
    """Of files whose operators take scales and zero points; integer arithmetic is no FLOP."""
    weights = {"as": SCALE, "az": ZERO, "w": whole(8, 5), "ws": SCALE, "wz": ZERO, "ys": SCALE, "yz": ZERO}
    nodes = [node("QuantizeLinear", "a as az", "b"), node("QLinearMatMul", "b as az w ws wz ys yz", "y")]
    table = counted(saved(tmp_path, nodes, {"a": (3, 8)}, weights), (3, 8))
    assert (table.macs, table.flops, table.ops, table.uncovered) == (3 * 8 * 5, 0, 2 * 3 * 8 * 5 - 3 * 5, {})


# Versions of operators


@pytest.mark.parametrize("opset", [7, 11, 13])
@pytest.mark.parametrize("attributes", [{}, {"axis": 0}, {"axis": 2}, {"axis": 3}])
def test_a_softmax_of_any_version(opset: int, attributes: dict[str, Any], tmp_path: Path) -> None:
    """Before version 13 a row has all axes from ``axis`` on. Every row of the result adds up to one."""
    table = one(tmp_path, "Softmax", [(2, 3, 4, 5)], {}, opset=opset, **attributes)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (result,) = session.run(None, {"a": np.ones((2, 3, 4, 5), np.float32)})
    assert (table.flops, table.ops) == (120, 4 * 120 - round(result.sum()))


@pytest.mark.parametrize(("opset", "scales"), [(18, 2), (21, 6)])
def test_a_group_norm_of_any_version(opset: int, scales: int, tmp_path: Path) -> None:
    """Before version 21 it has a scale and a bias for each group; ONNX infers no shapes of it."""
    weights = {"s": floats(scales), "b": floats(scales)}
    table = one(tmp_path, "GroupNormalization", [(2, 6, 4, 4)], weights, opset=opset, num_groups=2)
    assert (table.flops, table.ops, table.params, table.uncovered) == (5 * 192, 7 * 192 + 4 * 4, 2 * scales, {})
    assert table.rows[0].output_shapes == ((2, 6, 4, 4),)


REAL = 2.5 * 2 * 64 * log2(64)
"""Half as much as of complex numbers, whether or not the half of the result that follows from the other one is there."""
TRANSFORMS: list[tuple[int, Shape, dict[str, Any], dict[str, int], float]] = [
    # By default along the first axis after the samples, or from version 20 on along the last one before the parts of the numbers
    (17, (2, 8, 16, 2), {}, {}, 5 * 2 * 8 * 16 * log2(8)),
    (20, (2, 8, 16, 2), {}, {}, 5 * 2 * 8 * 16 * log2(16)),
    (23, (2, 64, 2), {"": None, "axis": np.array(1)}, {}, 5 * 2 * 64 * log2(64)),
    (23, (2, 64, 1), {}, {}, REAL),
    (23, (2, 64, 1), {"": None, "axis": np.array(1)}, {"onesided": 1}, REAL),  # 33 of 64 points
    (23, (2, 33, 2), {"length": np.array(64)}, {"onesided": 1, "inverse": 1}, REAL),
    (23, (2, 48, 1), {"length": np.array(64)}, {"onesided": 1}, REAL),  # filled up with zeros
]


@pytest.mark.parametrize(("opset", "shape", "weights", "attributes", "flops"), TRANSFORMS)
def test_fourier_transforms(
    opset: int, shape: Shape, weights: dict[str, Any], attributes: Any, flops: float, tmp_path: Path
) -> None:
    table = one(tmp_path, "DFT", [shape], weights, opset=opset, **attributes)
    assert (table.macs, table.flops, table.uncovered) == (0, round(flops), {})


def test_a_fourier_transform_along_an_axis_that_is_an_input(tmp_path: Path) -> None:
    """Shapes do not tell how many points it has."""
    nodes = [node("Cast", "axis", "whole", to=onnx.TensorProto.INT64), node("DFT", "a - whole", "y")]
    path = saved(tmp_path, nodes, {"a": (2, 8, 16, 2), "axis": ()}, {})
    assert counted(path, (2, 8, 16, 2), ()).uncovered == {"DFT": 1}


CELLS: list[tuple[str, int, list[str], int, int]] = [
    ("RNN", 1, ["Tanh"], 2, 8),
    ("RNN", 1, ["Softsign"], 4, 4),
    ("RNN", 1, ["Affine"], 3, 3),
    ("GRU", 3, ["Sigmoid", "Tanh"], 11, 21),
    ("GRU", 3, ["HardSigmoid", "Relu"], 11, 3 + 2 * 4 + 1 + 5),
    ("LSTM", 4, ["Sigmoid", "Tanh", "Tanh"], 13, 31),
    ("LSTM", 4, ["Sigmoid", "Relu", "Softsign"], 4 + 3 + 1 + 3 + 1 + 3, 4 + 9 + 1 + 3 + 1 + 3),
]


@pytest.mark.parametrize(("op", "gates", "activations", "flops", "ops"), CELLS)
def test_nonlinearities_of_recurrent_networks(
    op: str, gates: int, activations: list[str], flops: int, ops: int, tmp_path: Path
) -> None:
    """FLOPs and operations of a unit and step, beside its products: 5 steps of 4 samples, 8 inputs, 16 units."""
    weights = {"w": floats(1, gates * 16, 8), "r": floats(1, gates * 16, 16)}
    table = one(tmp_path, op, [(5, 4, 8)], weights, activations=activations, hidden_size=16)
    units = 20 * 16
    macs = units * gates * 24
    products = 2 * macs - 2 * gates * units
    assert (table.macs, table.flops, table.ops) == (macs, 2 * macs + flops * units, products + ops * units)


def test_other_nonlinearities_in_each_direction(tmp_path: Path) -> None:
    weights = {"w": floats(2, 16, 8), "r": floats(2, 16, 16)}
    settings: dict[str, Any] = {"hidden_size": 16, "direction": "bidirectional"}
    table = one(tmp_path, "RNN", [(5, 4, 8)], weights, activations=["Tanh", "Softsign"], **settings)
    macs = 2 * 20 * 16 * 24
    assert table.flops == 2 * macs + 20 * 16 * (2 + 4)
    assert one(tmp_path, "RNN", [(5, 4, 8)], weights, activations=["Tanh", "Own"], **settings).uncovered == {"RNN": 1}


def test_optional_results_of_a_norm(tmp_path: Path) -> None:
    """The sum that is normalised is the fourth; those before it are omitted."""
    given = {"x": TOKENS, "skip": TOKENS, "scale": floats(E)}
    norm = node("SkipSimplifiedLayerNormalization", "x skip scale", "y - - sum", domain="com.microsoft")
    (found,) = graph_of(saved(tmp_path, [norm], given, {}, ["y", "sum"]), given).operators
    assert [value.shape for value in found.outputs] == [(B, L, E), (B, L, E)]
    assert cost_of(found, DEFAULTS) == (0, 5 * T, 5 * T + 2 * R)


# What is not counted


UNCOVERED: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("GroupNorm", [floats(2, 8, 8, 4), floats(4), floats(4)], {"groups": 2, "activation": 1}),
    ("BiasSplitGelu", [TOKENS, floats(E)], {}),
    ("NhwcConv", [floats(2, 8, 8, 3), floats(4, 3, 3, 3)], {}),
    ("Conv", [floats(2, 16, 8, 8), floats(16, 16, 3, 3)], {"domain": "com.microsoft.nchwc"}),
    ("Scaler", [floats(3, 4)], {"domain": "ai.onnx.ml", "offset": [0.5] * 4, "scale": [2.0] * 4}),
    ("LinearClassifier", [floats(7, 4)], {"domain": "ai.onnx.ml", "coefficients": [0.5] * 12, "intercepts": [0.1] * 3}),
    ("FusedConv", [PICTURE, floats(4, 3, 3, 3), floats(4)], {"activation": "Own"}),
    ("FusedConv", [floats(2, 3), floats(4, 3, 3, 3)], {}),  # operands that do not fit
]


@pytest.mark.parametrize(("op", "operands", "settings"), UNCOVERED, ids=[u[0] for u in UNCOVERED])
def test_other_operators_are_uncovered_by_name(op: str, operands: list[Any], settings: Any, tmp_path: Path) -> None:
    table = counted(call(tmp_path, op, operands, **settings), *[value.shape for value in operands])
    assert table.uncovered == {f"{settings.get('domain', 'com.microsoft')}::{op}": 1}


SCHEMAS = {
    schema.name: schema
    for schema in onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()
    if schema.domain == "com.microsoft"
}


# Parameters among the operands


def counted_call(folder: Path, op: str, operands: list[Any], weights: Any, **rest: Any) -> Any:
    """The table of a node of which some operands are weights."""
    path = call(folder, op, operands, weights=weights, **rest)
    shapes = {f"x{i}": value.shape for i, value in enumerate(operands) if value is not None and i not in weights}
    return count_file(OnnxFile(path).known(), (), shapes, DEFAULTS)


def test_packed_experts_are_parameters(tmp_path: Path) -> None:
    """Two numbers of four bits in a byte; the products of the mixture are uncovered."""
    experts, inner = 8, 48
    first, second = whole(experts, 2 * inner, E // 2), whole(experts, E, inner // 2)
    scales = [floats(experts, 2 * inner), floats(experts, E)]
    operands = [floats(10, E), floats(10, experts), first, scales[0], None, second, scales[1]]
    table = counted_call(tmp_path, "QMoE", operands, range(2, 7), k=2)
    assert (table.params, table.uncovered) == (experts * 3 * inner * E, {"com.microsoft::QMoE": 1})


def test_tables_of_positions_are_no_parameters(tmp_path: Path) -> None:
    operands = [TOKENS, places(B, L), floats(64, 4), floats(64, 4)]
    table = counted_call(tmp_path, "RotaryEmbedding", operands, (2, 3))
    assert (table.params, table.buffers, table.flops) == (0, 2 * 64 * 4, 3 * T)


@pytest.mark.parametrize("op", graph.CONTRIB_SCALES)
def test_scales_and_zero_points_are_no_parameters(op: str, tmp_path: Path) -> None:
    """By the names that ONNX Runtime has for its operands; also where there is one for each channel, as arrays."""
    names = [operand.name.lower() for operand in SCHEMAS[op].inputs]
    scales = [i for i, name in enumerate(names) if "scale" in name or "zero_point" in name or name == "absmax"]
    table = counted_call(tmp_path, op, [floats(3)] * len(names), range(1, len(names)))
    assert table.params == 3 * len(set(range(1, len(names))) - {*scales, *graph.TABLES.get(op, ())})
