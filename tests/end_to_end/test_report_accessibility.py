"""The report has no violations of axe-core's rules in Chromium, in both themes, also where everything is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.browser import SETTLED, Visit, needs_browser, opened, wait_until
from support.nets import lenet5
from support.samples import comparison, drawn
from support.seen import PEAKS, allocations, operators, timed
from sweeprof.report.html import Observed, details, html

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [needs_browser, pytest.mark.system]

NAMES = [f"model=lenet5, backend={backend}, batch_size=8" for backend in ("torch", "tensorflow")]
OF_COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"], "resultTypes": ["violations"]}


def assert_no_violations(report: Visit) -> None:
    """In the light theme by every rule, then in the dark one, which changes colours only, by those of colours."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(report.page)
    assert found.violations_count == 0, found.generate_report()
    report.page.emulate_media(color_scheme="dark")
    wait_until(report.page, SETTLED)
    found = axe.Axe().run(report.page, options=OF_COLOURS)
    assert any(rule["id"] == "color-contrast" for rule in found.response["passes"])
    assert found.violations_count == 0, found.generate_report()


def test_axe_finds_nothing(browser: Browser) -> None:
    layers = {name: timed(lenet5(8)) for name in NAMES}
    seen = {name: Observed(table, operators(), allocations(), PEAKS) for name, table in layers.items()}
    sample = comparison()
    samples = {row.combination_id: [[1.0, 1.1, 1.2]] for row in sample.rows}
    report = opened(browser, html(sample, True, layers, details(seen, {}), 0, samples))
    report.page.get_by_role("button", name="not measured – show").click()
    for name in NAMES:
        report.page.get_by_role("button", name=f"details of {name}").click()
    report.page.locator("details:not(.menu)").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    assert_no_violations(report)
    report.leave()


def test_verdicts_and_groups_pass_too(browser: Browser) -> None:
    report = opened(browser, html(drawn(1).comparison(), False), "#view&group=backend")
    assert_no_violations(report)
    report.leave()
