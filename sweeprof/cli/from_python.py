"""``sweeprof.sweep``: a sweep that a Python program starts, by the command in a child process.

There the command has signal handlers, Hydra and forks of its own; the program, which may be a notebook with threads, keeps its own.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO, cast

from sweeprof.config.override_syntax import is_spellable, spelled
from sweeprof.config.schema import GROUPS, PARTS
from sweeprof.credentials import redacted_message
from sweeprof.errors import ExitCode, Problem, SweeprofError, UserError, WorkerError
from sweeprof.processes import Child, Connection, ProcessLost, die_with
from sweeprof.results.compared_rows import Comparison
from sweeprof.text import StatusLine

COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Environment variables by which the kernel of a notebook asks for terminal codes."""
KERAS = ("keras", "tf_keras", "tensorflow")


def sweep(
    axes: Mapping[str, object] | None = None,
    /,
    *,
    config_dir: str | Path | None = None,
    progress: bool = True,
    **settings: object,
) -> Comparison:
    """Measure every combination of ``axes``, as ``python -m sweeprof KEY=VALUE …`` does, and return the comparison.

    Ctrl-C, or interrupting the kernel of a notebook, keeps what was measured, writes the reports and raises ``KeyboardInterrupt``,
    whose message says how to continue. Combinations that fail are rows with their reason.

    Args:
        axes: by config key a list of values, or one value. In place of names, ``model`` may have your own classes or functions that
            return a model; their arguments are the keys ``model.torch.NAME`` (for Keras ``model.tensorflow.NAME``).
        config_dir: a folder with configs of your own.
        progress: show a bar on a terminal and in a notebook, and print on stderr what the command prints there.
        settings: other keys of the config, such as ``protocol="short"``; a list is one value, and ``protocol={"rounds": 5}`` is the
            key ``protocol.rounds``. ``sweep="quickstart"`` is the sweep of that file, ``resume="last"`` resumes one.

    Raises:
        UserError: with every problem of the axes and settings.
        WorkerError: the process of the sweep was killed.

    Example:
        >>> comparison = sweeprof.sweep({"model": ["mlp", "lenet5"], "batch_size": [1, 32]}, protocol="short")
    """
    arguments = _arguments(axes or {}, settings)
    if config_dir is not None:
        arguments += ["--config-dir", os.fspath(config_dir)]
    environment = {name: value for name, value in os.environ.items() if name not in COLOURS}
    # What this program can import, the workers can import, too.
    folders = [entry for entry in sys.path if entry and not Path(entry).is_relative_to(sys.prefix)]
    folders = [entry for entry in folders if Path(entry).is_dir() and not Path(entry).is_relative_to(sys.base_prefix)]
    environment["PYTHONPATH"] = os.pathsep.join(folders)

    return Comparison.read(_measured(arguments, environment, progress))


def _measured(arguments: Sequence[str], environment: Mapping[str, str], progress: bool) -> str:
    """Run the command in a child process and show what it prints; return the folder of the sweep. Raises like :func:`sweep`."""
    line = StatusLine()
    shows_bar = progress and line.can_show()
    folder: str | None = None
    code: int | None = None
    interrupted = False
    child = Child("sweeprof.cli.from_python:run_in_child", [], environment, None)
    try:
        child.send({"arguments": arguments})
        while code is None:
            try:
                message = child.receive()
            except KeyboardInterrupt:  # the child has a session of its own, which Ctrl-C does not reach
                interrupted = True
                child.interrupt()
                continue
            if "problems" in message:
                raise UserError([Problem(**problem) for problem in message["problems"]] or message["text"])
            folder = message.get("folder", folder)
            code = message.get("code")
            if "progress" in message and shows_bar:
                line.show(f"sweeprof: {message['progress']}", message["done"], message["total"])
            elif "text" in message and progress:
                line.write(message["text"])
    except ProcessLost as error:
        if not interrupted:
            raise WorkerError(f"{error}; {_how_to_continue(folder)}") from None
    finally:
        line.remove()
        if code is None:
            child.kill()
        child.close()
    if interrupted or code == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt(_how_to_continue(folder)) from None
    if folder is None:
        raise WorkerError(f"the sweep ended with exit code {code} before it had a folder")
    return folder


def _how_to_continue(folder: str | None) -> str:
    if folder is None:
        return "nothing was measured yet"
    return f"what was measured is kept; continue with sweeprof.sweep(resume={folder!r})"


