"""Operators that a forward runs in other threads: torch's modes, and its profiler, belong to a thread.

Threads that are started, and functions that pools of threads get, are wrapped. What a thread that is older does on its own is seen
by its processor time only, and then looked up in a profile of all threads.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.dummy import DummyProcess
from multiprocessing.pool import ThreadPool
from threading import Thread
from typing import Any, TypeVar

import torch

from sweeprof.backends.torch.private import (
    OpOverload,
    ProfilerSettings,
    TorchDispatchMode,
    is_profiler_enabled,
)
from sweeprof.counting.formulas import Args, Kwargs
from sweeprof.errors import Unsupported

Function = Callable[..., Any]
T = TypeVar("T")

IN_OTHER_THREADS = "the model runs operators in other threads, which {} cannot follow"
_POOLS = ("concurrent.futures.thread", "multiprocessing.pool")
"""The modules whose threads run what others give them: that is followed, and not the threads, which stay."""
_TASKS: tuple[tuple[type, str], ...] = (
    (ThreadPoolExecutor, "submit"),
    (ThreadPool, "apply_async"),
    (ThreadPool, "_map_async"),
    (ThreadPool, "imap"),
    (ThreadPool, "imap_unordered"),
)
"""Methods whose first argument runs in the threads of a pool."""
FOLLOWED = "sweeprof: followed"
"""The name of the part of a profile in which a thread's operators are seen."""
_OWN_THREADS = "sweeprof-"


class UnseenOperators(Unsupported):
    """A model runs operators where they are not seen."""


@contextmanager
def tasks_wrapped(wrap: Callable[[Function], Function]) -> Iterator[None]:
    """Within it, what is given to another thread is what ``wrap`` makes of it; it is called in the thread that gives it."""
    start_thread, before = Thread.start, [vars(kind).get(name) for kind, name in _TASKS]

    def start(thread: Any) -> None:
        target = getattr(thread, "_target", None)
        if not isinstance(thread, DummyProcess) and getattr(target, "__module__", None) not in _POOLS:
            thread.run = wrap(thread.run)
        start_thread(thread)

    def giving(method: Function) -> Function:
        def give(pool: Any, function: Function, /, *args: Any, **kwargs: Any) -> Any:
            return method(pool, wrap(function), *args, **kwargs)

        return give

    try:
        setattr(Thread, "start", start)  # noqa: B010  # a method is not assigned to
        for kind, name in _TASKS:
            setattr(kind, name, giving(getattr(kind, name)))
        yield
    finally:
        setattr(Thread, "start", start_thread)  # noqa: B010
        for (kind, name), method in zip(_TASKS, before, strict=True):
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which nothing is compiled; to be wrapped for that would import the compiler, two seconds in every process."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class InThread(DispatchMode):
    """Hands the operators of another thread on; a mode of its own, as a mode remembers what it was entered within."""

    def __init__(self, dispatch: Callable[[OpOverload, Args, Kwargs], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dispatch = dispatch

    def __torch_dispatch__(self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        return self._dispatch(func, args, kwargs or {})


def seen_whole(what: str, run: Callable[[], T]) -> T:
    """Return what ``run`` returns, if no operator ran where it is not seen: in a thread from before, in no call that is followed.

    Where such a thread has done anything, ``run`` is called again, in a profile of all threads.

    Args:
        what: cannot see such operators.

    Raises:
        UnseenOperators: some ran there, or the installed torch cannot tell.
    """
    before = _processor_times()
    result = run()
    woken = _woken(before)
    if not woken:
        return result
    if is_profiler_enabled():
        raise UnseenOperators(
            f"{IN_OTHER_THREADS.format(what)}, or may do so: only torch's profiler tells, which is in use"
        )
    try:
        settings = ProfilerSettings(profile_all_threads=True)
    except TypeError:
        reason = f"{IN_OTHER_THREADS.format(what)}, or may do so: torch {torch.__version__} cannot profile all threads"
        raise UnseenOperators(reason) from None
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=settings
    ) as profiler:
        result = run()
    unseen = _unseen(profiler.profiler.kineto_results.events(), {thread.native_id for thread in woken})
    if unseen:
        names = ", ".join(f"{name} ×{calls}" for name, calls in sorted(unseen.items()))
        raise UnseenOperators(f"{IN_OTHER_THREADS.format(what)}: {names} in a thread that was started before")
    return result


def _processor_times() -> dict[threading.Thread, int]:
    """The processor time of every other thread that Python started, in nanoseconds; 0 where the system does not tell."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    times = {}
    for thread in threading.enumerate():
        is_pythons = not isinstance(thread, threading._DummyThread)  # such a one may have ended
        if thread is threading.current_thread() or not is_pythons or thread.name.startswith(_OWN_THREADS):
            continue
        times[thread] = 0 if clock_of is None else time.clock_gettime_ns(clock_of(thread.ident))
    return times


def _woken(before: dict[threading.Thread, int]) -> set[threading.Thread]:
    """The threads of ``before`` that have used the processor since."""
    now = _processor_times()
    return {thread for thread, used in before.items() if now.get(thread) != used or now[thread] == 0}


def _unseen(events: Collection[Any], threads: Collection[int | None]) -> Counter[str]:
    """The outermost operators that some threads ran outside of the parts in which they are followed."""
    unseen: Counter[str] = Counter()
    ends: dict[int, int] = {}
    for event in sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns())):
        thread = event.device_resource_id()
        if thread not in threads or event.start_ns() < ends.get(thread, 0):
            continue
        ends[thread] = event.start_ns() + event.duration_ns()
        if event.name() != FOLLOWED:
            unseen[event.name()] += 1
    return unseen


@contextmanager
def in_one_thread(what: str, step: Callable[[], object]) -> Iterator[None]:
    """Within it, a model is to run its operators in the thread that calls it.

    Args:
        what: cannot see operators of other threads.
        step: is called once more at the end, if a thread from before has done anything.

    Raises:
        UnseenOperators: at the end, if it ran some in others.
    """
    ran_in_others = False
    before = _processor_times()

    def note(func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        nonlocal ran_in_others
        ran_in_others = True
        return func(*args, **kwargs)

    def noted(function: Function) -> Function:
        def run(*args: Any, **kwargs: Any) -> Any:
            with InThread(note):
                return function(*args, **kwargs)

        return run

    with tasks_wrapped(noted):
        yield
    if ran_in_others:
        raise UnseenOperators(IN_OTHER_THREADS.format(what))
    if _woken(before):
        seen_whole(what, step)
