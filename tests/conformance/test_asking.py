"""What the suite makes of a capability that is missing: a skip that names the declared gap, or a failure."""

from __future__ import annotations

from typing import Any

import pytest
from conformance import asking
from conformance.asking import _shared_folder
from conformance.cases import BACKENDS

__all__ = ["_shared_folder"]

REASON = "not implemented: nobody did"


def answered(monkeypatch: pytest.MonkeyPatch, capabilities: list[str], gaps: dict[str, Any], message: str) -> None:
    """Let a backend have those capabilities and gaps, and answer ``lines`` with an error."""
    facts = {"answer": {"capabilities": capabilities, "gaps": gaps}}
    lines = {"error": "Unsupported", "message": message, "trace": "…"}
    monkeypatch.setattr(asking, "answers", lambda backend: {"facts": facts, "lines": lines})


def test_a_declared_gap_is_a_skip_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, [], {"lines": ["not implemented", "nobody did"]}, REASON)
    with pytest.raises(pytest.skip.Exception, match=f"fake has no lines .lines.: {REASON}"):
        asking.needs("fake", "lines", "lines")


def test_a_gap_that_is_not_declared_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, [], {}, REASON)
    with pytest.raises(AssertionError, match="fake lacks lines and declares no gap"):
        asking.needs("fake", "lines", "lines")


def test_another_answer_than_the_declared_gap_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, [], {"lines": ["not implemented", "nobody did"]}, "something else")
    with pytest.raises(AssertionError, match=r"lines was answered: .*something else"):
        asking.needs("fake", "lines", "lines")


def test_a_refusal_that_the_case_does_not_declare_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, ["lines"], {}, REASON)
    asking.needs("torch", "lines", "lines")
    with pytest.raises(AssertionError):
        asking.pass_data("torch", "lines", "Lines")


def test_a_refusal_that_the_case_declares_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, ["lines"], {}, BACKENDS["tensorflow"].refuses["lines"])
    with pytest.raises(pytest.skip.Exception, match=r"backend\.mode=eager runs them"):
        asking.needs("tensorflow", "lines", "lines")
