"""A shard leaves a record for every trial, whatever its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.plans import fake_plan, read_records, sweep_folder
from sweeprof.plan.plan import Plan
from sweeprof.results.record import PassName, Record
from sweeprof.run import fork_server, shard, trial_limits
from sweeprof.run.interleave import ProcessExit, Request
from sweeprof.run.shard import prepare_data, run_shard

MODELS: dict[str, dict[str, Any]] = {
    "ok": {"step_s": 0.5},
    "raise": {"on_step": "raise"},
    "memory": {"on_step": "memory_error"},
    "exit": {"on_step": "exit"},
    "segfault": {"on_step": "segfault"},
    "kill": {"on_step": "kill"},
}
REASONS = {
    "ok": ("ok", None),
    "raise": ("failed", "ValueError: the fake model was told to raise"),
    "memory": ("oom", "MemoryError: the fake model was told to run out of memory"),
    "exit": ("crashed", "exited with code 3 without leaving a record"),
    "segfault": ("crashed", "killed by SIGSEGV (signal 11)"),
    "kill": ("crashed", "killed by SIGKILL (signal 9)"),
}


EXITED = "exited with code 9 without leaving a record"
WARNINGS = """\
W1127 10:20:30.123000 4711 torch/onnx/_registration.py:110] torchvision is not installed. Skipping torchvision::nms
2026-11-27 10:20:30.123: W external/local_xla/tsl.cc:84] no GPU
/site-packages/torch/cuda/__init__.py:61: FutureWarning: The pynvml package is deprecated.
  import pynvml
I0000 00:00:1764.1 4711 cpu_feature_guard.cc:227] optimised"""
FATAL = f"""\
terminate called after throwing an instance of 'std::runtime_error'
  what():  no such operator
{WARNINGS}
Fatal Python error: Aborted

Current thread 0x00007f (most recent call first):
  File "nets.py", line 3 in forward"""


def run(tmp_path: Path, plan: Plan) -> dict[str, Record]:
    folder = sweep_folder(tmp_path / "sweep", plan)
    run_shard(folder, 0)
    return {f"{r.combination_id}/{r.pass_name}-{r.round}": r for r in read_records(folder.records)}


@pytest.mark.parametrize(
    ("ending", "oom_kill", "output", "status", "reason"),
    [
        (ProcessExit(-9, timed_out=True), False, None, "timeout", "took longer than limits.timeout_s=2.5"),
        (ProcessExit(-9, timed_out=True), True, "std::bad_alloc", "timeout", "took longer than limits.timeout_s=2.5"),
        (ProcessExit(-9), True, None, "oom", "the system ran out of memory and killed it"),
        (ProcessExit(-11), True, "epoch 3", "crashed", "killed by SIGSEGV (signal 11)"),
        (ProcessExit(-6), False, "what():  std::bad_alloc", "oom", "std::bad_alloc"),
        (ProcessExit(-6), False, FATAL, "crashed", "killed by SIGABRT (signal 6): what():  no such operator"),
        (ProcessExit(9), False, WARNINGS, "crashed", EXITED),
        (ProcessExit(9), False, f"no space\n{WARNINGS}", "crashed", f"{EXITED}: no space"),
        (ProcessExit(-39), False, None, "crashed", "killed by a real-time signal (signal 39)"),
    ],
)
def test_endings(
    tmp_path: Path, ending: ProcessExit, oom_kill: bool, output: str | None, status: str, reason: str
) -> None:
    log = tmp_path / "log"
    if output is not None:
        log.write_text(f"{output}\n")
    request = Request({}, "", str(log), timeout_s=2.5, memory=None, asked=0.0)
    assert shard._failure(ending, request, oom_kill) == (status, reason)


def test_every_trial_has_its_record(tmp_path: Path) -> None:
    passes: list[PassName] = ["analysis", "quality"]
    plan = fake_plan(MODELS, passes, "fork", {"timeout_s": 60})
    found = run(tmp_path, plan)
    assert list(found) == sorted(f"c{name}/{p}-0" for name in MODELS for p in passes)
    for name, (status, reason) in REASONS.items():
        record = found[f"c{name}/quality-0"]
        assert record.status == status
        assert record.reason == reason or str(record.reason).startswith(f"{reason} (")
        combination = plan.combination(f"c{name}")
        assert (record.axes, record.config) == (combination.axes, combination.config)
        assert record.wall_s > 0
        assert record.environment["host"]
        assert (record.observations is not None) == (name == "ok")
    assert psutil.Process().children() == []


@pytest.mark.slow
def test_after_a_timeout_the_combination_is_skipped(tmp_path: Path) -> None:
    models = {"hang": {"on_step": "hang"}}
    found = run(tmp_path, fake_plan(models, ["timing", "quality"], "fork", {"timeout_s": 0.5}, rounds=2))
    ended = {key: (r.status, r.reason) for key, r in found.items()}
    skipped = ("skipped", "an earlier trial of this combination ran into limits.timeout_s")
    assert ended == {
        "chang/quality-0": ("timeout", "took longer than limits.timeout_s=0.5"),
        "chang/timing-0": ("timeout", "took longer than limits.timeout_s=0.5"),
        "chang/timing-1": skipped,
    }
    assert psutil.Process().children() == []


HOSTILE = """
import os, pathlib, resource, signal, subprocess, sys, threading, time
from sweeprof.backends.fake import FakeModel

