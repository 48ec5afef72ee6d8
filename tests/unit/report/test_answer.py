"""The answer of a comparison in words, against the table by code that shares nothing with it."""

from __future__ import annotations

import dataclasses
import html
import io
import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from support.samples import build, drawn
from support.samples import comparison as sample
from sweeprof.report.answer import Answer, answer
from sweeprof.report.changes import ChangeKind, Changes, SweepChange, changes_of, gate_text, print_changes
from sweeprof.report.changes import markdown as markdown_of_changes
from sweeprof.report.table import whole_table
from sweeprof.report.terminal import text as terminal
from sweeprof.results.compared_rows import (
    Comparison,
    Row,
    SearchGoal,
    SearchSummary,
    compare_rows,
    find_baselines,
    set_against,
)
from sweeprof.results.constraints import with_selection
from sweeprof.results.measurement import Better, Measurement, MetricInfo, Number
from sweeprof.results.record import Status, Warning
from sweeprof.results.verdicts import NO_BASELINE
from sweeprof.text import console

INFOS = {
    info.name: info
    for info in (
        MetricInfo("latency/forward", "s", "lower", "Seconds."),
        MetricInfo("latency/iteration", "s", "lower", "Seconds."),
        MetricInfo("throughput/samples_per_s", "samples/s", "higher", "Samples per second."),
        MetricInfo("params/total", "params", "lower", "Parameters."),
        MetricInfo("quality/accuracy", "ratio", "higher", "Accuracy."),
        MetricInfo("quality/agreement", "abs", "lower", "The largest difference of the outputs."),
        MetricInfo("layers/slowest_self_s", "s", "lower", "Seconds of the slowest layer."),
    )
}
NAME, STEP, RATE = "latency/forward", "latency/iteration", "throughput/samples_per_s"
TIGHT = (1.0, 1.001, 0.999, 1.0005, 0.9995)

Point = Mapping[str, Any]


def measured(name: str, value: Number, rounds: int = 0, spread: Sequence[float] = TIGHT, **detail: Any) -> Measurement:
    """A count, or a time measured in rounds."""
    info, samples = INFOS[name], tuple(value * factor for factor in spread[:rounds])
    fields: dict[str, Any] = {"detail": detail, "rounds": samples, "round_numbers": tuple(range(rounds))}
    return Measurement(name, info.unit, info.better, value, None, "median" if rounds else "exact", **fields)


def timed(value: float, rounds: int = 5, name: str = "latency/forward", spread: Sequence[float] = TIGHT) -> Measurement:
    return measured(name, value, rounds, spread)


def swept(
    values: Sequence[tuple[Point, Measurement | Sequence[Measurement] | Status]],
    baseline: Point,
    threshold: float | None = 0.05,
    **fields: Any,
) -> Comparison:
    """A comparison of rows: axes with the measured values, or with the status of a failure."""
    points = {"-".join(map(str, point.values())): point for point, _ in values}
    bases = find_baselines(baseline, points)
    rows, by_name = [], {}
    for (id, point), (_, seen) in zip(points.items(), values, strict=True):
        status: Status = seen if isinstance(seen, str) else "ok"
        rows.append(Row(id, dict(point), status, None if status == "ok" else "no luck", {}, bases[id]))
        own = [seen] if isinstance(seen, Measurement) else [] if isinstance(seen, str) else seen
        by_name[id] = {one.name: one for one in own}
    names = dict.fromkeys(name for own in by_name.values() for name in own)
    axes = tuple(dict.fromkeys(axis for point in points.values() for axis in point))
    infos = tuple(INFOS[name] for name in names)
    known: dict[str, Any] = {"threshold": threshold, "protocol": {"rounds": [5]}, **fields}
    head = ("s1", "answers", "2026-11-22T00:00:00+00:00", "")
    return Comparison(*head, axes, infos, dict(baseline), compare_rows(rows, by_name, threshold), **known)


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


def night(name: str, *values: Number, better: Better = "higher", unit: str = "ratio") -> Comparison:
    """Of one metric, for batch sizes from 1 on."""
    points = [{"batch_size": size} for size in range(1, len(values) + 1)]
    return build(points, {name: (unit, better)}, [{name: value} for value in values])


def model(seconds: float, accuracy: float, count: int, rounds: int = 5) -> list[Measurement]:
    return [timed(seconds, rounds), measured("quality/accuracy", accuracy), measured("params/total", count)]


