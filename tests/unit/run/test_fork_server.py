"""A real fork server: whatever ends a trial, the shard learns of it and no process is left."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.plans import fake_plan
from sweeprof.errors import WorkerError
from sweeprof.processes import ProcessLost, child_environment
from sweeprof.results.files import read_json
from sweeprof.results.record import Record
from sweeprof.run import fork_server
from sweeprof.run.fork_server import ForkServer, WorkerPool
from sweeprof.run.interleave import ProcessExit, Request

PRELOAD = ["sweeprof.backends.fake"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server for the tests that leave it alive."""
    made = ForkServer(PRELOAD, {}, tmp_path_factory.mktemp("server") / "fork-server.log")
    yield made
    made.close()


@pytest.fixture
def own(tmp_path: Path, write_module: Callable[[str, str], None]) -> Iterator[ForkServer]:
    """A fork server for the tests that kill it, or have modules of their own."""
    made = ForkServer(PRELOAD, {}, tmp_path / "fork-server.log")
    yield made
    made.close()


def request_of(folder: Path, timeout_s: float | None = 60, **model: Any) -> Request:
    plan = fake_plan({"x": model})
    combination = plan.combinations[0]
    blank = Record("s", combination.id, "quality", "crashed", config=combination.config)
    return Request(
        blank.to_dict(), str(folder / "records"), str(folder / "logs" / "x.log"), timeout_s, None, time.monotonic()
    )


def record_of(request: Request) -> Record:
    path = Path(request.records) / Record.from_dict(request.blank).file_name
    return Record.from_dict(read_json(path))


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def running_child(fork_server: ForkServer) -> psutil.Process:
    process = psutil.Process(fork_server.pid)
    assert wait_until(lambda: bool(process.children()))
    return process.children()[0]


def test_a_trial_leaves_its_record(shared: ForkServer, tmp_path: Path) -> None:
    request = request_of(tmp_path)
    assert shared.run(request) == ProcessExit(0)
    record = record_of(request)
    assert (record.status, record.reason) == ("ok", None)
    assert record.observations is not None
    assert record.costs["fork"] < record.wall_s
    assert set(record.costs) == {"fork", "build", "measure"}
    assert shared.is_ready
    assert shared.wait_until_ready() > 0


def registering(path: Path) -> dict[str, Any]:
    """A node that has the process make a folder when it ends."""
    return {"_target_": "atexit.register", "_args_": [{"_target_": "os.mkdir", "_partial_": True, "path": str(path)}]}


def test_what_a_trial_leaves_for_its_exit_is_done(shared: ForkServer, tmp_path: Path) -> None:
    """AutoGraph removes its files so: hundreds of them were left in the folder for temporary ones."""
    for status, event in (("ok", None), ("failed", "raise")):
        request = request_of(tmp_path, params=registering(tmp_path / status), on_step=event)
        assert shared.run(request) == ProcessExit(0)
        assert record_of(request).status == status, record_of(request).reason
        assert (tmp_path / status).exists()


def test_an_argument_that_a_model_does_not_have_is_the_reason(shared: ForkServer, tmp_path: Path) -> None:
    request = request_of(tmp_path, no_such_argument=1)
    assert shared.run(request) == ProcessExit(0)
    record = record_of(request)
    assert record.status == "failed"
    assert "no_such_argument" in str(record.reason)
    assert "hydra" not in str(record.location)
    assert record.traceback is not None


def test_a_limit_may_be_longer_than_the_system_waits_at_once(shared: ForkServer, tmp_path: Path) -> None:
    assert shared.run(request_of(tmp_path, timeout_s=1e9)) == ProcessExit(0)


def test_a_memory_limit_is_met_and_stays_in_its_trial(shared: ForkServer, tmp_path: Path) -> None:
    request = replace(request_of(tmp_path, on_step="allocate"), memory=64 << 20)
    assert shared.run(request) == ProcessExit(0)
    assert record_of(request).status == "oom"
    roomy = replace(request_of(tmp_path), memory=512 << 20)
    assert shared.run(roomy) == ProcessExit(0)
    assert record_of(roomy).status == "ok"


