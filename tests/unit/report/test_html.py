"""The HTML report as text; tests/end_to_end opens it in a browser."""

from __future__ import annotations

import dataclasses
import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest

from support.nets import HOSTILE, lenet5
from support.nets import hostile as hostile_layers
from support.odd import LONG, build, hostile, with_cells
from support.samples import comparison
from sweeprof.report.html import html
from sweeprof.report.table import whole_table
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.constraints import with_selection
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable


class Outline(HTMLParser):
    """Elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def test_nothing_is_fetched() -> None:
    outline = Outline(html(comparison(), True))
    linking = [(tag, a) for tag, a in outline.elements if {"src", "href", "action", "srcset"} & set(a)]
    assert {tag for tag, _ in linking} == {"a"}
    assert all((a["href"] or "").startswith("#") for _, a in linking)


def test_names_are_inert() -> None:
    page = html(hostile(), False)
    tags = [tag for tag, _ in Outline(page).elements]
    assert "img" not in tags
    assert tags.count("script") == [tag for tag, _ in Outline(html(comparison(), False)).elements].count("script")
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert LONG in page


@pytest.mark.parametrize("id", ["sweep-data", "charts-data"])
def test_the_data_are_json_without_markup(id: str) -> None:
    page = html(hostile(), True)
    found = re.search(rf'<script type="application/json" id="{id}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    assert not set("<>&") & set(found[1])
    assert json.loads(found[1])


def test_without_scripts_the_table_has_every_row() -> None:
    """The texts of its cells are those of the other reports."""
    called = with_cells(comparison(), "latency/forward", ratio=0.5, ratio_interval=(0.4, 0.6), verdict="better")
    page = html(called, False)
    rows = page.partition('id="explore-table"')[2].partition("</table>")[0].split("<tr")[2:]
    table = whole_table(called)
    for row, line in zip(rows, table.lines, strict=True):
        found = [unescape(text) for text in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        axes = sum(column.kind == "axis" for column in table.columns)
        texts = [entry.text for entry in line.entries]
        assert found == ([*texts[:axes], line.failure] if line.failure else texts)
    assert "×0.50 [0.40–0.60] better" in page


def test_every_link_has_its_row() -> None:
    outline = Outline(html(comparison(), False))
    ids = [a["id"] for _, a in outline.elements if "id" in a]
    links = [(a["href"] or "")[1:] for tag, a in outline.elements if tag == "a"]
    assert len(ids) == len(set(ids))
    assert links.count("content") == 1
    rows = {row.combination_id for row in comparison().rows}
    failed = {row.combination_id for row in comparison().rows if row.status != "ok"}
    assert rows <= set(ids)
    assert rows & set(links) == failed, "where it says why"
    assert set(links) <= set(ids)


def test_a_long_list_is_folded() -> None:
    page = html(with_selection(comparison(), constraints=["latency < 1 s"]), plotted=False)
    folded = page.partition("combinations qualify: ")[2].partition("</details>")[0]
    assert "<details><summary>16 of 18 combinations qualify: " in page
    assert folded.count("<li>qualifies: ") + folded.count("<li>misses: ") > 10


def test_the_report_holds_what_is_needed_to_repeat_it() -> None:
    sample = comparison()
    page = html(sample, False)
    found = re.search(r'id="sweep-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    commands = {data["command_start"] + command for command in data["rows"]["command"]}
    assert commands == {row.command for row in sample.rows}
    assert "killed by SIGKILL" in page
    assert "p99 not given: n<299" in str(data["rows"]["details"])
    assert "torch</dt><dd>2.13.0+cpu" in page
    assert "Largest absolute difference of the outputs to the baseline&#39;s." in page


def test_the_main_things_come_first() -> None:
    """Name, sentence, chart and table; what a reader may want to look up follows."""
    page = html(comparison(), True)
    ids = ["answer-finding", "answer-rest", "dots", "explore-table", "charts", "failures", "notes", "about"]
    places = [page.index(f'id="{id}"') for id in ids]
    assert places == sorted(places)


def test_without_plots_it_is_small() -> None:
    assert len(html(comparison(), False)) < 150_000


@pytest.mark.parametrize(
    "sample",
    [
        dataclasses.replace(comparison(), rows=()),
        dataclasses.replace(
            comparison(), rows=comparison().rows[:1], environment={}, excluded=(), command="", created="now"
        ),
        build([{"n": 1}, {"n": 2}], {"speed/walk": ("furlongs", None)}, [{"speed/walk": 12.25}, {}]),
    ],
    ids=["no rows", "one row", "own metric"],
)
def test_unusual_sweeps_have_a_report(sample: Comparison) -> None:
    page = html(sample, True)
    assert page.startswith("<!doctype html>")
    assert "Undefined" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_combinations_with_layers_can_be_chosen() -> None:
    page = html(comparison(), False, {"batch 1": lenet5(1), "batch 8": lenet5(8)})
    outline = Outline(page)
    ids = [a["id"] for _, a in outline.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {"layers", "layers-left", "layers-right", "layers-table", "layers-data"} <= set(ids)
    assert [tag for tag, a in outline.elements if a.get("id") in ("layers-left", "layers-right")] == ["select"] * 2
    found = re.search(r'id="layers-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    assert [item["label"] for item in json.loads(found[1])["tables"]] == ["batch 1", "batch 8"]


def test_without_layers_there_is_no_section() -> None:
    assert 'id="layers' not in html(comparison(), False)
    assert html(comparison(), False) == html(comparison(), False, {})


def test_names_of_layers_are_inert() -> None:
    page = html(comparison(), False, {HOSTILE: hostile_layers()})
    tags = [tag for tag, _ in Outline(page).elements]
    assert tags.count("script") == [tag for tag, _ in Outline(html(comparison(), False)).elements].count("script") + 2
    assert "alert(1)" in page
    assert "<script>alert" not in page


def test_fifty_models_of_five_hundred_layers_stay_under_six_megabytes() -> None:
    """No figure of one is a figure of another, so that no column can be shared; the plots' library is 4.8 MB of it."""
    page = html(comparison(), True, {f"model={n}": _large(n) for n in range(50)})
    assert len(page.encode()) < 6_000_000
    same = html(comparison(), True, {f"model=a, threads={n}": _large(0) for n in range(50)})
    one = html(comparison(), True, {"model=a": _large(0)})
    assert len(same.encode()) < len(one.encode()) + 50_000


def _large(seed: int) -> LayerTable:
    """As a residual network has them: names that repeat, shapes by stage, figures of nine digits."""
    rows = [LayerRow(ROOT, f"Net{seed}", 0, 0, 0, 0, 0, 0, 0, flops=0, act_bytes=0)]
    for index in range(499):
        macs = 100_000_000 + 7_919 * index * (seed + 1) + seed
        path = f"stage{index // 20}.{index % 20 // 4}.{('conv', 'norm', 'act', 'pool')[index % 4]}{seed % 3}"
        shapes = ((seed + 1, 64 << (index // 100), 56, 56),)
        weights = 2_359_296 + 50 * index + seed
        act_bytes = 4 * 64 * 56 * 56 * (seed + 1) + index
        row = LayerRow(path, f"Layer{index % 9}", 3, 0, weights, 0, 0, 0, macs, shapes, shapes, 2 * macs + 51 * index)
        rows.append(dataclasses.replace(row, act_bytes=act_bytes, parent=0))
    return LayerTable(tuple(rows))
