"""Files that ONNX Runtime's optimisers and quantisers made of an export have the MACs and the parameters of the export."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantFormat, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from support.onnx_graphs import Samples, checked, node, saved
from sweeprof.backends.onnxruntime.counting import count_file
from sweeprof.backends.onnxruntime.files import OnnxFile
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.results.layers import LayerTable

pytestmark = pytest.mark.filterwarnings("ignore")


class Block(nn.Module):
    """A layer of a transformer, written in the operators that ONNX Runtime's optimisers look for."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        x = self.first(x + self.out((scores @ v).transpose(1, 2).flatten(2)))
        result: torch.Tensor = self.second(x + self.down(nn.functional.gelu(self.up(x))))
        return result


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList([Block(32, 4), Block(32, 4)])
        self.head = nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.table(x)
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(x)
        return result


class Convolutions(nn.Module):
    """Channels are multiples of the blocks of ONNX Runtime's own layout, which fills up others with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16)
        self.spatial, self.point = nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Conv2d(16, 16, 1)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = self.pool(x + nn.functional.hardswish(self.point(torch.relu(self.spatial(x)))))
        result: torch.Tensor = self.head(x.mean((2, 3)))
        return result


MODELS: dict[str, tuple[type[nn.Module], Any]] = {
    "transformer": (Transformer, np.arange(12).reshape(2, 6)),
    "convolutions": (Convolutions, np.ones((2, 3, 32, 32), np.float32)),
}


class Export:
    """A model as torch's older exporter writes it, with biases that differ from each other."""

    def __init__(self, name: str, folder: Path) -> None:
        kind, given = MODELS[name]
        torch.manual_seed(0)
        module = kind().eval()
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.3)
        self.feeds = {"x": given}
        self.path = str(folder / f"{name}.onnx")
        example = torch.from_numpy(given)
        torch.onnx.export(module, (example,), self.path, input_names=["x"], opset_version=17, dynamo=False)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(example)
        self.macs = counter.get_total_flops() // 2
        self.params = sum(parameter.numel() for parameter in module.parameters())

    def counted(self, path: str) -> LayerTable:
        return count_file(OnnxFile(path).known(), (), {"x": self.feeds["x"].shape}, DEFAULTS)


@pytest.fixture(scope="module", params=MODELS)
def export(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Export:
    return Export(request.param, tmp_path_factory.mktemp("models"))


def optimise(level: str, path: str, result: str) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level.upper()}")
    options.optimized_model_filepath = result
    options.log_severity_level = 4
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def operators_of(path: str) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node if node.domain.startswith("com.microsoft"))


def plain_params(export: Export) -> int:
    """The parameters of the export: its batch norm is a part of a convolution."""
    return export.counted(export.path).params


def test_the_export_itself(export: Export) -> None:
    table = export.counted(export.path)
    checked(export.path, export.feeds)
    folded = 16 * 2 if "convolutions" in export.path else 0
    assert (table.macs, table.params, table.uncovered) == (export.macs, export.params - folded, {})


@pytest.mark.parametrize("level", ["basic", "extended"])
def test_optimised_graphs(level: str, export: Export, tmp_path: Path) -> None:
    result = str(tmp_path / "optimised.onnx")
    optimise(level, export.path, result)
    assert level == "basic" or operators_of(result)
    checked(result, export.feeds)
    table = export.counted(result)
    assert (table.macs, table.params, table.coverage, table.uncovered) == (export.macs, plain_params(export), 1, {})


@pytest.mark.parametrize("level", [None, "extended"])
@pytest.mark.parametrize("form", ["dynamic", "QDQ", "QOperator"])
def test_quantised_graphs(form: str, level: str | None, export: Export, tmp_path: Path) -> None:
    """The parameters of one byte and the biases of four, and after ONNX Runtime's optimisers, too."""
    result = str(tmp_path / "quantised.onnx")
    if form == "dynamic":
        quantize_dynamic(export.path, result)
    else:
        quantize_static(export.path, result, Samples(export.feeds), quant_format=QuantFormat[form])
    if level is not None:
        optimise(level, result, str(tmp_path / "optimised.onnx"))
        result = str(tmp_path / "optimised.onnx")
        assert operators_of(result)
    checked(result, export.feeds)
    table = export.counted(result)
    assert (table.macs, table.params, table.uncovered) == (export.macs, plain_params(export), {})
    assert table.params < table.params_bytes < 1.5 * table.params


