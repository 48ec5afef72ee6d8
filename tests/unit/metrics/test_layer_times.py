"""The numbers of a table of layer times."""

from __future__ import annotations

from dataclasses import replace

from sweeprof.metrics.evaluate import measured
from sweeprof.metrics.select import metric_set, passes_of, select
from sweeprof.results.layer_times import OUTSIDE, ROOT, CallTime, LayerTimes, PhaseTimes
from sweeprof.results.measurement import Measurement

SLOW = 9.0
"""Of a repeat for warming up."""


def call(path: str, forward: float, backward: float | None, call: int = 0) -> CallTime:
    """The same in four repeats, after a slow one; a parent would say nothing of what a call took itself."""
    kept = () if backward is None else (SLOW, *[backward] * 4)
    return CallTime(path, "Module", call, None, (SLOW, *[forward] * 4), kept, None if kept else "frozen")


TRAINING = LayerTimes(
    "training",
    (
        call(OUTSIDE, 5.0, 6.0),
        call(ROOT, 1.0, 0.5),
        call("a", 2.0, None),
        call("b", 2.0, 1.5),
        call("b", 3.0, 1.0, call=1),
    ),
    warmup=1,
    forward=PhaseTimes((SLOW, 10.0, 13.0, 14.0, 10.0), (9 * SLOW, 11.0, 26.0, 14.0, 12.0)),
    backward=PhaseTimes((SLOW, 10.0, 9.0, 9.0, 9.0), (SLOW, 1.0, 1.0, 1.0, 1.0)),
)
ADDS_UP = replace(TRAINING, forward=PhaseTimes((SLOW, *[13.0] * 4), (SLOW, *[14.0] * 4)))
BARE = [replace(one, backward=(), reason=None) for one in TRAINING.calls]
INFERENCE = replace(TRAINING, mode="inference", calls=tuple(BARE), backward=None)


def metrics_of(times: LayerTimes) -> dict[str, Measurement]:
    chosen = [one for one in metric_set("layers") if str(one).startswith("layers/")]
    return measured(select(chosen), {"layer_times": times})


def test_the_set_needs_the_counts_beside_the_times() -> None:
    assert passes_of(metric_set("layers")) == ["analysis", "layer_times"]


def test_the_slowest_layer_is_named_and_what_is_outside_is_none() -> None:
    (slowest,) = metrics_of(TRAINING).values()
    assert (slowest.name, slowest.value, slowest.detail) == ("layers/slowest_self_s", 3.0, {"layer": "b", "n": 4})
    slow_a = replace(TRAINING, calls=(*TRAINING.calls[:2], call("a", 3.5, None), *TRAINING.calls[3:]))
    assert metrics_of(slow_a)["layers/slowest_self_s"].detail == {"layer": "a", "n": 4}


def test_too_few_repeats_are_a_warning() -> None:
    assert metrics_of(ADDS_UP)["layers/slowest_self_s"].warnings == ()
    (warning,) = metrics_of(replace(ADDS_UP, unmet=("min_samples=10",)))["layers/slowest_self_s"].warnings
    assert warning.code == "few_repeats"
    assert "4 repeats: protocol.max_s ended them before min_samples=10" in warning.text


def test_layers_that_do_not_add_up_to_the_step_are_a_warning() -> None:
    """The forward takes 11.5 s without probes, and its layers 13 s together; the backward adds up."""
    (warning,) = metrics_of(TRAINING)["layers/slowest_self_s"].warnings
    assert warning.code == "layer_times_off"
    assert warning.text == "the times of the calls add up to 115 % of the forward without probes"
    assert "protocol.min_samples" in warning.advice


def test_a_backward_that_does_not_add_up_is_a_warning_too() -> None:
    off = replace(ADDS_UP, backward=PhaseTimes((SLOW, *[20.0] * 4), (SLOW, *[21.0] * 4)))
    (warning,) = metrics_of(off)["layers/slowest_self_s"].warnings
    assert "of the backward without probes" in warning.text
