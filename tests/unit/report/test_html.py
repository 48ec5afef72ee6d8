"""The HTML report as text; tests/end_to_end opens it in a browser."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import statistics
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from support.nets import HOSTILE
from support.nets import hostile as hostile_layers
from support.samples import DRAWN_METRICS, LONG, PLANNED, build, comparison, drawn, hostile, with_cells
from sweeprof.report.answer import answer
from sweeprof.report.columns import called_metrics
from sweeprof.report.explore import (
    LEAST_OF_A_ROUND,
    MOST_OF_ONE,
    MOST_SAMPLES,
    charts,
    embedded,
    page_data,
    room,
    thinned_samples,
)
from sweeprof.report.html import html
from sweeprof.report.summary import failures
from sweeprof.report.table import sorted_rows, whole_table
from sweeprof.results.compared_rows import Comparison, Row, set_against
from sweeprof.results.differences import Cell
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import Failure, Record


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


@pytest.mark.thorough
def test_a_page_of_many_combinations_is_as_large_as_the_documentation_says() -> None:
    sample = drawn(3, 470, sizes=7).comparison()
    assert len(sample.rows) >= 21 * 470
    assert 0.75 * MOST_BYTES < len(html(sample).encode()) < MOST_BYTES


# What the scripts of a page are given: rows, verdicts, charts, samples, and what stands at the top


def place_of(data: dict[str, Any], metric: str) -> str:
    return str([info["name"] for info in data["metrics"]].index(metric))


def test_a_row_is_its_axes_its_baseline_and_its_values() -> None:
    sample = comparison()
    data = page_data(sample)
    assert [row["id"] for row in data["rows"]] == [row.combination_id for row in sorted_rows(sample)]
    assert [(axis["key"], axis["numbers"], axis["varies"]) for axis in data["axes"]] == [
        ("model", None, True),
        ("backend", None, True),
        ("device", None, False),
        ("batch_size", [1, 8, 64], True),
    ]
    for row, seen in zip(sorted_rows(sample), data["rows"], strict=True):
        texts = [axis["values"][at] for axis, at in zip(data["axes"], seen["at"], strict=True)]
        assert texts == [str(value) for value in row.axes.values()]
        own = data["baselines"][0]["bases"][data["rows"].index(seen)]
        assert data["rows"][own]["id"] == row.baseline_id
        assert (seen["reason"] == -1) == (row.status == "ok")
    first = data["rows"][0]
    assert first["values"][place_of(data, "latency/forward")] == pytest.approx([0.12833, 0.12576, 0.13218], rel=1e-4)
    assert first["values"][place_of(data, "params/total")] == [61.706]
    assert (data["metrics"][0]["unit"], data["metrics"][0]["base"], data["metrics"][0]["factor"]) == ("ms", "s", 1e3)


def test_exact_values_are_not_rounded_and_measured_ones_are() -> None:
    points = [{"n": 1}, {"n": 2}]
    exact = build(
        points, {"params/total": ("params", "lower")}, [{"params/total": 61_706_123}, {"params/total": 61_706_124}]
    )
    assert [row["values"]["0"] for row in page_data(exact)["rows"]] == [[61706.123], [61706.124]]
    timed = Measurement("latency/forward", "s", "lower", 1.23456789e-3, estimator="median", interval=(1.2e-3, 1.3e-3))
    rounded = page_data(with_cells(comparison(), "latency/forward", measurement=timed))
    assert rounded["rows"][0]["values"]["0"] == [1.23457, 1.2, 1.3]


def cells_of(data: dict[str, Any], baseline: dict[str, Any], metric: str) -> dict[str, Any]:
    """By row the cell that the page has of a metric."""
    column = baseline["cells"].get(place_of(data, metric), [0] * len(data["rows"]))
    return {row["id"]: cell for row, cell in zip(data["rows"], column, strict=True)}


def expect_equal(data: dict[str, Any], seen: Any, cell: Cell, row: Row) -> None:
    """``seen`` is what the page has of the cell; its numbers have six and five digits."""
    if cell.base is None or cell.measurement.value is None or row.is_baseline:
        assert seen == 0
        return
    ratio, verdict, reason, *rest = seen
    assert ratio == (None if cell.ratio is None else pytest.approx(cell.ratio, rel=5e-6))
    assert (data["verdict_names"][verdict] if verdict >= 0 else None) == cell.verdict
    assert (data["verdict_reasons"][reason][0] if reason >= 0 else None) == cell.verdict_reason
    needed = [] if cell.rounds_needed is None else [cell.rounds_needed]
    assert rest == [*(pytest.approx(end, rel=5e-5) for end in cell.ratio_interval or ()), *needed]


@pytest.mark.parametrize("seed", range(6))
def test_the_baseline_has_the_verdicts_of_the_comparison(seed: int) -> None:
    sweep = drawn(seed)
    data = page_data(sweep.comparison())
    (baseline,) = data["baselines"]
    assert (baseline["key"], baseline["text"]) == ("", "b0")
    compared = sweep.against(PLANNED)
    for info in DRAWN_METRICS:
        cells = cells_of(data, baseline, info.name)
        for row in compared:
            expect_equal(data, cells[row.combination_id], row.cells[info.name], row)
    bases = {data["rows"][at]["id"]: base for at, base in enumerate(baseline["bases"])}
    places = {row["id"]: at for at, row in enumerate(data["rows"])}
    assert bases == {row.combination_id: places.get(row.baseline_id or "", -1) for row in compared}
    whole = dataclasses.replace(sweep.comparison(), rows=compared, baseline=PLANNED)
    assert (baseline["finding"], baseline["rest"]) == (answer(whole).finding, answer(whole).rest)


def test_another_sweep_has_its_verdicts_alone_or_as_a_further_baseline() -> None:
    other = dataclasses.replace(drawn(12).comparison(), sweep_id="s2")
    compared = set_against(drawn(8).comparison(), other, "tag:nightly")
    data = page_data(compared)
    (own,) = data["baselines"]
    assert (own["key"], own["text"], set(own["bases"])) == ("", "tag:nightly", {-1})
    cells = cells_of(data, own, "latency/forward")
    for row in compared.rows:
        expect_equal(data, cells[row.combination_id], row.cells["latency/forward"], row)
    both = page_data(drawn(8).comparison(), saved=[compared])["baselines"]
    assert [(one["key"], one["text"]) for one in both] == [("", "b0"), ("tag:nightly", "tag:nightly")]


def test_a_row_has_its_command_its_warnings_and_what_sets_it_apart() -> None:
    sample = comparison()
    rows = list(sample.rows)
    rows[0] = dataclasses.replace(rows[0], misses=("latency < 0.1 ms: 0.128 ms",))
    rows[4] = dataclasses.replace(rows[4], status="failed", reason="its outputs differ", baseline_id=None)
    data = page_data(dataclasses.replace(sample, rows=tuple(rows)))
    told = {row["id"]: row for row in data["rows"]}
    for row in rows:
        assert data["command_start"] + told[row.combination_id]["command"] == row.command
        assert told[row.combination_id]["wall_s"] == row.wall_s
    warnings = [data["reasons"][place] for place in told[rows[0].combination_id]["warnings"]]
    assert warnings == ["IQR is 31 % of the median → close other programs, or use protocol=default"]
    assert [id for id, row in told.items() if row.get("misses")] == [rows[0].combination_id]
    place = list(told).index(rows[4].combination_id)
    (baseline,) = data["baselines"]
    assert baseline["bases"][place] == -1, "outputs that differ are compared with nothing"
    assert place not in baseline["bases"]


def test_metrics_beyond_the_room_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables' own stay, however many rows there are."""
    whole = page_data(comparison())
    tables = [info["name"] for info in whole["metrics"] if info["headline"]]
    others = [info["title"] for info in whole["metrics"] if not info["headline"]]
    # 302 numbers of the tables' metrics; 16 rows with values, 7 of them with ratio, verdict and reason.
    monkeypatch.setattr("sweeprof.report.explore.MOST_NUMBERS", 302 + (16 + 3 * 7) + 16)
    data = page_data(comparison())
    assert [info["name"] for info in data["metrics"][: len(tables)]] == tables
    assert [info["title"] for info in data["metrics"][len(tables) :]] == others[:2]
    assert data["left_out"] == others[2:]
    monkeypatch.setattr("sweeprof.report.explore.MOST_NUMBERS", 0)
    assert [info["name"] for info in page_data(comparison())["metrics"]] == tables


