"""The same records give the same reports, byte for byte, and those that were agreed on.

``pytest tests/end_to_end/test_golden_reports.py --overwrite -m slow`` writes ``tests/golden/reports-v2`` anew.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support.command import environment
from sweeprof.passes.registry import passes
from sweeprof.plan.plan import Plan
from sweeprof.results.record import Record

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS = GOLDEN / "sweep-v2"
DETAILED = "c000000000001"
"""The combination whose files are kept."""
AGREED = (
    *("comparison.csv", "comparison.md", "comparison.json", "comparison-tables.tex"),
    *(f"tables/{name}.csv" for name in ("measurements", "rounds", "samples", "problems")),
    *(f"layers/{DETAILED}.{kind}" for kind in ("csv", "html")),
    f"operators/{DETAILED}.csv",
    *(f"memory/{DETAILED}/{name}.csv" for name in ("timeline", "layers", "tensors")),
    "report.html",
)
_CODE = re.compile(r'(<(script|style)(?: type="text/plain"[^>]*)?>).*?(</\2>)', re.DOTALL)
"""Scripts, styles, and the library that comes packed; data, which is ``application/json``, is compared."""
_LONG = re.compile(r"-?\d+\.\d{9,}(?:e[+-]\d+)?|-?\d+\.\d+e[+-]\d+")


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders of reports, made by processes that have nothing in common but the records."""
    runs = []
    for name, own in (
        ("one", {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"}),
        ("another place", {"PYTHONHASHSEED": "2", "TZ": "Asia/Kolkata", "LC_ALL": "C", "COLUMNS": "50"}),
    ):
        home = tmp_path_factory.mktemp("home")
        shutil.copytree(RECORDS, home / name / "sweep")
        if name != "one":  # what a user has in the working directory, or at home, is no part of a report
            (home / "matplotlibrc").write_text("font.size: 20\naxes.facecolor: yellow\nsvg.fonttype: none\n")
        command = [sys.executable, "-m", "sweeprof", "report", f"{name}/sweep", "--format", "all"]
        started = subprocess.Popen(
            command, cwd=home, env={**environment(home), **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        runs.append((started, home / name / "sweep"))
    for started, _ in runs:
        said, _ = started.communicate(timeout=240)
        assert started.returncode == 0, said.decode()
    return runs[0][1], runs[1][1]


def contents(folder: Path) -> dict[str, bytes]:
    made = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in made}


@pytest.mark.thorough
def test_the_same_records_give_the_same_bytes(twice: tuple[Path, Path]) -> None:
    one, another = map(contents, twice)
    assert list(one) != []
    assert sorted(one) == sorted(another)
    assert [name for name in one if one[name] != another[name]] == []
    kinds = {Path(name).suffix for name in one}
    assert kinds == {".html", ".json", ".csv", ".md", ".tex", ".parquet"}


@pytest.mark.parametrize("name", AGREED)
def test_reports_are_as_agreed(twice: tuple[Path, Path], name: str, golden: Callable[[str, str], None]) -> None:
    (GOLDEN / "reports-v2" / name).parent.mkdir(parents=True, exist_ok=True)
    golden(f"reports-v2/{name}", comparable((twice[0] / name).read_text(encoding="utf-8")))


def comparable(text: str) -> str:
    """Without what has tests of its own, or the last digits, in which processors and versions of SciPy may differ."""
    shown = _CODE.sub(r"\1…\3", text)
    return _LONG.sub(lambda found: f"{float(found[0]):.9g}", shown)


def test_tables_say_the_same_in_every_format(twice: tuple[Path, Path]) -> None:
    for path in sorted((twice[0] / "tables").glob("*.csv")):
        typed = pd.read_parquet(path.with_suffix(".parquet"))
        text = pd.read_csv(io.StringIO(path.read_text(encoding="utf-8")))
        assert list(typed.columns) == list(text.columns)
        assert len(typed) == len(text) > 0
        for column in typed:
            if pd.api.types.is_numeric_dtype(typed[column]):
                pd.testing.assert_series_equal(typed[column], text[column], check_dtype=False, rtol=1e-15)


@pytest.mark.parametrize("path", sorted((RECORDS / "records").glob("*/*.json")), ids=lambda path: path.stem)
def test_a_record_on_disk_loses_nothing_where_it_is_read_and_written(path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    record = Record.from_dict(kept)
    assert_holds(json.loads(json.dumps(record.to_dict())), kept)
    if record.observations is not None:
        result: Any = passes()[record.pass_name].read(record.observations)
        kept["observations"].pop("round", None)  # that of the record
        made = result.to_dict() if hasattr(result, "to_dict") else asdict(result)
        assert_holds(json.loads(json.dumps(made)), kept["observations"])


def test_a_plan_on_disk_loses_nothing_either() -> None:
    kept = json.loads((RECORDS / "plan.json").read_text(encoding="utf-8"))
    assert_holds(json.loads(json.dumps(Plan.from_dict(kept).to_dict())), kept)


def assert_holds(made: Any, kept: Any) -> None:
    """``made`` has all that ``kept`` has; fields that were added later are not in records on disk."""
    if isinstance(kept, dict):
        assert isinstance(made, dict)
        for key, value in kept.items():
            if key != "zlib_f4":  # which depends on the version of zlib
                assert_holds(made[key], value)
    elif isinstance(kept, list):
        assert len(made) == len(kept)
        for one, other in zip(made, kept, strict=True):
            assert_holds(one, other)
    else:
        assert made == kept
