"""Turns on a host: what measures runs alone, what measures nothing runs beside its like, whoever started it.

=================  ==============  ===============
a trial            the host        its GPU
=================  ==============  ===============
measures the CPU   exclusive
measures a GPU     shared          exclusive
measures nothing   shared          shared, if any
=================  ==============  ===============

The locks are the system's (``flock``): it frees them when their holder dies, and wakes who waits without anyone polling. Whoever
wants the host passes a gate first and keeps it while waiting, so that a stream of shared holders cannot starve an exclusive one,
nor the other way round. Beside the locks lie notes that say who holds them, each locked as long as it is true.
"""

from __future__ import annotations

import fcntl
import getpass
import itertools
import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sweeprof.errors import Damaged, UserError, WorkerError
from sweeprof.results.validation import validated
from sweeprof.sweep.lock_folder import MARK, checked, created, opened, opened_folder, unusable, user_of
from sweeprof.sweep.plan import Plan

FOLDER = Path("/tmp/sweeprof-locks")
"""Of the host, not of ``TMPDIR``, which a user or a scheduler sets for one job."""

WAITER = """
import ctypes, fcntl, os, signal, sys
parent, descriptor, kind = map(int, sys.argv[1:])
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # when the thread that waits for this one ends
if os.getppid() == parent:
    fcntl.flock(descriptor, kind)
"""

MOST_NOTES = 1000
"""More are not read: any user may write as many as the disk takes."""
NOTE_BYTES = 1 << 16
_NOTE = re.compile(r"(note-[0-9a-f]{12})-\d+\.json")
_UNPRINTABLE = re.compile(r"[^\w .:@+/\-]")

_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a turn."""

    pid: int
    user: str | None
    sweep_id: str
    name: str
    """The sweep's name."""
    measures: bool = False
    device: str = "cpu"
    since: float = 0.0
    """Seconds since the epoch."""

    def __str__(self) -> str:
        return f"sweep {self.name} ({self.sweep_id}) of user {self.user or 'unknown'}, pid {self.pid}"


Waiting = Callable[[Sequence[Holder]], None]
"""Told once, before a wait, who holds what is wanted."""