def kill_the_group_of_the_fork_server():
    os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)

def clear_everything():
    os.environ.clear()
    os.umask(0o777)
    os.chdir("/")
    os.nice(5)
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))

def model(do, flag="", **arguments):
    if do.isdigit():
        os._exit(int(do))
    elif do == "kill server once" and not os.path.exists(flag):
        pathlib.Path(flag).touch()
        kill_the_group_of_the_fork_server()
        time.sleep(60)
    elif do == "stop server once" and not os.path.exists(flag):
        pathlib.Path(flag).touch()
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(60)
    elif do == "stop server":
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(60)
    elif do == "no file":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    elif do == "no descriptor":
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    elif do == "no file at all":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    elif do == "no streams":
        os.closerange(0, 3)
    elif do == "no settings":
        clear_everything()
    elif do == "exit hangs":
        import atexit
        atexit.register(time.sleep, 600)
        threading.Thread(target=time.sleep, args=(600,)).start()
    return FakeModel(**arguments)
"""


@pytest.fixture
def hostile(write_module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    write_module("hostile_process", HOSTILE)
    monkeypatch.setattr(fork_server, "STOPPED_S", 0.1)


def outcomes(tmp_path: Path, *behaviours: str) -> dict[str, tuple[str, str | None]]:
    """The outcomes of a combination for each behaviour; those between them end well, and no process is left."""
    models: dict[str, dict[str, Any]] = {}
    for behaviour in behaviours:
        label = behaviour.replace(" ", "")
        models[label], models[f"{label}next"] = {"do": behaviour, "flag": str(tmp_path / f"flag{label}")}, {}
    plan = fake_plan(models, ["quality"], "fork", {"timeout_s": 60})
    for combination in plan.combinations:
        node = combination.config["model"]["fake"]
        if "do" in node:
            node["_target_"] = "hostile_process.model"
    found = run(tmp_path, plan)
    named = {key.removeprefix("c").removesuffix("/quality-0"): (r.status, r.reason) for key, r in found.items()}
    assert {ending for name, ending in named.items() if name.endswith("next")} == {("ok", None)}
    assert psutil.Process().children() == []
    return {name: ending for name, ending in named.items() if not name.endswith("next")}


@pytest.mark.slow
@pytest.mark.usefixtures("hostile")
def test_no_exit_code_of_a_trial_ends_the_others(tmp_path: Path) -> None:
    codes = ["74", "0", "130", "255"]
    found = outcomes(tmp_path, *codes)
    assert found == {code: ("crashed", f"exited with code {code} without leaving a record") for code in codes}


@pytest.mark.slow
@pytest.mark.usefixtures("hostile")
def test_what_a_model_sets_for_its_process_stays_there(tmp_path: Path) -> None:
    harmless = ["no file", "no descriptor", "no streams", "no settings"]
    found = outcomes(tmp_path, *harmless, "no file at all")
    assert found.pop("nofileatall") == ("crashed", "killed by SIGXFSZ (signal 25)")
    assert found == {name.replace(" ", ""): ("ok", None) for name in harmless}
    assert (tmp_path / "sweep/records/cnosettings/quality-r0.json").stat().st_mode & 0o400


@pytest.mark.slow
@pytest.mark.usefixtures("hostile")
def test_what_a_trial_has_registered_for_its_end_cannot_keep_the_others_waiting(tmp_path: Path) -> None:
    began = time.monotonic()
    assert outcomes(tmp_path, "exit hangs") == {"exithangs": ("ok", None)}
    assert time.monotonic() - began < 3 * fork_server.EXITING_S


@pytest.mark.slow
@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize(
    ("way", "ending"),
    [
        ("kill server once", ("ok", None)),
        ("stop server once", ("ok", None)),
        ("stop server", ("lost", "the fork server was stopped (SIGSTOP) for more than 0.1 s; it was replaced")),
    ],
)
def test_a_trial_without_fork_server_is_run_once_more(tmp_path: Path, way: str, ending: tuple[str, str | None]) -> None:
    assert outcomes(tmp_path, way) == {way.replace(" ", ""): ending}


def test_a_long_log_keeps_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_limits, "MOST_LOG", 10 << 20)
    monkeypatch.setattr(trial_limits, "KEPT_OF_LOG", 1000)
    log = tmp_path / "log"
    log.write_bytes(b"begin" + b"x" * (11 << 20) + b"end")
    with log.open("ab") as output:
        trial_limits.shorten_log(log)
        output.write(b", and more")
    content = log.read_bytes()
    assert content.startswith("… of 11,534,344 bytes the last 1,000:\n".encode())
    assert content.endswith(b"xend, and more")
    assert len(content) < 1100


SHARING = """
import mmap, os, subprocess, sys, time
from multiprocessing import shared_memory
from sweeprof.backends.fake import FakeModel

