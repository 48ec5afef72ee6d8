"""Samples of several arrays reach the models of every backend, with the same outputs."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from support.command import call_command

PACKAGE = dedent(
    '''
    """A model of ids and an image, the same in two frameworks, and its data in several forms."""

    import numpy as np

    from sweeprof.datasets import Split

    random = np.random.default_rng(0)
    EMBEDDING, KERNEL, WEIGHT, BIAS = (
        random.standard_normal(shape).astype(np.float32) for shape in ((50, 16), (3, 3, 3, 8), (24, 5), (5,))
    )


    class Pairs:
        """Whole numbers and images, with classes."""

        channel_axis = 1

        def __init__(self, form: str = "mapping") -> None:
            self.form = form

        def split(self, name: str) -> Split:
            random = np.random.default_rng(name == "test")
            ids, image = random.integers(0, 50, (40, 12)), random.standard_normal((40, 3, 8, 8)).astype(np.float32)
            inputs = {"mapping": {"ids": ids, "image": image}, "tuple": (ids, image)}[self.form]
            return Split(inputs, random.integers(0, 5, 40))


    def torch_model():
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.conv, self.head = torch.nn.Embedding(50, 16), torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(24, 5)
                torch.nn.init.zeros_(self.conv.bias)
                values = (EMBEDDING, KERNEL.transpose(3, 2, 0, 1).copy(), WEIGHT.T.copy(), BIAS)
                parameters = (self.table.weight, self.conv.weight, self.head.weight, self.head.bias)
                for parameter, value in zip(parameters, values):
                    parameter.data = torch.from_numpy(value).to(parameter.device)

            def forward(self, ids, image):
                features = self.conv(image).mean((2, 3))
                return {"features": features, "logits": self.head(torch.cat([self.table(ids).mean(1), features], 1))}

        return Net()


    def keras_model():
        import keras
        from keras import layers

        ids, image = keras.Input((12,), dtype="int32", name="ids"), keras.Input((8, 8, 3), name="image")
        words = layers.Embedding(50, 16)(ids)
        features = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3)(image))
        logits = layers.Dense(5)(layers.Concatenate()([layers.GlobalAveragePooling1D()(words), features]))
        model = keras.Model({"ids": ids, "image": image}, {"features": features, "logits": logits})
        values = {(50, 16): EMBEDDING, (3, 3, 3, 8): KERNEL, (24, 5): WEIGHT, (5,): BIAS, (8,): np.zeros(8)}
        model.set_weights([values[variable.shape] for variable in model.weights])
        return model
    '''
)
pytestmark = pytest.mark.usefixtures("measured_in_forks")

QUICKLY = ("tracking=none", "protocol.min_s=0.02", "protocol.warmup_s=0.02", "protocol.rounds=1", "batch_size=4")
COUNTS_AND_ANSWERS = "quality/agreement,quality/accuracy,params/total,compute/macs"


def rows_of(tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    (tmp_path / "pairs.py").write_text(PACKAGE, encoding="utf-8")
    for group, text in (
        ("model", "torch: {_target_: pairs.torch_model}\ntensorflow: {_target_: pairs.keras_model}\n"),
        ("dataset", "_target_: pairs.Pairs\nform: mapping\n"),
    ):
        (tmp_path / "mine" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / group / "pairs.yaml").write_text(text, encoding="utf-8")
    ran = call_command(tmp_path, "--config-dir", "mine", "model=pairs", "dataset=pairs", *QUICKLY, *arguments)
    assert ran.code == 0, (ran.out, ran.err)
    rows: list[dict[str, Any]] = json.loads((ran.folder("adhoc") / "comparison.json").read_text())["rows"]
    for row in rows:
        values = {name: cell["measurement"]["value"] for name, cell in row["cells"].items()}
        assert row["status"] == "ok", row["reason"]
        assert values["params/total"] == 50 * 16 + 8 * 27 + 8 + 24 * 5 + 5
        assert values["compute/macs"] == 4 * (8 * 27 * 36 + 24 * 5)
        assert values["quality/agreement"] < 1e-5
    assert len({row["cells"]["quality/accuracy"]["measurement"]["value"] for row in rows}) == 1
    return rows


@pytest.mark.slow
def test_a_mapping_is_keyword_arguments_and_a_tuple_positional_ones(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "dataset.form=mapping,tuple")
    assert len(rows) == 2


@pytest.mark.slow
@pytest.mark.parametrize("form", ["mapping", pytest.param("tuple", marks=pytest.mark.thorough)])
def test_on_every_backend(tmp_path: Path, form: str) -> None:
    backends = "backend=torch,onnxruntime,tensorflow,jax,litert"
    rows = rows_of(tmp_path, f"dataset.form={form}", backends, f"metrics.select=[{COUNTS_AND_ANSWERS},latency/forward]")
    assert len(rows) == 5


@pytest.mark.slow
def test_a_training_step_and_ranges_of_eight_bits_have_them_too(tmp_path: Path) -> None:
    rows_of(
        tmp_path,
        "metrics=training",
        "backend=torch,tensorflow,jax",
        "training.loss=cross_entropy",
        f"metrics.select=[{COUNTS_AND_ANSWERS},latency/total]",
    )
