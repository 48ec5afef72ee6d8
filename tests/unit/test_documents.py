"""The documents at the top of the repository: their links lead somewhere, and they are in the source package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_to_files_lead_to_files_of_the_source_package(document: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packaged = [ROOT / name for name in settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]]
    for target in re.findall(r"\]\(([^)\s#]+)", document.read_text(encoding="utf-8")):
        if "://" in target or "…" in target:
            continue
        found = (document.parent / target).resolve()
        assert found.exists(), target
        assert any(found.is_relative_to(one) for one in packaged), f"{target} is not in the source package"


def test_the_readme_names_where_vulnerabilities_are_reported() -> None:
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == [
        "Code by design",
        "Data",
        "Other users of the same machine",
        "What leaves the machine",
        "Reporting a vulnerability",
    ]
