"""The measurements of an accelerator that the doctor tries, where there is none."""

from __future__ import annotations

import pytest

from sweeprof.backends.torch.device import CHECKS, device_checks
from sweeprof.cli.run import run_command
from sweeprof.doctor import conformance as suite
from sweeprof.doctor import device as doctor_device
from sweeprof.doctor.device import conformance, device


def test_a_device_that_is_not_there() -> None:
    found = list(device("xpu"))
    assert [finding.name for finding in found] == list(CHECKS)
    assert {finding.section for finding in found} == {"Device xpu"}
    assert {(finding.value, finding.reason) for finding in found} == {
        (None, "torch has no device 'xpu' here. Known: cpu")
    }
    assert all(finding.distorts for finding in found)


def test_the_cpu_has_no_such_measurements_and_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = device_checks("cpu")
    monkeypatch.setattr(doctor_device, "_answer", lambda *_: checks)
    found = list(device("cpu"))
    assert {finding.reason for finding in found} == {"this is measured of accelerators only"}
    assert not any(finding.distorts for finding in found)


def test_every_measurement_has_a_value_or_a_reason() -> None:
    assert all((check["value"] is None) != (check["reason"] is None) for check in device_checks("cuda").values())


@pytest.mark.parametrize("argument", ["cuda", "device=", "devise=cuda"])
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


def test_a_wrong_device_fails_the_conformance_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "OUTPUTS_APART", -1.0)
    checks = {name: suite.CHECKS[name] for name in ("outputs", "gradients")}
    monkeypatch.setattr(suite, "CHECKS", {**checks, "raises": lambda device: 1 / 0})
    found = suite.answers("cpu")
    assert found["outputs"][0] == found["gradients"][0] == "failed"
    assert found["raises"] == ("failed", "ZeroDivisionError: division by zero")


def test_a_suite_on_a_device_that_is_not_there() -> None:
    (finding,) = conformance("xpu")
    assert (finding.value, finding.reason) == (None, "cannot be used: torch has no device 'xpu' here. Known: cpu")
