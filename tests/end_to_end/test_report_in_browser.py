"""The HTML report in a real browser: it asks nothing of the network, sorts, draws, and survives hostile names."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from support.browser import Visit, needs_browser, opened, wait_until
from support.nets import HOSTILE, lenet5, reused
from support.nets import hostile as hostile_layers
from support.samples import comparison, hostile
from support.seen import PEAKS, allocations, operators, timed
from support.timed_layers import timed_lenet5
from sweeprof.report.html import Observed, details, html
from sweeprof.report.layer_formats import to_html
from sweeprof.report.pictures import time_icicle
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.layers import LayerTable

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = [needs_browser, pytest.mark.system]

LINKS = {"layers.csv": "layers/c1.csv", "trace.json.gz": "artifacts/c1/trace.json.gz"}
PICTURES = "stacked_forward stacked_backward icicle_time icicle_macs roofline memory operators".split()

Open = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    visits: list[Visit] = []

    def open_report(
        sample: Comparison,
        layers: dict[str, LayerTable] | None = None,
        seen: dict[str, Observed] | None = None,
        **options: Any,
    ) -> Visit:
        shown = details(seen or {}, dict.fromkeys(seen or {}, LINKS))
        text = html(sample, layers=layers or {}, details=shown)
        visits.append(opened(browser, text, **options))
        return visits[-1]

    yield open_report
    for one in visits:
        one.leave()


def drawn(report: Visit, id: str) -> Locator:
    """A place of a figure once it is drawn, which is when it is seen."""
    place = report.page.locator(f"#{id}")
    place.scroll_into_view_if_needed()
    place.locator("svg.main-svg").first.wait_for()
    return place


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_report_is_self_contained_and_quiet(visit: Open, scheme: str) -> None:
    report = visit(comparison(), color_scheme=scheme)
    assert drawn(report, "chart-scaling").locator(".scatterlayer .trace").count() == 6
    assert drawn(report, "chart-pareto").locator(".scatterlayer .trace").count() == 13
    assert report.page.locator(".plot svg.main-svg >> nth=0").is_visible()
    assert all(url.startswith("file:") for url in report.requests)
    assert len(report.requests) == 1
    assert report.complaints == []


UNABLE = "delete globalThis.DecompressionStream"


def test_a_browser_that_cannot_unpack_the_plots_says_so(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(html(comparison(), details=details({"one": seen_of(lenet5(8))}, {"one": {}})), encoding="utf-8")
    page = browser.new_page()
    page.add_init_script(UNABLE)
    report = Visit(page, path)
    page.locator("#details-figures").scroll_into_view_if_needed()
    plots = page.locator(".plot").all_inner_texts()
    assert len(plots) > 4
    assert {text.partition(":")[0] for text in plots} == {"This browser cannot unpack the charts"}
    assert page.locator("[aria-busy]").count() == 0
    assert report.complaints == []
    page.close()


def test_hostile_names_do_no_harm(visit: Open) -> None:
    report = visit(hostile(), viewport={"width": 1000, "height": 800})
    curves = drawn(report, "chart-scaling")
    assert report.complaints == []
    assert len(report.requests) == 1
    assert report.page.locator("#dots h3", has_text="<script>alert(1)</script>").count() == 1
    assert curves.locator(".legendtext", has_text="<script>").count() == 2
    assert report.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_it_prints_light(visit: Open) -> None:
    report = visit(comparison(), color_scheme="dark")
    report.page.emulate_media(media="print")
    assert report.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert report.page.pdf().startswith(b"%PDF")
    # A4 without its margins: a table does not end beyond the edge.
    report.page.set_viewport_size({"width": 703, "height": 1000})
    assert report.page.locator("#explore-table").evaluate("e => e.getBoundingClientRect().right <= innerWidth")


def layer_row(report: Visit, name: str) -> list[str]:
    """The cells of the one shown row of that name in the section "Layers", the name left out."""
    row = report.page.locator("#layers-table tbody tr:visible", has=report.page.get_by_text(name, exact=True))
    found: list[str] = row.locator("td").all_inner_texts()
    return found


def test_two_combinations_side_by_side(visit: Open) -> None:
    layers = {"batch 1": lenet5(1), "batch 8": lenet5(8), "other": reused()}
    report = visit(comparison(), layers)
    page = report.page
    assert page.locator("#layers-left option").all_inner_texts() == ["batch 1", "batch 8", "other"]
    assert page.locator("#layers-right").input_value() == "1"
    conv = [
        "Conv2d",
        "[1, 6, 28, 28]",
        "118 kMAC",
        "Conv2d",
        "[8, 6, 28, 28]",
        "941 kMAC",
        "+823 kMAC",
        "×8.00",
    ]
    first = page.locator("#layers-table tbody tr").nth(2)
    assert first.locator("td").all_inner_texts() == conv
    assert layer_row(report, "feature_extractor")[-2:] == ["+2.84 MMAC", "×8.00"]
    assert page.locator("#layers-table tfoot td").all_inner_texts()[-2:] == ["+2.92 MMAC", "×8.00"]

    page.select_option("#layers-figure", label="params")
    assert first.locator("td").all_inner_texts()[-2:] == ["0", "×1.00"]

    page.select_option("#layers-left", label="batch 8")
    page.select_option("#layers-right", label="batch 1")
    page.select_option("#layers-figure", label="MACs")
    assert layer_row(report, "classifier")[-2:] == ["−76.4 kMAC", "×0.13"]
    assert report.complaints == []
    assert len(report.requests) == 1


def test_measured_times_are_what_layers_show_first(visit: Open, browser: Browser, tmp_path: Path) -> None:
    """Of two that have them; of fewer, a figure that two have."""
    text = html(comparison(), False, {"timed": timed_lenet5(), "plain": lenet5()})
    one = opened(browser, text).page
    assert one.locator("#layers-figure option:checked").inner_text() == "MACs"
    one.close()
    report = visit(comparison(), {"plain": lenet5(), "timed": timed_lenet5(), "again": timed_lenet5()})
    page = report.page
    assert page.locator("#layers-figure option:checked").inner_text() == "forward"
    chosen = [page.locator(f"#layers-{side} option:checked").inner_text() for side in ("left", "right")]
    assert chosen == ["timed", "again"]
    page.select_option("#layers-right", label="plain")
    notes = page.locator("#layers-note p").all_inner_texts()
    assert [note.partition(":")[0] for note in notes[1:]] == ["timed"]
    page.select_option("#layers-right", label="timed")
    page.select_option("#layers-figure", label="MACs")
    assert page.locator("#layers-note p").count() == 1
    assert report.complaints == []


def test_a_table_that_scrolls_has_a_shadow_at_its_edge(visit: Open) -> None:
    """And none where there is nothing beyond the edge."""
    report = visit(comparison())
    region = report.page.locator(".scroll:has(#explore-table)")

    def darkness() -> int:
        """Of the lightest pixel at the end of a row below the head, so that no text counts; 0 is white."""
        with Image.open(io.BytesIO(region.screenshot())) as image:
            column = image.convert("L").crop((image.width - 2, 70, image.width - 1, 90))
            lightest = column.getextrema()[1]
            assert isinstance(lightest, int)
            return 255 - lightest

    report.page.set_viewport_size({"width": 1600, "height": 900})
    assert darkness() == 0
    report.page.set_viewport_size({"width": 420, "height": 900})
    assert darkness() > 20


def test_a_node_of_the_layers_collapses(visit: Open) -> None:
    report = visit(comparison(), {"one": lenet5(1), "eight": lenet5(8)})
    shown = report.page.locator("#layers-table tbody tr:visible")
    assert shown.count() == 14
    toggle = report.page.get_by_role("button", name="layers within feature_extractor")
    toggle.press("Enter")  # a click would race with the plots that are drawn as the page scrolls
    assert toggle.get_attribute("aria-expanded") == "false"
    assert shown.count() == 6
    # What is collapsed stays so when the figure changes, and its own row still has the sum of what is within.
    report.page.select_option("#layers-figure", label="params")
    assert shown.count() == 6
    assert layer_row(report, "feature_extractor")[-2:] == ["0", "×1.00"]
    toggle = report.page.get_by_role("button", name="layers within feature_extractor")
    toggle.press("ArrowRight")
    assert shown.count() == 14
    toggle.press("ArrowLeft")
    assert shown.count() == 6
    report.page.locator("#layers-collapse").click()
    assert shown.count() == 3
    report.page.locator("#layers-expand").click()
    assert shown.count() == 14
    assert report.complaints == []


def test_layers_of_one_side_only_have_no_difference(visit: Open) -> None:
    report = visit(comparison(), {"lenet": lenet5(1), "reused": reused(), "odd": hostile_layers()})
    assert layer_row(report, "classifier")[3:] == ["–", "–", "–", "–", "–"]
    assert layer_row(report, "head") == ["–", "–", "–", "Linear", "[2, 2]", "16 MAC", "–", "–"]
    root = report.page.locator("#layers-table tbody tr").first.locator("td").all_inner_texts()
    assert root[2:] == ["417 kMAC", "Reused", "[2, 2]", "208 MAC", "−416 kMAC", "×0.00050"]
    report.page.select_option("#layers-right", label="odd")
    assert report.page.locator("#layers-table", has_text=HOSTILE).count() == 1
    assert report.complaints == []
    assert report.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_own_and_inclusive_figures_are_not_compared(visit: Open) -> None:
    known = lenet5(8)
    untold = dataclasses.replace(known, rows=tuple(dataclasses.replace(row, parent=None) for row in known.rows))
    report = visit(comparison(), {"torch": lenet5(1), "other": untold})
    assert layer_row(report, "feature_extractor")[2:] == [
        "406 kMAC",
        "Sequential",
        "[8, 120, 1, 1]",
        "0 MAC",
        "–",
        "–",
    ]
    conv = report.page.locator("#layers-table tbody tr").nth(2)
    assert conv.locator("td").all_inner_texts()[-2:] == ["+823 kMAC", "×8.00"]
    assert report.page.locator("#layers-table tfoot td").all_inner_texts()[-2:] == ["+2.92 MMAC", "×8.00"]
    assert "other: Values are each layer's own" in report.page.locator("#layers-note").inner_text()


def test_a_layer_table_of_its_own_sorts_and_collapses(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "layers.html"
    path.write_text(to_html(lenet5(), title="LeNet-5"), encoding="utf-8")
    page = browser.new_page()
    report = Visit(page, path)
    shown = page.locator("tbody tr:visible")
    page.get_by_role("button", name="layers within feature_extractor").press("Enter")
    assert shown.count() == 6
    header = page.locator("thead th", has_text="MACs").first
    header.locator("button").click()
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    paths = shown.locator("th .path").all_inner_texts()
    assert paths[:3] == ["feature_extractor.3", "feature_extractor.0", "feature_extractor.6"]
    assert len(paths) == 14
    header.locator("button").press("Space")
    assert shown.count() == 6
    assert page.locator("tbody tr").first.locator(".name").inner_text() == "(model)"
    assert report.complaints == []
    assert len(report.requests) == 1
    page.close()


def seen_of(table: LayerTable) -> Observed:
    """Everything that there can be of a combination."""
    return Observed(timed(table, backward=lambda row: 2e-3), operators(), allocations(), PEAKS)


def parts(table: LayerTable) -> int:
    """How many blocks its icicle of time has."""
    icicle = time_icicle(timed(table))
    assert icicle is not None
    return len(icicle.blocks)


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_a_combination_shows_its_pictures_tables_and_files(visit: Open, scheme: str) -> None:
    report = visit(comparison(), None, {"one": seen_of(lenet5(8)), "two": seen_of(reused())}, color_scheme=scheme)
    page = report.page
    for key in PICTURES:
        drawn(report, f"details-plot-{key}")
    assert page.locator("#details-figures h3").first.inner_text().startswith("Time by depth: forward, ")
    assert page.locator("#details-plot-icicle_time .slice").count() == parts(lenet5(8))
    assert page.locator("#details-plot-memory .annotation-text").text_content() == "peak 1.46 MiB in layer1"
    assert page.locator("#details-tables h3").all_inner_texts() == [
        "Operators",
        "Memory by layer",
        "Live tensors after the last step",
    ]
    links = page.locator("#details-files a")
    assert [link.get_attribute("href") for link in links.all()] == [LINKS["trace.json.gz"], LINKS["layers.csv"]]
    page.select_option("#details-chosen", label="two")
    drawn(report, "details-plot-icicle_time")
    wait_until(
        page,
        "parts => document.querySelectorAll('#details-plot-icicle_time .slice').length === parts",
        arg=parts(reused()),
    )
    assert page.locator("#details-figures .plot").count() == len(PICTURES)
    assert report.complaints == []
    assert len(report.requests) == 1


def test_a_part_of_an_icicle_opens(visit: Open) -> None:
    report = visit(comparison(), None, {"one": seen_of(lenet5(8))})
    icicle = drawn(report, "details-plot-icicle_macs")
    slices = icicle.locator(".slice")
    before = slices.count()
    icicle.locator(".slice", has_text="feature_extractor").first.click()
    wait_until(
        report.page,
        "before => document.querySelectorAll('#details-plot-icicle_macs .slice').length !== before",
        arg=before,
    )
    assert report.complaints == []


def test_a_table_of_a_combination_sorts_by_keyboard(visit: Open) -> None:
    report = visit(comparison(), None, {"one": seen_of(lenet5(8))})
    table = report.page.locator("#details-tables table").nth(1)
    peaks = table.locator("tbody td:nth-child(2)")
    assert peaks.all_inner_texts()[:2] == ["39.0 KiB", "38.0 KiB"]
    header = table.locator("thead th").nth(1)
    header.locator("button").press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert peaks.all_inner_texts()[:2] == ["10.0 KiB", "11.0 KiB"]
    operators = report.page.locator("#details-tables table").nth(0)
    flops = operators.locator("tbody td:nth-child(8)")
    operators.locator("thead th").nth(7).locator("button").press("Space")
    assert flops.all_inner_texts() == ["10 FLOP"] * 20 + ["–"] * 10


def test_pictures_of_hostile_layers_do_no_harm_and_fit_a_narrow_page(visit: Open) -> None:
    seen = {HOSTILE: seen_of(hostile_layers())}
    report = visit(comparison(), None, seen, viewport={"width": 360, "height": 800})
    drawn(report, "details-plot-operators")
    assert report.page.locator("#details-chosen option").inner_text() == HOSTILE
    assert report.complaints == []
    assert report.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_pictures_of_a_combination_follow_the_theme(visit: Open) -> None:
    report = visit(comparison(), None, {"one": seen_of(lenet5(8))}, color_scheme="dark")
    drawn(report, "details-plot-roofline")
    title = "#details-plot-roofline .xtitle"
    dark = report.page.locator(title).evaluate("e => getComputedStyle(e).fill")
    report.page.emulate_media(color_scheme="light")
    wait_until(
        report.page,
        "([title, dark]) => getComputedStyle(document.querySelector(title)).fill !== dark",
        arg=[title, dark],
    )
    assert report.complaints == []
