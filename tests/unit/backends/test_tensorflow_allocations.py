"""What steps of a Keras model allocate, against what the shapes of its tensors say by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest

import sweeprof
from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.errors import Unsupported
from sweeprof.results.layer_times import ROOT
from sweeprof.results.observations import Allocations

ROWS, WIDTH, HIDDEN, OUT = 256, 500, 2000, 10
WIDTHS = (64, 32, 2)
WIDE, NARROW = 4 * ROWS * HIDDEN, 4 * ROWS * OUT
"""Bytes of the two layers' outputs."""
WEIGHTS = 4 * (WIDTH * HIDDEN + HIDDEN * OUT)


def found(mode: Any, trains: bool) -> dict[str, Any]:
    """What steps allocate of Dense(2000) and Dense(10) on 256 rows of 500 float32."""
    parts = [keras.layers.Dense(HIDDEN, name="wide"), keras.layers.Dense(OUT, name="narrow")]
    model = keras.Sequential(parts, name="net")
    model.build((None, WIDTH))
    data = [(np.ones((ROWS, WIDTH), np.float32), np.zeros(ROWS, int))]
    kind: Any = "training" if trains else "inference"
    backend = TensorflowBackend(mode=mode)
    settings: Any = {"mode": kind, "loss": "cross_entropy", "optimizer": "sgd"}
    profiler = sweeprof.Profiler(model, data, backend=backend, **settings)
    seen: Any = profiler.run("allocations")
    return dict(seen.to_dict())


def answer() -> None:
    """Print everything as JSON, in a process of its own, because its environment decides which allocator there is."""
    TensorflowBackend().configure(seed=0)  # operators one after the other, as in a trial
    asked = [(mode, trains) for mode in ("function", "eager", "xla") for trains in (False, True)]
    told = {f"{mode} {trains}": found(mode, trains) for mode, trains in asked}
    model = keras.Sequential([keras.Input((64,)), *(keras.layers.Dense(width) for width in WIDTHS)])
    seen: Any = sweeprof.Profiler(model, inputs=np.zeros((4096, 64), np.float32)).seen("allocations")
    json.dump({**told, "by layer": {layer.path: layer.allocated_bytes for layer in seen.by_layer}}, sys.stdout)


@pytest.fixture(scope="module")
def told() -> Any:
    variables = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "KERAS_BACKEND": "tensorflow"}
    command = [sys.executable, __file__]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_a_forward_takes_what_its_tensors_do(told: Any) -> None:
    """A graph adds the bias where the product is; eager has both at once."""
    for mode, peak in (("function", WIDE + NARROW), ("xla", WIDE + NARROW), ("eager", 2 * WIDE)):
        found = Allocations.from_dict(told[f"{mode} False"])
        assert (found.mode, found.steps) == ("inference", 3)
        assert found.step_peaks_bytes == (peak,) * 3
        assert found.timeline[-1].bytes == 0
    graph = Allocations.from_dict(told["function False"])
    assert graph.peak_at == "narrow"
    assert {layer.path: layer.allocated_bytes for layer in graph.by_layer} == {ROOT: 0, "wide": WIDE, "narrow": NARROW}
    assert graph.tensors[0].names == ("net/wide/kernel",)
    assert sum(row.bytes for row in graph.tensors if row.kind == "parameter") == WEIGHTS + 4 * (HIDDEN + OUT)


@pytest.mark.slow
def test_a_training_step_also_takes_its_gradients(told: Any) -> None:
    """At the peak the wide output's gradient and those of all kernels.

    A graph's operators run in an order that differs between processes. On it depend whether the wide output is freed by then,
    whether the gradients of the biases exist, what the narrow kernel's gradient is made from, and how many numbers by row
    there are.
    """
    found = Allocations.from_dict(told["function True"])
    assert found.mode == "training"
    least, biases = WIDE + WEIGHTS, 4 * (HIDDEN + OUT)
    assert least < found.step_peaks_bytes[-1] < least + biases + WIDE + 4 * HIDDEN * OUT + NARROW
    assert sum(layer.at_peak_bytes for layer in found.by_layer) == found.peak_bytes
    for mode in ("eager", "xla"):
        assert Allocations.from_dict(told[f"{mode} True"]).step_peaks_bytes[-1] > WIDE + WEIGHTS


def test_the_usual_allocator_tells_too_little() -> None:
    model = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(Unsupported, match="the host's allocator reports large blocks only, unless TF_CPU_ALLOCATOR"):
        sweeprof.Profiler(model, inputs=np.ones((2, 3), np.float32)).run("allocations")


@pytest.mark.slow
def test_layers_with_the_names_that_keras_gives_them_have_what_they_allocate(told: Any) -> None:
    widths = dict(zip(("dense", "dense_1", "dense_2"), WIDTHS, strict=True))
    assert told["by layer"] == {ROOT: 0, **{path: 4 * 4096 * width for path, width in widths.items()}}


if __name__ == "__main__":
    answer()
