"""Hooks of MkDocs: pages from outside ``docs/``, and lists that are generated from the code when the site is built.

A line ``<!-- generated: NAME -->`` of a page is replaced by the list NAME of :data:`GENERATED`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from runpy import run_path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from sweeprof import _EXPERIMENTAL
from sweeprof.cli.common import COMMANDS, command_parser
from sweeprof.cli.run import help_text
from sweeprof.metrics.metric import builtin_metrics

ROOT = Path(__file__).parents[1]
OUTSIDE_PAGES = {
    "index.md": "README.md",
    "examples.md": "examples/README.md",
    **{name: name for name in ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")},
}
"""Pages of the site that are files outside ``docs/``."""
EXPERIMENTAL_NOTE = "*Experimental: this may change in every minor release ([Stability](stability.md)).*"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of :data:`OUTSIDE_PAGES`; their links to ``docs/`` and to each other become links within the site."""
    for page, name in OUTSIDE_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if page == "examples.md":
            links = re.sub(r"\]\((\w+\.(py|ipynb))\)", r"](#\1)", text)
            text = "\n".join([links, *example_sources()])
        for target, linked in OUTSIDE_PAGES.items():
            text = text.replace(f"]({linked})", f"]({target})")
        files.append(File.generated(config, page, content=re.sub(r"(\]\(|src=\")(\.\./)*docs/", r"\1", text)))
    return files


def example_sources() -> Iterator[str]:
    """Return each example as a section, with what the links of the list to it need."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield from (f'## {path.name} {{ id="{path.name}" }}', "", "```python", path.read_text().rstrip(), "```", "")
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        yield from (f'## {path.name} {{ id="{path.name}" }}', "")
        for cell in json.loads(path.read_text())["cells"]:
            text = "".join(cell["source"])
            yield from (("```python", text, "```", "") if cell["cell_type"] == "code" else (demoted(text), ""))


def demoted(text: str) -> str:
    """Return Markdown with its headings two levels lower."""
    return re.sub(r"^#", "###", text, flags=re.M)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Insert the generated lists, mark experimental names, and point links to files outside ``docs/`` to their pages."""
    for page_name, name in OUTSIDE_PAGES.items():
        markdown = re.sub(rf"(?<=\]\()((?:\.\./)*)\.\./{name}", rf"\1{page_name}", markdown)
    for name in _EXPERIMENTAL:
        markdown = re.sub(rf"^::: sweeprof\.{name}$", rf"\g<0>\n\n{EXPERIMENTAL_NOTE}", markdown, flags=re.M)
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
