"""Models from files, against the models that were saved."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import sweeprof
from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.backends.tensorflow.files import SavedModel, load
from sweeprof.errors import UserError
from sweeprof.results.record import Protocol
from sweeprof.zoo.lenet5 import keras_model

X = np.random.default_rng(0).standard_normal((2, 32, 32, 1), np.float32)
FILES = ("model.keras", "model.h5", "exported", "saved")
SHORT = Protocol(warmup_steps=1, warmup_s=0, sample_s=0, min_samples=3, min_s=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    model = keras_model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras saves with what numpy 2 deprecates
        for name in FILES[:2]:
            model.save(made / name)
        model.export(made / "exported", verbose=False)
        tf.saved_model.save(model, made / "saved")
    np.save(made / "outputs.npy", model(X).numpy())
    return made


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_the_model(name: str, folder: Path) -> None:
    model = load(str(folder / name))
    loaded = TensorflowBackend().load(lambda: model, "cpu", 1)
    with loaded.stepping(loaded.put(sweeprof.Inputs((np.moveaxis(X, -1, 1),)))) as step:
        outputs = np.asarray(loaded.host_outputs(step()))
    np.testing.assert_allclose(outputs, np.load(folder / "outputs.npy"), atol=1e-5)
    assert sum(math.prod(variable.shape) for variable in model.trainable_variables) == 61_706


def test_a_saved_model_is_profiled_and_trained_as_it_is(folder: Path) -> None:
    model = load(str(folder / "exported"))
    before = model.get_weights()
    data = [(X, np.array([3, 4]))]
    profiler = sweeprof.Profiler(model, data, mode="training", loss="cross_entropy", optimizer=_fast, protocol=SHORT)
    assert profiler.compute("latency/iteration").value is not None
    assert profiler.compute("quality/accuracy").value in (0.0, 0.5, 1.0)
    for found, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    loaded = TensorflowBackend(mode="eager").load(lambda: model, "cpu", None)
    with TensorflowBackend(mode="eager").training(
        loaded, loaded.put(profiler.session.inputs()), data[0][1], profiler.session.training_config
    ) as step:
        step.backward(step.forward())  # type: ignore[union-attr]
        step.update()  # type: ignore[union-attr]
    assert not np.allclose(model(X), np.load(folder / "outputs.npy"))  # what is trained is what is run


def _fast(variables: Any) -> Any:
    return keras.optimizers.SGD(0.5)


class Two(tf.Module):  # type: ignore[misc]
    @tf.function(input_signature=[tf.TensorSpec((None, 2), name="b"), tf.TensorSpec((None, 2), name="a")])  # type: ignore[untyped-decorator]
    def less(self, b: Any, a: Any) -> dict[str, Any]:
        return {"difference": b - a, "sum": b + a}


def test_several_tensors_by_position_or_by_name(tmp_path: Path) -> None:
    module = Two()
    tf.saved_model.save(module, tmp_path, signatures={"less": module.less})
    a, b = np.ones((1, 2), np.float32), np.full((1, 2), 3, np.float32)
    model = load(str(tmp_path))
    assert isinstance(model, SavedModel)
    np.testing.assert_array_equal(model(a=a, b=b)["difference"], b - a)
    assert set(model(a=a, b=b)) == {"difference", "sum"}
    assert load(str(tmp_path), "less").name == "saved_model"


@pytest.mark.parametrize(
    ("name", "endpoint", "says"),
    [
        ("absent.keras", None, "does not exist."),
        ("empty", None, "is a folder without a saved_model.pb: no SavedModel."),
        (
            "notes.txt",
            None,
            "is no model of Keras or TensorFlow: a file that ends in .keras, .h5, .hdf5, or a SavedModel.",
        ),
        ("broken.keras", None, "cannot be read: "),
        ("broken.h5", None, "cannot be read: "),
        ("exported", "predict", "has no function or signature predict. Its signatures: serve, serving_default."),
    ],
)
def test_what_is_no_model(name: str, endpoint: str | None, says: str, folder: Path) -> None:
    (folder / "empty").mkdir(exist_ok=True)
    for file in ("notes.txt", "broken.keras", "broken.h5"):
        (folder / file).write_text("no model")
    with pytest.raises(UserError) as raised:
        load(str(folder / name), endpoint)
    assert str(raised.value).startswith(f"model.tensorflow.path: '{folder / name}' {says}")
