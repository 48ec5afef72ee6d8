"""The library: ``sweeprof.profile`` and ``Profiler`` on models in a caller's hands."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sweeprof
from support.nets import LeNet5
from support.torch_modules import Applied, Functional, undisturbed
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.metrics.metric import builtin_metrics
from sweeprof.metrics.select import metric_set
from sweeprof.results.layer_times import Mode
from sweeprof.results.measurement import Measurement, MetricInfo
from sweeprof.results.observations import Lines
from sweeprof.zoo import lenet5

pytestmark = pytest.mark.usefixtures("declarations")
QUICK = sweeprof.Protocol(warmup_steps=1, warmup_s=0, sample_s=0, min_samples=3, min_s=0)

ratio = sweeprof.metric(name="mine/ratio", unit="ratio", better="higher")


def mlp() -> nn.Sequential:
    """144 MACs for three samples."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def profiler(model: nn.Module | None = None, *, inputs: Any = (3, 4), **given: Any) -> sweeprof.Profiler:
    return sweeprof.Profiler(model or mlp(), inputs=inputs, **{"protocol": QUICK, **given})


def values(found: Any) -> dict[str, Any]:
    return {name: measurement.value for name, measurement in found.items()}


def macs(model: nn.Module, inputs: Any, **given: Any) -> Any:
    return sweeprof.profile(model, inputs, "compute/macs", **given)["compute/macs"].value


# One line


STATIC = {
    "params/total": 61_706,
    "params/trainable": 61_706,
    "params/frozen": 0,
    "params/buffers": 0,
    "size/params_bytes": 246_824,
    "size/params_bits": 1_974_592,
    "size/buffers_bytes": 0,
    "compute/macs": 416_520,
    "compute/macs_per_sample": 416_520,
    # biases, tanh, inputs of pools, softmax
    "compute/flops": 2 * 416_520 + (6_424 + 94) + 6_508 + 6_304 + 10,
    "compute/flops_per_sample": 2 * 416_520 + (6_424 + 94) + 6_508 + 6_304 + 10,
    "compute/ops": 2 * 416_520 + 7 * 6_508 + 6_304 + 39,
    "compute/coverage": 1.0,
    "memory/act_sum_bytes": 4 * (2 * 4_704 + 1_176 + 2 * 1_600 + 400 + 2 * 120 + 2 * 84 + 10),
    "memory/act_peak_layer_bytes": 4 * 2 * 4_704,
    "memory/act_peak_live_bytes": 4 * 2 * 4_704,
    "memory/footprint_est_bytes": 246_824 + 4 * 2 * 4_704,
}


def test_everything_static_of_lenet5() -> None:
    found = sweeprof.profile(LeNet5(), (1, 1, 32, 32))
    assert list(found) == list(metric_set("static"))
    assert values(found) == STATIC
    assert isinstance(found["compute/macs"].value, int)
    assert {m.reason for m in found.values()} == {None}
    assert found["memory/act_peak_live_bytes"].detail == {"layer": "feature_extractor.1"}
    assert found.layers.macs == 416_520


def test_a_model_and_inputs_on_meta() -> None:
    with torch.device("meta"):
        model, given = LeNet5(), torch.empty(1, 1, 32, 32)
    assert values(sweeprof.profile(model, given)) == STATIC
    assert values(sweeprof.profile(model, torch.ones(1, 1, 32, 32))) == STATIC
    assert values(sweeprof.profile(LeNet5(), given)) == STATIC
    assert next(model.parameters()).is_meta
    needs_weights = sweeprof.profile(model, given, ["latency/forward"])["latency/forward"]
    assert "it has no weights to run with" in str(needs_weights.reason)


def test_a_profile_is_shown_in_any_order_with_notes() -> None:
    names = ["params/total", "compute/macs", "compute/flops", "size/params_bytes"]
    found = sweeprof.profile(mlp(), (3, 4), names)
    compared = sweeprof.compare(found, found)
    definition = "compute/macs: Multiply-accumulates of one forward of the whole batch."
    shown = found.shown(["size/params_bytes", "compute/*"], exclude=["*/flops"], notes=True)
    assert list(shown) == ["size/params_bytes", "compute/macs", "params/total"]
    assert shown.layers.macs == 144
    both = compared.shown(["compute/macs"], ["size/*"], notes=True)
    assert [one.name for one in both] == ["compute/macs", "params/total", "compute/flops"]
    for noted in (shown, both):
        assert definition in str(noted).splitlines()
        assert definition in noted.to_html()
    assert definition not in str(found)
    for show in (found.shown, compared.shown):
        with pytest.raises(
            sweeprof.UserError, match=r"order: 'compute/mac' is not a metric that is shown. Did you mea"
        ):
            show(["compute/mac"])
    with pytest.raises(sweeprof.UserError, match=r"exclude: 'latency/\*' is not a metric that is shown"):
        found.shown(exclude=["latency/*"])
    assert list(found.shown("compute/macs", exclude="*/flops")) == ["compute/macs", "params/total", "size/params_bytes"]


def test_a_profile_can_be_stored_and_compared_later() -> None:
    found = sweeprof.profile(mlp(), (3, 4), ["compute/macs", "latency/forward", "quality/accuracy"], protocol=QUICK)
    stored = sweeprof.Profile.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert dict(stored) == dict(found)
    assert str(stored) == str(found)
    assert str(stored.layers) == str(found.layers)
    assert stored.setup == found.setup
    (same, *_) = sweeprof.compare(stored, found)
    assert (same.name, same.verdict) == ("compute/macs", "same")
    assert stored.to_frame(host=True).equals(found.to_frame(host=True))
    with pytest.raises(sweeprof.Unsupported, match="that was stored has no profiler"):
        _ = stored.profiler
    timed = sweeprof.profile(mlp(), (3, 4), ["latency/forward"], protocol=QUICK)
    with pytest.raises(sweeprof.Unsupported, match="the layers had not been counted"):
        _ = sweeprof.Profile.from_dict(timed.to_dict()).layers
    with pytest.raises(sweeprof.SweeprofError, match=r"setup\.mode: 'walking' is not"):
        sweeprof.Profile.from_dict({**found.to_dict(), "setup": {**found.to_dict()["setup"], "mode": "walking"}})


def check_host(frame: Any) -> None:
    """The same host in every row."""
    expected = {
        "host_name": socket.gethostname(),
        "host_logical_cores": os.cpu_count(),
        "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "host_threads": torch.get_num_threads(),
        "host_interop_threads": torch.get_num_interop_threads(),
    }
    assert {name: set(frame[name]) for name in expected} == {name: {value} for name, value in expected.items()}


def test_columns_of_the_host() -> None:
    found = sweeprof.profile(mlp(), (3, 4), ["compute/macs", "params/total"])
    for result in (found, found.layers):
        frame = result.to_frame(host=True)
        check_host(frame)
        assert not frame.filter(like="host_").isna().any(axis=None)
        assert not any(str(column).startswith("host_") for column in result.to_frame())


@pytest.mark.parametrize("name", ["layer_times", "operators", "timing", "graph", "analysis"])
def test_columns_of_the_host_in_frames_of_passes(name: str) -> None:
    own = profiler()
    result: Any = own.layers if name == "analysis" else own.seen(name)
    frame = result.to_frame(host=True)
    check_host(frame)
    assert frame.drop(columns=list(own.compute_all("params/total").setup.host)).equals(result.to_frame())
    if name == "layer_times":
        for raw in (result.to_frame(aggr=False, host=True), result.total_frame(aggr=False, host=True)):
            assert set(raw["host_name"]) == {socket.gethostname()}
    read = type(result).from_dict(json.loads(json.dumps(result.to_dict())))
    if name != "analysis":
        with pytest.raises(sweeprof.UserError, match="host: True needs a known host"):
            read.to_frame(host=True)


def test_devices_by_any_of_their_names() -> None:
    assert profiler(device="CPU").session.device_name() == "cpu"
    assert profiler(device=torch.device("cpu")).compute("latency/forward").value
    assert profiler(mlp().to("meta"), device="meta").compute("compute/macs").value == 144


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU of CUDA")
@pytest.mark.parametrize("device", ["gpu", "GPU", "cuda", "cuda:3", "cpuu", "meta"])
def test_an_unknown_device_is_an_error_at_construction(device: str) -> None:
    with pytest.raises(
        sweeprof.UserError, match=rf"^device: '{device}' is not a device of this host\..* Known: cpu\.$"
    ):
        profiler(device=device)


def test_a_frame_of_the_metrics() -> None:
    frame = sweeprof.profile(mlp(), (3, 4), ["compute/macs", "quality/accuracy"]).to_frame()
    assert list(frame.columns) == ["name", "value", "unit", "estimator", "reason"]
    assert list(frame["value"]) == [144, None]
    assert "there are no data" in frame["reason"][1]


@pytest.mark.parametrize(
    "metrics", ["compute/macs", ["compute/macs"], ("compute/macs",), [{"_target_": "compute/macs"}]]
)
def test_metrics_by_name(metrics: Any) -> None:
    assert values(sweeprof.profile(mlp(), (3, 4), metrics)) == {"compute/macs": 144}


OF_TRAINING = {
    *("latency/backward", "latency/update", "latency/iteration"),
    *("rate/backward_flops_per_s", "rate/flops_per_s_train", "rate/mfu_train"),
}
NOT_HERE = re.compile(
    "does not (trace a step|compile|capture graphs)|the model runs on the host|mode=training: (transfers|requests)|"
    "runs one forward after the other|no energy counters|a sweep gives each trial its own|use sweeprof.compare|loads no file"
)
"""Reasons of a profiler of an eager model on the host, in either mode."""


