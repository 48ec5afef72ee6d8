"""OpenVINO on graphs that are made here: what is counted, timed and returned, without a conversion."""

from __future__ import annotations

import gc
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops

import sweeprof
from sweeprof.backends.openvino.adapter import OpenvinoBackend, OpenvinoModel, path_of
from sweeprof.backends.openvino.convert import Converted, OpenvinoFile
from sweeprof.counting.formulas import DEFAULTS, Cost, Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerTable
from sweeprof.results.record import Protocol

RANDOM = np.random.default_rng(0)
SHORT = Protocol(warmup_steps=1, warmup_s=0, min_samples=5, min_s=0.01)


def array(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def saved(folder: Path, results: Any, *slots: Any) -> OpenvinoFile:
    path = folder / "model.xml"
    openvino.save_model(openvino.Model([results], list(slots), "made"), path, compress_to_fp16=False)
    return OpenvinoFile(str(path))


def slot(*shape: int, name: str = "x") -> Any:
    made = ops.parameter(list(shape), np.float32, name=name)
    made.output(0).get_tensor().set_names({name})
    return made


def product(folder: Path) -> OpenvinoFile:
    """``relu(x A + b)`` of any number of rows, as TensorFlow would name its operators."""
    x = slot(-1, 8)
    y = ops.matmul(x, ops.constant(array(8, 4), name="net/dense/kernel"), False, False, name="net/dense/MatMul")
    z = ops.add(y, ops.constant(array(4), name="net/dense/bias"), name="net/dense/Add")
    return saved(folder, ops.relu(z, name="net/relu/Relu"), x)


def counted(file: OpenvinoFile, *shapes: tuple[int, ...], formulas: Formulas = DEFAULTS) -> LayerTable:
    inputs = Inputs(tuple(TensorSpec(shape) for shape in shapes))
    return OpenvinoBackend().analyze(lambda: file, inputs, None, formulas)


def loaded(file: OpenvinoFile, *arrays: Any, **settings: Any) -> tuple[OpenvinoModel, Any]:
    # By itself OpenVINO computes in bfloat16 where the processor can.
    model = OpenvinoBackend(**{"precision": "fp32", **settings}).load(lambda: file, "cpu", None)
    return model, model.put(Inputs(arrays))


def test_a_file_runs_and_is_counted(tmp_path: Path) -> None:
    file = product(tmp_path)
    model, batch = loaded(file, given := array(3, 8))
    weights, bias = (node.data for node in model.graph.get_ordered_ops() if node.get_type_name() == "Constant")
    with model.stepping(batch) as step:
        found: Any = model.host_outputs(step())
    np.testing.assert_allclose(found, np.maximum(given @ weights + bias, 0), rtol=1e-5)
    table = counted(file, (3, 8))
    assert (table.macs, table.flops, table.ops) == (3 * 8 * 4, 2 * 96 + 12 + 12, 2 * 96 - 12 + 12 + 12)
    assert (table.params, table.params_bytes, table.uncovered) == (36, 144, {})
    assert [(row.path, row.macs, row.params) for row in table.rows] == [
        (ROOT, 0, 0),
        ("net", 0, 0),
        ("net.dense", 96, 36),
        ("net.relu", 0, 0),
    ]


def network(name: str) -> Any:
    """A recurrent network of 5 inputs and 6 units over 7 steps of 2 samples, in one direction."""
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[name]
    x, lengths = slot(2, 7, 5), ops.constant(np.array([7, 7], np.int64))
    weights = [array(1, gates * 6, 5), array(1, gates * 6, 6), array(1, gates * 6)]
    if name == "lstm":
        return ops.lstm_sequence(x, array(2, 1, 6), array(2, 1, 6), lengths, *weights, 6, "forward"), x
    made = {"gru": ops.gru_sequence, "rnn": ops.rnn_sequence}[name]
    return made(x, array(2, 1, 6), lengths, *weights, 6, "forward"), x


def operator(name: str) -> tuple[Any, Any]:
    x = slot(2, 6, 8, 8)
    made = {
        "convolution": lambda: ops.convolution(x, array(4, 6, 3, 3), [2, 2], [1, 1], [1, 1], [1, 1]),
        "group convolution": lambda: ops.group_convolution(x, array(3, 4, 2, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1]),
        "transposed": lambda: ops.convolution_backprop_data(x, array(6, 4, 2, 2), [2, 2]),
        "transposed product": lambda: ops.matmul(x, array(8, 3), True, False),
        "average": lambda: ops.avg_pool(x, [2, 2], [0, 0], [0, 0], [2, 2], False),
        "maximum": lambda: ops.max_pool(x, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2]).output(0),
        "mean": lambda: ops.reduce_mean(x, np.array([2, 3])),
        "softmax": lambda: ops.softmax(x, 1),
        "norm": lambda: ops.mvn(x, np.array([3]), True, 1e-5, "INSIDE_SQRT"),
        "causal attention": lambda: ops.scaled_dot_product_attention(x, x, x, causal=True),
        "masked attention": lambda: ops.scaled_dot_product_attention(x, x, x, array(8, 8)),
        "gelu": lambda: ops.gelu(x, "erf"),
        "integers": lambda: ops.add(ops.convert(x, np.int32), np.int32(2)),
    }
    return made[name](), x


