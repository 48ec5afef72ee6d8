"""Tests share their machine: what an example of a property takes says nothing, and threads that wait for each other are slow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("sweeprof", deadline=None)
settings.load_profile("sweeprof")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Lets torch compute with one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def declarations() -> Iterator[None]:
    """What a test declares is forgotten after it."""
    from sweeprof.metrics import metric

    metric.builtin_metrics()
    before = dict(metric._DECLARED)
    yield
    metric._DECLARED.clear()
    metric._DECLARED.update(before)