TEACHER, STUDENT = model(3.1e-3, 0.9972, 800), model(1e-3, 0.9917, 100)


def of_models(**models: Measurement | Sequence[Measurement]) -> Comparison:
    """Models, of which the first is the baseline."""
    return swept([({"model": name}, own) for name, own in models.items()], {"model": next(iter(models))})


def of_sizes(rounds: int) -> Comparison:
    """Batch sizes alone, without a baseline."""
    found = []
    for size, seconds in ((1, 1e-3), (8, 2e-3), (64, 16e-3)):
        found.append(({"batch_size": size}, [timed(seconds, rounds), timed(size / seconds, rounds, RATE)]))
    return swept(found, {})


def of_layers(*models: str) -> Comparison:
    """Models with their slowest layers."""
    slowest = measured("layers/slowest_self_s", 69.5e-6, layer="conv1", forward=272e-6)
    return swept([({"model": name}, slowest) for name in models], {})


def fulfilling(*backends: str) -> Comparison:
    """Four combinations under a condition that those of these backends fulfil."""
    found = of_backends({"torch": [1, 2], "jax": [3, 0.5]}, constraints=("latency/forward < 2.5 ms",))
    rows = [dataclasses.replace(row, misses=() if row.axes["backend"] in backends else ("x",)) for row in found.rows]
    return dataclasses.replace(found, rows=tuple(rows))


def with_last(of: Comparison, **changes: Any) -> Comparison:
    """With changes of its last row."""
    return dataclasses.replace(of, rows=(*of.rows[:-1], dataclasses.replace(of.rows[-1], **changes)))


CROSSING = swept(
    [({"backend": "torch"}, timed(1.0)), ({"backend": "jax"}, timed(1.2, spread=(1.0, 1.4, 0.7, 1.2, 0.8)))],
    {"backend": "torch"},
)
DECIDED = dataclasses.replace(CROSSING, protocol={"rounds": [20], "decide": ["baseline"]})


def apart(**environments: dict[str, Any]) -> Comparison:
    """The same in environments of their own."""
    rows = [dataclasses.replace(r, environment=environments[r.combination_id], cells={}) for r in CROSSING.rows]
    measured = {}
    for row in CROSSING.rows:
        measured[row.combination_id] = {name: cell.measurement for name, cell in row.cells.items()}
    return dataclasses.replace(CROSSING, rows=compare_rows(rows, measured, 0.05))


NAN = (Warning("outputs_nan", "the outputs of 1 sample have NaN, and count as wrong", "check the model"),)


def of_outputs() -> Comparison:
    """Three pairs, of which the outputs of one differ, and those of another are NaN."""
    sides = []
    for size, difference in ((1, 1e-6), (8, 6.0), (64, 1e-6)):
        for backend, seconds, own in (("torch", 2.0, 0), ("ort", 1.0, difference)):
            detail: dict[str, Any] = {"largest output": 10.0}
            agreement = measured("quality/agreement", own, **detail)
            sides.append(({"backend": backend, "batch_size": size}, [timed(seconds), agreement]))
    return with_last(swept(sides, {"backend": "torch"}), warnings=NAN)


def without_baseline(*rows: Row) -> Comparison:
    alone = tuple(dataclasses.replace(row, baseline_id=None, baseline_status=None) for row in rows)
    return dataclasses.replace(of_outputs(), baseline={}, rows=alone)


