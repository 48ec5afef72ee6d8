"""The private interface of TensorFlow that the conversion uses; ``tests/unit/backends/test_private_interfaces.py`` looks it up."""

from __future__ import annotations

from typing import Any

from sweeprof.backends.interfaces import interface


def with_constants(function: Any) -> Any:
    """Return a traced function with constants for its variables, and its control flow as operators that the converter knows.

    The converter does the former itself, but then leaves recurrent layers as loops of another form.
    """
    return interface("tensorflow.python.framework.convert_to_constants:convert_variables_to_constants_v2")(function)
