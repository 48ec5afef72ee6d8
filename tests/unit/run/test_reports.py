"""What a sweep's folder has beside its page: which files, when asked for, whole or not at all."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support.plans import fake_plan, sweep_folder
from support.subcommands import subcommand
from sweeprof.cli import report as report_module
from sweeprof.measuring.timing import Timing
from sweeprof.report.csv import Tidy
from sweeprof.results.files import write_json
from sweeprof.results.record import Record
from sweeprof.run import reports
from sweeprof.run.comparison import comparison_of
from sweeprof.run.reports import SweepLocations, left_out, set_tag, standing, write_reports
from sweeprof.storage import Folder

report = subcommand("report")

GOLDEN = Path(__file__).parents[2] / "golden" / "sweep-v2"
TABLES = ("measurements", "problems", "rounds", "samples")


def measured(path: Path, rounds: int = 2) -> Folder:
    folder = sweep_folder(path / "sweep", fake_plan({"a": {}, "b": {}}, passes=("timing",), rounds=rounds))
    for id, seconds in (("ca", 0.5), ("cb", 0.25)):
        for number in range(rounds):
            seen = asdict(Timing(1.0, 0, 1, (seconds, seconds + number)))
            Record("s1", id, "timing", "ok", round=number, observations=seen).write(folder.records)
    return folder


def names(folder: Folder, pattern: str) -> list[str]:
    return sorted(path.relative_to(folder.path).as_posix() for path in folder.path.glob(pattern))


def test_what_is_cheap_is_written_unasked(tmp_path: Path) -> None:
    folder = measured(tmp_path)
    write_reports(folder, comparison_of(folder))
    assert names(folder, "tables/*") == [f"tables/{name}.csv" for name in TABLES]
    assert names(folder, "*.tex") == ["comparison-tables.tex"]
    assert "a" in (folder.path / "pull_request.md").read_text(encoding="utf-8")
    assert standing(folder) == {"samples"}


def test_samples_are_in_the_order_of_the_rounds(tmp_path: Path) -> None:
    folder = measured(tmp_path, rounds=11)
    write_reports(folder, comparison_of(folder))
    with (folder.path / "tables" / "samples.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["combination"], int(row["round"]), int(row["index"])) for row in rows] == [
        (id, number, index) for id in ("ca", "cb") for number in range(11) for index in range(2)
    ]
    assert {row["seconds"] for row in rows if row["combination"] == "cb"} == {"0.25", *(f"{n}.25" for n in range(11))}


def test_a_large_sweep_has_its_large_files_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MOST_UNASKED", 1)
    folder = measured(tmp_path)
    comparison = comparison_of(folder)
    write_reports(folder, comparison)
    assert "tables/samples.csv" not in names(folder, "tables/*")
    assert left_out(comparison, ()) == "samples: of 2 combinations only on request, --format samples"
    assert left_out(comparison, {"samples"}) is None
    assert report([str(folder.path), "--format", "samples"]) == 0
    assert "tables/samples.csv" in names(folder, "tables/*")
    (folder.path / "tables" / "samples.csv").write_text("of an earlier day")
    write_reports(folder, comparison)
    assert (folder.path / "tables" / "samples.csv").read_text().startswith("combination,")


def test_parquet_on_request(tmp_path: Path) -> None:
    folder = measured(tmp_path)
    assert report([str(folder.path), "--format", "parquet"]) == 0
    frame = pd.read_parquet(folder.path / "tables" / "samples.parquet")
    assert names(folder, "tables/*.parquet") == [f"tables/{name}.parquet" for name in TABLES]
    assert frame["seconds"].tolist() == pd.read_csv(folder.path / "tables" / "samples.csv")["seconds"].tolist()
    assert standing(folder) == {"samples", "parquet"}


def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = measured(tmp_path)
    assert report([str(folder.path), "--format", "parquett,samples,pdf"]) == 1
    said = capsys.readouterr().err
    assert "--format: 'parquett' is not a format. Did you mean 'parquet'? Known: all, parquet, samples." in said
    assert "'pdf'" in said
    monkeypatch.setattr(report_module, "has_parquet", lambda: False)
    assert report([str(folder.path), "--format", "all"]) == 1
    assert "Parquet files need pyarrow" in capsys.readouterr().err
    assert not (folder.path / "report.html").exists()


def test_a_table_is_whole_or_as_it_was(tmp_path: Path) -> None:
    def rows() -> Iterator[Any]:
        yield [1]
        raise OSError("the disk is gone")

    (tmp_path / "t.csv").write_text("before")
    with pytest.raises(OSError, match="the disk is gone"):
        reports._write_table(tmp_path, lambda: Tidy("t", {"n": "whole"}, rows()), False)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    assert (tmp_path / "t.csv").read_text() == "before"


def test_help_names_every_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        report(["--help"])
    shown = capsys.readouterr().out
    for name in (
        "pull_request.md",
        "comparison-tables.tex",
        "tables/*.csv",
        "--format",
        "tables/*.parquet",
    ):
        assert name in shown


def test_tagged_sweeps_of_the_same_name_are_baselines_of_the_page(tmp_path: Path) -> None:
    older, newer, other = (Folder(tmp_path / name) for name in ("n/2026-01-01", "n/2026-01-02", "other/2026-01-03"))
    for place, folder in enumerate((older, newer, other)):
        shutil.copytree(GOLDEN, folder.path)
        plan = json.loads(folder.plan.read_text())
        folder.plan.write_text(json.dumps({**plan, "sweep_id": f"s{place}"}))
        set_tag(f"t{place}", folder.path, f"s{place}", SweepLocations(tmp_path))
    (tmp_path / ".tags" / "broken").write_text("{")
    write_json(older.path / "comparison.json", comparison_of(older))
    write_json(other.path / "comparison.json", comparison_of(other))
    page = write_reports(newer, comparison_of(newer)).read_text(encoding="utf-8")
    data = json.loads(page.partition('id="sweep-data">')[2].partition("</script>")[0])
    own, saved = data["baselines"][:2]
    assert (own["key"], saved["key"], saved["text"]) == ("", "tag:t0", "tag:t0")
    assert "Since 22 November: " in saved["finding"]
    assert any(cell and cell[0] == 1 for column in saved["cells"].values() for cell in column)
    assert sum(one["key"].startswith("tag:") for one in data["baselines"]) == 1
