"""Values written as overrides, read by Hydra's own parser."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from sweeprof.config.override_syntax import doubled, spelled


def read(value: object) -> object:
    """The value that Hydra reads where ``value`` is written."""
    return OverridesParser.create().parse_override(f"key={spelled(value)}").value()


@pytest.mark.parametrize(
    "text", [r"\d+", r"C:\data", "it's", r"ends with \\", r"\'quoted\'", "a, b", "1e5", "null", ""]
)
def test_hydra_reads_the_text_that_was_written(text: str) -> None:
    assert read(text) == text
    assert read([text, 1]) == [text, 1]
    assert read({"key": text}) == {"key": text}


@given(st.text("a\\' ", max_size=8))
def test_quotes_and_backslashes_survive_in_any_order(text: str) -> None:
    assert read(text) == text


def test_doubling() -> None:
    assert doubled("doubling(1,256)") == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert doubled(" doubling( 3 , 20 ) ") == [3, 6, 12]
    assert doubled("doubling(4,4)") == [4]
    assert doubled("range(1,4)") is None
    for text in ("doubling(0,64)", "doubling(8,4)"):
        with pytest.raises(ValueError, match="has no values"):
            doubled(text)
    for text in ("doubling(1)", "doubling(1,2,3)", "doubling(1.5,4)", "doubling(a,b)", "doubling(-1,4)"):
        with pytest.raises(ValueError, match="two whole numbers"):
            doubled(text)
