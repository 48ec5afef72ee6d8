"""Hints of what a user may have meant."""

from __future__ import annotations

import pytest

from sweeprof.errors import key_problem

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
