"""Datasets as a tracker gets them."""

from __future__ import annotations

from typing import Any

from sweeprof.tracking.runs import MOST_INPUTS, dataset_input, dataset_inputs

DIGITS = {"_target_": "sweeprof.datasets.arrays.Digits", "preload": ["sweeprof.datasets.arrays:scans"], "seed": 0}


def config(**dataset: Any) -> dict[str, Any]:
    return {"dataset": {**DIGITS, **dataset}, "mode": "training"}


def test_a_dataset_has_a_name_a_digest_of_its_settings_and_a_use() -> None:
    made = dataset_input(config())
    assert made is not None
    assert (made.name, made.context) == ("Digits", "training")
    assert len(made.digest) == 12
    assert "preload" not in made.source
    same, other = dataset_input(config(preload=[])), dataset_input(config(seed=1))
    assert same is not None
    assert other is not None
    assert same.digest == made.digest != other.digest


def test_a_source_has_no_password() -> None:
    made = dataset_input(config(url="https://me:secret@host/data"))
    assert made is not None
    assert "https://host/data" in made.source
    assert "secret" not in made.source


def test_what_names_no_dataset_has_no_input() -> None:
    assert dataset_inputs([None, {}, {"dataset": None}, {"dataset": "digits"}]) == ()


def test_each_dataset_once_and_not_too_many() -> None:
    assert len(dataset_inputs([config(), config(), config(seed=1)])) == 2
    assert len(dataset_inputs(config(seed=n) for n in range(200))) == MOST_INPUTS
