"""The HTML report as text; tests/end_to_end opens it in a browser."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from support.nets import HOSTILE, lenet5
from support.nets import hostile as hostile_layers
from support.samples import LONG, build, comparison, drawn, hostile, with_cells
from support.seen import PEAKS, allocations, operators
from sweeprof.report.explore import MOST_SAMPLES, page_data, room
from sweeprof.report.html import Observed, details, html
from sweeprof.report.table import whole_table
from sweeprof.results.compared_rows import Comparison, Excluded
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.run.reports import MOST_LAYERS


class Outline(HTMLParser):
    """Elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.tags = [tag for tag, _ in self.elements]
        self.ids = [a["id"] for _, a in self.elements if "id" in a]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def data_of(page: str, id: str) -> str:
    """The JSON that stands in the page."""
    found = re.search(rf'<script type="application/json" id="{id}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


def test_nothing_is_fetched() -> None:
    outline = Outline(html(comparison(), True))
    linking = [(tag, a) for tag, a in outline.elements if {"src", "href", "action", "srcset"} & set(a)]
    assert {tag for tag, _ in linking} == {"a"}
    assert all((a["href"] or "").startswith("#") for _, a in linking)


@pytest.mark.parametrize(("layers", "scripts"), [({}, 0), ({HOSTILE: hostile_layers()}, 2)], ids=["rows", "layers"])
def test_names_are_inert(layers: dict[str, LayerTable], scripts: int) -> None:
    page = html(hostile(), False, layers)
    tags = Outline(page).tags
    assert "img" not in tags
    assert tags.count("script") == Outline(html(comparison(), False)).tags.count("script") + scripts
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert LONG in page


@pytest.mark.parametrize("id", ["sweep-data", "charts-data"])
def test_the_data_are_json_without_markup(id: str) -> None:
    text = data_of(html(hostile(), True), id)
    assert not set("<>&") & set(text)
    assert json.loads(text)


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
    links = [(a["href"] or "")[1:] for tag, a in outline.elements if tag == "a"]
    assert len(outline.ids) == len(set(outline.ids))
    assert links.count("content") == 1
    rows = {row.combination_id: row.status for row in comparison().rows}
    assert set(rows) <= set(outline.ids)
    assert set(rows) & set(links) == {id for id, status in rows.items() if status != "ok"}, "where it says why"
    assert set(links) <= set(outline.ids)


def test_a_long_list_is_folded() -> None:
    lines = [f"model=m{n}: 64 – 1.00 k/s" for n in range(11)]
    found = dataclasses.replace(comparison(), excluded=tuple(Excluded({"model": name}, "why") for name in lines))
    assert "<details><summary>Excluded (11)</summary>" in html(found, plotted=False)


def test_the_main_things_come_first_and_what_is_needed_to_repeat_it_is_there() -> None:
    """Name, sentence, chart and table; what a reader may want to look up follows."""
    page = html(comparison(), True)
    ids = ["answer-finding", "answer-rest", "best", "dots", "explore-table", "charts", "failures", "notes", "about"]
    places = [page.index(f'id="{id}"') for id in ids]
    assert places == sorted(places)
    assert "p99 not given: n<299" in str(json.loads(data_of(html(comparison(), False), "sweep-data")))
    for text in (
        "<strong>1 crashed</strong> timing: killed by SIGKILL (signal 9)",
        "torch</dt><dd>2.13.0+cpu",
        "Largest absolute difference of the outputs to the baseline&#39;s.",
    ):
        assert text in page


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
    assert len(outline.ids) == len(set(outline.ids))
    assert {"layers", "layers-chosen", "layers-beside", "layers-table", "layers-data"} <= set(outline.ids)
    assert [tag for tag, a in outline.elements if a.get("id") in ("layers-chosen", "layers-beside")] == ["select"] * 2
    assert [item["label"] for item in json.loads(data_of(page, "layers-data"))["tables"]] == ["batch 1", "batch 8"]
    without = html(comparison(), False)
    assert 'id="layers' not in without
    assert without == html(comparison(), False, {})


# How large a page is; the plots' library is 4.8 MB of it

LAYERS_OF_ONE = 500
MOST_BYTES = 6_000_000


def layers(seed: int) -> LayerTable:
    """A model of which no column is another's: names that repeat, shapes by stage, and the times of both phases."""
    chance = random.Random(seed)
    rows = [LayerRow(ROOT, f"Net{seed}", 0, 0, 0, 0, 0, 0, 0, flops=0, act_bytes=0)]
    for index in range(1, LAYERS_OF_ONE):
        macs, params = chance.randrange(10**8, 10**9), chance.randrange(10**5, 10**7)
        shapes = ((seed + 1, 64 << (index // 100), 56, 56),)
        path = f"stage{index // 20}.{index % 20 // 4}.{('conv', 'norm', 'act', 'pool')[index % 4]}{seed}"
        row = LayerRow(path, f"Layer{index % 9}", 3, 0, params, 0, 0, 0, macs, shapes, shapes, 2 * macs + index)
        fields = ("forward_s", "forward_self_s", "backward_s", "backward_self_s")
        seconds: dict[str, Any] = {field: chance.lognormvariate(-8, 1) for field in fields}
        rows.append(dataclasses.replace(row, act_bytes=chance.randrange(10**6, 10**8), parent=0, **seconds))
    return LayerTable(tuple(rows))


def test_without_plots_it_is_small_and_layers_that_are_alike_are_stored_once() -> None:
    assert len(html(comparison(), False)) < 150_000
    one = html(comparison(), True, {"model=a": layers(0)})
    same = html(comparison(), True, {f"model=a, threads={n}": layers(0) for n in range(50)})
    assert len(same.encode()) < len(one.encode()) + 50_000


def test_fifty_models_of_five_hundred_layers_stay_under_six_megabytes() -> None:
    assert len(html(comparison(), True, {f"model={n}": layers(n) for n in range(50)}).encode()) < MOST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(("models", "metrics"), [(48, 12), (9, 70), (2, 40)], ids=["rows", "figures", "in full"])
def test_a_page_full_of_everything_stays_under_six_megabytes(models: int, metrics: int) -> None:
    chance = random.Random(1)
    sample = with_more_metrics(drawn(3, models, sizes=7).comparison(), metrics, chance)
    is_whole = models == 2
    assert bool(page_data(sample)["left_out"]) != is_whole
    timed = {f"model=m{n}": layers(n) for n in range(MOST_LAYERS // LAYERS_OF_ONE)}
    seen = {label: Observed(table, operators(200), allocations(3000, 200), PEAKS) for label, table in timed.items()}
    shown = details(seen, {label: {"layers.csv": f"layers/{label}.csv"} for label in seen})
    assert shown["left_out"]
    each = room(len(sample.rows)) // 4
    samples = {row.combination_id: [times(each, chance) for _ in range(4)] for row in sample.rows}
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
            fields: dict[str, Any] = {"name": info.name, "value": rounds[0], "interval": ends, "rounds": rounds}
            own = dataclasses.replace(cell.measurement, detail={"min": ends[0]}, **fields)
            cells[info.name] = dataclasses.replace(cell, measurement=own)
        rows.append(dataclasses.replace(row, cells=cells))
    return dataclasses.replace(of, metrics=(*of.metrics, *more), rows=tuple(rows))