def test_embedded_rows_are_the_same_rows() -> None:
    data = page_data(drawn(3).comparison())
    columns = embedded(data)["rows"]
    back = [
        {key: values[place] for key, values in columns.items() if values[place] is not None}
        for place in range(len(data["rows"]))
    ]
    assert back == data["rows"]


def test_a_figure_is_called_once_and_the_agreement_only_with_that_of_another_sweep() -> None:
    names = {info.name for info in called_metrics(comparison())}
    assert {"latency/forward", "memory/rss_peak_bytes", "quality/accuracy"} <= names
    assert not {"throughput/samples_per_s", "quality/agreement"} & names
    other = dataclasses.replace(comparison(), sweep_id="s0")
    assert "quality/agreement" in {
        info.name for info in called_metrics(set_against(comparison(), other, "tag:nightly"))
    }


def test_failures_are_grouped_by_their_reason() -> None:
    sample = drawn(4, models=4).comparison()
    (failed,) = failures(sample)
    ids = {row.combination_id for row in sample.rows if row.status != "ok"}
    assert len(ids) > 1
    assert (failed.status, failed.reason) == ("failed", "no luck")
    assert {id for id, _ in failed.rows} == ids
    assert all(name.startswith("model=m") for _, name in failed.rows)
    assert [(one.status, len(one.rows)) for one in failures(comparison())] == [("crashed", 1), ("unsupported", 1)]


