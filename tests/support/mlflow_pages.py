"""MLflow's pages in Chromium, read as they are seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from support.browser import ARGUMENTS, CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Columns, rows and charts are made only where they are seen: everything is to fit.
VIEWPORT: Any = {"width": 2600, "height": 2600}
WAIT_MS = 90_000
HEADLINES = ["latency/forward_ms", "memory/added_mib", "throughput/samples_per_s", "quality/accuracy"]
COLUMNS = [HEADLINES[0], "vs_baseline/latency", "verdict", *HEADLINES[1:]]
"""Of a sweep's table, as far as its axes."""
FIRST_VISIT: Any = {"width": 1440, "height": 900}
_ROWS = ".ag-pinned-left-cols-container .ag-row"


@contextmanager
def mlflow_page() -> Iterator[Page]:
    """A page that has asked nobody but viewers on this machine, when all is over."""
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            found = browser.new_page(viewport=VIEWPORT)
            found.add_init_script("localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false')")
            found.on("request", lambda request: asked.append(request.url))
            yield found
        finally:
            browser.close()
    elsewhere = [url for url in asked if not url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:"))]
    assert asked
    assert elsewhere == []


@contextmanager
def first_visit(page: Page) -> Iterator[Page]:
    """A page as a new user has it, in the browser of another page: with MLflow's assistant beside it."""
    assert page.context.browser is not None
    context = page.context.browser.new_context(viewport=FIRST_VISIT)
    try:
        yield context.new_page()
    finally:
        context.close()


def opened(page: Page, address: str, size: Any = None) -> None:
    """Show an address."""
    # Within one page a new address after the # loads nothing anew.
    page.goto("about:blank")
    page.set_viewport_size(size or VIEWPORT)
    page.goto(address)


def opened_view(page: Page, address: str, rows: int) -> None:
    """Show a view of an experiment, and wait for its runs."""
    opened(page, address)
    page.get_by_text(f"{rows} matching runs").wait_for(timeout=WAIT_MS)


def run_table(page: Page, rows: int) -> tuple[list[str], list[str]]:
    """Names of runs and of columns, as they are seen."""
    page.locator(_ROWS).nth(rows - 1).wait_for(timeout=WAIT_MS)
    page.locator(".ag-header-cell", has_text="batch_size").wait_for(timeout=WAIT_MS)
    return _in_order(page, f"{_ROWS} a", "top"), _in_order(page, ".ag-header-cell", "left")


def charts(page: Page, count: int) -> list[list[list[Any]]]:
    """Kind and number of points of each trace of each plot, once so many plots are there."""
    page.locator(".js-plotly-plot").nth(count - 1).wait_for(timeout=WAIT_MS)
    script = "all => all.map(plot => plot.data.map(trace => [trace.type, trace.x.length]))"
    found: list[list[list[Any]]] = page.locator(".js-plotly-plot").evaluate_all(script)
    return found


def visible_texts(page: Page, selector: str) -> list[str]:
    """Texts of the elements that are seen completely, neither cut off nor covered, without scrolling."""
    script = """all => all.filter(element => {
        const text = document.createRange();
        text.selectNodeContents(element);
        const box = text.getBoundingClientRect();
        const ends = [[box.left + 1, box.top + box.height / 2], [box.right - 1, box.top + box.height / 2]];
        return box.width > 0 && ends.every(([x, y]) => element.contains(document.elementFromPoint(x, y)));
    }).map(element => element.innerText.trim())"""
    found: list[str] = page.locator(selector).evaluate_all(script)
    return found


def _in_order(page: Page, selector: str, side: str) -> list[str]:
    """The first line of each element, by place: that in the document says nothing in these grids."""
    script = f"""all => all
        .map(element => [element.getBoundingClientRect().{side}, element.innerText.trim().split('\\n')[0]])
        .sort((a, b) => a[0] - b[0]).map(pair => pair[1].trim()).filter(Boolean)"""
    found: list[str] = page.locator(selector).evaluate_all(script)
    return found