def touch(memory, size):
    for start in range(0, size, 4096):
        memory[start] = 1

def model(how, size, **arguments):
    if how == "mmap":
        FakeModel.kept = mmap.mmap(-1, size)
        touch(FakeModel.kept, size)
    elif how == "shared_memory":
        FakeModel.kept = shared_memory.SharedMemory(create=True, size=size)
        FakeModel.kept.unlink()
        touch(FakeModel.kept.buf, size)
    elif how == "child":
        command = f"kept = bytearray({size}); import time; time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", command])
        time.sleep(5)
    elif how == "forks":  # which share the pages of one parent
        kept = bytearray(os.urandom(1 << 20)) * (size >> 20)
        for _ in range(4):
            if os.fork() == 0:
                time.sleep(600)
        time.sleep(0.5)
    return FakeModel(**arguments)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["mmap", "shared_memory", "child", "forks"])
@pytest.mark.parametrize(("mebibytes", "status"), [(192, "oom"), (64, "ok")])
def test_a_memory_limit_counts_shared_memory_and_child_processes_once(
    tmp_path: Path, write_module: Callable[[str, str], None], how: str, mebibytes: int, status: str
) -> None:
    write_module("sharing", SHARING)
    plan = fake_plan({"shares": {"how": how, "size": mebibytes << 20}}, ["quality"], "fork", {"memory": "128MiB"})
    plan.combinations[0].config["model"]["fake"]["_target_"] = "sharing.model"
    (record,) = run(tmp_path, plan).values()
    assert record.status == status, record.reason
    if how in ("mmap", "shared_memory") and status == "oom":
        assert "more than limits.memory (128 MiB)" in str(record.reason)


