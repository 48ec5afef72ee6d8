"""Every backend takes batches of every framework: for counts, times, quality and training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from jax import numpy as jnp
from torch.utils.data import DataLoader, TensorDataset

import sweeprof
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.datasets import Split
from sweeprof.nested import array_of
from sweeprof.profiling.session import BuiltSession

QUICK = sweeprof.Protocol(min_s=0.02, warmup_s=0.01)
RANDOM = np.random.default_rng(0)
SAMPLES, CLASSES = RANDOM.standard_normal((24, 8), np.float32), RANDOM.integers(0, 3, 24)
WEIGHTS = RANDOM.standard_normal((8, 3), np.float32)
ACCURACY = float((np.argmax(SAMPLES @ WEIGHTS, 1) == CLASSES).mean())


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        chosen = slice(8 * index, 8 * index + 8)
        return SAMPLES[chosen], CLASSES[chosen]


def read_only() -> Any:
    samples = SAMPLES.copy()
    samples.flags.writeable = False
    return [(samples, CLASSES)]


DATA: dict[str, Callable[[], Any]] = {
    "tf.data": lambda: tf.data.Dataset.from_tensor_slices((SAMPLES, CLASSES)).batch(8),
    "tf.data of mappings": lambda: tf.data.Dataset.from_tensor_slices({"inputs": SAMPLES, "label": CLASSES}).batch(8),
    "torch's loader": lambda: DataLoader(
        TensorDataset(torch.from_numpy(SAMPLES), torch.from_numpy(CLASSES)), batch_size=8
    ),
    "Keras's sequence": Batches,
    "JAX": lambda: [(jnp.asarray(SAMPLES), jnp.asarray(CLASSES))],
    "read-only arrays": read_only,
    "a tuple": lambda: (SAMPLES, CLASSES),
    "a split that is a tuple of tensors": lambda: {"test": (tf.constant(SAMPLES), tf.constant(CLASSES))},
}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.from_numpy(WEIGHTS.copy()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight


def keras_model() -> Any:
    given = keras.Input((8,), name="inputs")
    model = keras.Model(given, keras.layers.Dense(3, use_bias=False)(given))
    model.set_weights([WEIGHTS])
    return model


def figures(model: Any, data: Any, backend: str) -> list[Any]:
    profiler = sweeprof.Profiler(model, data, backend=backend, protocol=QUICK)
    found = profiler.compute_all(["quality/accuracy", "latency/forward", "compute/macs_per_sample"])
    assert found["latency/forward"].value is not None, found["latency/forward"].reason
    return [found["quality/accuracy"].value, found["compute/macs_per_sample"].value]


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_frameworks(backend: str, kind: str) -> None:
    model = Net() if backend == "torch" else keras_model()
    assert figures(model, DATA[kind](), backend) == [pytest.approx(ACCURACY), 24]


@pytest.mark.slow
@pytest.mark.usefixtures("converted_in_forks")
@pytest.mark.parametrize(
    ("backend", "made"),
    [
        ("onnxruntime", Net),
        ("openvino", Net),
        ("onnxruntime", keras_model),
        ("openvino", keras_model),
        ("litert", keras_model),
    ],
)
def test_converted_models(backend: str, made: Callable[[], Any]) -> None:
    for kind, data in DATA.items():
        assert figures(made(), data(), backend) == [pytest.approx(ACCURACY), 24], kind


@pytest.mark.slow
@pytest.mark.usefixtures("converted_in_forks")
def test_types_that_numpy_does_not_have() -> None:
    data = [(torch.from_numpy(SAMPLES).bfloat16().requires_grad_(), torch.from_numpy(CLASSES))]
    assert figures(Net(), data, "onnxruntime")[1] == 24
    assert array_of(tf.constant([1.5], tf.bfloat16)).tolist() == [1.5]
    assert array_of(tf.constant([1.5], tf.bfloat16)).dtype == np.float32


@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
@pytest.mark.parametrize("kind", ["tf.data", "torch's loader", "JAX", "a tuple"])
def test_training(backend: str, kind: str) -> None:
    model = Net() if backend == "torch" else keras_model()
    profiler = sweeprof.Profiler(
        model, DATA[kind](), backend=backend, mode="training", loss="cross_entropy", protocol=QUICK
    )
    found = profiler.compute("latency/iteration")
    assert found.value is not None, found.reason


@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_inputs_alone(backend: str) -> None:
    model = Net() if backend == "torch" else keras_model()
    for inputs in (tf.constant(SAMPLES), torch.from_numpy(SAMPLES), jnp.asarray(SAMPLES)):
        profiler = sweeprof.Profiler(model, inputs=inputs, backend=backend, protocol=QUICK)
        assert profiler.compute("latency/forward").value is not None


@pytest.mark.parametrize("made", [torch.from_numpy, tf.constant, jnp.asarray], ids=["torch", "TensorFlow", "JAX"])
def test_a_dataset_whose_batches_are_made_by_a_framework(made: Callable[[Any], Any]) -> None:
    """As a sweep has it: torch's own function that collates samples returns tensors."""

    class Collated:
        def split(self, name: str) -> Split:
            return Split(list(SAMPLES), list(CLASSES), lambda samples: made(np.stack(samples)))

    session = BuiltSession(backend=TorchBackend(), build=Net, dataset=Collated(), batch_size=8)
    quality: Any = session.run("quality")
    assert np.equal(quality.predictions, CLASSES).mean() == pytest.approx(ACCURACY)
