"""The changes between two sweeps as a JUnit report, which CI systems show as tests: one for each metric of each combination."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from sweeprof.report.changes import Changes, SweepChange, change_cells
from sweeprof.report.columns import metric_title
from sweeprof.report.verdict_summary import combination_namer
from sweeprof.results.compare import Comparison
from sweeprof.text import one_line

_UNDECIDED = ("unclear", "not_comparable")


def junit(changes: Changes, compared: Comparison, failing: Sequence[str]) -> str:
    """Return the XML text.

    Args:
        changes: between the two sweeps.
        compared: the new sweep with the metrics that are compared, compared with the other one.
        failing: kinds of changes that are failures; an undecided one of another kind is skipped, everything else passes.
    """
    suite = ElementTree.Element("testsuite", name=one_line(f"sweeprof compare {compared.name}"))
    for change in changes.changes:
        _add_change(suite, change, failing)
    tell = combination_namer(compared)
    for row in compared.rows:
        for info in compared.metrics:
            cell = row.cells.get(info.name)
            if cell is not None and cell.verdict == "same":
                _add(suite, tell(row.axes), metric_title(info, compared.rows))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _add_change(suite: ElementTree.Element, change: SweepChange, failing: Sequence[str]) -> None:
    case = _add(suite, change.axes, change.title)
    kind = change.kind.replace("_", " ")
    text = ": ".join([kind, ", ".join(filter(None, change_cells(change)[2:]))])
    if change.kind in failing:
        ElementTree.SubElement(case, "failure", type=change.kind, message=one_line(text))
    elif change.kind in _UNDECIDED:
        ElementTree.SubElement(case, "skipped", message=one_line(text))
    else:
        ElementTree.SubElement(case, "system-out").text = one_line(text)


def _add(suite: ElementTree.Element, combination: str, metric: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=one_line(combination), name=one_line(metric), time="0")
