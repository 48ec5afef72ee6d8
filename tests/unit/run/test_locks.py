"""The host lock, between real processes, threads and users."""

from __future__ import annotations

import dataclasses
import fcntl
import io
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from support import simulated_nvml
from support.plans import fake_plan, read_records, sweep_folder
from support.simulated_nvml import H100
from sweeprof.errors import UserError
from sweeprof.plan.plan import Plan
from sweeprof.results.files import write_json
from sweeprof.results.record import PassName, Record
from sweeprof.run import locks
from sweeprof.run.locks import Holder, HostLock, HostSlots, visible_gpus, warn_of_oversubscription
from sweeprof.run.shard import run_shard

NOTE = "note-0123456789ab-0.json"
NOBODY = 65534
ROOT = Path(__file__).parents[3]
HOLD = """
import os, pathlib, sys
from sweeprof.run.locks import Holder, HostLock
folder, measures, gpus, user = sys.argv[1:]
os.umask(0o077)
if user:  # only now: another user may not be able to read the interpreter
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
turns = HostLock(Holder(os.getpid(), "someone", "s7", "other"), pathlib.Path(folder))
with turns.taken(measures == "measures", gpus.split()):
    print("held", flush=True)
    sys.stdin.readline()
"""
Wanted = tuple[bool, tuple[str, ...]]
CPU, ASIDE, GPU_A, GPU_B = (True, ()), (False, ()), (True, ("A",)), (True, ("B",))
ASIDE_A, ANY = (False, ("A",)), (True, ("A", "B"))


only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="sweeprof-test-"))
    path.chmod(0o755)
    yield path / "locks"
    shutil.rmtree(path)


def turns(folder: Path) -> HostLock:
    return HostLock(Holder(os.getpid(), "me", "s1", "mine"), folder)


@contextmanager
def held(folder: Path, wanted: Wanted, user: str = "") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(folder), "measures" if wanted[0] else "aside", " ".join(wanted[1]), user]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


class HeldUpError(Exception):
    """Raised instead of waiting."""


def taken_at_once(folder: Path, wanted: Wanted) -> str | bool:
    """The GPU, or whether there was a turn at once."""

    def refuse(_holders: Sequence[Holder]) -> None:
        raise HeldUpError

    try:
        with turns(folder).taken(*wanted, refuse) as gpu:
            return gpu or True
    except HeldUpError:
        return False


def test_what_excludes_what(folder: Path) -> None:
    allowed: dict[Wanted, dict[Wanted, str | bool]] = {
        CPU: {CPU: False, ASIDE: False, GPU_A: False, ASIDE_A: False},
        ASIDE: {CPU: False, ASIDE: True, GPU_A: "A", ASIDE_A: "A"},
        GPU_A: {CPU: False, ASIDE: True, GPU_A: False, GPU_B: "B", ASIDE_A: False, ANY: "B"},
        ASIDE_A: {CPU: False, ASIDE: True, GPU_A: False, GPU_B: "B", ASIDE_A: "A", ANY: "B"},
    }
    for holder, wishes in allowed.items():
        with held(folder, holder):
            assert {wish: taken_at_once(folder, wish) for wish in wishes} == wishes
    assert taken_at_once(folder, CPU)


def test_a_killed_holder_frees_it_and_its_note_goes(folder: Path) -> None:
    with held(folder, CPU) as process:
        (holder,) = turns(folder).holders()
        assert (holder.pid, holder.sweep_id, holder.measures) == (process.pid, "s7", True)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
    assert len(list(folder.glob("note-*"))) == 1
    assert taken_at_once(folder, CPU)
    assert turns(folder).holders() == []
    assert not list(folder.glob("note-*"))


def test_who_waits_is_told_for_whom_once_and_then_has_the_turn(folder: Path) -> None:
    told: list[str] = []
    with held(folder, CPU) as process:

        def waiting(holders: Sequence[Holder]) -> None:
            told.extend(map(str, holders))
            assert process.stdin is not None
            process.stdin.close()  # lets it go

        with turns(folder).taken(True, (), waiting):
            assert process.wait(30) == 0
    assert told == [f"sweep other (s7) of user {pwd.getpwuid(os.getuid()).pw_name}, pid {process.pid}"]


