"""Lines of JSON with a child process, and every way in which it may go silent."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sweeprof.errors import WorkerError
from sweeprof.processes import Child, NoAnswer, call

ECHO = """
import os, subprocess, time

def serve(connection, *arguments):
    for message in connection.messages():
        match message["do"]:
            case "echo":
                connection.send({"said": message["text"], "arguments": arguments, "variable": os.environ.get("VARIABLE")})
            case "twice":
                connection.socket.sendall(b'{"n": 1}\\n{"n": 2}\\n')
            case "trickle":
                for _ in range(100):
                    connection.socket.sendall(b" ")
                    time.sleep(0.1)
            case "exit":
                print("last words", flush=True)
                os._exit(5)
            case "sleep":
                time.sleep(600)
            case "start":
                connection.send({"pid": subprocess.Popen(["sleep", "600"]).pid})

def answered(message):
    os.write(1, bytes([255, 10]))  # a library may print anything
    match message["do"]:
        case "fail":
            raise ValueError("no luck")
        case "sleep":
            time.sleep(600)
    return {"said": message["text"]}
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "echoing_child.py").write_text(ECHO)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "VARIABLE": "value"}


@pytest.fixture
def child(tmp_path: Path, environment: dict[str, str]) -> Iterator[Child]:
    made = Child("echoing_child:serve", ["one", "two"], environment, tmp_path / "logs" / "child.log")
    yield made
    if psutil.pid_exists(made.pid):
        os.kill(made.pid, signal.SIGKILL)
    made.close()


def test_question_and_answer(child: Child) -> None:
    for text in ("a", "ü × \n", "x" * 300_000):
        found = child.ask({"do": "echo", "text": text})
        assert found == {"said": text, "arguments": ["one", "two"], "variable": "value"}
    assert child.ask({"do": "twice"}) == {"n": 1}  # two messages in one piece
    assert child.receive() == {"n": 2}


@pytest.mark.slow
def test_what_a_child_has_started_ends_with_it(child: Child) -> None:
    started = psutil.Process(child.ask({"do": "start"})["pid"])
    child.close()
    _, left = psutil.wait_procs([started], timeout=10)
    assert left == [] or started.status() == psutil.STATUS_ZOMBIE


def test_a_child_that_ends_has_an_obituary(child: Child, tmp_path: Path) -> None:
    with pytest.raises(WorkerError) as raised:
        child.ask({"do": "exit"})
    log = tmp_path / "logs" / "child.log"
    assert str(raised.value) == f"echoing_child ended with code 5: last words (see {log})"
    with pytest.raises(WorkerError, match=r"echoing.child (process is gone|ended with code 5)"):
        child.ask({"do": "echo", "text": ""})


def test_an_answer_in_many_pieces_has_one_limit(child: Child) -> None:
    with pytest.raises(NoAnswer, match=r"did not answer within 0.5 s"):
        child.ask({"do": "trickle"}, 0.5)


def test_an_answer_that_came_while_nobody_looked_is_not_late(child: Child) -> None:
    child.send({"do": "echo", "text": "here"})
    select.select([child._connection.socket], [], [])
    # The limit has passed, as when this process was stopped for longer than its child may take.
    assert child.receive(-1)["said"] == "here"


def test_a_killed_child(child: Child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"its echoing child process (is gone|was killed by SIGKILL)"):
        child.ask({"do": "echo", "text": "x" * 300_000})


def test_it_has_a_session_of_its_own_and_closing_ends_it(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeprof.processes.CLOSING_S", 0.2)
    child.ask({"do": "echo", "text": ""})
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    child.send({"do": "sleep"})  # so that it does not see that the connection is closed
    child.close()
    assert not psutil.pid_exists(child.pid)


def test_a_function_called_in_a_process_of_its_own(environment: dict[str, str]) -> None:
    assert call("echoing_child:answered", {"do": "echo", "text": "ü"}, environment) == {"said": "ü"}
    with pytest.raises(
        WorkerError,
        match=r"^echoing_child ended with code 1: ValueError: no luck \(.*echoing_child\.py:\d+ in answered\)$",
    ):
        call("echoing_child:answered", {"do": "fail"}, environment)
    with pytest.raises(NoAnswer, match=r"^echoing_child did not answer within 0\.5 s$"):
        call("echoing_child:answered", {"do": "sleep"}, environment, 0.5)
    assert not psutil.Process().children()


WAITING = {
    "a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a socket": "one, other_end = socket.socketpair(); one.recv(1)",
}
CODE = """
import signal, socket, threading, time
from sweeprof.processes import heard_by_the_main_thread

other = threading.Thread(target=time.sleep, args=(60,), daemon=True)
other.start()
threading.Timer(0.3, lambda: signal.pthread_kill(other.ident, signal.SIGINT)).start()
with heard_by_the_main_thread():
    try:
        {waiting}
    except KeyboardInterrupt:
        print("heard")
assert signal.set_wakeup_fd(-1) == -1
assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL
"""


@pytest.mark.parametrize("waiting", WAITING)
def test_the_main_thread_hears_it_at_once(waiting: str) -> None:
    command = [sys.executable, "-c", CODE.replace("{waiting}", WAITING[waiting])]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, "heard"), ran.stderr


TERMINABLE = """
import os, pathlib, signal, sys, time
from sweeprof.processes import terminable
with terminable():
    try:
        print("ready", flush=True)
        {ending}
        for _ in range(600):  # a signal just before a long sleep would be handled after it
            time.sleep(0.1)
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGHUP)  # by the system and by the shell
        print("a line for a terminal that is not there", flush=True)
        pathlib.Path(sys.argv[1]).write_text("ended in order")
"""


def test_a_closed_terminal_ends_a_command_in_order(tmp_path: Path) -> None:
    told = tmp_path / "told"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", TERMINABLE.replace("{ending}", ""), str(told)])
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert told.read_text() == "ended in order"


def test_a_command_that_nohup_started_goes_on_without_its_terminal_until_sigterm_ends_it(tmp_path: Path) -> None:
    told = tmp_path / "told"
    ending = "os.kill(os.getpid(), signal.SIGHUP); print('goes on'); os.kill(os.getpid(), signal.SIGTERM)"
    command = ["nohup", sys.executable, "-uc", TERMINABLE.replace("{ending}", ending), str(told)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stdout.split("\n")[:2]) == (0, ["ready", "goes on"]), ran.stderr
    assert told.read_text() == "ended in order"
