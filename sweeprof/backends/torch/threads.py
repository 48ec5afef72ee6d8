"""Operators that a forward runs in other threads: torch's modes, and its profiler, belong to a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.dummy import DummyProcess
from multiprocessing.pool import ThreadPool
from threading import Thread
from typing import Any

from sweeprof.backends.torch.private import OpOverload, TorchDispatchMode
from sweeprof.counting.formulas import Args, Kwargs
from sweeprof.errors import Unsupported

Function = Callable[..., Any]

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


@contextmanager
def in_one_thread(what: str) -> Iterator[None]:
    """Within it, a model is to run its operators in the thread that calls it.

    Args:
        what: cannot see operators of other threads.

    Raises:
        Unsupported: at the end, if it ran some in others.
    """
    ran_in_others = False

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
        raise Unsupported(IN_OTHER_THREADS.format(what))
