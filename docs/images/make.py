"""Make the pictures of the README from a real run of the quickstart: ``make screenshots`` (two minutes; needs Chromium).

``python docs/images/make.py FOLDER`` uses a sweep that was measured before, and prints its reports again instead of measuring.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from io import BytesIO, StringIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent
COLUMNS = 120
VIEWPORT = {"width": 1440, "height": 900}
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu"]
PROGRESS = re.compile(r"\d+/\d+ .*\d:\d\d:\d\d")
"""The end of a line with a progress bar."""
FIRST_PARTS = 3
"""Parts that the picture shows: answer, best of each case, first table; and at the end the paths."""


def run_in_terminal(cwd: Path, *arguments: str) -> str:
    """Run ``python -m sweeprof ARGUMENTS`` on a terminal of :data:`COLUMNS` columns; return what it prints, with escape codes."""
    output = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 1 << 16)
        output.extend(data)
        return data

    os.environ |= {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "PYTHONPATH": str(IMAGES.parents[1])}
    before = Path.cwd()
    os.chdir(cwd)
    status = pty.spawn([sys.executable, "-m", "sweeprof", *arguments], read)
    os.chdir(before)
    if status:
        sys.exit(f"sweeprof {' '.join(arguments)} failed")
    return output.decode("utf-8", errors="replace")


def draw_terminal(printed: str, command: str, path: Path) -> None:
    """Write the output from the first line of the answer on as SVG."""
    lines = re.sub(r"\x1b\[[0-9;?]*[A-HJKSTfhlnsu]|\r", "", printed).rstrip().split("\n")
    plain = [Text.from_ansi(line).plain.strip() for line in lines]
    first = next(number for number, line in enumerate(plain) if " combinations measured" in line)
    while first and plain[first - 1] and not PROGRESS.search(plain[first - 1]):  # the answer may have several lines
        first -= 1
    end = first
    for _ in range(FIRST_PARTS):
        end = plain.index("", end) + 1
    paths = next(number for number, line in enumerate(plain) if line.startswith("Report "))
    text = "\n".join([f"$ {command}", *lines[first:end], "…", *lines[paths:]])
    console = Console(record=True, width=COLUMNS, file=StringIO())
    console.print(Text.from_ansi(text), soft_wrap=True)
    path.write_text(console.export_svg(title="sweeprof", unique_id="sweeprof"), encoding="utf-8")


def photograph(page: Path, path: Path) -> None:
    """Write the first screen of a report as PNG of 128 colours."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        tab = browser.new_page(viewport=VIEWPORT)
        tab.goto(page.as_uri())
        tab.wait_for_load_state("networkidle")
        tab.wait_for_timeout(2000)  # charts are drawn when they are in view
        screen = Image.open(BytesIO(tab.screenshot()))
        browser.close()
    screen.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Run the quickstart and write both pictures."""
    with tempfile.TemporaryDirectory(prefix="sweeprof-") as name:
        if sys.argv[1:]:
            folder, command = Path(sys.argv[1]).absolute(), "sweeprof report last"
            printed = run_in_terminal(Path(name), "report", str(folder))
        else:
            command = "sweeprof +sweep=quickstart"
            printed = run_in_terminal(Path(name), "+sweep=quickstart").replace(f"{name}/", "")
            (folder,) = Path(name).glob("outputs/quickstart/*")
        draw_terminal(printed, command, IMAGES / "terminal.svg")
        photograph(folder / "report.html", IMAGES / "report.png")
        subprocess.run(["ls", "-l", *sorted(map(str, IMAGES.glob("*.[ps][nv]g")))], check=True)


if __name__ == "__main__":
    main()
