"""Energy of a step, by counters of a made-up powercap folder that grow by known amounts; and what NVIDIA's driver tells of GPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import sweeprof
from support import simulated_nvml
from support.simulated_nvml import H100
from sweeprof.backends.fake import FakeBackend, FakeModel
from sweeprof.datasets.arrays import Synthetic
from sweeprof.errors import Unsupported
from sweeprof.measuring.nvml import Gpu, GpuState, others_of, state_of, trial_warnings
from sweeprof.metrics.memory import per_sample, per_step, per_token, power, utilization
from sweeprof.metrics.metric import Estimate, Missing
from sweeprof.passes import energy as energy_pass
from sweeprof.passes.energy import POWERCAP, Counter, Energy, Meters, measured, meters_of, rapl_counters
from sweeprof.profiling.session import BuiltSession
from sweeprof.results.compared_rows import differing, key_of
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import Protocol
from sweeprof.results.verdicts import compare_cell

PROTOCOL = Protocol(warmup_s=0, min_s=0.01)


def zone(folder: Path, id: str, name: str, energy_uj: int = 0, range_uj: int = 2**38) -> Path:
    """A zone as the kernel shows it, all of them beside each other."""
    place = folder / id
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "energy_uj").write_text(f"{energy_uj}\n")
    (place / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return place


def grow(place: Path, microjoules: int) -> None:
    """Let a counter grow, from its largest value to zero again."""
    largest = int((place / "max_energy_range_uj").read_text())
    (place / "energy_uj").write_text(str((int((place / "energy_uj").read_text()) + microjoules) % largest))


def server(folder: Path) -> list[Path]:
    """Two packages, the second of which is about to start again from zero; the memory of the first; and parts of packages."""
    zones = [
        zone(folder, "intel-rapl:0", "package-0"),
        zone(folder, "intel-rapl:1", "package-1", energy_uj=2**38 - 1_000_000),
        zone(folder, "intel-rapl:0:2", "dram"),
    ]
    zone(folder, "intel-rapl:0:0", "core")
    zone(folder, "intel-rapl:2", "psys")
    zone(folder, "intel-rapl-mmio:0", "package-0")  # the same package, by another way
    return zones


def test_packages_and_memory_are_counted_once_each(tmp_path: Path) -> None:
    server(tmp_path)
    assert [counter.name for counter in rapl_counters(tmp_path)] == ["package-0", "package-0 dram", "package-1"]


def test_a_counter_that_starts_again_from_zero(tmp_path: Path) -> None:
    place = zone(tmp_path, "intel-rapl:0", "package-0", energy_uj=9_000_000, range_uj=10_000_000)
    (counter,) = rapl_counters(tmp_path)
    assert counter.joules() == 0
    for _ in range(5):  # 17.5 J in a range of 10
        grow(place, 3_500_000)
        counter.joules()
    assert counter.joules() == pytest.approx(17.5)


def test_a_counter_without_a_range_does_not_go_backwards() -> None:
    values = iter([5.0, 4.0])
    with pytest.raises(Unsupported, match="the energy counter GPU 0 went backwards"):
        Counter("GPU 0", lambda: next(values), 0.1).joules()


class Machine:
    """A clock, and a counter of a machine that takes 10 W idle and 25 W in a step of 0.02 s."""

    def __init__(self) -> None:
        self.now, self.joules = 0.0, 3.0

    def step(self) -> None:
        self.now, self.joules = self.now + 0.02, self.joules + 25 * 0.02

    def sleep(self, seconds: float) -> None:
        self.now, self.joules = self.now + seconds, self.joules + 10 * seconds


def test_idle_power_is_subtracted() -> None:
    machine = Machine()
    meters = Meters([Counter("package-0", lambda: machine.joules, update_s=0.001)])
    found = measured(machine.step, meters, 0.5, lambda: machine.now, machine.sleep)
    assert found.steps == 25
    assert [found.watts, found.idle_watts] == pytest.approx([25, 10])
    assert found.joules_per_step == pytest.approx((25 - 10) * 0.02)
    assert value(per_sample.function(found, batch_size=4)) == pytest.approx(0.3 / 4)
    assert value(power.function(found)) == pytest.approx(25)
    assert power.function(found).detail == {"idle": pytest.approx(10), "package-0": pytest.approx(25)}
    assert per_sample.function(found, batch_size=4).detail == {"steps": 25, "package-0": pytest.approx(0.3 / 4)}


def test_a_counter_that_is_updated_seldom_is_read_for_longer() -> None:
    machine = Machine()
    meters = Meters([Counter("GPU 0", lambda: machine.joules, 0.1)])
    found = measured(machine.step, meters, 0.5, lambda: machine.now, machine.sleep)
    assert found.seconds >= 10
    assert found.idle_seconds >= 10


def test_reading_a_counter_takes_no_time_from_the_steps() -> None:
    """NVML's takes as long as a step in a virtual machine; the machine is idle meanwhile."""
    machine = Machine()

    def read() -> float:
        machine.sleep(0.02)
        return machine.joules

    found = measured(machine.step, Meters([Counter("GPU 0", read, 0.1)]), 0.5, lambda: machine.now, machine.sleep)
    assert found.watts == pytest.approx(25, rel=0.03)