def run_at_once(work: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("single", [True, False], ids=["exclusive", "shared"])
def test_a_stream_of_the_others_starves_no_one(folder: Path, single: bool) -> None:
    """Two streams whose turns overlap, or follow each other at once; a single one of the other kind gets in after a few."""
    waits, done = threading.Event(), threading.Event()
    since = [0]

    def stream() -> None:
        mine = turns(folder)
        while not done.is_set():
            with mine.taken(not single):
                since[0] += waits.is_set()
                time.sleep(0.003)

    def one() -> None:
        time.sleep(0.05)
        with turns(folder).taken(single, (), lambda _: waits.set()):
            done.set()

    run_at_once([stream, stream, one])
    assert since[0] <= 20


@pytest.mark.slow
@only_root
def test_users_exclude_each_other_whoever_made_the_files(folder: Path) -> None:
    folder.parent.chmod(0o777)
    nobody = str(NOBODY)
    with held(folder, CPU, user=nobody):  # whose umask lets nobody else in
        assert folder.stat().st_uid == NOBODY
        assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.glob("*.lock")} == {0o666}
        assert not taken_at_once(folder, CPU)
    with held(folder, GPU_B):
        assert (folder / "gpu-B.lock").stat().st_uid == 0
        with held(folder, ASIDE, user=nobody):
            assert {str(h.user) for h in turns(folder).holders()} == {"nobody", "root"}
    with turns(folder).taken(True, ("B",)), held(folder, (True, ("B", "A")), user=nobody):
        pass
    os.chown(folder / "host.lock", 0, 0)
    (folder / "host.lock").chmod(0o444)
    with held(folder, CPU, user=nobody):  # a file that may only be read can be locked
        pass


def test_a_folder_that_cannot_be_used_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"limits\.locks: '.*file' is a symbolic link or not a folder; name a folder"):
        turns(tmp_path / "file")


def test_the_folder_is_the_hosts_whatever_a_jobs_own_is() -> None:
    program = "from sweeprof.run import locks; print(locks.FOLDER)"
    environment = {**os.environ, "TMPDIR": "/somewhere/else", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert Path(done.stdout.strip()) == Path("/tmp/sweeprof-locks")


def test_a_link_in_the_place_of_the_lock_folder_is_refused_and_its_target_left_alone(folder: Path) -> None:
    target = folder.with_name("private")
    target.mkdir(mode=0o700)
    folder.symlink_to(target)
    with pytest.raises(UserError, match=r"limits\.locks: '.*locks' is a symbolic link"):
        turns(folder)
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert list(target.iterdir()) == []


def test_a_folder_that_exists_already_keeps_its_mode(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    assert taken_at_once(folder, CPU)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_was_removed_is_made_again_for_the_next_turn(folder: Path) -> None:
    mine = turns(folder)
    shutil.rmtree(folder)
    with mine.taken(True):
        assert (folder / "host.lock").is_file()


@pytest.mark.parametrize("kind", ["link", "broken link", "fifo"])
def test_a_lock_that_is_no_plain_file_is_refused_and_left_alone(folder: Path, kind: str) -> None:
    folder.mkdir()
    target = folder.with_name("private")
    if kind == "fifo":
        os.mkfifo(folder / "host.lock")
    else:
        (folder / "host.lock").symlink_to(target)
    if kind == "link":
        target.write_text("precious")
        target.chmod(0o600)
    with pytest.raises(UserError, match=r"limits\.locks"):
        taken_at_once(folder, CPU)
    if kind == "link":
        assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("precious", 0o600)
    else:
        assert not target.exists()


HOSTILE = json.dumps({"pid": 7, "sweep_id": "\x1b[2J", "name": "a\u202eb\n" + "x" * 500, "user": "somebody"})


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (HOSTILE, "sweep a?b?x"),
        ('{"pid": 7, "sweep_id": "s", "name": {"a": 1}, "user": null}', None),
        ("[" * 60000, None),
        ('{"pid"', None),  # it is being written
        ("", None),
    ],
)
def test_what_others_write_into_notes_is_checked(folder: Path, content: str, shown: str | None) -> None:
    mine = turns(folder)
    with (folder / NOTE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(content)
        file.flush()
        holders = mine.holders()
    assert len(holders) == (shown is not None)
    for holder in holders:
        assert str(holder).isprintable()
        assert len(str(holder)) < 300
        assert str(holder).startswith(str(shown))
        assert holder.user == pwd.getpwuid(os.getuid()).pw_name


def test_a_note_that_is_a_link_or_a_fifo_is_no_holder(folder: Path) -> None:
    mine = turns(folder)
    os.mkfifo(folder / NOTE)
    elsewhere = folder.with_name("private")
    elsewhere.write_text("{}")
    (folder / "note-aaaaaaaaaaaa-0.json").symlink_to(elsewhere)
    assert mine.holders() == []
    assert elsewhere.read_text() == "{}"


@contextmanager
def locked_by_another(path: Path, kind: str = "x") -> Iterator[int]:
    """A lock file that a program holds which is not a sweep."""
    with subprocess.Popen(["flock", f"-{kind}", str(path), "sleep", "600"], start_new_session=True) as process:
        deadline = time.monotonic() + 10
        with path.open("a") as file:
            while locks._try(file.fileno(), fcntl.LOCK_EX):
                fcntl.flock(file, fcntl.LOCK_UN)
                assert time.monotonic() < deadline
                time.sleep(0.01)
        try:
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_reports_are_written_without_their_lock_after_a_while_and_say_who_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "SAID_AFTER_S", 0.1)
    with locked_by_another(tmp_path / "report.lock") as pid, locks.report_lock(tmp_path, 0.4):
        pass
    waiting, without = [record.getMessage() for record in caplog.records]
    holder = f"process {pid} of {pwd.getpwuid(os.geteuid()).pw_name} (flock "
    assert waiting.startswith(f"waiting for {tmp_path / 'report.lock'}, which is held by {holder}")
    assert without.startswith(f"{tmp_path / 'report.lock'} is still held by {holder}")
    assert without.endswith(": going on without it")


