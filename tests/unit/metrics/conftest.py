"""What a test declares is forgotten after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sweeprof.metrics import metric
from sweeprof.metrics.metric import builtin_metrics


@pytest.fixture(autouse=True)
def _declarations() -> Iterator[None]:
    builtin_metrics()
    before = dict(metric._DECLARED)
    yield
    metric._DECLARED.clear()
    metric._DECLARED.update(before)
