"""Models that a config describes: exported by a process of their own, once, and found again."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.forked import Sources
from sweeprof import processes
from sweeprof.backends import VARYING, model_files
from sweeprof.backends.model_files import BuildFailed, ChildFailure, ChildRequest, key_of, run_child
from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
from sweeprof.backends.onnxruntime.exporting import Exporter
from sweeprof.backends.onnxruntime.files import Exported
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported, WorkerError
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.targets import builder

DIGITS = Inputs((TensorSpec((4, 1, 32, 32)),))
MLP = {"_target_": "sweeprof.zoo.mlp.torch_model"}


def mlp_by_hand(x: Any) -> Any:
    """Three products, with the zoo's weights."""
    from safetensors.numpy import load_file

    from sweeprof.zoo import weight_file

    weights = load_file(weight_file("mlp"))
    values = x.reshape(len(x), -1)
    for index in (1, 2, 3):
        values = values @ weights[f"linear{index}.weight"].T + weights[f"linear{index}.bias"]
        values = np.maximum(values, 0) if index < 3 else values
    return values


def outputs(backend: OnnxruntimeBackend, node: Mapping[str, Any], x: Any) -> Any:
    model = backend.load(builder(node), "cpu", 1)
    with model.stepping(model.put(Inputs((x,)))) as step:
        return np.asarray(model.host_outputs(step()))


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
            x = np.random.default_rng(0).standard_normal((batch, 1, 32, 32)).astype(np.float32)
            np.testing.assert_allclose(outputs(backend, MLP, x), mlp_by_hand(x), atol=1e-4)
        backend.analyze(builder(MLP), DIGITS, 1, DEFAULTS)
    assert len(asked) == 1
    return folder


@pytest.mark.slow
def test_an_exported_model_is_found_with_its_layers(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "run_child", None)
    table = OnnxruntimeBackend(cache=cache).analyze(builder(MLP), DIGITS, 1, DEFAULTS)
    assert (table.macs, table.params, table.trainable) == (4 * 139_904, 140_106, 140_106)
    assert [(row.path, row.type) for row in table.rows][:3] == [
        ("__root__", "Sequential"),
        ("flatten", "Flatten"),
        ("linear1", "Linear"),
    ]


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
            print(np.asarray(model.host_outputs(step())).shape)
        print(sorted({{"torch", "onnx", "keras", "tensorflow", "onnxscript"}} & sys.modules.keys()))
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["(2, 10)", "[]"]


def test_what_the_key_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    source, weights = tmp_path / "mine" / "net.py", tmp_path / "weights.pt"
    source.write_text("raise RuntimeError('imported')")
    weights.write_bytes(b"1")
    monkeypatch.syspath_prepend(str(tmp_path))
    node = {"_target_": "mine.net.Net", "width": 3, "weights": str(weights)}
    signature = {"args": [{"shape": [2, 3], "dtype": "float32"}], "kwargs": {}}

    def key(axis: int | None = 1, opset: int = 23, seed: int = 0, **change: Any) -> str:
        return key_of({**node, **change}, Exporter.PACKAGES, signature, axis, opset, seed)

    first = key()
    assert key() == first
    others = {
        key(axis=None),
        key(opset=20),
        key(seed=1),
        key(width=4),
        key_of(node, Exporter.PACKAGES, {"args": []}, 1, 23, 0),
    }
    assert len(others | {first}) == 6
    source.write_text("raise RuntimeError('imported, and changed')")
    changed = key()
    assert changed != first
    weights.write_bytes(b"22")
    assert key() not in (first, changed)
    (tmp_path / "mine" / "beside.py").write_text("")
    assert key() != changed


def test_a_text_need_not_be_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ("", "x" * 300, "~nobody-of-this-name", "a\0b")
    before = [key_of({"_target_": "dict", "text": text}, []) for text in texts]
    (tmp_path / "beside.txt").write_text("of the present folder, which the empty text does not name")
    assert [key_of({"_target_": "dict", "text": text}, []) for text in texts] == before


def test_what_is_known_beside_a_graph_is_kept(tmp_path: Path) -> None:
    known = Exported(str(tmp_path / "model.onnx"), "last", ("y",), 3, {"": "Net"}, {"w": "frozen"}, {"n": "a.b"})
    with pytest.raises(FileNotFoundError):
        Exported.within(tmp_path)
    known.write_facts()
    assert Exported.within(tmp_path) == known
    (tmp_path / "model.onnx").write_bytes(b"123")
    (tmp_path / "model.onnx.data").write_bytes(b"4567")
    assert known.artifact().bytes == 7


LACK = "DefaultCPUAllocator: can't allocate memory: 1 bytes"
RAISED: list[tuple[str, str, str, type[Exception], str]] = [
    ("build", "ValueError", "no luck", ValueError, "^no luck$"),
    ("build", "MemoryError", "no luck", MemoryError, "^no luck$"),
    ("build", "SomebodysError", "no luck", BuildFailed, "^SomebodysError: no luck$"),
    ("build", "UnicodeDecodeError", "no luck", BuildFailed, "^UnicodeDecodeError: no luck$"),
    ("build", "KeyboardInterrupt", "no luck", BuildFailed, "^KeyboardInterrupt: no luck$"),
    ("build", "RuntimeError", LACK, MemoryError, "."),
    ("export", "MemoryError", "no luck", MemoryError, "^no luck$"),
    ("export", "RuntimeError", LACK, MemoryError, "."),
    ("export", "TorchExportError", "no luck", Unsupported,
     r"^torch\.onnx cannot export the model: TorchExportError: no luck$"),
    ("export", "ValueError", "no luck", Unsupported, r"^torch\.onnx cannot export the model: ValueError: no luck$"),
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


@pytest.mark.parametrize("batch", [4, 2])
def test_a_model_that_is_not_exported_for_any_batch_size_is_for_one(
    batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    inputs = Inputs((TensorSpec((batch, 3)),))
    for _ in range(2):
        refused = pytest.raises(Unsupported, match="no luck") if batch == VARYING else nullcontext()
        with refused, Exporter(cache=str(tmp_path)).converted(builder(MLP), inputs, 1) as file:
            assert file.batch == batch
    assert shapes == ([[VARYING, 3]] * 2 if batch == VARYING else [[VARYING, 3], [batch, 3]])


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
    from sweeprof.zoo import digits_resnet

    np.testing.assert_allclose(found, digits_resnet.keras_model()(np.moveaxis(x, 1, -1)).numpy(), atol=1e-4)
    table = backend.analyze(builder(node), DIGITS, 1, DEFAULTS)
    assert (table.macs, table.params, table.trainable, table.buffers) == (4 * 12_206_720, 77_754, 77_754, 672)
    assert table.uncovered == {}
    rows = {row.path: row for row in table.rows}
    assert (rows["conv1"].type, rows["conv1"].macs, rows["conv1"].params) == ("Conv2D", 4 * 147_456, 144)
    assert (rows["bn1"].type, rows["bn1"].params, rows["bn1"].buffers) == ("BatchNormalization", 32, 32)
    assert sum(row.macs or 0 for row in table.rows if row.type in ("Conv2D", "Dense")) == table.macs
