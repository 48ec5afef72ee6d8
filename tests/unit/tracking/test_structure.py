"""The structure of a model as a combination has it in a tracker."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from support.layered import layer_table
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.record import Record
from sweeprof.tracking import mlflow
from sweeprof.tracking.mlflow import structure_digest, structure_tag, structure_text


def record(folder: Path, table: LayerTable) -> Path:
    return Record("s1", "c1", "analysis", "ok", observations=table.to_dict()).write(folder)


def test_the_tree_and_its_digest(tmp_path: Path) -> None:
    text = structure_text(record(tmp_path, layer_table()))
    assert text is not None
    assert "├─Conv2d (conv)" in text
    assert text.endswith(f"structure  {structure_digest(layer_table())}\n")
    (tmp_path / mlflow.STRUCTURE_FILE).write_text(text, encoding="utf-8")
    assert structure_tag(tmp_path) == {"model.structure": structure_digest(layer_table())}


def test_equal_models_have_one_digest_whatever_they_are_run_on() -> None:
    assert structure_digest(layer_table(batch=1)) == structure_digest(layer_table(batch=64))
    assert structure_digest(layer_table()) != structure_digest(layer_table(hidden=121))
    rows = layer_table().rows
    frozen = dataclasses.replace(rows[3], trainable=0)
    assert structure_digest(LayerTable(rows)) != structure_digest(LayerTable((*rows[:3], frozen)))


def test_of_a_large_model_the_deepest_levels_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow, "MOST_STRUCTURE_LINES", 3)
    rows = [LayerRow("__root__", "Net", 0, 0, 0, 0, 0, 0, 0)]
    for name, depth, parent in (("a", 1, 0), ("b", 1, 0), ("b.c", 2, 2)):
        rows.append(LayerRow(name, "Block", depth, 0, 1, 1, 4, 0, 10, parent=parent))
    text = structure_text(record(tmp_path, LayerTable(tuple(rows))))
    assert text is not None
    assert "Block (b)" in text
    assert "Block (c)" not in text
    assert "Levels below 1 are left out" in text


def test_without_an_analysis_there_is_none(tmp_path: Path) -> None:
    assert structure_text(tmp_path / "absent.json") is None
    failed = Record("s1", "c1", "analysis", "failed", "no luck").write(tmp_path)
    assert structure_text(failed) is None
    assert structure_tag(tmp_path) == {}
    for own in ("", "my net\n\n", "model.structure\n"):  # the user's artifact of this name
        (tmp_path / "model.txt").write_text(own)
        assert structure_tag(tmp_path) == {}