@pytest.fixture
def without_energy_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPROF_POWERCAP", str(tmp_path))


@pytest.mark.usefixtures("without_energy_counters")
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_everything_of_the_full_set_has_a_value_or_a_reason(mode: Mode) -> None:
    data = [(torch.ones(3, 4), torch.tensor([0, 1, 1]))]
    found = sweeprof.Profiler(mlp(), data, protocol=QUICK, mode=mode).compute_all("full")
    assert list(found) == [name for name in metric_set("full") if name != "lines"]
    missing = {name: str(m.reason) for name, m in found.items() if m.value is None}
    trained = {name for name, reason in missing.items() if reason.startswith("mode=inference: a step is a forward")}
    assert trained == (set() if mode == "training" else OF_TRAINING)
    assert {name: missing[name] for name in missing.keys() - trained if not NOT_HERE.search(missing[name])} == {}
    assert found["latency/per_sample"].value == pytest.approx(cast(float, found["latency/forward"].value) / 3)


def test_a_set_of_training_measures_training() -> None:
    found = sweeprof.profile(mlp(), (3, 4), "training", optimizer="adam", protocol=QUICK)
    assert found.profiler.session.mode == "training"
    missing = {name for name, m in found.items() if m.value is None}
    assert missing == {"memory/added_bytes", "memory/process_peak_bytes", "latency/device"}
    assert found["latency/device"].reason == "the model runs on the host"
    assert found["memory/tensors_bytes"].detail["optimizer"] > 0
    assert sweeprof.profile(mlp(), (3, 4), ["compute/macs"]).profiler.session.mode == "inference"
    assert sweeprof.profile(mlp(), (3, 4), "static", mode="training").profiler.session.mode == "training"


def test_a_set_of_training_wants_a_profiler_that_trains() -> None:
    wanted = "metrics: 'training' is measured with mode=\"training\": make the profiler with it"
    with pytest.raises(sweeprof.UserError, match=wanted):
        sweeprof.Profiler(mlp(), inputs=(3, 4)).compute_all("training")
    with pytest.raises(sweeprof.UserError, match=wanted):
        sweeprof.profile(mlp(), (3, 4), "training", mode="inference")


@pytest.mark.thorough
def test_the_functions_to_watch_are_the_callers() -> None:
    made = sweeprof.Profiler(Both(), inputs=(3, 4), functions=["Both._tensors"], protocol=QUICK)
    for one in (made, made.clone(inputs=(2, 4))):
        seen = one.seen("lines")
        assert isinstance(seen, Lines)
        assert [function.name.rpartition(".")[2] for function in seen.functions] == ["_tensors"]
    named = sweeprof.profile(Both(), (3, 4), "lines", functions=["Both.forward"], protocol=QUICK)
    assert "return [self.linear(x)" in named.to_text(width=160)


# Inputs


class Both(nn.Module):
    """Positional, keyword and nested arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, *parts: Any, also: Any = None, **more: Any) -> Any:
        return [self.linear(x) for x in self._tensors([*parts, also, *more.values()])]

    def _tensors(self, tree: Any) -> list[torch.Tensor]:
        if isinstance(tree, torch.Tensor):
            return [tree]
        parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
        return [tensor for part in parts for tensor in self._tensors(part)]


X = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("given", "tensors"),
    [
        (X.to("meta"), 1),
        ((3, 4), 1),
        ((X, (3, 4)), 2),
        ([X, X], 2),
        (((X, [X]), {"a": {"b": X}}), 3),
        ({"also": (3, 4), "more": sweeprof.TensorSpec((3, 4))}, 2),
        ({"also": [X, {"deep": (X, 7)}], "flag": True}, 2),
        (sweeprof.Inputs((X,), {"also": X, "more": X}), 3),
        (np.ones((3, 4), np.float32), 1),
        ((OrderedDict(a=X, b=[X]),), 2),
    ],
)
def test_inputs_of_every_kind(given: Any, tensors: int) -> None:
    found = sweeprof.profile(Both(), given, ["compute/macs", "compute/macs_per_sample"])
    assert values(found) == {"compute/macs": tensors * 24, "compute/macs_per_sample": tensors * 8}
    assert found.layers.method == "shapes"
    assert found.layers.rows[0].input_shapes == ((3, 4),) * tensors


def test_inputs_without_a_batch_axis() -> None:
    found = sweeprof.profile(Both(), {"flag": 7}, ["compute/macs", "compute/macs_per_sample"])
    assert found["compute/macs"].value == 0
    assert found["compute/macs_per_sample"].reason == "the inputs have no batch axis"


def test_nothing_to_call_the_model_with() -> None:
    with pytest.raises(sweeprof.UserError, match="give `inputs=` or `data=`"):
        sweeprof.Profiler(mlp()).compute("compute/macs")


def test_a_step_of_the_callers_own() -> None:
    calls: list[int] = []

    def step(model: nn.Module, x: torch.Tensor, times: int = 1) -> Any:
        calls.append(times)
        return [model(x) for _ in range(times)]

    found = sweeprof.Profiler(mlp(), inputs=sweeprof.Inputs((X,), {"times": 4}), forward=step, protocol=QUICK)
    found.compute_all("static")
    assert found.compute("compute/macs").value == found.layers.macs == 4 * 144
    assert calls == [4], "a pass is run once"
    assert found.compute("latency/forward").value is not None


class Writing(nn.Module):
    """Writes into its input, and is counted for real: it asks for a value."""

    def __init__(self, note: Callable[[float], None]) -> None:
        super().__init__()
        self.dense, self.note = nn.Linear(4, 2), note

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.note(float(x.max()))
        out: torch.Tensor = self.dense(x.mul_(2))
        return out


@pytest.mark.parametrize("kind", [lambda array: {"x": array}, torch.from_numpy])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_callers_arrays_are_not_written_to(mode: Mode, kind: Callable[[Any], Any]) -> None:
    called_with: list[float] = []
    array = np.ones((3, 4), np.float32)
    found = profiler(Writing(called_with.append), inputs=kind(array), mode=mode)
    assert found.compute("latency/forward").value is not None
    assert called_with[0] == 1
    called_with.clear()
    assert found.compute("compute/macs").value == 24
    assert found.layers.method.startswith("real forward")
    assert called_with == [1]
    np.testing.assert_array_equal(array, np.ones((3, 4)))


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("inplace", "codes"), [(True, ["inputs_changed"]), (False, [])])
def test_a_step_that_changes_what_the_next_one_finds(inplace: bool, codes: list[str], mode: Mode) -> None:
    model = nn.Sequential(nn.ReLU(inplace), nn.Linear(4, 2), nn.ReLU(inplace=True))
    found = profiler(model, mode=mode).compute("latency/forward")
    assert [warning.code for warning in found.warnings if warning.code == "inputs_changed"] == codes


def test_inputs_that_were_written_to_before_they_were_given() -> None:
    """The version of a tensor counts every write, and that of a copy of a tensor of inference mode begins at 1."""
    with torch.inference_mode():
        inputs = torch.ones(3, 4)
    for given in (inputs, torch.ones(3, 4).mul_(2)):
        found = profiler(inputs=given).compute("latency/forward")
        assert "inputs_changed" not in {warning.code for warning in found.warnings}


def test_the_arrays_of_a_data_loader_are_not_written_to() -> None:
    arrays = [np.ones((3, 4), np.float32) for _ in range(3)]
    called_with: list[float] = []
    batches = [(array, np.zeros(3, np.int64)) for array in arrays]
    found = sweeprof.Profiler(Writing(called_with.append), data=batches, protocol=QUICK)
    assert found.compute("quality/accuracy").value is not None
    assert called_with == [1, 1, 1]
    assert found.compute("latency/forward").value is not None
    np.testing.assert_array_equal(arrays, np.ones((3, 3, 4)))


# Registration


def giving(value: Any, name: str = "mine/x", unit: str = "ratio") -> sweeprof.Metric:
    @sweeprof.metric(name=name, unit=unit, better="higher")
    def given() -> Any:
        return value

    return given


def test_a_metric_of_the_callers_own() -> None:
    """It reads layers, an option, and other metrics by their names; no other profiler knows it."""

    @ratio
    def found(layers: sweeprof.LayerTable, params_total: int, batch_size: int, factor: float = 2.0) -> float:
        return factor * layers.macs / batch_size / params_total

    made = profiler()
    made.register(found)
    assert made.compute("mine/ratio").value == 96 / 58
    assert made.compute("mine/ratio", factor=0.5).value == 24 / 58
    assert set(made.status) == {"mine/ratio"}
    assert "mine/ratio" in made.metrics
    assert "mine/ratio" not in builtin_metrics()
    assert "mine/ratio" not in profiler().metrics


@pytest.mark.parametrize(
    ("name", "registered", "warned", "value"),
    [
        pytest.param("mine/x", [(1, False), (2, False)], True, 2, id="the same name"),
        pytest.param("compute/macs", [(7, False)], True, 7, id="a built-in one"),
        pytest.param("compute/macs", [(7, True)], False, 7, id="override of a built-in one"),
        pytest.param("mine/x", [(1, True), (2, False)], False, 1, id="a plain one after an override is ignored"),
    ],
)
def test_metrics_of_one_name(name: str, registered: list[tuple[int, bool]], warned: bool, value: int) -> None:
    made = profiler()
    if name in made.metrics:
        assert made.compute(name).value == 144
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for given, override in registered:
            made.register(giving(given, name), override=override)
            made.compute(name)
    assert [one.filename for one in caught] == [__file__] * warned
    assert all(f"metric '{name}' is replaced; say override=True" in str(one.message) for one in caught)
    assert made.compute(name).value == value
    assert profiler().compute("compute/macs").value == 144
    if any(override for _, override in registered):
        with pytest.raises(sweeprof.OverrideError, match=f"two metrics override '{name}'") as raised:
            made.register(giving(3, name), override=True)
        assert isinstance(raised.value, RuntimeError)
        assert made.compute(name).value == value


def test_an_override_runs() -> None:
    """An override of one of several metrics that one function returns; deeplite-profiler 1.2 wrote the others' value over it."""
    runs: list[str] = []

    @sweeprof.metric_group(MetricInfo("mine/a", "", "higher", ""), MetricInfo("mine/b", "", "higher", ""))
    def both() -> dict[str, Any]:
        runs.append("both")
        return {"mine/a": 1, "mine/b": 2}

    @sweeprof.metric(name="mine/a", unit="", better="higher")
    def other() -> int:
        runs.append("override")
        return 123

    made = profiler()
    made.register(both)
    made.register(other, override=True)
    assert values(made.compute_all(["mine/a", "mine/b"])) == {"mine/a": 123, "mine/b": 2}
    assert made.compute("mine/b", recompute=True).value == 2
    assert values(made.status) == {"mine/a": 123, "mine/b": 2}
    assert runs == ["override", "both", "both"]


