"""What a remembered file depends on."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import pytest

from sweeprof.backends.model_files import key_of


def keyed(**node: Any) -> str:
    return key_of(node, ("numpy",))


def test_a_folder_that_is_named_counts_with_all_that_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saved" / "variables").mkdir(parents=True)
    weights = tmp_path / "saved" / "variables" / "variables.data"
    weights.write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    for named in (str(tmp_path / "saved"), "saved"):
        before = keyed(_target_="builtins.dict", path=named)
        assert keyed(_target_="builtins.dict", path=named) == before
        weights.write_bytes(weights.read_bytes() + b"2")
        assert keyed(_target_="builtins.dict", path=named) != before


def test_a_module_that_a_finder_of_its_own_finds_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an editable installation has it."""
    package = tmp_path / "src" / "sweeprof_test_net"
    package.mkdir(parents=True)
    source = package / "__init__.py"
    source.write_text("raise RuntimeError('imported')")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            return PathFinder.find_spec(name, [str(tmp_path / "src")]) if name == "sweeprof_test_net" else None

    before = keyed(_target_="sweeprof_test_net.Net")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    found = keyed(_target_="sweeprof_test_net.Net")
    assert found != before
    source.write_text("raise RuntimeError('imported, and changed')")
    assert keyed(_target_="sweeprof_test_net.Net") != found
