"""Registration: what a metric may read, and what it says of itself."""

from __future__ import annotations

from typing import Any

import pytest

import sweeprof
from sweeprof.metrics.metric import SOURCES, Metric, metric
from sweeprof.metrics.select import builtin_metrics

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


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_can_be_read(source: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def found({source}): return 1", names)
    made = declare(names["found"])
    assert made.passes == ({SOURCES[source]} if SOURCES[source] else set())


def test_keyword_only_parameters_are_resolved_too() -> None:
    @declare
    def found(*, batch_size: int, factor: int = 2) -> int:
        return batch_size * factor

    assert (found.reads, found.options) == (("batch_size",), ("factor",))
    assert found({"batch_size": 4}) == 8


def test_positional_only_parameters_are_called_or_refused() -> None:
    """Whatever registers must be callable."""
    try:

        @declare
        def found(batch_size: int, /) -> int:
            return batch_size
    except TypeError:
        return
    assert found({"batch_size": 4}) == 4


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
        {"samples/s", "FLOP/s", "ratio", "abs", "kernels"},
    )
    assert info.unit in {"s", "B", "bit", "nat"} | counts | rates
    assert info.better in ("lower", "higher", None)