@pytest.mark.parametrize("wrong", [lambda layers: 1, 7, [giving(1), 7]])
def test_what_is_no_metric(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"is not decorated by @sweeprof\.metric"):
        profiler().register(wrong)


@pytest.mark.parametrize("name", ["latency/forward", "compute/macs", "quality/accuracy"])
def test_what_the_model_raises_reaches_the_caller_as_it_was(name: str) -> None:
    raised: list[Exception] = []

    def broken(x: torch.Tensor) -> torch.Tensor:
        raised.append(ArithmeticError("no luck"))
        raise raised[-1]

    with pytest.raises(ArithmeticError, match=r"^no luck$") as caught:
        sweeprof.Profiler(Functional(broken), loader(), protocol=QUICK).compute(name)
    assert caught.value is raised[-1]
    assert caught.traceback[-1].frame.code.name == "broken"


def test_a_metric_that_raises_takes_no_other_with_it() -> None:
    @ratio
    def broken(layers: Any) -> float:
        raise ArithmeticError("no luck")

    made = profiler()
    made.register(broken)
    with pytest.warns(sweeprof.MetricWarning, match="^mine/ratio: the metric raised ArithmeticError") as caught:
        found = made.compute_all(["mine/ratio", "compute/macs"])
    assert caught[0].filename == __file__
    place = f"{Path(__file__).relative_to(Path.cwd())}:{broken.function.__code__.co_firstlineno + 2} in broken"
    assert found["mine/ratio"].reason == f"the metric raised ArithmeticError: no luck ({place})"
    assert found["compute/macs"].value == 144


# Metrics that read metrics


def test_a_metric_reads_what_the_profiler_has_under_that_name() -> None:
    """Not what another one declared, for another profiler, under the same; what was computed of a replaced one is forgotten."""

    @ratio
    def found(compute_macs: int) -> int:
        return compute_macs

    overridden, plain = profiler(), profiler()
    plain.register(found)
    overridden.register(found)
    assert overridden.compute("mine/ratio").value == 144
    overridden.register(giving(7, "compute/macs"), override=True)
    assert overridden.compute("mine/ratio").value == 7
    assert plain.compute("mine/ratio").value == 144
    assert values(plain.compute_all(["mine/ratio", "compute/macs"])) == {"mine/ratio": 144, "compute/macs": 144}


@pytest.mark.filterwarnings("ignore:metric 'mine/left' is replaced")
def test_metrics_that_read_each_other() -> None:
    giving(1, "mine/left")

    @sweeprof.metric(name="mine/right", unit="", better=None)
    def right(mine_left: float) -> float:
        return mine_left

    @sweeprof.metric(name="mine/left", unit="", better=None)
    def left(mine_right: float) -> float:
        return mine_right

    made = profiler()
    made.register([left, right])
    found = made.compute("mine/left")
    assert found.value is None
    assert "read each other" in str(found.reason)


@pytest.mark.filterwarnings("ignore::sweeprof.MetricWarning")
def test_several_metrics_of_one_function() -> None:
    calls: list[int] = []

    @sweeprof.metric_group(
        MetricInfo("mine/a", "s", "lower", "The first."),
        MetricInfo("mine/b", "", "higher", "The second."),
        MetricInfo("mine/c", "", None, "The third."),
    )
    def both(layers: sweeprof.LayerTable, factor: int = 1) -> dict[str, Any]:
        calls.append(factor)
        return {"mine/a": factor * layers.macs, "mine/b": sweeprof.Missing("not today")}

    made = profiler()
    made.register(both)
    found = made.compute_all(["mine/a", "mine/b", "mine/c"])
    assert values(found) == {"mine/a": 144, "mine/b": None, "mine/c": None}
    assert (found["mine/a"].unit, found["mine/b"].reason) == ("s", "not today")
    assert found["mine/c"].reason == "the function returned no 'mine/c'"
    assert calls == [1]
    assert made.compute("mine/a", factor=2).value == 288
    no_mapping = cast(Any, lambda: 7)
    made.register(sweeprof.metric_group(MetricInfo("mine/d", "", None, ""))(no_mapping))
    assert made.compute("mine/d").reason == "the function returned a int, not a mapping with 'mine/d'"


# Options, and what is kept


def topk_profiler() -> sweeprof.Profiler:
    """The true class is first of four for one sample, second for two, last for one."""
    scores = torch.tensor([[4.0, 3, 2, 1], [3, 4, 2, 1], [3, 4, 2, 1], [1, 4, 3, 2]])
    return sweeprof.Profiler(nn.Identity(), [(scores, torch.tensor([0, 0, 0, 0]))], protocol=QUICK)


def test_values_are_kept_by_options() -> None:
    """Defect 32: a cache that ignores them gives the first value for ever."""
    made = topk_profiler()
    assert made.compute("quality/topk", k=1).value == 0.25
    assert made.compute("quality/topk", k=2).value == 0.75
    assert made.compute("quality/topk", k=4).value == 1
    assert made.compute("quality/topk").value == 0.25
    assert made.compute("quality/topk", k=2).value == 0.75
    assert made.status["quality/topk"].value == 0.75


@pytest.mark.parametrize(
    ("given", "states"),
    [
        ({}, 0),
        ({"mode": "training", "optimizer": "momentum"}, 1),
        ({"mode": "training", "optimizer": "adam"}, 2),
        ({"mode": "training", "optimizer": "none"}, 0),
        ({"mode": "training", "optimizer": torch.optim.Adagrad}, None),
    ],
)
def test_options_of_a_training_footprint(given: dict[str, Any], states: int | None) -> None:
    """The states of an optimizer are those of its kind, of one that is not known none unless an option says how many."""
    made = profiler(**given)
    params, peak = 4 * 58, made.compute("memory/act_peak_live_bytes_train").value
    assert peak
    name = "memory/footprint_est_bytes_train"
    found = [made.compute(name, optimizer_states=n).value for n in (0, 1, 2)]
    assert found == [params + peak, 2 * params + peak, 3 * params + peak]
    by_default = made.compute(name)
    if states is None:
        assert by_default.value is None
        assert "optimizer_states says how many" in str(by_default.reason)
    else:
        assert by_default.value == found[states]


