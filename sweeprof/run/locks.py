"""Locks by flock(2): those of a sweep's folder, so that one driver and one process per shard work in it, and the host lock.

The locks of a folder are files in it (``head.lock`` of its driver, ``work.lock`` of whatever runs trials, ``sending.lock``,
``report.lock``); ``head.json`` names the driver. The names ``head.lock`` and ``head.json`` are older than the word driver: they
stay, so that two versions of sweeprof exclude each other and folders of earlier versions can be resumed. On a file system without
locks, nothing is guarded.

The host lock is in a folder that all users share (``/tmp/sweeprof-locks``): trials that measure hold it alone, all others share it.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import logging
import math
import os
import pwd
import re
import secrets
import select
import shlex
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, BinaryIO

import psutil

from sweeprof.errors import Damaged, Problem, UserError, WorkerError
from sweeprof.paths import user_path
from sweeprof.plan.plan import Plan
from sweeprof.results.environment import user_name
from sweeprof.results.files import open_regular, read_json, write_json
from sweeprof.results.validation import validated
from sweeprof.storage.events import Event, events_of
from sweeprof.storage.folder import DRIVER

ENDING_S = 30.0
"""How long processes of a run that was killed may take to end."""
PROBE_S = 1.0
"""Longer than a driver takes to see that no process runs trials, and about as long as a process takes to end."""
SAID_AFTER_S = 3.0
"""A wait for a lock that takes longer is logged, with the file and who holds it."""
REPORTS_S = 15.0
"""How long reports wait for their lock; then they are written without it: only older reports may then replace newer ones."""
UNKNOWN_S = 300.0
"""How long a trial waits for a host lock that no sweep holds, but another program."""
POLL_S = 0.02
"""How often a lock that is waited for is tried."""
LOOK_S = 1.0
"""How often it is checked who holds the host lock."""
LOCKS = Path("/proc/locks")
"""The locks of this host, with the process that took each."""
DRIVER_DIED = 70
"""Exit code of a shard whose driver is gone; nobody reads it."""
log = logging.getLogger(__name__)
_ACTIVITIES = {
    "head.lock": "being measured",
    "work.lock": "processes of its last run are still ending",
    "sending.lock": "being sent to its tracker",
    "report.lock": "its reports are being written",
}
"""The locks of a folder, and what their holders do."""


@dataclass(frozen=True, slots=True)
class Driver:
    """``head.json``: the process that is, or was, the driver of the sweep."""

    pid: int
    host: str
    user: str | None
    token: str
    gpus: str | None
    """``CUDA_VISIBLE_DEVICES``; None where it is not set."""
    session: int | None = None
    """The driver's session of the operating system, which processes that a launcher starts on its own machine share."""


def read_driver(folder: Path) -> Driver:
    """Return what ``head.json`` holds; raises :class:`Damaged` or ``OSError`` if it cannot be read."""
    return validated(Driver, read_json(folder / "head.json"))


@contextmanager
def driver_lock(folder: Path, allow_jobs: bool = False, key: str = "resume") -> Iterator[None]:
    """Acquire the sweep folder's driver lock.

    Args:
        allow_jobs: whether jobs of a cluster may run trials: they need no driver, and the next driver finds them.
        key: by which the command line names the folder.

    Raises:
        UserError: another driver has it, or processes of an earlier one do not end, or the folder was removed.
    """
    with _opened(folder, "head.lock", key) as lock:
        if not _acquired(lock, fcntl.LOCK_EX):
            raise UserError([Problem(key, str(folder), f"is in use by {_driver_name(folder)}; wait until it ends.")])
        with _opened(folder, "work.lock", key) as work:
            if not allow_jobs and not _wait_for(work.fileno(), fcntl.LOCK_EX, folder / "work.lock", ENDING_S):
                message = (
                    f"is in use by processes of an earlier run, which did not end within {ENDING_S:g} s: work.lock is held by "
                    f"{_holder_of(work.fileno())}."
                )
                raise UserError([Problem(key, str(folder), message)])
            # While no trial can start, so that processes of an earlier driver see that the folder is no longer theirs.
            token = secrets.token_hex(8)
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
            driver = Driver(os.getpid(), socket.gethostname(), user_name(), token, gpus, os.getsid(0))
            write_json(folder / "head.json", asdict(driver))
        os.environ[DRIVER] = token
        try:
            yield
        finally:
            os.environ.pop(DRIVER, None)


def _opened(folder: Path, name: str, key: str) -> BinaryIO:
    """Open a lock file of a folder that another process may remove at the same time, as ``sweeprof prune`` does."""
    try:
        return open_regular(folder / name, "ab")
    except FileNotFoundError:
        raise UserError([Problem(key, str(folder), "was just removed by another process.")]) from None


