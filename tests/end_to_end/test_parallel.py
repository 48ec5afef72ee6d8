"""What measures never overlaps, whoever started it; what measures nothing may."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pwd import getpwuid
from typing import Any

import pytest

from support.command import Command, run_command, start_command
from support.records import read_records
from sweeprof.passes.registry import exclusive_passes
from sweeprof.results.record import Record
from sweeprof.run.locks import Holder, HostLock

FAKE = (
    "model=fake",
    "backend=fake",
    "dataset=synthetic",
    "tracking=none",
    "protocol.min_s=0",
    "protocol.warmup_s=0",
    "protocol.rounds=2",
    "compare.baseline={model.fake.step_s: 0.001}",
)


def events_of(cwd: Path) -> list[dict[str, Any]]:
    files = sorted(cwd.glob("outputs/*/*/events/*.jsonl"))
    return [
        json.loads(line) for file in files for line in file.read_text().splitlines(keepends=True) if line[-1] == "\n"
    ]


def records_of(cwd: Path) -> list[Record]:
    (folder,) = cwd.glob("outputs/*/*/records")
    return read_records(folder)


def assert_alone(records: Sequence[Record]) -> None:
    """No trial that measures ran while any other did."""
    for a, b in itertools.combinations(records, 2):
        if a.pass_name in exclusive_passes() or b.pass_name in exclusive_passes():
            (a_begin, a_end), (b_begin, b_end) = a.environment["ran"], b.environment["ran"]
            assert a_end <= b_begin or b_end <= a_begin, (a.file_name, b.file_name)


def most_at_once(records: Sequence[Record]) -> int:
    turns = sorted(turn for r in records for turn in zip(r.environment["ran"], (1, -1), strict=True))
    return max(itertools.accumulate(change for _, change in turns))


@contextmanager
def running(cwd: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    cwd.mkdir()
    with start_command(cwd, *arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def until_waiting(cwd: Path) -> None:
    end = time.monotonic() + 60
    while not any(event["event"] == "waiting" for event in events_of(cwd)):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_two_sweeps_from_two_shells_take_turns_and_say_whom_they_wait_for(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    steps = "model.fake.step_s=0.001,0.002,0.003,0.004,0.005,0.006"
    command = (
        *FAKE,
        steps,
        "metrics.select=[latency/forward,quality/accuracy]",
        f"limits.locks={locks}",
    )
    neighbour = HostLock(Holder(os.getpid(), "neighbour", "s0", "elsewhere"), locks)
    with running(tmp_path / "a", *command) as a, running(tmp_path / "b", *command) as b:
        with neighbour.taken(True):
            for name in "ab":
                until_waiting(tmp_path / name)
            time.sleep(1.5)  # the display looks once a second
        said = [process.communicate(timeout=120)[1] for process in (a, b)]
        assert (a.returncode, b.returncode) == (0, 0), said
    for text in said:
        assert f"waiting for sweep elsewhere (s0) of user {getpwuid(os.geteuid()).pw_name}, pid {os.getpid()}" in text
    first, second = (records_of(tmp_path / name) for name in "ab")
    assert len(first) == len(second) == 6 * 3
    assert {record.status for record in (*first, *second)} == {"ok"}
    assert_alone([*first, *second])
    measured = [[r.environment["ran"][0] for r in records if r.pass_name == "timing"] for records in (first, second)]
    assert max(map(min, measured)) < min(map(max, measured))  # neither had to wait for the whole of the other
    others = [record.environment["others"] for record in first if record.pass_name == "timing"]
    assert all(set(seen) >= {"busy", "top", "load", "throttled", "overheated", "trials"} for seen in others)


def test_a_sweep_that_waits_ends_when_it_is_told_to(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    command = (
        *FAKE,
        "model.fake.step_s=0.001,0.002",
        "metrics=static",
        f"limits.locks={locks}",
    )
    with (
        HostLock(Holder(os.getpid(), "neighbour", "s0", "elsewhere"), locks).taken(True),
        running(tmp_path / "a", *command) as process,
    ):
        until_waiting(tmp_path / "a")
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said


MEETING = """
import os, pathlib, time
from sweeprof.backends.fake import FakeModel

def model(step_s):
    here = pathlib.Path("meeting")
    here.mkdir(exist_ok=True)
    (here / str(os.getpid())).touch()
    end = time.monotonic() + 30
    while len(list(here.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    return FakeModel(step_s)
"""
"""Models that wait for each other: two are there at once only if both shards count at once."""


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["quality/accuracy", "latency/forward"])
def test_shards_count_at_once_and_measure_one_after_the_other(tmp_path: Path, metric: str) -> None:
    (tmp_path / "meeting_models.py").write_text(MEETING)
    target = "meeting_models.model" if metric == "quality/accuracy" else "sweeprof.backends.fake.FakeModel"
    ran = run_command(
        tmp_path,
        *FAKE,
        f"model.fake._target_={target}",
        "model.fake.step_s=0.001,0.002",
        "batch_size=2,4",
        f"metrics.select=[{metric}]",
        "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=2",
        "shards=2",
        f"limits.locks={tmp_path / 'locks'}",
    )
    assert ran.code == 0, ran.err
    records = records_of(tmp_path)
    if metric == "quality/accuracy":
        assert most_at_once(records) == 2
    else:
        assert len({record.combination_id for record in records}) == 4
        assert_alone(records)
    waits = [event for event in events_of(tmp_path) if event["event"] == "waiting"]
    assert all(event["for"] is None for event in waits)  # of one sweep nothing is said: its other shard is seen at work


def test_a_folder_for_locks_that_cannot_be_one_is_a_mistake(called: Command) -> None:
    ran = called(*FAKE, "limits.locks=/dev/null")
    assert ran.code == 1
    assert "error: limits.locks: '/dev/null' is not the full path of a folder, or null." in ran.err.splitlines()