def test_a_fork_server_killed_during_a_trial_takes_it_along(own: ForkServer, tmp_path: Path) -> None:
    running = in_background(lambda: own.run(request_of(tmp_path, None, on_step="hang")))
    child = running_child(own)
    os.kill(own.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"killed by SIGKILL \(signal 9\)"):
        running.result(30)
    assert wait_until(lambda: is_gone(child.pid))


def in_background(step: Callable[[], object]) -> Future[object]:
    """Run ``step`` in a thread of its own."""
    done: Future[object] = Future()

    def run() -> None:
        try:
            done.set_result(step())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


@pytest.mark.slow
@pytest.mark.parametrize("limit_s", [30, None])
def test_a_stopped_fork_server_does_not_stop_the_sweep(
    own: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float | None
) -> None:
    monkeypatch.setattr(fork_server, "STOPPED_S", 0.2)
    running = in_background(lambda: own.run(request_of(tmp_path, limit_s, on_step="hang")))
    child = running_child(own)
    assert wait_until(lambda: psutil.Process(own.pid).status() == psutil.STATUS_SLEEPING)  # it has told of the child
    os.kill(own.pid, signal.SIGSTOP)
    with pytest.raises(ProcessLost, match="the fork server was stopped"):
        running.result(20)
    assert wait_until(lambda: is_gone(own.pid) and is_gone(child.pid))


def test_a_stopped_trial_is_ended_by_its_limit(shared: ForkServer, tmp_path: Path) -> None:
    running = in_background(lambda: shared.run(request_of(tmp_path, 0.5, on_step="hang")))
    os.kill(running_child(shared).pid, signal.SIGSTOP)
    assert running.result(20) == ProcessExit(-signal.SIGKILL, timed_out=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_an_idle_fork_server_that_is_stopped_or_dies_is_replaced(tmp_path: Path, number: signal.Signals) -> None:
    with WorkerPool("fork", tmp_path / "logs") as pool:
        assert pool.run(request_of(tmp_path)) == ProcessExit(0)
        ((idle,),) = pool._free.values()
        os.kill(idle.pid, number)
        assert wait_until(lambda: not idle.alive)
        assert pool.run(request_of(tmp_path)) == ProcessExit(0)
        assert is_gone(idle.pid)


@pytest.fixture
def importer(tmp_path: Path, write_module: Callable[[str, str], None]) -> Callable[[], int]:
    """A module ``slow_module`` whose import does not end; returns what waits for the process that imports it."""
    pid = tmp_path / "pid"
    text = f"import os, pathlib, time\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    write_module("slow_module", text)

    def process() -> int:
        assert wait_until(lambda: pid.exists() and bool(pid.read_text()))
        return int(pid.read_text())

    return process


def test_a_fork_server_that_is_stopped_during_its_import(
    tmp_path: Path, importer: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "STOPPED_S", 0.2)
    starting = in_background(ForkServer(["slow_module"], {}, tmp_path / "fork-server.log").wait_until_ready)
    pid = importer()
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ProcessLost, match="the fork server was stopped"):
        starting.result(20)
    assert is_gone(pid)


@pytest.mark.slow
def test_a_pool_imports_in_the_background_and_waits_for_no_stopped_import(
    tmp_path: Path, importer: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "LOOK_S", 0.05)
    fine, hangs = (request_of(tmp_path).blank["config"] for _ in range(2))
    hangs["backend"] = {**hangs["backend"], "preload": ["slow_module"]}
    with WorkerPool("fork", tmp_path / "logs") as pool:
        pool.start([(fine, "quality", {}), (hangs, "quality", {}), (fine, "quality", {})])
        pid = importer()
        while not pool.is_ready((fine, "quality", {})):
            pool.wait_for_import()
        assert pool.is_importing
        assert not pool.is_ready((hangs, "quality", {}))
        assert pool.run(request_of(tmp_path)) == ProcessExit(0)
        os.kill(pid, signal.SIGSTOP)
        assert wait_until(lambda: not pool.is_importing)
    assert wait_until(lambda: is_gone(pid))


