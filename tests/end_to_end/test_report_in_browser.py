"""The HTML report in a real browser: it asks nothing of the network, its layers and pictures work, and axe-core finds nothing."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from support.browser import SETTLED, Visit, needs_browser, opened, wait_until
from support.nets import HOSTILE, lenet5, reused
from support.nets import hostile as hostile_layers
from support.samples import comparison, drawn, hostile
from support.seen import PEAKS, allocations, operators, timed
from support.timed_layers import timed_lenet5
from sweeprof.report.html import Observed, details, html
from sweeprof.report.layer_formats import to_html
from sweeprof.report.pictures import time_icicle
from sweeprof.results.layers import LayerTable

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = [needs_browser, pytest.mark.system]

LINKS = {"layers.csv": "layers/c1.csv", "trace.json.gz": "artifacts/c1/trace.json.gz"}
PICTURES = "stacked_forward stacked_backward icicle_time icicle_macs roofline memory operators".split()
FITS = "document.documentElement.scrollWidth <= innerWidth"

Open = Callable[..., Visit]


def with_layers(**layers: LayerTable) -> str:
    return html(comparison(), layers=layers)


def with_details(**tables: LayerTable) -> str:
    """With everything that there can be of each table."""
    seen = {label: seen_of(table) for label, table in tables.items()}
    return html(comparison(), details=details(seen, dict.fromkeys(seen, LINKS)))


def seen_of(table: LayerTable) -> Observed:
    return Observed(timed(table, backward=lambda row: 2e-3), operators(), allocations(), PEAKS)


def drawn_at(report: Visit, id: str) -> Locator:
    """A place of a figure once it is drawn, which is when it is seen."""
    place = report.page.locator(f"#{id}")
    place.scroll_into_view_if_needed()
    place.locator("svg.main-svg").first.wait_for()
    return place


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_report_draws_its_charts(visit: Open, scheme: str) -> None:
    report = visit(html(comparison()), color_scheme=scheme)
    assert drawn_at(report, "chart-scaling").locator(".scatterlayer .trace").count() == 6
    assert drawn_at(report, "chart-pareto").locator(".scatterlayer .trace").count() == 13
    assert report.page.locator(".plot svg.main-svg >> nth=0").is_visible()
    assert all(url.startswith("file:") for url in report.requests)


def test_a_browser_that_cannot_unpack_the_plots_says_so(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(with_details(one=lenet5(8)), encoding="utf-8")
    page = browser.new_page()
    page.add_init_script("delete globalThis.DecompressionStream")
    report = Visit(page, path)
    page.locator("#details-figures").scroll_into_view_if_needed()
    plots = page.locator(".plot").all_inner_texts()
    assert len(plots) > 4
    assert {text.partition(":")[0] for text in plots} == {"This browser cannot unpack the charts"}
    assert page.locator("[aria-busy]").count() == 0
    assert report.complaints == []
    page.close()


def test_hostile_names_do_no_harm(visit: Open) -> None:
    report = visit(html(hostile()), viewport={"width": 1000, "height": 800})
    curves = drawn_at(report, "chart-scaling")
    assert report.page.locator("#dots h3", has_text="<script>alert(1)</script>").count() == 1
    assert curves.locator(".legendtext", has_text="<script>").count() == 2
    assert report.page.evaluate(FITS)


def test_it_prints_light(visit: Open) -> None:
    report = visit(html(comparison()), color_scheme="dark")
    report.page.emulate_media(media="print")
    assert report.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert report.page.pdf().startswith(b"%PDF")
    # A4 without its margins: a table does not end beyond the edge.
    report.page.set_viewport_size({"width": 703, "height": 1000})
    assert report.page.locator("#explore-table").evaluate("e => e.getBoundingClientRect().right <= innerWidth")


def test_a_table_that_scrolls_has_a_shadow_at_its_edge(visit: Open) -> None:
    """And none where there is nothing beyond the edge."""
    report = visit(html(comparison()))
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


# Layers


def layer_row(report: Visit, name: str) -> list[str]:
    """The cells of the one shown row of that name in the section "Layers", the name left out."""
    row = report.page.locator("#layers-table tbody tr:visible", has=report.page.get_by_text(name, exact=True))
    found: list[str] = row.locator("td").all_inner_texts()
    return found


def cells_of(report: Visit, row: int | str) -> list[str]:
    """The cells of a numbered row, or of the foot, in the section "Layers"."""
    place = f"tbody tr >> nth={row}" if isinstance(row, int) else row
    found: list[str] = report.page.locator(f"#layers-table {place}").locator("td").all_inner_texts()
    return found


def test_two_combinations_side_by_side(visit: Open) -> None:
    report = visit(with_layers(one=lenet5(1), eight=lenet5(8), other=reused()))
    page = report.page
    assert page.locator("#layers-left option").all_inner_texts() == ["one", "eight", "other"]
    assert page.locator("#layers-right").input_value() == "1"
    left, right = ["Conv2d", "[1, 6, 28, 28]", "118 kMAC"], ["Conv2d", "[8, 6, 28, 28]", "941 kMAC"]
    assert cells_of(report, 2) == [*left, *right, "+823 kMAC", "×8.00"]
    assert layer_row(report, "feature_extractor")[-2:] == ["+2.84 MMAC", "×8.00"]
    assert cells_of(report, "tfoot")[-2:] == ["+2.92 MMAC", "×8.00"]
    page.select_option("#layers-figure", label="params")
    assert cells_of(report, 2)[-2:] == ["0", "×1.00"]
    page.select_option("#layers-left", label="eight")
    page.select_option("#layers-right", label="one")
    page.select_option("#layers-figure", label="MACs")
    assert layer_row(report, "classifier")[-2:] == ["−76.4 kMAC", "×0.13"]


def test_measured_times_are_what_layers_show_first(visit: Open) -> None:
    """Of two that have them; of fewer, a figure that two have."""
    one = visit(with_layers(timed=timed_lenet5(), plain=lenet5())).page
    assert one.locator("#layers-figure option:checked").inner_text() == "MACs"
    page = visit(with_layers(plain=lenet5(), timed=timed_lenet5(), again=timed_lenet5())).page
    chosen = [page.locator(f"#layers-{name} option:checked").inner_text() for name in ("figure", "left", "right")]
    assert chosen == ["forward", "timed", "again"]
    page.select_option("#layers-right", label="plain")
    notes = page.locator("#layers-note p").all_inner_texts()
    assert [note.partition(":")[0] for note in notes[1:]] == ["timed"]
    page.select_option("#layers-right", label="timed")
    page.select_option("#layers-figure", label="MACs")
    assert page.locator("#layers-note p").count() == 1


def test_a_node_of_the_layers_collapses(visit: Open) -> None:
    report = visit(with_layers(one=lenet5(1), eight=lenet5(8)))
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
    for key, count in (("ArrowRight", 14), ("ArrowLeft", 6)):
        toggle.press(key)
        assert shown.count() == count
    for button, count in (("collapse", 3), ("expand", 14)):
        report.page.locator(f"#layers-{button}").click()
        assert shown.count() == count


def test_layers_of_one_side_only_have_no_difference(visit: Open) -> None:
    report = visit(with_layers(lenet=lenet5(1), reused=reused(), odd=hostile_layers()))
    assert layer_row(report, "classifier")[3:] == ["–"] * 5
    assert layer_row(report, "head") == ["–", "–", "–", "Linear", "[2, 2]", "16 MAC", "–", "–"]
    assert cells_of(report, 0)[2:] == ["417 kMAC", "Reused", "[2, 2]", "208 MAC", "−416 kMAC", "×0.00050"]
    report.page.select_option("#layers-right", label="odd")
    assert report.page.locator("#layers-table", has_text=HOSTILE).count() == 1
    assert report.page.evaluate(FITS)


def test_own_and_inclusive_figures_are_not_compared(visit: Open) -> None:
    rows = tuple(dataclasses.replace(row, parent=None) for row in lenet5(8).rows)
    report = visit(with_layers(torch=lenet5(1), other=dataclasses.replace(lenet5(8), rows=rows)))
    features = ["406 kMAC", "Sequential", "[8, 120, 1, 1]", "0 MAC", "–", "–"]
    assert layer_row(report, "feature_extractor")[2:] == features
    assert cells_of(report, 2)[-2:] == ["+823 kMAC", "×8.00"]
    assert cells_of(report, "tfoot")[-2:] == ["+2.92 MMAC", "×8.00"]
    assert "other: Values are each layer's own" in report.page.locator("#layers-note").inner_text()


def test_a_layer_table_of_its_own_sorts_and_collapses(visit: Open) -> None:
    page = visit(to_html(lenet5(), title="LeNet-5")).page
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


# Pictures, tables and files of one combination


def parts(table: LayerTable) -> int:
    """How many blocks its icicle of time has."""
    icicle = time_icicle(timed(table))
    assert icicle is not None
    return len(icicle.blocks)


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_a_combination_shows_its_pictures_tables_and_files(visit: Open, scheme: str) -> None:
    report = visit(with_details(one=lenet5(8), two=reused()), color_scheme=scheme)
    page = report.page
    for key in PICTURES:
        drawn_at(report, f"details-plot-{key}")
    assert page.locator("#details-figures h3").first.inner_text().startswith("Time by depth: forward, ")
    assert page.locator("#details-plot-icicle_time .slice").count() == parts(lenet5(8))
    assert page.locator("#details-plot-memory .annotation-text").text_content() == "peak 1.46 MiB in layer1"
    tables = ["Operators", "Memory by layer", "Live tensors after the last step"]
    assert page.locator("#details-tables h3").all_inner_texts() == tables
    links = page.locator("#details-files a")
    assert [link.get_attribute("href") for link in links.all()] == [LINKS["trace.json.gz"], LINKS["layers.csv"]]
    page.select_option("#details-chosen", label="two")
    drawn_at(report, "details-plot-icicle_time")
    slices = "document.querySelectorAll('#details-plot-icicle_time .slice').length"
    wait_until(page, f"parts => {slices} === parts", arg=parts(reused()))
    assert page.locator("#details-figures .plot").count() == len(PICTURES)


def test_a_part_of_an_icicle_opens(visit: Open) -> None:
    report = visit(with_details(one=lenet5(8)))
    icicle = drawn_at(report, "details-plot-icicle_macs")
    before = icicle.locator(".slice").count()
    icicle.locator(".slice", has_text="feature_extractor").first.click()
    slices = "document.querySelectorAll('#details-plot-icicle_macs .slice').length"
    wait_until(report.page, f"before => {slices} !== before", arg=before)


def test_a_table_of_a_combination_sorts_by_keyboard(visit: Open) -> None:
    report = visit(with_details(one=lenet5(8)))
    table = report.page.locator("#details-tables table").nth(1)
    peaks = table.locator("tbody td:nth-child(2)")
    assert peaks.all_inner_texts()[:2] == ["39.0 KiB", "38.0 KiB"]
    header = table.locator("thead th").nth(1)
    header.locator("button").press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert peaks.all_inner_texts()[:2] == ["10.0 KiB", "11.0 KiB"]
    operators = report.page.locator("#details-tables table").nth(0)
    operators.locator("thead th").nth(7).locator("button").press("Space")
    assert operators.locator("tbody td:nth-child(8)").all_inner_texts() == ["10 FLOP"] * 20 + ["–"] * 10


def test_pictures_of_hostile_layers_do_no_harm_and_fit_a_narrow_page(visit: Open) -> None:
    report = visit(with_details(**{HOSTILE: hostile_layers()}), viewport={"width": 360, "height": 800})
    drawn_at(report, "details-plot-operators")
    assert report.page.locator("#details-chosen option").inner_text() == HOSTILE
    assert report.page.evaluate(FITS)


def test_the_pictures_of_a_combination_follow_the_theme(visit: Open) -> None:
    report = visit(with_details(one=lenet5(8)), color_scheme="dark")
    drawn_at(report, "details-plot-roofline")
    fill = "getComputedStyle(document.querySelector('#details-plot-roofline .xtitle')).fill"
    dark = report.page.evaluate(fill)
    report.page.emulate_media(color_scheme="light")
    wait_until(report.page, f"dark => {fill} !== dark", arg=dark)


# Accessibility

NAMES = [f"model=lenet5, backend={backend}, batch_size=8" for backend in ("torch", "tensorflow")]
OF_COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"], "resultTypes": ["violations"]}


def assert_no_violations(report: Visit) -> None:
    """In the light theme by every rule, then in the dark one, which changes colours only, by those of colours."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(report.page)
    assert found.violations_count == 0, found.generate_report()
    report.page.emulate_media(color_scheme="dark")
    wait_until(report.page, SETTLED)
    found = axe.Axe().run(report.page, options=OF_COLOURS)
    assert any(rule["id"] == "color-contrast" for rule in found.response["passes"])
    assert found.violations_count == 0, found.generate_report()


def test_axe_finds_nothing(browser: Browser) -> None:
    """Also where everything is open."""
    layers = {name: timed(lenet5(8)) for name in NAMES}
    seen = {name: Observed(table, operators(), allocations(), PEAKS) for name, table in layers.items()}
    samples = {row.combination_id: [[1.0, 1.1, 1.2]] for row in comparison().rows}
    report = opened(browser, html(comparison(), True, layers, details(seen, {}), 0, samples))
    report.page.get_by_role("button", name="not measured – show").click()
    for name in NAMES:
        report.page.get_by_role("button", name=f"details of {name}").click()
    report.page.locator("details:not(.menu)").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    assert_no_violations(report)
    report.leave()


def test_verdicts_and_groups_pass_too(browser: Browser) -> None:
    report = opened(browser, html(drawn(1).comparison(), False), "#view&group=backend")
    assert_no_violations(report)
    report.leave()
