"""Plant bugs, one at a time, and print which of them the tests catch: ``python tests/mutants.py [--whole] [CHECKOUT] [NUMBER …]``.

Each bug replaces a text that the package holds exactly once, wherever that is, in a copy of the checkout. The tests that are named
for its topic run first; with ``--whole``, all the tests of ``make test`` run where those pass. A bug is caught if a test fails.
The exit status is 1 if a bug is not caught, or if its text is no longer there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 1800


@dataclass(frozen=True)
class Bug:
    """A fault that a user would notice."""

    what: str
    right: str
    """The text as it is."""
    wrong: str
    tests: str
    """Paths below ``tests/``, and what ``-k`` selects of them after a colon."""


BUGS = (
    # Counts
    Bug(
        "the bias of a product is not counted in FLOPs",
        "flops, ops = work + sums, work",
        "flops, ops = work, work",
        "unit/counting unit/backends:cost or count",
    ),
    Bug(
        "a transposed convolution is counted by its outputs",
        "return sums_of_products(inputs * window, outputs, numbers, bias=bias)",
        "return sums_of_products(outputs * window, outputs, numbers, bias=bias)",
        "unit/counting unit/backends:transposed or cost",
    ),
    Bug(
        "an embedding bag's mean is not divided",
        "divisions = outputs * mean",
        "divisions = 0",
        "unit/counting unit/backends:bag or cost",
    ),
    Bug(
        "the mask of attention is not added",
        "beside = (masks + 3 * capped) * scores",
        "beside = 3 * capped * scores",
        "unit/counting unit/backends:attention or cost",
    ),
    Bug(
        "a module with children has activations of its own",
        "row.act_bytes = 0 if call.children else output_bytes",
        "row.act_bytes = output_bytes",
        "unit/backends unit/results:torch",
    ),
    # Times and statistics
    Bug(
        "the ratio is upside down",
        "logs = np.log(np.asarray(candidate, dtype=float)) - np.log(np.asarray(baseline, dtype=float))",
        "logs = np.log(np.asarray(baseline, dtype=float)) - np.log(np.asarray(candidate, dtype=float))",
        "unit/results",
    ),
    Bug(
        "the interval of rounds divides by n instead of n - 1",
        "half = _t_quantile(n - 1, confidence) * float(logs.std(ddof=1)) / math.sqrt(n)",
        "half = _t_quantile(n - 1, confidence) * float(logs.std(ddof=0)) / math.sqrt(n)",
        "unit/results",
    ),
    Bug(
        "percentiles are shown with one sample too few",
        "return math.ceil(math.log(1 - confidence) / math.log(percentile / 100))",
        "return math.floor(math.log(1 - confidence) / math.log(percentile / 100))",
        "unit/results unit/measuring",
    ),
    Bug(
        "the interval of the median is one sample too narrow",
        "return ordered[rank - 1], ordered[n - rank]",
        "return ordered[rank - 1], ordered[n - rank - 1]",
        "unit/results unit/measuring",
    ),
    Bug(
        "lower is better, and is called worse",
        'if (high < 1) == (better == "lower"):',
        'if (high < 1) == (better == "higher"):',
        "unit/results",
    ),
    Bug(
        "warming up ends after the steps, however short they are",
        "(steps >= protocol.warmup_steps and elapsed >= protocol.warmup_s)",
        "(steps >= protocol.warmup_steps or elapsed >= protocol.warmup_s)",
        "unit/profiling/test_timing.py",
    ),
    Bug(
        "rounds that were run again later form pairs",
        "sorted((values_by_round.keys() & base_by_round.keys()) - pairing.apart)",
        "sorted(values_by_round.keys() & base_by_round.keys())",
        "unit/results unit/run",
    ),
    # The engine
    Bug(
        "fail_fast stops at success",
        "if self.plan.fail_fast and status not in FINE:",
        "if self.plan.fail_fast and status in FINE:",
        "unit/run unit/storage",
    ),
    Bug(
        "NaN is written into stored files",
        "allow_nan=False, ensure_ascii=False",
        "allow_nan=True, ensure_ascii=False",
        "unit/results",
    ),
    Bug(
        "a write that fails leaves its temporary file",
        "        temporary.unlink(missing_ok=True)\n        raise\n",
        "        raise\n",
        "unit/results",
    ),
    Bug(
        "a process that the system killed for memory has crashed",
        'return "oom", "the system ran out of memory and killed it"',
        'return "crashed", "the system ran out of memory and killed it"',
        "unit/run",
    ),
    # Reports and tracking
    Bug(
        "a cell of a CSV file may be a formula",
        """return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text""",
        "return text",
        "unit/report",
    ),
    Bug(
        "columns of axes may have the name of a metric",
        "while column in others or (column != axis and column in names):",
        "while column != axis and column in names:",
        "unit/report",
    ),
    Bug(
        "the Pareto front is of all rows",
        "[row for row in rows if not row.misses], front)",
        "list(rows), front)",
        "unit/report unit/results",
    ),
    Bug(
        "the password of an address that has a port is shown",
        r"(?:[^/?#@:\[]*:(?!\d*[/?#])[^@\\]*@   # user:password@",
        r"(?:[^/?#@:\[]*:(?!\d)[^@\\]*@   # user:password@",
        "unit/tracking unit/report unit/cli:credential or redact or password or address",
    ),
)


def main(arguments: list[str]) -> int:
    """Print a line for each bug, and how many were caught."""
    numbers = {int(argument) for argument in arguments if argument.isdigit()}
    places = [argument for argument in arguments if not argument.isdigit() and argument != "--whole"]
    checkout = Path(places[0] if places else Path(__file__).parents[1]).resolve()
    caught, planted = 0, 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder, "checkout")
        ignored = shutil.ignore_patterns(".*", "outputs", "build", "__pycache__")
        shutil.copytree(checkout, copy, ignore=ignored, symlinks=True)
        for number, bug in enumerate(BUGS, 1):
            if numbers and number not in numbers:
                continue
            planted += 1
            began = time.monotonic()
            found = plant(copy, bug, "--whole" in arguments)
            caught += found.startswith("caught")
            print(f"{number:>3}  {bug.what}: {found}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{caught} of {planted} caught")
    return 0 if caught == planted else 1


def plant(checkout: Path, bug: Bug, whole: bool) -> str:
    """Return what the tests say of a bug, which is gone afterwards."""
    holding = [path for path in (checkout / "sweeprof").rglob("*.py") if bug.right in path.read_text(encoding="utf-8")]
    if len(holding) != 1:
        return f"NOT PLANTED, its text stands in {len(holding)} files"
    path = holding[0]
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(bug.right, bug.wrong), encoding="utf-8")
    try:
        folders, _, selection = bug.tests.partition(":")
        chosen = [str(checkout / "tests" / name) for name in folders.split() if (checkout / "tests" / name).exists()]
        failed = first_failure(checkout, [*chosen, *(["-k", selection] if selection else [])])
        if failed is None and whole:
            failed = first_failure(checkout, [])
    finally:
        path.write_text(text, encoding="utf-8")
    return "NOT CAUGHT" if failed is None else f"caught by {failed}"


def first_failure(checkout: Path, arguments: list[str]) -> str | None:
    """Return the first test that fails; None if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow and not thorough", *arguments]
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if failed is None:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return failed[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