def test_a_folder_that_another_program_locks_is_in_use_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "ENDING_S", 0.2)
    with (
        locked_by_another(tmp_path / "work.lock", "s") as pid,
        pytest.raises(UserError, match=f"work.lock is held by process {pid} of"),
        locks.driver_lock(tmp_path),
    ):
        pass


def test_sending_ends_with_an_error_that_names_the_lock(tmp_path: Path) -> None:
    with (
        locked_by_another(tmp_path / "sending.lock") as pid,
        pytest.raises(TimeoutError, match=f"sending.lock is held by process {pid} of"),
        locks.sending_lock(tmp_path, 0.2),
    ):
        pass


def test_a_host_lock_that_no_sweep_holds_is_named_and_not_waited_for_without_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with turns(folder).taken(*CPU):  # which makes the files
        pass
    monkeypatch.setattr(locks, "SAID_AFTER_S", 0.1)
    monkeypatch.setattr(locks, "UNKNOWN_S", 0.4)
    with (
        locked_by_another(folder / "host.lock") as pid,
        pytest.raises(UserError, match=f"process {pid} of .* which is not a sweep, for more than 0.4 s"),
        turns(folder).taken(*CPU),
    ):
        pass
    (waiting,) = caplog.records
    assert f"host.lock, which is held by process {pid}" in waiting.getMessage()


def test_the_lock_of_another_thread_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "UNKNOWN_S", 0.1)
    lock = turns(folder)
    got = threading.Event()

    def take() -> None:
        with lock.taken(*CPU):
            got.set()

    thread = threading.Thread(target=take)
    with lock.taken(*CPU):
        thread.start()
        time.sleep(0.5)
        assert not got.is_set()
    thread.join(10)
    assert got.is_set()


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
def host(tmp_path: Path) -> HostLock:
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
        ("MIG-5,MIG-GPU-aa/1/0", ["MIG-5", "MIG-GPU-aa/1/0"], ["MIG-5", "MIG-GPU-aa-1-0"]),
    ],
)
def test_what_schedulers_give_is_kept(root: Path, inherited: str | None, tokens: list[str], uuids: list[str]) -> None:
    found = visible_gpus(root, inherited)
    assert [gpu.token for gpu in found] == tokens
    assert [gpu.uuid for gpu in found] == uuids


def test_what_measures_nothing_takes_any_that_is_free(root: Path, host: HostLock) -> None:
    with HostSlots(host, 0, visible_gpus(root, None)) as places, ExitStack() as at_once:
        taken = [at_once.enter_context(places.taken([blank("cuda", "quality")])) for _ in UUIDS]
        assert [place.gpu.uuid for place in taken if place.gpu] == list(UUIDS)


def test_shards_have_gpus_of_their_own_for_which_their_fork_servers_import(root: Path, host: HostLock) -> None:
    with ExitStack() as stack:
        shards = [stack.enter_context(HostSlots(host, 0, visible_gpus(root, None))) for _ in UUIDS]
        asked = [shard.environment_on(["cuda", "cuda"]) for shard in shards]
        assert asked == [{"CUDA_VISIBLE_DEVICES": uuid} for uuid in UUIDS]
        for pass_name in ("timing", "timing", "quality"):
            with ExitStack() as at_once:
                places = [at_once.enter_context(shard.taken([blank("cuda", pass_name)])) for shard in shards]
                assert [place.environment for place in places] == asked
                assert all(place.others == [] for place in places)  # notes of one and the same sweep process
        assert shards[0].environment_on(["cuda:1"]) == shards[0].environment_on(["cuda", "cpu"]) == {}