def test_an_optimizer_has_no_states_of_frozen_parameters() -> None:
    """As where only adapters or heads are trained."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    model[1].weight.requires_grad_(False)
    made = sweeprof.Profiler(model, inputs=(2, 8))
    found = [made.compute("memory/footprint_est_bytes_train", optimizer_states=n).value or 0 for n in (0, 2)]
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(2, 8)).sum().backward()
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    assert found[1] - found[0] == sum(value.nbytes for value in states) == 2 * 4 * (4 + 4 * 3 + 3)


def test_what_is_not_known_is_an_error_that_names_the_nearest() -> None:
    made = profiler()
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: made.compute("compute/mac"), r"'compute/mac' is not a metric.* Did you mean 'compute/macs'"),
        (lambda: made.compute("quality/topk", kk=1), r"quality/topk: 'kk' is not an option. Did you mean 'k'"),
        (lambda: made.compute_all("statik"), r"'statik' is not a metric set.* Did you mean 'static'"),
        (lambda: made.compute_all(["quality/topk"], options={"quality/topk": {"kk": 1}}), r"'kk' is not an option"),
        (
            lambda: made.compute_all("static", options={"quality/topk": {"k": 1}}),
            r"options: 'quality/topk' is not a metric",
        ),
        (lambda: profiler(strict="wrn", mode="infer"), r"mode: 'infer' is not a kind of step"),
        (lambda: profiler(protocol="fast"), r"protocol: 'fast' is not a sweeprof\.Protocol"),
        (
            lambda: profiler(protocol=sweeprof.Protocol(min_s=math.nan, decide="basline")),  # type: ignore[arg-type]
            r"(?s)protocol\.min_s: nan is not a duration.*protocol\.decide: 'basline' is not a .* Did you mean 'baseline'",
        ),
        (lambda: made.compute_all(5), r"metrics: 5 is not the name of a metric set, or a list of metrics"),  # type: ignore[arg-type]
        (lambda: sweeprof.profile(mlp(), (-1, 4)), r"inputs: \(-1, 4\) is not a shape: a size is negative"),
        (lambda: profiler(backend="trch"), r"backend: 'trch' is not a backend.* Did you mean 'torch'"),
        (lambda: sweeprof.Profiler(object()), r"model: 'object' is not a model of a framework that sweeprof knows"),
        (lambda: made.compute_all(["compute/macs", "compute/macs"]), r"'compute/macs' is selected twice"),
    ]
    for call, said in cases:
        with pytest.raises(sweeprof.UserError, match=said) as caught:
            call()
        assert isinstance(caught.value, ValueError)
    assert dict(made.status) == {}


def test_recompute() -> None:
    model = mlp()
    made = profiler(model)
    assert made.compute("params/total").value == 58
    model.append(nn.Linear(2, 2))
    assert made.compute("params/total").value == 58
    assert made.compute("params/total", recompute=True).value == 64
    model.append(nn.Linear(2, 2))
    assert values(made.compute_all(["params/total", "compute/macs"], recompute=True)) == {
        "params/total": 70,
        "compute/macs": 144 + 2 * 12,
    }
    assert made.layers.params == 70


def test_all_that_there_is() -> None:
    made = profiler()
    made.register(giving(7))
    found = made.compute_all()
    assert set(found) == {*builtin_metrics(), "mine/x"}
    assert found["mine/x"].value == 7
    assert all((m.value is None) != (m.reason is None) for m in found.values())


def test_a_metric_that_was_not_measured_is_an_error_that_names_the_closest() -> None:
    made = profiler()
    for results in (made.compute_all(["compute/macs", "params/total"]), made.status):
        with pytest.raises(KeyError) as caught:
            results["compute/mac"]
        assert str(caught.value) == "'compute/mac' is not among the measured metrics. Did you mean 'compute/macs'?"
        assert isinstance(caught.value, sweeprof.SweeprofError)
        with pytest.raises(KeyError, match=r"There are: compute/macs, params/total\.$"):
            results["xyz"]
        assert results.get("compute/mac") is None
        assert "compute/mac" not in results


def test_status_is_the_newest_and_cannot_be_written() -> None:
    made = topk_profiler()
    status = made.status
    assert dict(status) == {}
    first = made.compute("quality/topk", k=1)
    assert status["quality/topk"] is first
    made.compute_all([{"_target_": "quality/topk", "k": 2}, "quality/accuracy"])
    assert values(status) == {"quality/topk": 0.75, "quality/accuracy": 0.25}
    assert made.compute("quality/topk", k=1) is status["quality/topk"]
    with pytest.raises(TypeError, match="does not support item assignment"):
        cast(Any, status)["quality/topk"] = first
    with pytest.raises(TypeError, match="does not support item assignment"):
        cast(Any, made.metrics)["mine/x"] = giving(1)


# Clones and comparisons


def test_a_clone_of_the_same_keeps_what_is_known() -> None:
    """From then on each goes its own way."""
    made = profiler()
    made.register(giving(7), override=True)
    made.compute_all(["compute/macs", "mine/x"])
    other = made.clone()
    assert values(other.status) == {"compute/macs": 144, "mine/x": 7}
    with pytest.raises(sweeprof.OverrideError):
        other.register(giving(8), override=True)
    made.register(giving(9, "compute/macs"), override=True)
    made.compute_all(["compute/macs", "params/total"], recompute=True)
    assert values(made.status) == {"compute/macs": 9, "mine/x": 7, "params/total": 58}
    assert values(other.status) == {"compute/macs": 144, "mine/x": 7}
    assert other.compute("compute/macs", recompute=True).value == 144
    other.register(giving(8, "params/total"), override=True)
    assert (other.compute("params/total").value, made.compute("params/total").value) == (8, 58)


def test_a_clone_of_another_model_starts_anew() -> None:
    made = profiler(formulas={nn.ReLU: lambda module, inputs, outputs: sweeprof.Cost(macs=1000)})
    made.register(giving(7))
    made.compute_all(["compute/macs", "mine/x"])
    other = made.clone(model=nn.Sequential(nn.Linear(4, 5), nn.ReLU()))
    assert dict(other.status) == {}
    assert other.compute("compute/macs").value == 60 + 1000
    assert other.compute("mine/x").value == 7
    assert made.status["compute/macs"].value == 1144


def test_a_clone_has_the_same_settings() -> None:
    made = sweeprof.Profiler(
        mlp(), inputs=(3, 4), strict="error", forward=lambda model, x: model(model(x)), protocol=QUICK
    )
    other = made.clone(model=nn.Linear(4, 4))
    assert other.compute("compute/macs").value == 2 * 48
    with pytest.raises(sweeprof.Uncounted):
        profiler(strict="error").clone(model=Fused()).compute("compute/macs")
    assert other.session.protocol == QUICK


def test_a_clone_on_other_data_starts_anew() -> None:
    made = profiler()
    made.compute("compute/macs")
    other = made.clone(inputs=(6, 4))
    assert dict(other.status) == {}
    assert other.compute("compute/macs").value == 288
    onto = made.clone(data=[(torch.ones(2, 4), torch.tensor([0, 1]))])
    assert onto.compute("compute/macs").value == 96
    assert onto.compute("quality/accuracy").value is not None


def measurement(value: float | None, better: Any = "lower", unit: str = "", reason: str | None = None) -> Measurement:
    return Measurement("mine/x", unit, better, value, reason if value is None else None)


def test_a_comparison_says_which_is_the_baseline() -> None:
    """Swapped, every direction is the other."""
    baseline, candidate = profiler(), profiler(nn.Linear(4, 6))
    for one in (baseline, candidate):
        one.compute_all(["compute/macs", "params/total"])
    there, back = sweeprof.compare(baseline, candidate), sweeprof.Profiler.compare(candidate, baseline)
    found = {d.name: d for d in there}["compute/macs"]
    assert (found.baseline, found.candidate, found.difference) == (144, 72, -72)
    assert (found.ratio, found.improvement, found.unit) == (0.5, 2, "MAC")
    swapped = {d.name: d for d in back}["compute/macs"]
    assert (swapped.ratio, swapped.improvement, swapped.difference) == (2, 0.5, 72)
    assert [d.name for d in there] == ["compute/macs", "params/total"]


def test_a_comparison_computes_what_a_side_has_not_computed() -> None:
    baseline, candidate = topk_profiler(), topk_profiler()
    baseline.compute_all(["compute/macs", "quality/topk"], options={"quality/topk": {"k": 2}})
    candidate.compute("quality/topk", k=4)
    candidate.compute("quality/accuracy")
    found = {d.name: d for d in sweeprof.compare(baseline, candidate)}
    assert list(found) == ["compute/macs", "quality/topk", "quality/accuracy"]
    assert all(d.verdict == "same" for d in found.values())
    # The options of the baseline count: a top-2 and a top-4 accuracy are not comparable.
    assert (found["quality/topk"].baseline, found["quality/topk"].candidate) == (0.75, 0.75)
    assert (found["quality/accuracy"].baseline, found["quality/accuracy"].candidate) == (0.25, 0.25)


def test_a_comparison_of_profiles_keeps_what_they_have() -> None:
    options = {"quality/topk": {"k": 2}}
    baseline, candidate = topk_profiler(), topk_profiler()
    before = baseline.compute_all(["quality/topk"], options=options)
    baseline.compute("quality/topk", k=4)  # which is not part of the profile
    stored = sweeprof.Profile.from_dict(json.loads(json.dumps(before.to_dict())))
    for first in (before, stored):
        (found,) = sweeprof.compare(first, candidate)
        assert (found.baseline, found.candidate) == (0.75, 0.75)
    model = mlp()
    earlier = sweeprof.profile(model, (3, 4), ["params/total"])
    model.append(nn.Linear(2, 2))
    later = earlier.profiler.compute_all(["params/total", "compute/macs"], recompute=True)
    found, _ = sweeprof.compare(earlier, later)
    assert (found.baseline, found.candidate) == (58, 64)


def test_a_comparison_with_what_only_one_side_can_compute() -> None:
    baseline, candidate = profiler(), profiler()
    baseline.register(giving(7))
    baseline.compute("mine/x")
    (found,) = sweeprof.compare(baseline, candidate)
    assert (found.baseline, found.candidate, found.reason) == (7, None, "the candidate has no such metric")
    (found,) = sweeprof.compare({"compute/macs": measurement(288, unit="MAC")}, profiler())
    assert (found.candidate, found.ratio) == (144, 0.5)


FIVE, NOWHERE, NONE = measurement(5), measurement(None, reason="not today"), (None, None, None)


@pytest.mark.parametrize(
    ("base", "own", "figures", "row"),
    [
        (measurement(4), measurement(2), (0.5, -2, 2), "mine/x 4 2 ×0.50 better"),
        (measurement(4, "higher"), measurement(2, "higher"), (0.5, -2, 0.5), "mine/x 4 2 ×0.50 worse"),
        (measurement(4, None), measurement(2, None), (0.5, -2, None), "mine/x 4 2 ×0.50"),
        (measurement(0), FIVE, (math.inf, 5, 0), "mine/x 0 5 ×∞ worse the baseline is zero"),
        (measurement(0.0), measurement(-5.0), (-math.inf, -5, 0), "mine/x 0 -5.00 ×−∞ better the baseline is zero"),
        (FIVE, measurement(0), (0, -5, math.inf), "mine/x 5 0 ×0 better"),
        (measurement(0), measurement(0), (None, 0, None), "mine/x 0 0 – same both are zero"),
        (measurement(math.inf), FIVE, None, "mine/x – 5 – baseline: not a finite number: inf"),
        (FIVE, measurement(-math.inf), None, "mine/x 5 – – candidate: not a finite number: -inf"),
        (FIVE, None, NONE, "mine/x 5 – – the candidate has no such metric"),
        (None, FIVE, NONE, "mine/x – 5 – the baseline has no such metric"),
        (FIVE, NOWHERE, NONE, "mine/x 5 – – candidate: not today"),
        (NOWHERE, NOWHERE, NONE, "mine/x – – – baseline: not today"),
    ],
)
def test_the_difference_of_any_two_values(base: Any, own: Any, figures: Any, row: str) -> None:
    """Of 0 and 5 and of 5 and 0 it is not the same; a side that is missing keeps its row."""
    sides: list[dict[str, Measurement]] = [{} if side is None else {"mine/x": side} for side in (base, own)]
    found = sweeprof.compare(sides[0], sides[1])
    one = found[0]
    if figures is not None:
        assert (one.ratio, one.difference, one.improvement) == figures
        assert (one.baseline, one.candidate) == (base and base.value, own and own.value)
    assert " ".join(found.to_text(width=100).splitlines()[-1].split()) == row
    assert " ".join(one.to_text(width=100).splitlines()[-1].split()) == row
    assert row.split()[3] in found.to_html()
    told = {"better", "worse", "same"} & set(row.split())
    assert (one.verdict or "") in (told or {""})
    if one.better is not None:
        assert row.endswith(one.reason or "")
        assert found.to_frame().loc[0, "reason"] == one.reason


def test_a_layer_without_a_counterpart_of_zero_has_no_ratio() -> None:
    plain, normed = (sweeprof.profile(model, (2, 4)).layers for model in (nn.Identity(), nn.BatchNorm1d(4)))
    assert "–" in str(sweeprof.side_by_side(plain, normed, columns="params"))


def test_two_models_are_compared_without_profilers() -> None:
    teacher, student = nn.Linear(4, 6), nn.Linear(4, 1)
    found = sweeprof.compare(teacher, student, (3, 4), names=("teacher", "student"))
    assert str(found).startswith("By MACs/sample, student is 6.0× lower than teacher.")
    assert found.names == ("teacher", "student")
    mixed = sweeprof.compare(sweeprof.profile(teacher, (3, 4)), student, (3, 4), ["compute/macs"])
    assert list(mixed) == list(found)  # what only the profile had is computed of the model, too
    renamed = sweeprof.compare(profiler(name="a"), profiler(), names=("one", "two"))
    assert renamed.names == ("one", "two")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((nn.Linear(4, 2), nn.ReLU()), r"baseline: 'Linear' is taken for a model, .*\ncandidate: 'ReLU' is taken"),
        (({}, nn.Linear(4, 2)), "^candidate: 'Linear' is taken for a model, which needs inputs: compare"),
        (({}, {}, (3, 4)), "^inputs: .* is for models, and neither side is one"),
        (({"x": 1}, {}, (3, 4)), "'dict' is not a model of a framework"),
    ],
)
def test_a_comparison_says_what_it_takes(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(sweeprof.UserError, match=message):
        sweeprof.compare(*arguments)


def test_a_profile_leaves_out_what_cannot_apply_and_keeps_reasons() -> None:
    found = profiler(model=nn.Linear(4, 2)).compute_all(["compute/macs", "latency/backward", "memory/rss_peak_bytes"])
    text = found.to_text(width=300)
    assert "No memory/rss_peak_bytes: memory: unsupported: resident memory is that of a whole process" in text
    assert text.splitlines()[-1] == (
        "Not of this mode, backend or device: latency/backward; to_frame() lists all, with the reasons."
    )
    assert found["latency/backward"].reason is not None
    alone = sweeprof.profile(nn.Linear(4, 2), (3, 4), ["latency/backward"], protocol=QUICK)
    assert "No latency/backward: mode=inference: a step is a forward alone" in str(alone)


def test_a_comparison_shows_the_names_of_profilers() -> None:
    teacher = profiler(name="teacher")
    student = teacher.clone(model=nn.Linear(4, 2), name="student")
    teacher.compute("compute/macs")
    found = sweeprof.compare(teacher, student)
    assert str(found).splitlines()[2].split() == ["metric", "teacher", "student", "ratio", "verdict", "note"]
    assert "student" in found.to_html()
    assert "student is" in str(found).splitlines()[0]
    assert "  teacher  student" in str(found.shown(order="compute/macs"))
    assert str(teacher).startswith("Profiler of teacher (Sequential)")
    stored = sweeprof.Profile.from_dict(json.loads(json.dumps(teacher.compute_all("compute/macs").to_dict())))
    assert str(stored).startswith("teacher (Sequential): 1 metric")
    assert "teacher  candidate" in str(sweeprof.compare(stored, student.clone(model=nn.Linear(4, 3))))
    assert "baseline and candidate are equal" in str(sweeprof.compare(teacher, teacher.clone(name="teacher")))
    assert "baseline  candidate" in str(sweeprof.compare(teacher.clone(name="candidate"), teacher.clone()))


def test_dictionaries_of_results_can_be_printed_and_stored() -> None:
    own = profiler(mode="training")
    profile = own.compute_all("static")
    for result in (profile, profile.layers, profile.graph, *map(own.seen, ("timing", "layer_times", "operators"))):
        data = result.to_dict()  # type: ignore[attr-defined]
        assert len(repr(data)) > 100
        assert json.loads(json.dumps(data)).keys() == data.keys()
    assert "'path': '2'" in repr(asdict(profile.layers))
    assert json.dumps(own.layers.timings())
    assert json.dumps(own.layers.timepool())


def test_the_total_time_as_a_frame() -> None:
    own = profiler(mode="training")
    timing = own.seen("timing")
    assert isinstance(timing, sweeprof.Timing)
    raw = timing.to_frame()
    assert raw["step_s"].tolist() == list(timing.samples)
    assert raw["backward_s"].tolist() == list(timing.phases["backward"])
    assert raw["repeat"].tolist() == list(range(len(timing.samples)))
    (line,) = timing.to_frame(aggr=True, host=True).to_dict("records")
    assert line["step_median_s"] == timing.median_s
    assert line["host_name"] == socket.gethostname()
    assert "backward_s" not in profiler().seen("timing").to_frame()  # type: ignore[attr-defined]


def test_frames_say_why_a_value_is_missing() -> None:
    own = profiler()
    assert set(own.layers.to_frame()["time_reason"]) == {"no times were measured"}
    own.seen("layer_times")
    assert set(own.layers.to_frame()["time_reason"]) == {"the backward was not measured"}
    operators = own.seen("operators").to_frame()  # type: ignore[attr-defined]
    unknown = operators[operators["flops"].isna()]
    assert len(unknown)
    assert unknown["reason"].str.startswith("FLOPs: ").all()
    assert operators["reason"].str.contains("device: ").all()
    without = sweeprof.profile(mlp(), (3, 4), exclude="0").layers.to_frame().set_index("path")
    assert without.loc["__root__", "count_reason"] == "flops_per_s: excluded modules are part of the time"
    assert without.loc["2", "count_reason"] is None
    own.compute_all(["params/frozen", "params/trainable"])
    compared = sweeprof.compare(own, own.clone()).to_frame()
    assert compared["reason"].tolist() == ["both are zero", "neither direction is better"]
    (line,) = replace(own.seen("timing"), samples=(1.0,)).to_frame(aggr=True).to_dict("records")  # type: ignore[attr-defined]
    assert (line["step_std_s"], line["reason"]) == (None, "one repeat has no standard deviation")


def test_what_the_frame_of_layers_has() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2).requires_grad_(False))
    own = profiler(model)
    own.seen("layer_times")
    frame = own.layers.to_frame().set_index("path")
    assert frame["trainable"].tolist() == [0, 40, 0, 0]
    assert frame["frozen"].tolist() == [0, 0, 0, 18]
    linear = frame.loc["0"]
    assert linear["dtypes"] == {"float32": 40}
    assert linear["input_dtypes"] == linear["output_dtypes"] == ("float32",)
    assert frame["params_share"].tolist() == [0, 40 / 58, 0, 18 / 58]
    assert frame["input_shapes"].tolist() == [((3, 4),), ((3, 4),), ((3, 8),), ((3, 8),)]
    assert frame["output_shapes"].tolist() == [((3, 2),), ((3, 8),), ((3, 8),), ((3, 2),)]
    assert (frame["forward_s"] > 0).all()
    assert linear["flops_per_s"] == linear["flops"] / linear["forward_self_s"]
    whole = own.layers.inclusive().to_frame().set_index("path").loc["__root__"]
    assert (whole["trainable"], whole["frozen"], whole["params_share"]) == (40, 18, 1)


def test_one_name_may_be_given_as_text() -> None:
    own = profiler()
    own.register(sweeprof.evaluation(lambda model, batches: {"a": 1, "b": 2}, key="a", secondary="b"))
    assert set(own.metrics) >= {"quality/eval", "quality/b"}
    layers = own.layers
    for name in ("macs", "params_share"):
        assert layers.tree(columns=name) == layers.tree(columns=[name])
        assert layers.to_markdown(columns=name) == layers.to_markdown(columns=[name])
        assert layers.to_latex(columns=name) == layers.to_latex(columns=[name])
    assert layers.tree(rows="path") == layers.tree(rows=["path"])


def test_units_must_match() -> None:
    assert str(sweeprof.compare({}, {})) == "There are no metrics to compare."
    with pytest.raises(ValueError, match="mine/x is in 's' and in 'ms'"):
        sweeprof.compare({"mine/x": measurement(5, unit="s")}, {"mine/x": measurement(5, unit="ms")})


# Evaluation


def loader(batches: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.ones(3, 4), torch.tensor([0, 1, 1]))] * batches


def test_a_function_of_the_callers_own() -> None:
    """All that it returns is computed by one call."""
    calls: list[Any] = []

    def evaluate(model: nn.Module, batches: Any) -> dict[str, int]:
        """What the caller knows."""
        calls.append((model, len(list(batches))))
        return {"a": 10, "b": 20, "c": 30, "d": 40}

    model = mlp()
    made = sweeprof.Profiler(model, loader())
    made.register(sweeprof.evaluation(evaluate, key="a", secondary=["b", "c"]))
    assert (made.compute("quality/eval").value, made.compute("quality/b").value) == (10, 20)
    assert list(made.status) == ["quality/eval", "quality/b"]
    found = made.compute_all([name for name in made.metrics if name not in builtin_metrics()])
    assert values(found) == {"quality/eval": 10, "quality/b": 20, "quality/c": 30}
    assert found["quality/eval"].better == "higher"
    assert made.metrics["quality/eval"].info.definition == "What the caller knows."
    assert calls == [(model, 2)]


def test_options_of_an_evaluation_function() -> None:
    calls: list[tuple[float, bool]] = []

    def above(model: nn.Module, batches: Any, threshold: float = 0.5, *, strict: bool = False) -> dict[str, float]:
        calls.append((threshold, strict))
        outputs = torch.cat([model(x) for x, _ in batches])
        found = outputs > threshold if strict else outputs >= threshold
        return {"share": float(found.float().mean()), "count": int(found.sum())}

    scores, name = torch.tensor([[0.1, 0.5], [0.7, 0.9]]), "quality/threshold"
    made = sweeprof.Profiler(nn.Identity(), [(scores, torch.tensor([0, 1]))])
    made.register(sweeprof.evaluation(above, name=name, key="share", secondary=["count"]))
    assert made.compute(name).value == 0.75
    assert made.compute(name, threshold=0.8).value == 0.25
    assert made.compute("quality/count", threshold=0.8).value == 1
    assert values(made.compute_all([name], options={name: {"strict": True}})) == {name: 0.5}
    assert calls == [(0.5, False), (0.8, False), (0.5, True)]
    with pytest.raises(sweeprof.UserError, match=r"'treshold' is not an option. Did you mean 'threshold'.*strict, thr"):
        made.compute(name, treshold=0.8)


def test_an_option_needs_a_default() -> None:
    with pytest.raises(TypeError, match=r"takes 'threshold': an option, which follows .* needs a default"):
        sweeprof.evaluation(lambda model, batches, threshold: threshold)
    with pytest.raises(TypeError, match="takes 'data', which no option can be called"):
        sweeprof.evaluation(lambda model, batches, data=None: data)
    made = sweeprof.Profiler(nn.Identity(), [torch.ones(2)])
    made.register(sweeprof.evaluation(lambda *arguments, **more: len(arguments) + len(more)))
    assert made.compute("quality/eval").value == 2


def test_secondary_metrics_may_be_described() -> None:
    def evaluate(model: Any, batches: Any) -> dict[str, float]:
        return {"acc": 0.5, "t": 2}

    seconds = MetricInfo("quality/seconds", "s", "lower", "How long it took.")
    made = sweeprof.Profiler(mlp(), loader())
    made.register(sweeprof.evaluation(evaluate, name="quality/mine", unit="ratio", key="acc", secondary={"t": seconds}))
    found = made.compute_all(["quality/mine", "quality/seconds"])
    assert [(m.value, m.unit, m.better) for m in found.values()] == [(0.5, "ratio", "higher"), (2, "s", "lower")]


@pytest.mark.parametrize(
    ("returned", "given", "value", "reason"),
    [
        (torch.tensor(0.5), {}, 0.5, None),
        (0.5, {"key": "a"}, 0.5, None),
        ({"a": 3}, {}, 3, None),
        ({"a": 3, "b": 4}, {}, None, "the function returned 'a', 'b': say which one by `key=`"),
        ({"a": 3}, {"key": "b"}, None, "the function returned no 'b'"),
        ({"a": 1}, {"key": "a", "secondary": ["b"]}, 1, None),
        ({}, {}, None, "the function returned an empty mapping"),
        ({"a": "x"}, {}, None, "the metric gave 'x', which is not a finite number"),
    ],
)
@pytest.mark.filterwarnings("ignore::sweeprof.MetricWarning")
def test_what_the_function_may_return(returned: Any, given: Any, value: Any, reason: str | None) -> None:
    made = sweeprof.Profiler(mlp(), loader())
    made.register(sweeprof.evaluation(lambda model, batches: returned, **given))
    found = made.compute("quality/eval")
    assert (found.value, found.reason) == (value, reason)
    if "secondary" in given:
        assert made.compute("quality/b").reason == "the function returned no 'b'"


@pytest.mark.filterwarnings("ignore::sweeprof.MetricWarning")
def test_the_split_that_is_evaluated() -> None:
    made = sweeprof.Profiler(mlp(), {"train": loader(3), "test": loader(1)})
    made.register(sweeprof.evaluation(lambda model, batches: len(batches), split="train"))
    made.register(sweeprof.evaluation(lambda model, batches: len(batches), name="quality/other"))
    made.register(sweeprof.evaluation(lambda model, batches: len(batches), name="quality/none", split="valid"))
    assert made.compute("quality/eval").value == 3
    assert made.compute("quality/other").value == 1
    assert "split: 'valid' is not a split" in str(made.compute("quality/none").reason)


def test_live_metrics() -> None:
    """They read the model and the data, and a metric may read a live one."""
    seen: list[Any] = []
    evaluated = sweeprof.evaluation(lambda model, batches: 0.5)

    @ratio
    def found(model: nn.Module, data: sweeprof.Data, scale: float = 1.0) -> float:
        seen.append((model.training, len(list(data.split("test")))))
        return scale * sum(p.numel() for p in model.parameters())

    @sweeprof.metric(name="mine/x", unit="ratio", better="higher")
    def of_evaluated(quality_eval: float, params_total: int) -> float:
        return quality_eval / params_total

    model = mlp().train()
    made = sweeprof.Profiler(model, loader())
    made.register([*evaluated, found, of_evaluated])
    assert made.compute("mine/ratio").value == 58
    assert made.compute("mine/ratio", scale=2.0).value == 116
    assert seen == [(False, 2)] * 2
    assert all(module.training for module in model.modules())
    assert made.compute("mine/x").value == 0.5 / 58
    assert values(made.compute_all(["quality/eval", "mine/x"])) == {"quality/eval": 0.5, "mine/x": 0.5 / 58}


def test_what_is_there_and_what_was_seen_are_not_read_together() -> None:
    with pytest.raises(TypeError, match="reads model, which are not there when layers can be read"):

        @ratio
        def found(model: Any, layers: Any) -> float:
            return 0


# Stock evaluators


def one_hot(*classes: int, of: int = 7) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(classes), of).float() + torch.arange(of) * 0.01


def test_over_all_samples_not_batch_by_batch() -> None:
    """Four right of four, none of one: 0.8, where the mean of the batches is 0.5."""
    data = [(one_hot(0, 1, 2, 3), torch.tensor([0, 1, 2, 3])), (one_hot(4), torch.tensor([0]))]
    found = sweeprof.Profiler(nn.Identity(), data)
    scores = torch.cat([one_hot(0, 1, 2, 3), one_hot(4)])
    loss = nn.functional.cross_entropy(scores.double(), torch.tensor([0, 1, 2, 3, 0])).item()
    assert found.compute("quality/accuracy").value == 0.8
    assert found.compute("quality/error").value == pytest.approx(0.2)
    assert found.compute("quality/top5").value == 0.8
    assert found.compute("quality/loss").value == pytest.approx(loss, rel=1e-6)


# Data


@dataclass
class Output:
    """As Hugging Face's models return."""

    loss: torch.Tensor | None
    logits: torch.Tensor