def value(result: object) -> Any:
    assert isinstance(result, Estimate)
    return result.value


def test_no_more_than_idle_is_a_reason() -> None:
    result = per_sample.function(Energy(10, 1.0, {"package-0": 9.0}, 1.0, {"package-0": 9.5}), batch_size=1)
    assert result == Missing("the steps took 9 W and the idle machine 9.5 W: no more")


def test_the_energy_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each forward takes 2 J of the first package, 1 J of the second and 0.5 J of the memory; an idle machine takes nothing.

    The energy of a token is over all sequences that are returned.
    """
    from torch import nn

    places = server(tmp_path)

    class Model(nn.Linear):
        def forward(self, x: Any) -> Any:
            for place, microjoules in zip(places, (2_000_000, 1_000_000, 500_000), strict=True):
                grow(place, microjoules)
            return super().forward(x)

        def generate(self, **_: Any) -> None:
            grow(places[0], 6_000_000)

    monkeypatch.setenv(POWERCAP, str(tmp_path))
    model, inputs = Model(4, 2), (np.zeros((4, 4), np.float32),)
    found = sweeprof.profile(model, inputs, ["energy/per_sample"], protocol=PROTOCOL)["energy/per_sample"]
    assert found.value == pytest.approx(3.5 / 4)
    assert found.unit == "J"
    options: dict[str, Any] = {"generation": sweeprof.GenerationConfig(5, {"num_return_sequences": 3})}
    of_tokens = sweeprof.profile(model, inputs, ["energy/per_token"], mode="generation", protocol=PROTOCOL, **options)
    assert of_tokens["energy/per_token"].value == pytest.approx(6 / (4 * 3 * 5))


def test_a_host_without_counters_has_a_reason(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"this host provides no energy counters .*Virtual machines seldom have them"):
        rapl_counters(tmp_path / "powercap")


def test_a_counter_that_needs_root_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = zone(tmp_path, "intel-rapl:0", "package-0")
    read_text = Path.read_text

    def refuse(path: Path, *args: Any, **kwargs: Any) -> str:
        if path == place / "energy_uj":  # whoever runs this test may be root
            raise PermissionError(path)
        return read_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(Unsupported, match=r"energy_uj needs root, or 'sudo chmod o\+r "):
        rapl_counters(tmp_path)


def with_gpu(monkeypatch: pytest.MonkeyPatch, folder: Path, powercap: str = "no processors", **changed: Any) -> None:
    """An NVIDIA GPU, and a folder of processors with counters or without any."""
    gpu = {name: value for name, value in {**H100, **changed}.items() if value is not None}
    simulated_nvml.put(
        monkeypatch, folder / "gpus.json", **{"0": gpu, "1": gpu, "GPU_b": gpu, "MIG_c": {**gpu, "whole": "0"}}
    )
    monkeypatch.setenv(POWERCAP, str(folder / powercap))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("device", "visible", "name"),
    [("cuda:1", "", "GPU 1"), ("cuda", "GPU-b", "GPU GPU-b"), ("cuda:1", "1, 0", "GPU 0")],
)
def test_the_counter_is_that_of_the_visible_gpu(
    device: str, visible: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(monkeypatch, tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with meters_of(device) as meters:
        (counter,) = meters.counters
        assert counter.name == name
        assert counter.joules() == pytest.approx(2.5)
        assert meters.utilization is not None
        assert meters.utilization() == 0.75
        assert "no energy counters of its processors" in str(meters.no_processor)


def test_what_the_model_runs_on_needs_a_counter_and_the_processor_beside_a_gpu_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(monkeypatch, tmp_path, "powercap")

    def seen(device: str) -> tuple[list[str], str | None]:
        with meters_of(device) as meters:
            assert (meters.utilization is None) == (device == "cpu")
            return [counter.name for counter in meters.counters], meters.no_processor

    names, no_processor = seen("cuda")
    assert (names, no_processor is None) == (["GPU 0"], False)
    with pytest.raises(Unsupported, match="no energy counters of its processors"):
        seen("cpu")
    server(tmp_path / "powercap")
    packages = ["package-0", "package-0 dram", "package-1"]
    assert seen("cuda") == (["GPU 0", *packages], None)
    assert seen("cpu") == (packages, None)
    with pytest.raises(Unsupported, match="mps: only the energy of CPUs and of NVIDIA GPUs"):
        seen("mps")
    with_gpu(monkeypatch, tmp_path, "powercap", energy_mj=None)
    with pytest.raises(Unsupported, match="NVML: Not Supported"):
        seen("cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-c")
    with pytest.raises(Unsupported, match=r"a slice of a GPU \(MIG\) has no counter of its own"):
        seen("cuda")


def test_the_energy_of_a_generation_on_a_gpu_without_that_of_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading of the counter, one after each step, is 2.5 J."""
    with_gpu(monkeypatch, tmp_path)
    monkeypatch.setattr(energy_pass, "UPDATES", 1)
    monkeypatch.setattr(energy_pass, "READINGS_S", 0)
    session = BuiltSession(
        backend=FakeBackend(), build=FakeModel, dataset=Synthetic([4]), batch_size=4, device="cuda", protocol=PROTOCOL
    )
    found = Energy.from_dict(cast(Energy, session.run("energy")).to_dict())
    assert found.utilization == pytest.approx(0.75)
    step = per_step.function(found)
    assert value(step) == pytest.approx(2.5, rel=0.2)
    assert step.detail["GPU 0"] == pytest.approx(value(step))
    assert "Virtual machines seldom have them" in step.detail["processor"]
    assert value(per_sample.function(found, batch_size=4)) == pytest.approx(value(step) / 4)
    assert per_token.function(found, batch_size=4).reason == "mode=generation is needed: nothing was generated"
    generated = replace(found, new_tokens=8)
    assert value(per_token.function(generated, batch_size=4)) == pytest.approx(value(step) / 32)
    assert value(utilization.function(found)) == pytest.approx(0.75)
    assert power.function(found).detail["GPU 0"] == pytest.approx(found.watts)


