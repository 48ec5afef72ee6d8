"""The commands of sweeprof: in a process of their own, or in this one, which has imported what they need."""

from __future__ import annotations

import json
import logging
import logging.config
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from unittest.mock import patch

import hydra
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from sweeprof.cli.common import COMMANDS
from sweeprof.cli.run import run_command as run_subcommand

T = TypeVar("T")
FAKE = ("model=fake", "backend=fake", "dataset=synthetic", "tracking=none")
"""Combinations of the fake model; fixed times, and nothing is sent."""
NOTING = """
import json
from sweeprof.tracking import Links, Tracker

class Noting(Tracker):
    def __init__(self, uri=None, **_):
        self.uri = uri

    def open(self, sweep):
        return Links(False, str(self.uri))

    def close(self, comparison, records, folder, ending):
        (folder / "noted.json").write_text(json.dumps([self.uri, ending]))
        return self.open(None)
"""
"""A tracker that needs no MLflow, whose import and database take seconds."""
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PYTHONWARNINGS": "error::UserWarning:sweeprof",
    "MPLCONFIGDIR": str(Path.home() / ".cache" / "matplotlib"),  # its list of fonts, which takes long to make
}


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str
    cwd: Path

    def folder(self, name: str) -> Path:
        """The folder of the only sweep of that name."""
        return folder_of(self.cwd, name)

    def rows(self, name: str = "adhoc") -> list[dict[str, Any]]:
        """The rows of the comparison of the only sweep of that name, which ended well."""
        assert self.code == 0, self.out + self.err
        rows: list[dict[str, Any]] = json.loads((self.folder(name) / "comparison.json").read_text())["rows"]
        return rows


def values_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the metrics in a row of a comparison."""
    return {name: cell["measurement"]["value"] for name, cell in row["cells"].items()}


Command = Callable[..., Ran]


def folder_of(cwd: Path, name: str = "adhoc") -> Path:
    """The folder of the only sweep of that name in ``cwd``."""
    (found,) = (cwd / "outputs" / name).iterdir()
    return found


def environment(home: Path) -> dict[str, str]:
    """A clean environment: nothing of the developer's home reaches the command."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "HYDRA_", "SWEEPROF_"))}
    return {**kept, **QUIET, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}


def command(cwd: Path, *arguments: str) -> list[str]:
    """``python -m sweeprof ARGUMENTS``."""
    return [sys.executable, "-m", "sweeprof", *_with_locks(cwd, arguments)]


def lock_folder(cwd: Path) -> Path:
    """The host locks of sweeps in ``cwd``; beside it, as what is in it belongs to the user's code."""
    return cwd.with_name(f"{cwd.name}-locks")


def _with_locks(cwd: Path, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Add host locks of its own to a new sweep: no test depends on exact times, and none waits for the sweeps of others."""
    is_sweep = any("=" in argument for argument in arguments) and {"-sc", *COMMANDS}.isdisjoint(arguments)
    if not is_sweep or any(argument.startswith(("limits.locks=", "resume=")) for argument in arguments):
        return arguments
    return (*arguments, f"limits.locks={lock_folder(cwd)}")


def run_command(cwd: Path, *arguments: str, timeout: float = 280) -> Ran:
    """The command in ``cwd``, to its end."""
    done = subprocess.run(
        command(cwd, *arguments),
        cwd=cwd,
        env=environment(cwd),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr, cwd)


def start_command(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command, running."""
    return subprocess.Popen(
        command(cwd, *arguments),
        cwd=cwd,
        env=environment(cwd),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def running_command(cwd: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, running, and ended whatever happens: it would hold up every other sweep of this host."""
    with start_command(cwd, *arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition: Callable[[], T], process: subprocess.Popen[str], seconds: float = 120) -> T:
    """Wait until the condition gives something, which is returned, while the command runs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"did not happen; the command said {process.communicate()}")


def call_command(cwd: Path, *arguments: str) -> Ran:
    """``python -m sweeprof ARGUMENTS`` in this process; its trials have processes of their own, as always."""
    return call_module(cwd, "sweeprof", *_with_locks(cwd, arguments))


def call_module(cwd: Path, module: str, *arguments: str) -> Ran:
    """``python -m MODULE ARGUMENTS`` in this process, to its end."""
    out, err, code = StringIO(), StringIO(), 0
    # It would end this process.
    not_ended = patch("sweeprof.processes.end_process", sys.exit)
    with not_ended, _state_restored(cwd, module, arguments), redirect_stdout(out), redirect_stderr(err):
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as ending:
            code = int(ending.code or 0)
    return Ran(code, out.getvalue(), err.getvalue(), cwd)


@contextmanager
def _mode_known() -> Iterator[None]:
    """Hydra 1.3 composes the config once more only to read ``hydra.mode``, which conf/config.yaml sets: a third of the time."""
    composed = Hydra.get_mode

    def mode(self: Hydra, config_name: str | None, overrides: list[str]) -> object:
        if any("hydra.mode" in override for override in overrides):
            return composed(self, config_name, overrides)
        return RunMode.MULTIRUN

    with patch.object(Hydra, "get_mode", mode) if hydra.__version__.startswith("1.3.") else nullcontext():
        yield


def _is_below(folder: Path, module: ModuleType) -> bool:
    return str(getattr(module, "__file__", None)).startswith(f"{folder}/")


@contextmanager
def _state_restored(cwd: Path, module: str, arguments: tuple[str, ...]) -> Iterator[None]:
    """Give a command the state of a new process, and restore afterwards what it changes."""
    handlers, level, factory = list(logging.root.handlers), logging.root.level, logging.getLogRecordFactory()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signals = [signal.getsignal(number) for number in numbers]
    before = Path.cwd()
    # runpy refuses to run what is imported already.
    name = f"{module}.__main__" if hasattr(sys.modules.get(module), "__path__") else module
    imported = sys.modules.pop(name, None)
    os.chdir(cwd)
    try:
        with (
            patch.dict(os.environ, environment(cwd), clear=True),
            patch.object(sys, "argv", [module, *arguments]),
            patch.object(sys, "path", [str(cwd), *sys.path]),
            # Hydra would disable the loggers of later tests, and close absl's handler and with it pytest's captured stderr.
            # What it calls is patched, for it imports the modules of its launchers anew.
            patch.object(logging.config.DictConfigurator, "configure"),
            _mode_known(),
        ):
            yield
    finally:
        os.chdir(before)
        GlobalHydra.instance().clear()
        if imported is not None:
            sys.modules[name] = imported
        for own in [name for name, found in sys.modules.items() if _is_below(cwd, found)]:
            del sys.modules[own]
        for number, handler in zip(numbers, signals, strict=True):
            signal.signal(number, handler)
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
        logging.setLogRecordFactory(factory)


def subcommand(name: str) -> Callable[[Sequence[str]], int]:
    """Return a function that runs ``sweeprof NAME ARGUMENTS`` in this process and returns the exit code."""
    return lambda arguments: run_subcommand([name, *arguments])
