"""The answer of a comparison in words, against the table by code that shares nothing with it."""

from __future__ import annotations

import dataclasses
import html
import io
import itertools
import math
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from support.samples import build, drawn
from support.samples import comparison as sample
from sweeprof.report.answer import Answer, answer
from sweeprof.report.changes import changes_of, print_changes, pull_request
from sweeprof.report.changes import markdown as markdown_of_changes
from sweeprof.report.markdown import markdown
from sweeprof.report.terminal import text as terminal
from sweeprof.results.compared_rows import Comparison, Row, compare_rows, find_baselines, set_against
from sweeprof.results.measurement import Better, Measurement, MetricInfo, Number
from sweeprof.results.record import Status, Warning
from sweeprof.text import console

INFOS = {
    info.name: info
    for info in (
        MetricInfo("latency/forward", "s", "lower", "Seconds."),
        MetricInfo("latency/iteration", "s", "lower", "Seconds."),
        MetricInfo("throughput/samples_per_s", "samples/s", "higher", "Samples per second."),
        MetricInfo("params/total", "params", "lower", "Parameters."),
    )
}
STEP, RATE = "latency/iteration", "throughput/samples_per_s"
TIGHT = (1.0, 1.001, 0.999, 1.0005, 0.9995)

Point = Mapping[str, Any]


def timed(value: float, rounds: int = 5, name: str = "latency/forward", spread: Sequence[float] = TIGHT) -> Measurement:
    info, samples = INFOS[name], tuple(value * factor for factor in spread[:rounds])
    numbers = tuple(range(rounds))
    return Measurement(name, info.unit, info.better, value, None, "median", rounds=samples, round_numbers=numbers)


def parameters(value: int) -> Measurement:
    return Measurement("params/total", "params", "lower", value)


def swept(
    values: Sequence[tuple[Point, Measurement | Status]],
    baseline: Point,
    threshold: float | None = 0.05,
    **fields: Any,
) -> Comparison:
    """A comparison of rows: axes with the measured value, or with the status of a failure."""
    points = {"-".join(map(str, point.values())): point for point, _ in values}
    bases = find_baselines(baseline, points)
    rows, measured = [], {}
    for (id, point), (_, seen) in zip(points.items(), values, strict=True):
        status: Status = seen if isinstance(seen, str) else "ok"
        rows.append(Row(id, dict(point), status, None if status == "ok" else "no luck", {}, bases[id]))
        measured[id] = {} if isinstance(seen, str) else {seen.name: seen}
    names = dict.fromkeys(name for own in measured.values() for name in own)
    axes = tuple(dict.fromkeys(axis for point in points.values() for axis in point))
    infos = tuple(INFOS[name] for name in names)
    known: dict[str, Any] = {"threshold": threshold, "protocol": {"rounds": [5]}, **fields}
    head = ("s1", "answers", "2026-11-22T00:00:00+00:00", "")
    return Comparison(*head, axes, infos, dict(baseline), compare_rows(rows, measured, threshold), **known)


def of_backends(times: Mapping[str, Sequence[float | Status]], rounds: int = 5, **fields: Any) -> Comparison:
    """Backends × batch sizes 1, 8, 64 …, in milliseconds; the first backend is the baseline."""
    return of_rates(times, rounds, "latency/forward", 1e-3, **fields)


def of_rates(
    values: Mapping[str, Sequence[float | Status]], rounds: int = 5, name: str = RATE, scale: float = 1.0, **fields: Any
) -> Comparison:
    """Backends × batch sizes 1, 8, 64 …, by their throughput alone."""
    found: list[tuple[Point, Measurement | Status]] = []
    for backend, own in values.items():
        for power, value in enumerate(own):
            seen = value if isinstance(value, str) else timed(value * scale, rounds, name)
            found.append(({"backend": backend, "batch_size": 8**power}, seen))
    return swept(found, {"backend": next(iter(values))}, **fields)


def in_rounds(*values: tuple[str, int, float, int]) -> Comparison:
    """Of backends, batch sizes, seconds and their rounds."""
    rows = [({"backend": b, "batch_size": n}, timed(seconds, rounds)) for b, n, seconds, rounds in values]
    return swept(rows, {"backend": "torch"})