FRONT = with_last(
    build(
        [{"width": 1}, {"width": 2}],
        {STEP: ("s", "lower"), "params/total": ("params", "lower")},
        [{STEP: 2, "params/total": 5}, {STEP: 1, "params/total": 4}],
    ),
    warnings=NAN,
)
MIXED = in_rounds(
    *(("torch", n, 1.0, 5) for n in (1, 2, 3, 4)),
    *(("jax", 1, 3.0, 5), ("jax", 2, 3.0, 1), ("jax", 3, 3.0, 1), ("jax", 4, 0.5, 2)),
)
THREE_SIDES = in_rounds(
    *(("torch", n, 1.0, 5) for n in (1, 2)),
    *(("jax", n, 2.0, 5) for n in (1, 2)),
    *(("ort", n, 0.5, 1) for n in (1, 2)),
)
MODES = swept([({"mode": "inference"}, timed(1e-3)), ({"mode": "training"}, timed(4e-3, name=STEP))], {})
MODES_OF_TWO = swept(  # the forward of training is the fastest of all
    [
        *(({"mode": "inference", "threads": n}, [timed(5e-3 * n)]) for n in (1, 2)),
        *(({"mode": "training", "threads": n}, [timed(1e-3 * n), timed(4e-3 * n, name=STEP)]) for n in (1, 2)),
    ],
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
    "six equal sides": swept([({"batch_size": 2**n}, timed(1.0)) for n in range(6)], {"batch_size": 1}),
    "a third side without results": of_backends({"torch": [1, 2], "jax": ["failed", "oom"], "ort": [2, 4]}),
    "a baseline without results": of_backends({"torch": ["failed", "failed"], "jax": [2, 1]}),
    "no results": of_backends({"torch": ["failed", "failed"], "jax": ["failed", "oom"]}),
    "one row without a result": swept([({"model": "mlp"}, "failed")], {}),
    "one row": swept([({"model": "mlp"}, timed(0.002))], {}),
    "no baseline": swept([({"batch_size": n}, timed(n / 1e3)) for n in (2, 1)], {}),
    "counts": swept([({"n": n}, measured("params/total", value)) for n, value in ((1, 40), (2, 30))], {}),
    "inference and training": MODES,
    "inference and training, two of each": MODES_OF_TWO,
    "training": STEPS,
    "sides of two axes": PRECISIONS,
    "counts and a baseline": of_models(a=measured("params/total", 10), b=measured("params/total", 30)),
    # Of a throughput, more is better.
    "throughput": of_rates({"torch": [1000], "jax": [2000]}),
    "throughput, one round": of_rates({"torch": [1000], "jax": [2000]}, rounds=1),
    "throughput with an exception": of_rates({"torch": [1000, 4000, 9000], "jax": [2000, 8000, 4500]}),
    "throughput of three sides": of_rates({"torch": [1000, 1000], "jax": [2000, 2000], "ort": [500, 500]}),
    "since: one slower": since(FOUR, of_backends({"torch": [1.3, 1, 1, 1]})),
    "since: two slower, one faster": since(FOUR, of_backends({"torch": [1.12, 1.15, 0.5, 1]})),
    "since: one slower, two faster": since(FOUR, of_backends({"torch": [1.3, 0.8, 0.5, 1]})),
    "since: the same": since(FOUR, FOUR),
    "since: not certain": since(FOUR, of_backends({"torch": [1, 9, 1, 1]}, rounds=1)),
    "since: results that are gone": since(FOUR, of_backends({"torch": [1, "oom", "oom"]})),
    "since: nothing in common": since(ELSEWHERE, FOUR),
    "since: another year": set_against(FOUR, before(FOUR, "2025-03-01T03:00:00+00:00"), "nightly"),
    "since: the other one has too few rounds": since(of_backends({"torch": [1, 9, 1, 1]}, rounds=1), FOUR),
    "since: fell to zero": since(night("quality/accuracy", 0.97), night("quality/accuracy", 0)),
    "since: one fell to zero": since(night("quality/accuracy", 0.97, 0.97), night("quality/accuracy", 0.97, 0)),
    "since: 0.9 instead of 1": since(night("mine/score", 1), night("mine/score", 0.9)),
    "since: half": since(night("mine/score", 1), night("mine/score", 0.5)),
    "since: 1.1 where less is better": since(night("x", 1, better="lower"), night("x", 1.1, better="lower")),
    "since: throughput alone": since(night(RATE, 1000, unit="samples/s"), night(RATE, 900, unit="samples/s")),
    "a student and its teacher": of_models(teacher=TEACHER, student=STUDENT),
    "a teacher and its student": of_models(student=STUDENT, teacher=TEACHER),
    "a larger student that is as accurate": of_models(teacher=TEACHER, student=model(1e-3, 0.9972, 880)),
    "a student, one round": of_models(teacher=TEACHER, student=model(1e-3, 0.9972, 100, rounds=1)),
    "batch sizes": of_sizes(rounds=5),
    "batch sizes, one round": of_sizes(rounds=1),
    "batch sizes, little faster": night(RATE, 1000, 1150, unit="samples/s"),
    "the slowest layer": of_layers("lenet5"),
    "the slowest layers": of_layers("lenet5", "mlp"),
    "a condition": fulfilling("jax"),
    "a condition that nothing fulfils": fulfilling(),
    "an interval that is too wide": CROSSING,
    "two hosts": apart(torch={"host": "torch"}, jax={"host": "jax"}),
    "other processors": apart(torch={"processors available": 1}, jax={"processors available": 2}),
    "a noisy row": with_last(CROSSING, warnings=(Warning("spread_high", "IQR is 31 %", "wait"),)),
    "more rounds would settle it": DECIDED,
    "more rounds would not settle it": with_last(
        DECIDED,
        cells={NAME: dataclasses.replace(DECIDED.rows[1].cells[NAME], rounds_needed=None)},
    ),
    "outputs that are NaN or wrong": of_outputs(),
    "outputs that are NaN, and no baseline": without_baseline(of_outputs().rows[0], of_outputs().rows[-1]),
    "a search that found NaN": dataclasses.replace(FRONT, search=SearchSummary((SearchGoal(STEP, "minimize"),), 2, 2)),
    "a batch size whose outputs are NaN": with_last(night(RATE, 1000, 3000, unit="samples/s"), warnings=NAN),
}


