"""What formats of files share: ONNX files without weights, what is remembered, random weights, the process that converts."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
import torch

import sweeprof
from support import onnx_graphs
from support.forked import Sources
from support.keras_models import random_dense
from sweeprof import processes
from sweeprof.backends import VARYING, model_files
from sweeprof.backends.litert.adapter import LitertBackend
from sweeprof.backends.model_files import BuildFailed, ChildFailure, ChildRequest, key_of, run_child
from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
from sweeprof.backends.onnxruntime.exporting import Exporter
from sweeprof.backends.onnxruntime.files import LARGEST, Exported, without_weights
from sweeprof.counting.file_graph import OperatorRun, peak_of
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported, WorkerError
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.targets import builder
from sweeprof.zoo import digits_resnet


def test_a_result_that_nothing_reads_lives_while_its_operator_runs_and_an_output_to_the_end() -> None:
    unread = OperatorRun("one", ["x"], {"a": 1, "unread": 32})
    rest = [OperatorRun("two", ["a"], {"b": 2}), OperatorRun("three", ["b"], {"c": 34})]
    assert peak_of([unread, *rest], ["c"], 0).peak_bytes == 36
    assert peak_of([unread, *rest], ["c"], 0).peak_at == "three"
    assert peak_of([unread, *rest], ["c", "unread"], 0).peak_bytes == 68
    assert peak_of([unread, OperatorRun("two", ["a"], {"b": 2})], ["b"], 0).peak_at == "one"


def test_an_onnx_file_is_read_without_its_large_weights(tmp_path: Path) -> None:
    """Compared with the whole file: everything but the values of large initializers is the same."""
    large, small = np.ones((LARGEST // 4 + 1,), np.float32), np.arange(3, dtype=np.int64)
    nodes = [onnx_graphs.node("Relu", "x", "y", "n" * (LARGEST + 1))]
    path = onnx_graphs.saved(tmp_path, nodes, {"x": (2, 3)}, {"large": large, "small": small})
    model = onnx.load(path)
    packed = onnx.helper.make_tensor("packed", onnx.TensorProto.FLOAT, large.shape, large)  # not as raw bytes
    model.graph.initializer.append(packed)
    onnx.save(model, path)
    read = without_weights(path)
    assert [len(tensor.raw_data) for tensor in read.graph.initializer] == [0, 24, 0]
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[2].ClearField("float_data")
    assert read == model


# What a remembered file depends on


def keyed(**node: Any) -> str:
    return key_of(node, ("numpy",))


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


def outputs(backend: Any, node: Mapping[str, Any], x: Any, axis: int | None = 1, framework: str | None = None) -> Any:
    model = backend.load(builder(node, framework), "cpu", axis)
    with model.stepping(model.put(Inputs((x,)))) as step:
        return np.asarray(model.host_outputs(step()))


@pytest.mark.thorough
@pytest.mark.usefixtures("converted_in_forks")
def test_random_weights_of_pytorch(tmp_path: Path) -> None:
    node = {"_target_": "torch.nn.Linear", "in_features": 16, "out_features": 8}
    backend = OnnxruntimeBackend(precision="fp32", cache=str(tmp_path))
    backend.configure(SEED)
    found = outputs(backend, node, X, None, "torch")
    torch.manual_seed(SEED)
    expected = torch.nn.Linear(16, 8)(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.usefixtures("converted_in_forks")
@pytest.mark.parametrize("kind", [LitertBackend, OnnxruntimeBackend])
def test_random_weights_of_keras(kind: Any, tmp_path: Path) -> None:
    backend = kind(precision="fp32", cache=str(tmp_path))
    backend.configure(SEED)
    found = outputs(backend, {"_target_": "support.keras_models.random_dense"}, X, None, "tensorflow")
    keras.utils.set_random_seed(SEED)
    np.testing.assert_allclose(found, np.asarray(random_dense()(X)), atol=1e-5)


def torch_linear() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(3, 2))


def keras_dense() -> Any:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


BATCHES = [(np.ones((2, 3), np.float32), np.array([0, 1]))]
PASSES = ("compute/macs", "latency/forward", "size/artifact_bytes")


@pytest.mark.slow(rows=1)
@pytest.mark.usefixtures("converted_in_forks")
@pytest.mark.parametrize(
    ("build", "backend"), [(torch_linear, "openvino"), (keras_dense, "litert"), (keras_dense, "onnxruntime")]
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


# Models that a config describes: exported by a process of their own, once, and found again


DIGITS = Inputs((TensorSpec((4, 1, 32, 32)),))
MLP = {"_target_": "sweeprof.zoo.mlp.torch_model"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, forks: Sources) -> str:
    """A cache in which the perceptron is; it was exported once, whatever the batch, also to be counted."""
    folder, asked = str(tmp_path_factory.mktemp("cache")), []

    def counting(request: ChildRequest, variables: Mapping[str, str]) -> ChildFailure | None:
        asked.append(request)
        return run_child(request, variables)

    backend = OnnxruntimeBackend(cache=folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "subprocess", forks)
        patch.setattr(model_files, "run_child", counting)
        for batch in (4, 1):
            assert outputs(backend, MLP, np.zeros((batch, 1, 32, 32), np.float32)).shape == (batch, 10)
        backend.analyze(builder(MLP), DIGITS, 1, DEFAULTS)
    assert len(asked) == 1
    return folder


@pytest.mark.slow
def test_an_exported_model_is_found_with_its_layers(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "run_child", None)
    table = OnnxruntimeBackend(cache=cache).analyze(builder(MLP), DIGITS, 1, DEFAULTS)
    assert [(row.path, row.type) for row in table.rows][1:3] == [("flatten", "Flatten"), ("linear1", "Linear")]


@pytest.mark.slow
def test_the_process_that_measures_loads_nothing_but_the_run_time(cache: str) -> None:
    """After a first export the model is found; torch, onnx and Keras are not imported to run it."""
    program = textwrap.dedent(f"""
        import sys
        import numpy as np
        from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
        from sweeprof.targets import builder
        from sweeprof.measuring.inputs import Inputs
        model = OnnxruntimeBackend(cache={cache!r}).load(builder({MLP!r}), "cpu", 1)
        with model.stepping(model.put(Inputs((np.zeros((2, 1, 32, 32), np.float32),)))) as step:
            step()
        print(sorted({{"torch", "onnx", "keras", "tensorflow", "onnxscript"}} & sys.modules.keys()))
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[]"


