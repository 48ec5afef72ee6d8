"""Passes: on the fake backend with exact numbers, their registry, and the answers that quality keeps."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import sweeprof
import sweeprof.passes
from support import simulated_nvml
from support.planning import fake_config
from support.simulated_nvml import H100
from sweeprof.backends import Backend
from sweeprof.backends.fake import FakeBackend, FakeModel
from sweeprof.datasets import ArraySpec, ModelInputs, Split, SplitName
from sweeprof.datasets.arrays import Synthetic
from sweeprof.errors import Damaged, DatasetError, Unsupported
from sweeprof.measuring.timing import Timing
from sweeprof.passes import quality, registry
from sweeprof.passes.memory import MEMORY_STEPS, Memory
from sweeprof.passes.quality import Quality
from sweeprof.passes.registry import Parameter, Pass, passes
from sweeprof.profiling.profiler import Profiler
from sweeprof.profiling.session import BuiltSession
from sweeprof.results.record import Protocol

MB = 1 << 20


def profiler(model: FakeModel | None = None, **fields: Any) -> BuiltSession:
    made = model or FakeModel()
    given: dict[str, Any] = {"backend": FakeBackend(), "dataset": Synthetic((3, 4), samples=10), **fields}
    return BuiltSession(build=lambda: made, **given)


EXACT = Protocol(warmup_steps=2, warmup_s=0, sample_s=0, min_samples=3, min_s=0, max_s=1e5)


def timed(model: FakeModel, slowdown: float = 1.0, **fields: Any) -> Timing:
    timing = profiler(model, **{"backend": FakeBackend(slowdown=slowdown), "protocol": EXACT, **fields}).run("timing")
    assert isinstance(timing, Timing)
    return timing


def test_timing() -> None:
    model = FakeModel(step_s=[0.25, 0.5], first_step_s=8.0, per_sample_s=0.125, compiles=True)
    timing = timed(model, batch_size=2)
    assert timing.compiles
    assert timing.first_step_s == 8.25
    assert timing.warmup_steps == 2
    assert timing.samples == (0.75, 0.5, 0.75)
    assert timed(FakeModel(step_s=0.5), slowdown=4.0).samples == (2.0,) * 3


def test_timing_of_transfers() -> None:
    timing = timed(FakeModel(step_s=0.5, transfer_s=0.25))
    assert timing.transfers == {"h2d": (0.25,) * 3, "d2h": (0.25,) * 3}
    assert timing.samples == (0.5,) * 3


@pytest.mark.parametrize("name", ["own_counts", "peaks", "layer_times", "lines"])
def test_what_the_fake_backend_cannot_do_is_unsupported(name: Any) -> None:
    with pytest.raises(Unsupported, match=r"not applicable: (a fake model|there is no framework)"):
        profiler().run(name)


def test_memory() -> None:
    seen = profiler(FakeModel(bytes=5 * MB), backend=FakeBackend(baseline_bytes=7 * MB), batch_size=2).run("memory")
    loaded = 12 * MB + 2 * 3 * 4 * 4
    assert isinstance(seen, Memory)
    assert replace(seen, added_bytes=None, not_added=None) == Memory(7 * MB, loaded, loaded, MEMORY_STEPS, loaded)
    # The tests' own process may have threads, such as those of torch.
    assert seen.added_bytes in (None, loaded - 7 * MB)
    assert (seen.added_bytes is None) == ("has several threads already" in (seen.not_added or ""))


def test_memory_on_a_gpu_is_what_its_driver_tells_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated_nvml.put(monkeypatch, tmp_path / "gpus.json", **{"0": {**H100, "processes": {"own": 5 * MB, "7": MB}}})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen = profiler(device="cuda").run("memory")
    assert isinstance(seen, Memory)
    assert (seen.device, seen.device_process_bytes, seen.device_reason) == ("cuda", 5 * MB, None)
    assert (seen.added_bytes, seen.not_added) == (
        None,
        "this backend does not tell what its allocator gives away on cuda",
    )


def test_quality_answers_every_sample_in_order() -> None:
    whole: Any = profiler(batch_size=10).run("quality")
    pieces: Any = profiler(batch_size=3).run("quality")
    assert whole.outputs.shape == (10, 10)
    np.testing.assert_allclose(pieces.outputs, whole.outputs, rtol=1e-6)
    assert pieces.predictions == whole.predictions
    assert whole.targets is None


def test_costs_are_kept_also_after_an_error() -> None:
    fine, broken = profiler(), profiler(FakeModel(on_step="raise"))
    fine.run("timing")
    assert set(fine.costs) == {"build", "measure"}
    with pytest.raises(ValueError, match="told to raise"):
        broken.run("timing")
    assert set(broken.costs) == {"build", "measure"}
    assert all(seconds >= 0 for seconds in broken.costs.values())


class Bare(Backend):
    """A backend that can step, and nothing more."""

    def __init__(self) -> None:
        self._inner = FakeBackend()
        self.seeds: list[int] = []

    def configure(self, seed: int) -> None:
        self.seeds.append(seed)

    def load(self, build: Any, device: str, channel_axis: int | None) -> Any:
        return self._inner.load(build, device, channel_axis)


def test_a_capability_that_is_missing_is_unsupported() -> None:
    bare = profiler(backend=Bare())
    with pytest.raises(Unsupported, match="Bare has no method analyze"):
        bare.run("analysis")
    with pytest.raises(Unsupported, match="Bare has no method operators"):
        bare.run("operators")
    assert isinstance(bare.run("timing"), Timing)
    with pytest.raises(Unsupported, match="Bare has no method training"):
        profiler(backend=Bare(), mode="training").run("timing")
    assert isinstance(bare.run("quality"), Quality)


def test_the_backend_gets_the_seed_before_every_pass() -> None:
    backend = Bare()
    made = profiler(backend=backend, seed=17)
    made.run("quality")
    made.run("timing")
    assert backend.seeds == [17, 17]


def test_from_config() -> None:
    config = fake_config("batch_size=5", "backend.slowdown=2", "seed.weights=3", "++model.fake.step_s=0.5")
    made = Profiler.from_config(config)
    session = made.session
    assert isinstance(session, BuiltSession)
    assert (session.batch_size, session.device, session.seed) == (5, "cpu", 3)
    assert session.protocol == Protocol(**config["protocol"])
    timing = made.run("timing")
    assert isinstance(timing, Timing)
    assert timing.median_s == 1.0


class Ids:
    """A dataset of one's own, which knows nothing of the model."""

    def split(self, name: SplitName) -> Split:
        return Split({"input_ids": np.array([[1, 2], [3, 70]])})