class ModelOutput(OrderedDict[str, Any]):
    """The same as a mapping with attributes."""


@pytest.mark.parametrize(
    "wrap",
    [lambda x: [x, None], lambda x: Output(None, x), lambda x: ModelOutput(logits=x, hidden=(x, x))],
)
def test_outputs_in_containers(wrap: Callable[[torch.Tensor], Any]) -> None:
    data = [(one_hot(0, 1, 2), torch.tensor([0, 1, 0]))]
    made = sweeprof.Profiler(Functional(wrap), data)
    assert made.layers.rows[0].output_shapes[0] == (3, 7)
    assert made.compute("quality/accuracy").value == pytest.approx(2 / 3)


def answer(model: Any, *, states: torch.Tensor, mask: torch.Tensor | None = None) -> Output:
    logits = model.linear(states)
    return Output(None, logits if mask is None else logits * mask)


STATES = torch.ones(3, 4)
LABELS = torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    "data",
    [
        [{"states": STATES, "mask": torch.ones(3, 1), "labels": LABELS}],
        [({"states": STATES, "mask": torch.ones(3, 1)}, LABELS)],
        {"test": [{"states": STATES, "labels": LABELS}], "train": []},
    ],
)
def test_batches_by_keyword(data: Any) -> None:
    made = sweeprof.Profiler(Applied(answer, linear=nn.Linear(4, 2)), data, protocol=QUICK)
    assert made.compute("compute/macs").value == 24
    assert made.compute("quality/accuracy").value in (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert made.compute("compute/macs_backward").value == 24


def test_an_input_pattern_may_pass_the_labels_of_a_mapping() -> None:
    """A model that computes its loss of the labels, as models of transformers do."""

    def forward(model: Any, x: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = model.linear(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    def pattern(batch: Any) -> sweeprof.Inputs:
        return sweeprof.Inputs(kwargs=batch)

    data = [{"x": torch.randn(5, 4), "labels": torch.tensor([0, 1, 2, 0, 1])}]
    model: Any = Applied(forward, linear=nn.Linear(4, 3))
    profiler = sweeprof.Profiler(model, data, input_pattern=pattern, mode="training", loss="own", protocol=QUICK)
    assert profiler.compute("latency/backward").value
    right = (model.linear(data[0]["x"]).argmax(1) == data[0]["labels"]).float().mean()
    assert profiler.compute("quality/accuracy").value == pytest.approx(float(right))


def test_an_input_pattern() -> None:
    data = [(torch.ones(3, 1), "ignored", one_hot(0, 1, 2), torch.tensor([0, 1, 0]))]
    made = sweeprof.Profiler(Functional(torch.mul), data, input_pattern=sweeprof.pattern_of(1, "_", 0, "_"))
    assert made.layers.rows[0].input_shapes == ((3, 7), (3, 1))
    assert made.compute("quality/accuracy").value == pytest.approx(2 / 3)
    assert made.clone(data=data).compute("quality/accuracy").value == pytest.approx(2 / 3)


def test_inputs_beside_the_data() -> None:
    made = sweeprof.Profiler(mlp(), loader(), inputs=(5, 4))
    assert made.compute("compute/macs_per_sample").value == 48
    assert made.compute("compute/macs").value == 5 * 48
    assert made.compute("quality/accuracy").value is not None


# Operators and modules without a formula


@torch.library.custom_op("sweeprof_profiler::fused", mutates_args=())
def fused(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight


@fused.register_fake
def _(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[-1])


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = fused(self.linear(x), self.weight)
        return out


def test_an_operator_without_a_formula_is_warned_of() -> None:
    """On the line of the caller."""
    own = sweeprof.Profiler(Fused(), inputs=(3, 4))
    calls: list[Any] = [
        lambda: own.compute("compute/macs"),
        lambda: own.compute_all("static", recompute=True),
        lambda: sweeprof.profile(Fused(), (3, 4)),
    ]
    for call in calls:
        with pytest.warns(
            sweeprof.UncountedWarning, match=r"no formula for sweeprof_profiler::fused ×1: counts are a lower bound"
        ) as caught:
            found = call()
        line = call.__code__.co_firstlineno
        assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, line)]
    assert (found["compute/macs"].value, found["compute/macs"].estimator) == (48, "lower bound")
    assert [warning.code for warning in found["compute/macs"].warnings] == ["count_incomplete"]
    assert found["compute/coverage"].value == 0.5
    assert found["compute/coverage"].detail == {"sweeprof_profiler::fused": 1}
    assert found.layers.method == "shapes"


def test_an_operator_without_a_formula_can_be_an_error_or_ignored() -> None:
    for metrics in ("static", ["compute/macs_backward"]):
        with pytest.raises(sweeprof.Uncounted, match="no formula for sweeprof_profiler::fused ×1"):
            sweeprof.profile(Fused(), (3, 4), metrics, strict="error")
    found = sweeprof.profile(Fused(), (3, 4), strict="ignore")
    assert (found["compute/macs"].value, found["compute/coverage"].value) == (48, 0.5)


def of_fused(args: Any, kwargs: Any, output: Any) -> sweeprof.Cost:
    return sweeprof.Cost(macs=output.numel() * args[0].shape[-1])


class PlusOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def of_plus(module: nn.Module, inputs: Any, outputs: Any) -> sweeprof.Cost:
    return sweeprof.Cost(macs=3 * outputs.numel(), flops=5, ops=outputs.numel() * len(inputs))


@pytest.mark.parametrize(
    ("model", "inputs", "formulas", "without", "found"),
    [
        pytest.param(
            *(Fused(), (3, 4), {"sweeprof_profiler::fused": of_fused}, 48),
            {"compute/macs": 48 + 24, "compute/flops": 2 * (48 + 24) + 12, "compute/coverage": 1},
            id="an operator",
        ),
        pytest.param(
            *(Fused(), (3, 4), {Fused: lambda *_: sweeprof.Cost(macs=7, flops=14)}, 48),
            {"compute/macs": 7 + 48, "compute/coverage": 1},
            id="a module covers what it runs, and what is within it counts itself",
        ),
        pytest.param(
            *(mlp(), (3, 4), {nn.Linear: lambda *_: sweeprof.Cost(macs=1)}, 144),
            {"compute/macs": 2, "compute/flops": 342},
            id="what it does not say is left",
        ),
        pytest.param(
            *(PlusOne(), (1, 8), {PlusOne: of_plus}, 0),
            {"compute/macs": 24, "compute/flops": 5, "compute/ops": 8},
            id="a module",
        ),
    ],
)
def test_formulas(model: nn.Module, inputs: Any, formulas: Any, without: int, found: dict[str, float]) -> None:
    """Given with a call, they hold for that call alone."""
    profile = sweeprof.profile(model, inputs, formulas=formulas, strict="error")
    assert {name: profile[name].value for name in found} == found
    assert profile.layers.macs == profile["compute/macs"].value
    assert profile.layers.uncovered == {}
    assert macs(model, inputs, strict="ignore") == without


def test_a_formula_for_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEFAULTS, "_modules", {})
    monkeypatch.setattr(DEFAULTS, "_operators", {})
    assert sweeprof.module_formula(PlusOne)(of_plus) is of_plus, "it is still a function"
    assert sweeprof.operator_formula("sweeprof_profiler::fused")(of_fused) is of_fused
    assert macs(Fused(), (3, 4)) == 48 + 24
    assert macs(PlusOne(), (1, 8)) == 24
    own = {PlusOne: lambda module, inputs, outputs: sweeprof.Cost(macs=1)}
    assert macs(PlusOne(), (1, 8), formulas=own) == 1
    assert macs(PlusOne(), (1, 8)) == 24


def test_shapes_from_a_formula() -> None:
    given: Any = {nn.ReLU: lambda module, inputs, outputs: sweeprof.Cost(input_shapes=((1,),), output_shapes=((2, 2),))}
    (row,) = (r for r in sweeprof.profile(mlp(), (3, 4), formulas=given).layers.rows if r.type == "ReLU")
    assert (row.input_shapes, row.output_shapes, row.flops) == (((1,),), ((2, 2),), 24)


def test_a_formula_of_an_operator_counts_where_the_operator_runs() -> None:
    layers = sweeprof.profile(Fused(), (3, 4), formulas={"sweeprof_profiler::fused": of_fused}).layers
    assert [row.macs for row in layers.rows] == [24, 48]


class Quantised(nn.Linear):
    """Two bits a weight."""

    def compute_module_complexity(self, inputs: Any, outputs: Any) -> dict[str, Any]:
        return {"flops": 1000 + inputs[0].numel(), "param_size": {"weight": 2 / 8}, "activation_size": 1 / 2}


class OneSize(nn.Linear):
    """Two bits for each parameter."""

    def compute_module_complexity(self, inputs: Any, outputs: Any) -> dict[str, Any]:
        return {"flops": 123.0, "param_size": 2 / 8}


def test_what_a_module_declares_itself() -> None:
    found = values(sweeprof.profile(nn.Sequential(Quantised(4, 8), nn.ReLU()), (3, 4)))
    assert found["compute/flops"] == 1000 + 12 + 24
    assert found["compute/macs"] == 96
    assert found["size/params_bytes"] == 32 * 2 / 8 + 8 * 4
    assert found["size/params_bits"] == 32 * 2 + 8 * 32
    assert found["memory/act_sum_bytes"] == 24 / 2 + 24 * 4


def test_a_module_declares_one_size_for_all_its_parameters() -> None:
    """Its FLOPs are the complexity of deeplite."""
    names = ["size/params_bits", "compute/flops", "compat/d1", "compat/d2"]
    profile = sweeprof.profile(nn.Sequential(OneSize(16, 8), nn.Linear(8, 4)), (1, 16), names)
    found = values(profile)
    assert found["size/params_bits"] == (16 * 8 + 8) * 2 + (8 * 4 + 4) * 32
    assert isinstance(found["compute/flops"], int)
    assert (found["compat/d1"], found["compat/d2"]) == (123 + 32 + 4, 123 + 32)
    assert [value for row, value in profile.layers.compat("d2").rows if row.path == "0"] == [123]


@pytest.mark.parametrize("declared", [{"flops": "many"}, {"flops": 1, "param_size": "small"}, {"flops": -1}])
def test_what_a_module_declares_must_be_numbers(declared: dict[str, Any]) -> None:
    class Wrong(nn.Linear):
        def compute_module_complexity(self, inputs: Any, outputs: Any) -> dict[str, Any]:
            return declared

    with pytest.raises(TypeError, match=r"Wrong\.compute_module_complexity gives .* not a number of at least 0"):
        sweeprof.profile(Wrong(4, 4), (3, 4))


@pytest.mark.parametrize("of", [nn.Linear, "aten::linear"])
def test_formulas_that_return_no_cost(of: Any) -> None:
    with pytest.raises(TypeError, match=r"a formula returned .*, not a sweeprof\.Cost"):
        sweeprof.profile(mlp(), (3, 4), formulas={of: cast(Any, lambda *_: {"macs": 3})})


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("of", [nn.ReLU, "aten::linear"])
def test_a_formula_that_raises(of: Any, device: str) -> None:
    """Its mistake is not the forward's, which needs no values."""

    def broken(*_: Any) -> sweeprof.Cost:
        raise ArithmeticError("no luck")

    with pytest.raises(ArithmeticError, match="no luck"):
        sweeprof.profile(mlp().to(device), (3, 4), formulas={of: broken})


# The model is left as it was


def test_a_model_in_training_is_counted_in_inference() -> None:
    model = nn.BatchNorm1d(4).train()
    assert sweeprof.profile(model, (3, 4))["compute/flops"].value == 2 * 12
    assert sweeprof.profile(model, (3, 4), "training", protocol=QUICK)["compute/flops_train"].value == 5 * 12 + 8 * 12
    assert model.training
    assert model.num_batches_tracked == 0


def test_profiling_within_no_grad_and_inference_mode() -> None:
    for switched_off in (torch.no_grad(), torch.inference_mode()):
        with switched_off:
            found = values(sweeprof.profile(mlp(), (3, 4), ["compute/macs", "compute/macs_backward"]))
        assert found == {"compute/macs": 144, "compute/macs_backward": 192}


def test_every_pass_sees_the_same_batch() -> None:
    """Also where a loader shuffles."""
    seen: list[Any] = []

    def records(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.tolist())
        return x

    data = DataLoader(TensorDataset(torch.arange(50.0)[:, None], torch.zeros(50)), batch_size=1, shuffle=True)
    made = sweeprof.Profiler(Functional(records), data, protocol=QUICK)
    for _ in range(5):
        made.compute("latency/forward", recompute=True)
    assert len({tuple(map(tuple, batch)) for batch in seen}) == 1


@pytest.mark.usefixtures("without_energy_counters")
def test_nothing_is_left_behind() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)).train()
    model[2].eval()
    model[0].weight.requires_grad_(False)
    model[3].weight.grad = torch.ones(2, 4)
    threads = torch.get_num_threads()
    data = DataLoader(TensorDataset(torch.ones(5, 4), torch.tensor([0, 1, 1, 0, 1])), batch_size=3, shuffle=True)
    made = sweeprof.Profiler(model, data, protocol=QUICK)
    made.register(sweeprof.evaluation(lambda network, batches: float(network(next(iter(batches))[0]).detach().sum())))
    with undisturbed(model):
        found = made.compute_all()
    assert found["latency/forward"].value
    assert "mode=generation" in str(found["generation/latency"].reason)
    assert torch.get_num_threads() == threads


