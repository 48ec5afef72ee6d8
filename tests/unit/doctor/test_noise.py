"""What noise means for what can be told apart."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from sweeprof import doctor
from sweeprof.doctor import Noise
from sweeprof.results.record import Protocol
from sweeprof.results.statistics import ratio_interval

PROTOCOLS = {"quick": Protocol(rounds=1), "default": Protocol(rounds=5, threshold=0.05)}


def test_what_rounds_settle_is_the_middle_width_of_intervals_of_noise_alone() -> None:
    draws = np.random.default_rng(0)
    halves = []
    for _ in range(400):
        own, base = (np.exp(draws.normal(0, 0.02, 5)) for _ in range(2))
        low, high = ratio_interval(list(own), list(base))
        halves.append(math.log(high / low) / 2)
    assert math.log1p(doctor.settled(5, 0.02)) == pytest.approx(float(np.sqrt(np.mean(np.square(halves)))), rel=0.05)


def test_a_quiet_and_a_loud_machine() -> None:
    quiet = {f.name: f for f in doctor.meaning(Noise([1.0, 1.01, 1.0, 0.99], [0.01, 0.02, 0.03, 0.02]), PROTOCOLS)}
    assert quiet["within a process"].value == "2.0% (interquartile range over median)"
    assert quiet["between processes"].value == "0.8% (standard deviation of 4 processes' medians)"
    assert not quiet["between processes"].distorts
    assert quiet["protocol=quick"].value == "1 round settles nothing: it does not compare processes"
    assert quiet["protocol=default"].value == (
        "5 rounds settle 1.4%; called better or worse from 6.4%, with its threshold of 5%"
    )
    loud = {f.name: f for f in doctor.meaning(Noise([1.0, 1.2, 1.1, 0.9], [0.1] * 4), PROTOCOLS)}
    assert loud["between processes"].distorts
    assert loud["between processes"].advice is not None


def test_processes_that_fail_are_a_row_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    (found,) = doctor.noise(2, 0.01, PROTOCOLS)
    assert found.value is None
    assert found.reason is not None
    assert found.reason.startswith("a process of the measurement failed: ")


@pytest.mark.parametrize(("source", "advised"), [("tsc", False), ("hpet", True), (None, False)])
def test_a_clock_that_asks_the_kernel(tmp_path: Path, source: str | None, advised: bool) -> None:
    if source:
        file = tmp_path / "sys/devices/system/clocksource/clocksource0/current_clocksource"
        file.parent.mkdir(parents=True)
        file.write_text(source)
    found = {finding.name: finding for finding in doctor.clock(tmp_path)}
    assert (found["source"].advice is not None) == advised
    assert (found["source"].reason is None) == (source is not None)


def test_every_protocol_that_travels_with_the_package() -> None:
    found = doctor.protocols()
    assert {"quick", "default", "rigorous"} <= set(found)
    assert [protocol.rounds for protocol in found.values()] == sorted(protocol.rounds for protocol in found.values())