def before(of: Comparison, created: str = "2026-11-20T03:00:00+00:00") -> Comparison:
    """The same as a sweep of an earlier night."""
    return dataclasses.replace(of, sweep_id="s0", created=created)


SURE = "Confidence: high."
ONCE = "Confidence: low (1 round). Run again with protocol=default."
MIXED = in_rounds(
    *(("torch", n, 1.0, 5) for n in (1, 2, 3, 4)),
    *(("jax", 1, 3.0, 5), ("jax", 2, 3.0, 1), ("jax", 3, 3.0, 1), ("jax", 4, 0.5, 2)),
)
THREE_SIDES = in_rounds(
    *(("torch", n, 1.0, 5) for n in (1, 2)),
    *(("jax", n, 2.0, 5) for n in (1, 2)),
    *(("ort", n, 0.5, 1) for n in (1, 2)),
)
MODES = swept(
    [({"mode": "inference"}, timed(1e-3)), ({"mode": "training"}, timed(4e-3, name=STEP))],
    {},
)
STEPS = swept(
    [({"backend": b, "mode": "training"}, timed(t, name=STEP)) for b, t in (("torch", 1.0), ("jax", 3.0))],
    {"backend": "torch"},
)
PRECISIONS = swept(
    [
        ({"backend": b, "p": p}, timed(t))
        for b, p, t in (("torch", "fp32", 2.0), ("torch", "bf16", 1.0), ("jax", "fp32", 4.0))
    ],
    {"backend": "torch", "p": "fp32"},
)
COUNTS = swept([({"model": m}, parameters(n)) for m, n in (("a", 10), ("b", 30))], {"model": "a"})

FOUR = of_backends({"torch": [1, 1, 1, 1]})
ELSEWHERE = dataclasses.replace(
    FOUR,
    rows=tuple(
        dataclasses.replace(r, combination_id=f"x{r.combination_id}", axes={"backend": "jax"}) for r in FOUR.rows
    ),
)


def since(then: Comparison, now: Comparison) -> Comparison:
    return set_against(now, before(then), "nightly")


CASES: dict[str, Comparison] = {
    "all cases": of_backends({"torch": [1, 2, 4], "jax": [2, 4, 8]}),
    "one case": of_backends({"torch": [1], "jax": [0.5]}),
    "in percent": of_backends({"torch": [1], "jax": [1.12]}),
    "one case of three": of_backends({"torch": [1, 1, 1], "jax": ["skipped", 2, "skipped"]}),
    "very much": of_backends({"torch": [1], "jax": [30]}),
    "equal": of_backends({"torch": [1, 1], "jax": [1.01, 0.99]}),
    "an exception": of_backends({"torch": [1, 1, 1], "jax": [3, 3, 0.5]}),
    "two exceptions": of_backends({"torch": [1, 1, 1, 1], "jax": [0.2, 1.01, 1.25, 1.5]}),
    "three exceptions": of_backends({"torch": [1] * 5, "jax": [4, 4, 0.8, 0.7, 0.6]}),
    "one round": of_backends({"torch": [1, 2], "jax": [2, 4]}, rounds=1),
    "one round, about equal": of_backends({"torch": [1, 2], "jax": [1.05, 2.1]}, rounds=1, threshold=None),
    "no threshold": of_backends({"torch": [1, 2], "jax": [2, 4]}, threshold=None),
    "three sides": of_backends({"torch": [1, 1], "jax": [2, "crashed"], "ort": [0.5, 0.5]}),
    "three sides, two winners": of_backends({"torch": [1, 1, 1], "jax": [2, 2, 2], "ort": [0.5, 0.5, 3]}),
    "some certain": MIXED,
    "three sides, one round of one": THREE_SIDES,
    "three equal sides": of_backends({"torch": [1, 1], "jax": [1.01, 1], "ort": [0.99, 1]}),
    "three sides, two about equal": of_backends({"torch": [1], "jax": [1.01], "ort": [3]}),
    "six equal sides": swept([({"batch_size": 2**n}, timed(1.0)) for n in range(6)], {"batch_size": 1}),
    "a third side without results": of_backends({"torch": [1, 2], "jax": ["failed", "oom"], "ort": [2, 4]}),
    "one side without results": of_backends({"torch": [1, 1], "jax": ["failed", "failed"]}),
    "a baseline without results": of_backends({"torch": ["failed", "failed"], "jax": [2, 1]}),
    "no results": of_backends({"torch": ["failed", "failed"], "jax": ["failed", "oom"]}),
    "one row without a result": swept([({"model": "mlp"}, "failed")], {}),
    "one row": swept([({"model": "mlp"}, timed(0.002))], {}),
    "no baseline": swept([({"batch_size": n}, timed(n / 1e3)) for n in (2, 1)], {}),
    "counts": swept([({"n": n}, parameters(value)) for n, value in ((1, 40), (2, 30))], {}),
    "equal counts": swept([({"n": n}, parameters(30)) for n in (1, 2)], {}),
    "one count": swept([({"model": "mlp"}, parameters(30))], {}),
    "inference and training": MODES,
    "training": STEPS,
    "sides of two axes": PRECISIONS,
    "counts and a baseline": COUNTS,
    # Of a throughput, more is better.
    "throughput": of_rates({"torch": [1000], "jax": [2000]}),
    "throughput with an exception": of_rates({"torch": [1000, 4000, 9000], "jax": [2000, 8000, 4500]}),
    "throughput of three sides": of_rates({"torch": [1000, 1000], "jax": [2000, 2000], "ort": [500, 500]}),
    "since: one slower": since(FOUR, of_backends({"torch": [1.3, 1, 1, 1]})),
    "since: two slower, one faster": since(FOUR, of_backends({"torch": [1.12, 1.15, 0.5, 1]})),
    "since: the same": since(FOUR, FOUR),
    "since: not certain": since(FOUR, of_backends({"torch": [1, 9, 1, 1]}, rounds=1)),
    "since: results that are gone": since(FOUR, of_backends({"torch": [1, "oom", "oom"]})),
    "since: nothing in common": since(ELSEWHERE, FOUR),
}


