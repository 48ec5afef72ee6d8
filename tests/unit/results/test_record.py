"""Records and the files they are written to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.plans import read_records
from sweeprof.results.files import read_json, replacing, write_atomically, write_bytes, write_json
from sweeprof.results.record import SCHEMA_VERSION, STATUSES, Record, Warning

FULL = Record(
    sweep_id="s1",
    combination_id="c1",
    pass_name="timing",
    status="failed",
    reason="ValueError: Größe – ×",
    round=2,
    attempt=1,
    axes={"model": "mlp", "batch_size": 8},
    config={"batch_size": 8, "nested": {"list": [1, 2.5, None, True, "x"]}},
    command="python -m sweeprof",
    observations={"samples": [0.1, 0.2]},
    warnings=(Warning("drift", "seen", "do"),),
    traceback="Traceback\n  line",
    started="2026-11-21T00:30:00+00:00",
    wall_s=1.5,
    costs={"fork": 0.001},
    environment={"host": "node1"},
)

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)

PASSES = ("analysis", "timing", "memory", "quality", "live", "of_a_later_version")


def through_json(record: Record) -> Record:
    return Record.from_dict(json.loads(json.dumps(record.to_dict())))


@given(
    pass_name=st.sampled_from(PASSES),
    status=st.sampled_from(STATUSES),
    reason=st.none() | st.text(),
    round=st.integers(0, 99),
    observations=st.none() | st.dictionaries(st.text(), plain),
    warnings=st.lists(st.builds(Warning, st.text(), st.text(), st.text())).map(tuple),
    wall_s=st.floats(0, 1e6),
)
def test_any_record_survives_json(**fields: Any) -> None:
    record = Record(sweep_id="s", combination_id="c", **fields)
    assert through_json(record) == record


def test_the_pass_is_spelled_as_in_english() -> None:
    data = FULL.to_dict()
    assert data["pass"] == "timing"
    assert "pass_name" not in data
    assert data["schema_version"] == SCHEMA_VERSION


def test_fields_may_be_unknown_or_missing_but_not_of_a_later_schema() -> None:
    assert Record.from_dict({**FULL.to_dict(), "mood": "good"}) == FULL
    data = {"sweep_id": "s", "combination_id": "c", "pass": "memory", "status": "ok", "schema_version": 2}
    assert Record.from_dict(data) == Record("s", "c", "memory", "ok")
    with pytest.raises(ValueError, match=f"record schema {SCHEMA_VERSION + 1} is newer"):
        Record.from_dict({**FULL.to_dict(), "schema_version": SCHEMA_VERSION + 1})


def test_the_file_tells_combination_pass_and_round(tmp_path: Path) -> None:
    assert FULL.file_name == "c1/timing-r2.json"
    path = FULL.write(tmp_path)
    assert path == tmp_path / "c1" / "timing-r2.json"
    assert Record.from_dict(read_json(path)) == FULL


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_not_written(tmp_path: Path, value: float) -> None:
    record = Record("s", "c", "timing", "ok", observations={"samples": [value]})
    with pytest.raises(ValueError, match="JSON"):
        record.write(tmp_path)
    assert list(tmp_path.rglob("*.*")) == []


def test_every_record_below_a_folder_is_read(tmp_path: Path) -> None:
    written = [
        Record("s", combination, pass_name, "ok", round=round)
        for combination in ("c2", "c1")
        for pass_name in PASSES
        for round in ((0, 1, 2) if pass_name == "timing" else (0,))
    ]
    for record in written:
        record.write(tmp_path)
    (tmp_path / "c1" / "layers.csv").write_text("no record")
    (tmp_path / "c1" / ".timing-r9.json.1.tmp").write_text("half a rec")
    found = read_records(tmp_path)
    assert sorted(r.file_name for r in found) == [r.file_name for r in found]
    assert sorted(map(repr, found)) == sorted(map(repr, written))
    assert read_records(tmp_path / "nothing") == []


def test_writing_makes_folders_and_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.json"
    write_json(path, {"é": [1]})
    assert [p.name for p in path.parent.iterdir()] == ["c.json"]
    assert path.read_text(encoding="utf-8").endswith("}\n")
    assert read_json(path) == {"é": [1]}
    write_json(path, 2)
    assert read_json(path) == 2


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Their process and thread may have the same ids, as in two pods that share a folder."""
    path = tmp_path / "stop"
    with replacing(path) as first:
        first.write(b"fir")
        write_bytes(path, b"second")
        assert path.read_bytes() == b"second"
        first.write(b"st")
    assert path.read_bytes() == b"first"
    assert [p.name for p in tmp_path.iterdir()] == ["stop"]


@pytest.mark.parametrize("bad", [{"x": object()}, {"x": float("nan")}])
def test_what_cannot_be_serialised_leaves_the_old_file(tmp_path: Path, bad: Any) -> None:
    path = tmp_path / "a.json"
    write_json(path, "old")
    with pytest.raises((TypeError, ValueError)):
        write_json(path, bad)
    assert read_json(path) == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_what_cannot_be_encoded_is_spelled_out(tmp_path: Path) -> None:
    """A lone surrogate, as in the name of a file that is not UTF-8."""
    path = tmp_path / "a.json"
    write_json(path, ["a\udcffb"])
    assert read_json(path) == [r"a\udcffb"]
    write_atomically(path, "a\udcffb")
    assert path.read_bytes() == rb"a\udcffb"


def test_a_full_disk_leaves_the_old_file_and_no_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_json(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, "new")
    assert read_json(path) == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
