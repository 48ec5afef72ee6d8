"""A backend without a model: a step is one run of a program, of which time, memory and reported numbers are measured.

A program may need a server, which :mod:`sweeprof.run.servers` starts and ends.

At the end stands what planning does with its settings: values of the config in place of names in braces, and their problems.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import shlex
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from sweeprof.backends import CAPABILITIES, Backend, Build, Gap, HostOutputs, LoadedModel
from sweeprof.errors import CommandError, Problem, Unsupported, choice_problem, nearest
from sweeprof.measuring.inputs import Inputs
from sweeprof.paths import user_path
from sweeprof.processes import bytes_of, descendants, kill_tree, signal_name, users_environment
from sweeprof.results.files import tail_lines
from sweeprof.results.observations import CommandRun, RunningServer
from sweeprof.results.record import Json

STREAMS = ("stdout", "stderr")
SHOWN_LINES = 5
"""Lines at the end of the output of a program that failed which are part of the reason."""
SHELL = "/bin/sh"
LOOK_S = 0.001
"""Seconds between two looks at the memory of the processes, at first; the longer they run, the longer it becomes."""
SLOWEST_LOOK_S = 0.2
WRITTEN_S = 0.02
"""The time of a file may be so much earlier than the clock: the kernel updates it in ticks."""
EMPTY_RUNS = 50
"""Runs of an empty shell, whose mean times are subtracted; hyperfine's number."""
DYING_S = 1.0
"""How long a server may take to end after it has closed its connections, by which a program fails."""