# Keras


@pytest.fixture(scope="module")
def keras_lenet5() -> Any:
    keras = pytest.importorskip("keras")
    return keras.Sequential([lenet5.keras_model(pretrained=False), keras.layers.Softmax()])


def test_a_keras_model_in_hands(keras_lenet5: Any) -> None:
    """What both count is equal."""
    weights, variables = keras_lenet5.get_weights(), [id(v) for v in keras_lenet5.variables]
    found = sweeprof.profile(keras_lenet5, (2, 32, 32, 1))
    assert found["compute/macs"].value == 2 * 416_520
    assert found["compute/macs_per_sample"].value == 416_520
    equal = ("params/", "size/", "compute/macs_per_sample", "compute/flops_per_sample", "compute/coverage")
    assert values(found).items() >= {n: v for n, v in STATIC.items() if n.startswith(equal)}.items()
    assert all(np.array_equal(a, b) for a, b in zip(keras_lenet5.get_weights(), weights, strict=True))
    assert [id(v) for v in keras_lenet5.variables] == variables


def test_a_keras_model_on_data(keras_lenet5: Any) -> None:
    images = np.zeros((3, 32, 32, 1), np.float32)
    data = [(images, np.array([0, 1, 2])), (images[:1], np.array([0]))]
    made = sweeprof.Profiler(keras_lenet5, data, protocol=QUICK)
    found = made.compute_all(["compute/macs", "latency/forward", "quality/accuracy", "compute/macs_backward"])
    assert found["compute/macs"].value == 3 * 416_520
    assert found["latency/forward"].value
    assert found["quality/accuracy"].value == 0.5  # all alike: class 0
    assert found["compute/macs_backward"].value == 3 * 2 * 416_520
    assert "estimated" in found["compute/macs_backward"].to_text()


