"""A comparison as one self-contained HTML file, which asks nothing of the network."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache

from sweeprof.report.explore import Samples, charts, embedded, failures, page_data, places
from sweeprof.report.layers import html as layer_pages
from sweeprof.report.pages import compile_templates, render, script_json
from sweeprof.report.summary import best_rows, environment_items, footnotes, headline, protocol_text, sections
from sweeprof.report.table import whole_table
from sweeprof.results.comparison import Comparison
from sweeprof.results.layers import LayerTable
from sweeprof.results.record import Json
from sweeprof.text import axes_text, axis_text, one_line, shortened

_MOST_VALUES = 12
"""Values of one axis that the header lists."""
_MOST_NAMED = 20
"""Combinations that failed for one reason that the header names."""
MOST_WRITTEN = 200
"""Combinations whose table the page shows without its scripts."""
MOST_FIGURES = 2000
"""Values of all metrics together up to which rows have their further figures and tracebacks."""
_NO_LAYERS: Mapping[str, LayerTable] = {}
_NO_DETAILS: Mapping[str, object] = {}
_NO_SAMPLES: Samples = {}


def html(
    comparison: Comparison,
    plotted: bool = True,
    layers: Mapping[str, LayerTable] = _NO_LAYERS,
    details: Mapping[str, object] = _NO_DETAILS,
    left_out: int = 0,
    samples: Samples = _NO_SAMPLES,
    saved: Sequence[Comparison] = (),
) -> str:
    """The report: about 2 MB where anything is drawn, as it carries the library that draws.

    Args:
        comparison: what was measured.
        plotted: whether there are charts.
        layers: the layer table of every combination that has one, by what the reader is to choose it by.
        details: what :func:`sweeprof.report.pictures.details.details` gives.
        left_out: how many further combinations have their layers and details in files alone.
        samples: raw samples by combination id, see :func:`sweeprof.report.explore.thinned_samples`.
        saved: the same sweep compared with others, which the reader can choose as baselines.
    """
    is_detailed = bool(details.get("combinations"))
    count = len(comparison.rows)
    is_whole = count <= MOST_WRITTEN and count * len(comparison.metrics) <= MOST_FIGURES
    data = page_data(comparison, samples, is_whole, saved)
    shown = charts(data, comparison.pareto) if plotted else {"figures": {}}
    return render(
        "report.html.j2",
        comparison=comparison,
        created=_readable(comparison.created),
        answer=data["baselines"][0],
        headline=headline(comparison),
        protocol=protocol_text(comparison),
        sections=sections(comparison),
        swept=list(_swept(comparison)),
        glance=_glance(comparison),
        places=places(comparison),
        failures=failures(comparison),
        most_named=_MOST_NAMED,
        table=whole_table(comparison) if 0 < count <= MOST_WRITTEN else None,
        footnotes=footnotes(comparison),
        environment=environment_items(comparison),
        charts=shown,
        plotly=_plotly() if shown["figures"] or is_detailed else "",
        layers=script_json(layer_pages.embedded(layers, _axes_by_name(comparison))) if layers else "",
        left_out=left_out,
        data=script_json(embedded(data)),
        details=script_json(details) if is_detailed else "",
    )


def _axes_by_name(comparison: Comparison) -> dict[str, Json]:
    """The axes of every row by the name that its layers and details have."""
    varying = comparison.varying_axes() or comparison.axes
    return {axes_text({a: row.axes[a] for a in varying if a in row.axes}): row.axes for row in comparison.rows}


def _readable(created: str) -> str:
    """``2026-11-21 00:30 UTC``; text that is no date is shown as it is."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return one_line(created)
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".strip()


def _swept(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Every axis with its values."""
    for axis in comparison.axes:
        values = list(dict.fromkeys(axis_text(row.axes[axis]) for row in comparison.rows if axis in row.axes))
        more = f" and {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
        yield axis, ", ".join(shortened(value, 60) for value in values[:_MOST_VALUES]) + more


def _glance(comparison: Comparison) -> dict[str, dict[str, tuple[str, str]]]:
    """Value and place of the best rows by model and by what they are best in."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for best in best_rows(comparison):
        found.setdefault(best.model, {})[best.what] = (best.value, best.where)
    return found


def prepare_html() -> None:
    """Load what the first page would wait for: the templates, and the library that draws."""
    compile_templates()
    _plotly()


@cache  # which takes a tenth of a second, and a sweep that runs writes its page more than once
def _plotly() -> str:
    """Plotly's own file as the page carries it: two fifths of its size; ``drawing.js`` unpacks it."""
    from plotly.offline import get_plotlyjs

    # Level 9 takes twice as long and saves 1 %. No time of making: the same records give the same page.
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), compresslevel=5, mtime=0)).decode()
