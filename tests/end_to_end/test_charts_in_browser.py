"""The charts of the report in a real browser: what they draw is what was compared, whatever the reader chooses."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import Visit, needs_browser, opened, wait_until
from support.samples import LONG, PLANNED, build, comparison, drawn, hostile
from sweeprof.numbers import fixed_value
from sweeprof.report.html import html
from sweeprof.results.compared_rows import Comparison, Row, value_of
from sweeprof.results.constraints import Direction, dominant

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [needs_browser, pytest.mark.system]

CHARTS = ("scaling", "pareto", "heatmap", "samples")
Open = Callable[..., Visit]
Traces = list[dict[str, Any]]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    visits = []

    def open_report(
        sample: Comparison, samples: Mapping[str, Sequence[Sequence[float]]] | None = None, **options: Any
    ) -> Visit:
        visits.append(opened(browser, html(sample, samples=samples or {}), **options))
        return visits[-1]

    yield open_report
    for one in visits:
        one.leave()
        assert one.complaints == []
        assert len(one.requests) == 1


def traces(report: Visit, key: str) -> Traces:
    """What a chart draws, once it is seen."""
    report.page.locator(f"#chart-{key}").scroll_into_view_if_needed()
    report.page.wait_for_selector(f"#chart-{key}:not([aria-busy]) svg.main-svg")
    found: Traces = report.page.evaluate(f"document.getElementById('chart-{key}').data")
    return found


def choose(report: Visit, key: str, label: str, text: str) -> None:
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


def test_scaling_curves_have_the_values_and_intervals_of_the_comparison(visit: Open) -> None:
    sample = comparison()
    report = visit(sample)
    drawn = traces(report, "scaling")
    assert points_of(drawn) == over_batch_size(sample, "latency/forward")
    assert [trace["name"] for trace in drawn][:2] == ["lenet5 · torch", "lenet5 · tensorflow"]
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in drawn}) == 6
    first = drawn[0]
    assert first["error_y"]["array"] == pytest.approx([0.03 * y for y in first["y"]], rel=1e-2)
    assert first["error_y"]["arrayminus"] == pytest.approx([0.02 * y for y in first["y"]], rel=1e-2)
    assert "2 without a value" in note(report, "scaling")
    assert "killed by SIGKILL" in note(report, "scaling")
    assert "Bars: 95 % intervals of the median within one process, not between processes." in note(report, "scaling")
    assert "95 % within one process: " in first["text"][0]
    cell = report.page.locator("#explore-table td:has(> .interval)").first
    assert (
        cell.get_attribute("title") == "[126–132] 95 % interval of the median within one process, not between processes"
    )


def test_a_keyboard_skips_the_head_and_chooses_what_a_chart_shows(visit: Open) -> None:
    sample = comparison()
    report = visit(sample)
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
    report.page.keyboard.press("Tab")
    assert report.page.evaluate("document.activeElement.parentElement.textContent").startswith("over")


def test_the_front_of_any_two_metrics_is_pythons(visit: Open) -> None:
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
    report = visit(sample)
    measured = [row for row in rows if row.status == "ok"]
    cost, gain, size, rate = metrics
    for x, y in ((cost, gain), (gain, size), (size, cost), (gain, rate)):  # every pair of directions
        choose(report, "pareto", "x axis", x)
        choose(report, "pareto", "y axis", y)
        steps, *clouds = traces(report, "pareto")
        known = [row for row in measured if value_of(row, x) is not None and value_of(row, y) is not None]
        fitting = [row for row in known if not row.misses]
        better: tuple[Direction, Direction] = (metrics[x][1], metrics[y][1])
        pairs = [(float(value_of(row, x) or 0), float(value_of(row, y) or 0)) for row in fitting]
        front = [fitting[place].combination_id for place in dominant(pairs, better)]
        assert sorted(steps["customdata"]) == sorted(front)
        assert set(points_of(clouds)) == {row.combination_id for row in known}
        assert steps["line"]["shape"] == "hv"
        along = [fixed(row, x) for id in steps["customdata"] for row in known if row.combination_id == id]
        assert steps["x"] == near(along)
        assert steps["x"] == sorted(steps["x"], reverse=better[0] == "higher")
        solid = {
            id
            for cloud in clouds
            for id, opacity in zip(cloud.get("customdata") or (), cloud["marker"].get("opacity") or (), strict=True)
            if opacity == 1
        }
        assert solid == set(front)
        links = report.page.locator("#chart-pareto-more a").evaluate_all(
            "links => links.map((link) => link.hash.slice(1))"
        )
        assert links == steps["customdata"][:20]
        assert note(report, "pareto").startswith(f"{len(front)} of {len(known)} combinations on the front")
        missed = len(known) - len(fitting)
        assert f"{missed} combinations cannot be on the front, because of a constraint" in note(report, "pareto")
        assert "failed: outputs differ" in note(report, "pareto")


@pytest.mark.slow
def test_a_chart_is_saved_as_svg_as_it_was_chosen(visit: Open, tmp_path: Path) -> None:
    report = visit(comparison())
    traces(report, "heatmap")
    choose(report, "heatmap", "x axis", "backend")
    traces(report, "heatmap")
    with report.page.expect_download() as saved:
        report.page.locator("#chart-heatmap .modebar-btn").first.dispatch_event("click")
    saved.value.save_as(tmp_path / "saved")
    assert saved.value.suggested_filename == "chart.svg"
    shown = (tmp_path / "saved").read_text(encoding="utf-8")
    assert shown.startswith("<svg")
    assert all(f">{backend}<" in shown for backend in ("torch", "tensorflow"))


def test_cells_of_the_heatmap_are_geometric_means(visit: Open) -> None:
    chance = random.Random(7)
    axes: dict[str, list[Any]] = {
        "model": ["a", "b", "c"],
        "backend": ["torch", "jax", "tensorflow"],
        "threads": [1, 2, 4, 8],
    }
    points = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    values: list[dict[str, int | float]] = [
        {"latency/forward": chance.lognormvariate(-7, 2)}
        if chance.random() < 0.8 and (point["model"], point["threads"]) != ("b", 4)
        else {}
        for point in points
    ]
    sample = build(points, {"latency/forward": ("s", "lower")}, values)
    report = visit(sample)
    choose(report, "heatmap", "x axis", "threads")
    choose(report, "heatmap", "backend", "all (geometric mean)")
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
    choose(report, "heatmap", "backend", "jax")
    heat, _ = traces(report, "heatmap")
    (row,) = (row for row in sample.rows if row.axes == {"model": "c", "backend": "jax", "threads": 8})
    assert heat["customdata"][2][3][0] == near(fixed(row, "latency/forward"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_ratios_of_the_heatmap_are_those_of_the_table(visit: Open, seed: int) -> None:
    """Interleaved runs, rounds that are missing and other hosts included."""
    sweep = drawn(seed)
    report = visit(sweep.comparison())
    choose(report, "heatmap", "shown as", "ratio to the baseline")
    choose(report, "heatmap", "x axis", "backend")
    choose(report, "heatmap", "y axis", "model")
    choose(report, "heatmap", "batch size", "all (geometric mean)")
    assert_ratios(traces(report, "heatmap")[0], sweep.against(PLANNED))


@pytest.mark.slow  # that it is on no front is among the tests of the front
def test_what_failed_is_no_point_of_a_curve_and_no_cell(visit: Open) -> None:
    sample = drawn(2).comparison()
    kept = {row.combination_id: fixed(row, "latency/forward") for row in sample.rows if row.status != "ok"}
    assert any(value is not None for value in kept.values())
    report = visit(sample, {row.combination_id: [[1.0, 2.0]] for row in sample.rows})
    seen = points_of(traces(report, "scaling"))
    assert {id for id in kept if seen.get(id, (None, None))[1] is not None} == set()
    assert f"{len(kept)} without a value: " in note(report, "scaling")
    assert "failed: no luck" in note(report, "scaling")
    choose(report, "heatmap", "x axis", "backend")
    choose(report, "heatmap", "y axis", "model")
    choose(report, "heatmap", "batch size", "all (geometric mean)")
    cells = itertools.chain(*traces(report, "heatmap")[0]["customdata"])
    assert sum(n for _, n in cells) == len(sample.rows) - len(kept)
    assert {trace["customdata"][0] for trace in traces(report, "samples")}.isdisjoint(kept)


def ratio(row: Row) -> float | None:
    """To its baseline, where the two can be compared."""
    cell = row.cells["latency/forward"]
    if row.status != "ok" or row.baseline_status not in (None, "ok"):
        return None
    if row.is_baseline and cell.measurement.value is not None:
        return 1.0
    return None if cell.verdict == "not_comparable" else cell.ratio


def assert_ratios(heat: dict[str, Any], rows: Sequence[Row]) -> None:
    """Cells of model and backend are the geometric means over the batch sizes; the middle of the colours is at 1."""
    models, backends = (list(dict.fromkeys(row.axes[axis] for row in rows)) for axis in ("model", "backend"))
    expected = []
    for model, backend in itertools.product(sorted(models), sorted(backends)):
        members = [row for row in rows if (row.axes["model"], row.axes["backend"]) == (model, backend)]
        found = [number for row in members if (number := ratio(row)) is not None]
        expected.append([pytest.approx(statistics.geometric_mean(found), rel=1e-4) if found else None, len(found)])
    assert list(itertools.chain(*heat["customdata"])) == expected
    assert any(number not in (None, 1.0) for number, _ in itertools.chain(*heat["customdata"]))
    assert heat["zmin"] == -heat["zmax"]


def samples_of(sample: Comparison, rounds: int = 3) -> dict[str, list[list[float]]]:
    chance = random.Random(1)
    return {
        row.combination_id: [[round(chance.lognormvariate(0, 0.1), 4) for _ in range(9)] for _ in range(rounds)]
        for row in sample.rows
        if row.status == "ok"
    }


@pytest.mark.slow
def test_samples_stand_round_by_round_in_groups_of_bounded_size(visit: Open) -> None:
    points = [{"model": m, "threads": n} for m in ("a", "b") for n in range(1, 31)]
    sample = build(points, {"latency/forward": ("s", "lower")}, [{"latency/forward": 1e-3}] * len(points))
    samples = samples_of(sample)
    samples["c1"][1] = []  # a round that failed
    report = visit(sample, samples)
    choose(report, "samples", "side by side", "threads")
    drawn = traces(report, "samples")
    shown = [row.combination_id for row in sample.rows if row.axes["model"] == "a"][:12]
    expected = [(id, found) for id in shown for found in samples[id] if found]
    assert [(trace["customdata"][0], trace["y"]) for trace in drawn] == expected
    centres = [trace["x"][0] for trace in drawn]
    assert centres == sorted(set(centres))
    choose(report, "samples", "of", "b")
    choose(report, "samples", "part", "25 to 30 of 30")
    drawn = traces(report, "samples")
    assert {trace["customdata"][0] for trace in drawn} == {
        row.combination_id for row in sample.rows if row.axes["model"] == "b" and row.axes["threads"] > 24
    }
    assert "162 samples of 6 combinations (b), 3 rounds" in note(report, "samples")


def test_charts_show_what_the_table_shows_once_they_are_seen(visit: Open) -> None:
    sample = comparison()
    report = visit(sample, samples_of(sample), viewport={"width": 1200, "height": 500})
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


def test_charts_follow_the_theme_and_paper_has_all_in_light_at_its_own_width(visit: Open) -> None:
    """Also those that nobody has looked at; afterwards the page is as it was."""
    report = visit(comparison(), samples_of(comparison()), color_scheme="dark")
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


@pytest.mark.slow  # one width of one chart is among the tests of the whole page
@pytest.mark.parametrize("width", [390, 1300])
def test_hostile_names_do_no_harm_in_any_chart(visit: Open, width: int) -> None:
    sample = hostile()
    report = visit(sample, samples_of(sample), viewport={"width": width, "height": 900})
    choose(report, "samples", "side by side", "model")
    for key in CHARTS:
        traces(report, key)
    assert report.page.locator("#chart-scaling .legendtext", has_text="<script").count() == 2
    assert report.page.locator("#chart-heatmap .ytick", has_text="…").count() >= 1
    assert LONG not in report.page.locator("#chart-pareto-more").inner_text()
    assert report.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_a_thousand_combinations_stay_readable(visit: Open) -> None:
    chance = random.Random(3)
    axes: dict[str, list[Any]] = {
        "model": [f"m{i}" for i in range(10)],
        "backend": list("abcdefghij"),
        "batch_size": list(range(1, 11)),
    }
    points = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    metrics: dict[str, tuple[str, Any]] = {"latency/forward": ("s", "lower"), "quality/accuracy": ("ratio", "higher")}
    values = [{"latency/forward": chance.lognormvariate(-6, 1), "quality/accuracy": chance.random()} for _ in points]
    sample = build(points, metrics, values)
    report = visit(sample, {id: [found[0][:5]] for id, found in samples_of(sample, 1).items()})
    for key in CHARTS:
        assert len(traces(report, key)) <= 26
        assert report.page.locator(f"#chart-{key} .legend .traces").count() <= 13
    lines = traces(report, "scaling")
    thin, thick = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    assert set(points_of(thin)) == {row.combination_id for row in sample.rows}
    first = [
        value_of(row, "latency/forward")
        for row in sample.rows
        if row.axes["backend"] == "a" and row.axes["batch_size"] == 1
    ]
    known = [1e3 * value for value in first if value is not None]
    assert thick[0]["y"][0] == near(statistics.geometric_mean(known))
