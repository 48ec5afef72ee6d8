"""Settings that a model changed, and what that means for a comparison."""

from __future__ import annotations

from typing import Any

import pytest

from sweeprof.results.compared_rows import (
    AS_REQUESTED,
    DEVIATION,
    deviations_of,
    differing,
    key_of,
    unsteady_warnings,
    warnings_of,
)

REQUESTED = {"threads": 1, "cudnn.benchmark": False, "device": "cuda", "only requested": 3}


def test_only_what_both_sides_know_and_differs_deviates() -> None:
    actual = {"threads": 2, "cudnn.benchmark": False, "device": "cuda:0", "only actual": 4}
    assert deviations_of(REQUESTED, actual) == {"threads": (1, 2)}
    assert deviations_of(REQUESTED, {}) == deviations_of({}, actual) == {}


@pytest.mark.parametrize(
    ("requested", "actual", "deviates"),
    [("cuda", "cuda:1", False), ("cuda:0", "cuda:1", True), ("cuda", "cpu", True), ("cpu", "cpu", False)],
)
def test_any_gpu_is_a_gpu_but_a_numbered_one_is_that_one(requested: str, actual: str, deviates: bool) -> None:
    assert bool(deviations_of({"device": requested}, {"device": actual})) == deviates


def test_a_warning_names_the_setting_and_both_values() -> None:
    (threads, inductor) = warnings_of({"threads": (1, 2), "inductor": ("", "max_autotune = True")})
    assert threads.text == "threads was 2 while the model ran, and 1 was requested: not comparable"
    assert "backend.threads" in threads.advice
    assert inductor.text.startswith("inductor was max_autotune = True while the model ran, and nothing was requested")
    assert inductor.advice == "keep the model from changing inductor"


def of_host(settings: dict[str, Any], deviations: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"host": "h", "settings": settings, **({"deviations": deviations} if deviations else {})}


def test_what_deviates_is_comparable_with_nothing_not_even_with_what_deviates_alike() -> None:
    clean, changed = key_of([of_host({"threads": 1})]), key_of([of_host({"threads": 2}, {"threads": [1, 2]})])
    assert DEVIATION not in clean
    assert differing(clean, clean) == {}
    assert differing(changed, clean) == {DEVIATION: (AS_REQUESTED, "threads 2 instead of 1")}
    assert differing(clean, changed) == {DEVIATION: ("threads 2 instead of 1", AS_REQUESTED)}
    assert set(differing(changed, changed)) == {DEVIATION}


def test_what_changed_between_rounds_is_comparable_with_nothing_either() -> None:
    rounds = [of_host({"TF32": value, "threads": 1}) for value in (False, True, False)]
    assert key_of(rounds)[DEVIATION] == "TF32 false and true"
    (warning,) = unsteady_warnings(rounds)
    assert warning.text == "TF32 was not the same in all passes and rounds: false, true"
    assert unsteady_warnings(rounds[:1]) == unsteady_warnings([{}, {"settings": None}]) == ()
