"""One suite for every backend: what each can do beyond running, or why it cannot."""

from __future__ import annotations

import math

from conformance.asking import _shared_folder, by_backend, needs, pass_data
from conformance.cases import BACKENDS, FIGURES

from sweeprof.results.environment import Peaks
from sweeprof.results.layer_times import ROOT, LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.measurement import Artifact
from sweeprof.results.observations import Allocations, Lines, Operators, OwnCounts

__all__ = ["_shared_folder"]

pytestmark = by_backend
BATCH = 3


def test_a_training_step_is_counted(backend: str) -> None:
    needs(backend, "analyze_training", "training")
    found = Training.from_dict(pass_data(backend, "training", "Training"))
    figures = FIGURES[BACKENDS[backend].model]
    assert figures.backward_macs is not None
    assert found.forward_macs == BATCH * figures.macs
    assert found.uncovered == {}
    if BACKENDS[backend].config.startswith(("tensorflow", "jax")):
        assert found.estimated == "the backward of Keras models is not counted"
        assert found.backward_macs == 2 * found.forward_macs
    else:
        assert found.estimated is None
        assert found.backward_macs == BATCH * figures.backward_macs


def test_the_frameworks_own_count_has_every_multiplication(backend: str) -> None:
    """Their rules differ; none counts less than two FLOPs for each multiply-accumulate of these models."""
    needs(backend, "own_counts", "own_counts")
    found = OwnCounts.from_dict(pass_data(backend, "own_counts", "OwnCounts"))
    macs = BATCH * FIGURES[BACKENDS[backend].model].macs
    assert found.reasons == {}
    assert found.counts
    assert all(2 * macs <= count < 2.1 * macs for count in found.counts.values())


def test_a_file_holds_at_least_the_parameters(backend: str) -> None:
    needs(backend, "artifact", "artifact")
    found = Artifact.from_dict(pass_data(backend, "artifact", "Artifact"))
    assert 4 * FIGURES[BACKENDS[backend].model].params <= found.bytes < 2**21
    assert found.format


def times(backend: str, name: str) -> LayerTimes:
    return LayerTimes.from_dict(pass_data(backend, name, "LayerTimes"))


def test_every_layer_that_is_timed_is_in_the_table(backend: str) -> None:
    needs(backend, "layer_times", "layer_times")
    found = times(backend, "layer_times")
    table = LayerTable.from_dict(pass_data(backend, "analysis-3", "LayerTable"))
    assert {(c.path, c.call) for c in found.calls} <= {(r.path, r.call) for r in table.rows} | {("__outside__", 0)}
    assert sum(c.path != ROOT for c in found.calls) >= 3
    assert all(math.isfinite(s) for c in found.calls for s in c.forward)
    timed = table.with_times(found)
    assert timed.timing is not None
    assert not timed.timing.unplaced


def test_layers_of_a_training_step_have_a_backward(backend: str) -> None:
    name = "trained_layers"
    needs(backend, "layer_times", name)
    found = times(backend, name)
    assert found.mode == "training"
    assert sum(bool(call.backward) for call in found.calls) >= 3


def test_operators_are_those_of_the_step(backend: str) -> None:
    needs(backend, "operators", "operators")
    found = Operators.from_dict(pass_data(backend, "operators", "Operators"))
    assert found.steps >= 1
    assert found.rows
    assert all(row.calls > 0 and row.self_s >= 0 for row in found.rows)
    assert 0 < sum(row.self_s for row in found.rows) <= 1.01 * found.step_s


def test_allocations_hold_what_the_layers_return(backend: str) -> None:
    needs(backend, "allocations", "allocations")
    found = Allocations.from_dict(pass_data(backend, "allocations", "Allocations"))
    assert found.peak_bytes >= BATCH * (128 + 64) * 4  # of the perceptron's first two layers, alive at once


def test_the_machine_has_a_peak(backend: str) -> None:
    needs(backend, "peaks", "peaks")
    found = Peaks.from_dict(pass_data(backend, "peaks", "Peaks"))
    assert (found.dtype, found.device, found.threads) == ("float32", "cpu", 1)
    assert found.flops_per_s > 1e8


def test_lines_are_those_of_a_function(backend: str) -> None:
    needs(backend, "lines", "lines")
    assert Lines.from_dict(pass_data(backend, "lines", "Lines")).functions
