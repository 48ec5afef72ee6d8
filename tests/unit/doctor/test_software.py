"""Backends that are missing or broken, and disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeprof import doctor

TORCH = {"_target_": "sweeprof.backends.fake.FakeBackend", "framework": "torch"}


def test_a_backend_that_is_not_installed() -> None:
    found = doctor.missing("tvm", {**TORCH, "framework": "tvm"})
    assert found is not None
    assert (found.value, found.reason) == (None, "tvm is not installed")
    assert found.advice is not None
    assert found.advice.command == "pip install 'sweeprof[tvm]'"


@pytest.mark.parametrize("framework", ["fake", "torch", "onnx", "litert", "jax", "tensorflow"])
def test_a_backend_that_is_installed(framework: str) -> None:
    assert doctor.missing(framework, {**TORCH, "framework": framework}) is None


def test_a_compiled_backend_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.missing("torch", TORCH) is None
    monkeypatch.setenv("PATH", "")
    found = doctor.missing("torch_compile", {**TORCH, "compile": True})
    assert found is not None
    assert str(found.reason).endswith("is installed, a C++ compiler is not")


def test_a_backend_that_cannot_be_used_says_why() -> None:
    broken = {**TORCH, "_target_": "sweeprof.backends.absent.Backend"}
    found = doctor._row("torch", broken, doctor.probed(broken))
    assert found.value is None
    assert found.reason is not None
    assert "cannot be used: " in found.reason
    assert "absent" in found.reason


def test_a_backend_that_works_and_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.probed(TORCH)["devices"] == ["cpu"]
    monkeypatch.setattr(doctor, "PROBE_S", 0.01)
    assert doctor.probed(TORCH) == {"trouble": "did not answer within 0.01 s"}


def test_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = doctor.disk(tmp_path / "not" / "there" / "yet")
    assert found.name == f"writing a record in {tmp_path}"
    assert str(found.value).endswith(" ms")
    monkeypatch.setattr(doctor, "SLOW_DISK_S", 0.0)
    (slow,) = doctor.disk(tmp_path)
    assert slow.advice is not None
    (refused,) = doctor.disk(Path("/proc"))
    assert str(refused.reason).startswith("cannot be written: ")
