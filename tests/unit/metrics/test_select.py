"""Metric sets."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from sweeprof.errors import Problem, UserError
from sweeprof.metrics.metric import builtin_metrics
from sweeprof.metrics.select import metric_set, mode_of, passes_of, select

MINE = '''
import sweeprof

@sweeprof.metric(name="mine/bits", unit="bits", better="lower")
def bits(layers, width: int = 32):
    """Bits."""
    return layers.params * width

@sweeprof.metric(name="params/total", unit="params", better="lower")
def total(layers):
    """Another total."""
    return 0

def plain(layers):
    return 0
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_metrics_of_a_test.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return "my_metrics_of_a_test"


def problems(*entries: Any) -> tuple[Problem, ...]:
    with pytest.raises(UserError) as raised:
        select(entries)
    return raised.value.problems


def test_built_in_metrics_in_the_order_of_the_set() -> None:
    chosen = select(["quality/accuracy", "params/total"])
    assert [s.metric.info.name for s in chosen] == ["quality/accuracy", "params/total"]
    assert [s.options for s in chosen] == [{}, {}]


def test_every_built_in_metric_can_be_selected() -> None:
    names = list(builtin_metrics())
    assert len(names) > 13
    assert [s.metric.info.name for s in select(names)] == names


def test_an_unknown_metric_names_the_nearest() -> None:
    (problem,) = problems("params/totl")
    assert (problem.key, problem.value, problem.nearest) == ("metrics.select", "params/totl", "params/total")
    assert "is not a metric. Known: " in problem.allowed
    message = str(problem)
    assert message.index("Did you mean 'params/total'?") < message.index("Known: ")
    assert len(message) < 300
    assert "params/trainable, " in message  # one of those most alike
    assert message.endswith(" more.")


def test_a_part_of_a_name_names_the_metrics_that_have_it() -> None:
    (part,) = problems("macs")
    assert (part.nearest, part.allowed) == ("compute/macs", "is not a metric. Known: compute/macs.")
    (family,) = problems("params")
    assert family.nearest is None
    own = sorted(name for name in builtin_metrics() if name.startswith("params/"))
    assert len(own) > 3
    assert family.allowed == f"is not a metric. Known: {', '.join(own)}."


def test_all_problems_at_once() -> None:
    found = problems("params/totl", "quality/accuracy", "quality/accuracy", {"_target_": "nowhere.at_all"})
    assert [p.value for p in found] == ["params/totl", "quality/accuracy", "nowhere.at_all"]
    assert found[1].allowed == "is selected twice."


def test_a_users_metric_with_its_options(mine: str) -> None:
    (chosen,) = select([{"_target_": f"{mine}.bits", "width": 8}])
    assert chosen.metric.info.name == "mine/bits"
    assert chosen.options == {"width": 8}


def test_a_users_metric_may_not_repeat_a_name(mine: str) -> None:
    (problem,) = problems("params/total", {"_target_": f"{mine}.total"})
    assert (problem.value, problem.allowed) == ("params/total", "is selected twice.")


def test_a_users_metric_may_replace_one_that_is_not_selected(mine: str) -> None:
    (chosen,) = select([{"_target_": f"{mine}.total"}])
    assert chosen.metric.info.definition == "Another total."


def test_an_unknown_option(mine: str) -> None:
    (problem,) = problems({"_target_": f"{mine}.bits", "widht": 8})
    assert problem.key == f"metrics.select {mine}.bits"
    assert (problem.value, problem.nearest) == ("widht", "width")
    assert problem.allowed == "is not an option. Known: width."


def test_a_function_without_the_decorator(mine: str) -> None:
    (problem,) = problems({"_target_": f"{mine}.plain"})
    assert problem.allowed == "is not decorated by @sweeprof.metric."


@pytest.mark.parametrize("target", ["no_such_module.x", "sweeprof.metrics.compute.absent", "x", ""])
def test_a_target_that_cannot_be_imported(target: str) -> None:
    (problem,) = problems({"_target_": target})
    assert problem.value == target
    assert problem.allowed.startswith("cannot be imported: ")


def test_a_module_that_raises_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_metrics_of_a_test.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (problem,) = problems({"_target_": "broken_metrics_of_a_test.x"})
    assert "division by zero" in problem.allowed


def test_a_registration_error_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'import sweeprof\n@sweeprof.metric(name="a", unit="b", better=None)\ndef x(weather): ...\n'
    (tmp_path / "unregistered_metrics_of_a_test.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    (problem,) = problems({"_target_": "unregistered_metrics_of_a_test.x"})
    assert "reads 'weather', which nothing provides" in problem.allowed


@pytest.mark.parametrize(
    ("names", "passes"),
    [
        (["params/total"], ["analysis"]),
        (["quality/agreement"], ["quality"]),
        (["latency/forward", "compute/macs"], ["analysis", "timing"]),
        (["quality/accuracy", "memory/rss_peak_bytes", "latency/per_sample", "params/frozen"], None),
        ([], []),
    ],
)
def test_passes_in_the_order_they_run(names: list[str], passes: list[str] | None) -> None:
    assert passes_of(names) == (passes or (["analysis", "timing", "memory", "quality"] if names else []))


def test_a_set_may_say_what_a_step_is() -> None:
    assert (mode_of("training"), mode_of("layers"), mode_of("compute/macs")) == ("training", None, None)
    assert metric_set("training") == metric_set("training", "training")
    assert metric_set("layers", "training") == metric_set("layers", "inference")
    with pytest.raises(
        UserError, match="metrics: 'training' is measured with mode=\"training\": make the profiler with it"
    ):
        metric_set("training", "inference")
    with pytest.raises(UserError, match="Did you mean 'training'"):
        mode_of("trainin")
