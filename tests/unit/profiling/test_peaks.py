"""The cache of a machine's peaks, in a home of its own."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sweeprof.backends import Backend
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
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff\xfe",
        json.dumps({**FOUND.to_dict(), "flops_per_s": "fast"}).encode(),
        json.dumps({**FOUND.to_dict(), "flops_per_s": 0}).encode(),
        json.dumps({**FOUND.to_dict(), "bytes_per_s": None}).encode(),
    ],
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
    machine = Machine()
    assert cached_peaks(machine, "cpu") == FOUND
    assert cached_peaks(machine, "cpu") == FOUND
    assert machine.asked == ["cpu", "cpu"]


def test_several_at_once(home: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: cached_peaks(Machine(), "cpu"), range(8)))
    assert {replace(one, is_cached=False) for one in found} == {FOUND}
    assert cached_peaks(Machine(), "cpu").is_cached
    assert json.loads(_file(home).read_text()) == FOUND.to_dict()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder("peaks") == tmp_path / "sweeprof" / "peaks"
    monkeypatch.setenv("HOME", "/home/someone")
    for given in ("", "relative/path"):  # which the specification wants ignored
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert cache_folder("peaks") == Path("/home/someone/.cache/sweeprof/peaks")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder("peaks") == Path("/home/someone/.cache/sweeprof/peaks")


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder("peaks") is None
    assert cached_peaks(Machine(), "cpu") == FOUND


@pytest.mark.parametrize(
    ("name", "value"), [("flops_per_s", 0.0), ("flops_per_s", -1.0), ("bytes_per_s", float("inf"))]
)
def test_a_peak_is_a_rate(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="a peak is a finite rate above zero"):
        replace(FOUND, **{name: value})


def test_plain_data() -> None:
    assert Peaks.from_dict(json.loads(json.dumps(FOUND.to_dict()))) == FOUND
