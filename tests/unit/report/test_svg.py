"""Pictures as SVG: whole, harmless, and the same whatever matplotlib was told elsewhere."""

from __future__ import annotations

from xml.etree import ElementTree

import matplotlib as mpl

from support.odd import renamed
from support.samples import comparison
from sweeprof.report.images import png, svg
from sweeprof.report.plots import plots

SHAPES = {"svg", "metadata", "defs", "style", "g", "path", "use", "clipPath", "rect"}


def test_it_has_shapes_and_nothing_that_runs_or_loads() -> None:
    odd = renamed("--><script>alert(1)</script>", "]]>&\"'", "$\\frac{1}{0}$")
    for plot in plots(odd)[::2]:
        tree = ElementTree.fromstring(svg(plot))
        drawing = [one for one in tree.iter() if one.tag.startswith("{http://www.w3.org/2000/svg}")]
        assert {one.tag.partition("}")[2] for one in drawing} <= SHAPES
        names = {name for one in tree.iter() for name in one.attrib}
        assert not [name for name in names if name.startswith("on")]
        links = {value for one in tree.iter() for name, value in one.attrib.items() if name.endswith("}href")}
        assert all(link.startswith("#") for link in links)


def test_what_matplotlib_was_told_elsewhere_changes_nothing() -> None:
    plot = plots(comparison())[2]
    before = (png(plot), svg(plot))
    with mpl.rc_context({"font.size": 30.0, "axes.facecolor": "red", "svg.fonttype": "none"}):
        assert (png(plot), svg(plot)) == before
        assert mpl.rcParams["font.size"] == 30.0


def test_nothing_says_when_or_by_what_it_was_made() -> None:
    drawn = svg(plots(comparison())[2]).decode()
    assert "dc:date" not in drawn
    assert "atplotlib v" not in drawn
    assert b"Software" not in png(plots(comparison())[2])