def test_comparisons_in_words(golden: Callable[[str, str], None]) -> None:
    golden("answers.txt", "".join(f"{name}:\n  {told(answer(case))}\n" for name, case in CASES.items()))


def test_outputs_that_are_nan_or_wrong_are_never_the_best() -> None:
    rows = of_outputs().rows
    some = dataclasses.replace(of_outputs(), rows=(rows[0], rows[3], rows[-1]))
    assert some.best(NAME) is some.rows[0]
    assert [row.on_front for row in with_selection(FRONT, [STEP, "params/total"]).rows] == [True, False]


def told(found: Answer) -> str:
    best = (
        ""
        if found.best is None
        else "".join(f"\n    {' | '.join(line)}" for line in (found.best.head, *found.best.lines))
    )
    return " ".join(part for part in (found.finding, found.certainty, found.advice) if part) + best


def plain(text: str) -> str:
    """Markdown or wrapped text on one line, without marks."""
    return html.unescape(" ".join(text.replace("**", "").replace("\\", "").split()))


def test_a_gate_that_fails_says_why_in_one_line() -> None:
    """Metrics that changed in the same combinations are one reason; what has no ratio is told or counted."""

    def change(kind: ChangeKind, axes: str, title: str, factor: float | None = None, now: str = "there") -> SweepChange:
        return SweepChange(kind, axes, title, title, "was", now, factor=factor)

    several = []
    for axes, factor in (("a", 1.06), ("b", 1.25)):
        several += [change("worse", axes, title, factor) for title in ("parameters", "MACs")]
    cases = {
        "parameters and MACs grew 6 to 25% in 2 combinations": several,
        "parameters grew 6% in a; throughput fell 20% in a": [
            change("worse", "a", "parameters", 1.06),
            change("worse", "a", "throughput", 0.8),
        ],
        "a: status: was → oom": [change("worse", "a", "status", now="oom")],
        "2 changes worse; c: status: was → gone": [
            change("worse", "a", "status"),
            change("worse", "b", "latency", 1.2e6),
            change("missing", "c", "status", now="gone"),
        ],
        "x0 grew 10% in a0; x1 grew 10% in a1; x2 grew 10% in a2; and 2 more": [
            change("worse", f"a{number}", f"x{number}", 1.1) for number in range(5)
        ],
    }
    for reason, found in cases.items():
        changes = Changes(answer(sample()), (), tuple(found), {"same": 0}, 3, ())
        assert gate_text(changes, ["worse", "missing"]) == f"FAILED (exit 3): {reason}."
    hostile = Changes(answer(sample()), (), (change("worse", "<b>@all|", "x", 1.1),), {"same": 0}, 3, ())
    assert "<b>" not in markdown_of_changes(hostile, "", ["worse"])


def test_a_further_metric_that_is_not_comparable_is_told() -> None:
    metrics: dict[str, tuple[str, Better]] = {"quality/accuracy": ("ratio", "higher"), "quality/loss": ("nat", "lower")}
    made = build([{"model": "a"}], metrics, [dict.fromkeys(metrics, 1)])
    now, then = (
        dataclasses.replace(made, rows=(dataclasses.replace(made.rows[0], test_data=data),))
        for data in ("400 samples", "360 samples")
    )
    assert answer(set_against(now, before(then), "nightly")).finding == (
        "Since 20 November: no certain change in accuracy (1 combination). Not comparable: loss (nat) in 1."
    )


