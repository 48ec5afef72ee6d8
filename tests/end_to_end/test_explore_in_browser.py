"""The head of the page and the table of all combinations in a real browser: filters, baselines, details, keyboard."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import Visit, needs_browser, opened, wait_until
from support.nets import lenet5
from support.samples import LONG, build, comparison, drawn, hostile, with_cells
from sweeprof.report.columns import is_throughput, ratio_text, value_text
from sweeprof.report.explore import page_data
from sweeprof.report.html import html
from sweeprof.report.summary import INTERVALS, IntervalKind
from sweeprof.report.table import sorted_rows
from sweeprof.results.compared_rows import Comparison, compare_rows, set_against
from sweeprof.results.measurement import Measurement

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [needs_browser, pytest.mark.system]

Open = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    visits: list[Visit] = []

    def open_report(
        sample: Comparison,
        fragment: str = "",
        layers: Any = None,
        saved: Sequence[Comparison] = (),
        **options: Any,
    ) -> Visit:
        text = html(sample, False, layers or {}, saved=saved)
        visits.append(opened(browser, text, fragment, **options))
        visits[-1].page.set_default_timeout(10_000)
        return visits[-1]

    yield open_report
    for one in visits:
        assert one.complaints == []
        assert len(one.requests) == 1
        one.leave()


def nightly(sample: Comparison, other: Comparison | None = None) -> Comparison:
    """The same sweep compared with another one, by default one of the same values."""
    return set_against(sample, dataclasses.replace(other or sample, sweep_id="s2"), "tag:nightly")


def test_a_baseline_switches_sentence_counts_table_and_dots(visit: Open) -> None:
    """All are what Python computed for it; tests/unit/report/explore checks those against comparisons of their own."""
    sample = drawn(3).comparison()
    saved = [nightly(sample, drawn(12).comparison())]
    report = visit(sample, saved=saved)
    data = page_data(sample, is_whole=True, saved=saved)
    for baseline in data["baselines"]:
        label = baseline["key"] or f"as swept: {baseline['text']}"
        choose(report, "compare with", label)
        head = [report.page.locator(f"#answer-{name}").text_content() for name in ("finding", "rest", "counts")]
        counts = f"Verdicts against {baseline['text']} – {'; '.join(baseline['counts'])}"
        assert head == [baseline["finding"], baseline["rest"], counts]
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


def test_a_header_sorts_by_number_up_down_and_back(visit: Open) -> None:
    report = visit(comparison(("lenet5",)))
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
    report.page.locator("#explore-table thead th").nth(2).locator("button").click()
    assert column(report, 2) == ["1", "1", "8", "8", "64", "64"]


def test_values_statuses_and_words_filter(visit: Open) -> None:
    report = visit(comparison())
    menu(report, "model").get_by_label("lenet5").uncheck()
    show_failures(report)
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
    assert told(report).startswith("16 of 18")
    report.page.get_by_label("search").fill("sigkill")
    assert told(report).startswith("0 of 18")
    show_failures(report)
    assert column(report, 4) == ["crashed: timing: killed by SIGKILL (signal 9)"]
    seen = report.page.evaluate("sweeprof.visible().map((row) => row.status)")
    assert seen == ["crashed"]


def test_groups_have_their_number_of_combinations(visit: Open) -> None:
    sample = drawn(4).comparison()
    report = visit(sample)
    choose(report, "group by", "backend")
    heads = report.page.locator("#explore-table .group-head")
    names = [text.split() for text in heads.locator("th").all_inner_texts()]
    assert [name for name, _ in names] == ["backend=b0", "backend=b1", "backend=b2"]
    counted = {f"backend={axis}": 0 for axis in ("b0", "b1", "b2")}
    for row in sample.rows:
        counted[f"backend={row.axes['backend']}"] += row.has_values
    assert {name: int(count) for name, count in names} == counted
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
    titles = titles_of(report)
    assert titles[:2] == ["model", "latency"]
    assert not any("size" in title for title in titles)
    assert report.page.locator("#explore-table td.axis").first.evaluate(
        "e => e.getClientRects().length && e.clientHeight < 40"
    )


def test_the_table_of_three_models_fits_and_what_a_model_has_once_is_in_its_heading(visit: Open) -> None:
    report = visit(comparison(), viewport={"width": 1440, "height": 900})
    region = report.page.locator(".tall")
    assert region.evaluate("e => e.scrollWidth <= e.clientWidth")
    assert region.bounding_box()["y"] < 600  # type: ignore[index]
    headings = report.page.locator("#dots h3").all_inner_texts()
    assert headings[0] == "lenet5\naccuracy 0.9889 · MACs/sample 417 kMAC · parameters 61.7 k"
    assert [heading.partition("\n")[0] for heading in headings] == ["lenet5", "mlp", "digits_resnet"]
    titles = report.page.locator("#explore-table thead th").all_inner_texts()
    assert not [title for title in titles if title.startswith(("parameters", "MACs", "accuracy"))]


def test_what_a_model_has_once_is_a_column_where_models_are_compared(visit: Open) -> None:
    sample = dataclasses.replace(comparison(), baseline={"model": "lenet5"})
    titles = visit(sample).page.locator("#explore-table thead th").all_inner_texts()
    assert [title for title in titles if title.startswith("parameters")]


def test_columns_come_and_go(visit: Open) -> None:
    report = visit(comparison())
    assert titles_of(report)[:6] == ["model", "backend", "batch_size", "latency", "vs torch", "throughput"]
    words = report.page.locator("#explore-table thead .words").all_inner_texts()
    assert words[:3] == ["lower is better", "lower is better", "higher is better"]
    columns = menu(report, "columns")
    columns.get_by_label("throughput", exact=True).uncheck()
    columns.get_by_label("peak memory, ratio").check()
    assert titles_of(report)[3:7] == ["latency", "latency vs torch", "peak memory", "peak memory vs torch"]


def test_where_nothing_is_compared_there_are_no_ratios(visit: Open) -> None:
    sample = comparison()
    rows = [dataclasses.replace(row, baseline_id=None) for row in sample.rows]
    values = {row.combination_id: {name: cell.measurement for name, cell in row.cells.items()} for row in sample.rows}
    alone = dataclasses.replace(sample, baseline={}, rows=compare_rows(rows, values, sample.threshold))
    report = visit(alone)
    assert titles_of(report)[3:5] == ["latency", "throughput"]
    assert "baseline" not in report.page.locator("#explore-table").inner_text()
    assert report.page.get_by_label("compare with").count() == 0


def test_the_address_is_the_view(visit: Open) -> None:
    saved = [nightly(comparison())]
    report = visit(comparison(), saved=saved)
    choose(report, "group by", "model")
    menu(report, "backend").get_by_label("torch", exact=True).uncheck()
    choose(report, "compare with", "tag:nightly")
    report.page.locator("#explore-table thead th").nth(2).locator("button").click()
    table = report.page.locator("#explore-table").inner_text()
    address = report.page.evaluate("location.hash")
    again = visit(comparison(), address, saved=saved)
    assert again.page.locator("#explore-table").inner_text() == table
    assert again.page.get_by_label("compare with").evaluate("e => e.selectedOptions[0].textContent") == "tag:nightly"
    report.page.go_back()
    report.page.go_back()
    assert told(report) == "7 of 18 combinations, ratios to torch"
    report.page.go_back()
    report.page.go_back()
    assert told(report) == "16 of 18 combinations, ratios to torch"
    report.page.go_forward()
    assert report.page.locator("#explore-table .group-head").count() == 3


def test_a_view_of_another_report_shows_what_it_can(visit: Open) -> None:
    report = visit(
        comparison(),
        "#view&rising=gone&group=gone&without.gone=1&without.model=vgg&column=gone&baseline.gone=1&baseline=c9",
    )
    assert told(report) == "16 of 18 combinations, ratios to torch"


def test_a_link_opens_its_row(visit: Open) -> None:
    names = ("model=lenet5, backend=torch, batch_size=8", "model=lenet5, backend=tensorflow, batch_size=8")
    report = visit(comparison(), layers={name: lenet5(8) for name in names})
    report.page.get_by_role("button", name=f"details of {names[1]}").click()
    row = report.page.locator("#explore-table tr.detail")
    assert report.page.locator("tr:has(+ tr.detail)").get_attribute("id") == "c000000000004"
    assert "model=lenet5 backend=tensorflow batch_size=8" in row.locator("pre").inner_text()
    assert "min 337 µs" in row.inner_text()
    row.get_by_role("button", name="Its layers").click()
    chosen = [report.page.locator(f"#layers-{side} option:checked").inner_text() for side in ("left", "right")]
    assert chosen == list(names)
    report.page.get_by_role("button", name=f"details of {names[1]}").press("Enter")
    assert row.count() == 0


def test_a_link_to_a_row_that_was_not_measured_opens_it(visit: Open) -> None:
    report = visit(comparison())
    report.page.locator(".failures a").first.click()
    detail = report.page.locator("#explore-table tr.detail")
    assert "killed by SIGKILL" in detail.inner_text()
    assert report.page.evaluate("document.activeElement.className") == "toggle"
    assert told(report).startswith("18 of 18")


def test_it_is_used_by_keyboard_alone(visit: Open) -> None:
    report = visit(comparison(), saved=[nightly(comparison())])
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


def test_the_table_is_copied_and_saved_as_it_is_shown(visit: Open) -> None:
    report = visit(comparison())
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
    report.page.get_by_role("button", name="copy").click()
    report.page.get_by_role("button", name="copied").wait_for()


@pytest.mark.parametrize("width", [390, 1100, 1440])
def test_axes_and_titles_stay_in_sight(visit: Open, width: int) -> None:
    """Also when grouped; at 390 pixels as many axes as leave room for figures."""
    report = visit(drawn(4, models=6).comparison(), viewport={"width": width, "height": 844})
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


def test_another_sweeps_verdicts_are_shown_as_they_are(visit: Open) -> None:
    own, other = drawn(8).comparison(), dataclasses.replace(drawn(12).comparison(), sweep_id="s2")
    compared = set_against(own, other, "tag:nightly")
    report = visit(compared)
    assert told(report).endswith("ratios to tag:nightly")


@pytest.mark.parametrize("width", [400, 1300])
def test_hostile_names_do_no_harm(visit: Open, width: int) -> None:
    report = visit(hostile(), viewport={"width": width, "height": 800})
    show_failures(report)
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
    report.page.locator("#explore-table tbody button").first.click()
    opened_row = report.page.locator("tr.detail")
    assert f"python -m sweeprof model={sample.rows[0].axes['model']}" in opened_row.locator("pre").inner_text()
    assert "latency/forward" in opened_row.inner_text()


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
    assert "unmeasured" not in (incomplete.first.get_attribute("class") or "")
