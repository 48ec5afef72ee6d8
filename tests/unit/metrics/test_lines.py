"""The numbers of a line profile."""

from __future__ import annotations

from dataclasses import replace

from sweeprof.metrics.evaluate import measured
from sweeprof.metrics.select import metric_set, passes_of, select
from sweeprof.results.lines import FunctionLines, Line, Lines
from sweeprof.results.measurement import Measurement

INNER = FunctionLines("net.inner", "/a/inner.py", 1, (Line(2, "    x * 2", 4, 1.0, 100, 0), Line(3, "y", 4, 3.0, 0, 0)))
OUTER = FunctionLines("net.outer", "/a/outer.py", 5, (Line(6, "  inner(x)", 2, 4.5, 90, 9), Line(7, "z", 2, 0.5, 9, 9)))
NEVER = FunctionLines("net.never", "/a/never.py", 1, (Line(2, "x", 0, 0.0, 0, 0),))
LINES = Lines((INNER, OUTER, NEVER), steps=2)


def metrics_of(lines: Lines) -> dict[str, Measurement]:
    return measured(select(metric_set("lines")), {"lines": lines})


def test_the_set_needs_the_lines_pass_alone() -> None:
    assert passes_of(select(metric_set("lines"))) == ["lines"]


def test_the_slowest_line_is_found_over_all_functions() -> None:
    share = metrics_of(LINES)["lines/slowest_share"]
    assert share.value == 4.5 / 5.0
    assert share.detail == {"line": "outer.py:6 inner(x)"}


def test_the_line_that_allocates_most_is_found() -> None:
    largest = metrics_of(LINES)["lines/largest_bytes"]
    assert (largest.value, largest.unit) == (100, "B")
    assert largest.detail == {"line": "inner.py:2 x * 2"}


def test_without_memory_there_is_a_reason() -> None:
    found = metrics_of(replace(LINES, memory_reason="memray: no"))
    assert found["lines/largest_bytes"].value is None
    assert found["lines/largest_bytes"].reason == "memray: no"
    assert found["lines/slowest_share"].value is not None


def test_lines_that_allocate_nothing_have_no_bytes() -> None:
    lines = tuple(replace(line, allocated_bytes=0) for line in INNER.lines)
    largest = metrics_of(Lines((replace(INNER, lines=lines),), 2))["lines/largest_bytes"]
    assert (largest.value, largest.detail) == (0, {})


def test_a_function_that_was_not_called_has_no_figures() -> None:
    for found in metrics_of(Lines((NEVER,), 2)).values():
        assert found.value is None
        assert found.reason == "no step called a function that was watched"
