"""Locks by flock(2): those of a sweep's folder, so that one driver and one process per shard work in it, and those of a host.

The locks of a folder are files in it (``driver.lock`` of its driver, ``work.lock`` of whatever runs trials, ``sending.lock``,
``report.lock``); ``driver.json`` names the driver. On a file system without locks, nothing is guarded.

The host lock is in a folder that all users share (``/tmp/sweeprof-locks``): trials that measure hold it alone, all others share it.
Host slots give each trial permission to run by it, and a GPU.
"""

from __future__ import annotations

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
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

import psutil
from rich.console import Console
from rich.text import Text

from sweeprof.errors import Damaged, Problem, UserError, WorkerError
from sweeprof.passes.registry import exclusive_passes
from sweeprof.paths import user_path
from sweeprof.plan.plan import Plan
from sweeprof.results.environment import ROOT, gpus, usable_processors, user_name
from sweeprof.results.files import open_regular, read_json, validated, write_json
from sweeprof.results.record import Json, Record
from sweeprof.storage import DRIVER, TrialEvent, events_of

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
ACTIVITIES = {
    "driver.lock": "being measured",
    "work.lock": "processes of its last run are still ending",
    "sending.lock": "being sent to its tracker",
    "report.lock": "its reports are being written",
}
"""The locks of a folder, and what their holders do."""


@dataclass(frozen=True, slots=True)
class Driver:
    """``driver.json``: the process that is, or was, the driver of the sweep."""

    pid: int
    host: str
    user: str | None
    token: str
    gpus: str | None
    """``CUDA_VISIBLE_DEVICES``; None where it is not set."""
    session: int | None = None
    """The driver's session of the operating system, which processes that a launcher starts on its own machine share."""


def read_driver(folder: Path) -> Driver:
    """Return what ``driver.json`` holds; raises :class:`Damaged` or ``OSError`` if it cannot be read."""
    return validated(Driver, read_json(folder / "driver.json"))


@contextmanager
def driver_lock(folder: Path, allow_jobs: bool = False, key: str = "resume") -> Iterator[None]:
    """Acquire the sweep folder's driver lock.

    Args:
        allow_jobs: whether jobs of a cluster may run trials: they need no driver, and the next driver finds them.
        key: by which the command line names the folder.

    Raises:
        UserError: another driver has it, or processes of an earlier one do not end, or the folder was removed.
    """
    with ExitStack() as driver_held:
        try:
            other = driver_held.enter_context(locked(folder / "driver.lock"))
        except FileNotFoundError:  # as by ``sweeprof prune``
            raise UserError([Problem(key, str(folder), "was just removed by another process.")]) from None
        if other:
            name = "another process"
            with suppress(OSError, Damaged):
                driver = read_driver(folder)
                name = f"process {driver.pid} of {driver.user} on {driver.host}"
            raise UserError([Problem(key, str(folder), f"is in use by {name}; wait until it ends.")])
        with ExitStack() as held:
            still_works = None if allow_jobs else held.enter_context(locked(folder / "work.lock", ENDING_S))
            if still_works:
                message = (
                    f"is in use by processes of an earlier run, which did not end within {ENDING_S:g} s: work.lock is held by "
                    f"{still_works}."
                )
                raise UserError([Problem(key, str(folder), message)])
            # While no trial can start, so that processes of an earlier driver see that the folder is no longer theirs.
            token = secrets.token_hex(8)
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            driver = Driver(os.getpid(), socket.gethostname(), user_name(), token, visible, os.getsid(0))
            write_json(folder / "driver.json", asdict(driver))
        os.environ[DRIVER] = token
        try:
            yield
        finally:
            os.environ.pop(DRIVER, None)


@contextmanager
def locked(path: Path, wait_s: float = 0) -> Iterator[str | None]:
    """Take the lock of a file, created if needed; yields who still holds it after ``wait_s``, None if this process does."""
    with open_regular(path, "ab") as file:
        has_it = _wait_for(file.fileno(), fcntl.LOCK_EX, path, wait_s)
        yield None if has_it else _holder_of(file.fileno())


def has_driver(folder: Path) -> bool:
    """True if a driver is at work in ``folder``."""
    try:
        with open_regular(folder / "driver.lock", "rb") as lock:
            return not _wait_for(lock.fileno(), fcntl.LOCK_SH, folder / "driver.lock", 0)
    except (FileNotFoundError, UserError):  # a command that uses the folder names what is not a file
        return False