def _arguments(axes: Mapping[str, object], settings: Mapping[str, object]) -> list[str]:
    """Return the overrides of the command line; raises :class:`UserError` with every problem."""
    problems = []
    arguments = []
    if settings.get("dry_run"):
        words = "it measures nothing, so that there is no comparison; use the command line."
        problems.append(Problem("dry_run", settings["dry_run"], f"cannot be set here: {words}"))
    given = list(axes.items())
    for key, value in settings.items():
        if key in (*GROUPS, *PARTS) and isinstance(value, Mapping):
            given += [(f"{key}.{name}", inner) for name, inner in value.items()]
        else:
            given.append((key, value))
    for place, (key, value) in enumerate(given):
        if place >= len(axes) and key in axes:
            problems.append(Problem(key, value, "is given twice: as an axis and as a setting."))
        if not re.fullmatch(r"[^\s=~-][^\s=]*", str(key)):
            problems.append(Problem("axes", key, "is not a key of the config, such as batch_size or backend.threads."))
            continue
        values = [value]
        if place < len(axes) and isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | type):
            values = list(value)
        if not values:
            problems.append(Problem(key, value, "has no values."))
        arguments.append(_override(key, values, problems))
    if problems:
        raise UserError(problems)
    return arguments


def _override(key: str, values: Sequence[object], problems: list[Problem]) -> str:
    """Return the override that gives a key these values; adds to the problems."""
    plain = []
    for value in values:
        try:
            plain.append(_plain(value))
        except ValueError as error:
            problems.append(Problem(key, value, str(error)))
    if not is_spellable(plain):
        problems.append(Problem(key, plain, "has a mapping with a key that the command line cannot express."))
    if key == "model" and any(map(callable, values)):
        keys = set()
        for value in values:
            bases = getattr(value, "__mro__", ())[1:]
            is_keras = any(base.__module__.partition(".")[0] in KERAS for base in bases)
            keys.add(f"model.{'tensorflow' if is_keras else 'torch'}._target_")
        if len(keys) > 1 or not all(map(callable, values)):
            message = "must be either names of configs, or classes and functions of one framework: make several sweeps."
            problems.append(Problem(key, values, message))
        key = keys.pop()
    return f"{key}={','.join(map(spelled, plain))}"


def _plain(value: Any) -> object:
    """Return a value as a config has it, a class or function by its dotted name; raises ``ValueError`` if it has no such form."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return _dotted_name(value)
    if callable(getattr(value, "item", None)) and getattr(value, "shape", None) == ():  # a number of NumPy
        return _plain(value.item())
    advice = "must be a text, a number, a list or mapping of these, or a class or function of a module."
    if callable(value):
        advice = "is an object, and each worker builds its own: give the class, or a function, and arguments as model.torch.NAME."
    raise ValueError(advice)


def _dotted_name(target: Any) -> str:
    """Return the name by which the workers import a class or a function; raises ``ValueError`` if they cannot."""
    module, name = str(target.__module__), str(target.__qualname__)
    move = "move it to a module, such as my_models.py in this folder, and import it from there."
    if module == "__main__":
        raise ValueError(f"is defined in this notebook or program, from which the workers cannot import it: {move}")
    if "<" in name:
        raise ValueError(f"is defined within a function, from which the workers cannot import it: {move}")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        found = None
    if found != target:
        raise ValueError(
            f"has {name}, which is not what the workers import as {module}.{name}: import it again, or {move}"
        )
    return f"{module}.{name}"


# ----------------------------------------------------------------------------------------------------------------------
# In the child process


class _Sender(io.TextIOBase):
    """A stream whose text is sent to the program."""

    def __init__(self, send: Callable[[Mapping[str, object]], None]) -> None:
        self._send = send

    def write(self, text: str) -> int:
        self._send({"text": text})
        return len(text)


def run_in_child(connection: Connection) -> None:
    """Run the command whose arguments the program sends; answer with what it prints on stderr, its progress and its exit code."""
    from sweeprof.cli.run import run_command
    from sweeprof.run.progress import receivers

    die_with(os.getppid(), signal.SIGTERM)
    request = connection.receive()
    if request is None:
        return
    lock = threading.Lock()

    def send(message: Mapping[str, object]) -> None:
        with lock, suppress(OSError):  # the program is gone; then this process gets SIGTERM, too
            connection.send(message)

    def report(error: SweeprofError | OSError) -> ExitCode:
        problems = error.problems if isinstance(error, UserError) else ()
        # As text and back: a value may be an object that JSON does not have.
        data = json.loads(json.dumps([dataclasses.asdict(problem) for problem in problems], default=str))
        for problem in data:
            for name, value in problem.items():
                if isinstance(value, str):
                    problem[name] = redacted_message(value, "***@")
        send({"problems": data, "text": redacted_message(str(error), "***@")})
        return ExitCode.ERROR

    def tell(message: Mapping[str, object]) -> None:
        if "name" not in message:
            send(message)
        elif message["name"] in ("Not sent", "Running", "Collect"):  # the other lines are in the comparison
            send({"text": f"{message['name']}: {message['value']}\n"})

    receivers.append(tell)
    with redirect_stderr(cast("TextIO", _Sender(send))):
        try:
            code: object = run_command(request["arguments"], report)
        except SystemExit as end:  # of a sweep that is not complete
            code = end.code
    send({"code": code})
