"""Lower precisions of every backend against arithmetic by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from support.keras_models import dense
from support.onnx_graphs import node, saved
from sweeprof.backends.litert.adapter import LitertBackend
from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
from sweeprof.backends.onnxruntime.files import OnnxFile
from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layers import LayerTable
from sweeprof.targets import builder

X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)
BIAS = np.random.default_rng(2).standard_normal(8).astype(np.float32)


PLAIN = X @ WEIGHT + BIAS


@pytest.fixture
def file(tmp_path: Path) -> OnnxFile:
    """``x @ weight + bias``, the weight stored transposed, as exported linear layers have it."""
    nodes = [
        node("Transpose", "fc.weight", "t", "transpose", perm=[1, 0]),
        node("MatMul", "x t", "product", "product"),
        node("Add", "product fc.bias", "y", "add"),
    ]
    return OnnxFile(saved(tmp_path, nodes, {"x": (4, 16)}, {"fc.weight": WEIGHT.T.copy(), "fc.bias": BIAS}))


def run(backend: Any, build: Any, x: Any = X) -> Any:
    model = backend.load(build, "cpu", None)
    with model.stepping(model.put(Inputs((x,)))) as step:
        return np.asarray(model.host_outputs(step()))


def analyzed(backend: Any, build: Any, x: Any = X) -> LayerTable:
    table: LayerTable = backend.analyze(build, Inputs((x,)), None, DEFAULTS)
    return table


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
    assert np.abs(found - PLAIN).max() > 1e-3


def test_bytes_of_a_quantized_file(file: OnnxFile) -> None:
    """A byte per weight, and per column 4 bytes of scale and a zero point."""
    plain, table = (analyzed(OnnxruntimeBackend(precision=name), lambda: file) for name in ("fp32", "int8"))
    assert plain.params_bytes == 4 * (16 * 8 + 8)
    assert table.params_bytes == 16 * 8 + 5 * 8 + 4 * 8
    assert (table.params, table.macs, table.flops) == (plain.params, plain.macs, plain.flops)
    assert table.macs == 4 * 16 * 8


@pytest.mark.slow
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
    assert asked == [128]
    assert np.abs(found).max() < 0.6 * np.abs(PLAIN).max()  # what is beyond the range of the samples is cut
    backend.ranges_from(lambda _: Inputs((X,)))
    assert np.abs(run(backend, lambda: file) - PLAIN).max() < 0.05 * np.abs(PLAIN).max()


def test_what_onnxruntime_does_not_run() -> None:
    with pytest.raises(Unsupported, match="onnxruntime does not support precision=bf16: its provider for the CPU"):
        OnnxruntimeBackend(precision="bf16")
    with pytest.raises(Unsupported, match=r"precision_method=autocast for precision=int8 \(only dynamic, static\)"):
        OnnxruntimeBackend(precision="int8", precision_method="autocast")


def test_a_given_file_keeps_its_types(file: OnnxFile) -> None:
    with pytest.raises(Unsupported, match="an ONNX file runs with the data types that it has"):
        run(OnnxruntimeBackend(precision="fp16"), lambda: file)
    np.testing.assert_allclose(run(OnnxruntimeBackend(precision="fp32"), lambda: file), PLAIN, atol=1e-5)


def test_nothing_to_quantize(tmp_path: Path) -> None:
    path = saved(tmp_path, [node("Relu", "x", "y", "r")], {"x": (4, 16)}, {})
    with pytest.raises(Unsupported, match="no product of constant weights that ONNX Runtime could quantize"):
        run(OnnxruntimeBackend(precision="int8"), lambda: OnnxFile(path))


HALVES = X.astype(np.float16).astype(np.float32) @ WEIGHT.astype(np.float16).astype(np.float32)


@pytest.mark.thorough
def test_halves_on_onnxruntime(tmp_path: Path) -> None:
    """A torch module is exported with weights of 16 bits; the model in the caller's hands keeps its own."""
    module = torch.nn.Linear(16, 8).eval()
    module.load_state_dict({"weight": torch.from_numpy(WEIGHT.T.copy()), "bias": torch.from_numpy(BIAS)})
    backend = OnnxruntimeBackend(precision="fp16", cache=str(tmp_path))
    np.testing.assert_allclose(run(backend, lambda: module), HALVES + BIAS.astype(np.float16), atol=0.02)
    assert module.weight.dtype == torch.float32
    assert analyzed(backend, lambda: module).params_bytes == 2 * (16 * 8 + 8)


DENSE = {"_target_": "support.keras_models.dense"}


def test_keras_multiplies_integers() -> None:
    """Weights by a scale per column of 127 steps, inputs by one per sample."""
    backend = TensorflowBackend(precision="int8")
    found = run(backend, builder(DENSE))
    scale = 127 / np.abs(X).max(1, keepdims=True)
    weight_scale = 127 / np.abs(WEIGHT).max(0)
    expected = (np.round(X * scale) @ np.round(WEIGHT * weight_scale)) / scale / weight_scale + BIAS
    np.testing.assert_allclose(found, expected, atol=1e-4)
    plain, table = (analyzed(each, builder(DENSE)) for each in (TensorflowBackend(precision="fp32"), backend))
    assert table.macs == plain.macs == 4 * 16 * 8
    assert plain.params_bytes == 4 * (16 * 8 + 8)
    assert table.params_bytes == 16 * 8 + 4 * 8 + 4 * 8  # a scale per column