def test_comparisons_in_words(golden: Callable[[str, str], None]) -> None:
    golden("answers.txt", "".join(f"{name}:\n  {told(answer(case))}\n" for name, case in CASES.items()))


def test_of_a_throughput_more_is_better() -> None:
    finding = answer(CASES["throughput with an exception"]).finding
    assert finding.startswith(
        "By throughput, jax is higher than torch in 2 of 3 cases, 1.3× overall; torch is 2.0× higher"
    )


def told(found: Answer) -> str:
    return " ".join(part for part in (found.finding, found.certainty, found.advice) if part)


def test_the_quickstart() -> None:
    assert str(answer(sample())) == (
        "torch is faster than tensorflow in all 7 cases, 1.9× overall. "
        "16 of 18 combinations measured; 1 crashed, 1 unsupported. "
        "Confidence: low (1 round, 1 noisy row). Run again with protocol=default."
    )


def plain(text: str) -> str:
    """Markdown or wrapped text on one line, without marks."""
    return html.unescape(" ".join(text.replace("**", "").replace("\\", "").split()))


@pytest.mark.parametrize("comparison", [sample(), set_against(sample(), before(sample()), "nightly")])
def test_every_report_begins_with_the_same_words(comparison: Comparison) -> None:
    found = answer(comparison)
    for report in (terminal(comparison, 200), terminal(comparison, 40), markdown(comparison)):
        assert plain(report).startswith(str(found))
    title, words = pull_request(comparison).split("\n\n")[:2]
    assert plain(words) == f"{found.finding} {found.certainty} {found.advice}".strip()
    assert found.counts.removesuffix(".") in plain(title)


def test_a_comparison_of_two_sweeps_begins_with_the_answer() -> None:
    found = set_against(of_backends({"torch": [1.3, 1]}), before(of_backends({"torch": [1, 1]})), "nightly")
    changes = changes_of(found, found.metrics)
    out = io.StringIO()
    print_changes(changes, "last compared with nightly", console(file=out, width=60))
    words = "Since 20 November: batch_size=1 is 1.3× slower. 2 of 2 combinations measured. Confidence: high."
    assert plain(out.getvalue()).startswith(f"{words} last compared with nightly")
    text = plain(markdown_of_changes(changes, "last compared with nightly"))
    assert text.startswith(f"{words} last compared with nightly: 1 worse, 1 same.")


