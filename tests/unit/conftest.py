"""Property tests on a shared machine: what an example takes says nothing."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("sweeprof", deadline=None)
settings.load_profile("sweeprof")
