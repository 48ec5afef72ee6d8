"""Evaluating Keras models on data of several kinds: shares of right answers against those counted by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from torch.utils.data import DataLoader, TensorDataset

import sweeprof
from sweeprof.errors import UserError
from sweeprof.profiling.profiler import Profiler
from sweeprof.zoo import lenet5

LOGITS = np.array(
    [
        [3.0, 1.0, 2.0, 0.0, -1.0, -2.0, -3.0],
        [3.0, 1.0, 2.0, 0.0, -1.0, -2.0, -3.0],
        [3.0, 1.0, 2.0, 0.0, -1.0, -2.0, -3.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.0],
    ],
    np.float32,
)
CLASSES = np.array([0, 2, 6, 6, 1])
"""First, second and last of their samples, first, and third of six alike after the first: right for two, among five for four."""
EXPECTED = {"quality/accuracy": 2 / 5, "quality/error": 3 / 5, "quality/top5": 4 / 5}
LOSS = float(
    np.mean([math.log(sum(map(math.exp, row))) - row[c] for row, c in zip(LOGITS.tolist(), CLASSES, strict=True)])
)


def answering() -> Any:
    """Returns its inputs."""
    given = keras.Input((7,), name="inputs")
    return keras.Model(given, keras.layers.Activation("linear")(given))


def batched(of: Callable[[Any], Any]) -> list[Any]:
    """Of three and two samples: the mean of the batches' means would be another figure."""
    return [(of(LOGITS[:3]), of(CLASSES[:3])), (of(LOGITS[3:]), of(CLASSES[3:]))]


@pytest.mark.parametrize(
    "data",
    [
        tf.data.Dataset.from_tensor_slices((LOGITS, CLASSES)).batch(3),
        tf.data.Dataset.from_tensor_slices({"inputs": LOGITS, "label": CLASSES}).batch(3),
        DataLoader(TensorDataset(torch.from_numpy(LOGITS), torch.from_numpy(CLASSES)), batch_size=3),
        batched(np.asarray),
        iter(batched(tf.constant)),
    ],
    ids=["tf.data", "tf.data of mappings", "torch's loader", "arrays", "a generator"],
)
def test_figures_are_those_counted_by_hand(data: Any) -> None:
    profiler = Profiler(answering(), data)
    found = profiler.compute_all([*EXPECTED, "quality/loss", "latency/evaluate"])
    assert {name: found[name].value for name in EXPECTED} == pytest.approx(EXPECTED)
    assert found["quality/loss"].value == pytest.approx(LOSS, rel=1e-6)
    assert profiler.compute("quality/topk", k=2).value == pytest.approx(3 / 5)
    assert found["latency/evaluate"].value is not None


def test_a_keras_model_and_its_torch_twin_on_the_same_loader() -> None:
    """The loader gives images as torch has them; a pattern moves their channels for Keras."""
    random = np.random.default_rng(0)
    images = torch.from_numpy(random.standard_normal((12, 1, 32, 32), np.float32))
    loader = DataLoader(TensorDataset(images, torch.arange(12) % 10), batch_size=5)
    names = ["quality/accuracy", "quality/loss", "quality/top5"]
    theirs = Profiler(lenet5.torch_model(), loader).compute_all(names)
    ours = Profiler(
        lenet5.keras_model(),
        loader,
        input_pattern=lambda batch: sweeprof.Inputs((np.moveaxis(batch[0].numpy(), 1, -1),)),
    ).compute_all(names)
    assert {name: m.value for name, m in ours.items()} == pytest.approx(
        {name: m.value for name, m in theirs.items()}, rel=1e-4
    )


def test_data_without_end() -> None:
    endless = tf.data.Dataset.from_tensor_slices((LOGITS, CLASSES)).batch(3).repeat()
    profiler = Profiler(answering(), endless)
    with pytest.raises(UserError, match=r"data: '_RepeatDataset' never ends \(repeat\(\)\), .* take\(n\)"):
        profiler.run("quality")
    assert Profiler(answering(), endless.take(4)).compute("quality/accuracy").value == pytest.approx(2 / 5)
    assert profiler.session.inputs().args[0].shape == (3, 7)  # one batch of it can be timed


def test_a_model_of_several_inputs_from_a_dataset() -> None:
    first, second = keras.Input((7,), name="first"), keras.Input((7,), name="second")
    model = keras.Model([first, second], keras.layers.Add()([first, second]))
    for batch in (((LOGITS, LOGITS), CLASSES), ({"first": LOGITS, "second": LOGITS}, CLASSES)):
        data = tf.data.Dataset.from_tensor_slices(batch).batch(3)
        assert Profiler(model, data).compute("quality/accuracy").value == pytest.approx(2 / 5)