@dataclass(frozen=True, slots=True)
class CommandBackend(Backend):
    """Runs a program once per step."""

    gaps: ClassVar[Mapping[str, Gap]] = dict.fromkeys(
        CAPABILITIES, Gap("not applicable", "a program is measured from outside, without a model")
    )
    command: Sequence[object] | str = ()
    """The program and its arguments; a text is split into words as a shell does."""
    shell: bool = False
    """True: the command is a text for ``/bin/sh``; the times are without those of an empty one."""
    before_run: Sequence[object] | str = ()
    """A command that runs before each run of the program and is not measured, as to clear a cache."""
    env: Mapping[str, object] = field(default_factory=dict)
    """Environment variables of the program, beside those of the user's command."""
    cwd: str | None = None
    """The working directory; None: that of sweeprof."""
    stdin: str | None = None
    """The file that the program reads as its standard input; None: an empty one."""
    server: Mapping[str, Any] | None = None
    """A server that runs meanwhile: its ``command``, ``ready`` (``url``, ``log`` or ``port``), ``per``, ``env``, ``cwd`` and
    ``timeout_s``."""
    timeout_s: float | None = None
    """Longest duration of a run; None: that of the trial."""
    success: Sequence[int] = (0,)
    """Exit codes of a run that is measured."""
    unsupported: Sequence[int] = ()
    """Exit codes by which the program says that it cannot run this combination."""
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Numbers that the program reports, by name: ``json`` (a path) or ``regex``, ``from`` (stdout, stderr or a file), ``unit``,
    ``better``."""

    def load(self, build: Build, device: str, channel_axis: int | None) -> Program:
        return Program(self)


class Program(LoadedModel):
    """The program of a :class:`CommandBackend`."""

    def __init__(self, settings: CommandBackend) -> None:
        self.native = self._settings = settings

    def put(self, inputs: Inputs) -> None:
        """Return nothing: a program takes its arguments."""

    def host_outputs(self, outputs: Any) -> HostOutputs:
        raise Unsupported("a program has no outputs that could be compared")

    def stepping(self, batch: Any) -> AbstractContextManager[Callable[[], object]]:
        raise Unsupported("a program is run, and not called: only mode=command measures it")

    @contextmanager
    def running(self, server: RunningServer | None = None) -> Iterator[Callable[[bool], CommandRun]]:
        """Within the context: a function that runs the program once, and looks at its memory if its argument is True.

        It raises :class:`~sweeprof.errors.CommandError` or :class:`~sweeprof.errors.Unsupported` for another exit code than those
        of a success.
        """
        with tempfile.TemporaryDirectory(prefix="sweeprof-") as folder:
            runner = _Runner(self._settings, Path(folder), server)
            try:
                yield runner.run
            finally:
                runner.close()


class _Runner:
    """Runs the program; its output, and that of what runs before it, are files in ``folder``."""

    def __init__(self, settings: CommandBackend, folder: Path, server: RunningServer | None) -> None:
        self._settings, self._folder, self._server = settings, folder, server
        self._outputs = [folder / name for name in STREAMS]
        self._server_end: int | None = None
        """A descriptor that is readable when the server has ended."""
        self._shell = CommandRun(0.0, 0.0, 0.0, 0)
        """The mean times of an empty shell."""
        if server is not None:
            try:
                self._server_end = os.pidfd_open(server.pid)
            except OSError:
                raise CommandError("failed", server_ending(server)) from None
        if settings.shell:
            here = self._on_this_host()
            empty = [self._spawned([SHELL, "-c", ""], here) for _ in range(EMPTY_RUNS)]
            self._shell = CommandRun(
                statistics.fmean(run.wall_s for run in empty),
                statistics.fmean(run.user_s for run in empty),
                statistics.fmean(run.system_s for run in empty),
                0,
            )

    def close(self) -> None:
        if self._server_end is not None:
            os.close(self._server_end)

    def _on_this_host(self) -> CommandBackend:
        given = {name: getattr(self._settings, name) for name in FILLED}
        port = None if self._server is None else self._server.port
        return replace(self._settings, **with_host_values(given, port))

    def run(self, is_watched: bool) -> CommandRun:
        """Run the program once; True: look at its memory, and at that of its server."""
        settings = self._on_this_host()
        before = words_of(settings.before_run, settings.shell)
        if before:
            code = self._spawned(before, settings).exit_code
            if code:
                raise CommandError("failed", _ending("backend.before_run", code, self._outputs[::-1]))
        began = time.time()
        words = words_of(settings.command, settings.shell)
        run = self._spawned(words, settings, is_watched)
        files = {f"{path.name}.txt": path.read_bytes() for path in self._outputs}
        sys.stdout.flush()
        for text in files.values():  # the log of the trial keeps the output of all runs
            os.write(1, text)
        self._check_server(0 if run.exit_code in settings.success else DYING_S)
        reason = _ending(words[0], run.exit_code, self._outputs[::-1])
        if run.exit_code in settings.unsupported:
            raise Unsupported(reason)
        if run.exit_code not in settings.success:
            raise CommandError("failed", reason)
        reported: dict[str, tuple[float, ...]] = {}
        missing: dict[str, str] = {}
        for name, spec in settings.metrics.items():
            try:
                reported[name] = _reported(spec, self._folder, settings.cwd, began)
            except ValueError as error:
                missing[name] = str(error)
        return replace(
            run,
            wall_s=max(0.0, run.wall_s - self._shell.wall_s),
            user_s=max(0.0, run.user_s - self._shell.user_s),
            system_s=max(0.0, run.system_s - self._shell.system_s),
            shell_s=self._shell.wall_s,
            reported=reported,
            missing=missing,
            files=files,
        )

    def _check_server(self, wait_s: float = 0) -> None:
        """Raise :class:`CommandError` if the server has ended, or does so while this waits."""
        if self._server is None or self._server_end is None:
            return
        if select.select([self._server_end], [], [], wait_s)[0]:
            raise CommandError("failed", server_ending(self._server))

    def _spawned(self, words: list[str], settings: CommandBackend, is_watched: bool = False) -> CommandRun:
        """Run a program to its end; a server that ends before it ends it.

        The clock runs from just before the process is made until its end is seen, as hyperfine's does.
        """
        environment = users_environment({name: str(value) for name, value in settings.env.items()})
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = [
            os.open(os.devnull if settings.stdin is None else user_path(settings.stdin), os.O_RDONLY),
            *(os.open(path, flags, 0o600) for path in self._outputs),
        ]
        actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(opened)]
        here = os.open(os.curdir, os.O_RDONLY)
        try:
            if settings.cwd is not None:
                os.chdir(user_path(settings.cwd))
            begin = time.perf_counter()
            # Python itself ignores these signals, and a process inherits that.
            pid = os.posix_spawnp(
                words[0], words, environment, file_actions=actions, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
            )
        except OSError as error:
            place = "" if settings.cwd is None else f" in {settings.cwd}"
            raise CommandError("failed", f"{words[0]} could not be started{place}: {error.strerror}") from None
        finally:
            os.fchdir(here)
            for descriptor in (here, *opened):
                os.close(descriptor)
        watch: _PeakMemory | None = None
        if is_watched:
            watch = _PeakMemory(pid) if self._server is None else _PeakMemory(pid, self._server.pid)
        peaks: dict[int, int] = {}
        handle = os.pidfd_open(pid)
        try:
            waiter = select.poll()
            waiter.register(handle, select.POLLIN)
            if self._server_end is not None:
                waiter.register(self._server_end, select.POLLIN)
            limit = settings.timeout_s
            ended = [descriptor for descriptor, _ in waiter.poll(None if limit is None else limit * 1000)]
            end = time.perf_counter()
        finally:
            os.close(handle)
            if watch is not None:
                peaks = watch.stop()
        if handle not in ended:
            kill_tree(pid)
        _, status, usage = os.wait4(pid, 0)
        if handle not in ended:
            self._check_server()
            reason = f"{words[0]} took longer than backend.timeout_s={limit:g}{last_lines(self._outputs[::-1])}"
            raise CommandError("timeout", reason)
        code = os.waitstatus_to_exitcode(status)
        server_memory = None if self._server is None else peaks.get(self._server.pid)
        return CommandRun(end - begin, usage.ru_utime, usage.ru_stime, code, peaks.get(pid), server_memory)


def with_host_values(node: Any, port: int | None) -> Any:
    """Return settings with the values that only the host knows; ``port``: of the server; None: a free one."""
    text = json.dumps(node, ensure_ascii=False, default=str)
    if port is None and HOST_VALUES["port"] in text:
        port = free_port()
    text = text.replace(HOST_VALUES["port"], str(port))
    return json.loads(text.replace(HOST_VALUES["python"], json.dumps(sys.executable)[1:-1]))


def free_port() -> int:
    """Return a port of this host that no program listens at now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def words_of(command: Sequence[object] | str, shell: bool) -> list[str]:
    """Return the words of a command, true and false in small letters; nothing for an empty one."""
    if not command:
        return []
    if shell:
        return [SHELL, "-c", command if isinstance(command, str) else shlex.join(map(as_text, command))]
    return shlex.split(command) if isinstance(command, str) else [as_text(word) for word in command]