N = 2 * 6 * 8 * 8


@pytest.mark.parametrize(
    ("name", "macs", "flops"),
    [
        ("convolution", 2 * 4 * 4 * 4 * 6 * 9, 2 * 2 * 4 * 4 * 4 * 6 * 9),
        ("group convolution", 2 * 12 * 64 * 2 * 9, 2 * 2 * 12 * 64 * 2 * 9),
        ("transposed", N * 4 * 4, 2 * N * 4 * 4),
        ("transposed product", N * 3, 2 * N * 3),
        ("average", 0, N),
        ("maximum", 0, N),
        ("mean", 0, N),
        ("norm", 0, 4 * N),
        ("causal attention", 12 * 8 * 8 * 16, 2 * 12 * 8 * 8 * 16 + 2 * 12 * 8 * 8),
        ("masked attention", 12 * 8 * 8 * 16, 2 * 12 * 8 * 8 * 16 + 3 * 12 * 8 * 8),
        ("integers", 0, 0),
    ],
)
def test_operators_are_counted_by_hand(name: str, macs: int, flops: int, tmp_path: Path) -> None:
    table = counted(saved(tmp_path, *operator(name)), (2, 6, 8, 8))
    assert table.uncovered == {}
    assert (table.macs, table.flops) == (macs, flops)


def test_the_definitions_are_those_of_torch(tmp_path: Path) -> None:
    """The same operator costs as much as in PyTorch, whose rules are tested against published figures."""
    from torch import nn

    for name, module in (("softmax", nn.Softmax(1)), ("gelu", nn.GELU()), ("mean", nn.AdaptiveAvgPool2d(1))):
        theirs = sweeprof.profile(module, (2, 6, 8, 8), ["compute/flops", "compute/ops"])
        ours = counted(saved(tmp_path, *operator(name)), (2, 6, 8, 8))
        assert (ours.flops, ours.ops) == (theirs["compute/flops"].value, theirs["compute/ops"].value), name