DRIVER = """
import pathlib, sys
from sweeprof.run.fork_server import ForkServer
ForkServer(["slow_module"], {}, pathlib.Path(sys.argv[1], "fork-server.log")).wait_until_ready()
"""


def test_a_stopped_fork_server_ends_with_its_driver(tmp_path: Path, importer: Callable[[], int]) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)]) as driver:
        pid = importer()
        os.kill(pid, signal.SIGSTOP)
        driver.kill()
    try:
        assert wait_until(lambda: is_gone(pid), 10)
    finally:
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)


SHARD = """
import json, pathlib, sys, time
from sweeprof.run.fork_server import ForkServer
from sweeprof.run.interleave import Request
server = ForkServer(["sweeprof.backends.fake"], {}, pathlib.Path(sys.argv[1], "fork-server.log"))
server.wait_until_ready()
print(server.pid, flush=True)
server.run(Request(**json.loads(sys.stdin.readline())))
"""


def test_a_killed_shard_leaves_no_process_that_was_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHARD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shard:
        assert shard.stdout is not None
        assert shard.stdin is not None
        fork_server = psutil.Process(int(shard.stdout.readline()))
        shard.stdin.write(json.dumps(asdict(request_of(tmp_path, None, on_step="hang"))) + "\n")
        shard.stdin.flush()
        assert wait_until(lambda: bool(fork_server.children()))
        child = fork_server.children()[0]
        child.suspend()
        fork_server.suspend()
        shard.kill()
    assert wait_until(lambda: is_gone(fork_server.pid) and is_gone(child.pid))


def test_a_module_that_cannot_be_imported(tmp_path: Path) -> None:
    said = "ended with code 1: cannot import no_such_module: ModuleNotFoundError: No module named 'no_such_module'"
    with pytest.raises(WorkerError, match=said):
        ForkServer(["no_such_module"], {}, tmp_path / "fork-server.log").wait_until_ready()


HOST_WITH_GPU = """
import sys
from types import SimpleNamespace
cuda = SimpleNamespace(device_count=lambda: 1, is_used=False)
sys.modules["torch"] = SimpleNamespace(cuda=cuda, backends=SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: True)))
sys.modules["sweeprof.backends.torch.private"] = SimpleNamespace(is_in_bad_fork=lambda: cuda.is_used)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "used", ["torch.cuda.is_used = True", "torch.cuda.is_used, torch.cuda.device_count = True, None"]
)
def test_an_import_that_uses_the_gpu_is_left_to_the_trials(
    tmp_path: Path, write_module: Callable[[str, str], None], used: str
) -> None:
    """In a child of a process that has used it, CUDA does not work. The first module stands for PyTorch on a host with a GPU."""
    write_module("host_with_gpu", HOST_WITH_GPU)
    write_module("uses_the_gpu", f"import torch\n{used}\nprint('imported')\n")
    write_module("harmless", "print('the last is imported')\n")
    log = tmp_path / "fork-server.log"
    server = ForkServer(["host_with_gpu", "uses_the_gpu", "harmless"], {}, log)
    server.wait_until_ready()
    server.close()
    assert log.read_text().splitlines() == [
        "imported",
        "uses_the_gpu uses the GPU when it is imported: each trial imports it, and not this process",
        "the last is imported",
    ]


def test_the_environment_of_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("KEPT", "yes")
    before = dict(os.environ)
    found = child_environment({"MINE": "1"})
    assert "OMP_NUM_THREADS" not in found
    assert "MKL_NUM_THREADS" not in found
    assert (found["OPENBLAS_NUM_THREADS"], found["KEPT"], found["MINE"]) == ("1", "yes", "1")
    assert found["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1", "asking for a GPU keeps children from using it"
    assert child_environment({"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"
    assert dict(os.environ) == before


def test_a_trial_run_inline_leaves_no_memory_limit(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        with WorkerPool("inline", tmp_path) as pool:
            assert pool.run(replace(request_of(tmp_path), memory=1 << 30)) == ProcessExit(0)
        assert resource.getrlimit(resource.RLIMIT_DATA) == before
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