def test_a_crash_keeps_its_log_and_last_words_and_logs_without_output_are_removed(tmp_path: Path) -> None:
    found = run(tmp_path, fake_plan({"ok": {}, "segfault": MODELS["segfault"]}, ["quality"], "fork"))
    logs = tmp_path / "sweep" / "logs"
    assert not (logs / "cok" / "quality-r0.log").exists()
    assert "Segmentation fault" in (logs / "csegfault" / "quality-r0.log").read_text()
    assert "in happen" in str(found["csegfault/quality-0"].traceback)


def test_a_record_says_when_it_ran_and_what_else_did_while_it_measured(tmp_path: Path) -> None:
    found = run(tmp_path, fake_plan({"ok": {}}, ["timing", "quality"]))
    for record in found.values():
        begin, end = record.environment["ran"]
        assert begin <= end <= begin + record.wall_s
    others = found["cok/timing-0"].environment["others"]
    assert set(others) == {"seconds", "busy", "top", "load", "throttled", "overheated", "trials"}
    assert "others" not in found["cok/quality-0"].environment


@pytest.mark.slow
def test_what_has_a_record_is_not_run_again(tmp_path: Path) -> None:
    plan = fake_plan({"a": {}, "b": {}}, ["quality"])
    folder = sweep_folder(tmp_path / "sweep", plan)
    Record("s1", "ca", "quality", "ok", reason="of the first time").write(folder.records)
    run_shard(folder, 0)
    run_shard(folder, 0)
    assert [(r.status, r.reason) for r in read_records(folder.records)] == [("ok", "of the first time"), ("ok", None)]
    folder.set_aside(folder.records / "ca" / "quality-r0.json")
    run_shard(folder, 0)
    first, second = (record.environment["session"] for record in read_records(folder.records))
    assert first != second
    ends = [line for line in (folder.events / "shard-0.jsonl").read_text().splitlines() if '"end"' in line]
    assert len(ends) == 2


ODD = """
import os, time
from pathlib import Path
class Odd:
    def __init__(self, kind, done):
        self.kind, self.done = kind, Path(done)
    def prepare(self, split):
        if self.kind == "hangs":
            time.sleep(600)
        if self.kind == "dies":
            os._exit(3)
        self.done.touch()
"""


@pytest.mark.thorough
def test_a_dataset_that_hangs_or_dies_keeps_no_other_from_being_decoded(
    tmp_path: Path,
    write_module: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_module("odd_data", ODD)
    monkeypatch.setattr("sweeprof.run.shard.DECODING_S", 8.0)
    kinds = ("dies", "hangs", "fine")
    nodes = [
        {"_target_": "odd_data.Odd", "prepare": True, "kind": kind, "done": str(tmp_path / f"{kind}.done")}
        for kind in kinds
    ]
    prepare_data([{"dataset": node, "backend": {}} for node in nodes], tmp_path / "logs")
    assert [path.name for path in tmp_path.glob("*.done")] == ["fine.done"]
    assert "ended with code 3" in caplog.text
    assert "did not answer within 8 s" in caplog.text


CLEARING = """
from pathlib import Path
class Clearing:
    def __init__(self, log):
        self.log = Path(log)
    def prepare(self, split):
        self.log.unlink()
"""


def test_another_shard_may_have_removed_the_log(tmp_path: Path, write_module: Callable[[str, str], None]) -> None:
    """Shards of one sweep that a launcher runs side by side have one log."""
    write_module("clearing", CLEARING)
    log = tmp_path / "logs" / "data.log"
    dataset = {"_target_": "clearing.Clearing", "prepare": True, "log": str(log)}
    prepare_data([{"dataset": dataset, "backend": {}}], log.parent)
    assert not log.exists()
