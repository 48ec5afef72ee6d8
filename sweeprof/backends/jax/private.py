"""The private interface of JAX that sweeprof uses; ``tests/unit/backends/test_private_interfaces.py`` looks it up."""

from __future__ import annotations

from sweeprof.backends.interfaces import interface


def is_running() -> bool:
    """Return True if the process already has a JAX client."""
    return bool(interface("jax._src.xla_bridge:backends_are_initialized")())
