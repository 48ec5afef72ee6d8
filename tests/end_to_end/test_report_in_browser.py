"""The HTML report in a real browser: it asks nothing of the network, its layers and pictures work, and axe-core finds nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import SETTLED, Visit, needs_browser, opened, wait_until
from support.nets import HOSTILE, lenet5, reused
from support.nets import hostile as hostile_layers
from support.samples import comparison, drawn
from support.seen import PEAKS, allocations, operators, timed
from support.timed_layers import timed_lenet5, with_times
from sweeprof.report.html import Observed, details, html
from sweeprof.report.layer_formats import to_html
from sweeprof.report.pictures import time_icicle
from sweeprof.results.layers import LayerRow, LayerTable

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = [needs_browser, pytest.mark.system]

LINKS = {"layers.csv": "layers/c1.csv", "trace.json.gz": "artifacts/c1/trace.json.gz"}
PICTURES = "icicle_time icicle_macs roofline memory operators".split()
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


def choose_layers(report: Visit, **chosen: str) -> None:
    """``chosen``, ``beside`` and ``figure`` are the choices above the layers."""
    for name, label in chosen.items():
        report.page.select_option(f"#layers-{name}", label=label)


def sort_layers(report: Visit, title: str, presses: int = 1) -> None:
    for _ in range(presses):
        report.page.locator(f'#layers-table thead button:text-is("{title}")').press("Enter")


def layer_titles(report: Visit) -> dict[str, str]:
    """The titles of the columns of layers, and how each is sorted."""
    headers = report.page.locator("#layers-table thead tr:last-child th").all()
    return {header.inner_text(): header.get_attribute("aria-sort") or "" for header in headers}


def shown_layers(report: Visit) -> list[str]:
    found: list[str] = report.page.locator("#layers-table tbody th").all_inner_texts()
    return found


TREE = "#view&layers-sort=none+layer"


def test_the_slowest_layers_of_one_combination_come_first(visit: Open) -> None:
    """Each layer has its own time, so that all of them and what is outside make the step."""
    report = visit(with_layers(plain=lenet5(8), timed=timed_lenet5()))
    assert report.page.locator("#layers-chosen option:checked").inner_text() == "timed"
    assert report.page.locator("#layers-beside option:checked").inner_text() == "–"
    orders = dict.fromkeys(["layer", "type", "share of step", "forward", "backward", "params", "MACs"], "none")
    assert layer_titles(report) == {**orders, "time": "descending"}
    # The calls take 1, 2, … 14 ms, their backwards twice as much; the step takes 105 and 210 ms.
    assert shown_layers(report)[:2] == ["classifier.2", "classifier.1"]
    assert cells_of(report, 0) == ["Linear", "42.0 ms", "13.3%", "14.0 ms", "28.0 ms", "850", "840 MAC"]
    assert cells_of(report, "tfoot") == ["", "315 ms", "100.0%", "105 ms", "210 ms", "61.7 k", "417 kMAC"]
    told = (
        "A forward with its backward takes 315 ms; the layers' times, measured with probes, add up to 315 ms (100.0%)."
    )
    assert report.page.locator("#layers-told").inner_text() == told
    choose_layers(report, chosen="plain")
    assert layer_titles(report)["MACs"] == "descending"
    assert cells_of(report, 0) == ["Conv2d", "57.6%", "2.42 k", "1.92 MMAC"]
    assert cells_of(report, "tfoot")[1] == "100.0%"
    assert report.page.locator("#layers-told").inner_text().startswith("No times of layers were measured")


@pytest.mark.parametrize("title", ["type", pytest.param("time", marks=pytest.mark.thorough)])
def test_layers_sort_by_every_column_and_are_a_tree(visit: Open, title: str) -> None:
    report = visit(with_layers(timed=timed_lenet5()))
    if title != "time":
        sort_layers(report, title)
    place = list(layer_titles(report)).index(title) + 1
    column = report.page.locator(f"#layers-table tbody tr > :nth-child({place})")
    before, order = column.all_inner_texts(), layer_titles(report)[title]
    sort_layers(report, title)
    assert {order, layer_titles(report)[title]} == {"ascending", "descending"}
    assert column.all_inner_texts() == before[::-1]
    assert report.page.evaluate("document.activeElement.textContent") == title
    report.page.get_by_role("button", name="show as a tree").press("Enter")
    assert report.page.evaluate("document.activeElement.textContent") == "expand all"
    assert set(layer_titles(report).values()) == {"none"}
    assert shown_layers(report)[:3] == ["(model)", "feature_extractor", "0"]
    # Here a layer has the sum of what is within: the first nine calls, but for the model's own.
    assert layer_row(report, "feature_extractor")[1] == "162 ms"


def test_what_is_outside_the_layers_is_said(visit: Open) -> None:
    table = with_times(lenet5(), training=False)
    assert table.timing is not None
    for plain_s, told in {
        0.2: "A forward takes 200 ms: 105 ms (52.5%) in these layers, 95.0 ms outside them.",
        0.1: "A forward takes 100 ms; the layers' times, measured with probes, add up to 105 ms (105.0%).",
        None: "The layers take 105 ms; the time of a step without probes was not measured.",
    }.items():
        timing = dataclasses.replace(table.timing, forward=dataclasses.replace(table.timing.forward, plain_s=plain_s))
        report = visit(with_layers(one=dataclasses.replace(table, timing=timing)))
        assert report.page.locator("#layers-told").inner_text() == told
        of = "time" if plain_s is None else "step"
        assert list(layer_titles(report))[2:4] == ["time", f"share of {of}"]
        assert float(cells_of(report, "tfoot")[2].removesuffix("%")) == pytest.approx(10.5 / (plain_s or 0.105))


def test_a_link_shows_the_same_layers_in_the_same_order_and_back_leads_through_the_choices(visit: Open) -> None:
    page = with_layers(one=timed_lenet5(), two=timed_lenet5(), plain=lenet5(8))
    report = visit(page)
    choose_layers(report, chosen="two", beside="plain", figure="params")
    sort_layers(report, "difference", presses=2)
    before = shown_layers(report), layer_titles(report)
    again = visit(page, report.page.evaluate("location.hash"))
    assert (shown_layers(again), layer_titles(again)) == before
    assert again.page.locator("#layers-figure").input_value() == "params"
    report = visit(page, "#view&group=backend")
    choose_layers(report, chosen="two")
    sort_layers(report, "params")
    report.page.go_back()
    assert layer_titles(report)["params"] == "none"
    assert report.page.evaluate("location.hash") == "#view&group=backend&layers=two"
    report.page.get_by_role("button", name="reset", exact=True).click()
    assert report.page.evaluate("location.hash") == "#view&layers=two"
    report = visit(page, "#view&layers=gone&layers-beside=gone&layers-figure=gone&layers-sort=upwards+gone")
    assert layer_titles(report)["time"] == "descending"


@pytest.mark.thorough
def test_two_combinations_side_by_side(visit: Open) -> None:
    report = visit(with_layers(one=lenet5(1), eight=lenet5(8), other=reused()))
    choose_layers(report, chosen="eight", beside="one")
    assert report.page.locator("#layers-beside option").all_inner_texts() == ["–", "one", "eight", "other"]
    left, right = ["Conv2d", "[8, 6, 28, 28]", "941 kMAC"], ["Conv2d", "[1, 6, 28, 28]", "118 kMAC"]
    assert cells_of(report, 2) == [*left, *right, "+823 kMAC", "×8.00"]
    assert layer_row(report, "feature_extractor")[-2:] == ["+2.84 MMAC", "×8.00"]
    assert cells_of(report, "tfoot")[-2:] == ["+2.92 MMAC", "×8.00"]
    choose_layers(report, figure="params")
    assert cells_of(report, 2)[-2:] == ["0", "×1.00"]
    choose_layers(report, chosen="one", beside="eight", figure="MACs")
    assert layer_row(report, "classifier")[-2:] == ["−76.4 kMAC", "×0.13"]
    sort_layers(report, "difference", presses=2)
    assert shown_layers(report)[0] == "feature_extractor.3"
    choose_layers(report, beside="one")
    assert len(layer_titles(report)) == 5


def test_measured_times_are_compared_first(visit: Open) -> None:
    """If both have them; else MACs."""
    report = visit(with_layers(plain=lenet5(), timed=timed_lenet5(), again=timed_lenet5()))
    told = report.page.locator("#layers-told p, #layers-remarks p")
    for name, figure, sides in [("again", "time", ["timed", "again"] * 2), ("plain", "MACs", [])]:
        choose_layers(report, beside=name)
        assert report.page.locator("#layers-figure").input_value() == figure
        assert [text.partition(":")[0] for text in told.all_text_contents()] == sides


def test_a_node_of_the_layers_collapses(visit: Open) -> None:
    report = visit(with_layers(one=lenet5(1), eight=lenet5(8)), f"{TREE}&layers-beside=eight")
    shown = report.page.locator("#layers-table tbody tr:visible")
    assert shown.count() == 14
    toggle = report.page.get_by_role("button", name="layers within feature_extractor")
    toggle.press("Enter")  # a click would race with the plots that are drawn as the page scrolls
    assert toggle.get_attribute("aria-expanded") == "false"
    assert shown.count() == 6
    # What is collapsed stays so when the figure changes, and its own row still has the sum of what is within.
    choose_layers(report, figure="params")
    assert shown.count() == 6
    assert layer_row(report, "feature_extractor")[-2:] == ["0", "×1.00"]
    for count in (14, 6):
        toggle.focus()
        report.page.keyboard.press("Space")
        assert shown.count() == count
        assert report.page.evaluate("document.activeElement.ariaExpanded") == str(count == 14).lower()
    for button, count in (("collapse", 3), ("expand", 14)):
        report.page.locator(f"#layers-{button}").click()
        assert shown.count() == count


def test_layers_of_one_side_only_have_no_difference(visit: Open) -> None:
    report = visit(with_layers(lenet=lenet5(1), reused=reused(), odd=hostile_layers()), "#view&layers-beside=reused")
    assert layer_row(report, "classifier")[3:] == ["–"] * 5
    assert layer_row(report, "head") == ["–", "–", "–", "Linear", "[2, 2]", "16 MAC", "–", "–"]
    assert cells_of(report, 0)[2:] == ["417 kMAC", "Reused", "[2, 2]", "208 MAC", "+416 kMAC", "×2,000"]
    choose_layers(report, beside="odd")
    assert report.page.locator("#layers-table", has_text=HOSTILE).count() == 1
    assert report.page.evaluate(FITS)


def test_sums_need_not_know_which_call_was_made_in_which(visit: Open) -> None:
    """Then paths say it, as they do for the tree."""
    rows = tuple(dataclasses.replace(row, parent=None) for row in lenet5(8).rows)
    other = dataclasses.replace(lenet5(8), rows=rows)
    report = visit(with_layers(torch=lenet5(1), other=other), "#view&layers=other&layers-beside=torch")
    assert layer_row(report, "feature_extractor")[-2:] == ["+2.84 MMAC", "×8.00"]
    assert cells_of(report, "tfoot")[-2:] == ["+2.92 MMAC", "×8.00"]


@pytest.mark.parametrize("width", [390, 1440])
def test_the_slowest_layer_is_in_sight(visit: Open, width: int) -> None:
    """With its time and share, below the title and the choices; of a long table, the titles and the total stay in sight."""
    page = with_layers(**{f"long {place}": long_layers() for place in range(20)})
    report = visit(page, "#layers", viewport={"width": width, "height": 844})
    first = report.page.locator("#layers-table tbody tr").first.locator("th, td")
    assert first.all_inner_texts()[:4] == ["block.499", "Linear", "499 ms", "0.4%"]
    report.page.locator("#layers-table").locator("..").evaluate("e => { e.scrollIntoView(); e.scrollTop = 4000; }")
    edges = [report.page.locator(f"#layers-table {part} tr >> nth=0").bounding_box() for part in ("thead", "tfoot")]
    for edge in edges:
        assert edge is not None
        assert 0 < edge["y"] < 844
    assert report.page.evaluate(FITS)


def long_layers() -> LayerTable:
    """500 layers, of which each takes one millisecond more than the one before it."""
    rows = [LayerRow("__root__", "Net", 0, 0, 0, 0, 0, 0, 0, forward_s=0.0, forward_self_s=0.0)]
    for place in range(1, 500):
        counts, seconds = (place, place, 4 * place, 0, place), 1e-3 * place
        times: dict[str, Any] = {"forward_s": seconds, "forward_self_s": seconds}
        rows.append(LayerRow(f"block.{place}", "Linear", 1, 0, *counts, parent=0, **times))
    return LayerTable(tuple(rows))


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


def test_a_combination_shows_its_pictures_tables_and_files(visit: Open) -> None:
    """The pictures follow the theme."""
    report = visit(with_details(one=lenet5(8), two=reused()), color_scheme="dark")
    page = report.page
    for key in PICTURES:
        drawn_at(report, f"details-plot-{key}")
    title = page.locator("#details-figures h3").first.inner_text()
    assert title.startswith("Self time of the layers: forward and backward, ")
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
    drawn_at(report, "details-plot-roofline")
    fill = "getComputedStyle(document.querySelector('#details-plot-roofline .xtitle')).fill"
    dark = page.evaluate(fill)
    page.emulate_media(color_scheme="light")
    wait_until(page, f"dark => {fill} !== dark", arg=dark)


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


def test_verdicts_groups_and_layers_side_by_side_pass_too(browser: Browser) -> None:
    layers = {"one": timed_lenet5(), "two": lenet5(8)}
    report = opened(browser, html(drawn(1).comparison(), False, layers), "#view&group=backend&layers-beside=two")
    assert_no_violations(report)
    report.leave()