def test_a_profile_reads_as_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    host = {"host_cpu": "AMD EPYC", "host_threads": 2}
    monkeypatch.setattr("sweeprof.profiling.profiler.host_columns", lambda settings: host)
    found = sweeprof.profile(
        nn.Linear(8, 32), (1, 8), metrics=["compute/macs", "size/params_bytes", "quality/accuracy"]
    )
    assert str(found).splitlines() == [
        "Linear: 3 metrics",
        "inference · torch on cpu (AMD EPYC) · 2 threads · float32 parameters · inputs",
        "float32[1, 8]",
        "metric                value  note",
        "─────────────────────────────────",
        "compute/macs        256 MAC",
        "size/params_bytes  1.12 KiB",
        "No quality/accuracy: quality: unsupported: there are no data: give the profiler",
        "`data=`, an iterable of batches",
    ]
    assert repr(found) == str(found)


def test_a_formula_that_only_tells_sizes_covers_nothing() -> None:
    formulas = {Fused: lambda module, inputs, outputs: sweeprof.Cost(param_size={"weight": 0.5})}
    with pytest.raises(sweeprof.Uncounted):
        sweeprof.profile(Fused(), (3, 4), formulas=formulas, strict="error")


def scored() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (5, 3)]


class Share:
    """A metric of a caller, with a state: the share of samples whose best class is the true one."""

    higher_is_better = True

    def __init__(self) -> None:
        self.right: list[bool] = []

    def update(self, outputs: Any, targets: Any) -> None:
        self.right += (outputs.argmax(1) == targets).tolist()

    def compute(self) -> float:
        return sum(self.right) / len(self.right)


