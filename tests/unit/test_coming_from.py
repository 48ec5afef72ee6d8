"""The pages for users of other profilers: our code runs and prints what is written, and needs no more lines."""

from __future__ import annotations

import ast
import re
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import sweeprof
from sweeprof.metrics.metric import builtin_metrics
from sweeprof.profiling.layers import Layers

PAGES = sorted((Path(__file__).parents[2] / "docs" / "coming-from").glob("*.md"))
BLOCK = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
MEASURED = re.compile(
    r"\b[\d.,]+(?:e[+-]?\d+)?[ \u202f]?(?:n|µ|u|m)?s\b"  # durations
    r"|\b[\d.]+ [kKMGT]?FLOP/s"  # rates
    r"|\b\d+\.\d{5,}(?:e-\d+)?|\b\d(?:\.\d+)?e-\d+"  # floating-point numbers as Python prints them
)
VARIES = re.compile(r"^(?:Times are|The forward takes|Every (?:forward|backward)|samples/s)")
"""Lines about the measurement itself."""


@dataclass(frozen=True)
class Block:
    """A block of code or output with a title."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text(encoding="utf-8"))]


def lines_of_code(code: str) -> int:
    """Lines that are neither empty nor comments."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in code.splitlines())


def masked(text: str) -> list[str]:
    """Lines up to their first duration or rate, without the rules and spaces of columns, whose width depends on what follows."""
    lines = []
    for line in text.strip().splitlines():
        if not VARIES.match(line):
            before, measured, _ = MEASURED.sub("·", line).partition("·")
            order = re.sub(r"^(\s*(?:forward|backward)): \w+ $", r"\1: ", before)  # the slowest module of a level
            lines.append(re.sub(r"[\s─]+", " ", order + measured).strip())
    return lines


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measurements are short, and files are written to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "sweeprof.profiling.profiler.Protocol", partial(sweeprof.Protocol, min_s=0.01, warmup_s=0.01, min_samples=3)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_our_code_prints_what_is_written(page: Path, request: pytest.FixtureRequest) -> None:
    names: dict[str, Any] = {"__name__": "my_script"}
    printed, outputs = StringIO(), list[str]()
    for block in blocks(page):
        if block.language == "python" and block.title in ("Model and data", "sweeprof"):
            with redirect_stdout(printed):
                exec(block.text, names)
        if block.title == "sweeprof prints":
            outputs.append("".join(f"{line.rstrip()}\n" for line in printed.getvalue().strip("\n").splitlines()))
            printed = StringIO()
            if not request.config.getoption("--overwrite"):
                assert masked(block.text) == masked(outputs[-1]), "pytest --overwrite accepts it"
    assert outputs
    if request.config.getoption("--overwrite"):
        written = iter(outputs)
        text = page.read_text(encoding="utf-8")
        pattern = r'^(```text title="sweeprof prints"\n).*?^```$'
        page.write_text(
            re.sub(pattern, lambda found: f"{found[1]}{next(written)}```", text, flags=re.MULTILINE | re.DOTALL),
            encoding="utf-8",
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_nobody_needs_more_lines_than_with_the_original(page: Path) -> None:
    pairs = []
    for original, ours in zip(blocks(page), blocks(page)[1:], strict=False):
        if original.title == page.stem and ours.title == "sweeprof":
            for code in (original.text, ours.text):
                ast.parse(code)
            pairs.append((lines_of_code(original.text), lines_of_code(ours.text)))
    assert pairs
    assert all(ours <= original for original, ours in pairs)
    text = page.read_text(encoding="utf-8")
    written = re.findall(r"^Lines of code: (\d+) with .*, (\d+) with sweeprof\.$", text, re.MULTILINE)
    assert [(int(original), int(ours)) for original, ours in written] == pairs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_metrics_and_names_that_a_page_mentions_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = builtin_metrics()
    families = "|".join({name.partition("/")[0] for name in known})
    mentioned = re.findall(rf"`((?:{families})/\w+)`", text)
    assert mentioned or page.stem == "nnprofiler"
    assert set(mentioned) <= {*known, "quality/eval"}  # the default name of an evaluation
    for owner, kind in (("layers", Layers), ("profiler", sweeprof.Profiler), ("sweeprof", sweeprof)):
        for name in re.findall(rf"\b{owner}\.(\w+)", text.partition("## Where to find the rest")[2]):
            assert hasattr(kind, name), f"{owner}.{name}"


def test_every_replaced_tool_has_a_page_in_the_navigation() -> None:
    assert [page.stem for page in PAGES] == [
        "deeplite-profiler",
        "flops-profiler",
        "moduleprofiler",
        "nnprofiler",
        "torchinfo",
    ]
    navigation = (PAGES[0].parents[2] / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f"coming-from/{page.name}" in navigation for page in PAGES)