def test_keras_in_bfloat16_with_weights_of_float32() -> None:
    backend = TensorflowBackend(precision="bf16", precision_method="autocast")
    model = backend.load(builder(DENSE), "cpu", None)
    assert {v.dtype for v in model.native.weights} == {"float32"}
    assert {layer.compute_dtype for layer in model.native.layers} == {"bfloat16"}
    assert backend.settings_in_effect(model)["precision method"] == "autocast"
    rounded, weight, bias = (a.astype(ml_dtypes.bfloat16).astype(np.float32) for a in (X, WEIGHT, BIAS))
    np.testing.assert_allclose(run(backend, builder(DENSE)), rounded @ weight + bias, rtol=0.02, atol=0.05)


def test_what_keras_does_not_quantize() -> None:
    backend, model = TensorflowBackend(precision="int8"), dense()
    with pytest.raises(Unsupported, match="Keras quantizes a model in place"):
        backend.load(lambda: model, "cpu", None)
    assert model.layers[0].quantization_mode is None
    with pytest.raises(Unsupported, match="the model has no layer that Keras quantizes"):
        backend.load(builder({"_target_": "support.keras_models.flatten"}), "cpu", None)


@pytest.mark.thorough
@pytest.mark.usefixtures("converted_in_forks")
def test_halves_of_a_keras_model_on_onnxruntime(tmp_path: Path) -> None:
    backend = OnnxruntimeBackend(precision="fp16", cache=str(tmp_path))
    np.testing.assert_allclose(run(backend, builder(DENSE)), HALVES + BIAS.astype(np.float16), atol=0.02)
    table = analyzed(backend, builder(DENSE))
    assert (table.macs, table.params_bytes) == (4 * 16 * 8, 2 * (16 * 8 + 8))


@pytest.mark.slow
def test_static_ranges_of_a_convolution(tmp_path: Path) -> None:
    """Weights of 255 steps per channel, inputs and outputs of 255 steps between the extremes of the samples."""
    images = np.random.default_rng(3).uniform(-1, 1, (4, 2, 6, 6)).astype(np.float32)
    weight = np.random.default_rng(4).standard_normal((3, 2, 3, 3)).astype(np.float32)
    file = OnnxFile(saved(tmp_path, [node("Conv", "x w", "y", "conv")], {"x": images.shape}, {"w": weight}))
    backend = OnnxruntimeBackend(precision="int8", precision_method="static")
    backend.ranges_from(lambda _: Inputs((images,)))
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, weight)
    found = run(backend, lambda: file, images)
    steps = np.ptp(expected) / 255  # of the outputs; those of the inputs and weights add up over a window of 18
    assert 0 < np.abs(found - expected).max() < 4 * steps
    assert len(np.unique(np.round(found, 6))) <= 256
    table = analyzed(backend, lambda: file, images)
    assert table.macs == 4 * 3 * 4 * 4 * 2 * 3 * 3
    dynamic = OnnxruntimeBackend(precision="int8", precision_method="dynamic")
    with pytest.raises(Unsupported, match="no product of constant weights"):
        run(dynamic, lambda: file, images)


@pytest.mark.thorough
@pytest.mark.usefixtures("converted_in_forks")
def test_static_ranges_of_a_keras_model_with_convolutions(tmp_path: Path) -> None:
    build = builder({"_target_": "sweeprof.zoo.digits_resnet.keras_model"})
    images = np.random.default_rng(0).standard_normal((4, 32, 32, 1)).astype(np.float32)
    backend = OnnxruntimeBackend(precision="int8", precision_method="static", cache=str(tmp_path))
    backend.ranges_from(lambda _: Inputs((images,)))
    plain = run(TensorflowBackend(precision="fp32"), build, images)
    assert 0 < np.abs(run(backend, build, images) - plain).max() < np.ptp(plain) / 5


@pytest.mark.thorough
@pytest.mark.usefixtures("converted_in_forks")
@pytest.mark.parametrize(("precision", "method", "most"), [("fp16", None, 2), ("int8", "dynamic", 1)])
def test_lower_precisions_of_litert(tmp_path: Path, precision: Any, method: Any, most: int) -> None:
    """LiteRT's converter leaves weights of less than 1,024 numbers as they are."""
    backend = LitertBackend(precision=precision, precision_method=method, cache=str(tmp_path))
    wide = builder({**DENSE, "inputs": 64, "outputs": 32})
    table = analyzed(backend, wide, np.ones((4, 64), np.float32))
    assert table.macs == 4 * 64 * 32
    assert most * 64 * 32 <= table.params_bytes < (most + 0.2) * (64 * 32 + 32) + 4 * 32


def test_litert_has_no_bfloat16() -> None:
    with pytest.raises(Unsupported, match="litert does not support precision=bf16: its converter has no bfloat16"):
        LitertBackend(precision="bf16")
