"""The records below a folder of a sweep."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sweeprof.errors import Damaged
from sweeprof.results.record import Record, stored_record


def read_records(records: Path) -> list[Record]:
    """Every record below the folder, in the order of their paths; damaged files are left out."""
    stored_records = []
    for path in sorted(records.glob("*/*-r*.json")):
        with suppress(Damaged, OSError):
            stored_records.append(stored_record(path))
    return stored_records