def described(vocabulary: int | None = 64) -> ModelInputs:
    return ModelInputs({"input_ids": ArraySpec((2,), "int64", high=vocabulary)}, vocabulary=vocabulary)


def test_ids_of_a_dataset_of_ones_own_are_checked_against_the_models_source() -> None:
    session = profiler(dataset=Ids(), describe_inputs=described)
    with pytest.raises(
        DatasetError, match=r"Ids: sample 1 of split.'test'..inputs.'input_ids'. has the id 70, and the model"
    ):
        session.inputs()
    for known in (lambda: described(71), lambda: described(None), lambda: 1 / 0, None):
        assert profiler(dataset=Ids(), describe_inputs=known).inputs().shapes() == [(1, 2)]


def test_only_data_without_a_description_are_checked() -> None:
    config = fake_config()
    config["model"]["inputs"] = {"_target_": f"{described.__module__}.described"}
    with_inputs = Profiler.from_config(config).session
    config["model"].pop("inputs")
    without = Profiler.from_config(config).session
    assert isinstance(with_inputs, BuiltSession)
    assert isinstance(without, BuiltSession)
    assert with_inputs.describe_inputs is not None
    assert without.describe_inputs is None


def test_a_label_without_a_class_is_named_with_its_sample() -> None:
    """Where a training step fails, and not for errors of another kind."""

    def trained(labels: list[int]) -> sweeprof.Profiler:
        data = [(torch.zeros(3, 4), torch.tensor(labels))]
        model = torch.nn.Linear(4, 5)
        return sweeprof.Profiler(model, data, mode="training", loss="cross_entropy", protocol=EXACT)

    assert isinstance(trained([0, 4, -100]).run("timing"), Timing)
    with pytest.raises(DatasetError, match=r"^sample 2 has the label 5, and the outputs have the classes 0 to 4$"):
        trained([0, 4, 5]).run("timing")
    with pytest.raises(ValueError, match="Expected input batch_size"):
        trained([0, 9]).run("timing")


