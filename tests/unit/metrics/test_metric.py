"""Metrics: what a function may read, what it says of itself, and which of them a config selects."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import sweeprof
from sweeprof.errors import Problem, UserError
from sweeprof.metrics.evaluate import measured
from sweeprof.metrics.metric import Metric, Selected, builtin_metrics, declared, known_parameters, metric
from sweeprof.metrics.select import metric_set, mode_of, passes_of, select
from sweeprof.passes.registry import parameters
from sweeprof.results.layers import LayerTable

pytestmark = pytest.mark.usefixtures("declarations")
declare = metric(name="mine/x", unit="ratio", better="higher")


def test_parameters_are_resolved_by_name() -> None:
    @declare
    def found(batch_size: int, layers: Any, factor: float = 2.0) -> float:
        """The first line.

        Not the second.
        """
        return factor * batch_size * len(layers)

    assert isinstance(found, Metric)
    assert (found.info.name, found.info.unit, found.info.better) == ("mine/x", "ratio", "higher")
    assert found.info.definition == "The first line."
    assert (found.reads, found.options, found.passes) == (
        ("batch_size", "layers"),
        ("factor",),
        frozenset({"analysis"}),
    )
    assert found({"batch_size": 3, "layers": "ab", "timing": None}) == 12
    assert found({"batch_size": 3, "layers": "ab"}, factor=0.5) == 3
    assert sweeprof.metric is metric
    assert sweeprof.Metric is Metric


def test_a_metric_may_read_nothing() -> None:
    found = declare(lambda: 7)
    assert (found.passes, found.info.definition, found({})) == (frozenset(), "", 7)


def test_keyword_only_parameters_are_resolved_too() -> None:
    @declare
    def found(*, batch_size: int, factor: int = 2) -> int:
        return batch_size * factor

    assert (found.reads, found.options) == (("batch_size",), ("factor",))
    assert found({"batch_size": 4}) == 8


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda *things: 0, r"metric 'mine/x' takes \*things: name each thing it reads \(layers, "),
        (lambda layers, **things: 0, r"metric 'mine/x' takes \*things: name each thing"),
        (lambda layers, weather: 0, r"reads 'weather', which nothing provides. Known: layers, .* needs a default"),
        (lambda batch_size, /: 0, "takes 'batch_size' by position"),  # a metric is called with names
    ],
)
def test_a_function_of_another_form_is_refused(function: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        declare(function)


@pytest.mark.parametrize("parameter", known_parameters())
def test_every_parameter_of_a_pass_can_be_read(parameter: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def found({parameter}): return 1", names)
    made = declare(names["found"])
    assert made.passes == ({parameters()[parameter][0].name} if parameter != "batch_size" else set())


@pytest.mark.parametrize("name", ["compute_macs", "compute.macs", "compute macs"])
def test_a_name_that_reads_like_that_of_another_metric_is_refused(name: str) -> None:
    """Or whatever reads ``compute_macs`` would be given this one."""
    message = rf"cannot be called '{name}': .* the metric 'compute/macs' would be compute_macs"
    with pytest.raises(ValueError, match=message):
        metric(name=name, unit="MAC", better="lower")(lambda layers: 0)
    assert declared()["compute_macs"] is builtin_metrics()["compute/macs"]


def test_two_metrics_of_ones_own_must_not_read_alike_either() -> None:
    def first(batch_size: int) -> int:
        return batch_size

    metric(name="mine/a_b", unit="", better=None)(first)
    with pytest.raises(ValueError, match="both it and the metric 'mine/a_b' would be mine_a_b"):
        metric(name="mine_a/b", unit="", better=None)(lambda batch_size: -batch_size)
    renamed = metric(name="mine_a/b", unit="", better=None)(first)  # as when a cell of a notebook is run again
    assert declared()["mine_a_b"] is renamed


@pytest.mark.parametrize("is_selected", [False, True])
def test_a_built_in_metric_keeps_its_readers_unless_another_is_selected(is_selected: bool) -> None:
    total = metric(name="params/total", unit="params", better="lower")(lambda batch_size: 7)
    found = declare(lambda params_total: params_total)
    selected = [Selected(found), *([Selected(total)] if is_selected else [])]
    values = {"layers": LayerTable(()), "weights": LayerTable(()), "batch_size": 1}
    assert measured(selected, values)["mine/x"].value == (7 if is_selected else 0)


@pytest.mark.parametrize("name", sorted(builtin_metrics()))
def test_every_built_in_metric_declares_itself(name: str) -> None:
    info = builtin_metrics()[name].info
    assert info.name == name
    assert info.definition.endswith(".")
    counts = {"params", "MAC", "FLOP", "op", "elements", "calls", "operators", "breaks"}
    rates = {"samples/s", "units/s", "tokens/s", "FLOP/s", "ratio", "abs", "kernels"}
    assert info.unit in {"s", "B", "J", "W", "bit", "nat"} | counts | rates
    assert info.better in ("lower", "higher", None)


# What is selected

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
SOURCES = {
    "my_metrics_of_a_test": MINE,
    "broken_metrics_of_a_test": "1 / 0\n",
    "unregistered_metrics_of_a_test": (
        'import sweeprof\n@sweeprof.metric(name="a", unit="b", better=None)\ndef x(weather): ...\n'
    ),
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Modules of a user; the name of the one that is right."""
    for name, source in SOURCES.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return "my_metrics_of_a_test"