@contextmanager
def all_locks(folder: Path) -> Iterator[str | None]:
    """Hold every lock of ``folder``; yields the reason if one of them is taken, else None."""
    with ExitStack() as held:
        reason = None
        for name, activity in ACTIVITIES.items():
            try:
                # For writing: NFS gives an exclusive lock to no other file. A lock without a file was never taken.
                lock = held.enter_context(open_regular(folder / name, "r+b"))
            except FileNotFoundError:
                continue
            if not _wait_for(lock.fileno(), fcntl.LOCK_EX, folder / name, 0):
                reason = activity
                break
        yield reason


@contextmanager
def report_lock(folder: Path, wait_s: float = REPORTS_S) -> Iterator[None]:
    """Wait for the lock under which records are read and reports are written: the last reports have the last records.

    If another process still has it after ``wait_s``, go on without: no sweep fails or hangs because of its reports.
    """
    path = folder / "report.lock"
    with locked(path, wait_s) as other:
        if other:
            log.warning("%s is still held by %s: going on without it", path, other)
        yield


@contextmanager
def sending_lock(folder: Path, wait_s: float) -> Iterator[None]:
    """Wait for the lock under which a sweep is sent: two processes that look for a run at once would both create it.

    Raises:
        TimeoutError: another process still has it after ``wait_s``.
    """
    path = folder / "sending.lock"
    with locked(path, wait_s) as other:
        if other:
            raise TimeoutError(f"another process is sending this sweep: {path} is held by {other}")
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
        before: list[TrialEvent] | None = None
        while True:
            events = list(events_of(folder / "events"))
            # A trial may wait long for the host lock, which other sweeps hold.
            is_waiting = "waiting" in {event.key: event.kind for event in events}.values()
            if events == before and not is_waiting:
                break
            before = events
            if _wait_for(work.fileno(), fcntl.LOCK_EX, path, silent_s):
                return
        message = f"no trial has begun or ended for {silent_s:g} s, but {path} is held by {_holder_of(work.fileno())}"
        raise WorkerError(f"{message}: end that process, then resume the sweep")


def _wait_for(
    descriptor: int, kind: int, path: Path, wait_s: float, is_explained: Callable[[], bool] = lambda: False
) -> bool:
    """Wait for a lock; true if this process has it now, or the file system has no locks.

    A wait of more than :data:`SAID_AFTER_S` is logged.

    Args:
        path: the file of the descriptor, for the message.
        is_explained: is asked once a second; while it is true, the time does not count.
    """
    began = time.monotonic()
    looked = -math.inf
    is_said = False
    try:
        while not _try(descriptor, kind):
            now = time.monotonic()
            if now - looked >= LOOK_S:
                looked = now
                if is_explained():
                    began = math.inf
                elif began == math.inf:
                    began = now
            if now - began >= wait_s:
                return False
            if now - began >= SAID_AFTER_S and not is_said:
                is_said = True
                log.warning("waiting for %s, which is held by %s", path, _holder_of(descriptor))
            time.sleep(POLL_S)
    except OSError:
        return True
    return True


def _holder_of(descriptor: int) -> str:
    """Return the process that holds the lock of an open file, as far as this host knows it."""
    number = str(os.fstat(descriptor).st_ino)
    with suppress(OSError, ValueError, psutil.Error):
        for line in LOCKS.read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == number and int(words[4]) > 0:
                process = psutil.Process(int(words[4]))
                name = shlex.join(process.cmdline()[:MOST_WORDS]) or process.name()
                return f"process {process.pid} of {process.username()} ({_printable(name)})"
    return "another process"


def end_with_driver(folder: Path) -> None:
    """End this process as soon as the driver ends, if it is a child of the driver: a worker of joblib would continue."""
    try:
        driver = read_driver(folder)
        if driver.host != socket.gethostname():
            return
        if driver.pid in [process.pid for process in psutil.Process().parents()]:
            handle = os.pidfd_open(driver.pid)
        elif driver.session != os.getsid(0):
            return
        else:
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(driver.pid).status() != psutil.STATUS_ZOMBIE:
                    return
            os._exit(DRIVER_DIED)  # it was a child of a driver that was killed before this process began its work
    except (OSError, Damaged, psutil.Error):
        return

    def wait() -> None:
        select.select([handle], [], [])
        os._exit(DRIVER_DIED)  # without clean-up: fork servers end with their sockets, records are written atomically

    threading.Thread(target=wait, name="sweeprof-driver", daemon=True).start()


# ---- The host lock ----


