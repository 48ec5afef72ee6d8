"""What is counted of ONNX graphs: domains, weights wherever they are stored, rows, shapes that values decide, texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sweeprof
from support.onnx_graphs import counted, floats, given, node, saved
from sweeprof import Cost
from sweeprof.backends.onnxruntime.counting import count_file
from sweeprof.backends.onnxruntime.files import Exported, OnnxFile
from sweeprof.counting.formulas import DEFAULTS, Formulas
from sweeprof.errors import Unsupported
from sweeprof.results.layer_times import ROOT

QUICK = sweeprof.Protocol(min_s=0.02, warmup_s=0.01)
NORM = {name: floats(4) for name in ("s", "b", "m", "v")}


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
    ]
    table = counted(saved(tmp_path, nodes, {"a": (2, 3, 3)}, {}, ["d", "y"]), (2, 3, 3))
    assert table.uncovered == {"mine::Mystery": 1, "Relu": 1, "Det": 1}, "what has an unknown shape is uncovered too"
    assert (table.flops, table.coverage, table.liveness) == (18, 0.25, None)


@pytest.mark.parametrize("op", ["Relu", "Identity"])
def test_an_operator_of_another_domain_is_not_the_standards(op: str, tmp_path: Path) -> None:
    path = saved(tmp_path, [node(op, "a", "b", "first", domain="mine")], {"a": (2, 3)}, {}, ["b"])
    assert counted(path, (2, 3)).uncovered == {f"mine::{op}": 1}


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
    with pytest.raises(Unsupported, match="the graph takes x, z, and 2 tensors are given"):
        count_file(OnnxFile(path).known(), [(2, 3)], {"nothing": (3, 4)}, DEFAULTS)


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
    """``a`` (24 elements) is not counted; b and c are alive at once, then c and d; a view has no memory of its own."""
    nodes = [
        node("Relu", "a", "b", "/first/Relu"),
        node("Concat", "b b b", "c", "/second/Concat", axis=1),
        node("Flatten", "c", "f", "/second/Flatten"),
        node("MatMul", "f w", "y", "/third/MatMul"),
    ]
    table = counted(saved(tmp_path, nodes, {"a": (2, 3, 4)}, {"w": floats(36, 2)}), (2, 3, 4))
    assert table.liveness is not None
    assert (table.liveness.peak_bytes, table.liveness.peak_at) == (4 * (24 + 72), "second")
    assert (table.liveness.input_bytes, table.act_bytes) == (96, 4 * (24 + 72 + 4))


# Weights


def test_parameters_buffers_and_constants_of_a_file_that_does_not_tell(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "a w", "c", "/stage/stage.0/conv/Conv"),
        node("BatchNormalization", "c s b m v", "n", "/stage/stage.0/bn/BatchNormalization"),
        node("Mul", "n two", "d", "/stage/Mul"),
        node("Reshape", "d shape", "y", "/Reshape"),
    ]
    weights = {"w": floats(4, 3, 3, 3), **NORM, "two": np.float32(2), "shape": np.array([0, -1])}
    table = counted(saved(tmp_path, nodes, {"a": (2, 3, 8, 8)}, weights), (2, 3, 8, 8))
    assert (table.params, table.params_bytes, table.buffers) == (108 + 8, 4 * 116, 8)
    assert [(row.path, row.params, row.buffers, row.macs) for row in table.rows] == [
        (ROOT, 0, 0, 0),
        ("stage", 0, 0, 0),
        ("stage.0", 0, 0, 0),
        ("stage.0.conv", 108, 0, 2 * 4 * 36 * 27),
        ("stage.0.bn", 8, 8, 0),
    ]
    subtree = table.rows[2].subtree
    assert subtree is not None
    assert (subtree.params, subtree.buffers) == (116, 8)
    assert table.inclusive().rows[1].macs == 2 * 4 * 36 * 27


def held(name: str, value: Any) -> Any:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value), name))


def constants_of(path: str) -> str:
    """Move the initializers of a file into Constant nodes, as some exporters write them."""
    model = onnx.load(path)
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in model.graph.initializer]
    nodes += model.graph.node
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path)
    return path


def test_weights_in_constant_nodes_count_like_initializers(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "a w wb", "c", "/conv/Conv"),
        node("BatchNormalization", "c s b m v", "n", "/bn/BatchNormalization"),
        node("GlobalAveragePool", "n", "p", "/pool/GlobalAveragePool"),
        node("Flatten", "p", "f", "/Flatten"),
        node("Transpose", "dense", "d", "/dense/Transpose", perm=[1, 0]),
        node("MatMul", "f d", "h", "/dense/MatMul"),
        node("Add", "h db", "e", "/dense/Add"),
        node("Gemm", "e g", "y", "/head/Gemm"),
    ]
    # A matrix of 5,000 elements is larger than what is computed from constants.
    weights = {"w": floats(4, 3, 3, 3), "wb": floats(4), **NORM, "dense": floats(1250, 4), "db": floats(1250)}
    path = saved(tmp_path, nodes, {"a": (2, 3, 8, 8)}, weights | {"g": floats(1250, 2)})
    table, again = counted(path, (2, 3, 8, 8)), counted(constants_of(path), (2, 3, 8, 8))
    assert again.params == 4 * 27 + 4 + 2 * 4 + 5000 + 1250 + 2500
    assert (again.params_bytes, again.buffers, again.trainable) == (4 * again.params, 2 * 4, again.params)
    assert {row.path: (row.params, row.buffers, row.flops) for row in again.rows if row.params} == {
        "conv": (112, 0, 2 * 2 * 4 * 36 * 27 + 2 * 4 * 36),
        "bn": (8, 8, 2 * 2 * 4 * 36),
        "dense": (6250, 0, 2 * 2 * 1250 * 4 + 2 * 1250),
        "head": (2500, 0, 2 * 2 * 1250 * 2),
    }
    assert again == table


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
    external: dict[str, Any] = {
        "save_as_external_data": True,
        "size_threshold": 0,
        "convert_attribute": True,
        "location": "w.data",
    }
    onnx.save(onnx.load(path), path, **external)
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


def test_an_operand_that_nothing_makes_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path, [node("Add", "a nope", "y")], {"a": (2, 4)}, {})
    with pytest.raises(KeyError, match="nope"):
        count_file(OnnxFile(path).known(), [(2, 4)], {}, DEFAULTS)


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
    return graph_of(name, nodes, [], [name], {} if constant else {"W": weight})


def graph_of(name: str, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[str], weights: Any) -> Any:
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    results = [helper.make_empty_tensor_value_info(output) for output in outputs]
    return helper.make_graph(nodes, name, inputs, results, stored)


def figures(path: str, arrays: dict[str, Any], *names: str) -> list[Any]:
    profile = sweeprof.profile(path, arrays, names, progress=False)
    return [profile[name].value for name in names]


def parameters(path: str, arrays: dict[str, Any]) -> Any:
    return figures(path, arrays, "params/total", "size/params_bytes")


@pytest.mark.parametrize("constant", [True, False])
def test_weights_of_branches_that_read_one_around_them(constant: bool, tmp_path: Path) -> None:
    branches = {f"{n}_branch": product(n[0], floats(8, 6), constant=constant) for n in ("then", "else")}
    arrays = {"v": floats(3, 8), "c": np.array(True)}
    path = saved(tmp_path, [node("If", "c", "y", **branches)], arrays, {"S": floats(6, 4)})
    expected = 2 * 8 * 6 + 6 * 4
    assert parameters(path, arrays) == [expected, 4 * expected]


def test_weights_of_a_branch_within_a_loop(tmp_path: Path) -> None:
    branches = {
        "then_branch": product("t", floats(8, 8), constant=False),
        "else_branch": product("e", floats(8, 8), constant=True),
    }
    nodes = [node("If", "ci", "vo", **branches), node("Identity", "ci", "co")]
    states = [given(*state) for state in (("i", np.int64(0)), ("ci", np.bool_(1)), ("v", floats(3, 8)))]
    body = graph_of("body", nodes, states, ["co", "vo"], {})
    weights = {"n": np.array(5), "c": np.array(True), "S": floats(8, 8)}
    path = saved(tmp_path, [node("Loop", "n c x", "y", body=body)], {"x": floats(3, 8)}, weights)
    assert parameters(path, {"x": floats(3, 8)}) == [3 * 64, 4 * 3 * 64]


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


ZERO = {"zero": np.array([0])}
SHAPED: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any], int]] = {
    "sizes that are computed from a given number": (
        [node("Mul", "k two", "k2"), node("Concat", "k2 eight", "shape", axis=0), node("Expand", "v shape", "e")],
        {"v": floats(1, 8), "k": np.array([3])},
        {"two": np.array([2]), "eight": np.array([8])},
        6,
    ),
    "a slice to a given end": (
        [node("Slice", "v zero k zero", "e")], {"v": floats(9, 8), "k": np.array([4], np.int64)}, ZERO, 4,
    ),
    "the rows that a given mask keeps": (
        [node("Compress", "v k", "e", axis=-2)], {"v": floats(4, 8), "k": np.array([True, False, True, True])}, {}, 3,
    ),
    "the places of a given mask": (
        [node("NonZero", "k", "places"), node("Squeeze", "places zero", "flat"), node("Gather", "v flat", "e")],
        {"v": floats(4, 8), "k": np.array([True, False, True, False])},
        ZERO,
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
