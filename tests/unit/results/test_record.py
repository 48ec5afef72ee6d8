"""Records and the files they are written to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeprof.results.files import read_json, replacing, write_atomically, write_bytes, write_json
from sweeprof.results.record import SCHEMA_VERSION, STATUSES, Record, Warning

RECORD = Record("s1", "c1", "timing", "failed", "ValueError: Größe – ×", round=2, axes={"batch_size": 8})

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(
    pass_name=st.sampled_from(("analysis", "timing", "live", "of_a_later_version")),
    status=st.sampled_from(STATUSES),
    reason=st.none() | st.text(),
    round=st.integers(0, 99),
    observations=st.none() | st.dictionaries(st.text(), plain),
    warnings=st.lists(st.builds(Warning, st.text(), st.text(), st.text())).map(tuple),
    wall_s=st.floats(0, 1e6),
)
def test_any_record_survives_json(**fields: Any) -> None:
    record = Record(sweep_id="s", combination_id="c", **fields)
    assert Record.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_fields_may_be_unknown_or_missing_but_not_of_a_later_schema() -> None:
    assert Record.from_dict({**RECORD.to_dict(), "mood": "good"}) == RECORD
    data = {"sweep_id": "s", "combination_id": "c", "pass": "memory", "status": "ok", "schema_version": 2}
    assert Record.from_dict(data) == Record("s", "c", "memory", "ok")
    with pytest.raises(ValueError, match=f"record schema {SCHEMA_VERSION + 1} is newer"):
        Record.from_dict({**RECORD.to_dict(), "schema_version": SCHEMA_VERSION + 1})


def test_the_file_tells_combination_pass_and_round(tmp_path: Path) -> None:
    assert RECORD.file_name == "c1/timing-r2.json"
    path = RECORD.write(tmp_path)
    assert path == tmp_path / "c1" / "timing-r2.json"
    assert Record.from_dict(read_json(path)) == RECORD


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


@pytest.mark.parametrize("bad", [{"x": object()}, {"x": float("nan")}, {"x": float("-inf")}])
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
