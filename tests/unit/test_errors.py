"""Hints of what a user may have meant."""

from __future__ import annotations

import pytest

from sweeprof.errors import Problem, choice_problem, key_problem, nearest

KEYS = [
    "axes",
    "batch_size",
    "metrics",
    "metrics.select",
    "metrics.strict",
    "backend.preload",
    "backend.threads",
    "protocol.rounds",
]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("axis", "axes"),
        ("bathc_size", "batch_size"),
        ("protocol.round", "protocol.rounds"),
        ("protcol.rounds", "protocol.rounds"),
        ("metrics.functions", None),
        ("backend.precision", None),
        ("backend.thread", "backend.threads"),
        ("threads", "backend.threads"),
        ("device.threads", "backend.threads"),
        ("device.thread", None),
        ("zzz", None),
    ],
)
def test_a_key_is_hinted_at_where_its_own_name_is_alike(key: str, nearest: str | None) -> None:
    assert key_problem(key, 1, KEYS).nearest == nearest


@pytest.mark.parametrize(
    ("word", "options", "meant"),
    [
        ("modle", ["mode", "model", "module"], "model"),  # exchanged letters, before a missing one
        ("mdoe", ["model", "mode"], "mode"),
        ("tset", ["set", "test", "reset"], "test"),
        ("zzz", ["mode", "model"], None),
    ],
)
def test_exchanged_letters_are_one_slip(word: str, options: list[str], meant: str | None) -> None:
    assert nearest(word, options) == meant


def test_the_suggestion_comes_before_a_list_that_stays_short() -> None:
    names = [f"family{i}/metric{j}" for i in range(20) for j in range(10)]
    message = str(choice_problem("metrics.select", "family7/metrc3", "metric", names))
    assert message.startswith(
        "metrics.select: 'family7/metrc3' is not a metric. Did you mean 'family7/metric3'? Known: "
    )
    assert message.endswith(" and 192 more.")
    assert len(message) < 300


def test_the_place_in_a_file_comes_first() -> None:
    problem = Problem("axes", {}, "is empty.", source="conf/sweep/mine.yaml:7")
    assert str(problem) == "conf/sweep/mine.yaml:7: axes: {} is empty."