def test_what_the_key_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder counts with all that is in it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "saved" / "variables").mkdir(parents=True)
    source, weights = tmp_path / "mine" / "net.py", tmp_path / "weights.pt"
    source.write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    node = {"_target_": "mine.net.Net", "width": 3, "weights": str(weights), "folder": "saved"}
    signature = {"args": [{"shape": [2, 3], "dtype": "float32"}], "kwargs": {}}

    def key(signature: Any = signature, axis: int | None = 1, opset: int = 23, seed: int = 0, **change: Any) -> str:
        return key_of({**node, **change}, Exporter.PACKAGES, signature, axis, opset, seed)

    changes: list[dict[str, Any]] = [{"axis": None}, {"opset": 20}, {"seed": 1}, {"width": 4}, {"signature": {}}]
    found = [key(), *(key(**change) for change in changes)]
    beside, variables = tmp_path / "mine" / "beside.py", tmp_path / "saved" / "variables" / "variables.data"
    for path in (source, weights, weights, beside, variables, variables):
        path.write_bytes(path.read_bytes() + b"#" if path.exists() else b"")
        found.append(key())
    assert len(set(found)) == len(found)
    assert key() == found[-1]


def test_a_text_need_not_be_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ("", "x" * 300, "~nobody-of-this-name", "a\0b")
    before = [key_of({"_target_": "dict", "text": text}, []) for text in texts]
    (tmp_path / "beside.txt").write_text("of the present folder, which the empty text does not name")
    assert [key_of({"_target_": "dict", "text": text}, []) for text in texts] == before


