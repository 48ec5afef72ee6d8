"""The plots as plain data, and as pictures."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.odd import build, hostile, renamed
from support.samples import comparison
from sweeprof.report.explore.charts import charts
from sweeprof.report.explore.data import page_data
from sweeprof.report.figure import OTHER_COLOUR
from sweeprof.report.images import png
from sweeprof.report.plots import backend_colour, numeric_axis, plots
from sweeprof.report.selection import pareto_front
from sweeprof.results.compare import Comparison, Row, compare_rows
from sweeprof.results.measurement import Measurement, MetricInfo

POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


@given(POINTS)
def test_the_front_is_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    def beaten(x: int, y: int) -> bool:
        return any(a <= x and b >= y and (a, b) != (x, y) for a, b in points)

    expected = {i for i, point in enumerate(points) if not beaten(*point)}
    front = pareto_front(points)
    assert set(front) == expected
    assert [points[i] for i in front] == sorted(points[i] for i in front)


def test_the_front_follows_its_directions() -> None:
    points = [(1.0, 1.0), (2.0, 2.0), (3.0, 1.0)]
    assert pareto_front(points) == [0, 1]
    assert pareto_front(points, better=("lower", "lower")) == [0]
    assert pareto_front(points, better=("higher", "higher")) == [2, 1]
    assert pareto_front([]) == []


def test_a_line_per_model_and_backend() -> None:
    latency, throughput, _ = plots(comparison())
    assert [plot.key for plot in (latency, throughput)] == ["latency", "throughput"]
    assert [series.name for series in latency.series][:2] == ["lenet5 · torch", "lenet5 · tensorflow"]
    assert len({(series.colour, series.dash) for series in latency.series}) == 6
    assert len({series.colour for series in latency.series}) == 2
    assert latency.x.ticks == (1, 8, 64)
    assert (latency.x.log, latency.y.log) == (True, True)


def test_a_missing_row_leaves_a_gap() -> None:
    lines = {series.name: series for series in plots(comparison())[0].series}
    crashed = lines["lenet5 · tensorflow"]
    assert crashed.x == (1, 8, 64)
    assert crashed.y[2] is None
    assert lines["digits_resnet · tensorflow"].y[0] is None


def test_values_are_in_the_unit_of_the_axis_with_their_interval() -> None:
    plot = plots(comparison())[0]
    series = plot.series[0]
    assert plot.y.title == "Latency (ms) – lower is better"
    assert series.y[0] == pytest.approx(0.12833)
    assert series.low[0] == pytest.approx(0.12833 * 0.98, rel=1e-3)
    assert series.high[0] == pytest.approx(0.12833 * 1.03, rel=1e-3)
    assert series.labels[0] == "lenet5, torch, batch_size 1, 128 µs"


def test_accuracy_against_latency_has_its_front() -> None:
    plot = plots(comparison())[2]
    front = plot.series[0]
    assert (plot.key, front.name, front.steps, front.points) == ("accuracy", "Pareto front", True, False)
    assert front.y == (0.9694, 0.9889, 0.9917)
    assert all(not series.lines for series in plot.series[1:])


def test_nothing_to_see_is_no_plot() -> None:
    full = comparison()
    assert plots(dataclasses.replace(full, rows=full.rows[:1])) == []
    assert plots(dataclasses.replace(full, rows=())) == []
    without = tuple(info for info in full.metrics if info.name != "quality/accuracy")
    assert [plot.key for plot in plots(dataclasses.replace(full, metrics=without))] == ["latency", "throughput"]


def test_any_numeric_axis_will_do() -> None:
    points = [{"optimiser": o, "threads": n, "fused": f} for o in ("a", "b") for n in (4, 1) for f in (True, False)]
    odd = build(points, {"latency/forward": ("s", "lower")}, [{"latency/forward": 0.1 * i + 1} for i in range(8)])
    assert numeric_axis(odd) == "threads"
    (plot,) = plots(odd)
    assert plot.title == "Latency over threads"
    assert plot.series[0].x == (1, 4)
    assert [series.name for series in plot.series] == ["a · true", "a · false", "b · true", "b · false"]
    assert numeric_axis(build([{"a": "x"}, {"a": "y"}], {}, [{}, {}])) is None


def test_a_value_that_only_another_model_was_swept_over_is_no_gap() -> None:
    points = [{"model": "a", "batch_size": n} for n in (1, 8)] + [{"model": "b", "batch_size": n} for n in (2, 16)]
    odd = build(points, {"latency/forward": ("s", "lower")}, [{"latency/forward": 1.0}] * 4)
    assert [series.x for series in plots(odd)[0].series] == [(1, 8), (2, 16)]


def test_backend_colours_are_stable_and_run_out_into_grey() -> None:
    names = [f"b{i}" for i in range(9)]
    colours = [backend_colour(name, names) for name in names]
    assert len(set(colours[:7])) == 7
    assert colours[7:] == [OTHER_COLOUR] * 2
    assert backend_colour("unknown", names) == OTHER_COLOUR


@pytest.mark.parametrize("sample", [comparison(), hostile(), renamed("模型")], ids=["quickstart", "hostile", "no font"])
def test_pictures(sample: Comparison) -> None:
    for plot in plots(sample):
        assert png(plot).startswith(b"\x89PNG\r\n\x1a\n")


def test_pictures_do_not_touch_pyplot() -> None:
    code = (
        "import sys; from support.samples import comparison;"
        "from sweeprof.report import html, images, plots, table, terminal;"
        "assert not {'matplotlib', 'plotly'} & set(sys.modules), 'heavy imports';"
        "images.png(plots.plots(comparison())[0]); assert 'matplotlib.pyplot' not in sys.modules"
    )
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def _generation(batch: int, per_token: float, prompt: int, backend: str) -> dict[str, float]:
    return {
        "generation/time_per_token": per_token,
        "generation/decode_throughput": batch / per_token,
        "latency/forward": prompt * 1e-3 * (2 if backend == "tensorflow" else 1),
    }


def generating(batches: tuple[int, ...] = (1, 4), prompts: tuple[object, ...] = (128,)) -> Comparison:
    """A model that generates on two backends; a token takes 10 ms for a batch of one, and 5 ms more for each further sequence."""
    infos = (
        MetricInfo("generation/time_per_token", "s", "lower", "Time per token."),
        MetricInfo("generation/decode_throughput", "tokens/s", "higher", "Tokens per second."),
        MetricInfo("latency/forward", "s", "lower", "Time of a forward."),
    )
    rows: list[Row] = []
    values = {}
    for backend, batch, prompt in itertools.product(("torch", "tensorflow"), batches, prompts):
        per_token = (0.010 + 0.005 * (batch - 1)) * (2 if backend == "tensorflow" else 1)
        axes = {"model": "gpt", "backend": backend, "batch_size": batch, "generation.prompt_length": prompt}
        id = f"c{len(rows)}"
        known = _generation(batch, per_token, prompt if isinstance(prompt, int) else 0, backend)
        values[id] = {i.name: Measurement(i.name, i.unit, i.better, known[i.name]) for i in infos}
        rows.append(Row(id, axes, "ok", None, {}, None))
    axes_names = ("model", "backend", "batch_size", "generation.prompt_length")
    compared = compare_rows(rows, values, None)
    return Comparison("s1", "chat", "2026-11-23T20:00:00+00:00", "", axes_names, infos, {"backend": "torch"}, compared)


def test_throughput_against_speed_per_user_with_batch_sizes_along_the_line() -> None:
    (plot,) = [plot for plot in plots(generating((4, 1))) if plot.key == "throughput_per_user"]
    lines = {series.name: series for series in plot.series}
    assert list(lines) == ["torch", "tensorflow"]
    # 10 ms per token is 100 tokens/s for the one user; 25 ms with four is 40 for each of them, and 160 together.
    assert lines["torch"].x == pytest.approx((100.0, 40.0))
    assert lines["torch"].y == pytest.approx((100.0, 160.0))
    assert lines["tensorflow"].x == pytest.approx((50.0, 20.0))
    assert lines["tensorflow"].y == pytest.approx((50.0, 80.0))
    assert lines["torch"].lines
    assert [note.text for note in plot.notes] == ["batch 1", "batch 4", "batch 1", "batch 4"]
    assert (plot.x.title, plot.y.title) == (
        "Tokens/s per user – higher is better",
        "Throughput (tokens/s) – higher is better",
    )
    assert png(plot).startswith(b"\x89PNG")


def test_without_generation_there_is_no_speed_per_user() -> None:
    assert "throughput_per_user" not in {plot.key for plot in plots(comparison())}


def test_times_over_every_size_of_the_inputs() -> None:
    found = {plot.key: plot for plot in plots(generating((1, 4), (128, 512)))}
    assert found["latency"].x.title.startswith("batch_size")
    over = found["latency_over_generation_prompt_length"]
    assert (over.title, over.x.title, over.x.ticks) == (
        "Latency over prompt length",
        "generation.prompt_length",
        (128, 512),
    )
    assert [(series.name, series.x, series.y) for series in over.series] == [
        ("torch · 1", (128, 512), (128.0, 512.0)),
        ("torch · 4", (128, 512), (128.0, 512.0)),
        ("tensorflow · 1", (128, 512), (256.0, 1024.0)),
        ("tensorflow · 4", (128, 512), (256.0, 1024.0)),
    ]
    assert len({(series.colour, series.dash, series.marker) for series in over.series}) == 4
    per_token = found["time_per_token_over_generation_prompt_length"]
    assert per_token.series[1].y == pytest.approx((25.0, 25.0))
    assert "latency_over_generation_prompt_length" not in {plot.key for plot in plots(generating((1, 4)))}


def test_rows_without_the_size_are_on_no_line() -> None:
    found = {plot.key: plot for plot in plots(generating((1,), (128, 512, None)))}
    assert [series.x for series in found["latency_over_generation_prompt_length"].series] == [(128, 512)] * 2


def test_the_page_shows_throughput_against_the_time_of_a_token() -> None:
    data = page_data(generating())
    names = [metric["name"] for metric in data["metrics"]]
    chosen = charts(data)["figures"]["pareto"]
    assert names[chosen["y"]] == "generation/decode_throughput"
    without = dataclasses.replace(generating(), metrics=generating().metrics[:2])
    data = page_data(without)
    chosen = charts(data)["figures"]["pareto"]
    assert [data["metrics"][chosen[axis]]["name"] for axis in ("x", "y")] == [
        "generation/time_per_token",
        "generation/decode_throughput",
    ]