def _driver_name(folder: Path) -> str:
    with suppress(OSError, Damaged):
        driver = read_driver(folder)
        return f"process {driver.pid} of {driver.user} on {driver.host}"
    return "another process"


def has_driver(folder: Path) -> bool:
    """True if a driver is at work in ``folder``."""
    try:
        with open_regular(folder / "head.lock", "rb") as lock:
            return not _acquired(lock, fcntl.LOCK_SH)
    except (FileNotFoundError, UserError):  # a command that uses the folder names what is not a file
        return False


@contextmanager
def all_locks(folder: Path) -> Iterator[str | None]:
    """Hold every lock of ``folder``; yields the reason if one of them is taken, else None."""
    with ExitStack() as held:
        activity = None
        for name, description in _ACTIVITIES.items():
            try:
                # For writing: NFS gives an exclusive lock to no other file. A lock without a file was never taken.
                lock = held.enter_context(open_regular(folder / name, "r+b"))
            except FileNotFoundError:
                continue
            if not _acquired(lock, fcntl.LOCK_EX):
                activity = description
                break
        yield activity


@contextmanager
def report_lock(folder: Path, wait_s: float = REPORTS_S) -> Iterator[None]:
    """Wait for the lock under which records are read and reports are written: the last reports have the last records.

    If another process still has it after ``wait_s``, go on without: no sweep fails or hangs because of its reports.
    """
    path = folder / "report.lock"
    with open_regular(path, "ab") as lock:
        if not _wait_for(lock.fileno(), fcntl.LOCK_EX, path, wait_s):
            log.warning("%s is still held by %s: going on without it", path, _holder_of(lock.fileno()))
        yield


@contextmanager
def sending_lock(folder: Path, wait_s: float) -> Iterator[None]:
    """Wait for the lock under which a sweep is sent: two processes that look for a run at once would both create it.

    Raises:
        TimeoutError: another process still has it after ``wait_s``.
    """
    path = folder / "sending.lock"
    with open_regular(path, "ab") as lock:
        if not _wait_for(lock.fileno(), fcntl.LOCK_EX, path, wait_s):
            raise TimeoutError(f"another process is sending this sweep: {path} is held by {_holder_of(lock.fileno())}")
        yield


def work_lock(folder: Path) -> BinaryIO | None:
    """Return a file to keep open while trials of the sweep run; None if another driver has taken over the folder."""
    path = folder / "work.lock"
    work = open_regular(path, "a+b")  # for reading, too: NFS shares no other file
    # A driver takes the lock for a moment, to see whether trials run.
    if not _wait_for(work.fileno(), fcntl.LOCK_SH, path, PROBE_S):
        work.close()
        return None
    token = os.environ.get(DRIVER)  # None if a launcher does not pass the environment on
    if token is not None:
        with suppress(OSError, Damaged):
            if read_driver(folder).token != token:
                work.close()
                return None
    return work


def wait_until_idle(folder: Path, on_wait: Callable[[], object], silent_s: float) -> None:
    """Wait until no trial of ``folder`` runs.

    Args:
        on_wait: is called once if that takes longer than processes take to end.
        silent_s: for how long no event may be written, unless a trial waits for other sweeps.

    Raises:
        WorkerError: another process has the lock, and no trial has begun or ended for so long.
    """
    path = folder / "work.lock"
    with open_regular(path, "ab") as work:
        if _wait_for(work.fileno(), fcntl.LOCK_EX, path, PROBE_S):
            return
        on_wait()
        before: list[Event] | None = None
        while (events := list(events_of(folder / "events"))) != before or _waits(events):
            before = events
            if _wait_for(work.fileno(), fcntl.LOCK_EX, path, silent_s):
                return
        message = f"no trial has begun or ended for {silent_s:g} s, but {path} is held by {_holder_of(work.fileno())}"
        raise WorkerError(f"{message}: end that process, then resume the sweep")


def _waits(events: Sequence[Event]) -> bool:
    """True if a trial waits for the host lock, which sweeps may hold for long."""
    return "waiting" in {event.key: event.kind for event in events}.values()


