"""GPUs are given out: a list of them that is made up, real locks and real processes."""

from __future__ import annotations

import dataclasses
import os
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.plans import fake_plan, sweep_folder
from support.records import read_records
from sweeprof.plan.plan import Plan
from sweeprof.results.record import PassName, Record
from sweeprof.run import locks
from sweeprof.run.locks import Holder, HostLock, HostSlots, visible_gpus
from sweeprof.run.shard import run_shard

TESTS = Path(__file__).parents[2]
UUIDS = ("GPU-aa", "GPU-bb", "GPU-cc")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of a file system with three GPUs."""
    for i, uuid in enumerate(UUIDS):
        file = tmp_path / f"root/proc/driver/nvidia/gpus/0000:0{i}:00.0/information"
        file.parent.mkdir(parents=True)
        file.write_text(f"Model: \t\t NVIDIA H{i}\nGPU UUID: \t {uuid}\n")
    return tmp_path / "root"


@pytest.fixture
def turns(tmp_path: Path) -> HostLock:
    return HostLock(Holder(1, "me", "s1", "mine"), tmp_path / "locks")


def blank(device: str, pass_name: PassName = "timing") -> Record:
    return Record("s", "c", pass_name, "crashed", config={"device": {"type": device}})


@pytest.mark.parametrize(
    ("inherited", "tokens", "uuids"),
    [
        (None, list(UUIDS), list(UUIDS)),
        ("", [], []),
        ("2,0", ["2", "0"], ["GPU-cc", "GPU-aa"]),
        ("01", ["01"], ["GPU-bb"]),
        ("GPU-b", ["GPU-b"], ["GPU-bb"]),
        ("1,-1,0", ["1"], ["GPU-bb"]),
        ("MIG-5", ["MIG-5"], ["number-MIG-5"]),
    ],
)
def test_what_a_scheduler_hands_out_is_kept(
    root: Path, inherited: str | None, tokens: list[str], uuids: list[str]
) -> None:
    found = visible_gpus(root, inherited)
    assert [gpu.token for gpu in found] == tokens
    assert [gpu.uuid for gpu in found] == uuids


def test_shards_have_gpus_of_their_own_and_keep_them(root: Path, turns: HostLock) -> None:
    with ExitStack() as stack:
        shards = [stack.enter_context(HostSlots(turns, 0, visible_gpus(root, None))) for _ in range(3)]
        for _ in range(2):
            with ExitStack() as at_once:
                places = [at_once.enter_context(shard.taken([blank("cuda")])) for shard in shards]
                assert [place.environment for place in places] == [{"CUDA_VISIBLE_DEVICES": uuid} for uuid in UUIDS]
                assert all(place.others == [] for place in places)  # notes of one and the same sweep process


def test_what_measures_nothing_takes_any_that_is_free(root: Path, turns: HostLock) -> None:
    with HostSlots(turns, 0, visible_gpus(root, None)) as places, ExitStack() as at_once:
        taken = [at_once.enter_context(places.taken([blank("cuda", "quality")])) for _ in UUIDS]
        assert [place.gpu.uuid for place in taken if place.gpu] == list(UUIDS)


def test_a_numbered_gpu_is_the_one_that_is_locked_and_the_process_sees_all(root: Path, turns: HostLock) -> None:
    with HostSlots(turns, 0, visible_gpus(root, None)) as places, places.taken([blank("cuda:1")]) as place:
        assert place.environment == {}
        noted = place.noted(blank("cuda:1")).environment
        assert noted == {
            "others": {"trials": []},
            "gpu": {"uuid": "GPU-bb", "model": "NVIDIA H1", "visible": "GPU-bb"},
        }


def test_without_a_list_and_on_the_processor_a_trial_has_the_whole_host(turns: HostLock, root: Path) -> None:
    for places, device in ((HostSlots(turns, 0, []), "cuda"), (HostSlots(turns, 0, visible_gpus(root, None)), "cpu")):
        held_up = threading.Event()
        with places.taken([blank(device)]) as place:
            assert place.gpu is None
            waits = threading.Thread(target=_pass_through, args=(turns, held_up))
            waits.start()
            assert held_up.wait(30)
        waits.join(30)
        assert not waits.is_alive()


def _pass_through(turns: HostLock, held_up: threading.Event) -> None:
    other = HostLock(Holder(2, "me", "s2", "other"), turns._folder)
    with other.taken(False, (), lambda _: held_up.set()):
        pass


def test_a_bout_on_several_devices_has_the_whole_host(root: Path, turns: HostLock) -> None:
    with (
        HostSlots(turns, 0, visible_gpus(root, None)) as places,
        places.taken([blank("cuda"), blank("cpu")]) as place,
    ):
        assert (place.gpu, place.environment) == (None, {})


def test_the_processes_of_two_shards_see_different_gpus(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "SYSTEM", root)
    monkeypatch.setattr(locks, "FOLDER", tmp_path / "locks")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (TESTS, TESTS.parent))))
    folder = sweep_folder(tmp_path / "sweep", on_gpus())
    threads = [threading.Thread(target=run_shard, args=(folder, index)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    timed = [record for record in read_records(folder.records) if record.pass_name == "timing"]
    assert [(record.status, record.reason) for record in timed] == [("ok", None)] * 4
    given = {record.combination_id: record.environment["gpu"]["uuid"] for record in timed}
    assert len(set(given.values())) == 2
    for record in timed:
        assert record.environment["gpu"]["uuid"] == given[record.combination_id]  # in both rounds
        log = (folder.logs / record.combination_id / f"timing-r{record.round}.log").read_text()
        assert log == f"visible: {given[record.combination_id]}\n"
        assert record.environment["others"]["gpu"]["processes"] is None


def on_gpus() -> Plan:
    plan = fake_plan({"a": {}, "b": {}}, ["timing"], "fork", rounds=2)
    changed = {"device": {"type": "cuda"}, "model": {"fake": {"_target_": "support.gpu.saying"}}}
    combinations = tuple(dataclasses.replace(c, config={**c.config, **changed}) for c in plan.combinations)
    return dataclasses.replace(plan, combinations=combinations, shards=(("ca",), ("cb",)))
