"""Plans with datasets: which keys of the default dataset a dataset of one's own has, and mistakes in data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.planning import planned
from sweeprof.errors import UserError

FAKE = ("model=fake", "backend=fake", "tracking=none")
DIGITS = "sweeprof.datasets.arrays.Digits"
MINE = "sweeprof.datasets.arrays.Synthetic"


def datasets(*arguments: str, configs: Path | None = None) -> list[dict[str, Any]]:
    return [c.config["dataset"] for c in planned([*FAKE, *arguments], configs).combinations]


def test_a_class_of_ones_own_has_no_keys_of_the_default_dataset() -> None:
    shape = "dataset.shape=[1,2]"
    assert datasets(f"dataset._target_={MINE}", shape) == [{"_target_": MINE, "shape": [1, 2]}]
    assert datasets(f"dataset._target_={MINE}", shape, "dataset.seed=3") == [
        {"_target_": MINE, "shape": [1, 2], "seed": 3}
    ]


def test_nor_where_its_arguments_are_axes() -> None:
    found = datasets(f"dataset._target_={MINE}", "dataset.samples=4,8", "dataset.shape=[1,2]")
    assert found == [{"_target_": MINE, "shape": [1, 2], "samples": samples} for samples in (4, 8)]
    pair = datasets(f"dataset._target_={MINE},{DIGITS}", "dataset.seed=1")
    assert [set(node) for node in pair] == [{"_target_", "seed"}] * 2


@pytest.mark.parametrize("where", ["axes", "body"])
def test_nor_in_a_sweep_file(tmp_path: Path, where: str) -> None:
    (tmp_path / "sweep").mkdir()
    target = f"_target_: {MINE}\n  shape: [1, 2]\n  seed: 0" if where == "body" else "shape: [1, 2]\n  seed: 0"
    axes = f"  dataset._target_: [{MINE}]\n" if where == "axes" else ""
    content = f"# @package _global_\ndataset:\n  {target}\naxes:\n  batch_size: [1, 2]\n{axes}"
    (tmp_path / "sweep" / "mine.yaml").write_text(content, encoding="utf-8")
    found = datasets("+sweep=mine", configs=tmp_path)
    assert found == [{"_target_": MINE, "shape": [1, 2], "seed": 0}] * 2


def test_who_chooses_a_file_keeps_its_keys() -> None:
    (found,) = datasets("dataset=synthetic", f"dataset._target_={MINE}", "dataset.samples=2")
    assert (found["shape"], found["samples"], found["channels"]) == ([1, 32, 32], 2, 1)
    (default,) = datasets()
    assert default["preload"] == ["sweeprof.datasets.arrays:scans"]


def test_its_command_measures_it_again() -> None:
    (combination,) = planned([*FAKE, f"dataset._target_={MINE}", "dataset.shape=[1,2]"]).combinations
    assert "dataset.seed" not in combination.command
    assert "preload" not in combination.command


# Mistakes.


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["dataset=images"], ["dataset.path: None is missing: it must name a folder."]),
        (
            ["dataset=images", "dataset.path=nowhere", "dataset.channels=2"],
            ["dataset.path: 'nowhere' is not a folder.", "dataset.channels: 2 is not 1 (grey) or 3 (colours)."],
        ),
        (
            ["dataset=images", "dataset.image_siz=3"],
            ["dataset: 'image_siz' is not an argument of", "Did you mean 'image_size'?"],
        ),
        (["dataset=images", "dataset.limit=few"], ["dataset.limit: 'few' is not a whole number or null."]),
        (["dataset=npz", "dataset.path={tmp}/a.npz", "dataset.layout=last"], ["dataset.layout: 'last' is not"]),
        (["dataset=npz", "dataset.path={tmp}/a.npz", "dataset.inputs=z"], ["/a.npz has no array 'z', but x, y"]),
        (["dataset=torch"], ["dataset.source._target_: None is missing: it must name a class or function."]),
        (
            ["dataset=torch", "dataset.source._target_=nowhere.Data"],
            ["dataset.source._target_: 'nowhere.Data' cannot be"],
        ),
    ],
)
def test_mistakes_in_data_are_reported_when_a_sweep_is_planned(
    tmp_path: Path, arguments: list[str], messages: list[str]
) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 4)), y=np.zeros(3, np.int64))
    with pytest.raises(UserError) as error:
        datasets(*(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    for message in messages:
        assert message in str(error.value)