FOLDER = Path("/tmp/sweeprof-locks")
"""The folder of the host lock; not ``TMPDIR``, which a user or a scheduler sets for one job."""
SHARED_MODE = 0o1777
"""Every user may add files and remove only their own, as in ``/tmp``."""
PERMISSION_S = 1.0
"""How long another process may take until every user may use a folder or file that it has created."""
MOST_NOTES = 1000
"""Maximum number of notes that are read: any user may write any number."""
NOTE_BYTES = 1 << 16
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
        UserError: the folder cannot be used, or is a link.
    """

    def __init__(self, me: Holder, folder: Path | None = None) -> None:
        self._me, self._folder = me, folder or FOLDER
        self._notes = f"note-{secrets.token_hex(6)}"  # process ids repeat where containers share the folder
        os.close(_open_shared(self._folder, "gate.lock"))

    @contextmanager
    def taken(self, measures: bool, gpus: Sequence[str] = (), on_wait: OnWait | None = None) -> Iterator[str | None]:
        """Hold the host and, if ``gpus`` are named, the first of them that is free, which is yielded.

        Without GPUs a trial that ``measures`` holds the host alone; with GPUs it holds its GPU alone and shares the host.
        """
        exclusive = fcntl.LOCK_EX if measures else fcntl.LOCK_SH
        with ExitStack() as locks:
            gpu = None
            of_host = exclusive
            if gpus:
                of_host = fcntl.LOCK_SH
                gpu, descriptor = self._first_free("gpu", gpus, exclusive)
                if descriptor is None:
                    self._take(locks, f"gpu-{gpu}", exclusive, on_wait)
                else:
                    locks.callback(_release, descriptor)
            # A process that waits for the host holds the gate, so that processes that share the host cannot block it for ever.
            with ExitStack() as gate:
                self._take(gate, "gate", fcntl.LOCK_EX, on_wait)
                self._take(locks, "host", of_host, on_wait)
            with self._noted(replace(self._me, measures=measures, device=gpu or "cpu")):
                yield gpu

    def claim_gpu(self, gpus: Sequence[str]) -> tuple[str, int | None]:
        """Return a GPU that no other shard claims, and the claim, to be closed at the end; if all are claimed, the first, None."""
        return self._first_free("claim", gpus, fcntl.LOCK_EX)

    def _first_free(self, purpose: str, gpus: Sequence[str], kind: int) -> tuple[str, int | None]:
        """Return the first GPU whose lock is free, with the locked descriptor; if none is, the first GPU and None."""
        for gpu in gpus:
            descriptor = _open_shared(self._folder, f"{purpose}-{gpu}.lock")
            if _try(descriptor, kind):
                return gpu, descriptor
            os.close(descriptor)
        return gpus[0], None

    def _take(self, locks: ExitStack, name: str, kind: int, on_wait: OnWait | None) -> None:
        """Wait for a lock; it is released when ``locks`` is left.

        Raises:
            UserError: no sweep holds it, but another program does not release it.
        """
        path = self._folder / f"{name}.lock"
        descriptor = _open_shared(self._folder, path.name)
        try:
            if not _try(descriptor, kind):
                holders = self.holders()
                if on_wait and holders:
                    on_wait(holders)
                # Other threads of this sweep explain the wait, too.
                if not _wait_for(descriptor, kind, path, UNKNOWN_S, lambda: bool(self.holders(with_own=True))):
                    message = f"is held by {_holder_of(descriptor)}, which is not a sweep, for more than {UNKNOWN_S:g} s: end it."
                    raise UserError([Problem("limits.locks", str(path), message)])
        except BaseException:
            os.close(descriptor)
            raise
        locks.callback(_release, descriptor)

    def holders(self, with_own: bool = False) -> list[Holder]:
        """Return the processes that hold the host lock now, those that measure first; without this one unless ``with_own``."""
        holders = []
        for path in itertools.islice(self._folder.glob("note-*.json"), MOST_NOTES):
            if with_own or not path.name.startswith(self._notes):
                holder = _read_note(path)
                if holder is not None:
                    holders.append(holder)
        return sorted(holders, key=lambda holder: not holder.measures)

    @contextmanager
    def _noted(self, holder: Holder) -> Iterator[None]:
        """Write the holder of the lock for other sweeps, in a file that is locked as long as the lock is held."""
        name = f"{self._notes}-{next(_counter)}.json"
        descriptor = _open_shared(self._folder, name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, json.dumps(asdict(holder)).encode())
            yield
        finally:
            with suppress(OSError):  # else the next reader removes it
                (self._folder / name).unlink()
            _release(descriptor)


def host_lock(plan: Plan) -> HostLock:
    """Return the lock of this host for a sweep."""
    folder = user_path(plan.limits.locks) if plan.limits.locks else None
    return HostLock(this_process(plan.sweep_id, plan.name), folder)


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


def _read_note(path: Path) -> Holder | None:
    """Return the holder that a note names, in text that any terminal may show; its user is the file's owner.

    None if the writer is gone, has not written yet, or wrote something else than a note.
    """
    try:
        with open_regular(path, "rb") as file:
            status = os.fstat(file.fileno())
            if _try(file.fileno(), fcntl.LOCK_SH):
                if status.st_size:
                    path.unlink()
                return None
            holder = validated(Holder, json.loads(file.read(NOTE_BYTES)))
    except (OSError, UserError, ValueError, RecursionError):
        # The file of another user whose process is gone, half a note, or something else.
        return None
    if not 0 < holder.pid < 2**31:
        return None
    try:
        user = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:  # in a container, or without the service that knows the names
        user = f"with uid {status.st_uid}"
    sweep_id, name, device = map(_printable, (holder.sweep_id, holder.name, holder.device))
    return replace(holder, user=user, sweep_id=sweep_id, name=name, device=device)


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("?", text)[:80]


def _open_shared(folder: Path, name: str) -> int:
    """Return a descriptor of a file in the lock folder, which every user may lock; both are created if they do not exist.

    Raises:
        UserError: they cannot be opened, or are something else than a folder and a regular file.
    """
    deadline = time.monotonic() + PERMISSION_S
    while True:
        try:
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                folder.chmod(SHARED_MODE)
            if folder.is_symlink() or not folder.is_dir():
                raise _unusable(folder, "is a symbolic link or not a folder")
            # O_CREAT only for a new file: in a folder like /tmp the kernel refuses it for the file of another user.
            with suppress(FileExistsError):
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(folder / name, flags, 0o666)
                os.fchmod(descriptor, 0o666)
                return descriptor
            # The system also locks files that may only be read.
            is_writable = os.access(folder / name, os.W_OK)
            with open_regular(folder / name, "r+b" if is_writable else "rb") as file:
                return os.dup(file.fileno())
        except UserError:
            if folder.is_symlink() or not folder.is_dir():
                raise
            raise _unusable(folder, f"cannot be used: {name} is not a regular file") from None
        except PermissionError as error:
            if time.monotonic() > deadline:
                raise _unusable(folder, f"cannot be used: {name}: {error.strerror}") from None
            time.sleep(0.01)  # its creator may be about to open it to all
        except OSError as error:
            raise _unusable(folder, f"cannot be used: {name}: {error.strerror}") from None


def _unusable(folder: Path, reason: str) -> UserError:
    advice = "name a folder that every user of this host may write, or one that does not exist yet."
    return UserError([Problem("limits.locks", str(folder), f"{reason}; {advice}")])


# ---- Host slots: permission for a trial to run on this host, with a GPU of its own that is the only one its process sees ----


SYSTEM = ROOT
"""Below this folder is the GPU driver's list of GPUs."""


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """A GPU that this process may use."""

    token: str
    """Its name in ``CUDA_VISIBLE_DEVICES``."""
    uuid: str
    """Its name for all processes of the host."""
    model: str


