"""Lines as JSON and back."""

from __future__ import annotations

import json
from dataclasses import replace

from sweeprof.results.observations import FunctionLines, Line, Lines

LINES = Lines(
    (
        FunctionLines(
            "net.Net.forward", "/net.py", 3, (Line(3, "def forward(x):", 0, 0.0, 0, 0), Line(4, "…", 2, 0.5, 8, None))
        ),
    ),
    steps=2,
    memory_reason="why",
    device="cuda:0",
    files={"lines_time.txt": b"text"},
)


def test_a_record_holds_everything_but_the_files() -> None:
    data = json.loads(json.dumps(LINES.to_dict()))
    assert "files" not in data
    assert Lines.from_dict(data) == replace(LINES, files={})


def test_a_function_sums_its_lines() -> None:
    (function,) = LINES.functions
    assert function.seconds == 0.5
    assert function.is_called
    assert not replace(function, lines=function.lines[:1]).is_called
