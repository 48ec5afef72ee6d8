"""Lower precisions of every backend against arithmetic by hand."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from sweeprof.backends import checked_method, unsupported_reason
from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
from sweeprof.backends.onnxruntime.files import OnnxFile
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported, UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.targets import builder

X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)
BIAS = np.random.default_rng(2).standard_normal(8).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> OnnxFile:
    """``x @ weight + bias``, the weight stored transposed, as exported linear layers have it."""
    nodes = [
        helper.make_node("Transpose", ["fc.weight"], ["t"], name="transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["product"], name="product"),
        helper.make_node("Add", ["product", "fc.bias"], ["y"], name="add"),
    ]
    weights = [
        numpy_helper.from_array(np.ascontiguousarray(WEIGHT.T), "fc.weight"),
        numpy_helper.from_array(BIAS, "fc.bias"),
    ]
    given = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 16])]
    made = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 8])]
    graph = helper.make_graph(nodes, "linear", given, made, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), tmp_path / "m.onnx")
    return OnnxFile(str(tmp_path / "m.onnx"))


def run(backend: Any, build: Any, x: Any = X) -> Any:
    model = backend.load(build, "cpu", None)
    with model.stepping(model.put(Inputs((x,)))) as step:
        return np.asarray(model.host_outputs(step()))


def eight_bits(values: Any) -> tuple[Any, Any]:
    """Whole numbers on 255 steps from the least to the largest value, less that of zero, and the scale."""
    scale = np.float32((values.max() - values.min()) / 255)
    zero = np.round(-values.min() / scale)
    return np.clip(np.round(values / scale) + zero, 0, 255) - zero, scale


def test_onnxruntime_multiplies_integers(file: OnnxFile) -> None:
    """A scale per column of the weights, and one of the inputs, of 255 steps from the least to the largest value.

    The products are exact, also on processors whose instructions for signed numbers overflow.
    """
    backend = OnnxruntimeBackend(precision="int8")
    found = run(backend, lambda: file)
    given, scale = eight_bits(X)
    columns = [eight_bits(WEIGHT[:, column]) for column in range(8)]
    weight = np.stack([values for values, _ in columns], 1)
    expected = (given @ weight) * scale * np.array([column_scale for _, column_scale in columns]) + BIAS
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - (X @ WEIGHT + BIAS)).max() > 1e-3


def test_bytes_of_a_quantized_file(file: OnnxFile) -> None:
    """A byte per weight, and per column 4 bytes of scale and a zero point."""
    plain = OnnxruntimeBackend(precision="fp32").analyze(lambda: file, Inputs((X,)), None, DEFAULTS)
    table = OnnxruntimeBackend(precision="int8").analyze(lambda: file, Inputs((X,)), None, DEFAULTS)
    assert plain.params_bytes == 4 * (16 * 8 + 8)
    assert table.params_bytes == 16 * 8 + 5 * 8 + 4 * 8
    assert (table.params, table.macs, table.flops) == (plain.params, plain.macs, plain.flops)
    assert table.macs == 4 * 16 * 8


def test_static_ranges_come_from_samples(file: OnnxFile) -> None:
    backend = OnnxruntimeBackend(precision="int8", precision_method="static")
    with pytest.raises(Unsupported, match="static takes its ranges from samples, and there are none"):
        run(backend, lambda: file)
    asked = []

    def samples(limit: int) -> Inputs:
        asked.append(limit)
        return Inputs((X / 10,))

    backend.ranges_from(samples)
    found = run(backend, lambda: file)
    plain = X @ WEIGHT + BIAS
    assert asked == [128]
    assert np.abs(found).max() < 0.6 * np.abs(plain).max()  # what is beyond the range of the samples is cut
    backend.ranges_from(lambda _: Inputs((X,)))
    assert np.abs(run(backend, lambda: file) - plain).max() < 0.05 * np.abs(plain).max()


def test_what_onnxruntime_does_not_run() -> None:
    with pytest.raises(Unsupported, match="onnxruntime does not support precision=bf16: its provider for the CPU"):
        OnnxruntimeBackend(precision="bf16")
    with pytest.raises(Unsupported, match=r"precision_method=autocast for precision=int8 \(only dynamic, static\)"):
        OnnxruntimeBackend(precision="int8", precision_method="autocast")
    with pytest.raises(UserError, match="'int9' is not a precision"):
        OnnxruntimeBackend(precision="int9")  # type: ignore[arg-type]


def test_a_given_file_keeps_its_types(file: OnnxFile) -> None:
    with pytest.raises(Unsupported, match="an ONNX file runs with the data types that it has"):
        run(OnnxruntimeBackend(precision="fp16"), lambda: file)
    np.testing.assert_allclose(run(OnnxruntimeBackend(precision="fp32"), lambda: file), X @ WEIGHT + BIAS, atol=1e-5)


def test_nothing_to_quantize(tmp_path: Path) -> None:
    value = partial(helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT, shape=["n", 16])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="r")], "g", [value("x")], [value("y")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), tmp_path / "r.onnx")
    with pytest.raises(Unsupported, match="no product of constant weights that ONNX Runtime could quantize"):
        run(OnnxruntimeBackend(precision="int8"), lambda: OnnxFile(str(tmp_path / "r.onnx")))


def test_there_are_no_products_of_bfloat16() -> None:
    """The declared reason is what ONNX Runtime says."""
    weight = numpy_helper.from_array(WEIGHT.astype(ml_dtypes.bfloat16), "w")
    value = partial(helper.make_tensor_value_info, elem_type=onnx.TensorProto.BFLOAT16)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", shape=["n", 16])],
        [value("y", shape=["n", 8])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    with pytest.raises(Exception, match="Could not find an implementation for MatMul"):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_halves_on_onnxruntime(tmp_path: Path) -> None:
    """A torch module is exported with weights of 16 bits; the model in the caller's hands keeps its own."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(16, 8).eval()
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(WEIGHT.T.copy()))
        module.bias.copy_(torch.from_numpy(BIAS))
    backend = OnnxruntimeBackend(precision="fp16", cache=str(tmp_path))
    found = run(backend, lambda: module)
    expected = X.astype(np.float16).astype(np.float32) @ WEIGHT.astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(found, expected + BIAS.astype(np.float16), atol=0.02)
    assert module.weight.dtype == torch.float32
    assert backend.analyze(lambda: module, Inputs((X,)), None, DEFAULTS).params_bytes == 2 * (16 * 8 + 8)