@contextmanager
def exclusive_lock(path: Path, wait_s: float = 0) -> Iterator[bool]:
    """Lock a file, which is created if needed; yields whether this process got the lock within ``wait_s``.

    A launcher that retries a job may start it twice, and a job that a cluster gave up may still run on a node that lost contact.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(path, "ab") as file:
        yield _wait_for(file.fileno(), fcntl.LOCK_EX, path, wait_s)


def _acquired(file: IO[bytes], kind: int) -> bool:
    """True if this process has the lock now; also on a file system without locks, where nothing can be guarded."""
    return _wait_for(file.fileno(), kind, None, 0)


def _wait_for(descriptor: int, kind: int, path: Path | None, wait_s: float) -> bool:
    """Wait for a lock; true if this process has it now, or the file system has no locks.

    A wait of more than :data:`SAID_AFTER_S` is logged.

    Args:
        path: the file of the descriptor, for the message.
    """
    began = time.monotonic()
    is_said = False
    try:
        while not _try(descriptor, kind):
            waited_s = time.monotonic() - began
            if waited_s >= wait_s:
                return False
            if waited_s >= SAID_AFTER_S and not is_said:
                is_said = True
                _say_waiting(descriptor, path)
            time.sleep(POLL_S)
    except OSError:
        return True
    return True


def _say_waiting(descriptor: int, path: Path | None) -> None:
    log.warning("waiting for %s, which is held by %s", path, _holder_of(descriptor))


def _holder_of(descriptor: int) -> str:
    """Return the process that holds the lock of an open file, as far as this host knows it."""
    number = str(os.fstat(descriptor).st_ino)
    with suppress(OSError, ValueError, psutil.Error):
        for line in LOCKS.read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == number and int(words[4]) > 0:
                process = psutil.Process(int(words[4]))
                name = shlex.join(process.cmdline()[:MOST_WORDS]) or process.name()
                return f"process {process.pid} of {process.username()} ({_UNPRINTABLE.sub('?', name)[:80]})"
    return "another process"


def end_with_driver(folder: Path) -> None:
    """End this process as soon as the driver ends, if it is a child of the driver: a worker of joblib would continue."""
    try:
        driver = read_driver(folder)
        if driver.host != socket.gethostname():
            return
        parents = [process.pid for process in psutil.Process().parents()]
        if driver.pid not in parents:
            if driver.session == os.getsid(0) and not _is_running(driver.pid):
                os._exit(DRIVER_DIED)  # it was a child of a driver that was killed before this process began its work
            return
        handle = os.pidfd_open(driver.pid)
    except (OSError, Damaged, psutil.Error):
        return

    def wait() -> None:
        select.select([handle], [], [])
        os._exit(DRIVER_DIED)  # without clean-up: fork servers end with their sockets, records are written atomically

    threading.Thread(target=wait, name="sweeprof-driver", daemon=True).start()


def _is_running(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


FOLDER = Path("/tmp/sweeprof-locks")
"""The folder of the host lock; not ``TMPDIR``, which a user or a scheduler sets for one job."""
SHARED_MODE = 0o1777
"""Every user may add files and remove only their own, as in ``/tmp``."""
MARK = "gate.lock"
"""The file that marks a folder of another user as a lock folder: created with it, by the same user."""
PERMISSION_S = 1.0
"""How long another process may take to finish creating a lock file."""
MOST_NOTES = 1000
"""Maximum number that is read: any user may write any number."""
NOTE_BYTES = 1 << 16
_NOTE = re.compile(r"(note-[0-9a-f]{12})-\d+\.json")
_UNPRINTABLE = re.compile(r"[^\w .:@+/\-]")
MOST_WORDS = 5
"""Words of a command line that are shown."""
_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds the host lock."""

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


OnWait = Callable[[Sequence[Holder]], None]
"""Called once, before a wait, with those who hold the lock."""


