"""The comment for a pull request: the verdict first, short enough, and no name in it does anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from markdown_it import MarkdownIt

from support.odd import LONG, SCRIPT, hostile, renamed, with_cells
from support.samples import comparison
from sweeprof.report.changes import pull_request
from sweeprof.report.markdown import Comment, sanitised
from sweeprof.results.compared_rows import Comparison, set_against

Golden = Callable[[str, str], None]
LIMIT = 65_536


def test_it_is_as_agreed(golden: Golden) -> None:
    golden("pull_request.md", pull_request(comparison()))


def test_the_verdict_comes_first_and_what_got_worse_next() -> None:
    shown = pull_request(worse())
    assert shown.startswith("### quickstart: 14 worse, 21 same – 16 of 18 combinations measured")
    open_part = shown[: shown.index("<details>")]
    assert (
        "| model=mlp, backend=tensorflow, batch_size=8 | latency | 142 µs | 271 µs | ×1.90 [1.85–1.95] worse |"
        in open_part
    )
    assert (
        "| model=lenet5, backend=tensorflow, batch_size=64 | crashed | timing: killed by SIGKILL (signal 9) |"
        in open_part
    )


def worse() -> Comparison:
    """The quickstart with every latency called worse."""
    rows = []
    for row in comparison().rows:
        cell = row.cells["latency/forward"]
        if cell.ratio is not None:
            cell = dataclasses.replace(cell, ratio_interval=(1.85, 1.95), verdict="worse", verdict_reason=None)
        rows.append(dataclasses.replace(row, cells={**row.cells, "latency/forward": cell}))
    return dataclasses.replace(comparison(), rows=tuple(rows))


def test_the_worst_is_first() -> None:
    sample = worse()
    rows = list(sample.rows)
    place = next(i for i, row in enumerate(rows) if row.axes == {**row.axes, "model": "mlp", "backend": "tensorflow"})
    cell = dataclasses.replace(rows[place].cells["latency/forward"], ratio=7.0)
    rows[place] = dataclasses.replace(rows[place], cells={**rows[place].cells, "latency/forward": cell})
    shown = pull_request(dataclasses.replace(sample, rows=tuple(rows)))
    first = shown[shown.index("**Worse") :].splitlines()[4]
    assert "×7.00" in first


@pytest.mark.parametrize("count", [18, 990, pytest.param(9000, marks=pytest.mark.slow)])
def test_it_fits_whatever_the_sweep(count: int) -> None:
    shown = pull_request(repeated(worse(), count // 18))
    assert len(shown) < LIMIT
    assert f"of {count} combinations measured" in shown
    assert shown.count("<details>") == shown.count("</details>") > 2
    assert ("… and" in shown) == (count > 18)
    assert ("fits here" in shown) == (count > 18)
    assert "How it was measured" in shown


def repeated(of: Comparison, times: int) -> Comparison:
    rows = [
        dataclasses.replace(
            row,
            combination_id=f"{row.combination_id}-{time}",
            baseline_id=f"{row.baseline_id}-{time}" if row.baseline_id else None,
            axes={**row.axes, "seed": time},
        )
        for time in range(times)
        for row in of.rows
    ]
    return dataclasses.replace(of, axes=(*of.axes, "seed"), rows=tuple(rows))


def test_it_fits_whatever_the_names() -> None:
    for name in ("@" * 300, "|" * 300, "<" * 300, "💥" * 300, LONG):
        shown = pull_request(repeated(renamed(name, name + "2", name + "3"), 30))
        assert len(shown.encode()) < LIMIT
        assert shown.startswith("### quickstart: ")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("@torvalds", "@&#8203;torvalds"),
        ("see #123 and GH-45", r"see #&#8203;123 and GH&#8203;-45"),
        ("org/repo#1", "org/repo#&#8203;1"),
        ("https://e.org", "https:&#8203;//e.org"),
        ("www.e.org", "www&#8203;.e.org"),
        (":boom:", ":&#8203;boom:"),
        ("$x^2$", "&#36;x^2&#36;"),
        ("a|b\n</details>", r"a\|b &lt;/details&gt;"),
        ("\\@me \\#1", r"\\@&#8203;me \\#&#8203;1"),
        ("timing: killed by SIGKILL (signal 9)", "timing: killed by SIGKILL (signal 9)"),
    ],
)
def test_names_mean_nothing(given: str, shown: str) -> None:
    assert sanitised(given) == shown


class Page(HTMLParser):
    """What a page of rendered Markdown has: its tags, its tables as cells, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.tables: list[list[list[str]]] = []
        self.feed(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text))

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_data(self, data: str) -> None:
        if self.tables and self.tables[-1] and self.tables[-1][-1]:
            self.tables[-1][-1][-1] += data


def test_hostile_names_stay_in_their_cells() -> None:
    shown = pull_request(hostile())
    assert SCRIPT not in shown
    page = Page(shown)
    marks = {"h3", "p", "strong", "ul", "li", "code", "pre", "details", "summary"}
    assert page.tags <= marks | {"table", "thead", "tbody", "tr", "th", "td"}
    assert len(page.tables) == 6
    for table in page.tables:
        assert len({len(row) for row in table}) == 1
    names = {row[0].strip() for row in page.tables[0][1:]}
    assert f"model={SCRIPT}|`*_$ [31m, backend=tensorflow, batch_size=1" in names
    assert 'model="><img src=x onerror=alert(2)>, backend=tensorflow, batch_size=8' in names


def test_of_another_sweep_it_says_what_changed() -> None:
    now, base = comparison(broken=True), comparison(broken=False)
    base = dataclasses.replace(base, name="yesterday", rows=base.rows[:-1], sweep_id="s0")
    lost: Any = dataclasses.replace(now.rows[0].cells["latency/forward"].measurement, value=None, reason="no clock")
    cell = dataclasses.replace(now.rows[0].cells["latency/forward"], measurement=lost)
    first = dataclasses.replace(now.rows[0], cells={**now.rows[0].cells, "latency/forward": cell})
    now = dataclasses.replace(now, rows=(first, *now.rows[1:]))
    shown = pull_request(set_against(now, base, "tag:nightly"))
    assert "Compared with tag:nightly" in shown
    assert "no value: no clock" in shown
    assert "crashed (was ok)" in shown
    assert "- only here: model=digits_resnet, backend=tensorflow, batch_size=64" in shown


def test_a_sweep_without_a_baseline_has_no_verdicts() -> None:
    alone = dataclasses.replace(with_cells(comparison(), "latency/forward", ratio=None), baseline={})
    rows = tuple(dataclasses.replace(row, baseline_id=None, baseline_status=None) for row in alone.rows)
    shown = pull_request(dataclasses.replace(alone, rows=rows))
    assert shown.startswith("### quickstart: 16 of 18 combinations measured; 1 crashed, 1 unsupported\n")
    assert "| worse" not in shown
    assert "**Worse" not in shown


def test_what_does_not_fit_is_counted() -> None:
    comment = Comment("`x.csv`", room=400)
    assert comment.add("a" * 100)
    assert not comment.add("b" * 400)
    assert not comment.table("T", [("a", False), ("n", True)], [("é" * 20, "1")] * 50, 50)
    shown = comment.text()
    assert len(shown.encode()) <= 400
    kept = shown.count("éé |")
    assert kept == shown.count("| 1 |") > 0
    assert f"… and {50 - kept} more in `x.csv`." in shown
    assert "| :-- | --: |" in shown