def test_energies_with_and_without_the_processor_are_not_compared() -> None:
    alone = Measurement("energy/per_step", "J", "lower", 2.0, estimator="mean", detail={"processor": "no counters"})
    both = replace(alone, detail={"package-0": 1.0})
    for one, other in ((alone, both), (both, alone)):
        cell = compare_cell(one, other, 0.05, own_threshold=0.1)
        assert (cell.verdict, cell.verdict_reason, cell.ratio) == ("not_comparable", "different_counters", None)
    for side in (alone, both):
        assert compare_cell(side, side, 0.05, own_threshold=0.1).verdict == "same"


# NVIDIA GPUs: their state before and after a trial, the processes on them, and what makes their times untrustworthy


def test_the_state_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch, tmp_path, held_back_by=0x61, processes={"7": 5})
    figures = {
        name: H100[name] for name in H100 if name not in ("energy_mj", "utilization", "processes", "held_back_by")
    }
    assert state_of("cuda") == GpuState(
        **figures,
        driver="580.65.06",
        held_back_by=("heat",),  # an idle GPU is held down by nothing
        processes={7: 5},
    )


def test_what_a_slice_does_not_have_has_a_reason_and_the_rest_is_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slice = {"whole": "0", "processes": {"own": 9}}
    whole = {name: value for name, value in H100.items() if name != "celsius"}
    simulated_nvml.put(monkeypatch, tmp_path / "gpus.json", **{"0": whole, "MIG_a": slice})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a")
    state = state_of("cuda")
    assert (state.power_limit_w, state.processes) == (700, {os.getpid(): 9})
    assert (state.celsius, state.reasons) == (None, {"celsius": "NVML: Not Supported"})
    with closing(Gpu("cuda")) as gpu, pytest.raises(Unsupported, match="NVML: Not Supported"):
        gpu.utilization()


