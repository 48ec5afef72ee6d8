"""Raw samples for a page: fewer, of the same shape."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from support.samples import comparison
from sweeprof.measuring.timing import Timing
from sweeprof.report.explore import LEAST_OF_A_ROUND, MOST_OF_ONE, MOST_SAMPLES, room, thinned_samples
from sweeprof.results.record import Record
from sweeprof.run.reports import samples_of
from sweeprof.storage import Folder


def timing(number: int, samples: Any, status: Any = "ok", pass_name: Any = "timing") -> Record:
    return Record("s", "c", pass_name, status, round=number, observations={"samples": samples} if samples else None)


def test_few_samples_are_all_there_in_milliseconds() -> None:
    assert thinned_samples([timing(0, [2e-3, 1e-3]), timing(1, [3.00004e-3])], 40) == [[1.0, 2.0], [3.0]]


def test_a_round_that_failed_is_empty() -> None:
    records = [timing(2, [1e-3]), timing(1, None, "crashed"), timing(0, [1.0], pass_name="memory")]
    assert thinned_samples(records, 40) == [[], [], [1.0]]
    assert thinned_samples([], 40) == []


def test_what_is_left_keeps_ends_and_quartiles() -> None:
    samples = [(5 * number % 1001) * 1e-6 for number in range(1001)]
    ((kept,)) = thinned_samples([timing(0, samples)], 41)
    assert len(kept) == 41
    assert (kept[0], kept[-1]) == (0, 1)
    for share in (10, 20, 30):
        assert kept[share] == pytest.approx(
            statistics.quantiles(samples, n=4, method="inclusive")[share // 10 - 1] * 1e3, rel=0.01
        )


def test_room_is_shared() -> None:
    assert room(1) == MOST_OF_ONE
    assert 1000 * room(1000) <= MOST_SAMPLES
    many = [timing(number, [number + 1.0] * 100) for number in range(20)]
    assert {len(one) for one in thinned_samples(many, 10)} == {LEAST_OF_A_ROUND}


def test_they_are_read_from_the_records_of_a_sweep(tmp_path: Path) -> None:
    sample = comparison()
    first = sample.rows[0].combination_id
    for number, seconds in enumerate((1e-3, 2e-3)):
        Record("s", first, "timing", "ok", round=number, observations=asdict(Timing(1.0, 3, 1, (seconds,)))).write(
            tmp_path / "records"
        )
    (tmp_path / "records" / first / "timing-r2.json").write_text("cut", encoding="utf-8")
    found = samples_of(Folder(tmp_path), sample)
    assert found[first] == [[1.0], [2.0]]
    assert not any(rounds for id, rounds in found.items() if id != first)
