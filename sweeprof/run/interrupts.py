"""Signals that interrupt the main thread, whatever it waits for, so that a command cleans up before it ends.

The system may give a process's signal to any of its threads: to one that is starting a child, for example, and takes what was held
back meanwhile. Python runs handlers only in the main thread, which continues to wait for a lock or a socket.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NUDGE = signal.SIGURG
"""The signal that interrupts the main thread; it has no other use."""


@contextmanager
def heard_by_the_main_thread() -> Iterator[None]:
    """Have Python's handlers run at once, whichever thread a signal was given to; to be entered by the main thread."""
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    before = signal.signal(NUDGE, lambda _number, _frame: None)
    others = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    main = threading.get_ident()
    listener = threading.Thread(target=_nudge, args=(receiver, main), name="sweeprof-signals", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(others)
        sender.close()  # which ends the thread
        listener.join()
        receiver.close()
        signal.signal(NUDGE, before)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM (a scheduler, systemd, ``kill``) and SIGHUP (a closed terminal) end the command as Ctrl-C does.

    If SIGHUP is already ignored, as under ``nohup``, it stays ignored.
    """

    def interrupt(number: int, _frame: FrameType | None) -> Any:
        if number == signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the system and the shell may both send it
            _replace_closed_terminal()
        raise KeyboardInterrupt

    previous = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, interrupt)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _replace_closed_terminal() -> None:
    """Discard output to a closed terminal, because writing to it is an error."""
    for descriptor in (0, 1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def _nudge(receiver: socket.socket, main: int) -> None:
    while numbers := receiver.recv(64):
        if any(number != NUDGE for number in numbers):
            signal.pthread_kill(main, NUDGE)
