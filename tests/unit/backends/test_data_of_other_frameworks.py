"""Every backend takes batches of every framework and of any length: for counts, times, quality and training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from jax import numpy as jnp
from torch.utils.data import DataLoader, TensorDataset

import sweeprof
from sweeprof.backends.litert.adapter import LitertBackend
from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
from sweeprof.backends.onnxruntime.exporting import Exporter
from sweeprof.backends.openvino.adapter import OpenvinoBackend
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.datasets import Split
from sweeprof.datasets.collate import Pad
from sweeprof.errors import UserError
from sweeprof.nested import array_of
from sweeprof.profiling.session import BuiltSession
from sweeprof.zoo import lenet5

QUICK = sweeprof.Protocol(min_s=0.02, warmup_s=0.01)
RANDOM = np.random.default_rng(0)
SAMPLES, CLASSES = RANDOM.standard_normal((24, 8), np.float32), RANDOM.integers(0, 3, 24)
WEIGHTS = RANDOM.standard_normal((8, 3), np.float32)
converting = pytest.mark.usefixtures("converted_in_forks")
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


@converting
@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        *(("torch", kind) for kind in DATA),
        *(("tensorflow", kind) for kind in ("torch's loader", "Keras's sequence", "JAX")),
        *(
            pytest.param(backend, kind, marks=pytest.mark.slow)
            for backend in ("onnxruntime", "openvino", "litert")
            for kind in ("tf.data", "torch's loader", "JAX")
        ),
    ],
)
def test_frameworks(backend: str, kind: str) -> None:
    model = Net() if backend in ("torch", "onnxruntime") else keras_model()
    assert figures(model, DATA[kind](), backend) == [pytest.approx(ACCURACY), 24]


PICTURES, STEPS = RANDOM.integers(0, 256, (8, 3, 6, 6), np.uint8), RANDOM.random((8, 5, 4), np.float32)


def keras_of_both() -> Any:
    image, steps = keras.Input((6, 6, 3), dtype="uint8", name="image"), keras.Input((5, 4), name="steps")
    kernel = keras.initializers.Constant(0.05)
    seen = keras.layers.Conv2D(2, 3, kernel_initializer=kernel)(keras.layers.Rescaling(1 / 255)(image))
    means = [keras.layers.GlobalAveragePooling2D()(seen), keras.layers.GlobalAveragePooling1D()(steps)]
    return keras.Model({"image": image, "steps": steps}, keras.layers.Concatenate()(means))


class PicturesAndSteps:
    channel_axis = 1

    def split(self, name: str) -> Split:
        expected = keras_of_both()({"image": np.moveaxis(PICTURES, 1, -1), "steps": STEPS})
        return Split({"image": PICTURES, "steps": STEPS}, expected.numpy())


@converting
@pytest.mark.thorough
@pytest.mark.parametrize("backend", [LitertBackend, OnnxruntimeBackend, OpenvinoBackend])
def test_a_sequence_beside_an_image_of_whole_numbers_keeps_its_axes(backend: Any) -> None:
    session = BuiltSession(backend=backend(), build=keras_of_both, dataset=PicturesAndSteps(), batch_size=8)
    quality: Any = session.run("quality")
    assert quality.numbers is not None
    assert quality.numbers.squared_errors == pytest.approx([0] * 6, abs=1e-3)  # OpenVINO may compute in bfloat16
    table: Any = session.run("analysis")
    assert table.macs == 8 * 4 * 4 * 2 * 3 * 3 * 3


@converting
@pytest.mark.parametrize(
    "backend",
    ["tensorflow", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("litert", "onnxruntime", "openvino"))],
)
def test_the_first_output_of_a_mapping_is_evaluated_whatever_its_name(backend: str) -> None:
    given = keras.Input((8,))
    outputs = {"zeta": keras.layers.Rescaling(2)(given), "alpha": keras.layers.Rescaling(3)(given)}
    profiler = sweeprof.Profiler(keras.Model(given, outputs), (SAMPLES, 2 * SAMPLES), backend=backend, protocol=QUICK)
    found = profiler.compute("quality/mse")
    assert found.value == pytest.approx(0, abs=1e-3), found.reason  # OpenVINO may compute in bfloat16


@pytest.mark.slow
@converting
def test_types_that_numpy_does_not_have() -> None:
    data = [(torch.from_numpy(SAMPLES).bfloat16().requires_grad_(), torch.from_numpy(CLASSES))]
    assert figures(Net(), data, "onnxruntime")[1] == 24
    assert array_of(tf.constant([1.5], tf.bfloat16)).tolist() == [1.5]
    assert array_of(tf.constant([1.5], tf.bfloat16)).dtype == np.float32


@pytest.mark.slow(rows=1)
@pytest.mark.parametrize(("backend", "kind"), [("torch", "tf.data"), ("tensorflow", "torch's loader")])
def test_training(backend: str, kind: str) -> None:
    model = Net() if backend == "torch" else keras_model()
    settings: dict[str, Any] = {"mode": "training", "loss": "cross_entropy", "protocol": QUICK}
    profiler = sweeprof.Profiler(model, DATA[kind](), backend=backend, **settings)
    found = profiler.compute("latency/iteration")
    assert found.value is not None, found.reason


@pytest.mark.parametrize("made", [torch.from_numpy, tf.constant, jnp.asarray], ids=["torch", "TensorFlow", "JAX"])
def test_a_dataset_whose_batches_are_made_by_a_framework(made: Callable[[Any], Any]) -> None:
    """As a sweep has it: torch's own function that collates samples returns tensors."""

    class Collated:
        def split(self, name: str) -> Split:
            return Split(list(SAMPLES), list(CLASSES), lambda samples: made(np.stack(samples)))

    session = BuiltSession(backend=TorchBackend(), build=Net, dataset=Collated(), batch_size=8)
    quality: Any = session.run("quality")
    assert np.equal(quality.predictions, CLASSES).mean() == pytest.approx(ACCURACY)


