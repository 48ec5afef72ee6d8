"""Source lines of functions in a program of the user's own: the decorator, and ``sweeprof lines``."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import line_profiler
import pytest

import sweeprof
from support.command import run_command as run_in_process
from sweeprof.cli.run import run_command
from sweeprof.errors import UserError
from sweeprof.profiling.profile_lines import profiled


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
    (found,) = function.lines.functions
    return {line.source.strip().partition("  #")[0]: line.hits for line in found.lines if line.hits}


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


def test_the_readme_example_of_memory_profiler() -> None:
    assert len(my_func()) == 10**6
    lines = {line.source.strip(): line for line in my_func.lines.functions[0].lines}
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
    again = {line.source.strip(): line for line in my_func.lines.functions[0].lines}
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


def test_recursion_and_errors() -> None:
    @sweeprof.profile_lines(memory=True)
    def factorial(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return 1 if n < 2 else n * factorial(n - 1)

    assert factorial(5) == 120
    with pytest.raises(ValueError, match="negative"):
        factorial(-1)
    assert hits_of(factorial)["if n < 0:"] == 6


class Pool:
    """An allocator with the statistics of an accelerator's."""

    def __init__(self) -> None:
        self.ever = self.now = self.highest = 0

    def take(self, size: int) -> None:
        self.ever += max(0, size)
        self.now += size
        self.highest = max(self.highest, self.now)

    def allocated(self) -> int:
        return self.ever

    def current(self) -> int:
        return self.now

    def peak(self) -> int:
        return self.highest

    def reset_peak(self) -> None:
        self.highest = self.now


def test_memory_of_an_accelerator() -> None:
    """As pytorch_memlab's ``@profile`` shows it, here of an allocator that is simulated."""
    pool = Pool()

    def work() -> None:
        pool.take(1024)
        pool.take(4096)
        pool.take(-4096)
        pool.take(-1024)

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


def test_an_accelerator_that_is_not_there() -> None:
    with pytest.raises(sweeprof.Unsupported, match=r"this host has no device 'xpu'\. Known: no accelerator"):
        sweeprof.profile_lines(memory="xpu")(len)


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
def script(tmp_path: Path) -> Callable[[str], str]:
    def written(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return written


def test_the_functions_that_a_script_marks(script: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.argv, sys.modules["__main__"], list(sys.path), line_profiler.profile
    assert run_command(["lines", "--memory", script(MARKED), "--verbose", "100"]) == 0
    out = capsys.readouterr().out
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
{imported}
import numpy as np

@{decorator}
def outer():
    kept = np.ones(64 * 2**20 // 8)
    for _ in range(3):
        inner()
    return kept

@{decorator}
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
DECORATORS = [
    ("from memory_profiler import profile", "profile"),
    ("from memory_profiler import profile as measured", "measured(precision=4)"),
    ("import memory_profiler", "memory_profiler.profile"),
]


@pytest.mark.parametrize(("imported", "decorator"), DECORATORS)
def test_a_script_of_memory_profiler(
    imported: str, decorator: str, script: Callable[[str], str], tmp_path: Path
) -> None:
    """The sizes of NumPy's arrays are known; the function that another one calls has figures of its own.

    In a process of its own, in which no other test has left memory that the arrays could take.
    """
    ran = run_in_process(tmp_path, "lines", script(ARRAYS.format(imported=imported, decorator=decorator)))
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


def test_a_profiler_that_lies_beside_the_script_is_found(
    script: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "memory_profiler.py").write_text(
        "LOCAL = 'of the script'\ndef profile(function):\n    return function\n"
    )
    text = "from memory_profiler import LOCAL, profile\n@profile\ndef work():\n    return LOCAL\nprint(work())\n"
    try:
        assert run_command(["lines", script(text)]) == 0
    finally:
        sys.modules.pop("memory_profiler", None)
    assert "of the script" in capsys.readouterr().out


def test_what_a_script_imports_of_a_profiler_that_is_not_installed(
    script: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["lines", script("from memory_profiler import memory_usage\n")]) == 1
    assert "memory_profiler is not installed: `sweeprof lines` has its decorator" in capsys.readouterr().err
    assert "memory_profiler" not in sys.modules


def test_all_functions_of_a_script_without_marks(
    script: Callable[[str], str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "lines.txt"
    assert run_command(["lines", "--output", str(output), script(PLAIN)]) == 3
    assert capsys.readouterr().out == "result 60\n"
    text = output.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line.startswith("__main__.")] == [
        "__main__.Net.size",
        "__main__.Net.run",
        "__main__.main",
    ]
    row = next(line.split() for line in text.splitlines() if "self.width * 2" in line)
    assert row[:2] == ["10", "10"]
    assert run_command(["lines", "--function", "main", script(PLAIN)]) == 3
    out = capsys.readouterr().out
    assert "__main__.main" in out
    assert "Net.run\n" not in out


def test_a_module_and_a_script_that_raises(
    script: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "my_program.py").write_text(MARKED, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run_command(["lines", "-m", "my_program", "7"]) == 0
    assert capsys.readouterr().out.startswith("argv ['7'] 21")
    assert run_command(["lines", script("def f():\n    raise ValueError('no')\nf()\n")]) == 1
    captured = capsys.readouterr()
    assert "ValueError: no" in captured.err
    assert "raise ValueError('no')" in captured.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "script: 'missing.py' is not a file."),
        (["-m", "no_such_module"], "module: 'no_such_module' is not a module with Python source."),
        (["--function", "mian", "SCRIPT"], "Did you mean 'main'?"),
        (["--device", "xpu", "SCRIPT"], "this host has no device 'xpu'"),
    ],
)
def test_mistakes(
    arguments: list[str], message: str, script: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(PLAIN)
    assert run_command(["lines", *(path if one == "SCRIPT" else one for one in arguments)]) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_script_that_is_not_python(script: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["lines", script("a = 1\ndef f(:\n    pass\n")]) == 1
    assert "script.py:2' cannot be read" in capsys.readouterr().err