def test_without_a_driver_or_the_library_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch, tmp_path)
    assert state_of("cuda:3") == GpuState(reason="NVML: Not Found")
    assert state_of("mps").reason == "mps: only the driver of NVIDIA GPUs is read"
    monkeypatch.delenv("SIMULATED_GPUS")
    assert state_of("cuda").reason == "NVML: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reason = "the package nvidia-ml-py is not installed: pip install 'sweeprof[cuda]'"
    assert state_of("cuda").reason == reason


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ({"own": 9, "7": 5}, 9),
        ({"7": 5}, 5),  # in a container, by another id
        ({"7": 5, "8": 6}, "this process is not one of the 2 that compute on the GPU"),
        ({}, "this process is not one of the 0 that compute on the GPU"),
        ({"own": None}, "the driver does not tell the memory of processes"),
    ],
)
def test_the_memory_of_this_process(
    processes: Mapping[str, int | None], expected: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(monkeypatch, tmp_path, processes=processes)
    with closing(Gpu("cuda")) as gpu:
        if isinstance(expected, int):
            assert gpu.own_bytes() == expected
        else:
            with pytest.raises(Unsupported, match=expected):
                gpu.own_bytes()


OWN = os.getpid()


@pytest.mark.parametrize(
    ("before", "after", "others"),
    [
        ({}, {OWN: 1, 5: 2}, []),  # of the same sweep, in an interleaved run
        ({7: 1}, {OWN: 1, 8: 2}, [7, 8]),
        ({7: 1}, {7: 2, 4711: 1}, [7]),  # beside this process in a container
        ({7: 1}, {7: 2}, [7]),
    ],
)
def test_other_processes_on_the_gpu(before: dict[int, int], after: dict[int, int], others: list[int]) -> None:
    found = others_of(GpuState(processes=before), GpuState(processes=after), {OWN, 5})
    assert [process["pid"] for process in found] == others
    assert found == [{"pid": pid, "bytes": {**before, **after}[pid]} for pid in others]


BEFORE = GpuState(sm_mhz=345, most_sm_mhz=1980, hot_s=100.0, limited_s=50.0, held_back_by=())
AFTER = replace(BEFORE, sm_mhz=1980, celsius=88)


@pytest.mark.parametrize(
    ("changed", "codes", "text"),
    [
        ({}, [], ""),
        ({"hot_s": 101.0}, ["gpu_throttled"], "the GPU's clock was held down by heat, at 88 °C"),
        ({"limited_s": 55.0, "sm_mhz": 1200}, ["gpu_throttled"], "by the limit of power"),
        ({"held_back_by": ("heat",), "hot_s": 109.0}, ["gpu_throttled"], "held down by heat, at"),
        ({"sm_mhz": 1200}, ["gpu_clocks"], "the GPU's clock changed from 345 to 1200 MHz, and can be 1980"),
        ({"sm_mhz": 345}, [], ""),  # somebody has fixed it
    ],
)
def test_warnings_of_a_trial_of_ten_seconds(changed: dict[str, Any], codes: list[str], text: str) -> None:
    found = trial_warnings(BEFORE, replace(AFTER, **changed), (), 10.0)
    assert [warning.code for warning in found] == codes
    assert all(text in warning.text and "nvidia-smi --lock-gpu-clocks" in warning.advice for warning in found)


def test_a_shared_gpu_and_one_of_which_nothing_is_known() -> None:
    (shared,) = trial_warnings(BEFORE, AFTER, [{"pid": 7, "bytes": 1}, {"pid": 8, "bytes": None}], 10.0)
    assert (shared.code, shared.text) == ("gpu_shared", "other processes computed on the same GPU: 7, 8")
    assert trial_warnings(GpuState(reason="x"), GpuState(reason="x"), (), 10.0) == []


def test_driver_and_power_limit_are_part_of_what_is_comparable_and_a_cpu_has_neither() -> None:
    gpu = {"model": "H100", "driver": "580.65.06", "power_limit_w": 700.0}
    on_gpu = key_of([{"host": "a", "gpu": gpu}])
    assert (on_gpu["GPU driver"], on_gpu["GPU power limit in W"]) == ("580.65.06", 700.0)
    lowered = key_of([{"host": "a", "gpu": {**gpu, "power_limit_w": 400.0}}])
    assert differing(lowered, on_gpu) == {"GPU power limit in W": (700.0, 400.0)}
    unknown = key_of([{"host": "a", "gpu": {"model": "H100", "driver": None, "power_limit_w": None}}])
    assert differing(unknown, on_gpu) == differing(key_of([{"host": "a"}]), on_gpu) == {}
