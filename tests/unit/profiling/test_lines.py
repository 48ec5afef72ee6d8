"""Time and memory by line against what the lines are known to do; no framework is used."""

from __future__ import annotations

import builtins
import functools
import inspect
import json.decoder
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import line_profiler
import pytest

import sweeprof
from support.command import run_command as run_in_own_process
from sweeprof.cli.run import run_command
from sweeprof.errors import Problem, Unsupported, UserError
from sweeprof.measuring import line_profile as lines_module
from sweeprof.measuring.line_profile import (
    STEPS,
    WARMUP,
    LineMemory,
    functions_named,
    host_memory,
    line_times,
    metered_memory,
    qualified,
    source_lines,
    watched,
)
from sweeprof.profiling.profile_lines import profiled
from sweeprof.results.observations import Line, Lines

MIB = 1 << 20


@pytest.fixture(autouse=True)
def tracing_is_left_alone() -> Iterator[None]:
    before = sys.gettrace(), sys.getprofile()
    yield
    assert (sys.gettrace(), sys.getprofile()) == before


def by_text(lines: Lines, function: int = 0) -> dict[str, Line]:
    """The lines of a function by what they say."""
    return {line.source.strip(): line for line in lines.functions[function].lines}


def of(*functions: Any) -> list[FunctionType]:
    return list(functions)


def sleeps() -> None:
    time.sleep(0.004)
    for _ in range(3):
        time.sleep(0.004)
    if time is None:
        raise AssertionError


def test_hits_and_shares_are_those_of_the_lines() -> None:
    begin = time.perf_counter()
    seen = watched(of(sleeps), sleeps, lambda *_: LineMemory(reason="not asked for"), "cpu")
    taken = time.perf_counter() - begin
    found = by_text(seen)
    assert {text: line.hits / seen.steps for text, line in found.items()} == {
        "def sleeps() -> None:": 0,
        "for _ in range(3):": 4,
        "time.sleep(0.004)": 3,  # the later of the two
        "if time is None:": 1,
        "raise AssertionError": 0,
    }
    function = seen.functions[0]
    first, second = (line for line in function.lines if "sleep(" in line.source)
    assert first.seconds / function.seconds == pytest.approx(0.25, abs=0.1)
    assert second.seconds / function.seconds == pytest.approx(0.75, abs=0.1)
    assert 0.016 * seen.steps <= function.seconds <= taken
    assert seen.memory_reason == "not asked for"
    assert (first.allocated_bytes, first.peak_bytes) == (None, None)


def test_steps_are_warmed_up_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def step() -> None:
        calls.append(1)

    assert line_times(of(step), step)[1] == STEPS
    assert len(calls) == STEPS + WARMUP
    monkeypatch.setattr(lines_module, "LIMIT_S", 0.0)
    times, steps = line_times(of(step), step)
    assert steps == 1
    assert [hits for hits, _ in times[step.__code__].values()] == [1]


def failing() -> None:
    raise KeyError("no luck")


def works() -> None:
    sum(range(3))


@pytest.mark.slow
def test_functions_and_tracing_are_left_as_they_were() -> None:
    def tracer(*_: Any) -> None: ...

    def profiler(*_: Any) -> None: ...

    steps = iter([works] * WARMUP + [failing])

    def once_it_is_watched() -> None:
        next(steps)()

    code = failing.__code__
    before = sys.gettrace(), sys.getprofile()
    sys.settrace(tracer)
    sys.setprofile(profiler)
    try:
        calls: list[Callable[[], object]] = [
            lambda: line_times(of(failing), once_it_is_watched),
            lambda: host_memory(of(failing), failing),
            lambda: metered_memory(Pool(), of(failing), failing),
        ]
        for call in calls:
            with pytest.raises(KeyError, match="no luck"):
                call()
            assert (sys.gettrace(), sys.getprofile()) == (tracer, profiler)
            assert failing.__code__ is code
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    assert host_memory(of(works), works).reason is None, "the tracker is closed"


