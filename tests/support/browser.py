"""A report in a real browser, with everything that the browser has to say about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SETTLED = """() => window.Plotly || !document.getElementById("plotly-packed")
    || [...document.querySelectorAll(".plot")].every((plot) => !plot.hasAttribute("aria-busy"))"""
needs_browser = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser at {CHROMIUM}")


class Visit:
    """An open report with everything that the browser reported about it."""

    def __init__(self, page: Page, path: Path, fragment: str = "") -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dialog)
        page.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
        page.goto(path.as_uri() + fragment)
        page.wait_for_function(SETTLED)  # a plot that is drawn while something is clicked moves it

    def _dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def column(self, place: int) -> list[str]:
        """The texts of one column of the first plain table; a failed row has its reason there."""
        found: list[str] = self.page.locator(f"table.results >> nth=0 >> tbody td:nth-child({place})").all_inner_texts()
        return [text.partition(" [")[0] for text in found]


def opened(browser: Browser, path: Path, html: str, fragment: str = "", **options: Any) -> Visit:
    """The page of that text, written to ``path``; close its ``page`` afterwards."""
    path.write_text(html, encoding="utf-8")
    return Visit(browser.new_page(**options), path, fragment)