def test_conditions_come_first() -> None:
    found = of_backends({"torch": [1, 2], "jax": [3, 0.5]}, constraints=("latency/forward < 2.5 ms",))
    rows = [dataclasses.replace(row, misses=("x",) * (row.axes["backend"] == "torch")) for row in found.rows]
    first = "2 of 4 combinations fulfil all conditions; the fastest of them is 500 µs (jax, batch_size 8). "
    some = str(answer(dataclasses.replace(found, rows=tuple(rows))))
    assert some.startswith(first + "jax is faster than torch in 1 of 2 cases")
    none = dataclasses.replace(found, rows=tuple(dataclasses.replace(row, misses=("x",)) for row in rows))
    assert str(answer(none)).startswith("None of 4 combinations fulfils all conditions (latency/forward < 2.5 ms).")


def test_the_other_sweep_may_be_the_one_to_measure_again_or_of_another_year() -> None:
    few = of_backends({"torch": [1, 9, 1, 1]}, rounds=1)
    assert "Measure the other sweep again" in str(answer(set_against(before(FOUR), few, "nightly")))
    old = before(FOUR, "2025-03-01T03:00:00+00:00")
    assert told(answer(set_against(few, old, "nightly"))).startswith("Since 1 March 2025: ")


def test_the_reasons_for_a_low_confidence() -> None:
    wide = (1.0, 1.4, 0.7, 1.2, 0.8)
    values = [({"backend": "torch"}, timed(1.0)), ({"backend": "jax"}, timed(1.2, spread=wide))]
    crossing = swept(values, {"backend": "torch"})
    found = answer(crossing)
    assert (found.confidence, found.reasons) == ("low", ("interval too wide",))
    assert found.advice == "Run again with protocol=decide."
    measured = {point["backend"]: {seen.name: seen} for point, seen in values}

    def apart(**environments: dict[str, Any]) -> Answer:
        rows = [dataclasses.replace(r, environment=environments[r.combination_id], cells={}) for r in crossing.rows]
        return answer(dataclasses.replace(crossing, rows=compare_rows(rows, measured, 0.05)))

    hosts = told(apart(torch={"host": "torch"}, jax={"host": "jax"}))
    assert hosts.endswith("Confidence: low (1 measured in another environment). Measure both on one host.")
    fewer = apart(torch={"processors available": 1}, jax={"processors available": 2})
    assert fewer.advice == "Measure both with the same processors available."
    noise = (Warning("spread_high", "IQR is 31 %", "wait"),)
    noisy = dataclasses.replace(crossing, rows=tuple(dataclasses.replace(row, warnings=noise) for row in crossing.rows))
    assert answer(noisy).reasons[-1] == "2 noisy rows"
    assert answer(noisy).advice == "Wait until the machine is idle and run again with protocol=decide."
    decided = dataclasses.replace(crossing, protocol={"rounds": [20], "decide": ["baseline"]})
    assert answer(decided).advice == "Run again with protocol.rounds=40."


def night(name: str, *values: Number, better: Better = "higher", unit: str = "ratio") -> Comparison:
    """Of one metric, for batch sizes from 1 on."""
    points = [{"batch_size": size} for size in range(1, len(values) + 1)]
    return build(points, {name: (unit, better)}, [{name: value} for value in values])


@pytest.mark.parametrize("others", [(), (0.97,)])
def test_a_value_that_fell_to_zero_is_told(others: tuple[float, ...]) -> None:
    now, then = (night("quality/accuracy", *others, value) for value in (0, 0.97))
    assert answer(set_against(now, before(then), "nightly")).finding == (
        f"Since 20 November: by accuracy, batch_size={len(others) + 1} is worse (0.9700 → 0)."
    )


@pytest.mark.parametrize(
    ("better", "now", "told"),
    [
        ("higher", 0.9, "10 % lower"),  # of 1, not 11 %
        ("higher", 1.1, "10 % higher"),
        ("lower", 0.9, "10 % lower"),
        ("lower", 1.1, "10 % higher"),
        ("higher", 0.5, "2.0× lower"),
    ],
)
def test_percent_of_a_value_are_of_the_baselines(better: Better, now: float, told: str) -> None:
    after, then = (night("mine/score", value, better=better) for value in (now, 1.0))
    finding = answer(set_against(after, before(then), "nightly")).finding
    assert finding == f"Since 20 November: by mine/score, batch_size=1 is {told}."