DENSE = {"_target_": "support.keras_models.dense"}


def test_keras_multiplies_integers() -> None:
    """Weights by a scale per column of 127 steps, inputs by one per sample."""
    from sweeprof.backends.tensorflow.adapter import TensorflowBackend

    backend = TensorflowBackend(precision="int8")
    found = run(backend, builder(DENSE))
    scale = 127 / np.abs(X).max(1, keepdims=True)
    weight_scale = 127 / np.abs(WEIGHT).max(0)
    expected = (np.round(X * scale) @ np.round(WEIGHT * weight_scale)) / scale / weight_scale + BIAS
    np.testing.assert_allclose(found, expected, atol=1e-4)
    plain, table = (
        b.analyze(builder(DENSE), Inputs((X,)), None, DEFAULTS) for b in (TensorflowBackend(precision="fp32"), backend)
    )
    assert table.macs == plain.macs == 4 * 16 * 8
    assert plain.params_bytes == 4 * (16 * 8 + 8)
    assert table.params_bytes == 16 * 8 + 4 * 8 + 4 * 8  # a scale per column


@pytest.mark.parametrize("method", ["convert", "autocast"])
def test_keras_in_bfloat16(method: Any) -> None:
    from sweeprof.backends.tensorflow.adapter import TensorflowBackend

    backend = TensorflowBackend(precision="bf16", precision_method=method)
    model = backend.load(builder(DENSE), "cpu", None)
    assert {v.dtype for v in model.native.weights} == {"bfloat16" if method == "convert" else "float32"}
    assert {layer.compute_dtype for layer in model.native.layers} == {"bfloat16"}
    assert backend.settings_in_effect(model)["precision method"] == method
    rounded, weight, bias = (a.astype(ml_dtypes.bfloat16).astype(np.float32) for a in (X, WEIGHT, BIAS))
    np.testing.assert_allclose(run(backend, builder(DENSE)), rounded @ weight + bias, rtol=0.02, atol=0.05)


def test_what_keras_does_not_quantize() -> None:
    from support.keras_models import dense
    from sweeprof.backends.tensorflow.adapter import TensorflowBackend

    backend, model = TensorflowBackend(precision="int8"), dense()
    with pytest.raises(Unsupported, match="Keras quantizes a model in place"):
        backend.load(lambda: model, "cpu", None)
    assert model.layers[0].quantization_mode is None
    with pytest.raises(Unsupported, match="the model has no layer that Keras quantizes"):
        backend.load(builder({"_target_": "support.keras_models.flatten"}), "cpu", None)