def test_a_metric_that_is_no_longer_measured_is_told() -> None:
    metrics: dict[str, tuple[str, Better]] = dict.fromkeys(("quality/accuracy", "params/total"), ("ratio", "higher"))
    both = build([{"model": "a"}], metrics, [dict.fromkeys(metrics, 1)])
    now = build([{"model": "a"}], {"params/total": ("ratio", "higher")}, [{"params/total": 1}])
    assert answer(set_against(now, before(both), "nightly")).finding.endswith("No longer measured: accuracy.")
    assert "No longer" not in answer(set_against(before(both), now, "nightly")).finding


def test_the_first_lines_name_what_failed_and_repeat_the_best_row() -> None:
    """Within twelve lines of 80 characters; where the time is constrained the best row is the one with the highest throughput."""
    sides = []
    for backend, size in itertools.product(("torch", "ort"), (1, 8, 64)):
        seconds = 1e-3 * size**0.5 * (1.0 if backend == "ort" else 4.0)
        point = {"backend": backend, "batch_size": size}
        sides.append((point, [timed(seconds), timed(size / seconds, name=RATE)]))
    found = swept(sides, {"backend": "torch"})
    rows = [dataclasses.replace(row, command=f"sweeprof row={place}") for place, row in enumerate(found.rows)]
    rows[5] = dataclasses.replace(rows[5], status="oom", reason="timing: out of memory", cells={})
    found = dataclasses.replace(found, rows=tuple(rows))
    shown = plain(" ".join(terminal(found, 80).splitlines()[:12]))
    assert "oom: backend=ort, batch_size=64 – timing: out of memory" in shown
    assert "Repeat one row: sweeprof row=3 " in shown
    within = dataclasses.replace(found, constraints=("latency < 4 ms",))
    shown = plain(" ".join(terminal(within, 80).splitlines()[:12]))
    assert shown.startswith("Best throughput with latency < 4 ms: ort, batch_size 8 – 2.83 k/s")
    assert "Repeat one row: sweeprof row=4 " in shown


# The answers of sweeps drawn by chance, checked from the table by code that shares nothing with it


CERTAIN = ("better", "worse", "same")


def cases_of(comparison: Comparison) -> list[list[Row]]:
    """Every baseline that others are planned beside, followed by those that can be compared with it."""
    found = []
    for base in comparison.rows:
        others = [row for row in comparison.rows if row.baseline_id == base.combination_id and row is not base]
        if others:
            found.append([base, *filter(usable, others)])
    return found


def usable(row: Row) -> bool:
    cell = row.cells.get("latency/forward")
    is_compared = row.has_values and row.baseline_has_values and not row.is_baseline
    return is_compared and cell is not None and bool(cell.ratio) and cell.ratio != math.inf


def side_of(row: Row) -> str:
    return str(row.axes["backend"])


def ratio_of(row: Row) -> float:
    return row.cells["latency/forward"].ratio or 0


def verdict_between(comparison: Comparison, row: Row, best: Row) -> str | None:
    """The verdict of a row with another one as its baseline, in a comparison of the two."""
    if row.baseline_id == best.combination_id:
        return row.cells["latency/forward"].verdict
    pair = [dataclasses.replace(one, baseline_id=best.combination_id, cells={}) for one in (best, row)]
    values = {one.combination_id: {"latency/forward": one.cells["latency/forward"].measurement} for one in (best, row)}
    return compare_rows(pair, values, comparison.threshold)[1].cells["latency/forward"].verdict


def outcome(comparison: Comparison, rows: Sequence[Row]) -> str:
    """Who wins a case: the names of the best sides, ``equal``, ``open``, or ``nobody`` where nothing is compared."""
    if len(rows) < 2:
        return "nobody"
    best = min(rows, key=lambda row: row.cells["latency/forward"].measurement.value or 0)
    verdicts = {side_of(row): verdict_between(comparison, row, best) for row in rows if row is not best}
    if not set(verdicts.values()) <= {"worse", "same"}:
        return "open"
    if set(verdicts.values()) == {"same"}:
        return "equal"
    return " and ".join(side_of(row) for row in rows if row is best or verdicts[side_of(row)] == "same")