def test_a_sweep_of_throughput_alone_is_compared_by_it() -> None:
    after, then = (night(RATE, value, unit="samples/s") for value in (900, 1000))
    compared = set_against(after, before(then), "nightly")
    assert "by throughput, batch_size=1 is 10 % lower." in answer(compared).finding
    assert "1 worse" in pull_request(compared)


def test_a_further_metric_that_is_not_comparable_is_told() -> None:
    metrics: dict[str, tuple[str, Better]] = {"quality/accuracy": ("ratio", "higher"), "quality/loss": ("nat", "lower")}
    made = build([{"model": "a"}], metrics, [dict.fromkeys(metrics, 1)])
    now, then = (
        dataclasses.replace(made, rows=(dataclasses.replace(made.rows[0], test_data=data),))
        for data in ("400 samples", "360 samples")
    )
    assert answer(set_against(now, before(then), "nightly")).finding == (
        "Since 20 November: by accuracy, nothing is certain to have changed. Not comparable: loss (nat) in 1."
    )


def test_a_metric_that_is_no_longer_measured_is_told() -> None:
    metrics: dict[str, tuple[str, Better]] = dict.fromkeys(("quality/accuracy", "params/total"), ("ratio", "higher"))
    both = build([{"model": "a"}], metrics, [dict.fromkeys(metrics, 1)])
    now = build([{"model": "a"}], {"params/total": ("ratio", "higher")}, [{"params/total": 1}])
    assert answer(set_against(now, before(both), "nightly")).finding.endswith("No longer measured: accuracy.")
    assert "No longer" not in answer(set_against(before(both), now, "nightly")).finding


# The answers of sweeps drawn by chance, checked from the table: fifty of three sides, then two sides and nights.


def usable(row: Row) -> bool:
    cell = row.cells.get("latency/forward")
    is_compared = row.has_values and row.baseline_has_values and not row.is_baseline
    return is_compared and cell is not None and bool(cell.ratio) and cell.ratio != math.inf


def place_of(row: Row) -> tuple[str, int]:
    return row.axes["model"], row.axes["batch_size"]


def ratio_of(row: Row) -> float:
    return row.cells["latency/forward"].ratio or 0


def wins(rows: Sequence[Row]) -> dict[str, int]:
    """How many cases each backend wins: the lowest ratio that is called better or is beyond the threshold of 5 %, or else b0."""
    found = Counter[str]()
    for place in set(map(place_of, rows)):
        ratios = {"b0": 1.0}
        for row in (row for row in rows if place_of(row) == place):
            verdict, ratio = row.cells["latency/forward"].verdict, ratio_of(row)
            is_lower = verdict == "better" or (verdict not in ("worse", "same") and ratio < 1 / 1.05)
            ratios[row.axes["backend"]] = ratio if is_lower else math.inf
        found[min(ratios, key=lambda name: ratios[name])] += 1
    return found


def close_to(winner: str, rows: Sequence[Row]) -> dict[str, int]:
    """In how many of the cases that ``winner`` wins each other backend is at most 5 % behind it."""
    found = Counter[str]()
    for place in set(map(place_of, rows)):
        here = [row for row in rows if place_of(row) == place]
        ratios = {"b0": 1.0, **{row.axes["backend"]: ratio_of(row) for row in here}}
        if list(wins(here)) == [winner]:
            found.update(name for name in ratios if name != winner and ratios[name] <= ratios[winner] * 1.05)
    return found


