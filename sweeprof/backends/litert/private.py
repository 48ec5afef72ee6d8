"""The private interface of TensorFlow that the conversion uses. Tested with TensorFlow 2.21.0.

A test looks it up and reports it if another version of TensorFlow lacks it.
"""

from __future__ import annotations

from typing import Any

from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2


def with_constants(function: Any) -> Any:
    """Return a traced function with constants for its variables, and its control flow as operators that the converter knows.

    The converter does the former itself, but then leaves recurrent layers as loops of another form.
    """
    return convert_variables_to_constants_v2(function)
