"""Every private interface of JAX that sweeprof uses. Tested with JAX 0.10.2.

A test looks up each of them and reports those that another version of JAX lacks.
"""

from __future__ import annotations


def is_running() -> bool:
    """Return True if the process already has a JAX client."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())
