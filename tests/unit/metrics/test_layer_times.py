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
    assert passes_of(select(metric_set("layers"))) == ["analysis", "layer_times"]


def test_each_figure_is_that_of_the_repeats_that_count() -> None:
    values = {name: one.value for name, one in metrics_of(TRAINING).items()}
    assert values == {
        "layers/forward_covered": (13 / 13 + 13 / 10) / 2,
        "layers/backward_covered": 9 / 9,
        "layers/probe_overhead": (11 / 10 + 12 / 10) / 2,
        "layers/slowest_self_s": 3.0,
        "layers/slowest_backward_self_s": 1.5,
        "layers/outside_s": 5.0,
    }


def test_the_slowest_layer_is_named_and_what_is_outside_is_none() -> None:
    found = metrics_of(TRAINING)
    assert found["layers/slowest_self_s"].detail == {"layer": "b", "n": 4}
    assert found["layers/slowest_backward_self_s"].detail == {"layer": "b", "n": 4}
    slow_a = replace(TRAINING, calls=(*TRAINING.calls[:2], call("a", 3.5, None), *TRAINING.calls[3:]))
    assert metrics_of(slow_a)["layers/slowest_self_s"].detail == {"layer": "a", "n": 4}


def test_each_tells_of_how_many_repeats_it_is_and_warns_of_too_few() -> None:
    assert all(one.detail["n"] == 4 for one in metrics_of(TRAINING).values())
    assert all(one.warnings == () for one in metrics_of(ADDS_UP).values())
    for one in metrics_of(replace(ADDS_UP, unmet=("min_samples=10",))).values():
        (warning,) = one.warnings
        assert warning.code == "few_repeats"
        assert "4 repeats: protocol.max_s ended them before min_samples=10" in warning.text


def test_inference_has_no_backward_and_says_so() -> None:
    found = metrics_of(INFERENCE)
    missing = {name: one.reason for name, one in found.items() if one.value is None}
    assert set(missing) == {"layers/backward_covered", "layers/slowest_backward_self_s"}
    assert all(reason is not None and reason.startswith("mode=inference") for reason in missing.values())


def test_a_model_whose_layers_are_all_frozen_has_no_slowest_backward() -> None:
    frozen = replace(TRAINING, calls=(call(OUTSIDE, 5.0, 6.0), call(ROOT, 1.0, None), call("a", 2.0, None)))
    slowest = metrics_of(frozen)["layers/slowest_backward_self_s"]
    assert slowest.value is None
    assert slowest.reason == "no gradient is computed in any layer"


def test_without_a_step_that_had_no_probes_there_is_nothing_to_compare_with() -> None:
    found = metrics_of(replace(TRAINING, forward=PhaseTimes((), (11.0,) * 5), backward=PhaseTimes((), (9.0,) * 5)))
    missing = {name for name, one in found.items() if one.reason == "no step was without probes"}
    assert missing == {"layers/forward_covered", "layers/backward_covered", "layers/probe_overhead"}


def test_layers_that_do_not_add_up_to_the_step_say_so_beside_every_figure_of_that_phase() -> None:
    """The forward takes 11.5 s without probes, and its layers 13 s together; the backward adds up."""
    found = metrics_of(TRAINING)
    for name, one in found.items():
        if "backward" in name:
            assert one.warnings == ()
            continue
        (warning,) = one.warnings
        assert warning.code == "layer_times_off"
        assert warning.text == "the times of the calls add up to 115 % of the forward without probes"
        assert "protocol.min_samples" in warning.advice
    assert found["layers/slowest_self_s"].value == 3.0
