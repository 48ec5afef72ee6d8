"""A page that shows any two of several layer tables side by side."""

from __future__ import annotations

from collections.abc import Mapping

from sweeprof.report.layers.embed import embedded
from sweeprof.report.pages import render, script_json
from sweeprof.results.layers import LayerTable


def compare_page(tables: Mapping[str, LayerTable], title: str = "Layers side by side") -> str:
    """A self-contained page; the first two tables are shown, and any two can be chosen."""
    return render("compare_layers.html.j2", title=title, layers=script_json(embedded(tables)))
