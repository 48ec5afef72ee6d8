"""Training steps of Keras models: the forward is counted in training mode, the backward is estimated."""

from __future__ import annotations

from typing import Any

import keras
import pytest
from keras import layers

from sweeprof.backends.keras.counting import count_layers, count_training
from sweeprof.counting.formulas import DEFAULTS, Cost, Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layers import Training


def counted(model: Any, *shape: int, formulas: Formulas = DEFAULTS) -> Training:
    return count_training(model, Inputs((TensorSpec(shape),)), formulas)


def test_the_backward_is_estimated_as_twice_the_forward() -> None:
    model = keras.Sequential([keras.Input((5, 8)), layers.LSTM(16, dropout=0.1), layers.Dense(4)])
    training = counted(model, 3, 5, 8)
    macs = 3 * (5 * 4 * 16 * (8 + 16) + 16 * 4)
    assert (training.forward_macs, training.backward_macs) == (macs, 2 * macs)
    assert training.backward_flops == 2 * training.forward_flops
    assert (training.estimated, training.liveness) == ("the backward of Keras models is not counted", None)


def test_the_forward_is_that_of_training_mode() -> None:
    """Batch statistics are computed, and random numbers multiplied by."""
    model = keras.Sequential([keras.Input((8,)), layers.BatchNormalization(), layers.Dropout(0.5)])
    inference = count_layers(model, Inputs((TensorSpec((3, 8)),)))
    assert inference.flops is not None
    assert counted(model, 3, 8).forward_flops > inference.flops


def test_a_formula_of_the_users_is_taken_for_the_forward() -> None:
    told = Formulas({layers.Dense: lambda layer, inputs, outputs: Cost(macs=5)}, DEFAULTS)
    training = counted(keras.Sequential([keras.Input((8,)), layers.Dense(4)]), 3, 8, formulas=told)
    assert (training.forward_macs, training.backward_macs) == (5, 10)


def test_what_cannot_be_trained_says_so() -> None:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
    model.trainable = False
    with pytest.raises(Unsupported, match="no parameter requires a gradient"):
        counted(model, 3, 8)