def in_blocks(path: str, result: Path) -> str:
    """With weights of four bits in products."""
    quantizer = MatMulNBitsQuantizer(onnx.load(path), block_size=32, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(str(result))
    return str(result)


def test_weights_of_four_bits(tmp_path: Path) -> None:
    """Of the products: the table of tokens, norms and biases are as before."""
    export = Export("transformer", tmp_path)
    result = in_blocks(export.path, tmp_path / "blocks.onnx")
    assert operators_of(result)["MatMulNBits"] == 2 * 6 + 1
    checked(result, export.feeds)
    table, whole = export.counted(result), export.counted(export.path)
    weights = 2 * (4 * 32 * 32 + 2 * 32 * 64) + 32 * 64
    assert (table.macs, table.flops, table.params) == (whole.macs, whole.flops, whole.params)
    assert table.params_bytes == whole.params_bytes - 4 * weights + weights // 2


def test_numbers_of_sixteen_bits(export: Export, tmp_path: Path) -> None:
    result = str(tmp_path / "half.onnx")
    onnx.save(convert_float_to_float16(onnx.load(export.path), keep_io_types=True), result)
    table, whole = export.counted(result), export.counted(export.path)
    assert (table.macs, table.flops, table.params) == (whole.macs, whole.flops, whole.params)
    assert table.params_bytes == whole.params_bytes // 2


# A layer of a decoder as onnxruntime-genai writes it, whose attention reads the number of keys from the mask
OWN = {"domain": "com.microsoft"}
DECODER = [
    node("ReduceSum", "mask one", "counts"),
    node("Sub", "counts one", "last"),
    node("Cast", "last", "seqlens", to=TensorProto.INT32),
    node("Shape", "mask", "shape"),
    node("Gather", "shape axis", "length"),
    node("Cast", "length", "total", to=TensorProto.INT32),
    node("Gather", "table ids", "x"),
    node("SimplifiedLayerNormalization", "x norm", "n", axis=-1),
    *(node("MatMul", f"n w{name}", name) for name in "qkv"),
    node("GroupQueryAttention", "q k v past.key past.value seqlens total cos cos", "a present.key present.value", **OWN,
         num_heads=4, kv_num_heads=2, do_rotary=1),
    node("MatMul", "a wo", "o"),
    node("SkipSimplifiedLayerNormalization", "x o post", "p - - r", **OWN),
    node("MatMul", "p up", "u"),
    node("Sigmoid", "u", "s"),
    node("Mul", "u s", "g"),
    node("MatMul", "g down", "d"),
    node("Add", "r d", "y"),
]  # fmt: skip
SHAPES = {
    "table": (50, 64),
    "norm": (64,),
    "wq": (64, 64),
    "wk": (64, 32),
    "wv": (64, 32),
    "wo": (64, 64),
    "post": (64,),
    "up": (64, 96),
    "down": (96, 64),
}
CACHES = ("past.key", "past.value")


def decoder(folder: Path) -> str:
    random = np.random.default_rng(0)
    weights = {name: 0.1 * random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    weights |= {"one": np.array([1]), "axis": np.array(1), "cos": np.ones((64, 8), np.float32)}
    inputs = {
        "ids": helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "sequence"]),
        "mask": helper.make_tensor_value_info("mask", TensorProto.INT64, ["batch", "total"]),
        **dict.fromkeys(CACHES, ("n", 2, "past", 16)),
    }
    return saved(folder, DECODER, inputs, weights, ["y", "present.key", "present.value"], opset=21)


@pytest.mark.parametrize(("length", "past"), [(6, 0), (1, 5)])
@pytest.mark.parametrize("level", [None, "all"])
@pytest.mark.parametrize("is_quantised", [False, True])
def test_a_decoder(is_quantised: bool, level: str | None, length: int, past: int, tmp_path: Path) -> None:
    """The first forward, and one of a token with five in the cache; with weights of 32 and of four bits."""
    path = decoder(tmp_path)
    if is_quantised:
        path = in_blocks(path, tmp_path / "blocks.onnx")
    if level is not None:
        optimise(level, path, str(tmp_path / "optimised.onnx"))
        path = str(tmp_path / "optimised.onnx")
    feeds: dict[str, Any] = {
        "ids": np.ones((2, length), np.int64),
        "mask": np.ones((2, length + past), np.int64),
        **{name: np.ones((2, 2, past, 16), np.float32) for name in CACHES},
    }
    checked(path, feeds)
    table = count_file(OnnxFile(path).known(), (), {name: value.shape for name, value in feeds.items()}, DEFAULTS)
    products = 2 * 64 * 64 + 2 * 64 * 32 + 2 * 64 * 96
    attention = 2 * 4 * length * (length + past) * (16 + 16)
    assert table.macs == 2 * length * products + attention
    assert (table.params, table.buffers, table.uncovered) == (50 * 64 + 2 * 64 + products, 64 * 8, {})
    assert table.params_bytes == 4 * (50 * 64 + 2 * 64) + (products // 2 if is_quantised else 4 * products)
