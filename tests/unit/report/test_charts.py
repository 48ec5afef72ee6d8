"""Which charts a page has, and what they show first."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from support.odd import build
from support.samples import comparison
from sweeprof.report.explore import charts, page_data
from sweeprof.report.html import html
from sweeprof.results.compared_rows import Comparison


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


def test_a_page_without_plots_does_not_carry_what_draws_them() -> None:
    assert "plotly-packed" not in html(comparison(), plotted=False)


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