@pytest.mark.slow
@pytest.mark.usefixtures("converted_in_forks")
def test_halves_of_a_keras_model_on_onnxruntime(tmp_path: Path) -> None:
    backend = OnnxruntimeBackend(precision="fp16", cache=str(tmp_path))
    found = run(backend, builder(DENSE))
    expected = X.astype(np.float16).astype(np.float32) @ WEIGHT.astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(found, expected + BIAS.astype(np.float16), atol=0.02)
    table = backend.analyze(builder(DENSE), Inputs((X,)), None, DEFAULTS)
    assert (table.macs, table.params_bytes) == (4 * 16 * 8, 2 * (16 * 8 + 8))


def test_static_ranges_of_a_convolution(tmp_path: Path) -> None:
    """Weights of 255 steps per channel, inputs and outputs of 255 steps between the extremes of the samples."""
    images = np.random.default_rng(3).uniform(-1, 1, (4, 2, 6, 6)).astype(np.float32)
    weight = np.random.default_rng(4).standard_normal((3, 2, 3, 3)).astype(np.float32)
    value = partial(helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")],
        "g",
        [value("x", shape=["n", 2, 6, 6])],
        [value("y", shape=["n", 3, 4, 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), tmp_path / "c.onnx")
    file = OnnxFile(str(tmp_path / "c.onnx"))
    backend = OnnxruntimeBackend(precision="int8", precision_method="static")
    backend.ranges_from(lambda _: Inputs((images,)))
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, weight)
    found = run(backend, lambda: file, images)
    steps = np.ptp(expected) / 255  # of the outputs; those of the inputs and weights add up over a window of 18
    assert 0 < np.abs(found - expected).max() < 4 * steps
    assert len(np.unique(np.round(found, 6))) <= 256
    table = backend.analyze(lambda: file, Inputs((images,)), None, DEFAULTS)
    assert table.macs == 4 * 3 * 4 * 4 * 2 * 3 * 3
    dynamic = OnnxruntimeBackend(precision="int8", precision_method="dynamic")
    with pytest.raises(Unsupported, match="no product of constant weights"):
        run(dynamic, lambda: file, images)


WIDE = {"_target_": "support.keras_models.dense", "inputs": 64, "outputs": 32}
"""LiteRT's converter leaves weights of less than 1,024 numbers as they are."""


@pytest.mark.slow
@pytest.mark.usefixtures("converted_in_forks")
@pytest.mark.parametrize(("precision", "method", "most"), [("fp16", None, 2), ("int8", "dynamic", 1)])
def test_lower_precisions_of_litert(tmp_path: Path, precision: Any, method: Any, most: int) -> None:
    from sweeprof.backends.litert.adapter import LitertBackend

    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    weight = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)
    bias = np.random.default_rng(2).standard_normal(32).astype(np.float32)
    backend = LitertBackend(precision=precision, precision_method=method, cache=str(tmp_path))
    backend.expect(Inputs((x,)))
    found, plain = run(backend, builder(WIDE), x), x @ weight + bias
    if precision == "fp16":
        rounded = weight.astype(np.float16).astype(np.float32), bias.astype(np.float16).astype(np.float32)
        np.testing.assert_allclose(found, x @ rounded[0] + rounded[1], atol=1e-4)
    else:
        # Weights by a scale per column of 127 steps, inputs by one per sample of 255 steps or fewer.
        scale = 127 / np.abs(weight).max(0)
        rounded_weight = np.round(weight * scale) / scale
        bound = np.ptp(x, axis=1, keepdims=True) / 127 * np.abs(rounded_weight).sum(0)
        assert (np.abs(found - (x @ rounded_weight + bias)) < bound / 4).all()
    assert np.abs(found - plain).max() > 1e-5
    table = backend.analyze(builder(WIDE), Inputs((x,)), None, DEFAULTS)
    assert table.macs == 4 * 64 * 32
    assert most * 64 * 32 <= table.params_bytes < (most + 0.2) * (64 * 32 + 32) + 4 * 32
    with pytest.raises(Unsupported, match="litert does not support precision=bf16: its converter has no bfloat16"):
        LitertBackend(precision="bf16")


def test_reasons() -> None:
    methods = {"fp32": ("convert",), "int8": ("dynamic",)}
    assert unsupported_reason("b", methods, {}, "fp32", "autocast") is None
    assert unsupported_reason("b", methods, {}, None, None) is None
    assert (
        unsupported_reason("b", methods, {}, "bf16", None) == "b does not support precision=bf16: it is not implemented"
    )
    assert checked_method(OnnxruntimeBackend, "int8", None) == "dynamic"
