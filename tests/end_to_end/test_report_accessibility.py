"""The report has no violations of axe-core's rules in Chromium, in both themes, also where everything is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from support.browser import needs_browser, opened
from support.drawn import drawn
from support.nets import lenet5
from support.samples import comparison
from support.seen import PEAKS, allocations, operators, timed
from sweeprof.report.html import html
from sweeprof.report.pictures.details import Observed, details

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser

NAMES = [f"model=lenet5, backend={backend}, batch_size=8" for backend in ("torch", "tensorflow")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, scheme: Literal["light", "dark"]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    layers = {name: timed(lenet5(8)) for name in NAMES}
    seen = {name: Observed(table, operators(), allocations(), PEAKS) for name, table in layers.items()}
    sample = comparison()
    samples = {row.combination_id: [[1.0, 1.1, 1.2]] for row in sample.rows}
    page = html(sample, True, layers, details(seen, {}), 0, samples)
    report = opened(browser, page, color_scheme=scheme)
    report.page.get_by_role("button", name="not measured – show").click()
    for name in NAMES:
        report.page.get_by_role("button", name=f"details of {name}").click()
    report.page.locator("details:not(.menu)").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    found = axe.Axe().run(report.page)
    assert found.violations_count == 0, found.generate_report()
    report.leave()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_verdicts_and_groups_pass_too(browser: Browser, scheme: Literal["light", "dark"]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    report = opened(browser, html(drawn(1).comparison(), False), "#view&group=backend", color_scheme=scheme)
    found = axe.Axe().run(report.page)
    assert found.violations_count == 0, found.generate_report()
    report.leave()