def problems(*entries: Any) -> tuple[Problem, ...]:
    with pytest.raises(UserError) as raised:
        select(entries)
    return raised.value.problems


def test_built_in_metrics_in_the_order_of_the_set() -> None:
    chosen = select(["quality/accuracy", "params/total"])
    assert [(s.metric.info.name, s.options) for s in chosen] == [("quality/accuracy", {}), ("params/total", {})]
    names = list(builtin_metrics())
    assert len(names) > 13
    assert [s.metric.info.name for s in select(names)] == names


def test_an_unknown_metric_names_the_nearest() -> None:
    (problem,) = problems("params/totl")
    assert (problem.key, problem.value, problem.nearest) == ("metrics.select", "params/totl", "params/total")
    message = str(problem)
    assert "is not a metric. Known: " in problem.allowed
    assert message.index("Did you mean 'params/total'?") < message.index("Known: ")
    assert len(message) < 300
    assert "params/trainable, " in message  # one of those most alike
    assert message.endswith(" more.")


def test_a_part_of_a_name_names_the_metrics_that_have_it() -> None:
    (part,) = problems("macs")
    assert (part.nearest, part.allowed) == ("compute/macs", "is not a metric. Known: compute/macs.")
    (family,) = problems("params")
    own = sorted(name for name in builtin_metrics() if name.startswith("params/"))
    assert len(own) > 3
    assert (family.nearest, family.allowed) == (None, f"is not a metric. Known: {', '.join(own)}.")


def test_all_problems_at_once(mine: str) -> None:
    twice = {"_target_": f"{mine}.total"}
    found = problems("params/totl", "params/total", twice, {"_target_": "nowhere.at_all"})
    assert [p.value for p in found] == ["params/totl", "params/total", "nowhere.at_all"]
    assert found[1].allowed == problems("params/total", "params/total")[0].allowed == "is selected twice."


def test_a_users_metric_with_its_options_may_replace_one_that_is_not_selected(mine: str) -> None:
    bits, total = select([{"_target_": f"{mine}.bits", "width": 8}, {"_target_": f"{mine}.total"}])
    assert (bits.metric.info.name, bits.options) == ("mine/bits", {"width": 8})
    assert total.metric.info.definition == "Another total."
    (problem,) = problems({"_target_": f"{mine}.bits", "widht": 8})
    assert (problem.key, problem.value, problem.nearest) == (f"metrics.select {mine}.bits", "widht", "width")
    assert problem.allowed == "is not an option. Known: width."


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        ("no_such_module.x", "cannot be imported: "),
        ("sweeprof.metrics.compute.absent", "cannot be imported: "),
        ("x", "cannot be imported: "),
        ("", "cannot be imported: "),
        ("my_metrics_of_a_test.plain", "is not decorated by @sweeprof.metric."),
        ("broken_metrics_of_a_test.x", "division by zero"),
        ("unregistered_metrics_of_a_test.x", "reads 'weather', which nothing provides"),
    ],
)
def test_a_target_that_is_no_metric(mine: str, target: str, allowed: str) -> None:
    (problem,) = problems({"_target_": target})
    assert problem.value == target
    assert allowed in problem.allowed


@pytest.mark.parametrize(
    ("names", "passes"),
    [
        (["params/total"], ["analysis"]),
        (["quality/agreement"], ["quality"]),
        (["latency/forward", "compute/macs"], ["analysis", "timing"]),
        (
            ["quality/accuracy", "memory/rss_peak_bytes", "latency/per_sample", "params/frozen"],
            ["analysis", "timing", "memory", "quality"],
        ),
        ([], []),
    ],
)
def test_passes_in_the_order_they_run(names: list[str], passes: list[str]) -> None:
    assert passes_of(names) == passes


def test_a_set_may_say_what_a_step_is() -> None:
    assert (mode_of("training"), mode_of("layers"), mode_of("compute/macs")) == ("training", None, None)
    assert metric_set("training") == metric_set("training", "training")
    assert metric_set("layers", "training") == metric_set("layers", "inference")
    message = "metrics: 'training' is measured with mode=\"training\": make the profiler with it"
    with pytest.raises(UserError, match=message):
        metric_set("training", "inference")
    with pytest.raises(UserError, match="Did you mean 'training'"):
        mode_of("trainin")
