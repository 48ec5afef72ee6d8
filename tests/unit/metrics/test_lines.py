"""The set of metrics ``lines`` names a pass that has tables and no metric."""

from __future__ import annotations

import pytest

from sweeprof.errors import UserError
from sweeprof.metrics.select import metric_set, named_passes, passes_of, select


def test_the_set_runs_the_lines_pass_beside_the_time_of_a_step() -> None:
    assert passes_of(metric_set("lines")) == ["timing", "lines"]
    assert [entry.metric.info.name for entry in select(metric_set("lines"))] == ["latency/forward"]


def test_a_pass_is_named_beside_metrics() -> None:
    entries = ["lines", "compute/macs", "layer_times"]
    assert [entry.metric.info.name for entry in select(entries)] == ["compute/macs"]
    assert passes_of(entries) == ["analysis", "layer_times", "lines"]


@pytest.mark.parametrize("family", ["memory", "quality", "operators", "energy"])
def test_a_family_of_metrics_is_no_pass(family: str) -> None:
    assert named_passes([family]) == []
    with pytest.raises(UserError, match=f"{family}/"):
        select([family])
