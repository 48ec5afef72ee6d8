"""Hooks of MkDocs: pages from the top of the repository, and lists that are generated from the code when the site is built.

A line ``<!-- generated: NAME -->`` of a page is replaced by the list NAME of :data:`GENERATED`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from runpy import run_path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from sweeprof.cli.common import COMMANDS, command_parser
from sweeprof.cli.run import help_text
from sweeprof.metrics.metric import builtin_metrics

ROOT = Path(__file__).parents[1]
TOP_PAGES = {"index.md": "README.md", **{name: name for name in ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")}}
"""Pages of the site that are files at the top of the repository."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of :data:`TOP_PAGES`; their links to ``docs/`` become links within it."""
    for page, name in TOP_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=re.sub(r"(\]\(|src=\")docs/", r"\1", text)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Insert the generated lists, and point links to files at the top of the repository to their pages."""
    for page_name, name in TOP_PAGES.items():
        markdown = re.sub(rf"(?<=\]\()((?:\.\./)*)\.\./{name}", rf"\1{page_name}", markdown)
    return re.sub(r"^<!-- generated: (\w+) -->$", lambda found: "\n".join(GENERATED[found[1]]()), markdown, flags=re.M)


def command_line() -> Iterator[str]:
    """Return ``--help`` of the command and of each subcommand."""
    yield from ("```text", help_text().rstrip(), "```", "")
    for name in COMMANDS:
        yield from (f"## sweeprof {name}", "", "```text", command_parser(name).format_help().rstrip(), "```", "")


def metric_table() -> Iterator[str]:
    """Return a table of the built-in metrics for each of their families."""
    family = ""
    for name, metric in sorted(builtin_metrics().items()):
        if family != name.partition("/")[0]:
            family = name.partition("/")[0]
            yield from ("", f"### {family}", "")
            yield from ("| metric | unit | better | definition | passes | options |", "|---|---|---|---|---|---|")
        passes = ", ".join(sorted(metric.passes))
        options = ", ".join(f"`{option}`" for option in metric.options)
        cells = (f"`{name}`", metric.info.unit, metric.info.better or "", metric.info.definition, passes, options)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


GENERATED: dict[str, Callable[[], Iterator[str]]] = {
    "command_line": command_line,
    "metrics": metric_table,
    "features": run_path(str(ROOT / "docs" / "feature_table.py"))["table"],
}