def allocates(keep: list[Any]) -> None:
    keep.append(bytearray(4 * MIB))
    bytearray(2 * MIB)
    several = [bytearray(MIB) for _ in range(3)]
    deeper(keep)
    del several
    big = bytearray(16 * MIB)
    del big


def deeper(keep: list[Any]) -> None:
    keep.append(bytearray(8 * MIB))


EXPECTED = {
    # Allocated, and alive beside the largest: what it keeps.
    "keep.append(bytearray(4 * MIB))": (4, 4),
    "bytearray(2 * MIB)": (2, 0),
    "several = [bytearray(MIB) for _ in range(3)]": (3, 0),
    "deeper(keep)": (8, 8),
    "del several": (0, 0),
    "big = bytearray(16 * MIB)": (16, 16),
    "del big": (0, 0),
}


def in_mib(lines: Lines, function: int = 0) -> Any:
    """Of each line that ran the bytes it allocated and what it keeps, about."""
    found = {text: line for text, line in by_text(lines, function).items() if line.hits}
    figures = {text: (line.allocated_bytes or 0, line.peak_bytes or 0) for text, line in found.items()}
    return {
        text: pytest.approx((allocated / MIB, peak / MIB), rel=0.01, abs=0.01)
        for text, (allocated, peak) in figures.items()
    }


def test_memory_of_the_host_is_what_the_lines_allocate() -> None:
    kept: list[Any] = []

    def step() -> None:
        kept.clear()
        allocates(kept)

    seen = watched(of(allocates, deeper), step, host_memory, "cpu")
    assert seen.memory_reason is None
    assert in_mib(seen) == EXPECTED
    assert in_mib(seen, 1) == {"keep.append(bytearray(8 * MIB))": (8, 8)}


def test_a_line_that_recurs_in_one_stack_has_its_bytes_once() -> None:
    seen = watched(of(recursive), lambda: recursive(3, []), host_memory, "cpu")
    assert in_mib(seen) == {
        "keep.append(bytearray(MIB))": (4, 4),
        "if depth:": (0, 0),
        "recursive(depth - 1, keep)": (3, 3),
    }


def recursive(depth: int, keep: list[Any]) -> None:
    keep.append(bytearray(MIB))
    if depth:
        recursive(depth - 1, keep)


class One:
    def same(self) -> bytearray:
        return bytearray(MIB)


class Another:
    def same(self) -> bytearray:
        return bytearray(2 * MIB)


def test_functions_of_one_name_in_one_file_are_told_apart() -> None:
    found = host_memory(of(One.same, Another.same), lambda: (One().same(), Another().same())).allocated
    for function, size in ((One.same, MIB), (Another.same, 2 * MIB)):
        assert found[function.__code__] == {function.__code__.co_firstlineno + 1: pytest.approx(size, rel=0.01)}


@pytest.mark.slow
def test_while_another_tracker_runs_there_is_a_reason(tmp_path: Path) -> None:
    import memray

    with memray.Tracker(tmp_path / "other"):
        seen = watched(of(works), works, host_memory, "cpu")
    assert seen.memory_reason is not None
    assert "No more than one Tracker" in seen.memory_reason
    assert seen.functions[0].is_called
    report = seen.files["lines_memory.txt"].decode()
    assert report.startswith("Memory by line in one step.\n")
    assert "There is nothing about allocations: memray: No more than one Tracker" in report
    assert seen.has_usage


def test_without_the_tools_there_is_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "memray", None)
    assert host_memory(of(works), works).reason == "memray is not installed: pip install 'sweeprof[lines]'"
    seen = watched(of(works), works, host_memory, "cpu")
    assert {(line.allocated_bytes, line.peak_bytes) for line in seen.functions[0].lines} == {(None, None)}
    monkeypatch.setitem(sys.modules, "line_profiler", None)
    with pytest.raises(Unsupported, match=r"line_profiler is not installed: pip install 'sweeprof\[lines\]'"):
        line_times(of(works), works)


