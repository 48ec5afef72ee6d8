"""Which output of a converted model is the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sweeprof.measuring.inputs import Inputs

pytest.importorskip("ai_edge_litert")

import keras
from keras import layers

from sweeprof.backends import named
from sweeprof.backends.litert.adapter import LitertBackend

ONES = np.ones((2, 4), np.float32)


def answered(model: Any) -> Any:
    loaded = LitertBackend().load(lambda: model, "cpu", None)
    with loaded.stepping(loaded.put(Inputs((ONES,)))) as step:
        return next(iter(named(loaded.host_outputs(step())).values()))


def test_the_first_output_is_the_first_that_a_mapping_lists() -> None:
    """Not the first of its sorted keys, which TensorFlow's graphs have: other frameworks' answers are compared with it."""
    x = keras.Input((4,))
    logits, aux = layers.Dense(3, kernel_initializer="ones")(x), layers.Dense(5)(x)
    np.testing.assert_array_equal(answered(keras.Model(x, {"logits": logits, "aux": aux})), np.full((2, 3), 4))
    assert answered(keras.Model(x, {"aux": aux, "logits": logits})).shape == (2, 5)
    np.testing.assert_array_equal(answered(lambda x: {"z": [x + 1, None], "a": (x,)}), ONES + 1)
