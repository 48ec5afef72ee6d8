"""The best batch size of each other setting."""

from __future__ import annotations

from dataclasses import replace

from support.samples import comparison
from sweeprof.report.summary import MOST_BATCH_LINES, batch_lines, best_rows
from sweeprof.results.compared_rows import value_of
from sweeprof.results.constraints import BATCH_METRIC


def test_each_other_setting_has_its_highest_throughput() -> None:
    whole = comparison(("lenet5", "mlp"), broken=False)
    lines = list(batch_lines(whole))
    assert len(lines) == 4
    for line in lines:
        others, _, said = line.partition(": ")
        rows = [
            r for r in whole.rows if f"model={r.axes['model']}" in others and f"backend={r.axes['backend']}" in others
        ]
        best = max(rows, key=lambda row: value_of(row, BATCH_METRIC) or 0)
        assert len(rows) > 1
        assert said.startswith(f"{best.axes['batch_size']} – ")


def test_a_row_that_failed_is_none() -> None:
    whole = comparison(("lenet5", "mlp"), broken=False)
    best = max(whole.rows, key=lambda row: value_of(row, BATCH_METRIC) or 0)
    without = replace(whole, rows=tuple(row for row in whole.rows if row is not best))
    changed = set(batch_lines(whole)) ^ set(batch_lines(without))
    assert len(changed) == 2


def test_where_it_says_nothing_new_there_is_none() -> None:
    whole = comparison(("lenet5", "mlp"), broken=False)
    sizes = {row.axes["batch_size"] for row in whole.rows}
    one_size = replace(whole, rows=tuple(row for row in whole.rows if row.axes["batch_size"] == min(sizes)))
    assert not list(batch_lines(one_size))
    first = whole.rows[0].axes
    alike = [row for row in whole.rows if all(row.axes[axis] == first[axis] for axis in ("model", "backend"))]
    assert len(alike) > 1
    assert not list(batch_lines(replace(whole, rows=tuple(alike))))
    many = [replace(row, axes={**row.axes, "model": f"m{i}"}) for i in range(MOST_BATCH_LINES) for row in whole.rows]
    assert not list(batch_lines(replace(whole, rows=tuple(many))))


def test_a_row_that_failed_is_no_winner_though_it_has_figures() -> None:
    whole = comparison(("lenet5", "mlp"), broken=False)
    best = max(whole.rows, key=lambda row: value_of(row, BATCH_METRIC) or 0)
    failed = replace(best, status="failed", reason="outputs differ", baseline_id=None)
    judged = replace(whole, rows=tuple(failed if row is best else row for row in whole.rows))
    assert not set(batch_lines(judged)) >= set(batch_lines(whole))
    fastest = [
        {found.model: found.where for found in best_rows(each) if found.what == "highest throughput"}
        for each in (whole, judged)
    ]
    assert {model for model in fastest[0] if fastest[0][model] != fastest[1][model]} == {best.axes["model"]}
