"""Child processes that answer messages: lines of JSON over a socket, which closes when either side ends.

Therefore each process notices the end of the other.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import gc
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NoReturn

import psutil

from sweeprof.errors import WorkerError, described, formatted
from sweeprof.results.files import open_regular, tail_lines

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when the thread that made it ends."""
PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): processes that lose their parent become children of this one."""
CLOSING_S = 10.0
"""How long a child may take to end after its socket has closed."""
LONGEST_WAIT_S = 86_400.0
"""How long a system call waits at once: poll(2) refuses more than 24 days."""
UNWRITTEN = 120
"""Python's exit code of a process whose last output could not be written."""
THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "KMP_INIT_AT_FORK"),
)
"""Environment variables that joblib, and some of which Ray, sets for its workers."""

USERS = "SWEEPROF_USERS_ENVIRONMENT"
"""Environment variable of child processes: in JSON, the variables that were changed for them, as the user has them."""

MODULES = "SWEEPROF_MODULES"
"""Environment variable of child processes: the folder of the command, whose modules a config may name, where that is not theirs."""

NO_WORKING_DIRECTORY = {"PYTHONSAFEPATH": "1"}
"""Environment of a process that imports no code of the user's own: Python would import files of the working directory first, which
may be a folder of somebody else."""


class Connection:
    """Messages in JSON, one per line, over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self._unread = connection, b""

    def send(self, message: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """Send a message; raises ``OSError`` if the other side is gone, ``TimeoutError`` if it does not read."""
        self.socket.settimeout(timeout_s)
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message, None if the other side is gone; raises ``TimeoutError`` if it is not complete in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            try:
                left_s = None if deadline is None else min(LONGEST_WAIT_S, max(0.0, deadline - time.monotonic()))
                self.socket.settimeout(left_s)
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                continue  # look once more without waiting: an answer that arrived while this process was stopped is not late
            except BlockingIOError:
                raise TimeoutError from None
            except OSError:
                data = b""
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def has_message(self) -> bool:
        """True if something was sent, or the other side is gone."""
        if b"\n" in self._unread:
            return True
        waiter = select.poll()
        waiter.register(self.socket, select.POLLIN | select.POLLHUP)
        return bool(waiter.poll(0))

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield every message until the other side is gone."""
        while (message := self.receive()) is not None:
            yield message

    def close(self) -> None:
        """Close the socket, which the other side notices."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # also wakes a thread that waits for a message
        self.socket.close()


class NoAnswer(WorkerError):
    """A child process did not answer in time."""


class ProcessLost(WorkerError):
    """A child process was killed or stopped by another process: the same request to a new one may succeed."""


class Child:
    """A process of its own that runs a function with one end of a connection, whose other end is here.

    It has a session of its own, so that Ctrl-C reaches only the driver, and looks for modules where this process does.

    Args:
        target: the function as ``module:function``, called with its :class:`Connection` and the arguments.
        answers: the function is called with each message instead, and returns the answer to it.
        log: the file with its output; None keeps it for error messages only.
    """

    def __init__(
        self,
        target: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path | None,
        answers: bool = False,
    ) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable]
        # Python looks in the working directory first. A command that was started otherwise has it last, so that a ``random.py``
        # or ``torch/`` there replaces no module of Python or of a package.
        if sys.path[:1] != [str(Path.cwd())]:
            command.append("-P")
        entry = "run_answering_child" if answers else "run_child"
        command += [
            "-c",
            f"from sweeprof.processes import {entry}; {entry}()",
            str(theirs.fileno()),
            target,
            *arguments,
        ]
        self._unnamed_log: TemporaryDirectory[str] | None = None
        if log is None:
            self._unnamed_log = TemporaryDirectory(prefix="sweeprof-")
            log = Path(self._unnamed_log.name, "log")
        # Without its parents: the folder of a sweep that was removed meanwhile stays removed.
        log.parent.mkdir(exist_ok=True)
        with open_regular(log, "ab") as output:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )
        theirs.close()
        self._connection, self._module, self._log = Connection(ours), target.partition(":")[0], log

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True if the process still runs."""
        return self._process.poll() is None

    @property
    def _name(self) -> str:
        """Name of the process for messages, as ``fork server``."""
        return self._module.rpartition(".")[2].removesuffix("_process").replace("_", " ")

    def fileno(self) -> int:
        """Return the descriptor of the connection, to be waited for."""
        return self._connection.socket.fileno()

    def has_message(self) -> bool:
        """True if :meth:`receive` would not wait: something was sent, or the process is gone."""
        return self._connection.has_message()

    def ask(self, message: Mapping[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Send a message and return its answer.

        Raises:
            NoAnswer: the process did not answer in time.
            WorkerError: the process ended.
        """
        self.send(message, timeout_s)
        return self.receive(timeout_s)

    def send(self, message: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """Send a message; raises like :meth:`ask`."""
        try:
            self._connection.send(message, timeout_s)
        except TimeoutError:
            raise self._no_answer(timeout_s) from None
        except OSError as error:
            raise ProcessLost(f"its {self._name} process is gone: {error}") from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the next message of the process, which must be complete within ``timeout_s``; raises like :meth:`ask`."""
        try:
            message = self._connection.receive(timeout_s)
        except TimeoutError:
            raise self._no_answer(timeout_s) from None
        if message is None:
            raise self._ending()
        return message

    def _no_answer(self, timeout_s: float | None) -> NoAnswer:
        return NoAnswer(f"{self._module} did not answer within {timeout_s:g} s{self._where}")

    def _ending(self) -> WorkerError:
        """Return the error that says how the process ended."""
        try:
            code = self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            return WorkerError(f"{self._module} closed its socket{self._where}")
        if code < 0:
            return ProcessLost(f"its {self._name} process was {killed_by(-code, self._log)}")
        cause = cause_of_exit(self._log) or "no output"
        return WorkerError(f"{self._module} ended with code {code}: {cause}{self._where}")

    @property
    def _where(self) -> str:
        """Where an error message refers to for more."""
        return f" (see {self._log})" if self._unnamed_log is None else ""

    def interrupt(self) -> None:
        """Send SIGTERM, which a process that is :func:`terminable` handles as Ctrl-C; it does not end at once."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process and all its descendants at once, also those that are stopped."""
        if not self.alive:
            return
        kill_tree(self.pid)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSING_S)

    def close(self) -> None:
        """End the process and everything in its process group, such as what a module has started while it was imported."""
        if is_stopped(self.pid):  # it would not notice that the socket closes
            self.kill()
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSING_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._unnamed_log is not None:
            self._unnamed_log.cleanup()


def descendants(pid: int) -> Iterator[int]:
    """Yield a process id and those of all its descendants."""
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                for child in (task / "children").read_text(encoding="ascii").split():
                    yield from descendants(int(child))


def bytes_of(pid: int, file: str, names: tuple[str, ...]) -> int:
    """Return the sum of the lines ``names`` of ``/proc/PID/FILE``; 0 if the process has ended, or runs as another user."""
    total = 0
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name in names:
                total += int(value.split()[0]) * 1024  # after the value stands kB
    return total


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants."""
    with suppress(psutil.NoSuchProcess):
        own = psutil.Process(pid)
        own.suspend()  # it starts nothing more
        for process in own.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        own.kill()


def is_stopped(pid: int) -> bool:
    """True if a process is stopped, as by SIGSTOP; false if it has ended."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; real-time signals have no names."""
    known = {member.value: member.name for member in signal.Signals}
    return known.get(number, "a real-time signal")


_NOTICE = re.compile(r"[WI]\d{4} [\d:.]+ |.*\b\w*Warning: |.*\b(?:WARNING|INFO)\b|\d{4}-\d\d-\d\d [\d:.,]+: [WI] ")
"""The beginning of a line by which a framework or Python warns or informs."""
_FATAL = re.compile(r"what\(\):|check failed|^F\d{4} |assert|\w\(\): |error", re.IGNORECASE)
"""A part of the line by which a library says why it aborts its process."""
_LINES = 100


def cause_of_exit(log: Path) -> str | None:
    """Return the last line of a process's output that is no warning; None if there is none."""
    found = _messages(log)
    return found[-1] if found else None


def killed_by(number: int, log: Path) -> str:
    """Return by which signal a process was killed, and what it printed as the reason, if it did."""
    text = f"killed by {signal_name(number)} (signal {number})"
    found = _messages(log)
    if found and _FATAL.search(found[-1]):
        text += f": {found[-1]}"
    return text


def _messages(log: Path) -> list[str]:
    """Return the last lines of a process's output without warnings, and without what Python prints of a fatal signal."""
    found = []
    is_after_notice = False
    for line in (tail_lines(log, _LINES) or "").splitlines():
        if line.startswith("Fatal Python error: "):
            break
        is_notice = _NOTICE.match(line) is not None or (is_after_notice and line.startswith(" "))
        is_after_notice = is_notice
        if line.strip() and not is_notice:
            found.append(line.strip())
    return found


def end_process(code: int = 0) -> NoReturn:
    """End this process as the end of its program would, but without freeing its objects, which takes MLflow's libraries a second.

    Threads are waited for, what was registered with ``atexit`` is called, and output is written, as :mod:`multiprocessing` does it.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):  # nobody reads it any longer, or it is closed
            continue
        except OSError as error:
            code = code or UNWRITTEN
            with suppress(OSError):
                os.write(2, f"error: the output could not be written: {error.strerror}\n".encode())
    os._exit(code)


def collect_again() -> None:
    """Let the collector of cycles run again, if it was stopped for imports, which set off full collections that free little.

    What exists now is never collected: modules live as long as the process.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def find_own_modules() -> None:
    """Let modules of the command's folder and the working directory be imported; of two with one name, the installed one."""
    for folder in (os.environ.get(MODULES), str(Path.cwd())):
        if folder is not None and folder not in sys.path:
            sys.path.append(folder)


def run_child() -> None:
    """On the child's side: call the function that :class:`Child` names, and end this process.

    A process with :data:`NO_WORKING_DIRECTORY` imports no modules of the user.
    """
    with _told():
        connection, function = _inherited()
        function(connection, *sys.argv[3:])
    end_process()


def run_answering_child() -> None:
    """On the child's side: answer each message by the function that :class:`Child` names, until the other side is gone."""
    die_with(os.getppid())
    with _told():
        connection, function = _inherited()
        for message in connection.messages():
            connection.send(function(message))
    end_process()


@contextmanager
def _told() -> Iterator[None]:
    """Print an error and end this process; the last line, which the parent reports, has the cause and where it was raised."""
    try:
        yield
    except Exception as error:  # of a user's code or a framework, which may raise anything
        print(formatted(error), described(error), sep="\n", file=sys.stderr, flush=True)
        sys.exit(1)


def _inherited() -> tuple[Connection, Any]:
    """Return this child's connection and its function."""
    if not os.environ.keys() >= NO_WORKING_DIRECTORY.keys():
        find_own_modules()
    module, _, name = sys.argv[2].partition(":")
    return Connection(socket.socket(fileno=int(sys.argv[1]))), getattr(import_module(module), name)


def call(
    target: str, message: Mapping[str, Any], environment: Mapping[str, str], timeout_s: float | None = None
) -> dict[str, Any]:
    """Return what a function ``module:function`` returns for a message, called in a process of its own.

    Raises:
        NoAnswer: it did not return in time.
        WorkerError: the process ended; the message has the last line of its output.
    """
    child = Child(target, [], environment, None, answers=True)
    try:
        return child.ask(message, timeout_s)
    except BaseException:
        child.kill()
        raise
    finally:
        child.close()


def die_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """On the child's side: get a signal when the process ``parent``, whose first thread made this one, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent had already exited
        os._exit(1)


def holds_in_child(holds: Callable[[], bool], limit_s: float) -> bool:
    """Return what a function returns in a forked child of this process, which ends with whatever the function has changed.

    It is False, too, if the function raises, takes longer than ``limit_s`` seconds, or ends the child. The child's output is
    discarded.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            code = 0 if holds() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a fork server: without what a launcher may have set for threads, and with ``extra``.

    Threads are set by the backend in each worker; numpy's own pool is kept from existing before the fork. So is CUDA: where an
    import asks whether there is a GPU, as PyTorch's compiler does, PyTorch finds that out without CUDA.
    """
    own = {"OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    folder = _folder_of_the_command()
    if folder is not None and folder != str(Path.cwd()):
        own[MODULES] = folder
    changed = {key: os.environ.get(key) for key in (*THREADS, *own)}
    own.setdefault(USERS, os.environ.get(USERS, json.dumps(changed)))
    inherited = {key: value for key, value in os.environ.items() if key not in THREADS}
    return {**inherited, **own, **extra}


def users_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the user's command, with ``extra``, for a program of the user: :func:`child_environment` undone."""
    found = {key: value for key, value in os.environ.items() if key != USERS}
    for key, value in json.loads(os.environ.get(USERS, "{}")).items():
        found.pop(key, None)
        if value is not None:
            found[key] = value
    return {**found, **extra}


def _folder_of_the_command() -> str | None:
    """Return the folder in which Hydra was started, whose modules a config may name: with ``hydra.job.chdir``, a job is elsewhere.

    None if this is no job of Hydra.
    """
    hydra: Any = sys.modules.get("hydra.core.hydra_config")
    if hydra is None or not hydra.HydraConfig.initialized():
        return None
    folder: str = hydra.HydraConfig.get().runtime.cwd
    return folder


# Signals that interrupt the main thread, whatever it waits for, so that a command cleans up before it ends.


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
