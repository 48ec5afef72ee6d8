"""The progress of a profiler and the log of the library."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import sweeprof
from sweeprof.passes.registry import PassResult

QUICK = sweeprof.Protocol(min_s=0.01, warmup_s=0.01, min_samples=3)
NAMES = ["latency/forward", "layers/slowest_self_s", "compute/macs"]


class Terminal(io.StringIO):
    """A stream that notes whether a pass was running when it was written to."""

    is_running = False
    written_within = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written_within += self.is_running
        return super().write(text)


def profiler_with(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, progress: bool | None = None
) -> sweeprof.Profiler:
    profiler = sweeprof.Profiler(nn.Linear(4, 2), inputs=torch.zeros(1, 4), protocol=QUICK, progress=progress)
    run = type(profiler.session).run

    def noted(session: sweeprof.passes.registry.Session, pass_name: str) -> PassResult:
        terminal.is_running = True
        try:
            return run(session, pass_name)
        finally:
            terminal.is_running = False

    monkeypatch.setattr(type(profiler.session), "run", noted)
    monkeypatch.setattr(sys, "stderr", terminal)
    return profiler


def test_a_terminal_shows_which_pass_runs_between_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    profiler_with(terminal, monkeypatch).compute_all(NAMES)
    shown = [line.partition(",")[0] for line in terminal.getvalue().split("\r\x1b[2K")]
    assert shown == ["", "sweeprof: analysis", "sweeprof: timing", "sweeprof: layer_times", ""]
    assert "timing, pass 2 of 3" in terminal.getvalue()
    assert terminal.written_within == 0


def test_a_pass_that_fails_leaves_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    profiler = profiler_with(terminal, monkeypatch)
    profiler.session.arguments = sweeprof.Inputs((torch.zeros(1, 3),))  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        profiler.compute("latency/forward")
    assert terminal.getvalue().endswith("\r\x1b[2K")


def test_it_can_be_switched_off_and_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    profiler_with(terminal, monkeypatch).compute_all("static")
    assert terminal.getvalue().replace("\r\x1b[2K", "") == "", "counting alone shows nothing"
    monkeypatch.undo()
    terminal = Terminal()
    profiler = profiler_with(terminal, monkeypatch, progress=False)
    profiler.compute("latency/forward")
    profiler.clone().compute("latency/forward", recompute=True)
    assert terminal.getvalue() == ""
    monkeypatch.undo()
    model, x = nn.Linear(4, 2), torch.zeros(1, 4)
    sweeprof.profile(model, x, ["latency/forward"], protocol=QUICK)
    assert capsys.readouterr().err == ""  # what is no terminal stays empty
    sweeprof.profile(model, x, ["latency/forward", "compute/macs"], protocol=QUICK, progress=True)
    assert capsys.readouterr().err == "sweeprof: analysis, pass 1 of 2\nsweeprof: timing, pass 2 of 2\n"


def test_a_bar_shows_how_many_passes_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    profiler_with(terminal, monkeypatch).compute_all([*NAMES, "memory/alloc_peak_bytes"])
    bars = [line.partition("[")[2].rstrip("]") for line in terminal.getvalue().split("\r\x1b[2K")[1:-1]]
    assert [bar.count("█") for bar in bars] == [0, 5, 10, 15]
    assert {len(bar) for bar in bars} == {20}


def test_a_verbose_call_prints_what_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = nn.Linear(4, 2), torch.zeros(1, 4)
    sweeprof.profile(model, x, ["latency/forward", "compute/macs"], protocol=QUICK, verbose=True)
    printed = capsys.readouterr().err.splitlines()
    # Without warnings about the result, which depend on what else the machine does.
    lines = [line.partition(" took ")[0] for line in printed if ": timing: " not in line]
    assert lines == [
        "sweeprof: analysis, pass 1 of 2",
        "sweeprof: analysis",
        "sweeprof: timing, pass 2 of 2",
        "sweeprof: timing",
    ]


def test_a_verbose_call_repeats_nothing_that_the_program_shows(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "sweeprof"):
        sweeprof.profile(nn.Linear(4, 2), torch.zeros(1, 4), ["compute/macs"], verbose=True)
    assert len(caplog.records) == 2
    assert capsys.readouterr().err == ""


@pytest.fixture
def _logger_restored() -> Iterator[None]:
    yield
    sweeprof.set_logger()


@pytest.mark.usefixtures("_logger_restored")
def test_the_logger_can_be_replaced(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    def profiled() -> list[tuple[str, str]]:
        caplog.clear()
        sweeprof.profile(nn.Linear(4, 2), torch.zeros(1, 4), ["compute/macs"])
        logging.getLogger("sweeprof.part").warning("seen")
        return [(record.name, record.getMessage().partition(" took")[0]) for record in caplog.records]

    mine = logging.getLogger("my_package.profiling")
    with caplog.at_level(logging.INFO, mine.name):
        sweeprof.set_logger(mine)
        assert profiled() == [(mine.name, message) for message in ("analysis", "analysis", "seen")]
        sweeprof.set_logger(logging.LoggerAdapter(mine, {"job": 7}))
        assert profiled()[-1] == (mine.name, "seen")
        assert caplog.records[-1].job == 7  # type: ignore[attr-defined]
    with caplog.at_level(logging.ERROR, mine.name):  # its level counts
        assert profiled() == []
        sweeprof.profile(nn.Linear(4, 2), torch.zeros(1, 4), ["compute/macs"], verbose=True)
        assert capsys.readouterr().err.startswith("sweeprof: analysis\n")
    sweeprof.set_logger()
    assert profiled() == [("sweeprof.part", "seen")]
    with pytest.raises(ValueError, match="would send them to it again"):
        sweeprof.set_logger(logging.getLogger("sweeprof.mine"))
    with caplog.at_level(logging.INFO, "sweeprof"):
        sweeprof.set_logger(mine)
        sweeprof.set_logger(logging.getLogger("sweeprof"))
        assert len(profiled()) == 3
    with pytest.raises(TypeError, match="'loud' is not a logger"):
        sweeprof.set_logger("loud")  # type: ignore[arg-type]


def test_nothing_is_logged_to_stderr_unless_the_program_wants_it() -> None:
    program = "import logging, sweeprof; logging.getLogger('sweeprof.part').warning('seen')"
    library = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert library.stderr == ""
    guarded = f"from sweeprof.text import guard_output; guard_output(); {program}"
    command = subprocess.run([sys.executable, "-c", guarded], capture_output=True, text=True, check=True)
    assert command.stderr == "seen\n"
