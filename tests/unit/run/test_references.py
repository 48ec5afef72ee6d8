"""Sweeps by what a user calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.plans import fake_plan, sweep_folder
from sweeprof.errors import UserError
from sweeprof.run.reports import SweepLocations, located


def test_the_last_sweep_is_the_newest_and_no_copy_under_another_name(tmp_path: Path) -> None:
    for path in ("a/2026-01-01_00-00-00Z", "a/2026-01-01_00-00-00Z-2", "b/2026-01-02_00-00-00Z", "a/release"):
        sweep_folder(tmp_path / path, fake_plan({"a": {}}))
    anywhere, named = SweepLocations(tmp_path), SweepLocations(tmp_path, name="a")
    assert located("last", anywhere, "BASE") == tmp_path / "b/2026-01-02_00-00-00Z"
    assert located("last", named, "BASE") == tmp_path / "a/2026-01-01_00-00-00Z-2"
    assert located("last~1", named, "BASE") == tmp_path / "a/2026-01-01_00-00-00Z"
    assert located("b/last", named, "BASE") == tmp_path / "b/2026-01-02_00-00-00Z"
    with pytest.raises(UserError, match="there are 2 sweeps of the name a"):
        located("last~2", named, "BASE")
