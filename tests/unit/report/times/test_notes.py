"""What is said beside the times of a layer table."""

from __future__ import annotations

import dataclasses

import pytest

from support.timed_layers import timed_lenet5
from sweeprof.report.layer_table import timing_lines
from sweeprof.results.layer_times import Mode, PhaseSummary, TimingSummary
from sweeprof.results.layers import LayerTable

FORWARD = PhaseSummary(2e-3, 0.98, 1.05, 1e-4)


def said(mode: Mode, repeats: int, backward: PhaseSummary | None = None) -> list[str]:
    timing = TimingSummary(mode, repeats, FORWARD, backward)
    return timing_lines(dataclasses.replace(LayerTable(timed_lenet5().rows), timing=timing))


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_one_step_has_no_median(mode: Mode) -> None:
    assert said(mode, 1)[0] == f"Times are those of one step of {mode}."
    assert said(mode, 3)[0] == f"Times are medians over 3 steps of {mode}, scaled by one factor so that they add up."


def test_what_lies_outside_is_named_where_a_step_has_a_loss() -> None:
    covered = "the calls cover 98 %, 100 µs of it outside any module"
    assert f"{covered}. Probes" in said("inference", 3)[1]
    forward, backward = said("training", 3, FORWARD)[1:]
    assert f"{covered}: the loss and whatever else runs there. Probes" in forward
    assert forward.replace("forward", "backward") == backward


def test_a_phase_whose_calls_do_not_add_up_to_it_is_marked() -> None:
    doubtful = dataclasses.replace(
        FORWARD, doubt="the times of the calls add up to 80 % of the backward without probes"
    )
    forward, backward = said("training", 3, doubtful)[1:]
    assert "Warning" not in forward
    assert backward.endswith("Warning: the times of the calls add up to 80 % of the backward without probes.")
