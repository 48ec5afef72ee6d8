"""Trials that take turns: who works when, and what happens to the others when one ends."""

from __future__ import annotations

import dataclasses
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.plans import fake_plan, read_records, sweep_folder
from sweeprof.measuring.timing import InterleavedRun, State, Timing
from sweeprof.plan.plan import Plan
from sweeprof.processes import Connection
from sweeprof.results.record import Record
from sweeprof.run import fork_server
from sweeprof.run.interleave import Coordinator, InterleavedParticipant, ProcessExit, Request, joined
from sweeprof.run.shard import run_shard

pytestmark = pytest.mark.timeout(60)


Play = Callable[[InterleavedParticipant], None]


def inside(play: Play) -> Callable[[Request], ProcessExit]:
    """Returns what runs a player in the calling thread; what it does is a function of its turns."""

    def run(request: Request) -> ProcessExit:
        with joined(request.interleaved, request.blank["combination_id"]) as player:
            assert player is not None
            play(player)
        return ProcessExit(0)

    return run


def hold(plays: Mapping[str, Play]) -> None:
    with Coordinator(list(plays), None) as coordinator:
        players = {}
        for name, play in plays.items():
            request = Request({"combination_id": name, "config": {"backend": {}}}, "", "", None, None, 0.0)
            players[name] = partial(coordinator.run_participant, name, inside(play), request)
        coordinator.run(players)


class Log:
    """What the players did, in its order; fails where two work at once."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str | int]] = []
        self._working = threading.Lock()

    def work(self, name: str, what: str | int) -> None:
        assert self._working.acquire(blocking=False), "another one is at work"
        self.done.append((name, what))
        self._working.release()

    def player(self, name: str, samples: int, last: State = "met") -> Play:
        def play(player: InterleavedParticipant) -> None:
            self.work(name, "warm-up")
            assert player.ready(0.5 if name == "a" else 2.0) == 2.0
            while (turn := player.take()) is not None:
                self.work(name, turn)
                player.leave(last if turn + 1 >= samples else "going")
            self.work(name, "end")

        return play

    def of_turn(self, turn: int) -> list[str]:
        return [name for name, what in self.done if what == turn]


def test_the_folder_for_temporary_files_may_have_a_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    log = Log()
    hold({name: log.player(name, 1) for name in ("a", "b")})
    assert sorted(log.of_turn(0)) == ["a", "b"]


def test_one_at_a_time_and_in_pairs_of_turns_the_second_goes_the_other_way_round() -> None:
    log = Log()
    hold({name: log.player(name, samples) for name, samples in (("a", 3), ("b", 8), ("c", 1))})
    assert log.done[:3] == [("a", "warm-up"), ("b", "warm-up"), ("c", "warm-up")]
    assert len(log.done) == 3 + 3 * 8 + 3, "turns go on until the last one has what it needs"
    for turn in range(8):
        assert sorted(log.of_turn(turn)) == ["a", "b", "c"]
    for turn in range(0, 8, 2):
        assert log.of_turn(turn + 1) == log.of_turn(turn)[::-1]
    assert len({tuple(log.of_turn(turn)) for turn in range(8)}) > 2
    assert {what for _, what in log.done[-3:]} == {"end"}


def test_it_ends_for_all_when_one_has_used_up_its_time() -> None:
    log = Log()
    hold({"a": log.player("a", 3, "spent"), "b": log.player("b", 8)})
    assert len(log.done) == 2 + 2 * 3 + 2


def test_who_has_lost_the_connection_ends_instead_of_taking_samples_for_ever() -> None:
    own, other = socket.socketpair()
    other.close()
    with own, pytest.raises(SystemExit, match="its connection to the shard is gone"):
        InterleavedParticipant(Connection(own), InterleavedRun("d1", ())).ready(1.0)


def interleaved_plan(
    models: Mapping[str, Mapping[str, Any]], place: str = "fork", rounds: int = 1, **limits: Any
) -> Plan:
    plan = fake_plan(models, ["timing"], place, limits, rounds)
    for combination in plan.combinations:
        combination.config["protocol"]["interleave"] = "samples"
    return plan


def run(tmp_path: Path, plan: Plan) -> dict[str, Record]:
    folder = sweep_folder(tmp_path / "sweep", plan)
    run_shard(folder, 0)
    assert psutil.Process().children() == []
    return {f"{record.combination_id[1:]}{record.round}": record for record in read_records(folder.records)}


def timing(record: Record) -> Timing:
    assert record.observations is not None, record.reason
    return Timing.from_dict(record.observations, record.round)


def run_of(timing: Timing) -> InterleavedRun:
    assert timing.interleaved_run is not None
    return timing.interleaved_run


@pytest.mark.slow
def test_every_round_is_an_interleaved_run(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {"a": {"step_s": 0.5}, "b": {"step_s": [0.25, 0.125]}}
    found = run(tmp_path, interleaved_plan(models, rounds=2))
    available = sorted(os.sched_getaffinity(0))
    ids = set()
    for round in range(2):
        a, b = timing(found[f"a{round}"]), timing(found[f"b{round}"])
        assert a.samples == (0.5,) * 3
        one, other = run_of(a), run_of(b)
        assert one.turns == other.turns == (0, 1, 2)
        assert one.id == other.id
        assert (one.partners, other.partners) == (("cb",), ("ca",))
        assert one.processors == other.processors == (available[round % len(available)],)
        ids.add(one.id)
    assert len(ids) == 2
    assert all(record.costs["wait"] >= 0 <= record.costs["measure"] for record in found.values())


def test_training_steps_are_timed_in_turns_too(tmp_path: Path) -> None:
    plan = interleaved_plan(
        {name: {"step_s": seconds, "backward_s": 1, "update_s": 0.25} for name, seconds in (("a", 0.5), ("b", 0.25))},
        "inline",
    )
    for combination in plan.combinations:
        combination.config["mode"] = "training"
    a, b = map(timing, run(tmp_path, plan).values())
    assert run_of(a).turns == run_of(b).turns
    assert (a.phases["forward"], b.phases["backward"]) == ((0.5,) * 3, (1.0,) * 3)


ENDINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "raise": ({"on_step": "raise", "calm_steps": 4}, "failed", "ValueError: the fake model was told to raise"),
    "memory": ({"on_step": "memory_error", "calm_steps": 4}, "oom", "MemoryError: the fake model"),
    "kill": ({"on_step": "kill", "calm_steps": 4}, "crashed", "killed by SIGKILL (signal 9)"),
    "exit": ({"on_build": "exit"}, "crashed", "exited with code 3 without leaving a record"),
    "hang": ({"on_step": "hang", "calm_steps": 4}, "timeout", "took longer than limits.timeout_s=1"),
    "slow": ({"on_build": "hang"}, "timeout", "took longer than limits.timeout_s=1"),
}


@pytest.mark.slow
def test_each_ending_has_its_row_and_the_others_go_on(tmp_path: Path) -> None:
    """``a`` and ``z`` wait for two hanging ones in turn, longer than they may work themselves."""
    models: dict[str, dict[str, Any]] = {"a": {"step_s": 0.5}, **{n: m for n, (m, _, _) in ENDINGS.items()}, "z": {}}
    found = run(tmp_path, interleaved_plan(models, rounds=2, timeout_s=1))
    for name, (_, status, reason) in ENDINGS.items():
        assert found[f"{name}0"].status == status, found[f"{name}0"].reason
        assert (found[f"{name}0"].reason or "").startswith(reason)
    for name in ("a", "z"):
        first, second = (timing(found[f"{name}{round}"]).samples for round in range(2))
        assert first == second
        assert len(first) == 3
    for name in ("hang", "slow"):
        assert found[f"{name}1"].status == "skipped"
    assert not {"chang", "cslow"} & set(run_of(timing(found["a1"])).partners)


@pytest.mark.slow
def test_who_is_left_alone_is_timed_alone(tmp_path: Path) -> None:
    found = run(tmp_path, interleaved_plan({"a": {}, "slow": {"on_build": "hang"}}, rounds=2, timeout_s=0.5))
    assert timing(found["a0"]).interleaved_run is not None
    assert timing(found["a1"]).interleaved_run is None
    assert found["slow1"].status == "skipped"


@pytest.mark.slow
def test_a_trial_group_without_one_of_its_records_is_run_again_as_a_whole(tmp_path: Path) -> None:
    plan = interleaved_plan({"a": {}, "b": {}}, rounds=2)
    first = run(tmp_path, plan)
    (tmp_path / "sweep" / "records" / "cb" / "timing-r1.json").unlink()
    second = run(tmp_path, plan)
    ids = {key: [getattr(timing(found[key]).interleaved_run, "id", None) for found in (first, second)] for key in first}
    assert ids["a0"][0] == ids["a0"][1] == ids["b0"][1]
    assert ids["a1"][0] != ids["a1"][1] == ids["b1"][1]


STOPPING = """
import os, signal
from sweeprof.backends.fake import FakeModel
def model(who, **arguments):
    os.kill({"trial": os.getpid(), "server": os.getppid()}[who], signal.SIGSTOP)
    return FakeModel(**arguments)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("limit_s", [1.0, None])
