"""The checks of ``sweeprof doctor device=NAME``, each as a test."""

from __future__ import annotations

import pytest

from sweeprof.errors import Unsupported
from sweeprof.profiling.conformance import CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_a_device_measures_as_the_cpu_does(name: str, device: str) -> None:
    try:
        CHECKS[name](device)
    except Unsupported as error:
        pytest.skip(str(error))
