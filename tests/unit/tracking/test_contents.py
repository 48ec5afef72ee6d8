"""What a tracker gets of a combination: its files, tables in MLflow's own format, structure, datasets and colour."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from support.layered import layer_table, operator_table
from support.samples import build, comparison
from sweeprof.report.layer_formats import to_csv
from sweeprof.report.operators import operators_csv
from sweeprof.report.pictures import backend_colours
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.record import Record
from sweeprof.tracking import mlflow
from sweeprof.tracking.mlflow import stage_combination, structure_digest, structure_tag, structure_text
from sweeprof.tracking.runs import (
    MOST_INPUTS,
    MOST_ROWS,
    combinations,
    dataset_input,
    dataset_inputs,
    layers,
    operators,
    run_contents,
)

ID = "c1"
DIGITS = {"_target_": "sweeprof.datasets.arrays.Digits", "preload": ["sweeprof.datasets.arrays:scans"], "seed": 0}


def put(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_a_layer_is_a_row_with_rounded_figures_in_fixed_units() -> None:
    made = layers(to_csv(layer_table(batch=8)))
    assert layers(to_csv(layer_table(timed=False)))["columns"][:3] == ["layer", "macs_m", "params_k"]
    assert made["columns"] == [
        *("layer", "forward_self_ms", "forward_ms", "macs_m", "params_k", "act_mib"),
        *("type", "output_shapes"),
    ]
    assert made["data"] == [
        ["(model)", 0.0, 8.0, 0.0, 0.0, "–", "Net", "[]"],
        ["conv", 0.8, 0.8, 0.9408, 0.156, 0.0, "Conv2d", "[[8, 6, 28, 28]]"],
        ["conv #2", 1.876, 1.876, 1.882, 0.0, 0.003906, "Conv2d", "[[8, 6, 28, 28]]"],
        ["head|`x`", 0.4, 0.4, 0.08064, 10.08, "–", "Linear", "[]"],
    ]


def test_operators_are_summed_over_their_layers_and_the_slowest_comes_first() -> None:
    made = operators(operators_csv(operator_table()))
    assert made["columns"] == ["operator", "self_ms", "flops_m", "allocated_mib", "calls"]
    assert made["data"] == [
        ["aten::add (forward)", 0.9, "–", "–", 1.0],
        ["aten::conv2d (forward)", 0.5, 0.72, 0.007812, 3.0],
    ]


def by_column(table: Any) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def test_the_comparison_has_a_row_per_combination_with_ratios_and_reasons() -> None:
    of = comparison()
    made = combinations(of)
    assert made["columns"][:5] == ["model", "backend", "device", "batch_size", "latency/forward_ms"]
    rows = by_column(made)
    assert len(rows) == 18
    crashed = next(row for row in rows if row["status"] == "crashed")
    assert crashed["latency/forward_ms"] == "–"
    assert crashed["reason"] == "timing: killed by SIGKILL (signal 9)"
    assert {row["combination"] for row in rows} == {row.combination_id for row in of.rows}
    assert rows[0]["batch_size"] == 1
    slower = next(row for row in rows if row["backend"] == "tensorflow" and row["status"] == "ok")
    assert slower["latency/forward vs baseline"].startswith("×1.90")


def timed(points: list[dict[str, Any]]) -> Comparison:
    """Each point with a latency."""
    return build(points, {"latency/forward": ("s", "lower")}, [{"latency/forward": 0.001}] * len(points))


def test_an_axis_that_is_called_like_another_column_is_in_the_table() -> None:
    odd = timed([{"status": "a"}, {"status": "b"}])
    rows = by_column(combinations(odd))
    assert [(row["axis.status"], row["status"]) for row in rows] == [("a", "ok"), ("b", "ok")]


def test_a_table_that_is_too_long_says_where_the_rest_is() -> None:
    made = combinations(timed([{"batch_size": n} for n in range(MOST_ROWS + 3)]))
    assert len(made["data"]) == MOST_ROWS + 1
    assert made["data"][-1][0] == "… 3 more rows in comparison.csv"
    assert {len(row) for row in made["data"]} == {len(made["columns"])}


def test_a_table_of_another_version_has_the_columns_that_it_has() -> None:
    made = layers("path,call,type,macs\n__root__,0,Net,1000\n")
    assert made == {"columns": ["layer", "macs_m", "type"], "data": [["(model)", 0.001, "Net"]]}
    with pytest.raises(KeyError):
        layers("something,else\n1,2\n")


def test_every_file_of_a_combination_under_a_clear_name(tmp_path: Path) -> None:
    folder, target = tmp_path / "sweep", tmp_path / "staged"
    # Bytes that would be taken for the password of an address, were they text.
    trace = gzip.compress(b"{}") + b"://user:password@"
    left = {
        f"records/{ID}/timing-r0.json": b'{"uri": "http://me:secret@host/"}',
        f"layers/{ID}.csv": b"path\n",
        f"layers/{ID}.html": b"<p>",
        f"operators/{ID}.csv": b"path,operator\n",
        f"memory/{ID}/timeline.csv": b"s,bytes\n",
        f"artifacts/{ID}/trace.json.gz": trace,
        f"artifacts/{ID}/lines_time.txt": b"http://me:secret@host/",
        f"artifacts/{ID}/map.png": b"\x89PNG\r\n\x1a\n\xff\r",
        f"artifacts/{ID}/.lines.tmp": b"half",
        "operators/c2.csv": b"of another\n",
    }
    for name, content in left.items():
        put(folder, name, content)
    stage_combination(target, folder, ID, {"mode": "training"})
    staged = {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    tables = {"layers.csv", "layers.html", "operators.csv", "memory/timeline.csv"}
    own = {"trace.json.gz", "lines_time.txt", "map.png"}
    assert set(staged) == {"records/timing-r0.json", "config.json", *tables, *own}
    assert staged["trace.json.gz"] == trace
    assert staged["lines_time.txt"] == b"http://host/"
    assert staged["map.png"] == left[f"artifacts/{ID}/map.png"]
    assert json.loads(staged["records/timing-r0.json"]) == {"uri": "http://host/"}
    assert json.loads(staged["config.json"]) == {"mode": "training"}


@pytest.mark.parametrize("content", [b"nothing,that\n1,2\n", b"path,call,type\n\xff,0,x\n"])
def test_a_file_that_is_not_made_costs_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    folder, target = tmp_path / "sweep", tmp_path / "staged"
    put(folder, f"layers/{ID}.csv", content)
    put(folder, f"operators/{ID}.csv", operators_csv(operator_table()).encode())
    put(folder, f"records/{ID}/analysis-r0.json", b'{"pass": "analysis", "combination_id": "c1"')
    stage_combination(target, folder, ID, None)
    assert (target / "layers.csv").is_file()
    assert not (target / "tables/layers.json").exists()
    assert "there is no layers.json" in caplog.text
    assert (target / "tables/operators.json").is_file()
    assert not (target / "model.txt").exists()


def record(folder: Path, table: LayerTable) -> Path:
    return Record("s1", ID, "analysis", "ok", observations=table.to_dict()).write(folder)


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
    failed = Record("s1", ID, "analysis", "failed", "no luck").write(tmp_path)
    assert structure_text(failed) is None
    assert structure_tag(tmp_path) == {}
    for own in ("", "my net\n\n", "model.structure\n"):  # the user's artifact of this name
        (tmp_path / "model.txt").write_text(own)
        assert structure_tag(tmp_path) == {}


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


def test_the_axis_that_varies_takes_the_colours() -> None:
    of = timed([{"model": f"m{i % 2}", "backend": "torch", "batch_size": i} for i in range(4)])
    found = [content.tags["mlflow.runColor"] for _, content in run_contents(of, [], "finished", "parent")]
    colours = backend_colours(["m0", "m1"])
    assert found == [colours["m0"], colours["m1"]] * 2