@pytest.mark.parametrize("seed", range(100))
def test_an_answer_claims_what_verdicts_support_and_nothing_else(seed: int) -> None:
    is_two_sided = seed % 2 == 0
    comparison = two_sided(seed) if is_two_sided else drawn(seed, models=1 + seed % 3).comparison()
    cases = cases_of(comparison)
    found = answer(comparison)
    outcomes = Counter(outcome(comparison, case) for case in cases)
    if set(outcomes) <= {"nobody"}:
        assert not re.search(r"faster|slower|fastest|equal", found.finding)
        return
    text, total = found.finding, len(cases)
    winners = {name: count for name, count in outcomes.items() if name not in ("equal", "open", "nobody")}
    claim = re.match(
        r"(?P<who>[\w ]+?) (?:is|are) (?:(?P<amount>[\d.]+(?:[×%]? to |–)?[\d.]*[×%]) faster than \w+|the fastest of \d)"
        r"(?: in (?P<all>both|all \d+)?(?:(?P<some>\d+) of (?P<of>\d+))? cases)?",
        text,
    )
    assert bool(claim) == bool(winners), text
    if claim:
        count = total if claim["all"] or claim["some"] is None else int(claim["some"])
        told_winners = {claim["who"]: count}
        told_winners |= {name: int(n) for name, n in re.findall(r"; ([\w ]+?) in (\d+)", text) if name in winners}
        assert told_winners == winners
        if claim["amount"] and is_two_sided:
            won = [case for case in cases if outcome(comparison, case) == claim["who"]]
            sizes = [max(ratio_of(case[1]), 1 / ratio_of(case[1])) for case in won]
            ends = re.findall(r"[\d.]+[×%]?", claim["amount"])
            low, high = (amount(end if end[-1] in "×%" else end + claim["amount"][-1]) for end in (ends[0], ends[-1]))
            assert low == pytest.approx(min(sizes), rel=0.06)
            assert high == pytest.approx(max(sizes), rel=0.06)
        rest = {"equal": r"; equal in (\d+)", "open": r"; (?:undecided|no certain winner) in (\d+)"}
        rest["nobody"] = r"; (\d+) without a result"
        for kind, pattern in rest.items():
            assert int((re.search(pattern, text) or ["", "0"])[1]) == outcomes[kind], text
    elif outcomes["equal"]:
        assert re.search(r" are equally fast", text)
    else:
        assert text.startswith("No certain "), text
    certain = [row.cells["latency/forward"].verdict in CERTAIN for case in cases for row in case[1:]]
    level = "high" if all(certain) else "medium" if 2 * sum(certain) >= len(certain) else "low"
    assert found.confidence == level
    if found.best is not None:
        for case, line in zip(sorted_cases(comparison, cases), found.best.lines, strict=True):
            assert (line[-3].endswith("~")) == (outcome(comparison, case) == "open")


def sorted_cases(comparison: Comparison, cases: Sequence[list[Row]]) -> list[list[Row]]:
    """The cases in the order of the tables."""
    order = [line.row.combination_id for line in whole_table(comparison).lines]
    return sorted(cases, key=lambda case: order.index(case[0].combination_id))


def amount(text: str) -> float:
    """A factor from ``2.0×`` or ``12%``."""
    return float(text.removesuffix("×")) if text.endswith("×") else 1 + float(text.removesuffix("%")) / 100


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


# What is told of two sweeps

ACCURACY, PARAMS, PEAK = "quality/accuracy", "params/total", "memory/rss_peak_bytes"
ONE_INFOS: dict[str, tuple[str, Better]] = {ACCURACY: ("ratio", "higher"), PARAMS: ("", "lower"), PEAK: ("B", "lower")}


