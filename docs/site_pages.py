"""Hooks of MkDocs: pages from outside ``docs/``, and the marks of experimental names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from sweeprof import _EXPERIMENTAL

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
    """Mark experimental names, and point links to files outside ``docs/`` to their pages."""
    for page_name, name in OUTSIDE_PAGES.items():
        markdown = re.sub(rf"(?<=\]\()((?:\.\./)*)\.\./{name}", rf"\1{page_name}", markdown)
    for name in _EXPERIMENTAL:
        markdown = re.sub(rf"^::: sweeprof\.{name}$", rf"\g<0>\n\n{EXPERIMENTAL_NOTE}", markdown, flags=re.M)
    return markdown