class HostLock:
    """The lock of this host and of its GPUs, for one sweep; safe to be used by several threads.

    Args:
        me: the description for other sweeps that wait.
        folder: the lock folder of this host; None: :data:`FOLDER`.

    Raises:
        UserError: the folder cannot be used, is a link, or belongs to a user who did not make it as a lock folder.
    """

    def __init__(self, me: Holder, folder: Path | None = None) -> None:
        self._me, self._folder = me, folder or FOLDER
        self._notes = f"note-{secrets.token_hex(6)}"  # process ids repeat where containers share the folder
        os.close(self._open("gate"))

    @contextmanager
    def taken(self, measures: bool, gpus: Sequence[str] = (), on_wait: OnWait | None = None) -> Iterator[str | None]:
        """Hold the host and, if ``gpus`` are named, the first of them that is free, which is yielded.

        Without GPUs a trial that ``measures`` holds the host alone; with GPUs it holds its GPU alone and shares the host.
        """
        exclusive = fcntl.LOCK_EX if measures else fcntl.LOCK_SH
        with ExitStack() as locks:
            gpu = self._take_gpu(locks, gpus, exclusive, on_wait) if gpus else None
            # A process that waits for the host holds the gate, so that processes that share the host cannot block it for ever.
            with ExitStack() as gate:
                self._take(gate, "gate", fcntl.LOCK_EX, on_wait)
                self._take(locks, "host", fcntl.LOCK_SH if gpus else exclusive, on_wait)
            with self._noted(replace(self._me, measures=measures, device=gpu or "cpu", since=time.time())):
                yield gpu

    def _take_gpu(self, locks: ExitStack, gpus: Sequence[str], kind: int, on_wait: OnWait | None) -> str:
        """Take the first GPU that is free, else wait for the first."""
        for gpu in gpus:
            descriptor = self._open(f"gpu-{gpu}")
            if _try(descriptor, kind):
                locks.callback(_release, descriptor)
                return gpu
            os.close(descriptor)
        self._take(locks, f"gpu-{gpus[0]}", kind, on_wait)
        return gpus[0]

    def _take(self, locks: ExitStack, name: str, kind: int, on_wait: OnWait | None) -> None:
        """Wait for a lock; it is released when ``locks`` is left."""
        descriptor = self._open(name)
        try:
            if not _try(descriptor, kind):
                holders = self.holders()
                if on_wait and holders:
                    on_wait(holders)
                self._wait(descriptor, kind, self._folder / f"{name}.lock")
        except BaseException:
            os.close(descriptor)
            raise
        locks.callback(_release, descriptor)

    def _wait(self, descriptor: int, kind: int, path: Path) -> None:
        """Wait until the lock is taken.

        Raises:
            UserError: no sweep holds it, but another program does not release it.
        """
        unknown_since: float | None = None
        is_said = False
        looked = -math.inf
        while not _try(descriptor, kind):
            now = time.monotonic()
            if now - looked >= LOOK_S:
                looked = now
                if self._holders(with_own=True):  # of other threads, too
                    unknown_since = None
                elif unknown_since is None:
                    unknown_since = now
            if unknown_since is not None and now - unknown_since >= SAID_AFTER_S and not is_said:
                is_said = True
                _say_waiting(descriptor, path)
            if unknown_since is not None and now - unknown_since >= UNKNOWN_S:
                message = (
                    f"is held by {_holder_of(descriptor)}, which is not a sweep, for more than {UNKNOWN_S:g} s: end it."
                )
                raise UserError([Problem("limits.locks", str(path), message)])
            time.sleep(POLL_S)

    def claim_gpu(self, gpus: Sequence[str]) -> tuple[str, int | None]:
        """Return a GPU that no other shard claims, and the claim, to be closed at the end; if all are claimed, the first, None."""
        for gpu in gpus:
            descriptor = self._open(f"claim-{gpu}")
            if _try(descriptor, fcntl.LOCK_EX):
                return gpu, descriptor
            os.close(descriptor)
        return gpus[0], None

    def holders(self) -> list[Holder]:
        """Return the other processes that hold the host lock now; those that measure come first."""
        return self._holders(with_own=False)

    def _holders(self, with_own: bool) -> list[Holder]:
        holders = []
        with self._directory() as directory, os.scandir(directory) as entries:
            matches = [match for entry in entries if (match := _NOTE.fullmatch(entry.name))]
            names = [match[0] for match in matches if with_own or match[1] != self._notes]
            for name in names[:MOST_NOTES]:
                holder = _read_note(directory, name)
                if holder is not None:
                    holders.append(holder)
        return sorted(holders, key=lambda holder: not holder.measures)

    @contextmanager
    def _noted(self, holder: Holder) -> Iterator[None]:
        """Write the holder of the lock for other sweeps, in a file that is locked as long as the lock is held."""
        name = f"{self._notes}-{next(_counter)}.json"
        with self._directory() as directory:
            descriptor = _create_lock_file(directory, name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, json.dumps(asdict(holder)).encode())
            yield
        finally:
            with suppress(OSError, UserError), self._directory() as directory:  # else the next reader removes it
                os.unlink(name, dir_fd=directory)
            _release(descriptor)

    @contextmanager
    def _directory(self) -> Iterator[int]:
        """Open the lock folder; again each time, because a cleaner of ``/tmp`` may have removed it."""
        descriptor = _open_lock_folder(self._folder)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        file = f"{name}.lock"
        try:
            with self._directory() as directory:
                return _open_lock_file(directory, file)
        except OSError as error:
            raise _unusable(self._folder, f"cannot be used: {file}: {error.strerror}") from None


def host_lock(plan: Plan) -> HostLock:
    """Return the lock of this host for a sweep."""
    folder = plan.limits.locks
    return HostLock(this_process(plan.sweep_id, plan.name), user_path(folder) if folder else None)