def of_one(
    values: dict[str, Number],
    threshold: float | None = 0.05,
    status: Status = "ok",
    test_data: str | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> Comparison:
    """A sweep of one combination; a peak is measured once."""
    metrics = {name: ONE_INFOS[name] for name in values}
    made = build([{"model": "a"}], metrics, [values], threshold=threshold, thresholds=thresholds or {})
    cells = dict(made.rows[0].cells)
    if PEAK in cells:
        once = dataclasses.replace(cells[PEAK].measurement, estimator="high-water mark")
        cells[PEAK] = dataclasses.replace(cells[PEAK], measurement=once)
    row = dataclasses.replace(made.rows[0], cells=cells, status=status, test_data=test_data)
    return dataclasses.replace(made, rows=(row,))


def of_peak(peak: int, threshold: float | None = 0.05) -> Comparison:
    return of_one({PEAK: peak}, threshold)


def of_data(accuracy: float, params: int, test_data: str | None) -> Comparison:
    return of_one({ACCURACY: accuracy, PARAMS: params}, test_data=test_data)


def of_counts(*counts: int) -> Comparison:
    return night("params/total", *counts, better="lower", unit="params")


def lost(reason: str) -> Comparison:
    """A sweep whose accuracy has no value for this reason."""
    made = of_one({ACCURACY: 1})
    cell = made.rows[0].cells[ACCURACY]
    cells = {
        ACCURACY: dataclasses.replace(
            cell, measurement=dataclasses.replace(cell.measurement, value=None, reason=reason)
        )
    }
    return dataclasses.replace(made, rows=(dataclasses.replace(made.rows[0], cells=cells),))


BOTH: dict[str, Number] = {ACCURACY: 0.98, PEAK: 100}
CHANGED: dict[str, tuple[Comparison, Comparison]] = {
    "one of two is slower": (of_backends({"torch": [1, 1]}), of_backends({"torch": [1.3, 1]})),
    "a few more in both": (of_counts(61_706, 61_706), of_counts(61_716, 61_716)),
    "one of millions more in both": (of_counts(61_706_123, 61_706_123), of_counts(61_706_124, 61_706_124)),
    "half as many again in all four": (of_counts(200, 200, 200, 200), of_counts(300, 300, 300, 300)),
    "it runs out of memory": (of_peak(100), of_one({PEAK: 100}, status="oom")),
    "it runs out of memory no longer": (of_one({PEAK: 100}, status="oom"), of_peak(100)),
    "it fails otherwise": (of_one({PEAK: 100}, status="failed"), of_one({PEAK: 100}, status="oom")),
    "it fails again": (of_one({PEAK: 100}, status="failed"), of_one({PEAK: 100}, status="failed")),
    "a peak, measured once, that is the same": (of_peak(100), of_peak(100, None)),
    "a peak of zero": (of_peak(0), of_peak(0)),
    "a peak within the threshold": (of_peak(100), of_peak(104)),
    "a lower peak within the threshold": (of_peak(100), of_peak(96)),
    "a peak without a threshold": (of_peak(100), of_peak(104, None)),
    "a peak beyond the threshold": (of_peak(100), of_peak(110)),
    "a lower peak beyond the threshold": (of_peak(100), of_peak(90)),
    "accuracy and a peak": (of_one(BOTH), of_one({ACCURACY: 0.979, PEAK: 150})),
    "both within thresholds of their own": (
        of_one(BOTH),
        of_one({ACCURACY: 0.979, PEAK: 150}, thresholds={ACCURACY: 0.01, PEAK: 0.6}),
    ),
    "both beyond thresholds of their own": (
        of_one(BOTH),
        of_one({ACCURACY: 0.94, PEAK: 150}, thresholds={ACCURACY: 0.01, PEAK: 0.2}),
    ),
    "other test data": (of_data(1, 1, "360 samples with targets aa"), of_data(0.5, 2, "400 samples with targets bb")),
    "the same test data": (of_data(1, 1, "360 samples"), of_data(0.5, 2, "360 samples")),
    "test data that were not noted before": (of_data(1, 1, None), of_data(0.5, 2, "360 samples")),
    "test data that are not noted": (of_data(1, 1, "360 samples"), of_data(0.5, 2, None)),
    "a value that is lost": (of_one({ACCURACY: 1}), lost("ValueError: no")),
    "a value that was not asked for": (of_one({ACCURACY: 1}), lost(NO_BASELINE)),
}


def test_what_has_changed_since_another_sweep(golden: Callable[[str, str], None]) -> None:
    texts = []
    for name, (then, now) in CHANGED.items():
        compared = set_against(now, before(then), "last")
        changes, title, failing = changes_of(compared, compared.metrics), "compared with last", ["worse", "missing"]
        out = io.StringIO()
        print_changes(changes, title, console(file=out, width=100), failing)
        texts.append(f"==== {name}\n{out.getvalue()}---- Markdown\n{markdown_of_changes(changes, title, failing)}")
    golden("changes.txt", "\n".join(texts))
