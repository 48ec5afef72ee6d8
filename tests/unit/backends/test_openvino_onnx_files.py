"""ONNX files that other tools made have in OpenVINO the MACs and parameters that they have in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.quantization import QuantFormat, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

from support.onnx_graphs import Samples, call, counted, floats, saved
from sweeprof.backends.onnxruntime.files import OnnxFile
from sweeprof.backends.openvino.adapter import OpenvinoBackend
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layers import LayerTable

pytestmark = pytest.mark.filterwarnings("ignore")
SHAPE = (2, 3, 8, 8)
random = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    """Not all the same, which OpenVINO would make one number of."""
    return random.standard_normal(shape).astype(np.float32)


def network(folder: Path) -> str:
    nodes = [
        helper.make_node("Conv", ["a", "w", "b"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "d"], ["y"], "product"),
    ]
    weights = {"w": numbers(128, 3, 3, 3), "b": numbers(128), "d": numbers(128, 32)}
    return saved(folder, nodes, {"a": SHAPE}, weights, opset=21)


def in_openvino(path: str, *shapes: tuple[int, ...]) -> LayerTable:
    given = Inputs(tuple(floats(*shape) for shape in shapes))
    return OpenvinoBackend().analyze(lambda: OnnxFile(path), given, None, DEFAULTS)


def in_blocks(form: QuantFormat) -> Callable[[str, str], None]:
    def quantise(path: str, result: str) -> None:
        config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=False, quant_format=form)
        quantizer = MatMulNBitsQuantizer(onnx.load(path), algo_config=config)
        quantizer.process()
        quantizer.model.save_model_to_file(result)

    return quantise


def static(form: QuantFormat) -> Callable[[str, str], None]:
    return lambda path, result: quantize_static(path, result, Samples({"a": floats(*SHAPE)}), quant_format=form)


QUANTISED: dict[str, Callable[[str, str], None]] = {
    "dynamic": quantize_dynamic,
    "QDQ": static(QuantFormat.QDQ),
    "blocks": in_blocks(QuantFormat.QOperator),
    "blocks, QDQ": in_blocks(QuantFormat.QDQ),
}


@pytest.mark.parametrize("form", QUANTISED)
def test_quantised_files(form: str, tmp_path: Path) -> None:
    path, result = network(tmp_path), str(tmp_path / "quantised.onnx")
    QUANTISED[form](path, result)
    whole, expected, found = counted(path, SHAPE), counted(result, SHAPE), in_openvino(result, SHAPE)
    assert (found.macs, found.params, found.uncovered) == (whole.macs, whole.params, {})
    assert found.params_bytes == expected.params_bytes


def test_a_fused_operator(tmp_path: Path) -> None:
    path = call(tmp_path, "BiasGelu", [floats(2, 6, 32), floats(32)], weights=(1,))
    table = in_openvino(path, (2, 6, 32))
    assert (table.params, table.uncovered) == (32, {})


def test_an_operator_that_openvino_does_not_have(tmp_path: Path) -> None:
    path = call(tmp_path, "ReorderInput", [floats(2, 16, 8, 8)], domain="com.microsoft.nchwc")
    with pytest.raises(
        Unsupported, match=r"No conversion rule found for operations: com\.microsoft\.nchwc\.ReorderInput"
    ):
        in_openvino(path, (2, 16, 8, 8))