def test_settings_that_the_model_changes_are_a_warning_in_every_pass_until_somebody_sets_them_anew() -> None:
    def codes() -> list[str]:
        timing = changing.run("timing")
        assert isinstance(timing, Timing)
        return [warning.code for warning in timing.warnings if warning.code == "settings_differ"]

    backend = FakeBackend(threads=3)
    changing = profiler(FakeModel(changes={"threads": 4, "flag": True}), backend=backend, protocol=EXACT)
    assert codes() == ["settings_differ"]
    assert changing.settings.deviations == {"threads": (3, 4)}, "nobody requested the flag"
    assert codes() == ["settings_differ"]
    changing.run("analysis")
    assert changing.settings.deviations == {}, "the model did not run"


# The registry of passes


@pytest.mark.parametrize(
    ("name", "parameter", "message"),
    [
        ("timing", "other", "two passes are called 'timing'"),
        ("further", "layers", "the passes 'analysis' and 'further' both provide the parameter 'layers'"),
        ("../x", "other", "is not the name of a pass"),
    ],
)
def test_names_are_unique_and_those_of_files(
    monkeypatch: pytest.MonkeyPatch, name: str, parameter: str, message: str
) -> None:
    provides = (Parameter(parameter),)
    one: Pass[Any] = Pass(
        name=name, order=999, run=Mock(), read=Mock(), kind="once", is_exclusive=True, provides=provides
    )
    installed = Mock(load=lambda: SimpleNamespace(PASS=one))
    monkeypatch.setattr(registry, "entry_points", lambda group: [installed])
    with pytest.raises(ValueError, match=message):
        passes.__wrapped__()


def test_an_unknown_pass_is_damage() -> None:
    with pytest.raises(Damaged, match="pass: 'weather' is not one of analysis, "):
        registry.pass_named("weather")


def of_the_fake_backend() -> list[Pass[Any]]:
    """Return the passes that the fake backend supports on any host: it takes one request at a time, and few hosts count energy."""
    found = [one for one in passes().values() if one.name not in ("concurrent", "energy")]
    return [one for one in found if one.capability is None or FakeBackend.has(one.capability)]


@pytest.mark.parametrize("one", of_the_fake_backend(), ids=lambda one: one.name)
def test_a_pass_reads_what_it_wrote(one: Pass[Any]) -> None:
    protocol = Protocol(warmup_s=0, sample_s=0, min_samples=3, min_s=0)
    result: Any = profiler(protocol=protocol).run(one.name)
    written = result.to_dict() if hasattr(result, "to_dict") else dataclasses.asdict(result)
    read: Any = one.read(written)
    assert type(read) is type(result)
    again = read.to_dict() if hasattr(read, "to_dict") else dataclasses.asdict(read)
    assert {**again, "warnings": None} == {**written, "warnings": None}


# Answers and their packing


def packed_and_unpacked(given: Quality) -> Quality:
    return Quality.from_dict(json.loads(json.dumps(given.to_dict())))


@given(arrays.arrays(np.float32, arrays.array_shapes(min_dims=1, max_dims=4, max_side=6), elements=st.floats(width=32)))
def test_outputs_of_any_shape_survive(outputs: npt.NDArray[np.float32]) -> None:
    read = packed_and_unpacked(Quality.of(outputs, None))
    assert read.outputs.dtype == np.dtype("<f4")
    np.testing.assert_array_equal(read.outputs, outputs)


def test_predictions_and_targets_survive() -> None:
    read = packed_and_unpacked(Quality.of(np.array([[0.1, 0.9], [0.8, 0.2], [0.0, 1.0]]), np.array([1, 1, 1])))
    assert (read.predictions, read.targets) == ((1, 0, 1), (1, 1, 1))


@pytest.mark.parametrize(("limit", "kept"), [(1, 1), (79, 1), (80, 2), (10_000, 10)])
def test_kept_outputs_are_capped(monkeypatch: pytest.MonkeyPatch, limit: int, kept: int) -> None:
    monkeypatch.setattr(quality, "KEPT_BYTES", limit)
    outputs = np.arange(100, dtype=np.float64).reshape(10, 10)  # 40 bytes a sample as float32
    made = Quality.of(outputs, None)
    assert len(made.outputs) == kept
    np.testing.assert_array_equal(made.outputs, outputs[:kept])
    assert made.predictions == (9,) * 10


def test_a_thousand_classes_of_a_thousand_samples_are_kept_and_compress() -> None:
    kept = Quality.of(np.zeros((1001, 1000), np.float32), None)
    assert len(kept.outputs) >= 1000
    data: dict[str, Any] = kept.to_dict()
    assert len(json.dumps(data["outputs"])) < 10_000
