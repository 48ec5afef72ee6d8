"""The table of all combinations in a real browser: it answers what one asks of it, and its verdicts are Python's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import Visit, needs_browser, opened
from support.drawn import drawn
from sweeprof.report.html import html
from sweeprof.results.compare import Cell, Comparison, Row

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser

Open = Callable[..., Visit]

CELLS = """() => sweeprof.data.rows.map((row) => [row.id, Object.fromEntries(sweeprof.data.metrics.map((metric, place) => {
  const cell = sweeprof.cellOf(row, place);
  return [metric.name, cell && { ...cell, needed: cell.reason === "interval_crosses_threshold" ? cell.needed() : null }];
}))])"""


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    visits: list[Visit] = []

    def open_report(sample: Comparison, fragment: str = "", layers: Any = None, **options: Any) -> Visit:
        text = html(sample, False, layers or {})
        visits.append(opened(browser, tmp_path / "report.html", text, fragment, **options))
        return visits[-1]

    yield open_report
    for one in visits:
        assert one.complaints == []
        assert len(one.requests) == 1
        one.page.close()


def seen_cells(report: Visit) -> dict[str, dict[str, Any]]:
    return dict(report.page.evaluate(CELLS))


def expect_equal(seen: Any, cell: Cell, row: Row) -> None:
    """``seen`` is what the page makes of the cell; its numbers have six digits."""
    if cell.base is None or cell.measurement.value is None or row.is_baseline:
        assert seen is None
        return
    assert (seen.get("verdict"), seen.get("reason")) == (cell.verdict, cell.verdict_reason)
    assert seen["ratio"] == (None if cell.ratio is None else pytest.approx(cell.ratio, rel=5e-5))
    ends = cell.ratio_interval or (None, None)
    assert (seen.get("low"), seen.get("high")) == (ends if ends[0] is None else pytest.approx(ends, rel=5e-5))
    assert (seen["needed"] is None) == (cell.rounds_needed is None)
    if cell.rounds_needed is not None:
        assert abs(seen["needed"] - cell.rounds_needed) <= 1


@pytest.mark.parametrize("seed", range(6))
def test_another_baseline_gives_what_python_gives(visit: Open, seed: int) -> None:
    sweep = drawn(seed)
    report = visit(sweep.comparison())
    single = sweep.rows[3]
    choices: dict[str, dict[str, Any]] = {
        "as swept: b0": {"backend": "b0"},
        "backend=b2": {"backend": "b2"},
        "batch_size=8": {"batch_size": 8},
        ", ".join(f"{axis}={value}" for axis, value in single.axes.items()): single.axes,
    }
    for label, baseline in choices.items():
        report.page.select_option("#explore-controls select >> nth=0", label=label)
        seen = seen_cells(report)
        for row in sweep.against(baseline):
            for name, cell in row.cells.items():
                expect_equal(seen[row.combination_id][name], cell, row)
    report.page.select_option("#explore-controls select >> nth=0", label="none")
    assert all(cell is None for cells in seen_cells(report).values() for cell in cells.values())