IN_A_CHILD = """
import os, sys
from sweeprof.measuring.line_profile import host_memory

def allocates():
    return bytearray(4 << 20)

child = os.fork()
if child == 0:
    found = host_memory([allocates], allocates)
    (size,) = found.allocated[allocates.__code__].values()
    os._exit(0 if found.reason is None and abs(size / (4 << 20) - 1) < 0.01 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_memory_is_measured_in_a_forked_process() -> None:
    subprocess.run([sys.executable, "-c", IN_A_CHILD], check=True, timeout=60)


class Block:
    """Memory of a pool, until nothing refers to it."""

    def __init__(self, pool: Pool, size: int) -> None:
        self.pool = pool
        weakref.finalize(self, pool.release, size)


class Pool:
    """An allocator with the statistics of CUDA's."""

    def __init__(self) -> None:
        self._allocated = self._current = self._peak = 0

    def take(self, size: int) -> Block:
        self._allocated += size
        self._current += size
        self._peak = max(self._peak, self._current)
        return Block(self, size)

    def release(self, size: int) -> None:
        self._current -= size

    def allocated(self) -> int:
        return self._allocated

    def current(self) -> int:
        return self._current

    def peak(self) -> int:
        return self._peak

    def reset_peak(self) -> None:
        self._peak = self._current


def from_pool(pool: Pool, keep: list[Any]) -> None:
    keep.append(pool.take(4))
    pool.take(2)
    several = [pool.take(1) for _ in range(3)]
    inner(pool.take(12).pool, keep)
    del several
    for size in (5, 7, 6):
        last = pool.take(size)
    del last


def inner(pool: Pool, keep: list[Any]) -> None:
    pool.take(10)
    keep.append(pool.take(8))


def metered(functions: Sequence[FunctionType], step: Callable[[], object], pool: Pool) -> list[dict[str, Any]]:
    """Allocated bytes and rise by line, of every function."""
    seen = watched(functions, step, functools.partial(metered_memory, pool), "cuda:0")
    assert seen.device == "cuda:0"
    assert {line.peak_bytes for f in seen.functions for line in f.lines if not line.hits} == {0}
    return [
        {line.source.strip(): (line.allocated_bytes, line.peak_bytes) for line in f.lines if line.hits}
        for f in seen.functions
    ]


def test_a_meter_is_read_at_every_line() -> None:
    pool = Pool()
    outer, within = metered(of(from_pool, inner), lambda: from_pool(pool, []), pool)
    assert outer == {
        "keep.append(pool.take(4))": (4, 4),
        "pool.take(2)": (2, 2),
        "several = [pool.take(1) for _ in range(3)]": (3, 3),
        "inner(pool.take(12).pool, keep)": (30, 12),  # each is released before the next is taken
        "del several": (0, 0),
        "for size in (5, 7, 6):": (0, 0),
        "last = pool.take(size)": (18, 7),  # 7 beside the 5 of the run before; then 6 beside 7
        "del last": (0, 0),
    }
    assert within == {"pool.take(10)": (10, 10), "keep.append(pool.take(8))": (8, 8)}


def yields(pool: Pool) -> Iterator[Block]:
    for size in (1, 2):
        yield pool.take(size)
    raise KeyError("the end")


def consumes(pool: Pool) -> None:
    try:
        for _ in yields(pool):
            pool.take(100)
    except KeyError:
        pool.take(1000)


def test_generators_and_exceptions_end_the_line_that_was_running() -> None:
    pool = Pool()
    generator, consumer = metered(of(yields, consumes), lambda: consumes(pool), pool)
    assert generator["yield pool.take(size)"] == (3, 2)
    assert consumer["for _ in yields(pool):"][0] == 3
    assert consumer["pool.take(100)"] == (200, 100)
    assert consumer["pool.take(1000)"] == (1000, 1000)


# Functions by their names, and their source lines


