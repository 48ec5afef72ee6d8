"""The page where everything that it takes only so much of is there at once, and none of it twice."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from support.drawn import drawn
from support.seen import PEAKS, allocations, operators
from sweeprof.report.explore import MOST_SAMPLES, page_data, room
from sweeprof.report.html import Observed, details, html
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.run.reports import MOST_LAYERS

LAYERS_OF_ONE = 500
MOST_BYTES = 6_000_000


@pytest.mark.slow
@pytest.mark.parametrize(("models", "metrics"), [(48, 12), (9, 70), (2, 40)], ids=["rows", "figures", "in full"])
def test_a_page_full_of_everything_stays_under_six_megabytes(models: int, metrics: int) -> None:
    chance = random.Random(1)
    sample = with_more_metrics(drawn(3, models, sizes=7).comparison(), metrics, chance)
    is_whole = models == 2
    assert bool(page_data(sample)["left_out"]) != is_whole
    timed = {f"model=m{n}": layers(n, chance) for n in range(MOST_LAYERS // LAYERS_OF_ONE)}
    seen = {label: Observed(table, operators(200), allocations(3000, 200), PEAKS) for label, table in timed.items()}
    shown = details(seen, {label: {"layers.csv": f"layers/{label}.csv"} for label in seen})
    assert shown["left_out"]
    each = room(len(sample.rows))
    samples = {row.combination_id: [times(each // 4, chance) for _ in range(4)] for row in sample.rows}
    assert sum(len(r) for rounds in samples.values() for r in rounds) > 0.6 * MOST_SAMPLES
    page = html(sample, True, timed, shown, len(sample.rows) - len(timed), samples)
    assert ('"details":[' in page) == is_whole
    assert len(page.encode()) < MOST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(("models", "most"), [(470, MOST_BYTES), (953, 8_000_000)], ids=["10,000", "20,000"])
def test_a_page_of_many_combinations_is_as_large_as_the_documentation_says(models: int, most: int) -> None:
    sample = drawn(3, models, sizes=7).comparison()
    assert len(sample.rows) >= 21 * models
    assert most - MOST_BYTES / 4 < len(html(sample).encode()) < most


def times(count: int, chance: random.Random) -> list[float]:
    return sorted(float(f"{chance.uniform(1, 90):.4g}") for _ in range(count))


def with_more_metrics(of: Comparison, count: int, chance: random.Random) -> Comparison:
    """With metrics of the user's family ``layers``, which no table shows, until there is no room for the last of them."""
    known = next(info for info in of.metrics if info.name == "latency/forward")
    more = [dataclasses.replace(known, name=f"layers/part_{number}_s") for number in range(count)]
    rows = []
    for row in of.rows:
        cells, cell = dict(row.cells), row.cells["latency/forward"]
        for info in more if cell.measurement.value is not None else ():
            rounds = tuple(chance.lognormvariate(-6, 0.3) for _ in cell.measurement.rounds)
            ends = min(rounds), max(rounds)
            own = dataclasses.replace(
                cell.measurement,
                name=info.name,
                value=rounds[0],
                interval=ends,
                rounds=rounds,
                detail={"min": ends[0]},
            )
            cells[info.name] = dataclasses.replace(cell, measurement=own)
        rows.append(dataclasses.replace(row, cells=cells))
    return dataclasses.replace(of, metrics=(*of.metrics, *more), rows=tuple(rows))


def layers(seed: int, chance: random.Random) -> LayerTable:
    """A model of which no column is another's, with the times of both phases."""
    rows = [LayerRow(ROOT, f"Net{seed}", 0, 0, 0, 0, 0, 0, 0, flops=0, act_bytes=0)]
    for index in range(1, LAYERS_OF_ONE):
        macs, params = chance.randrange(10**8, 10**9), chance.randrange(10**5, 10**7)
        shapes = ((seed + 1, 64 << (index // 100), 56, 56),)
        path = f"stage{index // 20}.{index % 20 // 4}.{('conv', 'norm', 'act', 'pool')[index % 4]}{seed}"
        row = LayerRow(path, f"Layer{index % 9}", 3, 0, params, 0, 0, 0, macs, shapes, shapes, 2 * macs + index)
        own = [chance.lognormvariate(-8, 1) for _ in range(4)]
        seconds: dict[str, Any] = dict(
            zip(("forward_s", "forward_self_s", "backward_s", "backward_self_s"), own, strict=True)
        )
        rows.append(dataclasses.replace(row, act_bytes=chance.randrange(10**6, 10**8), parent=0, **seconds))
    return LayerTable(tuple(rows))
