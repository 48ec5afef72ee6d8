"""One suite for every backend: what each must do, and what else it can do, or why it cannot. A new one adds a line to BACKENDS."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import numpy as np
import pytest
from conformance.asking import (
    BATCHES,
    MISTAKEN,
    SHORT,
    _shared_folder,
    answer,
    answers,
    by_backend,
    gaps,
    needs,
    pass_data,
    torch_quality,
)
from conformance.cases import BACKENDS, FIGURES

from sweeprof.backends import CAPABILITIES, GapKind
from sweeprof.measuring.timing import Timing
from sweeprof.passes.memory import Memory
from sweeprof.passes.quality import Quality
from sweeprof.results.environment import Peaks
from sweeprof.results.layer_times import ROOT, LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.measurement import Artifact
from sweeprof.results.observations import Allocations, Lines, Operators, OwnCounts
from sweeprof.results.record import PassName

__all__ = ["_shared_folder"]

pytestmark = by_backend
batches = pytest.mark.parametrize("batch", BATCHES)
BATCH = 3


@batches
def test_analysis(backend: str, batch: int) -> None:
    figures = FIGURES[BACKENDS[backend].model]
    table = LayerTable.from_dict(pass_data(backend, f"analysis-{batch}", "LayerTable"))
    assert (table.macs, table.params, table.trainable) == (batch * figures.macs, figures.params, figures.params)
    assert table.params_bytes == 4 * figures.params
    assert (table.uncovered, table.method) == ({}, "shapes")
    assert table.rows[0].path == ROOT


def test_analysis_of_further_models(backend: str) -> None:
    if len(BACKENDS[backend].models) == 1:
        pytest.skip(f"{backend} has one model in this suite")
    for model in BACKENDS[backend].models[1:]:
        table = LayerTable.from_dict(pass_data(backend, f"analysis-{model}", "LayerTable"))
        assert (table.macs, table.params) == (3 * FIGURES[model].macs, FIGURES[model].params)
        assert table.uncovered == {}


def test_timing(backend: str) -> None:
    timing = Timing.from_dict(pass_data(backend, "timing-3", "Timing"))
    assert len(timing.samples) >= SHORT["min_samples"]
    assert all(0 < sample < 5 for sample in timing.samples)
    assert timing.first_step_s > 0
    assert timing.warmup_steps >= SHORT["warmup_steps"]
    assert sum(timing.samples) * timing.loops >= SHORT["min_s"] * 0.99
    assert timing.unmet == ()


def test_timing_of_training_steps(backend: str) -> None:
    needs(backend, "training", "trained")
    timing = Timing.from_dict(pass_data(backend, "trained", "Timing"))
    assert list(timing.phases) == ["forward", "backward", "update"]
    assert {len(samples) for samples in timing.phases.values()} == {len(timing.samples)}
    assert all(sample > 0 for samples in timing.phases.values() for sample in samples)
    parts = tuple(map(sum, zip(*timing.phases.values(), strict=True)))
    assert all(part <= whole * 1.001 for part, whole in zip(parts, timing.samples, strict=True))
    assert sum(parts) > 0.8 * sum(timing.samples)
    assert timing.transfers == {}


def test_memory(backend: str) -> None:
    seen = Memory.from_dict(pass_data(backend, "memory-3", "Memory"))
    assert 0 < seen.rss_baseline_bytes <= seen.rss_peak_bytes
    assert 0 < seen.rss_loaded_bytes <= seen.rss_peak_bytes < 2**33
    assert seen.steps > 0


@batches
def test_quality(backend: str, batch: int) -> None:
    data = pass_data(backend, f"quality-{batch}", "Quality")
    quality = Quality.from_dict(data)
    assert json.loads(json.dumps(quality.to_dict())) == data
    assert quality.outputs.shape == (360, 10)
    assert np.isfinite(quality.outputs).all()
    assert quality.predictions is not None
    assert quality.targets is not None
    hits = sum(p == t for p, t in zip(quality.predictions, quality.targets, strict=True))
    assert len(quality.targets) == 360
    assert hits / 360 > 0.95 or is_fake(backend)


def is_fake(backend: str) -> bool:
    """Whether its model computes nothing of the digits."""
    return BACKENDS[backend].model == "fake"


def outputs(backend: str, name: str) -> Any:
    return Quality.from_dict(pass_data(backend, name, "Quality")).outputs


def test_outputs_do_not_depend_on_the_batch_size(backend: str) -> None:
    np.testing.assert_allclose(outputs(backend, "quality-1"), outputs(backend, "quality-3"), atol=1e-3, rtol=1e-4)


def test_outputs_agree_with_torch(backend: str) -> None:
    if is_fake(backend):
        pytest.skip("a fake model computes nothing")
    np.testing.assert_allclose(outputs(backend, "quality-3"), torch_outputs("quality-3"), atol=1e-4)
    for model in BACKENDS[backend].models[1:]:
        np.testing.assert_allclose(outputs(backend, f"quality-{model}"), torch_outputs(f"quality-{model}"), atol=1e-3)


def torch_outputs(name: str) -> Any:
    return Quality.from_dict(torch_quality(name)["data"]).outputs


def test_what_a_backend_lacks_it_declares(backend: str) -> None:
    devices = answer(backend, "facts")["devices"]
    assert "cpu" in devices
    assert len(set(devices)) == len(devices)
    has = set(answer(backend, "facts")["capabilities"])
    assert "analyze" in has
    assert has.isdisjoint(gaps(backend))
    assert has | set(gaps(backend)) == set(CAPABILITIES)
    assert {kind for kind, _ in gaps(backend).values()} <= set(get_args(GapKind))
    assert all(reason and not reason.endswith(".") for _, reason in gaps(backend).values())


def test_threads_are_those_of_the_config(backend: str) -> None:
    if not BACKENDS[backend].threads:
        pytest.skip(f"{backend} does not say how many threads it uses")
    assert answer(backend, "facts")["threads"] == 3


def test_running_out_of_memory_is_recognised(backend: str) -> None:
    found = answer(backend, "exhaust")
    assert found["recognised"] is True, found
    assert not answer(backend, "facts")["ordinary_is_out_of_memory"]


MISTAKES = [("wrong", "TypeError", "the model's builder returned a str"), ("raising", "ValueError", "no luck")]


@pytest.mark.parametrize("pass_name", MISTAKEN)
@pytest.mark.parametrize(("mistake", "error", "says"), MISTAKES)
def test_a_model_that_cannot_be_made(mistake: str, error: str, says: str, backend: str, pass_name: PassName) -> None:
    found = answers(backend)[f"{mistake}-{pass_name}"]
    assert found["error"] == error, found
    assert says in found["message"]


def test_a_missing_builder_is_unsupported(backend: str) -> None:
    found = answers(backend)["lost-timing"]
    assert found["error"] == "Unsupported"
    assert found["message"].startswith("the model names no builder for ")


# What it can do beyond running


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


def test_every_layer_that_is_timed_is_in_the_table(backend: str) -> None:
    needs(backend, "layer_times", "layer_times")
    found = LayerTimes.from_dict(pass_data(backend, "layer_times", "LayerTimes"))
    table = LayerTable.from_dict(pass_data(backend, "analysis-3", "LayerTable"))
    assert {(c.path, c.call) for c in found.calls} <= {(r.path, r.call) for r in table.rows} | {("__outside__", 0)}
    assert sum(c.path != ROOT for c in found.calls) >= 3
    assert all(math.isfinite(s) for c in found.calls for s in c.forward)
    timed = table.with_times(found)
    assert timed.timing is not None
    assert not timed.timing.unplaced


def test_layers_of_a_training_step_have_a_backward(backend: str) -> None:
    needs(backend, "layer_times", "trained_layers")
    found = LayerTimes.from_dict(pass_data(backend, "trained_layers", "LayerTimes"))
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