def test_one_cause_of_several_passes_and_sizes_is_told_once() -> None:
    sample = comparison()
    rows = []
    for place, row in enumerate(sample.rows[:3]):
        found = [Failure(source, f"shapes {place}x4 and 3x{place}") for source in ("timing", "memory")]
        rows.append(dataclasses.replace(row, status="failed", failures=tuple(found)))
    (failed,) = failures(dataclasses.replace(sample, rows=tuple(rows)))
    assert failed.reason == "timing, memory: shapes 0x4 and 3x0"
    assert [id for id, _ in failed.rows] == [row.combination_id for row in rows]


def timing(number: int, samples: Any, status: Any = "ok", pass_name: Any = "timing") -> Record:
    return Record("s", "c", pass_name, status, round=number, observations={"samples": samples} if samples else None)


def test_few_samples_are_all_there_in_milliseconds() -> None:
    assert thinned_samples([timing(0, [2e-3, 1e-3]), timing(1, [3.00004e-3])], 40) == [[1.0, 2.0], [3.0]]


def test_a_round_that_failed_is_empty() -> None:
    records = [timing(2, [1e-3]), timing(1, None, "crashed"), timing(0, [1.0], pass_name="memory")]
    assert thinned_samples(records, 40) == [[], [], [1.0]]
    assert thinned_samples([], 40) == []


