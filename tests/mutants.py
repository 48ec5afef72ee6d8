"""Plant bugs, one at a time, and print which of them the tests catch: ``python tests/mutants.py [--whole] [CHECKOUT] [NUMBER …]``.

Each bug replaces a text that the package holds exactly once, wherever that is, in a copy of the checkout. The tests that are named
for its topic run first, the slow ones where the others pass; with ``--whole``, all the tests of ``make test`` run where those pass.
A bug is caught if a test fails.
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

import pytest

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
        "unit/backends:cost or count",
    ),
    Bug(
        "a transposed convolution is counted by its outputs",
        "return sums_of_products(inputs * window, outputs, numbers, bias=bias)",
        "return sums_of_products(outputs * window, outputs, numbers, bias=bias)",
        "unit/backends:transposed or cost",
    ),
    Bug(
        "an embedding bag's mean is not divided",
        "divisions = outputs * mean",
        "divisions = 0",
        "unit/backends:bag or cost",
    ),
    Bug(
        "the mask of attention is not added",
        "beside = (masks + 3 * capped) * scores",
        "beside = 3 * capped * scores",
        "unit/backends:attention or cost",
    ),
    Bug(
        "a module with children has activations of its own",
        "row.act_bytes = 0 if call.children else output_bytes",
        "row.act_bytes = output_bytes",
        "unit/backends unit/results:torch",
    ),
    Bug(
        "axes of samples and heads of an attention are not broadcast",
        "products = torch.broadcast_shapes(query.shape[:-2], of_keys)  # type",
        "products = query.shape[:-2]  # type",
        "unit/backends:attention or uncommon or cost",
    ),
    Bug(
        "a sparse buffer has the elements of the dense one",
        "if tensor.layout in _STORES_A_PART:",
        "if tensor.layout not in _STORES_A_PART:",
        "unit/backends:sparse or nested or tensors",
    ),
    Bug(
        "each sample of a nested tensor has the length of the first",
        "return item.unbind()[sample].unsqueeze(0)",
        "return item.unbind()[0].unsqueeze(0)",
        "unit/backends:nested or uncommon",
    ),
    Bug(
        "operators in other threads are not counted",
        "if self.in_thread is not None and not self.thread.is_followed:",
        "if self.in_thread is not None and self.thread.is_followed:",
        "unit/backends:thread or uncommon",
    ),
    Bug(
        "a sparse matrix is multiplied by one column",
        "macs *= right.shape[-1]",
        "macs *= 1",
        "unit/backends:sparse or cost",
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
        "return math.ceil(math.log(1 - CONFIDENCE) / math.log(percentile / 100))",
        "return math.floor(math.log(1 - CONFIDENCE) / math.log(percentile / 100))",
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
    Bug(
        "inputs that a model changes are not noticed",
        "if model.state_of(work.batch) != before:",
        "if model.state_of(work.batch) is before:",
        "unit/profiling unit/backends:inputs or steps or changed",
    ),
    Bug(
        "an interval is within the threshold at one end",
        "if 1 - threshold < low and high < 1 + threshold:",
        "if 1 - threshold < low or high < 1 + threshold:",
        "unit/results",
    ),
    Bug(
        "rows with an equal value in every direction leave the front",
        "(costs <= cost).all(axis=1) & (costs < cost).any(axis=1)",
        "(costs <= cost).all(axis=1)",
        "unit/results unit/report",
    ),
    # The engine
    Bug(
        "fail_fast stops at success",
        "if self.plan.fail_fast and status not in FINE:",
        "if self.plan.fail_fast and status in FINE:",
        "unit/run",
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
    Bug(
        "any kill is taken for one of the system's memory",
        "if end.code == -signal.SIGKILL and oom_kill:",
        "if end.code == -signal.SIGKILL:",
        "unit/run",
    ),
    Bug(
        "true and 1 are one value of an axis",
        "    return type(value), repr(value)\n",
        "    return value\n",
        "unit/config unit/plan",
    ),
    Bug(
        "logins go to a server that a stranger's folder names",
        "    if trust or any(one and same_address(one, address) for one in named):\n        return True\n",
        "    if trust or True:\n        return True\n",
        "unit/cli unit/run unit/tracking:trust or address or foreign or stranger or sync",
    ),
    Bug(
        "a damaged record is kept when a sweep is resumed",
        "if all(status not in (None, DAMAGED, *retry) for status in statuses.values()):",
        "if all(status not in (None, *retry) for status in statuses.values()):",
        "unit/run:folder or damaged",
    ),
    Bug(
        "a FIFO is read as a file",
        "if not stat.S_ISREG(status.st_mode):",
        "if stat.S_ISDIR(status.st_mode):",
        "unit/results unit/run:fifo or file or damaged",
    ),
    Bug(
        "a crash is taken for a failure that happens again",
        "all(record.status in repeated for record in in_rounds)",
        "all(record.status not in repeated for record in in_rounds)",
        "unit/run/test_stopping.py",
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
        "[row for row in rows if not row.misses and not comparison.has_wrong_outputs(row)], front)",
        "list(rows), front)",
        "unit/report unit/results",
    ),
    Bug(
        "the password of an address that has a port is shown",
        r"(?:[^/?#@:\[]*:(?!\d*[/?#])[^@\\]*@   # user:password@",
        r"(?:[^/?#@:\[]*:(?!\d)[^@\\]*@   # user:password@",
        "unit/tracking unit/report unit/cli:credential or redact or password or address",
    ),
    Bug(
        "the best row has the smallest value",
        'best = max if better == "higher" else min',
        "best = min",
        "unit/results unit/report",
    ),
    Bug(
        "MLflow's times are seconds",
        "return round(time.timestamp() * 1000)",
        "return round(time.timestamp())",
        "unit/tracking",
    ),
    Bug(
        "binary prefixes are decimal",
        '(2**20, "MiB")',
        '(10**6, "MiB")',
        "unit/report unit/metrics unit/display",
    ),
    Bug(
        "a figure that is gone is no change for the worse",
        '"not_comparable" if reason == NO_BASELINE else "worse"',
        '"not_comparable" if reason == NO_BASELINE else "better"',
        "unit/report unit/cli end_to_end/test_comparing.py",
    ),
    Bug(
        "a failed row is compared with its baseline",
        "if row.is_baseline or not row.has_values or not row.baseline_has_values:",
        "if row.is_baseline:",
        "unit/report unit/results",
    ),
    Bug(
        "a ratio is said upside down where higher is better",
        'cell, cell.ratio if metric.better == "lower" else 1 / cell.ratio',
        "cell, cell.ratio",
        "unit/report/test_answer.py unit/report",
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
        selected = [*chosen, *(["-k", selection] if selection else [])]
        failed = first_failure(checkout, "not slow", selected) or first_failure(checkout, "slow", selected)
        if failed is None and whole:
            failed = first_failure(checkout, "not slow", [])
    finally:
        path.write_text(text, encoding="utf-8")
    return "NOT CAUGHT" if failed is None else f"caught by {failed}"


def first_failure(checkout: Path, marks: str, arguments: list[str]) -> str | None:
    """Return the first test with these marks that fails; None if all pass, or there are none."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", f"{marks} and not thorough", *arguments]
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    if done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if failed is None:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return failed[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
