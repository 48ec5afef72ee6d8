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

Every user of the host writes to the folder, so nothing in it is trusted: no link is followed, only regular files with one name are
opened, existing files are neither changed nor truncated, and what a note says is shown only after it was validated.
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import itertools
import json
import os
import pwd
import re
import secrets
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sweeprof.errors import Problem, UserError, WorkerError
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

SHARED_MODE = 0o1777
"""Every user may add files and remove only their own, as in ``/tmp``."""
MARK = "gate.lock"
"""The file by which a folder of another user is known to be a lock folder: made with it, by the same user."""
MOST_NOTES = 1000
"""More are not read: any user may write as many as the disk takes."""
NOTE_BYTES = 1 << 16
PERMISSION_S = 1.0
"""For another process to finish creating a lock file."""
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
        descriptor = _opened_folder(self._folder)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        try:
            with self._directory() as directory:
                return _opened(directory, name)
        except OSError as error:
            raise _unusable(self._folder, f"cannot be used: {name}: {error.strerror}") from None

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
            descriptor = _created(directory, name)
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


def _unusable(folder: Path, reason: str) -> UserError:
    advice = "name a folder that every user of this host may write, or one that does not exist yet."
    return UserError([Problem("limits.locks", str(folder), f"{reason}; {advice}")])


def _opened_folder(folder: Path) -> int:
    """A descriptor of the lock folder, which is created if it does not exist.

    Raises:
        OSError: it cannot be created or opened.
        UserError: it is a link, or another user's and not a shared lock folder.
    """
    for _ in range(10):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            _create_folder(folder)
            continue
        except NotADirectoryError:
            kind = "a symbolic link" if folder.is_symlink() else "not a folder"
            raise _unusable(folder, f"is {kind}, which a lock folder must not be") from None
        reason = _distrusted(descriptor)
        if reason is None:
            return descriptor
        os.close(descriptor)
        raise _unusable(folder, reason)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def _create_folder(folder: Path) -> None:
    """Create the lock folder with its mark, under another name first: nobody sees it before everyone may use it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}-{secrets.token_hex(6)}")
    draft.mkdir(mode=0o700)
    descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.close(_created(descriptor, MARK))
        os.fchmod(descriptor, SHARED_MODE)
        with suppress(OSError):  # another process was faster
            draft.rename(folder)
            return
        os.unlink(MARK, dir_fd=descriptor)
        draft.rmdir()
    finally:
        os.close(descriptor)


def _distrusted(directory: int) -> str | None:
    """The reason not to use an existing lock folder; None for one's own, for root's, and for one that sweeprof made to be shared.

    Its owner can remove and rename what others have in it, so that it must be a folder that is meant for this.
    """
    found = os.fstat(directory)
    if found.st_uid == os.geteuid():
        return None
    owner = _user_of(found.st_uid)
    if stat.S_IMODE(found.st_mode) & SHARED_MODE != SHARED_MODE:
        return f"belongs to user {owner} and is not shared (mode 1777)"
    if found.st_uid == 0:
        return None
    try:
        mark = os.stat(MARK, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return f"belongs to user {owner} and was not made by sweeprof (it has no {MARK})"
    if not stat.S_ISREG(mark.st_mode) or mark.st_uid != found.st_uid:
        return f"belongs to user {owner}, and its {MARK} is not that user's file"
    return None


def _user_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # of another container, or a directory service that does not answer
        return f"with uid {uid}"


def _opened(directory: int, name: str) -> int:
    """The lock file ``name``, created if it does not exist, which every user may lock.

    Raises:
        OSError: it cannot be opened; ELOOP for a link.
        UserError: it is not a regular file with one name.
    """
    # O_NONBLOCK: or opening a fifo would wait for its other end. O_CREAT only for a new file: in a folder like /tmp the
    # kernel may refuse it for another user's file, even though that exists.
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    deadline = time.monotonic() + PERMISSION_S
    while True:
        try:
            return _checked(os.open(name, flags | os.O_RDWR, dir_fd=directory), name)
        except PermissionError:
            pass
        except FileNotFoundError:
            with suppress(FileExistsError):  # another process was faster
                return _created(directory, name)
            continue
        try:  # the system also locks what may only be read
            return _checked(os.open(name, flags, dir_fd=directory), name)
        except PermissionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)  # its creator may be about to open it to all


def _created(directory: int, name: str) -> int:
    """A new file that every user may lock; raises ``FileExistsError`` for one that exists, be it a broken link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o666, dir_fd=directory)
    os.fchmod(descriptor, 0o666)
    return descriptor


def _checked(descriptor: int, name: str) -> int:
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    kind = "has another name elsewhere (a hard link)" if stat.S_ISREG(found.st_mode) else "is not a regular file"
    raise UserError(
        [Problem("limits.locks", name, f"{kind}, which a lock must not be: remove it from the lock folder.")]
    )


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
        descriptor = _checked(
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
        ValueError: it is not a note.
    """
    if not isinstance(data, dict):
        raise ValueError("not a note")
    pid, since = data.get("pid"), data.get("since")
    if type(pid) is not int or not 0 < pid < 2**31 or type(since) not in (int, float) or not 0 <= since < 2**40:
        raise ValueError("not a note")
    sweep_id, title, device = (_UNPRINTABLE.sub("?", str(data.get(key)))[:80] for key in ("sweep_id", "name", "device"))
    return Holder(pid, _user_of(uid), sweep_id, title, data.get("measures") is True, device, float(since))
