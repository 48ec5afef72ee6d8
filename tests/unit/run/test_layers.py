"""The layer tables of a sweep: beside its reports, and in the page."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

from support.nets import lenet5
from support.plans import fake_plan, sweep_folder
from sweeprof.results.record import Record, Status
from sweeprof.run.comparison import comparison_of
from sweeprof.run.reports import observed, write_reports
from sweeprof.storage import Folder


def finished(path: Path, batches: dict[str, int], status: Status = "ok") -> Folder:
    """A folder of the combinations ca and cb, of which some have an analysis."""
    folder = sweep_folder(path, fake_plan({"a": {}, "b": {}}))
    for id, batch in batches.items():
        seen = json.loads(json.dumps(lenet5(batch).to_dict()))
        Record("s1", id, "analysis", status, observations=seen).write(folder.records)
    return folder


def test_every_analysis_is_written_and_can_be_chosen(tmp_path: Path) -> None:
    folder = finished(tmp_path, {"ca": 1, "cb": 8})
    page = write_reports(folder, comparison_of(folder)).read_text(encoding="utf-8")
    assert {p.name for p in (tmp_path / "layers").iterdir()} == {"ca.csv", "ca.html", "cb.csv", "cb.html"}
    with (tmp_path / "layers" / "cb.csv").open(newline="", encoding="utf-8") as file:
        assert sum(int(row["macs"]) for row in csv.DictReader(file)) == 8 * 416_520
    assert "model=b</h1>" in (tmp_path / "layers" / "cb.html").read_text(encoding="utf-8")
    found = re.search(r'id="layers-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    assert [item["label"] for item in json.loads(found[1])["tables"]] == ["model=a", "model=b"]


def test_combinations_without_a_table_are_left_out(tmp_path: Path) -> None:
    folder = finished(tmp_path, {"cb": 8})
    assert (observed(folder, "ca").layers, observed(folder, "cb").layers) == (None, lenet5(8))
    write_reports(folder, comparison_of(folder))
    assert {p.name for p in (tmp_path / "layers").iterdir()} == {"cb.csv", "cb.html"}


def test_a_sweep_without_any_has_no_section(tmp_path: Path) -> None:
    folder = finished(tmp_path, {"ca": 1}, "failed")
    page = write_reports(folder, comparison_of(folder)).read_text(encoding="utf-8")
    assert not (tmp_path / "layers").exists()
    assert "layers-data" not in page