def problem(name: str, *classes: type) -> Problem:
    with pytest.raises(UserError) as raised:
        functions_named([name], classes)
    (found,) = raised.value.problems
    assert (found.key, found.value) == ("metrics.functions", name)
    return found


def wrapping(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def applied(_: None) -> None: ...


class Odd:
    """Functions in every wrapping."""

    applied = functools.partial(wrapping(applied), None)  # as accelerate replaces a forward

    @wrapping
    @wrapping
    def wrapped(self) -> None: ...

    @staticmethod
    def static() -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    @property
    def property(self) -> None: ...

    @functools.cached_property
    def cached(self) -> None: ...

    @functools.lru_cache  # noqa: B019  # is never called
    def remembered(self) -> None: ...


def test_modules_and_classes_nest() -> None:
    names = ["json.dumps", "json.decoder.JSONDecoder.decode"]
    dumps, decode = functions_named(names)
    assert dumps is json.dumps
    assert decode is json.decoder.JSONDecoder.decode
    assert qualified(decode) == names[1]
    assert functions_named([names[1], "json.JSONDecoder.decode"]) == [decode]


@pytest.mark.parametrize("name", ["applied", "wrapped", "static", "of_class", "property", "cached", "remembered"])
def test_wrappings_are_followed_to_the_code(name: str) -> None:
    (found,) = functions_named([f"Odd.{name}"], [Odd])
    assert found.__code__.co_name == name


def test_a_class_of_the_model_goes_by_its_own_name() -> None:
    class Local:
        def forward(self) -> None: ...

    for name in ("Local.forward", f"{Local.__module__}.{Local.__qualname__}.forward"):
        assert functions_named([name], [Odd, Local, Local]) == [Local.forward]
    assert problem("Local.forwrd", Local).nearest == "Local.forward"
    assert problem("Locall.forward", Local).nearest == "Local.forward"


def test_a_wrong_name_is_told_with_what_comes_nearest() -> None:
    assert str(problem("json.decoder.JSONDecoder.decoded")) == (
        "metrics.functions: 'json.decoder.JSONDecoder.decoded' does not exist: json.decoder.JSONDecoder has no 'decoded'. "
        "Did you mean 'json.decoder.JSONDecoder.decode'?"
    )
    assert problem("json.decodr.JSONDecoder").nearest == "json.decoder"
    for name in ("no_such_package.f", "no_dots", "", ".json.dumps", "json..dumps"):
        assert "is not the dotted name of a function" in problem(name).allowed
    assert problem("json.decoder").allowed == "is a module, not a function."
    assert problem("json.decoder.JSONDecoder").allowed == "is a class, not a function."
    with pytest.raises(UserError) as raised:
        functions_named(["json.dumpt", "json.dumps", "json.JSONDecoder"])
    assert [one.value for one in raised.value.problems] == ["json.dumpt", "json.JSONDecoder"]


def test_a_module_that_cannot_be_imported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaking_module.py").write_text("raise RuntimeError('at import')")
    (tmp_path / "missing_module.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    assert "breaking_module raised RuntimeError: at import" in problem("breaking_module.f").allowed
    assert "No module named 'not_there_at_all'" in problem("missing_module.f").allowed
    with pytest.raises(Unsupported, match=r"math\.sqrt has no source lines to watch: it is a builtin"):
        functions_named(["math.sqrt"])


def test_source_is_that_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class C:\n\t@property\n\tdef p(self):\n\n\t\tif self:\n\t\t\treturn 1\n\n\tafter = 1\n"
    (tmp_path / "with_source.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = functions_named(["with_source.C.p"])
    assert source_lines(found) == {
        2: "@property",
        3: "def p(self):",
        4: "",
        5: " " * 8 + "if self:",
        6: " " * 16 + "return 1",
    }
    sys.modules.pop("with_source")


def test_without_source_there_are_the_lines_that_can_run() -> None:
    scope: dict[str, Any] = {}
    exec(compile("def f(x):\n\n    y = x\n    return y\n", "<nowhere>", "exec"), scope)
    with pytest.raises(OSError, match="source"):
        inspect.getsource(scope["f"])
    assert source_lines(scope["f"]) == {1: "", 3: "", 4: ""}


# Source lines of functions in a program of the user's own: the decorator, and ``sweeprof lines``


@sweeprof.profile_lines
def is_prime(n: int) -> bool:
    """The example of line_profiler's README."""
    max_val = n**0.5
    stop = int(max_val + 1)
    for i in range(2, stop):  # noqa: SIM110  # the lines count
        if n % i == 0:
            return False
    return True


def hits_of(function: Any) -> dict[str, int]:
    return {text.partition("  #")[0]: line.hits for text, line in by_text(function.lines).items() if line.hits}


def test_the_readme_example_of_line_profiler() -> None:
    before = hits_of(is_prime)
    calls = is_prime.calls
    assert [n for n in range(2, 20) if is_prime(n)] == [2, 3, 5, 7, 11, 13, 17, 19]
    # An independent count: the trial divisions of each number.
    divisions = sum(next((i for i in range(2, int(n**0.5 + 1)) if n % i == 0), int(n**0.5)) - 1 for n in range(2, 20))
    after = hits_of(is_prime)
    assert is_prime.calls - calls == 18
    assert after["max_val = n**0.5"] - before.get("max_val = n**0.5", 0) == 18
    assert after["if n % i == 0:"] - before.get("if n % i == 0:", 0) == divisions
    assert after["return True"] - before.get("return True", 0) == 8
    assert is_prime.lines.span == "call"
    assert is_prime.lines.functions[0].seconds > 0
    listing = is_prime.listing
    assert listing.startswith(f"Time by line over {is_prime.calls} calls, measured by line_profiler.")
    assert "if n % i == 0:" in listing
    assert "There is no memory by line: it was not asked for" in listing
    assert "if n % i == 0:" in str(is_prime)
    assert is_prime.__doc__ == "The example of line_profiler's README."


@sweeprof.profile_lines(memory=True)
def my_func() -> list[int]:
    """The example of memory_profiler's README."""
    a = [1] * (10**6)
    b = [2] * (2 * 10**7)
    del b
    return a


@pytest.mark.slow
def test_the_readme_example_of_memory_profiler() -> None:
    assert len(my_func()) == 10**6
    lines = by_text(my_func.lines)
    first, second = lines["a = [1] * (10**6)"], lines["b = [2] * (2 * 10**7)"]
    assert first.allocated_bytes == pytest.approx(8 * 10**6, rel=0.01)
    assert second.allocated_bytes == pytest.approx(16 * 10**7, rel=0.01)
    assert second.peak_bytes == pytest.approx(16 * 10**7, rel=0.01)
    released = lines["del b"]
    assert second.increment_bytes == pytest.approx(16 * 10**7, rel=0.02)
    assert released.increment_bytes == pytest.approx(-16 * 10**7, rel=0.02)
    assert second.usage_bytes is not None
    assert released.usage_bytes == pytest.approx(second.usage_bytes - 16 * 10**7, abs=2**21)
    assert first.hits == 1
    assert first.seconds > 0
    assert "153 MiB" in my_func.listing
    my_func()
    again = by_text(my_func.lines)
    assert again["a = [1] * (10**6)"].allocated_bytes == pytest.approx(16 * 10**6, rel=0.01)
    assert again["b = [2] * (2 * 10**7)"].peak_bytes == pytest.approx(16 * 10**7, rel=0.01)


class Counter:
    def __init__(self) -> None:
        self.count = 0

    @sweeprof.profile_lines
    def add(self, step: int = 1) -> int:
        self.count += step
        return self.count

    @staticmethod
    @sweeprof.profile_lines
    def twice(n: int) -> int:
        return 2 * n

    @sweeprof.profile_lines
    def upto(self, n: int) -> Iterator[int]:
        for i in range(n):  # noqa: UP028  # the lines count
            yield i


def test_methods_and_generators() -> None:
    counter = Counter()
    assert [counter.add(), counter.add(step=2), Counter.twice(4)] == [1, 3, 8]
    assert list(counter.upto(3)) == [0, 1, 2]
    assert hits_of(Counter.add)["self.count += step"] == 2
    assert hits_of(Counter.twice)["return 2 * n"] == 1
    assert hits_of(Counter.upto)["yield i"] == 3


@pytest.mark.slow
def test_recursion_and_errors() -> None:
    @sweeprof.profile_lines(memory=True)
    def factorial(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return 1 if n < 2 else n * factorial(n - 1)

    assert factorial(3) == 6
    with pytest.raises(ValueError, match="negative"):
        factorial(-1)
    assert hits_of(factorial)["if n < 0:"] == 4


def test_memory_of_an_accelerator() -> None:
    """As pytorch_memlab's ``@profile`` shows it, here of an allocator that is simulated."""
    pool = Pool()

    def work() -> None:
        first = pool.take(1024)
        second = pool.take(4096)
        del second
        del first

    watched = profiled(work, pool, "cuda:0", True)
    watched()
    watched()
    found = [(line.hits, line.allocated_bytes, line.peak_bytes) for line in watched.lines.functions[0].lines][1:]
    assert found == [(2, 2048, 1024), (2, 8192, 4096), (2, 0, 0), (2, 0, 0)]
    assert all(line.seconds > 0 for line in watched.lines.functions[0].lines[1:])
    assert watched.lines.device == "cuda:0"
    assert "Memory of cuda:0 by line in 2 calls, read from its allocator." in watched.listing


@pytest.mark.parametrize("thing", [len, Counter, 3])
def test_what_has_no_source_lines(thing: Any) -> None:
    with pytest.raises(UserError, match="is not a Python function, whose source lines could be measured"):
        sweeprof.profile_lines(thing)


# Scripts

MARKED = """
import sys
from line_profiler import profile as marked

@profile
def first(n):
    total = 0
    for i in range(n):
        total += i
    return total

@marked
def second():
    return [0] * 1_000_000

def third():
    return 3

if __name__ == "__main__":
    print("argv", sys.argv[1:], first(int(sys.argv[-1])), len(second()), third())
"""
PLAIN = """
from dataclasses import dataclass

@dataclass
class Net:
    width: int

    @property
    def size(self):
        return self.width * 2

    def run(self, n):
        return sum(self.size for _ in range(n))

def main():
    return Net(3).run(10)

assert __name__ == "__main__"
print("result", main())
raise SystemExit(3)
"""


@pytest.fixture
def lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``sweeprof lines`` of a program, with arguments among which SCRIPT is its file: exit code, output and errors."""

    def run(program: str, *arguments: str) -> tuple[int, str, str]:
        path = tmp_path / "script.py"
        path.write_text(program, encoding="utf-8")
        code = run_command(["lines", *(str(path) if word == "SCRIPT" else word for word in arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.mark.slow
def test_the_functions_that_a_script_marks(lines: Any) -> None:
    before = sys.argv, sys.modules["__main__"], list(sys.path), line_profiler.profile
    code, out, _ = lines(MARKED, "--memory", "SCRIPT", "--verbose", "100")
    assert code == 0
    assert out.startswith("argv ['--verbose', '100'] 4950 1000000 3\n")
    time, _, memory = out.partition("Memory by line in 1 run, measured by memray")
    assert "__main__.first" in time
    assert "__main__.second" in time
    assert "third" not in time
    row = next(line.split() for line in time.splitlines() if line.endswith("total += i"))
    assert row[:2] == ["9", "100"]
    assert "7.63 MiB" in next(line for line in memory.splitlines() if "1_000_000" in line)
    assert (sys.argv, sys.modules["__main__"], sys.path, line_profiler.profile) == before
    assert not hasattr(builtins, "profile")


ARRAYS = """
import memory_profiler
import numpy as np
from memory_profiler import profile as measured

@measured(precision=4)
def outer():
    kept = np.ones(64 * 2**20 // 8)
    for _ in range(3):
        inner()
    return kept

@memory_profiler.profile
def inner():
    a = np.ones(48 * 2**20 // 8)
    b = a + 1
    del a
    return float(b[0])

def unmarked():
    return 1

outer()
unmarked()
"""


@pytest.mark.slow
def test_a_script_of_memory_profiler(tmp_path: Path) -> None:
    """The sizes of NumPy's arrays are known; the function that another one calls has figures of its own.

    In a process of its own, in which no other test has left memory that the arrays could take.
    """
    (tmp_path / "script.py").write_text(ARRAYS)
    ran = run_in_own_process(tmp_path, "lines", "script.py")
    assert ran.code == 0, ran.err
    memory = ran.out.partition("Memory by line in 1 run")[2]
    assert "unmarked" not in memory.partition("__main__")[2].replace("unmarked()", "")
    found: dict[str, Any] = {}
    for line in memory.splitlines():
        cells = line.split()
        if len(cells) > 6 and cells[0].isdigit():
            found[line.partition("  B ")[2] or " ".join(cells[9:])] = (float(cells[3]), cells[4])
    assert found["kept = np.ones(64 * 2**20 // 8)"] == (pytest.approx(64, abs=1), "MiB")
    assert found["a = np.ones(48 * 2**20 // 8)"] == (pytest.approx(3 * 48, abs=2), "MiB")
    assert found["del a"] == (pytest.approx(-3 * 48, abs=2), "MiB")


def test_what_a_script_imports_of_a_profiler_that_is_not_installed(lines: Any) -> None:
    code, _, err = lines("from memory_profiler import memory_usage\n", "SCRIPT")
    assert code == 1
    assert "memory_profiler is not installed: `sweeprof lines` has its decorator" in err
    assert "memory_profiler" not in sys.modules


def test_all_functions_of_a_script_without_marks(lines: Any, tmp_path: Path) -> None:
    output = tmp_path / "lines.txt"
    assert lines(PLAIN, "--output", str(output), "SCRIPT")[:2] == (3, "result 60\n")
    text = output.read_text(encoding="utf-8")
    functions = [line for line in text.splitlines() if line.startswith("__main__.")]
    assert functions == ["__main__.Net.size", "__main__.Net.run", "__main__.main"]
    row = next(line.split() for line in text.splitlines() if "self.width * 2" in line)
    assert row[:2] == ["10", "10"]
    code, out, _ = lines(PLAIN, "--function", "main", "SCRIPT")
    assert code == 3
    assert "__main__.main" in out
    assert "Net.run\n" not in out


def test_a_module_and_a_script_that_raises(lines: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_program.py").write_text(MARKED, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = lines("", "-m", "my_program", "7")
    assert code == 0
    assert out.startswith("argv ['7'] 21")
    code, out, err = lines("def f():\n    raise ValueError('no')\nf()\n", "SCRIPT")
    assert code == 1
    assert "ValueError: no" in err
    assert "raise ValueError('no')" in out


@pytest.mark.parametrize(
    ("arguments", "program", "message"),
    [
        (["missing.py"], PLAIN, "script: 'missing.py' is not a file."),
        (["-m", "no_such_module"], PLAIN, "module: 'no_such_module' is not a module with Python source."),
        (["--function", "mian", "SCRIPT"], PLAIN, "Did you mean 'main'?"),
        (["--device", "xpu", "SCRIPT"], PLAIN, "this host has no device 'xpu'"),
        (["SCRIPT"], "a = 1\ndef f(:\n    pass\n", "script.py:2' cannot be read"),
    ],
)
def test_mistakes_of_the_command(arguments: list[str], program: str, message: str, lines: Any) -> None:
    code, out, err = lines(program, *arguments)
    assert (code, out) == (1, "")
    assert message in err