LACK = "DefaultCPUAllocator: can't allocate memory: 1 bytes"
RAISED: list[tuple[str, str, str, type[Exception], str]] = [
    ("build", "SomebodysError", "no luck", BuildFailed, "^SomebodysError: no luck$"),
    ("build", "KeyboardInterrupt", "no luck", BuildFailed, "^KeyboardInterrupt: no luck$"),
    ("build", "RuntimeError", LACK, MemoryError, "."),
    ("export", "RuntimeError", LACK, MemoryError, "."),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "kind", "message", "error", "says"), RAISED)
def test_what_the_process_raised_is_raised(
    stage: str,
    kind: str,
    message: str,
    error: type[Exception],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The real process is tested by the conformance suite."""
    monkeypatch.setattr(model_files, "run_child", lambda *_: ChildFailure(stage, kind, message))
    with pytest.raises(error, match=says), Exporter(cache=str(tmp_path)).converted(builder(MLP), DIGITS, 1):
        pass


def test_a_model_that_is_not_exported_for_any_batch_size_is_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer is remembered: neither export is asked for twice."""
    shapes = []

    def refusing(request: ChildRequest, variables: Mapping[str, str]) -> ChildFailure | None:
        shapes.append(request["signature"]["args"][0]["shape"])
        if shapes[-1][0] == VARYING:
            return ChildFailure("export", "RuntimeError", "no luck")
        Exported(f"{request['folder']}/model.onnx", batch=shapes[-1][0]).write_facts()
        return None

    monkeypatch.setattr(model_files, "run_child", refusing)
    for _ in range(2):
        with Exporter(cache=str(tmp_path)).converted(builder(MLP), Inputs((TensorSpec((4, 3)),)), 1) as file:
            assert file.batch == 4
    assert shapes == [[VARYING, 3], [4, 3]]


@pytest.mark.parametrize(("stage", "error", "asked"), [("build", ValueError, 1), ("export", Unsupported, 2)])
def test_what_fails_altogether_is_not_remembered(
    stage: str, error: type[Exception], asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def failing(request: ChildRequest, variables: Mapping[str, str]) -> ChildFailure:
        requests.append(request)
        return ChildFailure(stage, "ValueError", "no luck")

    monkeypatch.setattr(model_files, "run_child", failing)
    for times in (1, 2):
        with pytest.raises(error, match="no luck"):  # noqa: SIM117
            with Exporter(cache=str(tmp_path)).converted(builder(MLP), DIGITS, 1):
                pass
        assert len(requests) == times * asked


def test_a_process_that_dies_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = Exporter(cache=str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    says = "the process that makes the model.s file failed: .*(ended with code 1: no output|is gone)"
    with pytest.raises(WorkerError, match=says), exporter.converted(builder(MLP), DIGITS, 1):
        pass


@pytest.mark.slow
@pytest.mark.usefixtures("converted_in_forks")
def test_keras_models_have_their_layers_and_agree_with_tensorflow(tmp_path: Path) -> None:
    """Weights moved within an image would show in the outputs, layers that torch does not see in the rows."""
    backend = OnnxruntimeBackend(cache=str(tmp_path))
    node = {"_target_": "sweeprof.zoo.digits_resnet.keras_model"}
    x = np.random.default_rng(0).standard_normal((4, 1, 32, 32)).astype(np.float32)
    found = outputs(backend, node, x)
    np.testing.assert_allclose(found, digits_resnet.keras_model()(np.moveaxis(x, 1, -1)).numpy(), atol=1e-4)
    table = backend.analyze(builder(node), DIGITS, 1, DEFAULTS)
    assert (table.macs, table.params, table.trainable, table.buffers) == (4 * 12_206_720, 77_754, 77_754, 672)
    assert table.uncovered == {}
    rows = {row.path: row for row in table.rows}
    assert (rows["conv1"].type, rows["conv1"].macs, rows["conv1"].params) == ("Conv2D", 4 * 147_456, 144)
    assert (rows["bn1"].type, rows["bn1"].params, rows["bn1"].buffers) == ("BatchNormalization", 32, 32)
    assert sum(row.macs or 0 for row in table.rows if row.type in ("Conv2D", "Dense")) == table.macs
