"""Energy of a step: counters of a made-up powercap folder, which grow by known amounts with each step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sweeprof
from sweeprof.errors import Unsupported
from sweeprof.metrics.memory import per_sample, power
from sweeprof.metrics.metric import Estimate, Missing
from sweeprof.passes.energy import POWERCAP, Counter, Energy, counters, gpu_counter, measured, rapl_counters
from sweeprof.results.record import Protocol


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
        zone(folder, "intel-rapl:1", "package-1", energy_uj=9_000_000, range_uj=10_000_000),
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
    meters = [Counter("package-0", lambda: machine.joules, update_s=0.001)]
    found = measured(machine.step, meters, 0.5, lambda: machine.now, machine.sleep)
    assert found.steps == 25
    assert [found.seconds, found.idle_seconds] == pytest.approx([0.5, 0.5])
    assert [found.watts, found.idle_watts] == pytest.approx([25, 10])
    assert found.joules_per_step == pytest.approx((25 - 10) * 0.02)
    assert value(per_sample.function(found, batch_size=4)) == pytest.approx(0.3 / 4)
    assert value(power.function(found)) == pytest.approx(25)
    assert power.function(found).detail == {"idle_watts": pytest.approx(10)}


def test_a_counter_that_is_updated_seldom_is_read_for_longer() -> None:
    machine = Machine()
    found = measured(
        machine.step, [Counter("GPU 0", lambda: machine.joules, 0.1)], 0.5, lambda: machine.now, machine.sleep
    )
    assert found.seconds >= 10
    assert found.idle_seconds >= 10


def value(result: object) -> Any:
    assert isinstance(result, Estimate)
    return result.value


def test_no_more_than_idle_is_a_reason() -> None:
    result = per_sample.function(Energy(10, 1.0, {"package-0": 9.0}, 1.0, {"package-0": 9.5}), batch_size=1)
    assert result == Missing("the steps took 9 W and the idle machine 9.5 W: no more")


def test_the_energy_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each forward takes 2 J of the first package, 1 J of the second and 0.5 J of the memory; an idle machine takes nothing."""
    from torch import nn

    places = server(tmp_path)

    class Model(nn.Linear):
        def forward(self, x: Any) -> Any:
            for place, microjoules in zip(places, (2_000_000, 1_000_000, 500_000), strict=True):
                grow(place, microjoules)
            return super().forward(x)

    monkeypatch.setenv(POWERCAP, str(tmp_path))
    protocol = Protocol(warmup_s=0, min_s=0.01)
    result = sweeprof.profile(Model(4, 2), (np.zeros((4, 4), np.float32),), ["energy/per_sample"], protocol=protocol)
    found = result["energy/per_sample"]
    assert found.value == pytest.approx(3.5 / 4)
    assert found.unit == "J"


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


class NVMLError(Exception):
    pass


def library(**changed: Any) -> Any:
    """NVML with two GPUs, whose counters show millijoules."""
    energies = {"GPU-a": 1_000, "GPU-b": 5_000}

    def energy(handle: str) -> int:
        energies[handle] += 2_500
        return energies[handle]

    return SimpleNamespace(
        **{
            "NVMLError": NVMLError,
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByIndex": list(energies).__getitem__,
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlDeviceGetTotalEnergyConsumption": energy,
            **changed,
        }
    )


@pytest.mark.parametrize(
    ("device", "visible", "name"),
    [
        ("cuda", "", "GPU 0"),
        ("cuda:1", "", "GPU 1"),
        ("cuda", "GPU-b", "GPU GPU-b"),
        ("cuda:1", "1,0", "GPU 0"),
    ],
)
def test_the_counter_is_that_of_the_visible_gpu(
    device: str, visible: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    counter = gpu_counter(device, library())
    assert counter.name == name
    assert counter.joules() == pytest.approx(2.5)


def test_a_gpu_without_a_counter_has_a_reason() -> None:
    def refuse(handle: str) -> int:
        raise NVMLError("Not Supported")

    with pytest.raises(Unsupported, match="the GPU does not provide its energy: NVML: Not Supported"):
        gpu_counter("cuda", library(nvmlDeviceGetTotalEnergyConsumption=refuse))


def test_a_device_without_a_counter_is_not_measured_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server(tmp_path)
    monkeypatch.setenv(POWERCAP, str(tmp_path))
    assert len(counters("cpu")) == 3
    with pytest.raises(Unsupported):
        counters("cuda")
    with pytest.raises(Unsupported, match="mps: only the energy of CPUs and of NVIDIA GPUs"):
        counters("mps")
