"""The answer of a comparison in words, against the table by code that shares nothing with it."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from support.drawn import drawn
from support.samples import comparison as sample
from sweeprof.report.answer import Answer, answer
from sweeprof.results.compare import Comparison, Row, compare_rows, find_baselines
from sweeprof.results.cross_sweep import set_against
from sweeprof.results.measurement import Measurement, MetricInfo
from sweeprof.results.record import Status, Warning

FORWARD = MetricInfo("latency/forward", "s", "lower", "Seconds.")
STEP = MetricInfo("latency/iteration", "s", "lower", "Seconds.")
PARAMS = MetricInfo("params/total", "params", "lower", "Parameters.")
MEMORY = MetricInfo("memory/rss_peak_bytes", "B", "lower", "Peak.")
INFOS = {info.name: info for info in (FORWARD, STEP, PARAMS, MEMORY)}
TIGHT = (1.0, 1.001, 0.999, 1.0005, 0.9995)

Point = Mapping[str, Any]


def timed(value: float, rounds: int = 5, name: str = "latency/forward", spread: Sequence[float] = TIGHT) -> Measurement:
    samples = tuple(value * factor for factor in spread[:rounds])
    return Measurement(
        name, INFOS[name].unit, "lower", value, None, "median", rounds=samples, round_numbers=tuple(range(rounds))
    )


def swept(
    values: Sequence[tuple[Point, Measurement | Status]],
    baseline: Point,
    threshold: float | None = 0.05,
    created: str = "2026-11-22T00:00:00+00:00",
    **fields: Any,
) -> Comparison:
    """A comparison of rows: axes with the measured time, or with the status of a failure."""
    points = {f"c{number}": point for number, (point, _) in enumerate(values)}
    bases = find_baselines(baseline, points)
    rows, measured = [], {}
    for (id, point), (_, seen) in zip(points.items(), values, strict=True):
        status: Status = seen if isinstance(seen, str) else "ok"
        rows.append(Row(id, dict(point), status, None if status == "ok" else "no luck", {}, bases[id]))
        measured[id] = {} if isinstance(seen, str) else {seen.name: seen}
    names = dict.fromkeys(name for own in measured.values() for name in own)
    axes = tuple(dict.fromkeys(axis for point in points.values() for axis in point))
    return Comparison(
        *(
            fields.pop("sweep_id", "s1"),
            "answers",
            created,
            "",
            axes,
            tuple(INFOS[name] for name in names),
            dict(baseline),
        ),
        compare_rows(rows, measured, threshold),
        threshold=threshold,
        protocol={"rounds": [5]},
        **fields,
    )


def of_backends(times: Mapping[str, Sequence[float | Status]], **fields: Any) -> Comparison:
    """Backends × batch sizes 1, 8, 64 …, in milliseconds; the first backend is the baseline."""
    rounds = fields.pop("rounds", 5)
    values: list[tuple[Point, Measurement | Status]] = []
    for backend, own in times.items():
        for power, ms in enumerate(own):
            seen = ms if isinstance(ms, str) else timed(ms / 1e3, rounds)
            values.append(({"backend": backend, "batch_size": 8**power}, seen))
    return swept(values, {"backend": next(iter(times))}, **fields)


SURE = "Confidence: high."
AGAIN = "Run again with protocol=default."

SENTENCES: list[tuple[Comparison, str]] = [
    (
        of_backends({"torch": [1, 2, 4], "jax": [2, 4, 8]}),
        f"torch is faster than jax in all 3 cases, 2.0× overall. {SURE}",
    ),
    (of_backends({"torch": [1], "jax": [0.5]}), f"jax is 2.0× faster than torch. {SURE}"),
    (of_backends({"torch": [1], "jax": [1.12]}), f"torch is 12 % faster than jax. {SURE}"),
    (of_backends({"torch": [1], "jax": [30]}), f"torch is 30× faster than jax. {SURE}"),
    (
        of_backends({"torch": [1, 1], "jax": [1.01, 0.99]}),
        f"torch and jax are equally fast in all 2 cases, within 5 %. {SURE}",
    ),
    (
        of_backends({"torch": [1, 1, 1], "jax": [3, 3, 0.5]}),
        f"torch is faster than jax in 2 of 3 cases, 1.7× overall; jax is 2.0× faster for batch_size 64. {SURE}",
    ),
    (
        of_backends({"torch": [1, 1, 1, 1], "jax": [0.2, 1.01, 1.25, 1.5]}),
        "jax is faster than torch in 1 of 4 cases, 1.3× overall; "
        f"torch is 1.5× faster for batch_size 512 and 1.2× for batch_size 64; they are about equal in 1. {SURE}",
    ),
    (
        of_backends({"torch": [1] * 5, "jax": [4, 4, 0.8, 0.7, 0.6]}),
        f"torch is faster than jax in 2 of 5 cases, 1.4× overall; jax is faster in 3, at most 1.7× (for batch_size 4096). {SURE}",
    ),
    (
        of_backends({"torch": [1, 2], "jax": [2, 4]}, rounds=1),
        f"torch is faster than jax in all 2 cases, 2.0× overall. Confidence: low (1 round). {AGAIN}",
    ),
    (
        of_backends({"torch": [1, 2], "jax": [1.05, 2.1]}, rounds=1, threshold=None),
        f"torch and jax are about equally fast in all 2 cases. Confidence: low (1 round). {AGAIN}",
    ),
    (
        of_backends({"torch": [1, 2], "jax": [2, 4]}, threshold=None),
        f"torch is faster than jax in all 2 cases, 2.0× overall. Confidence: low (no threshold). {AGAIN}",
    ),
    (
        of_backends({"torch": [1, 1], "jax": [2, "crashed"], "ort": [0.5, 0.5]}),
        "ort is the fastest of 3 in all 2 cases, 2.0× faster than torch overall; "
        f"jax is the slowest overall, 2.0× slower than torch. {SURE}",
    ),
    (
        of_backends({"torch": [1, 1, 1], "jax": [2, 2, 2], "ort": [0.5, 0.5, 3]}),
        f"ort is the fastest of 3 in 2 of 3 cases, 10 % faster than torch overall; torch is the fastest in 1 (batch_size 64); "
        f"jax is the slowest overall, 2.0× slower than torch. {SURE}",
    ),
    (
        of_backends({"torch": [1, 1], "jax": [1.01, 1], "ort": [0.99, 1]}),
        f"torch, jax and ort are equally fast in all 2 cases, within 5 %. {SURE}",
    ),
    (
        of_backends({"torch": [1], "jax": [1.01], "ort": [3]}),
        f"torch is the fastest of 3; jax is within 5 % of it; ort is the slowest overall, 3.0× slower than torch. {SURE}",
    ),
    (
        swept([({"batch_size": 2**n}, timed(1.0)) for n in range(6)], {"batch_size": 1}),
        f"All 6 are equally fast, within 5 %. {SURE}",
    ),
    (
        of_backends({"torch": [1, 1], "jax": ["failed", "failed"]}),
        "The lowest latency is 1.00 ms (torch, batch_size 1).",
    ),
    (
        of_backends({"torch": ["failed", "failed"], "jax": ["failed", "oom"]}),
        "None of 4 combinations has a result. The reason: no luck.",
    ),
    (swept([({"model": "mlp"}, "failed")], {}), "The combination has no result. The reason: no luck."),
    (swept([({"model": "mlp"}, timed(0.002))], {}), "The latency of mlp is 2.00 ms."),
    (swept([({"batch_size": n}, timed(n / 1e3)) for n in (2, 1)], {}), "The lowest latency is 1.00 ms (batch_size 1)."),
    (
        swept(
            [({"mode": "inference"}, timed(1e-3)), ({"mode": "training"}, timed(4e-3, name="latency/iteration"))], {}
        ),
        "The latency of inference is 1.00 ms; the time of a training step of training is 4.00 ms.",
    ),
    (
        swept(
            [
                ({"batch_size": n, "mode": "training", "backend": b}, timed(t, name="latency/iteration"))
                for n, b, t in ((1, "torch", 1.0), (1, "jax", 3.0))
            ],
            {"backend": "torch"},
        ),
        f"torch is 3.0× faster than jax. {SURE}",
    ),
    (
        swept(
            [
                ({"backend": b, "p": p}, timed(t))
                for b, p, t in (("torch", "fp32", 2.0), ("torch", "bf16", 1.0), ("jax", "fp32", 4.0))
            ],
            {"backend": "torch", "p": "fp32"},
        ),
        "torch, bf16 is the fastest of 3, 2.0× faster than torch, fp32; "
        f"jax, fp32 is the slowest overall, 2.0× slower than torch, fp32. {SURE}",
    ),
    (
        swept(
            [({"model": m}, Measurement("params/total", "params", "lower", n)) for m, n in (("a", 10), ("b", 30))],
            {"model": "a"},
        ),
        f"By parameters, a is 3.0× lower than b. {SURE}",
    ),
]


@pytest.mark.parametrize(("comparison", "said"), SENTENCES, ids=range(len(SENTENCES)))
def test_a_comparison_in_words(comparison: Comparison, said: str) -> None:
    assert told(answer(comparison)) == said


def told(found: Answer) -> str:
    return " ".join(part for part in (found.finding, found.certainty, found.advice) if part)


def test_the_quickstart() -> None:
    assert str(answer(sample())) == (
        "torch is faster than tensorflow in all 7 cases, 1.9× overall. "
        "16 of 18 combinations measured; 1 crashed, 1 unsupported. "
        "Confidence: low (1 round, 1 noisy row). Run again with protocol=default."
    )


def test_conditions_come_first() -> None:
    found = of_backends({"torch": [1, 2], "jax": [3, 0.5]}, constraints=("latency/forward < 2.5 ms",))
    rows = tuple(
        dataclasses.replace(row, misses=("x",)) if row.axes["backend"] == "torch" else row for row in found.rows
    )
    qualified = dataclasses.replace(found, rows=rows)
    first = "2 of 4 combinations fulfil all conditions; the fastest of them is 500 µs (jax, batch_size 8). "
    assert str(answer(qualified)).startswith(first + "jax is faster than torch in 1 of 2 cases")
    none = dataclasses.replace(found, rows=tuple(dataclasses.replace(row, misses=("x",)) for row in rows))
    assert str(answer(none)).startswith("None of 4 combinations fulfils all conditions (latency/forward < 2.5 ms).")


def test_changes_since_another_sweep() -> None:
    before = of_backends({"torch": [1, 1, 1, 1]}, sweep_id="s0", created="2026-11-20T03:00:00+00:00")
    after = of_backends({"torch": [1.3, 1, 1, 1]})
    assert (
        told(answer(set_against(after, before, "nightly"))) == f"Since 20 November: batch_size=1 is 1.3× slower. {SURE}"
    )
    after = of_backends({"torch": [1.12, 1.15, 0.5, 1]})
    assert told(answer(set_against(after, before, "nightly"))) == (
        f"Since 20 November: 2 of 4 combinations are slower, at most 15 % (batch_size=8); batch_size=64 is 2.0× faster. {SURE}"
    )
    assert told(answer(set_against(before, before, "nightly"))) == (
        f"Since 20 November: nothing has changed in 4 combinations. {SURE}"
    )
    few = of_backends({"torch": [1, 9, 1, 1]}, rounds=1)
    assert told(answer(set_against(few, before, "nightly"))) == (
        f"Since 20 November: nothing is certain to have changed in 4 combinations. Confidence: low (1 round). {AGAIN}"
    )
    assert "Measure the other sweep again" in str(answer(set_against(before, few, "nightly")))
    old = dataclasses.replace(before, created="2025-03-01T03:00:00+00:00")
    assert told(answer(set_against(after, old, "nightly"))).startswith("Since 1 March 2025: ")
    other = dataclasses.replace(
        before,
        rows=tuple(
            dataclasses.replace(r, combination_id=f"x{r.combination_id}", axes={"backend": "jax"}) for r in before.rows
        ),
    )
    assert told(answer(set_against(after, other, "nightly"))) == (
        "No combination can be compared with nightly of 20 November."
    )


def test_the_reasons_for_a_low_confidence() -> None:
    wide = (1.0, 1.4, 0.7, 1.2, 0.8)
    values = [({"backend": "torch"}, timed(1.0)), ({"backend": "jax"}, timed(1.2, spread=wide))]
    crossing = swept(values, {"backend": "torch"})
    found = answer(crossing)
    assert (found.confidence, found.reasons) == ("low", ("1 too close to the threshold",))
    needed = crossing.rows[1].cells["latency/forward"].rounds_needed
    assert needed is not None
    assert found.advice == f"About {needed} rounds would settle it: protocol.rounds={needed}."
    hosts = [dataclasses.replace(row, environment={"host": row.axes["backend"]}, cells={}) for row in crossing.rows]
    measured = {
        row.combination_id: {"latency/forward": row.cells["latency/forward"].measurement} for row in crossing.rows
    }
    apart = dataclasses.replace(crossing, rows=compare_rows(hosts, measured, 0.05))
    assert told(answer(apart)).endswith(
        "Confidence: low (1 measured in another environment). Measure both on one host."
    )
    noise = (Warning("spread_high", "IQR is 31 %", "wait"),)
    noisy = dataclasses.replace(crossing, rows=tuple(dataclasses.replace(row, warnings=noise) for row in crossing.rows))
    assert answer(noisy).reasons[-1] == "2 noisy rows"


# The answers of fifty sweeps drawn by chance, checked from the table.


def usable(row: Row) -> bool:
    cell = row.cells["latency/forward"]
    return (
        row.has_values
        and row.baseline_has_values
        and not row.is_baseline
        and bool(cell.ratio)
        and cell.ratio != math.inf
    )


def wins(rows: Sequence[Row]) -> dict[str, int]:
    """How many cases each backend wins: the lowest ratio that is called better or is beyond the threshold of 5 %, or else b0."""
    found: dict[str, int] = {}
    for place in {(row.axes["model"], row.axes["batch_size"]) for row in rows}:
        ratios = {"b0": 1.0}
        for row in rows:
            if (row.axes["model"], row.axes["batch_size"]) == place:
                cell = row.cells["latency/forward"]
                assert cell.ratio is not None
                is_lower = cell.verdict == "better" or (cell.verdict not in ("worse", "same") and cell.ratio < 1 / 1.05)
                ratios[row.axes["backend"]] = cell.ratio if is_lower else math.inf
        winner = min(ratios, key=lambda name: ratios[name])
        found[winner] = found.get(winner, 0) + 1
    return found


def close_to(winner: str, rows: Sequence[Row]) -> dict[str, int]:
    """In how many of the cases that ``winner`` wins each other backend is at most 5 % behind it."""
    found: dict[str, int] = {}
    for place in {(row.axes["model"], row.axes["batch_size"]) for row in rows}:
        here = [row for row in rows if (row.axes["model"], row.axes["batch_size"]) == place]
        if list(wins(here)) == [winner]:
            ratios = {"b0": 1.0, **{row.axes["backend"]: row.cells["latency/forward"].ratio or 0 for row in here}}
            for name, ratio in ratios.items():
                if name != winner and ratio <= ratios[winner] * 1.05:
                    found[name] = found.get(name, 0) + 1
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
    if text.startswith("b0, b1 and b2 are"):
        assert " equally fast" in text
        assert all(row.cells["latency/forward"].ratio == pytest.approx(1, abs=0.053) for row in rows)
        return
    first = re.match(r"(b\d) is the fastest of 3(?: in (all|\d+ of) (\d+) cases)?", text)
    assert first, text
    winner, number, cases = first.groups()
    assert int(cases or 1) == total
    hardly_behind = re.findall(r"; (b\d) is within 5 % of it(?: in (\d+))?", text)
    assert {name: int(n or 1) for name, n in hardly_behind} == close_to(winner, rows)
    assert expected[winner] == max(expected.values()) == (total if number in ("all", None) else int(number.split()[0]))
    others = {name: int(n) for name, n in re.findall(r"; (b\d) is the fastest in (\d+)", text)}
    assert others == {name: number for name, number in expected.items() if name != winner}
    overall = {
        name: math.exp(
            statistics.fmean(
                math.log(row.cells["latency/forward"].ratio or 0) for row in rows if row.axes["backend"] == name
            )
        )
        for name in ("b1", "b2")
    }
    for name, amount, word in re.findall(r"(b\d) is the [a-z0-9 ]*, ([\d.]+ ?[×%]) (faster|slower) than b0", text):
        factor = max(overall[name], 1 / overall[name])
        told = float(amount[:-1]) if amount.endswith("×") else 1 + float(amount[:-1]) / 100
        assert told == pytest.approx(factor, rel=0.06)
        assert (word == "faster") == (overall[name] < 1)
    lacking = sum(not row.has_values for row in comparison.rows)
    assert f" {len(comparison.rows) - lacking} of {len(comparison.rows)} combinations measured" in text
    certain = sum(row.cells["latency/forward"].verdict in ("better", "worse", "same") for row in rows)
    level = "high" if certain == len(rows) else "medium" if certain >= len(rows) / 2 else "low"
    assert f"Confidence: {level}" in text
