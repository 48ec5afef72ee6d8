"""Signals that end a command: given to another thread, or sent by a terminal that closes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_without_it_the_main_thread_waits_on() -> None:
    """Else this would be of no use."""
    code = CODE.replace("{waiting}", WAITING["a lock"]).replace("with heard_by_the_main_thread():", "if True:")
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=1.5, check=False)


TERMINABLE = """
import os, pathlib, signal, sys, time
from sweeprof.processes import terminable
with terminable():
    try:
        print("ready", flush=True)
        {ending}
        time.sleep(60)
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


def test_a_command_that_nohup_started_goes_on_without_its_terminal(tmp_path: Path) -> None:
    ending = "os.kill(os.getpid(), signal.SIGHUP); print('goes on'); os._exit(7)"
    command = ["nohup", sys.executable, "-uc", TERMINABLE.replace("{ending}", ending), str(tmp_path / "told")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stdout.split("\n")[:2]) == (7, ["ready", "goes on"]), ran.stderr
