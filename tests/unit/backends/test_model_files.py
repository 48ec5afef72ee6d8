"""What formats of files share: live bytes, rows by module, ONNX files without weights, what is remembered, random weights."""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch

import sweeprof
from support.keras_models import random_dense
from sweeprof.backends.litert.adapter import LitertBackend
from sweeprof.backends.model_files import key_of
from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
from sweeprof.backends.openvino.adapter import OpenvinoBackend
from sweeprof.counting.file_graph import (
    OperatorRun,
    peak_of,
)
from sweeprof.measuring.inputs import Inputs
from sweeprof.targets import builder


def test_a_result_that_nothing_reads_lives_while_its_operator_runs_and_an_output_to_the_end() -> None:
    unread = OperatorRun("one", ["x"], {"a": 1, "unread": 32})
    rest = [OperatorRun("two", ["a"], {"b": 2}), OperatorRun("three", ["b"], {"c": 34})]
    assert peak_of([unread, *rest], ["c"], 0).peak_bytes == 36
    assert peak_of([unread, *rest], ["c"], 0).peak_at == "three"
    assert peak_of([unread, *rest], ["c", "unread"], 0).peak_bytes == 68
    assert peak_of([unread, OperatorRun("two", ["a"], {"b": 2})], ["b"], 0).peak_at == "one"


def test_an_onnx_file_is_read_without_its_large_weights(tmp_path: Path) -> None:
    """Compared with the whole file: everything but the values of the large initializer is the same."""
    onnx = pytest.importorskip("onnx")
    from sweeprof.backends.onnxruntime.files import LARGEST, without_weights

    large, small = np.ones((LARGEST // 4 + 1,), np.float32), np.arange(3, dtype=np.int64)
    stored = [onnx.numpy_helper.from_array(large, "large"), onnx.numpy_helper.from_array(small, "small")]
    packed = onnx.helper.make_tensor("packed", onnx.TensorProto.FLOAT, large.shape, large)  # not as raw bytes
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch"])
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"], "n" * (LARGEST + 1))]
    made = onnx.helper.make_graph(
        nodes, "g", [value], [onnx.helper.make_empty_tensor_value_info("y")], [*stored, packed]
    )
    model = onnx.helper.make_model(made)
    path = str(tmp_path / "model.onnx")
    onnx.save(model, path)
    read = without_weights(path)
    assert [len(tensor.raw_data) for tensor in read.graph.initializer] == [0, 24, 0]
    assert len(read.graph.initializer[2].float_data) == 0
    for tensor in model.graph.initializer:
        if tensor.name != "small":
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
    assert read == model


@pytest.mark.parametrize("content", [b"", b"no protobuf", b"\x3a\xff\xff\xff\x7f", b"\x0b"])
def test_what_is_no_onnx_file_has_the_error_of_onnx(tmp_path: Path, content: bytes) -> None:
    onnx = pytest.importorskip("onnx")
    from sweeprof.backends.onnxruntime.files import without_weights

    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    found: list[object] = []
    for read in (onnx.load, without_weights):
        try:
            found.append(read(str(path)))
        except Exception as error:
            found.append((type(error), str(error)))
    assert found[0] == found[1]


# What a remembered file depends on


def keyed(**node: Any) -> str:
    return key_of(node, ("numpy",))


def test_a_folder_that_is_named_counts_with_all_that_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saved" / "variables").mkdir(parents=True)
    weights = tmp_path / "saved" / "variables" / "variables.data"
    weights.write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    for named in (str(tmp_path / "saved"), "saved"):
        before = keyed(_target_="builtins.dict", path=named)
        assert keyed(_target_="builtins.dict", path=named) == before
        weights.write_bytes(weights.read_bytes() + b"2")
        assert keyed(_target_="builtins.dict", path=named) != before


def test_a_module_that_a_finder_of_its_own_finds_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an editable installation has it."""
    package = tmp_path / "src" / "sweeprof_test_net"
    package.mkdir(parents=True)
    source = package / "__init__.py"
    source.write_text("raise RuntimeError('imported')")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            return PathFinder.find_spec(name, [str(tmp_path / "src")]) if name == "sweeprof_test_net" else None

    before = keyed(_target_="sweeprof_test_net.Net")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    found = keyed(_target_="sweeprof_test_net.Net")
    assert found != before
    source.write_text("raise RuntimeError('imported, and changed')")
    assert keyed(_target_="sweeprof_test_net.Net") != found


# Random weights are those of the seed also where another process builds the model, to convert it to a file


SEED = 7
X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)


def converted_outputs(backend: Any, framework: str, node: dict[str, Any]) -> Any:
    backend.configure(SEED)
    model = backend.load(builder(node, framework), "cpu", None)
    with model.stepping(model.put(Inputs((X,)))) as step:
        return np.asarray(model.host_outputs(step()))


@pytest.mark.slow
@pytest.mark.usefixtures("converted_in_forks")
@pytest.mark.parametrize("kind", [OnnxruntimeBackend, OpenvinoBackend])
def test_random_weights_of_pytorch(kind: Any, tmp_path: Path) -> None:
    node = {"_target_": "torch.nn.Linear", "in_features": 16, "out_features": 8}
    found = converted_outputs(kind(precision="fp32", cache=str(tmp_path)), "torch", node)
    torch.manual_seed(SEED)
    expected = torch.nn.Linear(16, 8)(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("converted_in_forks")
@pytest.mark.parametrize("kind", [LitertBackend, OnnxruntimeBackend, OpenvinoBackend])
def test_random_weights_of_keras(kind: Any, tmp_path: Path) -> None:
    found = converted_outputs(
        kind(precision="fp32", cache=str(tmp_path)), "tensorflow", {"_target_": "support.keras_models.random_dense"}
    )
    keras.utils.set_random_seed(SEED)
    np.testing.assert_allclose(found, np.asarray(random_dense()(X)), atol=1e-5)


def torch_linear() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(3, 2))


def keras_dense() -> Any:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


BATCHES = [(np.ones((2, 3), np.float32), np.array([0, 1]))]
PASSES = ("compute/macs", "latency/forward", "size/artifact_bytes")


@pytest.mark.usefixtures("converted_in_forks")
@pytest.mark.parametrize(
    ("build", "backend"),
    [
        (torch_linear, "openvino"),
        (keras_dense, "litert"),
        pytest.param(keras_dense, "onnxruntime", marks=pytest.mark.slow),  # imports Keras on torch
    ],
)
def test_the_passes_of_one_call_share_a_file_and_the_next_call_has_its_own(
    build: Callable[[], Any], backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made: set[Path] = set()
    """The folders of converted models, as a metric of our own sees them."""

    def look(network: Any, batches: Any) -> float:
        made.update(path.parent for path in tmp_path.rglob("model.*") if path.suffix in (".onnx", ".xml", ".tflite"))
        return 0.0

    model = build()
    protocol = sweeprof.Protocol(min_s=0.01)
    profiler = sweeprof.Profiler(model, BATCHES, backend=backend, protocol=protocol, progress=False)
    profiler.register(sweeprof.evaluation(look, name="mine/look"))
    found = profiler.compute_all([*PASSES, "mine/look"])
    assert found["compute/macs"].value == 12
    assert all(found[name].value is not None for name in PASSES), found
    assert len(made) == 1
    # Between two calls the model may change.
    if backend == "openvino":
        model[0] = torch.nn.Linear(3, 4)
        again = profiler.compute_all(["compute/macs", "mine/look"], recompute=True)
        assert again["compute/macs"].value == 24
        assert len(made) == 2
    gc.collect()
    assert not list(tmp_path.rglob("model.*"))