@pytest.mark.parametrize(("name", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_recurrent_networks(name: str, gates: int, tmp_path: Path) -> None:
    made, x = network(name)
    table = counted(saved(tmp_path, made.output(0), x), (2, 7, 5))
    assert table.macs == 2 * 7 * gates * 6 * (5 + 6)
    assert table.uncovered == {}


def test_an_operator_without_a_definition_is_listed_and_a_formula_counts_it(tmp_path: Path) -> None:
    x = slot(2, 6, 8, 8)
    file = saved(tmp_path, ops.grid_sample(x, array(2, 4, 4, 2), {}), x)
    assert counted(file, (2, 6, 8, 8)).uncovered == {"GridSample": 1}
    formulas = Formulas({"openvino::GridSample": lambda inputs, attributes, outputs: Cost(flops=outputs[0].elements)})
    assert counted(file, (2, 6, 8, 8), formulas=formulas).flops == 2 * 6 * 4 * 4


def test_constants_are_computed_before_the_steps(tmp_path: Path) -> None:
    """Weights of 8 bits that are scaled in the graph, as in quantized files."""
    x = slot(-1, 8)
    stored = ops.constant(RANDOM.integers(-9, 9, (8, 4)).astype(np.int8), name="kernel")
    kernel = ops.multiply(ops.convert(stored, np.float32), np.float32(0.1))
    table = counted(saved(tmp_path, ops.matmul(x, kernel, False, False), x), (3, 8))
    assert (table.macs, table.flops, table.params, table.params_bytes) == (96, 192, 32, 32)


@pytest.mark.parametrize(
    ("kind", "dtype", "size"),
    [("i4", "int4", 0.5), ("u4", "uint4", 0.5), ("nf4", "normal_float4", 0.5), ("f8e4m3", "float8_e4m3", 1)],
)
def test_weights_of_few_bits_are_parameters(kind: str, dtype: str, size: float, tmp_path: Path) -> None:
    """As files of language models have them, with a scale for each column."""
    x = slot(-1, 8)
    stored = ops.constant(np.ones((8, 4), np.float32), dtype=getattr(openvino.Type, kind))
    kernel = ops.multiply(ops.convert(stored, np.float32), ops.constant(np.full((1, 4), 0.1, np.float32)))
    table = counted(saved(tmp_path, ops.matmul(x, kernel, False, False), x), (3, 8))
    assert (table.macs, table.params, table.params_bytes) == (3 * 8 * 4, 32 + 4, 32 * size + 4 * 4)
    assert table.rows[0].dtypes == {dtype: 32, "float32": 4}


def test_a_last_batch_is_filled_up_a_larger_one_compiled_and_another_shape_refused(tmp_path: Path) -> None:
    model, batch = loaded(product(tmp_path), given := array(4, 8))
    with model.stepping(batch) as step:
        whole = np.array(model.host_outputs(step()))
    with model.stepping(model.put(Inputs((given[:3],)))) as step:
        np.testing.assert_array_equal(model.host_outputs(step()), whole[:3])
    with model.stepping(model.put(Inputs((np.concatenate([given, given[:1]]),)))) as step:
        np.testing.assert_allclose(np.array(model.host_outputs(step())), np.concatenate([whole, whole[:1]]), rtol=1e-6)
    with pytest.raises(Unsupported, match=r"the graph takes a .* as x, not a "):
        loaded(product(tmp_path), array(4, 9))


def test_inputs_by_name_and_several_outputs(tmp_path: Path) -> None:
    left, right = slot(-1, 4, name="left"), slot(-1, 4, name="right")
    difference = ops.subtract(left, right)
    difference.output(0).get_tensor().set_names({"difference"})
    flag = ops.greater(left, right)
    flag.output(0).get_tensor().set_names({"flag"})
    twice = ops.multiply(left, np.float32(2))
    twice.output(0).get_tensor().set_names({"twice"})
    path = tmp_path / "model.xml"
    openvino.save_model(openvino.Model([difference, flag, twice], [left, right]), path)
    a, b = array(3, 4), array(3, 4)
    model = OpenvinoBackend().load(lambda: OpenvinoFile(str(path)), "cpu", None)
    with model.stepping(model.put(Inputs(kwargs={"right": b, "left": a}))) as step:
        outputs = model.host_outputs(step())
    assert isinstance(outputs, dict)
    np.testing.assert_allclose(outputs["difference"], a - b, rtol=1e-6)
    np.testing.assert_array_equal(outputs["flag"], a > b)
    assert {name: array.dtype.name for name, array in outputs.items()} == {
        "difference": "float32",
        "flag": "bool",
        "twice": "float32",
    }


def test_settings_are_in_effect(tmp_path: Path) -> None:
    backend = OpenvinoBackend(threads=2, streams=2, hint="throughput", precision="fp32")
    model = backend.load(partial(product, tmp_path), "cpu", None)
    model.put(Inputs((array(3, 8),)))
    found = backend.settings_in_effect(model)
    assert (found["threads"], found["streams"], found["inference precision"]) == (2, 2, "f32")
    assert backend.concurrently(model, model.put(Inputs((array(3, 8),))), 0.01)[0] == found["optimal requests"]


def test_requests_at_the_same_time(tmp_path: Path) -> None:
    names = ["throughput/concurrent", "throughput/samples_per_s", "size/artifact_bytes"]
    result = sweeprof.profile(product(tmp_path), (4, 8), names, protocol=SHORT)
    found = result["throughput/concurrent"]
    assert found.detail["requests"] >= 1
    assert found.value is not None
    assert found.value > 0
    assert found.detail["n"] == SHORT.min_samples
    file = tmp_path / "model.xml"
    assert result["size/artifact_bytes"].value == file.stat().st_size + file.with_suffix(".bin").stat().st_size


def test_the_folder_of_a_model_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model, batch = loaded(product(tmp_path), array(3, 8))
    assert list(tmp_path.glob("sweeprof-openvino-*"))
    cycle: list[Any] = [model]
    cycle.append(cycle)
    del model, batch, cycle
    gc.collect()  # a warning would fail the test
    assert not list(tmp_path.glob("sweeprof-openvino-*"))


def test_backends_without_requests_give_a_reason() -> None:
    from torch import nn

    found = sweeprof.profile(nn.Linear(2, 2), (1, 2), ["throughput/concurrent"], protocol=SHORT)[
        "throughput/concurrent"
    ]
    assert found.value is None
    assert "this backend runs one forward after the other" in str(found.reason)


def test_times_belong_to_modules_and_add_up(tmp_path: Path) -> None:
    model, batch = loaded(product(tmp_path), array(512, 8))
    times = OpenvinoBackend().layer_times(model, Work(batch), SHORT)
    (whole,) = times.forward.plain
    assert "net.dense" in {call.path for call in times.calls}
    assert sum(call.forward[0] for call in times.calls) <= whole * 1.1
    rows = OpenvinoBackend().operators(model, Work(batch)).rows
    dense = next(row for row in rows if row.path == "net.dense" and row.flops)
    assert dense.flops == 2 * 512 * 8 * 4 + 2 * 512 * 4  # with its bias and the activation that is fused into it


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("__module.model.stage1.conv1/aten::_convolution/Convolution", "stage1.conv1"),
        ("__module.model/aten::add/Add", ROOT),
        ("Constant_12", ROOT),
    ],
)
def test_the_path_of_a_converted_operator(name: str, path: str) -> None:
    assert path_of(name, Converted("", types={"": "Net"})) == path


def test_bfloat16_needs_a_processor_that_has_it(tmp_path: Path) -> None:
    backend = OpenvinoBackend(precision="bf16")
    if "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        backend.load(partial(product, tmp_path), "cpu", None)
    else:
        with pytest.raises(Unsupported, match="this processor has no instructions for bfloat16"):
            backend.load(partial(product, tmp_path), "cpu", None)


def test_the_inputs_of_a_file_are_described(tmp_path: Path) -> None:
    """As model=file needs them; what the file leaves open is a size by name."""
    from sweeprof.datasets import ArraySpec
    from sweeprof.model_sources.file import inputs

    x, ids = slot(-1, 8), ops.parameter([-1, -1], np.int64, name="ids")
    ids.output(0).get_tensor().set_names({"ids"})
    path = tmp_path / "model.xml"
    openvino.save_model(openvino.Model([ops.relu(x), ops.add(ids, np.int64(1))], [x, ids]), path)
    found = inputs(str(path), {"size_1": 5})
    assert found.inputs == {"x": ArraySpec((8,), "float32"), "ids": ArraySpec((5,), "int64", high=2)}


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file missing\.xml"):
        loaded(OpenvinoFile("missing.xml"), array(1, 8))