# Figures of quality, and data of several kinds


def test_a_keras_model_and_its_torch_twin_on_the_same_loader() -> None:
    """The loader gives images as torch has them; a pattern moves their channels for Keras."""
    random = np.random.default_rng(0)
    images = torch.from_numpy(random.standard_normal((12, 1, 32, 32), np.float32))
    loader = DataLoader(TensorDataset(images, torch.arange(12) % 10), batch_size=5)
    names = ["quality/accuracy", "quality/loss", "quality/top5"]
    theirs = sweeprof.Profiler(lenet5.torch_model(), loader).compute_all(names)
    ours = sweeprof.Profiler(
        lenet5.keras_model(),
        loader,
        input_pattern=lambda batch: sweeprof.Inputs((np.moveaxis(batch[0].numpy(), 1, -1),)),
    ).compute_all(names)
    assert {name: m.value for name, m in ours.items()} == pytest.approx(
        {name: m.value for name, m in theirs.items()}, rel=1e-4
    )


def test_data_without_end() -> None:
    endless = tf.data.Dataset.from_tensor_slices((SAMPLES, CLASSES)).batch(8).repeat()
    profiler = sweeprof.Profiler(keras_model(), endless)
    with pytest.raises(UserError, match=r"data: '_RepeatDataset' never ends \(repeat\(\)\), .* take\(n\)"):
        profiler.run("quality")
    found = sweeprof.Profiler(keras_model(), endless.take(3)).compute("quality/accuracy")
    assert found.value == pytest.approx(ACCURACY)
    assert profiler.session.inputs().args[0].shape == (8, 8)  # one batch of it can be timed


def test_a_model_of_several_inputs_from_a_dataset() -> None:
    logits = SAMPLES @ WEIGHTS
    first, second = keras.Input((3,), name="first"), keras.Input((3,), name="second")
    model = keras.Model([first, second], keras.layers.Add()([first, second]))
    for batch in (((logits, logits), CLASSES), ({"first": logits, "second": logits}, CLASSES)):
        data = tf.data.Dataset.from_tensor_slices(batch).batch(3)
        assert sweeprof.Profiler(model, data).compute("quality/accuracy").value == pytest.approx(ACCURACY)


# Batches of different lengths on run-times of files: outputs are those of the framework, and no batch is left out


class Classifier(torch.nn.Module):
    """The mean of the ids of a text and their places, without its padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(50, 16)
        self.places = torch.nn.Embedding(64, 16)
        self.output = torch.nn.Linear(16, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        mask = attention_mask[..., None].to(x.dtype)
        pooled: torch.Tensor = self.output((x * mask).sum(1) / mask.sum(1))
        return pooled


def texts(lengths: list[int]) -> Iterator[Any]:
    for length, rows in zip(lengths, [4] * (len(lengths) - 1) + [2], strict=True):
        ids = RANDOM.integers(0, 50, (rows, length))
        mask = np.ones_like(ids)
        mask[0, length // 2 + 1 :] = 0
        yield {"input_ids": ids, "attention_mask": mask}, RANDOM.integers(0, 3, rows)


def predictions(model: Any, data: list[Any], backend: Any) -> tuple[int, ...]:
    quality: Any = sweeprof.Profiler(model, data, backend=backend, protocol=QUICK).run("quality")
    found: tuple[int, ...] = quality.predictions
    assert len(found) == sum(len(targets) for _, targets in data)
    return found


@pytest.mark.thorough
@converting
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert"])
def test_images_of_different_sizes_in_keras(backend: str) -> None:
    given = keras.Input((None, None, 3))
    hidden = keras.layers.Conv2D(4, 3, padding="same")(given)
    model = keras.Model(given, keras.layers.GlobalAveragePooling2D()(hidden))
    data = [
        (RANDOM.standard_normal((2, *size, 3), np.float32), np.array([0, 1]))
        for size in [(8, 8), (8, 12), (10, 6), (8, 8)]
    ]
    assert predictions(model, data, backend) == predictions(model, data, "tensorflow")


@pytest.mark.thorough
@converting
def test_the_export_for_all_lengths_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    convert, made = Exporter.convert, list[Exporter]()

    def counted(self: Exporter, *args: Any) -> Any:
        made.append(self)
        return convert(self, *args)

    monkeypatch.setattr(Exporter, "convert", counted)
    predictions(Classifier().eval(), list(texts([8, 12, 5, 20, 3, 7])), "onnxruntime")
    assert [exporter.open_axes for exporter in made] == [(), ((1,), (1,))]


@pytest.mark.slow(rows=1)
@converting
@pytest.mark.parametrize("backend", [OnnxruntimeBackend, OpenvinoBackend])
def test_padded_samples_of_a_sweep(backend: Any, tmp_path: Path) -> None:
    lengths = [3, 9, 4, 4, 12, 2, 5]

    class Texts:
        def split(self, name: str) -> Split:
            random = np.random.default_rng(1)
            samples = [{"input_ids": random.integers(1, 50, length)} for length in lengths]
            return Split(samples, np.arange(len(lengths)) % 3, Pad())

    def run(backend: Any) -> Any:
        session = BuiltSession(backend=backend, build=lambda: Classifier().eval(), dataset=Texts(), batch_size=2)
        return session.run("quality")

    assert run(backend(cache=str(tmp_path))).predictions == run(TorchBackend()).predictions
