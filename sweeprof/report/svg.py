"""A picture as SVG: the one of ``png.py``, for paper and for any size of screen."""

from __future__ import annotations

from sweeprof.report.figure import Picture
from sweeprof.report.pictures.canvas import house_style, svg_bytes
from sweeprof.report.png import drawn


def svg(picture: Picture) -> bytes:
    """The picture on white, without script, links or fonts from elsewhere: letters are outlines, with their text as comments."""
    with house_style():
        return svg_bytes(drawn(picture)[0])
