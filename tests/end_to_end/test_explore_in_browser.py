"""The table of all combinations in a real browser: it answers what one asks of it, and its verdicts are Python's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import Visit, needs_browser, opened, wait_until
from support.drawn import drawn
from support.nets import lenet5
from support.odd import LONG, build, hostile, with_cells
from support.samples import comparison
from sweeprof.report.cells import ratio_text, value_text
from sweeprof.report.columns import is_throughput
from sweeprof.report.html import html
from sweeprof.report.verdict_summary import INTERVALS, geometric_means
from sweeprof.results.compare import Cell, Comparison, Row
from sweeprof.results.cross_sweep import set_against
from sweeprof.results.measurement import Measurement

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser

Open = Callable[..., Visit]

CELLS = """() => sweeprof.data.rows.map((row) => [row.id, Object.fromEntries(sweeprof.data.metrics.map((metric, place) => {
  const cell = sweeprof.cellOf(row, place);
  return [metric.name, cell && { ...cell, needed: cell.reason === "interval_crosses_threshold" ? cell.needed() : null }];
}))])"""


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    visits: list[Visit] = []

    def open_report(sample: Comparison, fragment: str = "", layers: Any = None, **options: Any) -> Visit:
        text = html(sample, False, layers or {})
        visits.append(opened(browser, text, fragment, **options))
        visits[-1].page.set_default_timeout(10_000)
        return visits[-1]

    yield open_report
    for one in visits:
        assert one.complaints == []
        assert len(one.requests) == 1
        one.leave()


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


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 6))])
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


def column(report: Visit, place: int) -> list[str]:
    """The texts of one column of the table, without intervals; of a failed row, why."""
    found: list[str] = report.page.locator(
        f"#explore-table tbody tr:not(.group-head) td:nth-child({place})"
    ).all_inner_texts()
    return [text.partition(" [")[0] for text in found]


def told(report: Visit) -> str:
    return report.page.locator("#explore-told").inner_text()


def choose(report: Visit, label: str, option: str) -> None:
    report.page.get_by_label(label).select_option(label=option)


def menu(report: Visit, name: str) -> Any:
    found = report.page.locator("details.menu", has=report.page.locator("summary", has_text=name))
    if found.get_attribute("open") is None:
        found.locator("summary").click()
    return found


def test_a_header_sorts_by_number_up_down_and_back(visit: Open) -> None:
    report = visit(comparison(("lenet5",)))
    header = report.page.locator("#explore-table thead th").nth(2)
    original = column(report, 3)
    header.locator("button").press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    rising = ["128 µs", "187 µs", "355 µs", "653 µs"]
    assert [text for text in column(report, 3) if "µs" in text] == rising
    assert [text.partition(":")[0] for text in column(report, 3)[-2:]] == ["unsupported", "crashed"]
    # The focus stays where it is, so that the next key sorts again.
    report.page.keyboard.press("Space")
    assert header.get_attribute("aria-sort") == "descending"
    assert [text for text in column(report, 3) if "µs" in text] == rising[::-1]
    assert "µs" not in column(report, 3)[-1]
    report.page.keyboard.press("Space")
    assert header.get_attribute("aria-sort") == "none"
    assert column(report, 3) == original
    report.page.locator("#explore-table thead th").nth(1).locator("button").click()
    assert column(report, 2) == ["1", "1", "8", "8", "64", "64"]


def test_values_statuses_and_words_filter(visit: Open) -> None:
    report = visit(comparison())
    menu(report, "model").get_by_label("lenet5").uncheck()
    assert told(report).startswith("12 of 18 combinations")
    assert set(column(report, 1)) == {"mlp", "digits_resnet"}
    assert menu(report, "model").locator(".count").inner_text().strip() == "2 of 3"
    menu(report, "status").get_by_label("unsupported").uncheck()
    assert told(report).startswith("11 of 18")
    menu(report, "backend").get_by_role("button", name="none").click()
    assert told(report).startswith("0 of 18")
    menu(report, "backend").get_by_role("button", name="all").click()
    report.page.get_by_label("search").fill("MLP batch_size=8 tensor")
    assert column(report, 1) == ["mlp"]
    report.page.get_by_role("button", name="reset").click()
    assert told(report).startswith("18 of 18")
    report.page.get_by_label("search").fill("sigkill")
    assert column(report, 4) == ["crashed: timing: killed by SIGKILL (signal 9)"]
    seen = report.page.evaluate("sweeprof.visible().map((row) => row.status)")
    assert seen == ["crashed"]


def test_groups_have_their_geometric_mean(visit: Open) -> None:
    sample = drawn(4).comparison()
    report = visit(sample)
    choose(report, "group by", "backend")
    heads = report.page.locator("#explore-table .group-head")
    names = [text.split() for text in heads.locator("th").all_inner_texts()]
    assert [name for name, _ in names] == ["backend=b0", "backend=b1", "backend=b2"]
    counted = {f"backend={axis}": 0 for axis in ("b0", "b1", "b2")}
    for row in sample.rows:
        counted[f"backend={row.axes['backend']}"] += 1
    assert {name: int(count) for name, count in names} == counted
    means = {mean.candidate: mean.ratio for mean in geometric_means(sample) if mean.metric == "latency"}
    shown = heads.locator("td:nth-child(3)").all_inner_texts()
    assert [text.partition(" mean")[0] for text in shown[1:]] == [f"×{means[name]:.2f}" for name in ("b1", "b2")]
    assert "backend" not in report.page.locator("#explore-table thead").inner_text()


def test_every_figure_reads_as_in_the_other_reports(visit: Open) -> None:
    """All metrics and all ratios, of a sweep with every kind of verdict."""
    sample = drawn(3).comparison()
    report = visit(sample)
    for box in menu(report, "columns").get_by_role("checkbox").all():
        box.check()
    infos = [info["name"] for info in report.page.evaluate("sweeprof.data.metrics")]
    rows = {row.combination_id: row for row in sample.rows}
    ids = report.page.evaluate("sweeprof.visible().map((row) => row.id)")
    lines = report.page.locator("#explore-table tbody tr")
    for id, line in zip(ids, lines.all(), strict=True):
        texts = line.locator("td").all_inner_texts()[3:-1]
        row = rows[id]
        if row.status != "ok":
            assert texts == ["failed: no luck"]
            continue
        for place, name in enumerate(infos):
            cell = row.cells[name]
            value, ratio = texts[2 * place], texts[2 * place + 1]
            assert value == value_text(cell.measurement, not is_throughput(name))
            if cell.measurement.interval is not None and not is_throughput(name):
                title = line.locator("td").nth(3 + 2 * place).get_attribute("title")
                assert title == INTERVALS["process" if cell.measurement.has_interval_within_process else "rounds"]
            assert ratio == ("baseline" if row.is_baseline else ratio_text(cell))


def test_a_reason_stands_where_there_is_no_value(visit: Open) -> None:
    sample = with_cells(
        comparison(),
        "quality/accuracy",
        measurement=Measurement("quality/accuracy", "ratio", "higher", None, "no <labels>"),
    )
    report = visit(sample)
    menu(report, "columns").get_by_label("accuracy", exact=True).check()
    cell = report.page.locator('#explore-table td[title="no <labels>"]').first
    assert cell.inner_text() == "–"


def test_what_is_the_same_wherever_it_is_known_is_no_column_at_first(visit: Open) -> None:
    """Nor what only a row that failed has otherwise; a short value of an axis stays on one line."""
    metrics: dict[str, tuple[str, Any]] = {"latency/forward": ("s", "lower"), "own/size": ("B", "lower")}
    values: list[dict[str, int | float]] = [{"latency/forward": 1e-3 * n, "own/size": 64} for n in range(1, 5)]
    del values[1]["own/size"]
    values[2]["own/size"] = 128
    full = build([{"model": f"a model {n}"} for n in range(4)], metrics, values)
    failed = dataclasses.replace(full.rows[2], status="failed", reason="outputs differ")
    report = visit(
        dataclasses.replace(full, rows=(*full.rows[:2], failed, full.rows[3])), viewport={"width": 400, "height": 800}
    )
    titles = report.page.locator("#explore-table thead button").all_inner_texts()
    assert titles[:2] == ["model", "latency ↓"]
    assert not any("size" in title for title in titles)
    assert report.page.locator("#explore-table td.axis").first.evaluate(
        "e => e.getClientRects().length && e.clientHeight < 40"
    )


def test_columns_come_and_go(visit: Open) -> None:
    report = visit(comparison())
    titles = report.page.locator("#explore-table thead button")
    assert titles.all_inner_texts()[:6] == ["model", "backend", "batch_size", "latency ↓", "vs torch ↓", "throughput ↑"]
    columns = menu(report, "columns")
    columns.get_by_label("throughput", exact=True).uncheck()
    columns.get_by_label("peak memory, ratio").check()
    assert titles.all_inner_texts()[3:7] == [
        "latency ↓",
        "latency vs torch ↓",
        "peak memory ↓",
        "peak memory vs torch ↓",
    ]
    choose(report, "compare with", "none")
    assert told(report) == "18 of 18 combinations"
    choose(report, "compare with", "backend=tensorflow")
    assert "peak memory vs tensorflow ↓" in titles.all_inner_texts()
    assert column(report, 7)[:2] == ["×0.60 better", "baseline"]


def test_the_address_is_the_view(visit: Open) -> None:
    report = visit(comparison())
    choose(report, "group by", "model")
    menu(report, "backend").get_by_label("torch", exact=True).uncheck()
    choose(report, "compare with", "batch_size=8")
    report.page.locator("#explore-table thead th").nth(1).locator("button").click()
    table = report.page.locator("#explore-table").inner_text()
    address = report.page.evaluate("location.hash")
    again = visit(comparison(), address)
    assert again.page.locator("#explore-table").inner_text() == table
    assert again.page.get_by_label("compare with").evaluate("e => e.selectedOptions[0].textContent") == "batch_size=8"
    report.page.go_back()
    report.page.go_back()
    assert told(report) == "9 of 18 combinations, ratios to torch"
    report.page.go_back()
    report.page.go_back()
    assert told(report) == "18 of 18 combinations, ratios to torch"
    report.page.go_forward()
    assert report.page.locator("#explore-table .group-head").count() == 3


def test_a_view_of_another_report_shows_what_it_can(visit: Open) -> None:
    report = visit(
        comparison(),
        "#view&rising=gone&group=gone&without.gone=1&without.model=vgg&column=gone&baseline.gone=1&baseline=c9",
    )
    assert told(report) == "18 of 18 combinations, ratios to torch"


def test_a_link_opens_its_row_and_the_row_can_be_the_baseline(visit: Open) -> None:
    names = ("model=lenet5, backend=torch, batch_size=8", "model=lenet5, backend=tensorflow, batch_size=8")
    report = visit(comparison(), layers={name: lenet5(8) for name in names})
    for bar in ("#explore-controls > label > :is(select, input)", ".choices:has(#layers-left) :is(select, button)"):
        edges = report.page.locator(bar).evaluate_all("all => all.map((e) => e.getBoundingClientRect().top)")
        assert max(edges) - min(edges) < 1  # all in one line
    report.page.get_by_role("link", name=f"details of {names[1]}").click()
    row = report.page.locator("details.row[open]")
    assert "model=lenet5 backend=tensorflow batch_size=8" in row.inner_text()
    row.get_by_role("button", name="Its layers").click()
    chosen = [report.page.locator(f"#layers-{side} option:checked").inner_text() for side in ("left", "right")]
    assert chosen == list(names)
    row.get_by_role("button", name="Compare all with this one").click()
    assert told(report) == f"18 of 18 combinations, ratios to {names[1]}"
    assert report.page.get_by_label("compare with").evaluate("e => e.selectedOptions[0].textContent") == names[1]


def test_it_is_used_by_keyboard_alone(visit: Open) -> None:
    report = visit(comparison())
    press = report.page.keyboard.press
    report.page.get_by_label("compare with").focus()
    press("ArrowDown")
    assert told(report) == "18 of 18 combinations"
    for key in ("Tab", "Tab", "Tab", "Enter", "Tab", "Tab", "Tab", "Space"):
        press(key)
    assert told(report) == "12 of 18 combinations"
    press("Escape")
    assert report.page.locator("details.menu[open]").count() == 0
    assert report.page.evaluate("document.activeElement.textContent").startswith("model")


def test_another_sweeps_verdicts_are_shown_as_they_are(visit: Open) -> None:
    own, other = drawn(8).comparison(), dataclasses.replace(drawn(12).comparison(), sweep_id="s2")
    compared = set_against(own, other, "tag:nightly")
    report = visit(compared)
    assert told(report).endswith("ratios to tag:nightly")
    seen = seen_cells(report)
    for row in compared.rows:
        for name, cell in row.cells.items():
            if cell.ratio is not None:
                assert seen[row.combination_id][name]["ratio"] == pytest.approx(cell.ratio, rel=5e-5)
                assert seen[row.combination_id][name]["verdict"] == cell.verdict
    choose(report, "compare with", "backend=b0")
    assert told(report).endswith("ratios to b0")


@pytest.mark.parametrize("width", [400, 1300])
def test_hostile_names_do_no_harm(visit: Open, width: int) -> None:
    report = visit(hostile(), viewport={"width": width, "height": 800})
    assert report.page.locator("#explore-table td", has_text="<script>alert(1)</script>").count() == 6
    assert report.page.locator(f'#explore-table td[title="{LONG}"]').count() == 6
    menu(report, "model").get_by_label("<script>").uncheck()
    assert told(report).startswith("12 of 18")
    choose(report, "group by", "model")
    assert report.page.locator(f'#explore-table .group-head th[title="model={LONG}"]').count() == 1
    assert report.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    again = visit(hostile(), report.page.evaluate("location.hash"))
    assert told(again).startswith("12 of 18")


@pytest.mark.slow
def test_a_thousand_combinations_fit_and_answer(visit: Open) -> None:
    sample = drawn(3, models=48, sizes=7).comparison()
    assert len(sample.rows) > 1000
    samples = {row.combination_id: [[1.2345] * 4] * 6 for row in sample.rows}
    assert len(html(sample, True, samples=samples).encode()) < 6_000_000
    report = visit(sample)
    lines = report.page.locator("#explore-table tbody tr")
    assert lines.count() == 200
    region = report.page.locator("#explore-table").locator("..")
    link = report.page.locator("#explore-table tbody a").nth(199)
    link.focus()  # which scrolls to the end
    wait_until(report.page, "document.querySelectorAll('#explore-table tbody tr').length > 200")
    assert link.evaluate("e => e === document.activeElement")
    region.evaluate("e => { e.scrollTop = e.scrollHeight; }")
    wait_until(report.page, "document.querySelectorAll('#explore-table tbody tr').length > 400")
    report.page.get_by_label("search").fill("model=m7,")
    assert told(report).startswith(f"21 of {len(sample.rows)} combinations")
    assert lines.count() == 21
    report.page.get_by_role("button", name="reset").click()
    report.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert lines.count() == len(sample.rows)
    report.page.locator("#explore-table tbody a").first.click()
    opened_row = report.page.locator("details.row[open]")
    assert f"python -m sweeprof model={sample.rows[0].axes['model']}" in opened_row.locator("pre").inner_text()
    assert "latency/forward" in opened_row.inner_text()
    assert opened_row.locator("summary").evaluate("e => e === document.activeElement")


def test_an_incomplete_row_has_its_values_and_says_how_many_rounds_they_are_of(visit: Open) -> None:
    """On the page of a large sweep too, which has no static tables."""
    sample = comparison(broken=False)
    copies = []
    for place in range(12):
        for row in sample.rows:
            id = f"{row.combination_id}-{place}"
            base = f"{row.baseline_id}-{place}"
            fields: dict[str, Any] = {"combination_id": id, "baseline_id": base, "axes": {**row.axes, "seed": place}}
            if place:
                reason = "2 of 3 rounds measured; timing: interrupted before it was measured"
                fields |= {"status": "skipped", "reason": reason, "is_incomplete": True}
                fields |= {"rounds_complete": 2, "rounds_planned": 3}
            copies.append(dataclasses.replace(row, **fields))
    report = visit(dataclasses.replace(sample, rows=tuple(copies), axes=(*sample.axes, "seed")))
    lines = report.page.locator("#explore-table tbody tr")
    complete, incomplete = lines.filter(has_text="complete"), lines.filter(has_text="2 of 3 rounds")
    assert complete.count() + incomplete.count() == lines.count()
    assert "ms" in incomplete.first.inner_text() or "µs" in incomplete.first.inner_text()
    assert "failed" not in (incomplete.first.get_attribute("class") or "")
    assert "of 108 of 108, 99 incomplete" in report.page.locator("#explore-table tfoot").inner_text()