def test_a_numbered_gpu_is_the_one_that_is_locked_and_the_process_sees_all(root: Path, host: HostLock) -> None:
    with HostSlots(host, 0, visible_gpus(root, None)) as places, places.taken([blank("cuda:1")]) as place:
        assert place.environment == {}
        noted = place.noted(blank("cuda:1")).environment
        assert noted == {"others": {"trials": []}, "gpu": {"uuid": "GPU-bb", "model": "NVIDIA H1", "visible": "GPU-bb"}}


def test_without_a_list_and_on_the_processor_a_trial_has_the_whole_host(host: HostLock, root: Path) -> None:
    def pass_through(held_up: threading.Event) -> None:
        with HostLock(Holder(2, "me", "s2", "other"), host._folder).taken(False, (), lambda _: held_up.set()):
            pass

    for places, device in ((HostSlots(host, 0, []), "cuda"), (HostSlots(host, 0, visible_gpus(root, None)), "cpu")):
        held_up = threading.Event()
        with places.taken([blank(device)]) as place:
            assert place.gpu is None
            waits = threading.Thread(target=pass_through, args=(held_up,))
            waits.start()
            assert held_up.wait(30)
        waits.join(30)
        assert not waits.is_alive()


def test_a_bout_on_several_devices_has_the_whole_host(root: Path, host: HostLock) -> None:
    with HostSlots(host, 0, visible_gpus(root, None)) as places, places.taken([blank("cuda"), blank("cpu")]) as place:
        assert (place.gpu, place.environment) == (None, {})


@pytest.mark.slow
def test_processes_of_two_shards_see_different_gpus(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "SYSTEM", root)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = {"GPU_aa": H100, "GPU_bb": {**H100, "processes": {"7": 5}}}
    simulated_nvml.put(monkeypatch, tmp_path / "gpus.json", **gpus)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (simulated_nvml.LIBRARY, TESTS, TESTS.parent))))
    folder = sweep_folder(tmp_path / "sweep", on_gpus())
    run_at_once([partial(run_shard, folder, index) for index in range(2)])
    timed = [record for record in read_records(folder.records) if record.pass_name == "timing"]
    assert [(record.status, record.reason) for record in timed] == [("ok", None)] * 4
    given = {record.combination_id: record.environment["gpu"]["uuid"] for record in timed}
    assert len(set(given.values())) == 2
    for record in timed:
        assert record.environment["gpu"]["uuid"] == given[record.combination_id]  # in both rounds
        log = (folder.logs / record.combination_id / f"timing-r{record.round}.log").read_text()
        assert log == f"visible: {given[record.combination_id]}\n"
        is_shared = given[record.combination_id] == "GPU-bb"
        assert [warning.code for warning in record.warnings if "gpu" in warning.code] == ["gpu_shared"] * is_shared

    for record in read_records(folder.records):
        # NVML has a thread, beside which the pass could not have the child in which it measures added memory.
        assert ("before" in record.environment["gpu"]) is (record.pass_name == "timing")


def on_gpus() -> Plan:
    plan = fake_plan({"a": {}, "b": {}}, ["timing", "memory"], "fork", rounds=2)
    changed = {"device": {"type": "cuda"}, "model": {"fake": {"_target_": "support.plans.saying_gpus"}}}
    combinations = tuple(dataclasses.replace(c, config={**c.config, **changed}) for c in plan.combinations)
    return dataclasses.replace(plan, combinations=combinations, shards=(("ca",), ("cb",)))


PROGRAM = "import sys; from pathlib import Path; from sweeprof.run.locks import end_with_driver; end_with_driver(Path(sys.argv[1]))"


@pytest.mark.parametrize(("is_same_session", "code"), [(True, 70), (False, 0)])
def test_no_process_begins_work_for_a_dead_driver_of_its_session(
    tmp_path: Path, is_same_session: bool, code: int
) -> None:
    driver = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet waited for by whoever started it
    told = {"pid": driver.pid, "host": socket.gethostname(), "user": None, "token": "x", "gpus": None}
    write_json(tmp_path / "driver.json", {**told, "session": os.getsid(0)})
    worker = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    assert subprocess.run(worker, start_new_session=not is_same_session, check=False).returncode == code
    driver.wait()


@pytest.mark.parametrize(("threads", "is_warned"), [(8, False), (64, True)])
def test_more_threads_than_processors(threads: int, is_warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "usable_processors", lambda: 8)
    plan = fake_plan({"a": {}, "b": {}}, ["timing"])
    plan.combinations[1].config["backend"]["threads"] = threads
    out = io.StringIO()
    warn_of_oversubscription(plan, Console(file=out))
    asked = "backend.threads=64 asks for more than the 8 processors that this process may use"
    assert out.getvalue() == f"oversubscribed: {asked}; backend.threads=8\n" * is_warned