class Turns:
    """Gives turns to one sweep; safe to be used by several threads.

    Args:
        me: what others are told while they wait.
        folder: where sweeps of this host meet; None: :data:`FOLDER`.

    Raises:
        UserError: the folder cannot be used, is a link, or belongs to a user who did not make it as a lock folder.
    """

    def __init__(self, me: Holder, folder: Path | None = None) -> None:
        self._me, self._folder = me, folder or FOLDER
        self._notes = f"note-{secrets.token_hex(6)}"  # process ids repeat where containers share the folder
        self._guard, self._waiters, self._is_ending = threading.Lock(), set[subprocess.Popen[bytes]](), False
        os.close(self._open(MARK))

    @contextmanager
    def taken(self, measures: bool, gpus: Sequence[str] = (), waiting: Waiting | None = None) -> Iterator[str | None]:
        """A turn on the host and, where ``gpus`` are named, on one of them, the first that is free, which is yielded."""

        def held_up() -> None:
            holders = self.holders()
            if waiting and holders:
                waiting(holders)

        exclusive = fcntl.LOCK_EX if measures else fcntl.LOCK_SH
        gpu, gpu_lock = self._first_free(gpus, exclusive, held_up)
        try:
            host = fcntl.LOCK_SH if gpus else exclusive
            with self._locked("gate", fcntl.LOCK_EX, held_up):
                lock = self._acquired("host", host, held_up)
            try:
                with self._noted(replace(self._me, measures=measures, device=gpu or "cpu", since=time.time())):
                    yield gpu
            finally:
                _release(lock)
        finally:
            if gpu_lock is not None:
                _release(gpu_lock)

    def claimed(self, gpus: Sequence[str]) -> tuple[str, int | None]:
        """A GPU that no other claims, and the claim, to be closed in the end; the first and None where all are claimed."""
        for gpu in gpus:
            descriptor = self._open(f"claim-{gpu}.lock")
            if _try(descriptor, fcntl.LOCK_EX):
                return gpu, descriptor
            os.close(descriptor)
        return gpus[0], None

    def give_up(self) -> None:
        """Let no thread wait any longer: their turns raise :class:`WorkerError`."""
        with self._guard:
            self._is_ending = True
            for waiter in self._waiters:
                waiter.kill()

    def holders(self) -> list[Holder]:
        """Who else has a turn now; those that measure first."""
        with self._directory() as directory, os.scandir(directory) as entries:
            matches = filter(None, (_NOTE.fullmatch(entry.name) for entry in entries))
            names = [match[0] for match in matches if match[1] != self._notes]
            read = (_read_note(directory, name) for name in names[:MOST_NOTES])
            return sorted(filter(None, read), key=lambda holder: not holder.measures)

    @contextmanager
    def _directory(self) -> Iterator[int]:
        """A descriptor of the lock folder; opened each time, as a cleaner of ``/tmp`` may have removed the folder."""
        descriptor = opened_folder(self._folder)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        try:
            with self._directory() as directory:
                return opened(directory, name)
        except OSError as error:
            raise unusable(self._folder, f"cannot be used: {name}: {error.strerror}") from None

    def _first_free(self, gpus: Sequence[str], kind: int, held_up: Callable[[], None]) -> tuple[str | None, int | None]:
        if not gpus:
            return None, None
        for gpu in gpus:
            descriptor = self._open(f"gpu-{gpu}.lock")
            if _try(descriptor, kind):
                return gpu, descriptor
            os.close(descriptor)
        return gpus[0], self._acquired(f"gpu-{gpus[0]}", kind, held_up)

    @contextmanager
    def _locked(self, name: str, kind: int, held_up: Callable[[], None]) -> Iterator[None]:
        descriptor = self._acquired(name, kind, held_up)
        try:
            yield
        finally:
            _release(descriptor)

    def _acquired(self, name: str, kind: int, held_up: Callable[[], None]) -> int:
        descriptor = self._open(f"{name}.lock")
        try:
            if not _try(descriptor, kind):
                held_up()
                self._wait(descriptor, kind)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _wait(self, descriptor: int, kind: int) -> None:
        """Block until the lock is had.

        A signal interrupts only the main thread. For another a child waits, which can be ended: a lock belongs to the open file, so
        that what the child gets is ours.
        """
        if threading.current_thread() is threading.main_thread():
            fcntl.flock(descriptor, kind)
            return
        command = [sys.executable, "-I", "-S", "-c", WAITER, *map(str, (os.getpid(), descriptor, kind))]
        with self._guard:
            if self._is_ending:
                raise WorkerError("the sweep ends")
            waiter = subprocess.Popen(command, pass_fds=[descriptor], start_new_session=True)
            self._waiters.add(waiter)
        code = waiter.wait()
        with self._guard:
            self._waiters.remove(waiter)
        if code or self._is_ending:
            raise WorkerError("the sweep ends")

    @contextmanager
    def _noted(self, holder: Holder) -> Iterator[None]:
        name = f"{self._notes}-{next(_counter)}.json"
        with self._directory() as directory:
            descriptor = created(directory, name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, json.dumps(asdict(holder)).encode())
            yield
        finally:
            with suppress(OSError, UserError), self._directory() as directory:  # whoever looks next removes it
                os.unlink(name, dir_fd=directory)
            _release(descriptor)


def turns_of(plan: Plan) -> Turns:
    """The turns of this host for a sweep."""
    folder = plan.limits.get("locks")
    return Turns(this_process(plan.sweep_id, plan.name), Path(folder) if folder else None)


def this_process(sweep_id: str, name: str) -> Holder:
    """What others are told of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = None
    return Holder(os.getpid(), user, sweep_id, name)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _release(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # also where a child that is just being started still has the file open
    os.close(descriptor)


def _read_note(directory: int, name: str) -> Holder | None:
    """Who wrote the note; None where the writer is gone, has not written yet, or wrote something else than a note."""
    try:
        descriptor = checked(
            os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory), name
        )
    except (OSError, UserError):
        return None
    try:
        found = os.fstat(descriptor)
        if _try(descriptor, fcntl.LOCK_SH):
            if found.st_size:
                os.unlink(name, dir_fd=directory)
            return None
        return _holder(json.loads(os.read(descriptor, NOTE_BYTES)), found.st_uid)
    except (
        OSError,
        ValueError,
        RecursionError,
    ):  # another's leftover that is not ours to remove, or a note half written
        return None
    finally:
        os.close(descriptor)


def _holder(data: Any, uid: int) -> Holder:
    """The holder that a note names, in text that any terminal may show; the user is the file's owner, whatever the note says.

    Raises:
        Damaged: it is not a note.
    """
    holder = validated(Holder, data)
    if not 0 < holder.pid < 2**31 or not 0 <= holder.since < 2**40:
        raise Damaged("is not a note")
    sweep_id, name, device = (
        _UNPRINTABLE.sub("?", text)[:80] for text in (holder.sweep_id, holder.name, holder.device)
    )
    return replace(holder, user=user_of(uid), sweep_id=sweep_id, name=name, device=device)
