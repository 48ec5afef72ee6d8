"""The table of the features of the replaced profilers.

As a program, it runs the tests that the table names, and prints the table with their outcomes.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

DATA = Path(__file__).with_name("features.csv")
STATUSES = {
    "works": "the tests pass in CI",
    "works without": "nothing is needed for it, for the reason that is given",
    "needs a GPU": "measured on a GPU only; CI has none, and the tests use the figures of a simulated one",
    "not offered": "for the reason that is given",
}


@dataclass(frozen=True, slots=True)
class Feature:
    """A row of :data:`DATA`."""

    number: str
    group: str
    feature: str
    tools: str
    """The profilers that have it."""
    use: str
    """Commands, code, metrics or columns."""
    tests: str
    """Separated by spaces."""
    status: str
    """One of :data:`STATUSES`."""
    note: str


def features() -> list[Feature]:
    """Return all features in their order."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return [Feature(**row) for row in csv.DictReader(file)]


def table(outcomes: Mapping[str, str] | None = None) -> Iterator[str]:
    """Return the lines of the page's tables; of given outcomes of tests, the status follows from them."""
    for status, meaning in STATUSES.items():
        yield f"- *{status}*: {meaning}"
    for group, rows in groupby(features(), key=lambda one: one.group):
        yield from (
            "",
            f"## {group}",
            "",
            "| # | feature | profilers | with sweeprof | status | tests |",
            "|--:|---|---|---|---|---|",
        )
        for one in rows:
            tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in one.tests.split())
            use = "<br>".join(part for part in (one.use, one.note) if part)
            status = one.status if outcomes is None else measured(one, outcomes)
            yield f"| {one.number} | {one.feature} | {one.tools} | {use} | {status} | {tests} |"


def measured(feature: Feature, outcomes: Mapping[str, str]) -> str:
    """Return the status of a feature after its tests have run."""
    failing = [test for test in feature.tests.split() if outcomes.get(test) != "passed"]
    return feature.status if not failing else f"**{', '.join(outcomes.get(test, 'not run') for test in failing)}**"


class _Outcomes:
    """Collects the outcome of each test: of several cases, and of its set-up, the worst one."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[0]
        worst = max(self.outcomes.get(name, "passed"), report.outcome, key=["passed", "skipped", "failed"].index)
        self.outcomes[name] = worst


def main() -> int:
    """Run the tests, and print the table as Markdown; return 1 if a test failed or did not run."""
    tests = list(dict.fromkeys(test for one in features() for test in one.tests.split()))
    seen = _Outcomes()
    pytest.main(["-q", "-m", "not thorough", *tests], plugins=[seen])
    print(*table(seen.outcomes), sep="\n")
    return int(any(measured(one, seen.outcomes) != one.status for one in features()))


if __name__ == "__main__":
    sys.exit(main())
