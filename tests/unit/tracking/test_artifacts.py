"""The files of a combination as a tracker gets them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from support.layered import operator_table
from sweeprof.report.operators import operators_csv
from sweeprof.tracking.mlflow import stage_combination

ID = "c1"


def put(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


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
    assert set(staged) == {
        "records/timing-r0.json",
        "layers.csv",
        "layers.html",
        "operators.csv",
        "memory/timeline.csv",
        "trace.json.gz",
        "lines_time.txt",
        "map.png",
        "config.json",
    }
    assert staged["trace.json.gz"] == trace
    assert staged["lines_time.txt"] == b"http://host/"
    assert staged["map.png"] == left[f"artifacts/{ID}/map.png"]
    assert json.loads(staged["records/timing-r0.json"]) == {"uri": "http://host/"}
    assert json.loads(staged["config.json"]) == {"mode": "training"}


@pytest.mark.parametrize("content", [b"nothing,that\n1,2\n", b"path,call,type\n\xff,0,x\n"])
def test_what_is_made_of_files_costs_nothing_but_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
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


def test_a_combination_that_left_nothing(tmp_path: Path) -> None:
    stage_combination(tmp_path / "staged", tmp_path / "sweep", ID, None)
    assert not (tmp_path / "staged").exists()