def as_text(value: object) -> str:
    """Return a value of the config as a program gets it: true and false in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class _PeakMemory:
    """A thread that reads the memory of processes, each with its descendants, and keeps the highest value of each.

    The system's own ``ru_maxrss`` would include this process, which a child shares until it has started its program.
    """

    def __init__(self, *pids: int) -> None:
        self._peaks: dict[int, int] = {}
        self._pids = pids
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self) -> dict[int, int]:
        """End the thread; return the bytes by process id, without processes that ended before they could be read."""
        self._stop.set()
        self._thread.join()
        return self._peaks

    def _follow(self) -> None:
        wait_s = LOOK_S
        while not self._stop.wait(wait_s):
            for root in self._pids:
                # The proportional set size: a page that several processes share counts once.
                seen = sum(bytes_of(pid, "smaps_rollup", ("Pss",)) for pid in descendants(root))
                if seen > self._peaks.get(root, 0):
                    self._peaks[root] = seen
            wait_s = min(wait_s * 1.2, SLOWEST_LOOK_S)


def _ending(program: str, code: int | None, outputs: Sequence[Path]) -> str:
    """Return how a program ended, with the last lines of its output; a code of None is not known."""
    text = f"{program} exited with code {code}"
    if code is None:
        text = f"{program} ended"
    elif code < 0:
        text = f"{program} was killed by {signal_name(-code)}"
    return text + last_lines(outputs)


def server_ending(server: RunningServer) -> str:
    """Return how a server ended, with the last lines of its log; its supervisor leaves a zombie, whose exit code can be read."""
    code: int | None = None
    with suppress(OSError):
        code = os.waitstatus_to_exitcode(int(Path(f"/proc/{server.pid}/stat").read_bytes().split()[-1]))
    return _ending(f"the server {server.name}", code, [Path(server.log)])


def last_lines(outputs: Sequence[Path]) -> str:
    """Return the last lines of the first of these files that has any, after a colon."""
    for path in outputs:
        lines = tail_lines(path, SHOWN_LINES)
        if lines:
            return f": {lines}"
    return ""


# ----------------------------------------------------------------------------------------------------------------------
# Numbers that a program reports


def _reported(spec: Mapping[str, Any], folder: Path, cwd: str | None, began: float) -> tuple[float, ...]:
    """Return the numbers that one run reported.

    Raises:
        ValueError: there are none, with the reason.
    """
    source = str(spec.get("from", STREAMS[0]))
    if source in STREAMS:
        path = folder / source
    else:
        path = Path(user_path(cwd or os.curdir)) / user_path(source)
        if not path.is_file():
            raise ValueError(f"the program wrote no file {source}")
        if path.stat().st_mtime < began - WRITTEN_S:
            raise ValueError(f"the file {source} is older than the run")
    text = path.read_bytes().decode(errors="replace")
    if "regex" in spec:
        found: list[Any] = [
            match[1] if match.re.groups else match[0] for match in re.finditer(spec["regex"], text, re.M)
        ]
        if not found:
            raise ValueError(f"{spec['regex']!r} matches nothing in {source}")
    else:
        found = _at(_json_in(text, source), spec["json"], source)
    numbers = []
    for value in found:
        number = math.nan
        if not isinstance(value, bool):
            with suppress(TypeError, ValueError):
                number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"{value!r} in {source} is not a finite number")
        numbers.append(number)
    if not numbers:
        raise ValueError(f"{spec.get('json')} in {source} is an empty list")
    return tuple(numbers)


def _json_in(text: str, source: str) -> Any:
    """Return the JSON of a text: all of it, or its last line that is an object or a list, as below lines of a log."""
    try:
        return json.loads(text)
    except ValueError:
        for line in reversed(text.splitlines()):
            if line.lstrip().startswith(("{", "[")):
                with suppress(ValueError):
                    return json.loads(line)
    raise ValueError(f"{source} is not JSON, and no line of it is" if text.strip() else f"{source} is empty")


def _at(data: Any, path: str, source: str) -> list[Any]:
    """Return the values at a path such as ``results[0].avg_ts``; ``[]`` stands for every element of a list."""
    values = [data]
    for key, position in re.findall(r"([^.\[\]]+)|\[(-?\d*)\]", path):
        below: list[Any] = []
        for value in values:
            if key and isinstance(value, Mapping):
                if key not in value:
                    close = nearest(key, list(value))
                    hint = "" if close is None else f", did you mean {close!r}?"
                    raise ValueError(f"{source} has no {path}: there is no {key!r}{hint}")
                below.append(value[key])
            elif not key and isinstance(value, list) and not position:
                below += value
            elif not key and isinstance(value, list) and -len(value) <= int(position) < len(value):
                below.append(value[int(position)])
            else:
                part = key or f"[{position}]"
                raise ValueError(f"{source} has no {path}: {part} is not in a {type(value).__name__}")
        values = below
    if len(values) == 1 and isinstance(values[0], list):
        return list(values[0])
    return values


# ----------------------------------------------------------------------------------------------------------------------
# Planning: values in place of names, and problems of the settings

FILLED = ("command", "before_run", "cwd", "stdin", "env", "metrics")
"""The settings, beside those of the server, in which names in braces stand for values of the config."""
NAMED = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w.\-]*)\}")
HOST_VALUES = {"port": "⟨port⟩", "python": "⟨python⟩"}
"""Names whose values only the host knows that runs the program, and what stands for them until then: ``port`` is that of the
server, without a server a free one in each run; ``python`` is the interpreter that runs sweeprof."""
READABLE = ("batch_size", "device.type", "seed.weights", *HOST_VALUES)
"""Names, beside those of ``args``, that are offered as the closest one."""
OWN = ("time", "user_time", "system_time", "memory", "server_memory", "exit_code")
"""Names that a reported metric cannot have, because sweeprof measures these."""
SPEC = ("json", "regex", "from", "unit", "better")
"""The keys of a reported metric."""
SERVER = ("command", "ready", "per", "env", "cwd", "timeout_s")
"""The keys of a server."""
READY = ("url", "log", "port")
"""The conditions by which a server is ready, of which it needs one."""


def filled(backend: Json, config: Mapping[str, Any]) -> tuple[Json, list[Problem]]:
    """Return the settings of the backend with the values of a combination's config, and the problems of names.

    A list in place of a whole word becomes several words, and null none.
    """
    problems: list[Problem] = []
    used: set[str] = set()
    arguments = config.get("args") or {}
    known = [*(f"args.{name}" for name in arguments), *READABLE]

    def value_of(name: str, key: str) -> Any:
        if name in HOST_VALUES:
            return HOST_VALUES[name]
        node: Any = config
        for word in name.split("."):
            if not isinstance(node, Mapping) or word not in node:
                message = f"names no value of the config. Known: {', '.join(known)}. Write {{{{…}}}} for braces of the program."
                problems.append(Problem(key, f"{{{name}}}", message, nearest(name, known)))
                return ""
            node = node[word]
        used.add(name)
        return node

    def text_of(text: str, key: str) -> str:
        def one(match: re.Match[str]) -> str:
            if match[1] is None:
                return match[0][0]
            value = value_of(match[1], key)
            if isinstance(value, list | Mapping) or value is None:
                message = (
                    "is not a number or a text; a list or null must be an argument of its own, without other text."
                )
                problems.append(Problem(match[1], value, message))
            return as_text(value)

        return NAMED.sub(one, text)

    def node_of(node: Any, key: str) -> Any:
        if isinstance(node, str):
            return text_of(node, key)
        if isinstance(node, Mapping):
            return {name: node_of(below, f"{key}.{name}") for name, below in node.items()}
        if not isinstance(node, list):
            return node
        words: list[Any] = []
        for word in node:
            whole = NAMED.fullmatch(word) if isinstance(word, str) else None
            value = value_of(whole[1], key) if whole is not None and whole[1] else word
            if whole is not None and isinstance(value, list):
                words += value
            elif whole is None or value is not None:
                words.append(node_of(word, key))
        return words

    def filled_in(settings: Mapping[str, Any], names: Iterable[str], key: str, is_text: bool) -> Json:
        found = dict(settings)
        for name in names:
            given = found.get(name)
            if name in ("command", "before_run") and isinstance(given, str) and not is_text:
                with suppress(ValueError):  # of a quote without its partner, which command_problems reports
                    given = shlex.split(given)  # before values are filled in, which may contain spaces
            if given:
                found[name] = node_of(given, f"{key}.{name}")
        return found

    found = filled_in(backend, FILLED, "backend", bool(backend.get("shell")))
    server = backend.get("server")
    if isinstance(server, Mapping):
        # Combinations share a server if these settings are equal: so the values of the axes that it is started for are among them.
        per = {name: value_of(str(name), "backend.server.per") for name in server.get("per") or ()}
        found["server"] = {**filled_in(server, SERVER, "backend.server", False), "per": per}
    for name in arguments:
        if not any(one == f"args.{name}" or one.startswith(f"args.{name}.") for one in used):
            message = f"is used by no argument: write {{args.{name}}} where the program gets the value, as in backend.command."
            problems.append(Problem("args", name, message))
    return found, problems


def command_problems(backend: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of the backend's settings, whatever the values are."""
    is_text = bool(backend.get("shell"))
    yield from _words_problems("backend.command", backend.get("command"), is_text, is_needed=True)
    yield from _words_problems("backend.before_run", backend.get("before_run"), is_text)
    yield from _duration_problems("backend.timeout_s", backend.get("timeout_s"))
    for key in ("success", "unsupported"):
        codes = backend.get(key)
        if isinstance(codes, list) and not all(isinstance(code, int) and 0 <= code <= 255 for code in codes):
            yield Problem(f"backend.{key}", codes, "is not a list of exit codes from 0 to 255, such as [77].")
    metrics = backend.get("metrics") or {}
    if isinstance(metrics, Mapping):
        for name, spec in metrics.items():
            yield from _metric_problems(name, spec)
    else:
        yield Problem("backend.metrics", metrics, "is not {name: {json: PATH, unit: UNIT, better: lower}}.")
    server = backend.get("server")
    if isinstance(server, Mapping):
        yield from _server_problems(server)
    elif server is not None:
        yield Problem("backend.server", server, "is not {command: […], ready: {port: '{port}'}}, or null.")


