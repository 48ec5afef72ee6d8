"""The checks of ``sweeprof doctor device=cuda`` on a GPU: ``python -m pytest tests/gpu`` skips them without one."""

from __future__ import annotations

import pytest

from sweeprof.backends import backend_named
from sweeprof.errors import Unsupported
from sweeprof.profiling.conformance import CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_a_gpu_measures_as_the_cpu_does(name: str) -> None:
    if "cuda" not in backend_named("torch").devices():
        pytest.skip("this host has no GPU of CUDA")
    try:
        CHECKS[name]("cuda")
    except Unsupported as error:
        pytest.skip(str(error))
