"""Paths of modules."""

from __future__ import annotations

from sweeprof.results.layer_times import OUTSIDE, ROOT, above, is_below


def test_what_is_above() -> None:
    assert above("a.b.c") == [ROOT, "a", "a.b"]
    assert above("a") == [ROOT]
    assert above(ROOT) == above(OUTSIDE) == []


def test_what_is_below() -> None:
    assert is_below("a.b", "a")
    assert is_below("a", ROOT)
    assert not is_below("ab", "a")
    assert not is_below("a", "a")
    assert not is_below(ROOT, ROOT)
    assert not is_below(OUTSIDE, ROOT)
