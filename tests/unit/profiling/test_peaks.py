"""A machine's peaks: their cache, and the torch backend's beside the same product and copy by others."""

from __future__ import annotations

import json
import timeit
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.benchmark import Timer

import sweeprof
from sweeprof.backends import Backend
from sweeprof.backends.torch import adapter
from sweeprof.backends.torch.adapter import TorchBackend, peaks
from sweeprof.passes.timing import cached_peaks
from sweeprof.paths import cache_folder
from sweeprof.results.environment import Peaks, PeakSettings, capture

FOUND = Peaks(2e11, 1e10, "float32", "cpu", 1)


@dataclass
class Machine(Backend):
    """Counts how often it is asked."""

    threads: int = 1
    numerics: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)

    def peak_settings(self, device: str, model: Any = None) -> PeakSettings:
        return PeakSettings(model or "float32", device, self.threads, self.numerics)

    def peaks(self, settings: PeakSettings) -> Peaks:
        self.asked.append(settings.device)
        return replace(FOUND, dtype=settings.dtype, device=settings.device, threads=self.threads)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_machine_is_asked_once() -> None:
    machine = Machine()
    assert cached_peaks(machine, "cpu") == FOUND
    assert cached_peaks(machine, "cpu") == replace(FOUND, is_cached=True)
    assert cached_peaks(Machine(), "cpu").is_cached
    assert machine.asked == ["cpu"]


def test_other_settings_devices_and_versions_are_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cached_peaks(Machine(), "cpu")
    for machine, device in ((Machine(threads=2), "cpu"), (Machine(numerics=("tf32",)), "cpu"), (Machine(), "cuda")):
        assert not cached_peaks(machine, device).is_cached
    assert cached_peaks(Machine(), "cpu", "bfloat16") == replace(FOUND, dtype="bfloat16")
    environment = capture()
    monkeypatch.setattr("sweeprof.passes.timing.capture", lambda: {**environment, "versions": {"torch": "0"}})
    assert not cached_peaks(Machine(), "cpu").is_cached
    monkeypatch.setattr("sweeprof.passes.timing.capture", lambda: {**environment, "load": [9.0], "git": None})
    assert cached_peaks(Machine(), "cpu").is_cached


def _file(home: Path) -> Path:
    (path,) = (home / "sweeprof" / "peaks").iterdir()
    return path


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff\xfe", json.dumps({**FOUND.to_dict(), "flops_per_s": 0}).encode()]
)
def test_a_broken_file_is_measured_anew_and_replaced(content: bytes, home: Path) -> None:
    cached_peaks(Machine(), "cpu")
    _file(home).write_bytes(content)
    machine = Machine()
    assert cached_peaks(machine, "cpu") == FOUND
    assert machine.asked == ["cpu"]
    assert cached_peaks(Machine(), "cpu").is_cached


def test_a_home_that_cannot_be_written_to(home: Path) -> None:
    """A file where the folder should be: permissions would not stop the super-user."""
    (home / "sweeprof").write_text("")
    assert cached_peaks(Machine(), "cpu") == cached_peaks(Machine(), "cpu") == FOUND


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    for given in ("", "relative/path"):  # which the specification wants ignored
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert cache_folder("peaks") == Path("/home/someone/.cache/sweeprof/peaks")


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder("peaks") is None
    assert cached_peaks(Machine(), "cpu") == FOUND


# The machine's peaks, against the same product and copy by others


CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_the_product_is_as_fast_as_torchs_timer_finds_it_and_the_copy_as_numpys() -> None:
    """In turns, the best of each: other work slows down single turns by several times."""
    settings = TorchBackend().peak_settings("cpu")
    timer = Timer("a @ b", globals={"a": torch.randn(1024, 1024), "b": torch.randn(1024, 1024)}, num_threads=1)
    size = adapter.copied_bytes_on_host()
    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    ours, products, copies = [], [], []
    for _ in range(4):
        ours.append(peaks(settings))
        products.append(2 * 1024**3 / min(timer.blocked_autorange(min_run_time=0.1).times))
        copies.append(2 * size / min(timeit.repeat(lambda: np.copyto(target, source), number=1)))
    found = ours[0]
    assert (found.dtype, found.device, found.threads, found.is_cached) == ("float32", "cpu", 1, False)
    assert found.ridge == found.flops_per_s / found.bytes_per_s
    product = max(one.flops_per_s for one in ours) / max(products)
    copy = max(one.bytes_per_s for one in ours) / max(copies)
    print(f"matrix product: {product:.2f} of what torch.utils.benchmark finds; copy: {copy:.2f} of what numpy reaches")
    assert 0.3 < product < 3.5
    assert 0.3 < copy < 3.5


def test_the_arrays_are_beyond_the_caches_and_within_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf_names", {"SC_LEVEL3_CACHE_SIZE": 1})
    for cache, size in ((0, 1 << 28), (1 << 25, 1 << 28), (1 << 29, 1 << 29)):
        monkeypatch.setattr("os.sysconf", lambda name, cache=cache: cache)
        monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"total": 1 << 40}))
        assert adapter.copied_bytes_on_host() == size
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"total": 1 << 30}))
    assert adapter.copied_bytes_on_host() == 1 << 26


def test_the_settings_are_those_of_the_model_and_the_process() -> None:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    half = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2)).bfloat16()
    before = TorchBackend().peak_settings("cpu", half)
    assert (before.dtype, before.device, before.threads) == ("bfloat16", "cpu", threads)
    assert TorchBackend(precision="fp32").peak_settings("cpu", half).dtype == "float32"
    assert TorchBackend().peak_settings("cpu", nn.ReLU()).dtype == "float32"
    try:
        torch.set_num_threads(threads + 1)
        assert TorchBackend(threads=threads).peak_settings("cpu", half) == replace(before, threads=threads + 1)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("medium" if precision == "highest" else "highest")
        assert TorchBackend().peak_settings("cpu", half).numerics != before.numerics
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def test_a_model_in_hands_is_held_against_its_own_data_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "sampled", lambda step, protocol, clock: (step(), (1.0,))[1])
    monkeypatch.setattr(adapter, "copied_bytes_on_host", lambda: 1 << 20)
    for dtype in (torch.float32, torch.bfloat16):
        seen = sweeprof.Profiler(nn.Linear(2, 2).to(dtype), inputs=torch.ones(1, 2, dtype=dtype)).seen("peaks")
        assert isinstance(seen, Peaks)
        assert (seen.dtype, seen.is_cached) == (str(dtype).removeprefix("torch."), False)


def test_the_callers_random_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "sampled", lambda step, protocol, clock: (1.0,))
    before = torch.get_rng_state()
    peaks(TorchBackend(precision="fp16").peak_settings("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
