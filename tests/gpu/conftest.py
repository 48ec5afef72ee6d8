"""Tests on an accelerator: ``make test-gpu``. Elsewhere they are skipped.

``SWEEPROF_TEST_DEVICE=cpu make test-gpu`` runs on the CPU what does not need CUDA.
"""

from __future__ import annotations

import os

import pytest

from sweeprof.backends import backend_named

DEVICE = os.environ.get("SWEEPROF_TEST_DEVICE", "cuda")


def pytest_runtest_setup() -> None:
    """Skip all tests without the device; skipped from here, they are one line."""
    if DEVICE not in backend_named("torch").devices():
        pytest.skip(f"this host has no device {DEVICE} for PyTorch (SWEEPROF_TEST_DEVICE names another)")


@pytest.fixture
def device() -> str:
    """The device of the tests."""
    return DEVICE


@pytest.fixture
def cuda(device: str) -> str:
    """The device of the tests, which is one of CUDA."""
    if not device.startswith("cuda"):
        pytest.skip(f"{device} is no device of CUDA")
    return device
