"""Registration: what a metric may read, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import sweeprof
from sweeprof.metrics import metric as metrics_module
from sweeprof.metrics.evaluate import measured
from sweeprof.metrics.metric import Metric, Selected, builtin_metrics, declared, known_parameters, metric
from sweeprof.passes.registry import parameters
from sweeprof.results.layers import LayerTable

declare = metric(name="mine/x", unit="ratio", better="higher")


@pytest.fixture(autouse=True)
def declarations() -> Iterator[None]:
    """What a test declares is forgotten after it."""
    builtin_metrics()
    before = dict(metrics_module._DECLARED)
    yield
    metrics_module._DECLARED.clear()
    metrics_module._DECLARED.update(before)


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
    assert found.reads == ("batch_size", "layers")
    assert found.options == ("factor",)
    assert found.passes == {"analysis"}
    assert found({"batch_size": 3, "layers": "ab", "timing": None}) == 12
    assert found({"batch_size": 3, "layers": "ab"}, factor=0.5) == 3


def test_a_metric_may_read_nothing() -> None:
    @declare
    def found() -> int:
        return 7

    assert found.passes == frozenset()
    assert found.info.definition == ""
    assert found({}) == 7


def test_variable_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"metric 'mine/x' takes \*things: name each thing it reads \(layers, "):

        @declare
        def found(*things: Any) -> int:
            return 0


def test_variable_keywords_are_refused() -> None:
    with pytest.raises(TypeError, match=r"metric 'mine/x' takes \*things: name each thing"):

        @declare
        def found(layers: Any, **things: Any) -> int:
            return 0


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(TypeError, match=r"reads 'weather', which nothing provides. Known: layers, .* needs a default"):

        @declare
        def found(layers: Any, weather: Any) -> int:
            return 0


@pytest.mark.parametrize("parameter", known_parameters())
def test_every_parameter_of_a_pass_can_be_read(parameter: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def found({parameter}): return 1", names)
    made = declare(names["found"])
    assert made.passes == ({parameters()[parameter][0].name} if parameter != "batch_size" else set())


def test_keyword_only_parameters_are_resolved_too() -> None:
    @declare
    def found(*, batch_size: int, factor: int = 2) -> int:
        return batch_size * factor

    assert (found.reads, found.options) == (("batch_size",), ("factor",))
    assert found({"batch_size": 4}) == 8


def test_positional_only_parameters_are_refused() -> None:
    """A metric is called with names."""
    with pytest.raises(TypeError, match="takes 'batch_size' by position"):

        @declare
        def found(batch_size: int, /) -> int:
            return batch_size


@pytest.mark.parametrize("name", ["compute_macs", "compute.macs", "compute macs"])
def test_a_name_that_reads_like_that_of_another_metric_is_refused(name: str) -> None:
    """Or whatever reads ``compute_macs`` would be given this one."""
    with pytest.raises(
        ValueError, match=rf"cannot be called '{name}': .* the metric 'compute/macs' would be compute_macs"
    ):

        @metric(name=name, unit="MAC", better="lower")
        def compute_macs(layers: Any) -> int:
            return 0

    assert declared()["compute_macs"] is builtin_metrics()["compute/macs"]


def test_two_metrics_of_ones_own_must_not_read_alike_either() -> None:
    def first(batch_size: int) -> int:
        return batch_size

    def second(batch_size: int) -> int:
        return -batch_size

    metric(name="mine/a_b", unit="", better=None)(first)
    with pytest.raises(ValueError, match="both it and the metric 'mine/a_b' would be mine_a_b"):
        metric(name="mine_a/b", unit="", better=None)(second)
    renamed = metric(name="mine_a/b", unit="", better=None)(first)  # as when a cell of a notebook is run again
    assert declared()["mine_a_b"] is renamed


@pytest.mark.parametrize("is_selected", [False, True])
def test_a_built_in_metric_keeps_its_readers_unless_another_is_selected(is_selected: bool) -> None:
    @metric(name="params/total", unit="params", better="lower")
    def total(batch_size: int) -> int:
        return 7

    @declare
    def found(params_total: int) -> int:
        return params_total

    selected = [Selected(found), *([Selected(total)] if is_selected else [])]
    values = {"layers": LayerTable(()), "weights": LayerTable(()), "batch_size": 1}
    assert measured(selected, values)["mine/x"].value == (7 if is_selected else 0)


def test_the_public_name_is_this_decorator() -> None:
    assert sweeprof.metric is metric
    assert sweeprof.Metric is Metric


@pytest.mark.parametrize("name", sorted(builtin_metrics()))
def test_every_built_in_metric_declares_itself(name: str) -> None:
    info = builtin_metrics()[name].info
    assert info.name == name
    assert info.definition.endswith(".")
    counts, rates = (
        {"params", "MAC", "FLOP", "op", "elements", "calls", "operators"},
        {"samples/s", "units/s", "tokens/s", "FLOP/s", "ratio", "abs", "kernels"},
    )
    assert info.unit in {"s", "B", "J", "W", "bit", "nat"} | counts | rates
    assert info.better in ("lower", "higher", None)
