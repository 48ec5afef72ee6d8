"""What a combination leaves in a tracker."""

from __future__ import annotations

from support.samples import build
from sweeprof.report.pictures import backend_colours
from sweeprof.tracking.runs import run_contents


def test_the_axis_that_varies_takes_the_colours() -> None:
    points = [{"model": f"m{i % 2}", "backend": "torch", "batch_size": i} for i in range(4)]
    made = build(points, {"latency/forward": ("s", "lower")}, [{"latency/forward": 0.001}] * 4)
    found = [content.tags["mlflow.runColor"] for _, content in run_contents(made, [], "finished", "parent")]
    colours = backend_colours(["m0", "m1"])
    assert found == [colours["m0"], colours["m1"]] * 2
