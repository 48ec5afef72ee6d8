"""How a model becomes a TFLite file: once, in a process of its own; and the process that runs it, which has none of TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.targets import builder, instantiate

pytest.importorskip("ai_edge_litert")

from sweeprof.backends import model_files
from sweeprof.backends.litert.adapter import LitertBackend
from sweeprof.backends.litert.convert import LitertConverter
from sweeprof.backends.litert.model import TfliteFile

IMAGES = Inputs((TensorSpec((2, 1, 32, 32)),))


def described(target: str, **keywords: Any) -> Any:
    return partial(instantiate, {"_target_": target, **keywords})


def convert(build: Any, folder: Path, quantization: Any = "none", samples: Any = None) -> bytes:
    taken = None if samples is None else lambda _: samples
    with LitertConverter(0, str(folder), taken, quantization).converted(build, IMAGES, 1) as file:
        return Path(file.path).read_bytes()


def test_what_a_builder_raises_comes_through(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no luck"):
        convert(described("builtins.int", _args_=["no luck"]), tmp_path)
    with pytest.raises(TypeError, match="the model's builder returned a str, not a Keras model or a TfliteFile"):
        convert(described("builtins.str"), tmp_path)
    with pytest.raises(TypeError, match="the model's builder returned a str"):
        convert(lambda: "a model in the caller's hands", tmp_path)
    assert list(tmp_path.rglob("*.tflite")) == []


def test_what_cannot_be_converted_has_the_converters_words(tmp_path: Path) -> None:
    import tensorflow as tf

    with pytest.raises(Unsupported, match=r"TensorFlow's converter cannot convert the model: .*tf\.Betainc"):
        convert(lambda: lambda x: tf.math.betainc(x, x, x), tmp_path)
    with pytest.raises(Unsupported, match="takes its ranges from samples, and there are none"):
        convert(lambda: lambda x: x + 1, tmp_path, "int8")
    stepped = Inputs((TensorSpec((1,)),), forward=lambda model, x: model(x))
    with pytest.raises(Unsupported, match="more than calling it cannot be exported"):
        LitertConverter(cache=str(tmp_path)).converted(lambda: lambda x: x, stepped, None).__enter__()


@pytest.mark.slow
@pytest.mark.usefixtures("converted_in_forks")
def test_a_model_is_converted_once_for_what_it_is_made_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = builder({"_target_": "sweeprof.zoo.mlp.keras_model", "pretrained": False}, "tensorflow")
    first = convert(build, tmp_path / "a")
    assert len(first) > 4 * 139_904
    assert convert(build, tmp_path / "b") == first
    with LitertConverter(1, str(tmp_path / "a")).converted(build, IMAGES, 1) as other_seed:
        assert Path(other_seed.path).read_bytes() != first

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was converted again")

    monkeypatch.setattr(model_files, "run_child", never)
    assert convert(build, tmp_path / "a") == first
    with pytest.raises(AssertionError, match="it was converted again"):
        convert(build, tmp_path / "a", "float16")


PROGRAM = """
import json, sys
import numpy as np, psutil
from ai_edge_litert import schema_py_generated as schema
from support.tflite_file import one_operator
from sweeprof.backends.litert.adapter import LitertBackend
from sweeprof.backends.litert.model import TfliteFile
from sweeprof.measuring.inputs import Inputs, TensorSpec

matrix = np.full((1024, 1024), 1e-3, np.float32)
content = one_operator("FULLY_CONNECTED", matrix, matrix, "FullyConnectedOptions", schema.FullyConnectedOptionsT(), matrix.shape)
open(sys.argv[1], "wb").write(content)

def times():
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process().threads()}

found = {}
for threads in (1, 2):
    model = LitertBackend(threads=threads).load(lambda: TfliteFile(sys.argv[1]), "cpu", None)
    with model.stepping(model.put(Inputs((TensorSpec((1024, 1024)),)))) as step:
        step()
        before = times()
        for _ in range(20):
            step()
        spent = {id: time - before.get(id, 0.0) for id, time in times().items()}
    found[threads] = [spent.pop(psutil.Process().pid), sum(spent.values())]
print(json.dumps({"threads": found, "loaded": [name for name in ("tensorflow", "keras", "torch", "jax") if name in sys.modules]}))
"""


def test_a_measured_process_has_the_interpreter_and_as_many_threads_as_it_should(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "product.tflite")],
        capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["loaded"] == []
    (own, others), (own_of_two, others_of_two) = found["threads"]["1"], found["threads"]["2"]
    assert others < 0.1 * (own + others)
    assert others_of_two > 0.1 * (own_of_two + others_of_two)


def test_the_cache_is_the_users_or_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def made(request: Any, variables: Any) -> None:
        asked.append(request)
        file = TfliteFile(str(Path(request["folder"]) / TfliteFile.NAME))
        Path(file.path).write_bytes(b"content")
        file.write_facts()

    monkeypatch.setattr(model_files, "run_child", made)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build, backend = described("sweeprof.zoo.mlp.keras_model"), LitertBackend(precision="int8")
    backend.expect(IMAGES)
    backend.ranges_from(lambda limit: Inputs((np.zeros((limit, 1, 32, 32), np.float32),)))
    assert backend.artifact(build, 1).bytes == len(b"content")
    assert Path(asked[0]["folder"]).parent == tmp_path / "sweeprof" / "litert"
    assert asked[0]["signature"] == {"args": [{"shape": [2, 32, 32, 1], "dtype": "float32"}], "kwargs": {}}
    backend.ranges_from(lambda limit: Inputs((np.ones((limit, 1, 32, 32), np.float32),)))
    backend.artifact(build, 1)
    backend.artifact(build, 1)
    assert len({request["folder"] for request in asked}) == len(asked) == 2