SEEDS = [
    seed
    for seed in range(60)
    if len({row.axes["backend"] for row in drawn(seed, 1 + seed % 3).comparison().rows if usable(row)}) == 2
][:50]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_answer_says_what_the_table_says(seed: int) -> None:
    comparison = drawn(seed, models=1 + seed % 3).comparison()
    rows = [row for row in comparison.rows if usable(row)]
    text = str(answer(comparison))
    expected = wins(rows)
    total = sum(expected.values())
    first = re.match(r"(b\d) is the fastest of 3(?: in (all|\d+ of) (\d+) cases)?", text)
    assert first, text
    winner, number, cases = first.groups()
    assert int(cases or 1) == total
    hardly_behind = re.findall(r"; (b\d) is within 5 % of it(?: in (\d+))?", text)
    assert {name: int(n or 1) for name, n in hardly_behind} == close_to(winner, rows)
    assert expected[winner] == max(expected.values()) == (total if number in ("all", None) else int(number.split()[0]))
    others = {name: int(n) for name, n in re.findall(r"; (b\d) is the fastest in (\d+)", text)}
    assert others == {name: number for name, number in expected.items() if name != winner}
    overall = {}
    for name in ("b1", "b2"):
        overall[name] = statistics.geometric_mean([ratio_of(row) for row in rows if row.axes["backend"] == name])
    for name, told_amount, word in re.findall(r"(b\d) is the [a-z0-9 ]*, ([\d.]+ ?[×%]) (faster|slower) than b0", text):
        assert amount(told_amount) == pytest.approx(max(overall[name], 1 / overall[name]), rel=0.06)
        assert (word == "faster") == (overall[name] < 1)
    lacking = sum(not row.has_values for row in comparison.rows)
    assert f" {len(comparison.rows) - lacking} of {len(comparison.rows)} combinations measured" in text
    certain = sum(row.cells["latency/forward"].verdict in ("better", "worse", "same") for row in rows)
    level = "high" if certain == len(rows) else "medium" if certain >= len(rows) / 2 else "low"
    assert f"Confidence: {level}" in text


def amount(text: str) -> float:
    """A factor from ``2.0×`` or ``12 %``."""
    return float(text.removesuffix("×")) if text.endswith("×") else 1 + float(text.removesuffix(" %")) / 100


def two_sided(seed: int, **fields: Any) -> Comparison:
    """Two backends × two models × up to four batch sizes, with noise, failures and rows that the plan does not have."""
    chance = random.Random(seed)
    values: list[tuple[Point, Measurement | Status]] = []
    favour = chance.choice([0.6, 1.0, 1.8])
    for model, size, backend in itertools.product("ab", (1, 8, 64, 512), ("torch", "jax")):
        ratio = 1.0 if backend == "torch" else favour * chance.choice([0.5, 1.0, 1.01, 1.3])
        noise = [chance.lognormvariate(0, chance.choice([0.001, 0.02, 0.2])) for _ in range(5)]
        seen = timed(size * ratio * 1e-3, chance.choice([1, 5, 5, 5]), spread=noise)
        if chance.random() < 0.9:
            values.append(({"model": model, "backend": backend, "batch_size": size}, seen))
        elif chance.random() < 0.5:
            values.append(({"model": model, "backend": backend, "batch_size": size}, "crashed"))
    return swept(values, {"backend": "torch"}, **fields)


def table_of(comparison: Comparison) -> dict[tuple[str, int], tuple[float, str]]:
    """Ratio and outcome of each row that is compared, by model and batch size."""
    found = {}
    for row in filter(usable, comparison.rows):
        ratio, verdict = ratio_of(row), str(row.cells["latency/forward"].verdict)
        guess = "faster" if ratio < 1 / 1.05 else "slower" if ratio > 1.05 else "equal"
        outcome = {"better": "faster", "worse": "slower", "same": "equal"}.get(verdict, guess)
        found[place_of(row)] = (ratio, outcome)
    return found


def certain_places(comparison: Comparison) -> dict[tuple[str, int], bool]:
    """Of each row that is compared, by model and batch size, whether its verdict is certain."""
    rows = filter(usable, comparison.rows)
    return {place_of(row): row.cells["latency/forward"].verdict in ("better", "worse", "same") for row in rows}


