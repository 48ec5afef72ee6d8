"""The two texts, character for character."""

from __future__ import annotations

from dataclasses import replace

from sweeprof.report.operators import memory_report, reports, time_report
from sweeprof.results.observations import FunctionLines, Line, Lines

FORWARD = FunctionLines(
    "net.Net.forward",
    "/net.py",
    7,
    (
        Line(7, "def forward(self, x):", 0, 0.0, 0, 0),
        Line(8, "    y = self.conv(x)", 1200, 0.003, 4 << 20, 1 << 20),
        Line(9, "", 0, 0.0, 0, 0),
        Line(10, "    return y", 1200, 0.001, 0, 0),
    ),
)
NEVER = FunctionLines("net.Net.other", "/net.py", 12, (Line(12, "def other(self): ...", 0, 0.0, 0, 0),))
LINES = Lines((FORWARD, NEVER), steps=2)


def below(report: str) -> str:
    """Without the introduction."""
    return report.partition("\n\n\n")[2]


def test_time_is_aligned_beside_the_source() -> None:
    assert (
        below(time_report(LINES))
        == """\
net.Net.forward
/net.py:7
4.00 ms in total, 2.00 ms per step

line   hits     time  per hit  share  source
   7                                  def forward(self, x):
   8  1,200  3.00 ms  2.50 µs  75.0%      y = self.conv(x)
   9
  10  1,200  1.00 ms   833 ns  25.0%      return y


net.Net.other
/net.py:12
It was not called.
"""
    )


def test_memory_is_aligned_beside_the_source() -> None:
    assert (
        below(memory_report(replace(LINES, functions=(FORWARD,))))
        == """\
net.Net.forward
/net.py:7

line  allocated   at peak  source
   7                       def forward(self, x):
   8   4.00 MiB  1.00 MiB      y = self.conv(x)
   9
  10        0 B       0 B      return y
"""
    )


def test_the_introduction_says_what_is_measured_and_how() -> None:
    assert time_report(LINES).startswith("Time by line over 2 steps, measured by line_profiler.\n")
    assert time_report(replace(LINES, steps=1)).startswith("Time by line over 1 step, ")
    assert "cuda:0" not in time_report(LINES)
    assert "memray" in memory_report(LINES).partition("\n")[0]
    on_cuda = replace(LINES, device="cuda:0")
    assert "the host's time: cuda:0 may still be at work" in time_report(on_cuda)
    assert memory_report(on_cuda).startswith("Memory of cuda:0 by line")


def test_without_memory_the_report_says_why() -> None:
    assert memory_report(replace(LINES, memory_reason="no room")) == "There is no memory by line: no room\n"


def test_the_files_are_the_reports() -> None:
    assert reports(LINES) == {
        "lines_time.txt": time_report(LINES).encode(),
        "lines_memory.txt": memory_report(LINES).encode(),
    }
    assert reports(Lines.from_dict(LINES.to_dict())) == reports(LINES)
