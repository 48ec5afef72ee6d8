"""The checks of an accelerator, where there is none."""

from __future__ import annotations

import pytest

from sweeprof.cli.run import run_command
from sweeprof.doctor import device
from sweeprof.errors import Unsupported
from sweeprof.profiling import conformance


def test_a_device_that_is_not_there() -> None:
    (finding,) = device("xpu")
    assert (finding.section, finding.value) == ("Device xpu", None)
    assert finding.reason == "cannot be used: torch has no device 'xpu' here. Known: cpu"
    assert finding.distorts


@pytest.mark.parametrize("argument", ["cuda", "device=", "devise=cuda", "cluster=slurm"])
def test_mistakes(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["doctor", argument]) == 1
    message = capsys.readouterr().err
    assert f"doctor: '{argument}' is not an argument: device=NAME" in message
    assert ("Did you mean 'device=cuda'?" in message) == (argument == "devise=cuda")


@pytest.mark.parametrize(
    ("name", "hint"), [("cda", " Did you mean 'cuda'?"), ("xup:1", " Did you mean 'xpu'?"), ("?", "")]
)
def test_what_is_a_device_on_no_host(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["doctor", "--quick", f"device={name}"]) == 1
    assert f"error: device: '{name}' is not a kind of device.{hint} Known: cpu, cuda, " in capsys.readouterr().err


def test_a_wrong_device_fails_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "OUTPUTS_APART", -1.0)
    checks = {name: conformance.CHECKS[name] for name in ("outputs", "gradients")}
    monkeypatch.setattr(conformance, "CHECKS", {**checks, "raises": lambda device: 1 / 0})
    found = conformance.answers("cpu")
    assert found["outputs"][0] == found["gradients"][0] == "failed"
    assert found["raises"] == ("failed", "ZeroDivisionError: division by zero")


@pytest.mark.parametrize("name", ["times of transfers", "memory of a step", "memory of the process"])
def test_what_is_measured_of_accelerators_only(name: str) -> None:
    with pytest.raises(Unsupported):
        conformance.CHECKS[name]("cpu")
