"""The HTML report as text; tests/end_to_end opens it in a browser."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest

from support.odd import LONG, build, hostile, with_cells
from support.samples import comparison
from sweeprof.report.html import html
from sweeprof.report.plots import plots
from sweeprof.results.compare import Comparison


class Outline(HTMLParser):
    """Elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def test_nothing_is_fetched() -> None:
    outline = Outline(html(comparison(), plots(comparison())))
    linking = [(tag, a) for tag, a in outline.elements if {"src", "href", "action", "srcset"} & set(a)]
    assert {tag for tag, _ in linking} == {"a"}
    assert all((a["href"] or "").startswith("#") for _, a in linking)


def test_names_are_inert() -> None:
    page = html(hostile(), [])
    tags = [tag for tag, _ in Outline(page).elements]
    assert "img" not in tags
    assert tags.count("script") == 1
    assert "alert(1)" in page
    assert LONG in page


def test_the_figures_are_json_without_markup() -> None:
    page = html(hostile(), plots(hostile()))
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    assert not set("<>&") & set(found[1])
    figures = json.loads(found[1])
    assert [figure["key"] for figure in figures] == ["latency", "throughput", "accuracy"]
    assert figures[0]["data"][0]["name"].startswith("&lt;script&gt;")


def test_a_verdict_stands_outside_its_interval() -> None:
    called = with_cells(comparison(), "latency/forward", ratio=0.5, ratio_interval=(0.4, 0.6), verdict="better")
    assert '>×0.50 <span class="interval">[0.40–0.60]</span> better</td>' in html(called, [])


def test_every_link_has_its_row() -> None:
    outline = Outline(html(comparison(), []))
    ids = [a["id"] for _, a in outline.elements if "id" in a]
    links = [(a["href"] or "")[1:] for tag, a in outline.elements if tag == "a"]
    assert len(ids) == len(set(ids))
    assert len(links) == 18
    assert set(links) <= set(ids)


def test_the_report_holds_what_is_needed_to_repeat_it() -> None:
    sample = comparison()
    page = html(sample, [])
    assert all(f'<pre tabindex="0">{row.command}</pre>' in page for row in sample.rows)
    assert "killed by SIGKILL" in page
    assert "p99 not given: n&lt;299" in page
    assert "torch</dt><dd>2.13.0+cpu" in page
    assert "Largest absolute difference of the outputs to the baseline&#39;s." in page


def test_without_plots_it_is_small() -> None:
    assert len(html(comparison(), [])) < 150_000


@pytest.mark.parametrize(
    "sample",
    [
        dataclasses.replace(comparison(), rows=()),
        dataclasses.replace(
            comparison(), rows=comparison().rows[:1], environment={}, excluded=(), command="", created="now"
        ),
        build([{"n": 1}, {"n": 2}], {"speed/walk": ("furlongs", None)}, [{"speed/walk": 12.25}, {}]),
    ],
    ids=["no rows", "one row", "own metric"],
)
def test_unusual_sweeps_have_a_report(sample: Comparison) -> None:
    page = html(sample, plots(sample))
    assert page.startswith("<!doctype html>")
    assert "Undefined" not in page