@dataclass(frozen=True, slots=True)
class HostSlot:
    """Permission to run on this host, and the GPU to use."""

    gpu: VisibleGpu | None = None
    alone: bool = False
    """True if the trial's process is to see no other GPU."""
    others: Sequence[Json] = ()
    """The other processes that held the host lock when the trial began."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the trial's process, beside the shard's."""
        return {"CUDA_VISIBLE_DEVICES": self.gpu.token} if self.gpu and self.alone else {}

    def noted(self, blank: Record) -> Record:
        """Return the record with the slot in its environment."""
        environment = dict(blank.environment)
        if blank.pass_name in exclusive_passes():
            environment["others"] = {"trials": list(self.others)}
        if self.gpu:
            environment["gpu"] = {"uuid": self.gpu.uuid, "model": self.gpu.model, "visible": self.gpu.token}
        return replace(blank, environment=environment)


def visible_gpus(root: Path, inherited: str | None) -> list[VisibleGpu]:
    """Return the GPUs that may be used: all that the driver lists, or those that ``CUDA_VISIBLE_DEVICES`` names where it is set.

    Identifiers are passed on unchanged; numbers are assumed to follow the order of the bus. A slice of a GPU (MIG) counts as a GPU.
    """
    known = gpus(root)
    if inherited is None:
        return [VisibleGpu(gpu.uuid, gpu.uuid, gpu.model) for gpu in known]
    found = []
    for token in filter(None, map(str.strip, inherited.split(","))):
        if token == "-1":  # CUDA ignores what follows
            break
        if token.startswith("MIG-"):  # an older driver names it by its GPU and two numbers, with slashes between them
            found.append(VisibleGpu(token, token.replace("/", "-"), "a slice of a GPU (MIG)"))
            continue
        visible = VisibleGpu(token, f"number-{token}", "unknown")
        for number, gpu in enumerate(known):
            if (token.isdigit() and int(token) == number) or (not token.isdigit() and gpu.uuid.startswith(token)):
                visible = VisibleGpu(token, gpu.uuid, gpu.model)
                break
        found.append(visible)
    return found


