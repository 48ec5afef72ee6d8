"""Fake models whose time differs from trial to trial, as that of real processes does; for trials in the test's own process."""

from __future__ import annotations

import time

import numpy as np

from sweeprof.backends.fake import FakeModel

_generator = np.random.default_rng(0)


def seed(number: int) -> None:
    """Begin the sequence of times again."""
    global _generator  # noqa: PLW0603
    _generator = np.random.default_rng(number)


def noisy(step_s: float, spread: float = 0.0, build_s: float = 0.0) -> FakeModel:
    """A model whose step takes ``step_s``, times a log-normal factor of this spread that is drawn when it is built.

    Building it takes ``build_s`` of real time.
    """
    time.sleep(build_s)
    return FakeModel(step_s=step_s * float(np.exp(spread * _generator.standard_normal())))