def test_further_metrics_of_quality() -> None:
    share = Share()
    quality = {
        "share": share,
        "parts": lambda outputs, targets: {"rows": len(outputs), "labels": len(targets)},
        "named": {"_target_": f"{Share.__module__}.Share", "better": "lower"},
    }
    model = torch.nn.Linear(4, 3).eval()
    profiler = sweeprof.Profiler(model, scored(), quality=quality)
    found = profiler.compute("quality/share")
    assert found.value == profiler.compute("quality/accuracy").value == profiler.compute("quality/named").value
    assert (found.better, profiler.compute("quality/named").better) == ("higher", "lower")
    assert profiler.clone(data=scored()).compute("quality/share").value == found.value
    assert share.right == [], "the caller's object is left as it was"
    assert "it has several values: quality/parts.rows, quality/parts.labels" in str(
        profiler.compute("quality/parts").reason
    )
    assert profiler.compute("quality/parts.labels").value == 8
    assert {"quality/share", "quality/accuracy"} <= set(profiler.metrics)


@pytest.mark.parametrize(
    ("quality", "said"),
    [
        ({"share": Share}, "is neither an object with update and compute, nor a function"),
        ({"share": 3}, "quality.share: 3 is neither an object with update and compute"),
    ],
)
def test_metrics_of_quality_that_are_none(quality: dict[str, object], said: str) -> None:
    with pytest.raises(sweeprof.UserError) as caught:
        sweeprof.Profiler(mlp(), scored(), quality=quality)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("samples", 3)),
        ({"unit": "tokens"}, ("tokens", 7)),
        ({"unit": "pixels", "units": lambda inputs: inputs["x"].numel()}, ("pixels", 12)),
    ],
)
def test_the_unit_of_the_workload(given: dict[str, Any], expected: tuple[str, float]) -> None:
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0]])

    inputs = {"x": torch.ones(3, 4), "attention_mask": mask}
    names = ["throughput/units_per_s", "throughput/samples_per_s"]
    found = sweeprof.profile(
        Functional(lambda x, attention_mask: x * attention_mask), inputs, names, protocol=QUICK, **given
    )
    units, samples = (found[name] for name in names)
    assert units.unit == f"{expected[0]}/s"
    assert f" {units.unit} " in str(found)
    assert units.value is not None
    assert samples.value is not None
    assert units.value / samples.value == pytest.approx(expected[1] / 3)


def test_a_unit_that_tells_no_number() -> None:
    with pytest.raises(sweeprof.UserError, match=r"units: 3 needs a unit, such as unit='tokens'"):
        sweeprof.profile(mlp(), (3, 4), units=3)
    made = profiler(unit="tokens")
    with pytest.raises(sweeprof.UserError, match="Profiler: unit 'tokens' needs a number of units in a batch"):
        made.compute("throughput/units_per_s")
