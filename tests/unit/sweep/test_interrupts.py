"""A signal that another thread is given."""

from __future__ import annotations

import subprocess
import sys

import pytest

WAITING = {
    "a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a socket": "one, other_end = socket.socketpair(); one.recv(1)",
}
CODE = """
import signal, socket, threading, time
from sweeprof.sweep.interrupts import heard_by_the_main_thread

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
        subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=3, check=False)
