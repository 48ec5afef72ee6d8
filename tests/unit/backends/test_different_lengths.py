"""Batches of different lengths on run-times of files: outputs are those of the framework, and no batch is left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch

import sweeprof
from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
from sweeprof.backends.onnxruntime.exporting import Exporter
from sweeprof.backends.openvino.adapter import OpenvinoBackend
from sweeprof.datasets import Split
from sweeprof.datasets.collate import Pad
from sweeprof.profiling.session import BuiltSession

QUICK = sweeprof.Protocol(min_s=0.02, warmup_s=0.01)
RANDOM = np.random.default_rng(0)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("converted_in_forks")]


class Classifier(torch.nn.Module):
    """Attention over the ids of a text, without its padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(50, 16)
        self.places = torch.nn.Embedding(64, 16)
        self.query, self.key = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.output = torch.nn.Linear(16, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        x = scores.masked_fill(attention_mask[:, None] == 0, -1e9).softmax(-1) @ x
        mask = attention_mask[..., None].to(x.dtype)
        pooled: torch.Tensor = self.output((x * mask).sum(1) / mask.sum(1))
        return pooled


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = torch.nn.LSTM(4, 8, batch_first=True)
        self.output = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last: torch.Tensor = self.output(self.lstm(x)[0][:, -1])
        return last


def texts(lengths: list[int]) -> Iterator[Any]:
    for length, rows in zip(lengths, [4] * (len(lengths) - 1) + [2], strict=True):
        ids = RANDOM.integers(0, 50, (rows, length))
        mask = np.ones_like(ids)
        mask[0, length // 2 + 1 :] = 0
        yield {"input_ids": ids, "attention_mask": mask}, RANDOM.integers(0, 3, rows)


def waves(lengths: list[int]) -> Iterator[Any]:
    for length in lengths:
        yield RANDOM.standard_normal((4, length, 4), np.float32), RANDOM.integers(0, 3, 4)


def predictions(model: Any, data: list[Any], backend: Any) -> tuple[int, ...]:
    quality: Any = sweeprof.Profiler(model, data, backend=backend, protocol=QUICK).run("quality")
    found: tuple[int, ...] = quality.predictions
    assert len(found) == sum(len(targets) for _, targets in data)
    return found


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_texts(backend: str) -> None:
    model, data = Classifier().eval(), list(texts([8, 12, 5, 12, 1]))
    assert predictions(model, data, backend) == predictions(model, data, "torch")


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_sequences_of_a_recurrent_network(backend: str) -> None:
    model, data = Recurrent().eval(), list(waves([7, 9, 3]))
    assert predictions(model, data, backend) == predictions(model, data, "torch")


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


def test_the_export_for_all_lengths_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    convert, made = Exporter.convert, list[Exporter]()

    def counted(self: Exporter, *args: Any) -> Any:
        made.append(self)
        return convert(self, *args)

    monkeypatch.setattr(Exporter, "convert", counted)
    predictions(Classifier().eval(), list(texts([8, 12, 5, 20, 3, 7])), "onnxruntime")
    assert [exporter.open_axes for exporter in made] == [(), ((1,), (1,))]


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

    from sweeprof.backends.torch.adapter import TorchBackend

    assert run(backend(cache=str(tmp_path))).predictions == run(TorchBackend()).predictions