@pytest.mark.parametrize("seed", range(30))
def test_an_answer_on_two_sides_says_what_the_table_says(seed: int) -> None:
    comparison = two_sided(seed)
    table = table_of(comparison)
    text = answer(comparison).finding
    counts = {word: sum(outcome == word for _, outcome in table.values()) for word in ("faster", "slower", "equal")}
    found = re.match(
        r"(torch|jax) is faster than (torch|jax) in (both|all (\d+)|(\d+) of (\d+)) cases"
        r"(?: \((not|\d+|none)(?: of them)? certain\))?(?:, ([\d.]+ ?[×%]) overall)?",
        text,
    )
    assert found, text
    winner, loser, extent, whole, some, total, certain, overall = found.groups()
    wins, losses = ("faster", "slower") if winner == "jax" else ("slower", "faster")
    assert counts[wins] == int(some or whole or 2)
    assert len(table) == int(total or whole or 2), extent
    mean = statistics.geometric_mean([ratio for ratio, _ in table.values()])
    assert overall, text
    assert amount(overall) == pytest.approx(max(mean, 1 / mean), rel=0.06)
    assert (winner == "jax") == (mean < 1)
    are_certain = certain_places(comparison)
    won = [is_certain for place, is_certain in are_certain.items() if table[place][1] == wins]
    told_certain = len(won) if certain is None else 0 if certain in ("not", "none") else int(certain)
    assert told_certain == (sum(won) if any(are_certain.values()) else len(won))
    equal = re.search(r"they are about equal in (\d+)", text)
    assert counts["equal"] == (int(equal[1]) if equal else 0)
    many = re.search(
        rf"; {loser} is faster in (\d+)(?: \([^)]*\))?, at most ([\d.]+ ?[×%]) \(for (\w), batch_size (\d+)\)", text
    )
    if many:
        assert int(many[1]) == counts[losses] > 2
        told_cases = [(many[2], many[3], many[4])]
        furthest = max((ratio for ratio, outcome in table.values() if outcome == losses), key=lambda r: max(r, 1 / r))
        assert table[many[3], int(many[4])][0] == furthest
    else:
        part = re.search(rf"; {loser} is ([^;]*)", text)
        told_cases = re.findall(r"([\d.]+ ?[×%]) (?:faster )?for (\w), batch_size (\d+)", part[1] if part else "")
        assert len(told_cases) == counts[losses]
    if many is None and any(are_certain.values()):
        uncertain = re.findall(r"for (\w), batch_size (\d+) \(not certain\)", text)
        lost = [place for place in table if table[place][1] == losses and not are_certain[place]]
        assert {(model, int(size)) for model, size in uncertain} == set(lost)
    for told_amount, model, size in told_cases:
        ratio, outcome = table[model, int(size)]
        assert outcome == losses
        assert amount(told_amount) == pytest.approx(max(ratio, 1 / ratio), rel=0.06)


@pytest.mark.parametrize("seed", range(20))
def test_an_answer_since_another_night_says_what_the_table_says(seed: int) -> None:
    then = before(two_sided(seed + 100))
    after = set_against(two_sided(seed + 200), then, "nightly")
    cells = {row.combination_id: row.cells.get("latency/forward") for row in after.rows if usable(row)}
    verdicts = Counter(str(cell.verdict) for cell in cells.values() if cell)
    text = answer(after).finding
    assert text.startswith("Since 20 November: ")
    names = {",".join(f"{axis}={value}" for axis, value in row.axes.items()): row for row in after.rows}
    for word, verdict in (("slower", "worse"), ("faster", "better")):
        several = re.search(rf"(\d+) of (\d+) combinations are {word}, at most ([\d.]+ ?[×%]) \(([^)]+)\)", text)
        single = re.search(rf"([\w=, ]+) is ([\d.]+ ?[×%]) {word}", text)
        number = int(several[1]) if several else 1 if single else 0
        assert verdicts[verdict] == number, text
        if several or single:
            told_amount, name = (several[3], several[4]) if several else (single[2], single[1])  # type: ignore[index]
            row = names[name.replace(" ", "").removeprefix("Since20November:")]
            ratio = row.cells["latency/forward"].ratio or 0
            assert amount(told_amount) == pytest.approx(max(ratio, 1 / ratio), rel=0.06)
            extreme = [one.ratio for one in cells.values() if one and one.ratio and one.verdict == verdict]
            assert ratio == (max(extreme) if word == "slower" else min(extreme))
    gone = sum(row.baseline_has_values and not row.has_values for row in after.rows)
    assert gone == int((re.search(r"(\d+) combinations? ha(?:s|ve) no result any more", text) or ["", "0"])[1])
    present = {tuple(row.axes.values()) for row in after.rows}
    absent = sum(tuple(row.axes.values()) not in present for row in then.rows)
    assert absent == int((re.search(r"(\d+) combinations? (?:is|are) missing", text) or ["", "0"])[1])
