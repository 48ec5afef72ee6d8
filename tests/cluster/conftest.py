"""One cluster for all tests here. A module that needs another kind of cluster says so: ``LAB = {"ACCT": 1}``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from support.clustered import Clustered
from support.slurm import Lab, missing

# There is one Slurm per machine, but there may be two developers.
_LOCK = Path("/tmp/sweeprof-slurm-lab.lock")


class Labs:
    """The lab that runs; it is started anew only for other settings."""

    def __init__(self) -> None:
        self.running: Lab | None = None

    def having(self, settings: dict[str, int]) -> Lab:
        """A lab with these settings."""
        if self.running is None or self.running.settings != settings:
            self.running = Lab(settings)
            self.running.start()
        return self.running


@pytest.fixture(scope="session")
def labs() -> Iterator[Labs]:
    """Labs of this session, the last of which stops with it."""
    if why := missing():
        pytest.fail(why)  # a skipped test of clusters would look like a cluster that works
    with FileLock(_LOCK, timeout=240):
        found = Labs()
        try:
            yield found
        finally:
            Lab({}).stop()


@pytest.fixture(scope="module")
def slurm(labs: Labs, request: pytest.FixtureRequest) -> Lab:
    """The cluster, with the settings that the module asks for in ``LAB``."""
    return labs.having(getattr(request.module, "LAB", {}))


@pytest.fixture
def sweep(slurm: Lab, tmp_path: Path) -> Iterator[Clustered]:
    """A sweep that waits, fails and takes memory as it is told to."""
    made = Clustered(slurm, tmp_path)
    yield made
    made.end()


@pytest.fixture(autouse=True)
def idle_afterwards(slurm: Lab) -> Iterator[None]:
    """Every test finds and leaves an idle cluster."""
    yield
    slurm.idle()
