"""The machine's peaks, against the same product and copy by others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.benchmark import Timer

import sweeprof
from sweeprof.backends import Precision
from sweeprof.backends.torch import adapter
from sweeprof.backends.torch import adapter as module
from sweeprof.backends.torch.adapter import TorchBackend, peaks
from sweeprof.results.environment import Peaks

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def found() -> Peaks:
    return peaks(TorchBackend().peak_settings("cpu"))


def best_s(call: Callable[[], object]) -> float:
    """Seconds of the quickest of a few calls."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def test_what_they_are_of(found: Peaks) -> None:
    assert (found.dtype, found.device, found.threads, found.is_cached) == ("float32", "cpu", 1, False)
    assert found.ridge == found.flops_per_s / found.bytes_per_s


@pytest.mark.slow
def test_the_product_is_as_fast_as_torchs_timer_finds_it(found: Peaks) -> None:
    """In turns, the best of each: other work slows down single turns by several times."""
    timer = Timer("a @ b", globals={"a": torch.randn(1024, 1024), "b": torch.randn(1024, 1024)}, num_threads=1)
    ours, theirs = [found.flops_per_s], []
    for _ in range(3):
        theirs.append(2 * 1024**3 / min(timer.blocked_autorange(min_run_time=0.1).times))
        ours.append(adapter.product_rate(partial(module._product_seconds, CPU, torch.float32)))
    ratio = max(ours) / max(theirs)
    print(f"matrix product: {max(ours) / 1e9:.0f} GFLOP/s, {ratio:.2f} of what torch.utils.benchmark finds")
    assert 0.3 < ratio < 3.5


def test_the_copy_is_as_fast_as_numpys(found: Peaks) -> None:
    size = adapter.copied_bytes_on_host()
    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    ratio = found.bytes_per_s / (2 * size / best_s(lambda: np.copyto(target, source)))
    print(f"copy: {found.bytes_per_s / 1e9:.1f} GB/s, {ratio:.2f} of what numpy reaches")
    assert 0.3 < ratio < 3.5


def test_a_slow_product_is_tried_small_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a kind of number is slow, the next size is eight times slower."""
    sizes: list[int] = []

    def mm(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
        sizes.append(len(left))

    monkeypatch.setattr(torch, "mm", mm)
    monkeypatch.setattr(module, "_best", lambda call, device: (call(), 0.01 * (sizes[-1] / 256) ** 3)[1])
    rate = adapter.product_rate(partial(module._product_seconds, CPU, torch.float32))
    assert sizes == [256, 512]  # 10 ms, then 80 ms; the next would be 640 ms
    assert rate == pytest.approx(2 * 256**3 / 0.01)


def test_the_arrays_are_beyond_the_caches_and_within_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf_names", {"SC_LEVEL3_CACHE_SIZE": 1})
    for cache, size in ((0, 1 << 28), (1 << 25, 1 << 28), (1 << 29, 1 << 29)):
        monkeypatch.setattr("os.sysconf", lambda name, cache=cache: cache)
        monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"total": 1 << 40}))
        assert adapter.copied_bytes_on_host() == size
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"total": 1 << 30}))
    assert adapter.copied_bytes_on_host() == 1 << 26


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), (None, "float32"), ("int8", "float32")])
def test_the_backend_asks_for_its_own_numbers(
    precision: Precision | None, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "sampled", lambda step, protocol, clock: (step(), (1.0,))[1])
    monkeypatch.setattr(module, "copied_bytes_on_host", lambda: 1 << 20)
    backend = TorchBackend(precision=precision)
    assert backend.peaks(backend.peak_settings("cpu")).dtype == dtype


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


def test_a_model_in_hands_is_held_against_its_own_data_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "sampled", lambda step, protocol, clock: (step(), (1.0,))[1])
    monkeypatch.setattr(module, "copied_bytes_on_host", lambda: 1 << 20)
    for dtype in (torch.float32, torch.bfloat16):
        seen = sweeprof.Profiler(nn.Linear(2, 2).to(dtype), inputs=torch.ones(1, 2, dtype=dtype)).seen("peaks")
        assert isinstance(seen, Peaks)
        assert (seen.dtype, seen.is_cached) == (str(dtype).removeprefix("torch."), False)


def test_the_callers_random_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "sampled", lambda step, protocol, clock: (1.0,))
    before = torch.get_rng_state()
    peaks(TorchBackend(precision="fp16").peak_settings("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