def this_process(sweep_id: str, name: str) -> Holder:
    """Return the description of this process for others."""
    return Holder(os.getpid(), user_name(), sweep_id, name)


def _try(descriptor: int, kind: int) -> bool:
    """Take the lock if it is free; true if this process has it now."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _release(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # also if a child that is just being started still has the file open
    os.close(descriptor)


def _read_note(directory: int, name: str) -> Holder | None:
    """Return the holder that a note names, in text that any terminal may show; its user is the file's owner.

    None if the writer is gone, has not written yet, or wrote something else than a note.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = _checked(os.open(name, flags, dir_fd=directory), name)
    except (OSError, UserError):
        return None
    try:
        status = os.fstat(descriptor)
        if _try(descriptor, fcntl.LOCK_SH):
            if status.st_size:
                os.unlink(name, dir_fd=directory)
            return None
        holder = validated(Holder, json.loads(os.read(descriptor, NOTE_BYTES)))
    except (OSError, ValueError, RecursionError):  # another user's leftover, a note half written, or something else
        return None
    finally:
        os.close(descriptor)
    if not 0 < holder.pid < 2**31 or not 0 <= holder.since < 2**40:
        return None
    shown = [_UNPRINTABLE.sub("?", text)[:80] for text in (holder.sweep_id, holder.name, holder.device)]
    return replace(holder, user=_user_name(status.st_uid), sweep_id=shown[0], name=shown[1], device=shown[2])


def _unusable(folder: Path, reason: str) -> UserError:
    advice = "name a folder that every user of this host may write, or one that does not exist yet."
    return UserError([Problem("limits.locks", str(folder), f"{reason}; {advice}")])


def _open_lock_folder(folder: Path) -> int:
    """Return a descriptor of the lock folder, which is created if it does not exist.

    Raises:
        OSError: it cannot be created or opened.
        UserError: it is a link, or another user's and not a shared lock folder.
    """
    for _ in range(10):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            _create_lock_folder(folder)
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


def _create_lock_folder(folder: Path) -> None:
    """Create the lock folder with its mark, under another name first: no process sees it before every user may use it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}-{secrets.token_hex(6)}")
    draft.mkdir(mode=0o700)
    descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.close(_create_lock_file(descriptor, MARK))
        os.fchmod(descriptor, SHARED_MODE)
        with suppress(OSError):  # another process was faster
            draft.rename(folder)
            return
        os.unlink(MARK, dir_fd=descriptor)
        draft.rmdir()
    finally:
        os.close(descriptor)


def _distrusted(directory: int) -> str | None:
    """Return the reason not to use an existing lock folder; None for one's own, root's, and one that sweeprof made to be shared.

    Its owner can remove and rename the files of other users in it, so it must be a folder that is meant for this.
    """
    status = os.fstat(directory)
    if status.st_uid == os.geteuid():
        return None
    owner = _user_name(status.st_uid)
    if stat.S_IMODE(status.st_mode) & SHARED_MODE != SHARED_MODE:
        return f"belongs to user {owner} and is not shared (mode 1777)"
    if status.st_uid == 0:
        return None
    try:
        mark = os.stat(MARK, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return f"belongs to user {owner} and was not made by sweeprof (it has no {MARK})"
    if not stat.S_ISREG(mark.st_mode) or mark.st_uid != status.st_uid:
        return f"belongs to user {owner}, and its {MARK} is not that user's file"
    return None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # in a container, or without the service that knows the names
        return f"with uid {uid}"


def _open_lock_file(directory: int, name: str) -> int:
    """Return a descriptor of the lock file ``name``, created if it does not exist, which every user may lock.

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
                return _create_lock_file(directory, name)
            continue
        try:  # the system also locks files that may only be read
            return _checked(os.open(name, flags, dir_fd=directory), name)
        except PermissionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)  # its creator may be about to open it to all


def _create_lock_file(directory: int, name: str) -> int:
    """Create a file that every user may lock; raises ``FileExistsError`` if it exists, also as a broken link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o666, dir_fd=directory)
    os.fchmod(descriptor, 0o666)
    return descriptor


def _checked(descriptor: int, name: str) -> int:
    """Return ``descriptor`` if it is of a regular file with one name; closes it and raises :class:`UserError` otherwise."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    kind = "has another name elsewhere (a hard link)" if stat.S_ISREG(status.st_mode) else "is not a regular file"
    message = f"{kind}, which a lock must not be: remove it from the lock folder."
    raise UserError([Problem("limits.locks", name, message)])