def _words_problems(key: str, value: object, is_text: bool = False, is_needed: bool = False) -> Iterator[Problem]:
    if is_needed and not value:
        message = f"is missing: name the program and its arguments, such as '{key}=[sleep, \"{{args.seconds}}\"]'."
        yield Problem(key, value, message)
    elif value and not isinstance(value, str | list):
        yield Problem(key, value, "is not a list of arguments or a text.")
    elif isinstance(value, str) and not is_text:
        try:
            shlex.split(value)
        except ValueError as error:
            yield Problem(key, value, f"cannot be split into words: {error}.")


def _duration_problems(key: str, value: object) -> Iterator[Problem]:
    if value is not None and not (isinstance(value, int | float) and not isinstance(value, bool) and value > 0):
        yield Problem(key, value, "is not a duration: seconds above 0, or null.")


def _server_problems(server: Mapping[str, Any]) -> Iterator[Problem]:
    for name in server:
        if name not in SERVER:
            yield choice_problem("backend.server", name, "key of a server", SERVER)
    yield from _words_problems("backend.server.command", server.get("command"), is_needed=True)
    yield from _duration_problems("backend.server.timeout_s", server.get("timeout_s"))
    if not isinstance(server.get("env") or {}, Mapping):
        yield Problem("backend.server.env", server["env"], "is not a mapping of names to values.")
    if not isinstance(server.get("per"), Mapping | list | None):
        yield Problem("backend.server.per", server["per"], "is not a list of names, such as [args.model].")
    ready = server.get("ready")
    if not isinstance(ready, Mapping) or len(ready) != 1 or not {*ready} <= {*READY}:
        example = "is not a condition: {url: 'http://localhost:{port}/health'}, {port: '{port}'}, or {log: REGEX}."
        yield Problem("backend.server.ready", ready, example)
        return
    ((kind, value),) = ready.items()
    key = f"backend.server.ready.{kind}"
    if kind == "url" and not str(value).startswith(("http://", "https://")):
        shown = str(value).replace(HOST_VALUES["port"], "{port}")
        yield Problem(key, shown, "is not an address that begins with http:// or https://.")
    elif kind == "port" and value != HOST_VALUES["port"] and not (str(value).isdecimal() and 0 < int(value) < 65536):
        yield Problem(key, value, "is not a port: '{port}', or a number from 1 to 65535.")
    elif kind == "log":
        yield from _regex_problems(key, value)