def test_a_participant_or_its_fork_server_that_is_stopped_ends_and_the_others_go_on(
    tmp_path: Path, write_module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, limit_s: float | None
) -> None:
    monkeypatch.setattr(fork_server, "GRACE_S", 0.8)
    monkeypatch.setattr(fork_server, "STOPPED_S", 0.4)
    write_module("stopping_model", STOPPING)
    plan = interleaved_plan({"a": {}, "trial": {}, "server": {"on_step": "hang"}}, timeout_s=limit_s)
    for combination in plan.combinations[1:]:
        node = combination.config["model"]["fake"]
        node |= {"_target_": "stopping_model.model", "who": combination.id[1:]}
    found = run(tmp_path, plan)
    statuses = {name: record.status for name, record in found.items()}
    reasons = {name: record.reason for name, record in found.items()}
    assert statuses == {"a0": "ok", "trial0": "timeout", "server0": "lost"}, reasons


@pytest.mark.slow
def test_an_interrupted_interleaved_run_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Any, *_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Coordinator, "_take_turns", interrupted)
    folder = sweep_folder(tmp_path / "sweep", interleaved_plan({"a": {}, "b": {}}))
    with pytest.raises(KeyboardInterrupt):
        run_shard(folder, 0)
    assert psutil.Process().children() == []
    assert read_records(folder.records) == []


@pytest.mark.slow
def test_with_fail_fast_a_bout_is_the_last(tmp_path: Path) -> None:
    plan = interleaved_plan({"a": {}, "b": {"on_step": "raise"}}, "inline", rounds=2)
    found = run(tmp_path, dataclasses.replace(plan, fail_fast=True))
    assert {key: record.status for key, record in found.items()} == {"a0": "ok", "b0": "failed"}
