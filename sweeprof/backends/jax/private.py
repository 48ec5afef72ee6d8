"""Every private interface of JAX that sweeprof uses. Tested with JAX 0.10.2.

:data:`INTERFACES` names them; a test looks up each of them and reports those that another version of JAX lacks.
"""

from __future__ import annotations

TESTED = "0.10.2"
INTERFACES = ("jax._src.xla_bridge:backends_are_initialized",)


def is_running() -> bool:
    """Return True if the process already has a JAX client."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())
