"""The table of all combinations and the charts in a real browser: filters, baselines, keyboard, and what charts draw."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from support.browser import Visit, needs_browser, wait_until
from support.nets import lenet5
from support.samples import LONG, PLANNED, build, comparison, drawn, hostile, with_cells
from sweeprof.numbers import fixed_value
from sweeprof.report.columns import is_throughput, ratio_text, value_text
from sweeprof.report.explore import page_data
from sweeprof.report.html import html
from sweeprof.report.summary import INTERVALS, IntervalKind
from sweeprof.report.table import sorted_rows
from sweeprof.results.compared_rows import Comparison, Row, set_against, value_of
from sweeprof.results.constraints import Direction, dominant
from sweeprof.results.measurement import Measurement

pytestmark = [needs_browser, pytest.mark.system]

CHARTS = ("scaling", "pareto", "heatmap", "samples")
Open = Callable[..., Visit]
Traces = list[dict[str, Any]]


@pytest.fixture
def table(visit: Open) -> Open:
    """Opens the page of a comparison without charts."""

    def open_page(
        sample: Comparison, fragment: str = "", layers: Any = None, saved: Sequence[Comparison] = (), **options: Any
    ) -> Visit:
        return visit(html(sample, False, layers or {}, saved=saved), fragment, **options)

    return open_page


@pytest.fixture
def charted(visit: Open) -> Open:
    """Opens the page of a comparison with charts."""

    def open_page(
        sample: Comparison, samples: Mapping[str, Sequence[Sequence[float]]] | None = None, **options: Any
    ) -> Visit:
        return visit(html(sample, samples=samples or {}), **options)

    return open_page


def nightly(sample: Comparison, other: Comparison | None = None) -> Comparison:
    """The same sweep compared with another one, by default one of the same values."""
    return set_against(sample, dataclasses.replace(other or sample, sweep_id="s2"), "tag:nightly")


def test_a_baseline_switches_sentence_table_and_dots(table: Open) -> None:
    """All are what Python computed for it; tests/unit/report/test_html.py checks those against comparisons of their own."""
    sample = drawn(3).comparison()
    saved = [nightly(sample, drawn(12).comparison())]
    report = table(sample, saved=saved)
    data = page_data(sample, is_whole=True, saved=saved)
    for baseline in data["baselines"]:
        label = baseline["key"] or f"as swept: {baseline['text']}"
        choose(report, "compare with", label)
        head = [report.page.locator(f"#answer-{name}").text_content() for name in ("finding", "rest")]
        assert head == [baseline["finding"], baseline["rest"]]
        assert report.page.locator("#overview-title").inner_text() == f"Latency as a ratio to {baseline['text']}"
        cells = baseline["cells"]["0"]
        verdicts = [
            data["verdict_names"][cell[1]].replace("_", " ")
            for row, cell in zip(data["rows"], cells, strict=True)
            if row["status"] == "ok" and cell
        ]
        shown = [text.split(" ", 1) for text in report.page.locator("#dots .value").all_inner_texts()]
        assert sorted(verdict for _, verdict in shown) == sorted(verdicts)
        named = report.page.locator("#explore-table td .verdict").all_inner_texts()
        assert named == verdicts


def column(report: Visit, place: int) -> list[str]:
    """The texts of one column of the table, without intervals; of a failed row, why."""
    found: list[str] = report.page.locator(
        f"#explore-table tbody tr:not(.group-head) td:nth-child({place + 1})"
    ).all_inner_texts()
    return [" ".join(text.split()).removeprefix("noisy ").partition(" [")[0] for text in found]


def show_failures(report: Visit) -> None:
    report.page.get_by_role("button", name="not measured – show").press("Enter")


def titles_of(report: Visit) -> list[str]:
    """The titles of the columns, without their second lines."""
    found: list[str] = report.page.locator("#explore-table thead button").evaluate_all(
        "all => all.map((button) => button.firstChild.textContent)"
    )
    return found


def told(report: Visit) -> str:
    return report.page.locator("#explore-told").inner_text()


def choose(report: Visit, label: str, option: str) -> None:
    report.page.get_by_label(label).select_option(label=option)


def menu(report: Visit, name: str) -> Any:
    found = report.page.locator("details.menu", has=report.page.locator("summary", has_text=name))
    if found.get_attribute("open") is None:
        found.locator("summary").click()
    return found


def test_a_header_sorts_by_number_up_down_and_back(table: Open) -> None:
    report = table(comparison(("lenet5",)))
    assert told(report) == "4 of 6 combinations, ratios to torch"
    show_failures(report)
    header = report.page.locator("#explore-table thead th").nth(3)
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


def test_values_statuses_and_words_filter(table: Open) -> None:
    report = table(comparison())
    page = report.page

    def expect(count: str) -> None:
        assert told(report).startswith(f"{count} of 18 combinations")

    menu(report, "model").get_by_label("lenet5").uncheck()
    show_failures(report)
    expect("12")
    assert set(column(report, 1)) == {"mlp", "digits_resnet"}
    assert menu(report, "model").locator(".count").inner_text().strip() == "2 of 3"
    menu(report, "status").get_by_label("unsupported").uncheck()
    expect("11")
    menu(report, "backend").get_by_role("button", name="none").click()
    expect("0")
    menu(report, "backend").get_by_role("button", name="all").click()
    page.get_by_label("search").fill("MLP batch_size=8 tensor")
    assert column(report, 1) == ["mlp"]
    page.get_by_role("button", name="reset").click()
    expect("16")
    page.get_by_label("search").fill("sigkill")
    expect("0")
    show_failures(report)
    assert column(report, 4) == ["crashed: timing: killed by SIGKILL (signal 9)"]


def test_every_figure_reads_as_in_the_other_reports(table: Open) -> None:
    """All metrics and all ratios, of a sweep with every kind of verdict."""
    sample = drawn(3).comparison()
    report = table(sample)
    for box in menu(report, "columns").get_by_role("checkbox").all():
        box.check()
    infos = [info["name"] for info in report.page.evaluate("sweeprof.data.metrics")]
    rows = {row.combination_id: row for row in sample.rows}
    ids = report.page.evaluate("sweeprof.visible().map((row) => row.id)")
    lines = report.page.locator("#explore-table tbody tr")
    for id, line in zip(ids, lines.all(), strict=True):
        texts = [" ".join(text.split()) for text in line.locator("td").all_inner_texts()[4:]]
        row = rows[id]
        for place, name in enumerate(infos):
            cell = row.cells[name]
            value, ratio = texts[2 * place], texts[2 * place + 1]
            assert value == value_text(cell.measurement, not is_throughput(name))
            if cell.measurement.interval is not None and not is_throughput(name):
                title = line.locator("td").nth(4 + 2 * place).get_attribute("title") or ""
                kind: IntervalKind = "process" if cell.measurement.has_interval_within_process else "rounds"
                assert title.endswith(INTERVALS[kind])
            unmarked = ratio_text(cell).removesuffix(" ~")
            verdict = "" if unmarked == ratio_text(cell) else f" {(cell.verdict or '').replace('_', ' ')}"
            assert ratio == ("baseline" if row.is_baseline else unmarked + verdict)


def test_a_reason_stands_where_there_is_no_value(table: Open) -> None:
    missing = Measurement("quality/accuracy", "ratio", "higher", None, "no <labels>")
    full = comparison()
    changed = with_cells(full, "quality/accuracy", measurement=missing).rows[0]
    report = table(dataclasses.replace(full, rows=(changed, *full.rows[1:])))
    menu(report, "columns").get_by_label("accuracy", exact=True).check()
    cell = report.page.locator('#explore-table td[title="no <labels>"]').first
    assert cell.inner_text() == "–"


def test_what_is_the_same_wherever_it_is_known_is_no_column_at_first(table: Open) -> None:
    """Nor what only a row that failed has otherwise; a short value of an axis stays on one line."""
    metrics: dict[str, tuple[str, Any]] = {"latency/forward": ("s", "lower"), "own/size": ("B", "lower")}
    values: list[dict[str, int | float]] = [{"latency/forward": 1e-3 * n, "own/size": 64} for n in range(1, 5)]
    del values[1]["own/size"]
    values[2]["own/size"] = 128
    full = build([{"model": f"a model {n}"} for n in range(4)], metrics, values)
    failed = dataclasses.replace(full.rows[2], status="failed", reason="outputs differ")
    report = table(
        dataclasses.replace(full, rows=(*full.rows[:2], failed, full.rows[3])), viewport={"width": 400, "height": 800}
    )
    titles = titles_of(report)
    assert titles[:2] == ["model", "latency"]
    assert not any("size" in title for title in titles)
    assert report.page.locator("#explore-table td.axis").first.evaluate(
        "e => e.getClientRects().length && e.clientHeight < 40"
    )


def test_the_table_of_three_models_fits_and_what_a_model_has_once_is_in_its_heading(table: Open) -> None:
    report = table(comparison(), viewport={"width": 1440, "height": 900})
    region = report.page.locator(".tall")
    assert region.evaluate("e => e.scrollWidth <= e.clientWidth")
    assert report.page.locator("#best").bounding_box()["y"] < 300  # type: ignore[index]
    assert region.bounding_box()["y"] < 900  # type: ignore[index]
    headings = report.page.locator("#dots h3").all_inner_texts()
    assert headings[0] == "lenet5\naccuracy 0.9889 · MACs/sample 417 kMAC · parameters 61.7 k"
    assert [heading.partition("\n")[0] for heading in headings] == ["lenet5", "mlp", "digits_resnet"]
    titles = report.page.locator("#explore-table thead th").all_inner_texts()
    assert not [title for title in titles if title.startswith(("parameters", "MACs", "accuracy"))]
    # Where models are compared it is a column.
    compared = table(dataclasses.replace(comparison(), baseline={"model": "lenet5"}))
    assert any(title.startswith("parameters") for title in titles_of(compared))


def test_dots_are_all_in_sight_and_one_stop_of_the_tab_key(table: Open) -> None:
    """Of many the first 40, so that the table does not begin far below."""
    sample = drawn(3, models=4, sizes=7).comparison()
    page = table(sample, viewport={"width": 390, "height": 844}).page
    dots = page.locator("#dots")
    assert dots.locator("li").count() == 40
    assert "the first 40 of " in page.locator("#dots-note").inner_text()
    assert dots.evaluate("e => e.scrollHeight <= e.clientHeight")
    dots.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#explore-controls') !== null")
    dots.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    second = dots.locator(".name").nth(1)
    assert second.get_attribute("href") == f"#{page.locator('tr:has(+ tr.detail)').get_attribute('id')}"


def test_a_dot_beside_a_value_is_where_the_value_is(table: Open) -> None:
    """On one logarithmic scale for the column."""
    sample = drawn(3).comparison()
    report = table(sample)
    rows = {row.combination_id: value_of(row, "latency/forward") for row in sample.rows if row.has_values}
    values = [value for value in rows.values() if value]
    for line in report.page.locator("#explore-table tbody tr").all():
        value = rows[line.get_attribute("id")]  # type: ignore[index]
        dot = line.locator("circle").first.get_attribute("cx")
        assert value is not None
        assert dot is not None
        share = math.log(value / min(values)) / math.log(max(values) / min(values))
        assert float(dot.removesuffix("%")) == pytest.approx(
            6 + 88 * share, abs=3
        )  # the scale has room for the intervals


def test_columns_come_and_go(table: Open) -> None:
    report = table(comparison())
    assert titles_of(report)[:6] == ["model", "backend", "batch_size", "latency", "vs torch", "throughput"]
    words = report.page.locator("#explore-table thead .words").all_inner_texts()
    assert words[:3] == ["lower is better", "lower is better", "higher is better"]
    columns = menu(report, "columns")
    columns.get_by_label("throughput", exact=True).uncheck()
    columns.get_by_label("peak memory, ratio").check()
    assert titles_of(report)[3:7] == ["latency", "latency vs torch", "peak memory", "peak memory vs torch"]


def test_where_nothing_is_compared_there_are_no_ratios(table: Open) -> None:
    metrics: dict[str, tuple[str, Any]] = {"latency/forward": ("s", "lower"), "quality/accuracy": ("ratio", "higher")}
    values: list[dict[str, int | float]] = [{"latency/forward": n, "quality/accuracy": 1 / n} for n in (1, 2)]
    report = table(build([{"n": 1}, {"n": 2}], metrics, values))
    assert titles_of(report) == ["n", "latency", "accuracy"]
    assert "baseline" not in report.page.locator("#explore-table").inner_text()
    assert report.page.get_by_label("compare with").count() == 0


def test_the_address_is_the_view(table: Open) -> None:
    saved = [nightly(comparison())]
    report = table(comparison(), saved=saved)
    choose(report, "group by", "model")
    menu(report, "backend").get_by_label("torch", exact=True).uncheck()
    choose(report, "compare with", "tag:nightly")
    report.page.locator("#explore-table thead th").nth(2).locator("button").click()
    shown = report.page.locator("#explore-table").inner_text()
    address = report.page.evaluate("location.hash")
    again = table(comparison(), address, saved=saved)
    assert again.page.locator("#explore-table").inner_text() == shown
    assert again.page.get_by_label("compare with").evaluate("e => e.selectedOptions[0].textContent") == "tag:nightly"
    for count in ("7", "16"):
        report.page.go_back()
        report.page.go_back()
        assert told(report) == f"{count} of 18 combinations, ratios to torch"
    report.page.go_forward()
    assert report.page.locator("#explore-table .group-head").count() == 3


def test_a_view_of_another_report_shows_what_it_can(table: Open) -> None:
    report = table(
        comparison(),
        "#view&rising=gone&group=gone&without.gone=1&without.model=vgg&column=gone&baseline.gone=1&baseline=c9",
    )
    assert told(report) == "16 of 18 combinations, ratios to torch"


def test_a_link_opens_its_row(table: Open) -> None:
    names = ("model=lenet5, backend=torch, batch_size=8", "model=lenet5, backend=tensorflow, batch_size=8")
    report = table(comparison(), layers={name: lenet5(8) for name in names})
    report.page.get_by_role("button", name=f"details of {names[1]}").click()
    row = report.page.locator("#explore-table tr.detail")
    assert report.page.locator("tr:has(+ tr.detail)").get_attribute("id") == "c000000000004"
    assert "model=lenet5 backend=tensorflow batch_size=8" in row.locator("pre").inner_text()
    assert "min 337 µs" in row.inner_text()
    row.get_by_role("button", name="Its layers").click()
    chosen = [report.page.locator(f"#layers-{side} option:checked").inner_text() for side in ("chosen", "beside")]
    assert chosen == [names[1], names[0]]
    report.page.get_by_role("button", name=f"details of {names[1]}").press("Enter")
    assert row.count() == 0
    report.page.locator(".failures a").first.click()
    assert "killed by SIGKILL" in row.inner_text()
    assert report.page.evaluate("document.activeElement.className") == "toggle"
    assert told(report).startswith("18 of 18")


def test_it_is_used_by_keyboard_alone(table: Open) -> None:
    report = table(comparison(), saved=[nightly(comparison())])
    press = report.page.keyboard.press
    report.page.get_by_label("compare with").focus()
    press("ArrowDown")
    assert told(report) == "16 of 18 combinations, ratios to tag:nightly"
    report.page.get_by_label("search").focus()
    for key in ("Tab", "Enter", "Tab", "Tab", "Tab", "Space"):
        press(key)
    assert told(report).startswith("11 of 18 combinations")
    press("Escape")
    assert report.page.locator("details.menu[open]").count() == 0
    assert report.page.evaluate("document.activeElement.textContent").startswith("model")


def test_the_table_is_saved_as_it_is_shown(table: Open) -> None:
    report = table(comparison())
    menu(report, "model").get_by_label("digits_resnet").uncheck()
    menu(report, "model").get_by_label("mlp").uncheck()
    with report.page.expect_download() as saved:
        report.page.get_by_role("button", name="CSV").click()
    lines = list(csv.DictReader(saved.value.path().read_text(encoding="utf-8").splitlines()))
    rows = [row for row in sorted_rows(comparison()) if row.axes["model"] == "lenet5" and row.status == "ok"]
    for line, row in zip(lines, rows, strict=True):
        assert line["backend"] == row.axes["backend"]
        latency, ratio = row.cells["latency/forward"], line["latency/forward ratio to torch"]
        assert float(line["latency/forward (ms)"]) == pytest.approx(1e3 * (latency.measurement.value or 0), rel=1e-5)
        assert ratio == "" if latency.ratio is None else float(ratio) == pytest.approx(latency.ratio, rel=1e-5)


@pytest.mark.parametrize("width", [390, 1440])
def test_axes_and_titles_stay_in_sight(table: Open, width: int) -> None:
    """Also when grouped; at 390 pixels as many axes as leave room for figures."""
    report = table(drawn(4, models=6).comparison(), viewport={"width": width, "height": 844})
    choose(report, "group by", "backend")
    region = report.page.locator(".tall")
    region.scroll_into_view_if_needed()
    region.evaluate("e => { e.scrollLeft = 9999; e.scrollTop = 300; }")
    seen = report.page.evaluate("""() => {
      const region = document.querySelector(".tall").getBoundingClientRect();
      const at = (x, y) => document.elementFromPoint(region.left + x, region.top + y).closest("th, td");
      return [at(40, 10).textContent, at(40, 200).classList.contains("frozen"), document.documentElement.scrollWidth <= innerWidth];
    }""")
    assert seen == ["model", True, True]


def test_hostile_names_do_no_harm(table: Open) -> None:
    report = table(hostile(), viewport={"width": 400, "height": 800})
    assert report.page.locator("#dots h3", has_text="<script>alert(1)</script>").count() == 1
    show_failures(report)
    assert report.page.locator("#explore-table td", has_text="<script>alert(1)</script>").count() == 6
    assert report.page.locator(f'#explore-table td[title="{LONG}"]').count() == 6
    menu(report, "model").get_by_label("<script>").uncheck()
    assert told(report).startswith("12 of 18")
    choose(report, "group by", "model")
    assert report.page.locator(f'#explore-table .group-head th[title="model={LONG}"]').count() == 1
    assert report.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    again = table(hostile(), report.page.evaluate("location.hash"))
    assert told(again).startswith("12 of 18")


@pytest.mark.thorough
def test_a_thousand_combinations_fit_and_answer(table: Open) -> None:
    sample = drawn(3, models=48, sizes=7).comparison()
    assert len(sample.rows) > 1000
    samples = {row.combination_id: [[1.2345] * 4] * 6 for row in sample.rows}
    assert len(html(sample, True, samples=samples).encode()) < 6_000_000
    report = table(sample)
    lines = report.page.locator("#explore-table tbody tr")
    assert lines.count() == 200
    region = report.page.locator("#explore-table").locator("..")
    link = report.page.locator("#explore-table tbody button").nth(199)
    link.focus()  # which scrolls to the end
    wait_until(report.page, "document.querySelectorAll('#explore-table tbody tr').length > 200")
    assert link.evaluate("e => e === document.activeElement")
    region.evaluate("e => { e.scrollTop = e.scrollHeight; }")
    wait_until(report.page, "document.querySelectorAll('#explore-table tbody tr').length > 400")
    report.page.get_by_label("search").fill("model=m7,")
    measured = [row for row in sample.rows if row.has_values]
    found = [row for row in measured if row.axes["model"] == "m7"]
    assert told(report).startswith(f"{len(found)} of 1,008 combinations")
    assert lines.count() == len(found)
    report.page.get_by_role("button", name="reset").click()
    report.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert lines.count() == len(measured)


def test_an_incomplete_row_has_its_values_and_says_how_many_rounds_they_are_of(table: Open) -> None:
    first, *others = comparison(broken=False).rows
    reason = "2 of 3 rounds measured; timing: interrupted before it was measured"
    known: dict[str, Any] = {"status": "skipped", "reason": reason, "is_incomplete": True}
    known |= {"rounds_complete": 2, "rounds_planned": 3}
    rows = (first, *(dataclasses.replace(row, **known) for row in others))
    report = table(dataclasses.replace(comparison(), rows=rows))
    lines = report.page.locator("#explore-table tbody tr")
    incomplete = lines.filter(has_text="2 of 3 rounds")
    assert (incomplete.count(), lines.count()) == (len(others), len(rows))
    assert "ms" in incomplete.first.inner_text() or "µs" in incomplete.first.inner_text()
    assert "unmeasured" not in (incomplete.first.get_attribute("class") or "")


def traces(report: Visit, key: str) -> Traces:
    """What a chart draws, once it is seen."""
    report.page.locator(f"#chart-{key}").scroll_into_view_if_needed()
    report.page.wait_for_selector(f"#chart-{key}:not([aria-busy]) svg.main-svg")
    found: Traces = report.page.evaluate(f"document.getElementById('chart-{key}').data")
    return found


def choose_chart(report: Visit, key: str, label: str, text: str) -> None:
    report.page.locator(f"#chart-{key}-choices").get_by_role("combobox", name=label, exact=True).select_option(
        label=text
    )


def note(report: Visit, key: str) -> str:
    return report.page.locator(f"#chart-{key}-note").inner_text()


def points_of(drawn: Traces) -> dict[str, tuple[float | None, float | None]]:
    """x and y by combination; one that is drawn twice is an error."""
    found: dict[str, tuple[float | None, float | None]] = {}
    for trace in (one for one in drawn if "customdata" in one):  # what is for the legend alone has none
        for id, x, y in zip(trace["customdata"], trace["x"], trace["y"], strict=True):
            if id is not None:
                assert id not in found
                found[id] = (x, y)
    return found


def fixed(row: Row, metric: str) -> float | None:
    """In the unit of the page."""
    value = value_of(row, metric)
    return None if value is None else fixed_value(value, row.cells[metric].measurement.unit, 15)


def near(value: Any) -> Any:
    """As the page has it, which rounds; nothing is near to None but None."""
    return None if value is None else pytest.approx(value, rel=1e-5)


def over_batch_size(sample: Comparison, metric: str) -> dict[str, tuple[int, Any]]:
    return {row.combination_id: (row.axes["batch_size"], near(fixed(row, metric))) for row in sample.rows}


def test_scaling_curves_have_the_values_and_intervals_of_the_comparison(charted: Open) -> None:
    sample = comparison()
    report = charted(sample)
    drawn = traces(report, "scaling")
    assert points_of(drawn) == over_batch_size(sample, "latency/forward")
    assert [trace["name"] for trace in drawn][:2] == ["lenet5 · torch", "lenet5 · tensorflow"]
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in drawn}) == 6
    first = drawn[0]
    assert first["error_y"]["array"] == pytest.approx([0.03 * y for y in first["y"]], rel=1e-2)
    assert first["error_y"]["arrayminus"] == pytest.approx([0.02 * y for y in first["y"]], rel=1e-2)
    assert "2 without a value" in note(report, "scaling")
    assert "killed by SIGKILL" in note(report, "scaling")
    assert "Bars: 95% intervals of the median within one process, not between processes." in note(report, "scaling")
    assert "95% within one process: " in first["text"][0]
    cell = report.page.locator("#explore-table td:has(> .interval)").first
    assert (
        cell.get_attribute("title") == "[126–132] 95% interval of the median within one process, not between processes"
    )


def test_a_keyboard_skips_the_head_and_chooses_what_a_chart_shows(charted: Open) -> None:
    sample = comparison()
    report = charted(sample)
    report.page.keyboard.press("Tab")
    skip = report.page.get_by_role("link", name="Skip to the results")
    assert skip.evaluate("e => e === document.activeElement && e.getBoundingClientRect().top >= 0")
    report.page.keyboard.press("Enter")
    assert report.page.evaluate("location.hash") == "#content"
    traces(report, "scaling")
    metric = report.page.locator("#chart-scaling-choices").get_by_label("metric")
    metric.focus()
    assert metric.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    report.page.keyboard.type("through")
    assert metric.locator("option:checked").inner_text() == "throughput"
    assert points_of(traces(report, "scaling")) == over_batch_size(sample, "throughput/samples_per_s")


def test_the_front_of_any_two_metrics_is_pythons(charted: Open) -> None:
    chance = random.Random(20261122)
    metrics: dict[str, tuple[str, Any]] = {
        "own/cost": ("s", "lower"),
        "own/gain": ("abs", "higher"),
        "own/size": ("B", "lower"),
        "own/rate": ("abs", "higher"),
    }
    points = [{"model": f"m{i % 5}", "level": i // 5} for i in range(40)]
    # Few different values, so that many are equal.
    values: list[dict[str, int | float]] = [
        {name: chance.randint(1, 9) for name in metrics if chance.random() < 0.95} for _ in points
    ]
    full = build(points, metrics, values)
    # What failed late has its values, and what misses a constraint too: neither is on a front.
    odd: dict[str, dict[str, Any]] = {
        **{f"c{n}": {"misses": ("cost < 3 s: 4 s",)} for n in range(0, 40, 6)},
        **{f"c{n}": {"status": "failed", "reason": "outputs differ"} for n in range(0, 40, 5)},
    }
    rows = tuple(dataclasses.replace(row, **odd.get(row.combination_id, {})) for row in full.rows)
    sample = dataclasses.replace(full, rows=rows)
    report = charted(sample)
    measured = [row for row in rows if row.status == "ok"]
    cost, gain, size, rate = metrics
    for x, y in ((cost, gain), (gain, size), (size, cost), (gain, rate)):  # every pair of directions
        choose_chart(report, "pareto", "x axis", x)
        choose_chart(report, "pareto", "y axis", y)
        steps, *clouds = traces(report, "pareto")
        known = [row for row in measured if value_of(row, x) is not None and value_of(row, y) is not None]
        fitting = [row for row in known if not row.misses]
        better: tuple[Direction, Direction] = (metrics[x][1], metrics[y][1])
        pairs = [(float(value_of(row, x) or 0), float(value_of(row, y) or 0)) for row in fitting]
        front = [fitting[place].combination_id for place in dominant(pairs, better)]
        assert sorted(steps["customdata"]) == sorted(front)
        assert set(points_of(clouds)) == {row.combination_id for row in known}
        along = [fixed(row, x) for id in steps["customdata"] for row in known if row.combination_id == id]
        assert steps["x"] == near(along)
        assert steps["x"] == sorted(steps["x"], reverse=better[0] == "higher")
        assert note(report, "pareto").startswith(f"{len(front)} of {len(known)} combinations on the front")
        missed = len(known) - len(fitting)
        assert f"{missed} combinations cannot be on the front, because of a constraint" in note(report, "pareto")
        assert "failed: outputs differ" in note(report, "pareto")


def test_cells_of_the_heatmap_are_geometric_means(charted: Open) -> None:
    chance = random.Random(7)
    axes: dict[str, list[Any]] = {
        "model": list("abc"),
        "backend": ["torch", "jax", "tensorflow"],
        "threads": [1, 2, 4, 8],
    }
    points = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    values: list[dict[str, int | float]] = []
    for point in points:
        has_value = chance.random() < 0.8 and (point["model"], point["threads"]) != ("b", 4)
        values.append({"latency/forward": chance.lognormvariate(-7, 2)} if has_value else {})
    sample = build(points, {"latency/forward": ("s", "lower")}, values)
    report = charted(sample)
    choose_chart(report, "heatmap", "x axis", "threads")
    choose_chart(report, "heatmap", "backend", "all (geometric mean)")
    heat, gaps = traces(report, "heatmap")
    for j, model in enumerate(axes["model"]):
        for i, threads in enumerate(axes["threads"]):
            rows = [row for row in sample.rows if (row.axes["model"], row.axes["threads"]) == (model, threads)]
            found = [number for row in rows if (number := fixed(row, "latency/forward")) is not None]
            mean = near(statistics.geometric_mean(found) if found else None)
            assert heat["customdata"][j][i] == [mean, len(found)]
    empty = next(text for text in gaps["text"] if text.startswith("threads 4, model b"))
    assert empty == "threads 4, model b<br>no value<br>failed: ValueError: no luck"
    assert heat["z"][1][2] is None
    assert "a cell is the geometric mean of 3 combinations; * marks a mean of fewer" in note(report, "heatmap")
    choose_chart(report, "heatmap", "backend", "jax")
    heat, _ = traces(report, "heatmap")
    (row,) = (row for row in sample.rows if row.axes == {"model": "c", "backend": "jax", "threads": 8})
    assert heat["customdata"][2][3][0] == near(fixed(row, "latency/forward"))
    with report.page.expect_download() as saved:
        report.page.locator("#chart-heatmap .modebar-btn").first.dispatch_event("click")
    assert saved.value.suggested_filename == "chart.svg"


@pytest.mark.slow  # that what failed is on no front is among the tests of the front
def test_ratios_of_the_heatmap_are_those_of_the_table_and_what_failed_is_nowhere(charted: Open) -> None:
    """Interleaved runs, rounds that are missing, settings that differ and rows that failed with their values included."""
    sweep = drawn(18)
    rows = sweep.against(PLANNED)
    failed = {row.combination_id for row in rows if row.status != "ok"}
    assert any(fixed(row, "latency/forward") is not None for row in rows if row.status != "ok")
    report = charted(sweep.comparison(), {row.combination_id: [[1.0, 2.0]] for row in rows})
    seen = points_of(traces(report, "scaling"))
    assert not failed & {id for id, (_, y) in seen.items() if y is not None}
    assert f"{len(failed)} without a value: " in note(report, "scaling")
    assert "failed: no luck" in note(report, "scaling")
    assert failed.isdisjoint(trace["customdata"][0] for trace in traces(report, "samples"))
    choose_chart(report, "heatmap", "shown as", "ratio to the baseline")
    choose_chart(report, "heatmap", "x axis", "backend")
    choose_chart(report, "heatmap", "y axis", "model")
    choose_chart(report, "heatmap", "batch size", "all (geometric mean)")
    (heat, *_) = traces(report, "heatmap")
    models, backends = (sorted({row.axes[axis] for row in rows}) for axis in ("model", "backend"))
    expected = []
    for model, backend in itertools.product(models, backends):
        members = [row for row in rows if (row.axes["model"], row.axes["backend"]) == (model, backend)]
        found = [number for row in members if (number := ratio(row)) is not None]
        expected.append([pytest.approx(statistics.geometric_mean(found), rel=1e-4) if found else None, len(found)])
    assert list(itertools.chain(*heat["customdata"])) == expected
    assert heat["zmin"] == -heat["zmax"], "the middle of the colours is at 1"


def ratio(row: Row) -> float | None:
    """To its baseline, where the two can be compared."""
    cell = row.cells["latency/forward"]
    if row.status != "ok" or row.baseline_status not in (None, "ok"):
        return None
    if row.is_baseline and cell.measurement.value is not None:
        return 1.0
    return None if cell.verdict == "not_comparable" else cell.ratio


def samples_of(sample: Comparison, rounds: int = 3) -> dict[str, list[list[float]]]:
    chance = random.Random(1)
    return {
        row.combination_id: [[round(chance.lognormvariate(0, 0.1), 4) for _ in range(9)] for _ in range(rounds)]
        for row in sample.rows
        if row.status == "ok"
    }


@pytest.mark.slow
def test_samples_stand_round_by_round_in_groups_of_bounded_size(charted: Open) -> None:
    points = [{"model": m, "threads": n} for m in ("a", "b") for n in range(1, 31)]
    sample = build(points, {"latency/forward": ("s", "lower")}, [{"latency/forward": 1e-3}] * len(points))
    samples = samples_of(sample)
    samples["c1"][1] = []  # a round that failed
    report = charted(sample, samples)
    choose_chart(report, "samples", "side by side", "threads")
    drawn = traces(report, "samples")
    shown = [row.combination_id for row in sample.rows if row.axes["model"] == "a"][:12]
    expected = [(id, found) for id in shown for found in samples[id] if found]
    assert [(trace["customdata"][0], trace["y"]) for trace in drawn] == expected
    centres = [trace["x"][0] for trace in drawn]
    assert centres == sorted(set(centres))
    choose_chart(report, "samples", "of", "b")
    choose_chart(report, "samples", "part", "25 to 30 of 30")
    drawn = traces(report, "samples")
    assert {trace["customdata"][0] for trace in drawn} == {
        row.combination_id for row in sample.rows if row.axes["model"] == "b" and row.axes["threads"] > 24
    }
    assert "162 samples of 6 combinations (b), 3 rounds" in note(report, "samples")


def test_charts_show_what_the_table_shows_once_they_are_seen(charted: Open) -> None:
    sample = comparison()
    report = charted(sample, samples_of(sample), viewport={"width": 1200, "height": 500})
    report.page.wait_for_selector("#explore-table tbody tr")
    assert report.page.locator(".chart svg.main-svg").count() == 0
    height = report.page.evaluate("document.documentElement.scrollHeight")
    traces(report, "samples")
    assert report.page.locator("#chart-scaling svg.main-svg").count() == 0
    for key in CHARTS:
        traces(report, key)
    assert report.page.evaluate("document.documentElement.scrollHeight") == height, "what is read has moved"
    report.page.evaluate("location.hash = '#view&without.backend=torch'")
    wait_until(report.page, "document.querySelector('#explore-told').textContent.includes('7 of 18')")
    kept = {row.combination_id for row in sample.rows if row.axes["backend"] == "tensorflow"}
    assert set(points_of(traces(report, "scaling"))) == kept
    assert set(points_of(traces(report, "pareto")[1:])) < kept
    assert "7 of 7 combinations" not in note(report, "pareto")
    assert {trace["customdata"][0] for trace in traces(report, "samples")} <= kept
    report.page.evaluate("location.hash = '#view&search=nothing-is-called-so'")
    wait_until(report.page, "document.querySelector('#explore-told').textContent.includes('0 of 18')")
    for key in CHARTS:
        traces(report, key)
    assert note(report, "scaling") == "0 lines of 0 combinations."


INK = "document.querySelector('#chart-heatmap .xtitle').style.fill"


def test_charts_follow_the_theme_and_paper_has_all_in_light_at_its_own_width(charted: Open) -> None:
    """Also those that nobody has looked at; afterwards the page is as it was."""
    report = charted(comparison(), samples_of(comparison()), color_scheme="dark")
    page = report.page
    dark = traces(report, "heatmap")[0]["colorscale"]
    ink, width = page.evaluate(INK), page.evaluate("document.getElementById('chart-heatmap').clientWidth")
    widths = "[...document.querySelectorAll('.chart .plot')].map((plot) => plot._fullLayout?.width)"
    seen = f"() => addEventListener('beforeprint', () => {{ window.printed = {{ ink: {INK}, widths: {widths} }}; }})"
    page.evaluate(seen)
    document = page.pdf()
    printed = page.evaluate("window.printed")
    assert printed == {"ink": "rgb(31, 35, 40)", "widths": [680] * 4}
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", document)) <= 10
    wait_until(page, "width => document.getElementById('chart-heatmap')._fullLayout.width === width", arg=width)
    assert page.evaluate(INK) == ink
    page.emulate_media(color_scheme="light")
    wait_until(page, f"dark => {INK} !== dark", arg=ink)
    assert traces(report, "heatmap")[0]["colorscale"] != dark
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.set_viewport_size({"width": 703, "height": 1000})  # A4 without its margins
    assert page.locator("#explore-table").evaluate("e => e.getBoundingClientRect().right <= innerWidth")


@pytest.mark.slow
def test_hostile_names_do_no_harm_in_any_chart(charted: Open) -> None:
    sample = hostile()
    report = charted(sample, samples_of(sample), viewport={"width": 390, "height": 900})
    choose_chart(report, "samples", "side by side", "model")
    for key in CHARTS:
        traces(report, key)
    assert report.page.locator("#chart-scaling .legendtext", has_text="<script").count() == 2
    assert report.page.locator("#chart-heatmap .ytick", has_text="…").count() >= 1
    assert LONG not in report.page.locator("#chart-pareto-more").inner_text()
    assert report.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_charts_of_many_combinations_stay_readable(charted: Open) -> None:
    chance = random.Random(3)
    axes: dict[str, list[Any]] = {
        "model": [f"m{i}" for i in range(10)],
        "backend": list("abcdefghij"),
        "batch_size": [1, 2, 4],
    }
    points = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    metrics: dict[str, tuple[str, Any]] = {"latency/forward": ("s", "lower"), "quality/accuracy": ("ratio", "higher")}
    values = [{"latency/forward": chance.lognormvariate(-6, 1), "quality/accuracy": chance.random()} for _ in points]
    sample = build(points, metrics, values)
    report = charted(sample, {id: [found[0][:5]] for id, found in samples_of(sample, 1).items()})
    for key in CHARTS:
        assert len(traces(report, key)) <= 26
        assert report.page.locator(f"#chart-{key} .legend .traces").count() <= 13
    lines = traces(report, "scaling")
    thin, thick = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    assert set(points_of(thin)) == {row.combination_id for row in sample.rows}
    rows = [row for row in sample.rows if (row.axes["backend"], row.axes["batch_size"]) == ("a", 1)]
    known = [1e3 * value for row in rows if (value := value_of(row, "latency/forward")) is not None]
    assert thick[0]["y"][0] == near(statistics.geometric_mean(known))