def _regex_problems(key: str, value: object) -> Iterator[Problem]:
    try:
        groups = re.compile(str(value)).groups
    except re.error as error:
        yield Problem(key, value, f"is not a regular expression: {error}.")
    else:
        if groups > 1 and key.endswith(".regex"):
            yield Problem(key, value, "has several groups: one is the number; write (?:…) for others.")


def _metric_problems(metric: object, spec: object) -> Iterator[Problem]:
    if not isinstance(metric, str) or re.fullmatch(r"[A-Za-z]\w*", metric) is None or metric in OWN:
        message = f"is not a name: letters, digits and '_', with a letter first, other than {', '.join(OWN)}."
        yield Problem("backend.metrics", metric, message)
    key = f"backend.metrics.{metric}"
    if not isinstance(spec, Mapping):
        yield Problem(key, spec, "is not {json: PATH, unit: UNIT, better: lower}.")
        return
    for name, value in spec.items():
        if name not in SPEC:
            yield choice_problem(key, name, "key of a reported metric", SPEC)
        elif name == "better" and value not in (None, "lower", "higher"):
            yield choice_problem(f"{key}.better", value, "direction", ("lower", "higher"))
        elif name != "better" and not isinstance(value, str):
            yield Problem(f"{key}.{name}", value, "is not a text.")
    if len({"json", "regex"} & set(spec)) != 1:
        yield Problem(key, dict(spec), "needs either json, a path such as results[0].value, or regex.")
    if isinstance(spec.get("regex"), str):
        yield from _regex_problems(f"{key}.regex", spec["regex"])
