"""NVIDIA GPUs: their state before and after a trial, the processes on them, and what makes their times untrustworthy."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support import simulated_nvml
from support.simulated_nvml import H100
from sweeprof.errors import Unsupported
from sweeprof.measuring.nvml import Gpu, GpuState, others_of, state_of, trial_warnings
from sweeprof.results.compared_rows import differing, key_of


def put(monkeypatch: pytest.MonkeyPatch, folder: Path, **changed: Any) -> None:
    simulated_nvml.put(monkeypatch, folder / "gpus.json", **{"0": {**H100, **changed}})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_state_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, tmp_path, held_back_by=0x61, processes={"7": 5})
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
    put(monkeypatch, tmp_path)
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
    put(monkeypatch, tmp_path, processes=processes)
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