WHOLE_GPU = ("cuda", "gpu")
"""Devices whose trials get the first free GPU, and see no other."""


class HostSlots:
    """Gives slots to trials; a context, safe to be used by several threads.

    Args:
        lock: of this host.
        shard: its number, by which shards are spread over GPUs if every GPU is taken.
        available: the GPUs that may be used; None: those that this process sees.
    """

    def __init__(self, lock: HostLock, shard: int, available: Sequence[VisibleGpu] | None = None) -> None:
        if available is None:
            available = visible_gpus(SYSTEM, os.environ.get("CUDA_VISIBLE_DEVICES"))
        self._lock, self._gpus = lock, {gpu.uuid: gpu for gpu in available}
        self._rotation = itertools.count(shard)
        self._own: str | None = None
        self._claim: int | None = None

    def __enter__(self) -> HostSlots:
        return self

    def __exit__(self, *_: object) -> None:
        if self._claim is not None:
            os.close(self._claim)

    @contextmanager
    def taken(self, blanks: Sequence[Record], on_wait: OnWait | None = None) -> Iterator[HostSlot]:
        """Take a slot for the trials of a group; ``on_wait`` is called with the processes that it waits for."""
        device = _device_of(str(blank.config["device"]["type"]) for blank in blanks)
        measures = blanks[0].pass_name in exclusive_passes()
        others: list[Json] = []
        with self._lock.taken(measures, self._candidates(device, measures), on_wait) as uuid:
            if measures:
                for holder in self._lock.holders():
                    note = asdict(holder)
                    others.append({key: note[key] for key in ("sweep_id", "user", "pid", "measures", "device")})
            yield HostSlot(self._gpus[uuid] if uuid else None, device in WHOLE_GPU, others)

    @contextmanager
    def shared(self, on_wait: OnWait | None = None) -> Iterator[None]:
        """Keep everything on this host from measuring; no further slot must be taken meanwhile."""
        with self._lock.taken(False, (), on_wait):
            yield

    def environment_on(self, devices: Iterable[str]) -> dict[str, str]:
        """Return :attr:`HostSlot.environment` of trials that measure on these devices, and claim the GPU that they will use."""
        device = _device_of(devices)
        candidates = self._candidates(device, True)
        gpu = self._gpus[candidates[0]] if candidates else None
        return HostSlot(gpu, device in WHOLE_GPU).environment

    def _candidates(self, device: str, measures: bool) -> list[str]:
        """Return the ids of the GPUs that a trial may use; the first is the one to wait for."""
        kind, _, number = device.partition(":")
        uuids = list(self._gpus)
        if kind not in ("cuda", "gpu") or not uuids:
            return []
        if number:
            return uuids[int(number) : int(number) + 1]
        if self._own is not None:
            if measures:
                return [self._own]
            uuids.remove(self._own)
            return [self._own, *uuids]  # its fork server has imported
        first = next(self._rotation) % len(uuids)
        rotated = uuids[first:] + uuids[:first]
        if not measures:
            return rotated
        self._own, self._claim = self._lock.claim_gpu(rotated)
        return [self._own]


def _device_of(devices: Iterable[str]) -> str:
    """Return the device of a group of trials; a group on several takes the whole host, like one on the CPU."""
    different = set(devices)
    return different.pop() if len(different) == 1 else "cpu"


def warn_of_oversubscription(plan: Plan, out: Console) -> None:
    """Print a warning if trials of the plan use more threads than this process has processors."""
    available = usable_processors()
    threads = max((int(c.config["backend"].get("threads") or 1) for c in plan.combinations), default=1)
    if threads > available and not plan.cluster:  # the nodes of a cluster may have more
        asked = f"backend.threads={threads} asks for more than the {available} processors that this process may use"
        message = Text(f"oversubscribed: {asked}; backend.threads={available}", style="yellow")
        out.print(message, soft_wrap=True)
