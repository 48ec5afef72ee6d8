"""A report in a real browser, with everything that the browser has to say about it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

CHROMIUM = shutil.which("chromium")
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
SETTLED = """() => [...document.querySelectorAll(".plot[aria-busy]")].every((plot) => {
  const { top, bottom, height } = plot.getBoundingClientRect();
  return !height || top > innerHeight + 300 || bottom < -300;
})"""
"""Whatever is drawn where the reader looks, or near it, is drawn."""
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: make browser")


_VIEWPORT: Any = {"width": 1280, "height": 720}
_TIMEOUT_MS = 30_000
_free: WeakKeyDictionary[Browser, list[Page]] = WeakKeyDictionary()
"""Pages that a test has left: one keeps its compiled scripts for what it shows next at the same address. Plotly's take seconds."""


def wait_until(page: Page, condition: str, arg: object = None) -> None:
    """Wait until the JavaScript expression or function is true in the page.

    Playwright's ``wait_for_function`` evaluates its text inside the page, which the report's content security policy forbids.
    """
    deadline = time.monotonic() + _TIMEOUT_MS / 1000
    while not page.evaluate(condition, arg):
        assert time.monotonic() < deadline, f"not true within {_TIMEOUT_MS / 1000:.0f} s: {condition}"
        page.wait_for_timeout(20)


class Visit:
    """An open report with everything that the browser reported about it."""

    def __init__(self, page: Page, path: Path, fragment: str = "") -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._heard = {
            "request": lambda request: self.requests.append(request.url),
            "console": lambda message: self.complaints.append(f"{message.type}: {message.text}"),
            "pageerror": lambda error: self.complaints.append(str(error)),
            "dialog": self._dialog,
        }
        for event, note in self._heard.items():
            page.on(event, note)  # type: ignore[call-overload]
        page.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
        page.goto(path.as_uri() + fragment)
        wait_until(page, SETTLED)  # a plot that is drawn while something is clicked moves it

    def leave(self) -> None:
        """Give the page back for others."""
        for event, note in self._heard.items():
            self.page.remove_listener(event, note)
        self.page.unroute_all()
        self.page.goto("about:blank")
        browser = self.page.context.browser
        assert browser is not None
        _free.setdefault(browser, []).append(self.page)

    def _dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()


def opened(
    browser: Browser,
    html: str,
    fragment: str = "",
    viewport: Any = None,
    color_scheme: Literal["light", "dark"] = "light",
) -> Visit:
    """The page of that text, opened from a file; leave it afterwards."""
    path = Path(tempfile.gettempdir()) / f"sweeprof-report-{os.getpid()}.html"
    path.write_text(html, encoding="utf-8")
    free = _free.setdefault(browser, [])
    page = free.pop() if free else browser.new_page()
    page.set_viewport_size(viewport or _VIEWPORT)
    page.emulate_media(color_scheme=color_scheme, media="null")
    page.set_default_timeout(_TIMEOUT_MS)
    try:
        return Visit(page, path, fragment)
    finally:
        path.unlink()
