"""What benchmarks share: silence, the processor time of a call, packages that may be missing, sweeps through the real command."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import torch

from support.command import Ran, run_command


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what others print, and without warnings."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def is_importable(module: str) -> bool:
    """Whether it is installed, and not broken by what is installed beside it."""
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    try:
        with quiet():
            import_module(module)
    except Exception:
        return False
    return True


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """In which torch computes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def processor_s(run: Callable[[], object]) -> float:
    """Processor time, which other programs disturb less than they do a clock; everything runs in one thread."""
    gc.collect()
    return lasting(run, time.process_time)


def lasting(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call."""
    begin = clock()
    run()
    return clock() - begin


def in_turns(turns: int, **ways: Callable[[], object]) -> dict[str, float]:
    """The median processor time of each way to do something, which take turns."""
    times = [{name: processor_s(run) for name, run in ways.items()} for _ in range(turns)]
    return {name: statistics.median(turn[name] for turn in times) for name in ways}


def swept(folder: Path, *arguments: str, timeout: float = 3600) -> Ran:
    """A sweep that ended well, in a folder of its own; its processes find the modules of the tests."""
    folder.mkdir(parents=True, exist_ok=True)
    given = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), given])
    try:
        ran = run_command(folder, *arguments, timeout=timeout)
    finally:
        os.environ["PYTHONPATH"] = given
    assert ran.code == 0, ran.err
    return ran
