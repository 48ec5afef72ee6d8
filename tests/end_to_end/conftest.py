"""The command in an empty folder, and one quickstart that many tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import Command, Ran, run_command


@pytest.fixture
def sweeprof(tmp_path: Path) -> Command:
    """The command, run in an empty folder."""

    def run(*arguments: str) -> Ran:
        return run_command(tmp_path, *arguments)

    return run


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The whole quickstart, once: 18 combinations, with MLflow."""
    return run_command(tmp_path_factory.mktemp("quickstart"), "+sweep=quickstart", timeout=400)