def test_what_is_left_keeps_ends_and_quartiles() -> None:
    samples = [(5 * number % 1001) * 1e-6 for number in range(1001)]
    ((kept,)) = thinned_samples([timing(0, samples)], 41)
    assert len(kept) == 41
    assert (kept[0], kept[-1]) == (0, 1)
    for share in (10, 20, 30):
        assert kept[share] == pytest.approx(
            statistics.quantiles(samples, n=4, method="inclusive")[share // 10 - 1] * 1e3, rel=0.01
        )


def test_room_is_shared() -> None:
    assert room(1) == MOST_OF_ONE
    assert 1000 * room(1000) <= MOST_SAMPLES
    many = [timing(number, [number + 1.0] * 100) for number in range(20)]
    assert {len(one) for one in thinned_samples(many, 10)} == {LEAST_OF_A_ROUND}


def first(sample: Comparison, samples: dict[str, list[list[float]]] | None = None) -> dict[str, dict[str, str]]:
    """What each chart shows first, by name."""
    data = page_data(sample, samples or {})
    axes, metrics = ([item[name] for item in data[of]] for of, name in (("axes", "key"), ("metrics", "name")))
    names = {
        "scaling": (axes, metrics),
        "pareto": (metrics, metrics),
        "heatmap": (axes, axes, metrics),
        "samples": (axes,),
    }
    found = charts(data, sample.pareto)["figures"]
    return {
        key: {field: of[place] for (field, place), of in zip(chosen.items(), names[key], strict=True)}
        for key, chosen in found.items()
    }


def test_the_quickstart_shows_latency_over_the_batch_size_first() -> None:
    assert first(comparison(), {"c000000000000": [[1.0, 2.0], [1.5]]}) == {
        "scaling": {"axis": "batch_size", "metric": "latency/forward"},
        "pareto": {"x": "latency/per_sample", "y": "quality/accuracy"},
        "heatmap": {"x": "batch_size", "y": "model", "metric": "latency/forward"},
        "samples": {"axis": "backend"},
    }


def test_a_front_that_the_sweep_asks_for_is_the_one_that_is_shown() -> None:
    asked = dataclasses.replace(comparison(), pareto=("memory/rss_peak_bytes", "latency/forward"))
    assert first(asked)["pareto"] == {"x": "memory/rss_peak_bytes", "y": "latency/forward"}
    alike = dataclasses.replace(comparison(), pareto=("params/frozen", "latency/forward"))
    assert first(alike)["pareto"]["y"] == "quality/accuracy"


@pytest.mark.parametrize(("known", "against_time"), [(2, "params/total"), (6, "quality/accuracy")])
def test_what_is_weighed_against_time_is_known_for_half_of_the_combinations(known: int, against_time: str) -> None:
    metrics: dict[str, tuple[str, Any]] = {
        "latency/forward": ("s", "lower"),
        "quality/accuracy": ("ratio", "higher"),
        "params/total": ("params", "lower"),
    }
    values: list[dict[str, int | float]] = [{"latency/forward": 1e-3 * n, "params/total": n} for n in range(1, 13)]
    for own in values[:known]:
        own["quality/accuracy"] = 1 - own["latency/forward"]
    sample = build([{"model": f"m{n}"} for n in range(12)], metrics, values)
    assert first(sample)["pareto"] == {"x": "latency/forward", "y": against_time}


@pytest.mark.parametrize(
    ("points", "values", "shown"),
    [
        ([{"a": 1}], [1.0], []),
        ([{"a": "x"}, {"a": "y"}], [1.0, 2.0], []),
        ([{"a": 1}, {"a": 2}], [1.0, 2.0], ["scaling"]),
        ([{"a": 1}, {"a": 2}], [None, None], []),
        ([{"a": a, "b": b} for a in "xy" for b in "uv"], [1.0, 2.0, 3.0, 4.0], ["heatmap"]),
        ([{"a": 1, "b": 1}, {"a": 2, "b": 2}], [1.0, None], ["scaling", "heatmap"]),
    ],
)
def test_only_charts_with_something_to_show_are_there(
    points: list[dict[str, Any]], values: list[float | None], shown: list[str]
) -> None:
    known: list[dict[str, int | float]] = [{} if value is None else {"own/score": value} for value in values]
    sample = build(points, {"own/score": ("furlongs", "higher")}, known)
    assert list(first(sample)) == shown
    page = html(sample)
    assert page.count('class="chart"') == len(shown)
    assert ("plotly-packed" in page) == bool(shown)


def test_generation_is_shown_as_throughput_against_the_time_of_a_token() -> None:
    metrics: dict[str, tuple[str, Any]] = {
        "generation/time_per_token": ("s", "lower"),
        "generation/decode_throughput": ("tokens/s", "higher"),
    }
    points = [{"backend": backend, "batch_size": batch} for backend in ("torch", "tensorflow") for batch in (1, 4)]
    values: list[dict[str, int | float]] = []
    for seconds, batch in ((0.01, 1), (0.025, 4), (0.02, 1), (0.05, 4)):
        values.append({"generation/time_per_token": seconds, "generation/decode_throughput": batch / seconds})
    assert first(build(points, metrics, values))["pareto"] == {
        "x": "generation/time_per_token",
        "y": "generation/decode_throughput",
    }
