"""The private interfaces of JAX that sweeprof uses.

``tests/unit/backends/test_private_interfaces.py`` looks up each of them.
"""

from sweeprof.backends import interface

backends_are_initialized = interface("jax._src.xla_bridge:backends_are_initialized")
