"""Turns on a host, between real processes, threads and users."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from sweeprof.errors import UserError, WorkerError
from sweeprof.sweep import lock
from sweeprof.sweep.lock import Holder, Turns

ROOT = Path(__file__).parents[3]
HOLD = """
import os, pathlib, sys
from sweeprof.sweep.lock import Holder, Turns
folder, measures, gpus, user = sys.argv[1:]
os.umask(0o077)
if user:  # only now: another user may not be able to read the interpreter
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
turns = Turns(Holder(os.getpid(), "someone", "s7", "other"), pathlib.Path(folder))
with turns.taken(measures == "measures", gpus.split()):
    print("held", flush=True)
    sys.stdin.readline()
"""
Wanted = tuple[bool, tuple[str, ...]]
CPU, ASIDE, GPU_A, GPU_B = (True, ()), (False, ()), (True, ("A",)), (True, ("B",))
ASIDE_A, ANY = (False, ("A",)), (True, ("A", "B"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="sweeprof-test-"))
    path.chmod(0o755)
    yield path / "locks"
    shutil.rmtree(path)


def turns(folder: Path) -> Turns:
    return Turns(Holder(os.getpid(), "me", "s1", "mine"), folder)


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


def let_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


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
            let_go(process)

        with turns(folder).taken(True, (), waiting):
            assert process.wait(30) == 0
    assert told == [f"sweep other (s7) of user someone, pid {process.pid}"]


def test_threads_exclude_each_other(folder: Path) -> None:
    mine = turns(folder)
    inside, most = [0], [0]

    def work() -> None:
        with mine.taken(True):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.002)
            inside[0] -= 1

    run_at_once([work] * 8)
    assert most == [1]


def test_a_thread_that_waits_can_be_made_to_give_up(folder: Path) -> None:
    mine, waits, ended = turns(folder), threading.Event(), []

    def wait() -> None:
        try:
            with mine.taken(True, (), lambda _: waits.set()):
                pass
        except WorkerError as error:
            ended.append(str(error))

    with held(folder, ASIDE):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(30)
        mine.give_up()
        thread.join(30)
    assert ended == ["the sweep ends"]
    assert psutil.Process().children() == []
    assert taken_at_once(folder, CPU)


def run_at_once(work: Sequence[Callable[[], None]]) -> None:
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


def test_a_claim_spreads_shards_over_gpus(folder: Path) -> None:
    with ExitStack() as stack:
        for expected in ("A", "B"):
            gpu, claim = turns(folder).claimed(["A", "B"])
            assert gpu == expected
            assert claim is not None
            stack.callback(os.close, claim)
        assert turns(folder).claimed(["B", "A"]) == ("B", None)
    gpu, claim = turns(folder).claimed(["A", "B"])
    assert gpu == "A"
    os.close(claim or -1)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_users_exclude_each_other_whoever_made_the_files(folder: Path) -> None:
    folder.parent.chmod(0o777)
    nobody = "65534"
    with held(folder, CPU, user=nobody):  # whose umask lets nobody else in
        assert folder.stat().st_uid == int(nobody)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.glob("*.lock")} == {0o666}
        assert not taken_at_once(folder, CPU)
    with held(folder, GPU_B):
        assert (folder / "gpu-B.lock").stat().st_uid == 0
        with held(folder, ASIDE, user=nobody):
            assert {str(h.user) for h in turns(folder).holders()} == {"someone"}
    with turns(folder).taken(True, ("B",)), held(folder, (True, ("B", "A")), user=nobody):
        pass


def test_a_file_of_a_user_who_lets_nobody_write_can_be_locked_by_who_may_read_it(folder: Path) -> None:
    assert taken_at_once(folder, CPU)
    (folder / "host.lock").chmod(0o444)
    assert taken_at_once(folder, CPU)


def test_a_note_that_is_being_written_is_no_holder(folder: Path) -> None:
    mine = turns(folder)
    note = folder / "note-0-0.json"
    note.touch()
    assert mine.holders() == []
    with note.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write('{"pid"')
        file.flush()
        assert mine.holders() == []


def test_a_folder_that_cannot_be_used_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"limits\.locks: '.*file' cannot be used: File exists; name a folder"):
        turns(tmp_path / "file")


def test_the_folder_is_the_hosts_whatever_a_jobs_own_is() -> None:
    program = "from sweeprof.sweep import lock; print(lock.FOLDER)"
    environment = {**os.environ, "TMPDIR": "/somewhere/else", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert Path(done.stdout.strip()) == Path("/tmp/sweeprof-locks") == lock.FOLDER
