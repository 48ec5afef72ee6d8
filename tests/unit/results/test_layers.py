"""Layer tables and layer times: sums, seconds, what is left out, frames, plain data, paths."""

from __future__ import annotations

import dataclasses
import json
import statistics
from typing import Any

import pandas
import pytest

from support.nets import reused
from sweeprof.errors import UserError
from sweeprof.results.layer_times import OUTSIDE, ROOT, CallTime, LayerTimes, PhaseTimes, above, is_below
from sweeprof.results.layers import FRAME_COLUMNS, LayerRow, LayerTable, Weights, flops_per_s, total_seconds

TABLE = LayerTable(
    (
        LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0, ((2, 3),), ((2, 5),)),
        LayerRow("a", "Linear", 1, 0, 20, 15, 80, 0, 30, ((2, 3),), ((2, 5),)),
        LayerRow("a", "Linear", 1, 1, 0, 0, 0, 0, 30, ((2, 3),), ((2, 5),)),
        LayerRow("b.bn", "BatchNorm", 2, -1, 10, 0, 20, 11, 0),
    ),
    {"aten.mv": 2},
    "real forward",
)


def test_totals() -> None:
    assert (TABLE.params, TABLE.trainable, TABLE.params_bytes, TABLE.macs) == (30, 15, 100, 60)
    assert LayerTable.from_dict(json.loads(json.dumps(TABLE.to_dict()))) == TABLE


def weighed(path: str, depth: int, own: int, below: int, parent: int | None, call: int = 0) -> LayerRow:
    subtree = Weights(below, below, 4 * below, 0, 0, {"float32": below} if below else {})
    dtypes = {"float32": own} if own else {}
    figures = (own, own, 4 * own, 0, 10 * own)
    return LayerRow(path, path, depth, call, *figures, dtypes=dtypes, subtree=subtree, parent=parent)


NESTED = LayerTable(
    (
        weighed(ROOT, 0, 0, 6346, None),
        weighed("block", 1, 0, 6336, 0),
        weighed("block.a", 2, 6272, 6272, 1),
        weighed("block.b", 2, 64, 64, 1),
        weighed("head", 1, 10, 10, 0),
        weighed("head", 1, 0, 10, 0, call=1),
    )
)


@pytest.mark.parametrize(
    ("kept", "params"),
    [
        ({ROOT, "block", "block.a", "block.b", "head"}, 6346),
        ({"block", "block.b"}, 64),
        ({ROOT, "block"}, 0),
        ({ROOT, "block.a", "head"}, 6282),
        (set(), 0),
    ],
)
def test_the_totals_of_chosen_rows_are_the_same_with_and_without_what_is_within(kept: set[str], params: int) -> None:
    chosen = NESTED.where(lambda row: row.path in kept)
    assert (chosen.params, chosen.trainable, chosen.params_bytes) == (params, params, 4 * params)
    inclusive = chosen.inclusive()
    assert (inclusive.params, inclusive.trainable, inclusive.params_bytes) == (params, params, 4 * params)
    assert inclusive.macs == chosen.macs == 10 * params
    assert sum(sum(row.dtypes.values()) for row in inclusive._summed_weights) == params


def test_whole_modules_are_chosen_from_the_inclusive_table() -> None:
    blocks = NESTED.inclusive().where(lambda row: row.depth == 1)
    assert [row.params for row in blocks.rows] == [6336, 10, 10]
    assert (blocks.params, blocks.macs) == (6346, 63_460)
    assert NESTED.inclusive().where(lambda row: row.path == "block").params == 6336


def test_only_a_repeated_call_has_no_weights() -> None:
    again = NESTED.where(lambda row: row.call == 1)
    assert (again.params, again.inclusive().params) == (0, 0)


SLOW, QUICK = 0.05, 1e-4


def slow_at_first() -> LayerTimes:
    """Ten repeats of three calls, of which the first five of the one layer that works take 50 ms more."""
    kept = [1e-4, 2e-4, 3e-4, 4e-4, 10e-4]
    worker = tuple([SLOW + QUICK] * 5 + kept)
    calls = (
        CallTime(ROOT, "Net", 0, None, (QUICK,) * 10, (QUICK,) * 10),
        CallTime("a", "Linear", 0, 0, worker, (2 * QUICK,) * 10),
        CallTime("b", "Linear", 0, 0, (QUICK,) * 10, (), "no gradient is computed in it"),
    )
    whole = tuple(2 * QUICK + seconds for seconds in worker)
    return LayerTimes("training", calls, 5, PhaseTimes(whole, whole), PhaseTimes((3 * QUICK,) * 10, (6 * QUICK,) * 10))


def of_call(frame: pandas.DataFrame, path: str) -> dict[str, Any]:
    """The one line of a module that is called once."""
    (found,) = (line for line in frame.to_dict("records") if line["path"] == path)
    return {str(name): value for name, value in found.items()}


class TestFrames:
    """Layer times as data frames."""

    def test_slow_first_repeats_do_not_move_the_mean(self) -> None:
        kept = [1e-4, 2e-4, 3e-4, 4e-4, 10e-4]
        found = of_call(slow_at_first().with_warmup(5).to_frame(), "a")
        assert found["forward_mean_s"] == pytest.approx(statistics.mean(kept))
        assert found["forward_std_s"] == pytest.approx(statistics.stdev(kept))
        assert (found["forward_min_s"], found["forward_median_s"], found["forward_max_s"]) == (1e-4, 3e-4, 10e-4)
        root = of_call(slow_at_first().to_frame(), ROOT)
        assert root["forward_mean_s"] == pytest.approx(statistics.mean(kept) + 2 * QUICK)
        assert of_call(slow_at_first().to_frame(inclusive=False), ROOT)["forward_mean_s"] == pytest.approx(QUICK)
        summary = slow_at_first().summary
        assert summary.repeats == 5
        assert summary.forward.plain_s == pytest.approx(3e-4 + 2 * QUICK)
        assert slow_at_first().seconds[1].forward == pytest.approx(3e-4)
        assert slow_at_first().with_warmup(0).seconds[1].forward > 1e-2

    @pytest.mark.parametrize("drop_first", [10, -1])
    def test_some_repeat_has_to_be_left(self, drop_first: int) -> None:
        with pytest.raises(
            UserError, match=f"drop_first: {drop_first} must be at least 0 and less than the 10 repeats"
        ):
            slow_at_first().with_warmup(drop_first)

    def test_raw_rows_have_every_repeat_and_say_which_were_for_warming_up(self) -> None:
        times = slow_at_first()
        frame, total = times.to_frame(aggr=False), times.total_frame(aggr=False)
        assert len(frame) == 10 * 3
        assert frame["warmup"].dtype == bool
        for path, rows in frame.groupby("path"):
            assert len(rows) == len(total) == 10, path
            assert rows["warmup"].tolist() == total["warmup"].tolist() == [True] * 5 + [False] * 5
        assert frame[frame["path"] == ROOT]["forward_s"].tolist() == pytest.approx(list(times.forward.plain))
        kept = frame[(frame["path"] == "a") & ~frame["warmup"]]["forward_s"]
        assert kept.mean() == pytest.approx(of_call(times.to_frame(), "a")["forward_mean_s"])

    def test_what_is_not_known_stays_none_with_its_reason(self) -> None:
        row = of_call(slow_at_first().to_frame(), "b")
        assert row["backward_mean_s"] is None
        assert row["reason"] == "no gradient is computed in it"
        assert of_call(slow_at_first().to_frame(), ROOT)["backward_mean_s"] == pytest.approx(3 * QUICK)
        one = LayerTimes("inference", (CallTime(ROOT, "Net", 0, None, (1.0,)),), 0, PhaseTimes((1.0,), (1.0,)))
        (only,) = one.to_frame().to_dict("records")
        reason = "the backward was not measured; one repeat has no standard deviation"
        assert (only["forward_std_s"], only["reason"]) == (None, reason)
        assert "backward_mean_s" not in one.total_frame()

    def test_a_users_loop_has_no_steps_without_probes(self) -> None:
        times = slow_at_first()
        looped = dataclasses.replace(times, forward=PhaseTimes((), times.forward.probed), backward=None)
        assert (looped.summary.forward.plain_s, looped.summary.forward.covered, looped.forward_covered) == (None,) * 3
        assert looped.to_frame().equals(times.to_frame())
        with pytest.raises(UserError, match="every step had probes"):
            looped.total_frame()


def timed() -> LayerTable:
    rows = (
        LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0, flops=0),
        LayerRow("list", "ModuleList", 1, -1, 0, 0, 0, 0, 0, flops=0),
        LayerRow("list.0", "Linear", 2, 0, 0, 0, 0, 0, 5, flops=1000, parent=0),
        LayerRow("list.1", "Linear", 2, 0, 0, 0, 0, 0, 5, flops=3000, parent=0),
        LayerRow("unused", "Linear", 1, -1, 0, 0, 0, 0, 0, flops=0),
    )
    return LayerTable(rows).with_times(TIMES)


def calls(*own: tuple[str, float, float | None]) -> tuple[CallTime, ...]:
    return tuple(
        CallTime(path, "", 0, None if path in (ROOT, OUTSIDE) else 1, (f,) * 4, () if b is None else (b,) * 4, "none")
        for path, f, b in own
    )


TIMES = LayerTimes(
    "training",
    calls((OUTSIDE, 1.0, 1.0), (ROOT, 1.0, 2.0), ("list.0", 2.0, None), ("list.1", 4.0, 4.0), ("elsewhere", 1.0, 1.0)),
    0,
    PhaseTimes((10.0,) * 4, (12.0,) * 4),
    PhaseTimes((16.0,) * 4, (8.0,) * 4),
)


class TestTable:
    def test_rows_have_their_seconds_or_a_reason(self) -> None:
        root, held, first, second, unused = timed().rows
        assert (root.forward_s, root.forward_self_s, root.backward_s, root.backward_self_s) == (8.0, 1.0, 7.0, 2.0)
        assert (held.forward_s, held.forward_self_s, held.backward_s) == (6.0, 0.0, 4.0)
        assert (first.forward_s, first.backward_s, first.time_reason) == (2.0, None, "none")
        assert second.backward_self_s == 4.0
        reason = "it was not called as a Python module in the steps that were timed"
        assert (unused.forward_s, unused.time_reason) == (None, reason)

    def test_a_list_of_layers_without_a_backward_says_why(self) -> None:
        times = LayerTimes("training", calls((ROOT, 1.0, 1.0), ("list.0", 1.0, None)), 0, TIMES.forward, TIMES.backward)
        assert timed().with_times(times).rows[1].time_reason == "none"

    def test_the_summary_tells_how_far_to_believe_them(self) -> None:
        timing = timed().timing
        assert timing is not None
        assert (timing.mode, timing.repeats, timing.unplaced) == ("training", 4, ("elsewhere",))
        assert (timing.forward.plain_s, timing.forward.covered, timing.forward.overhead) == (10.0, 0.9, 1.2)
        assert timing.backward is not None
        assert (timing.backward.covered, timing.backward.overhead, timing.backward.outside_s) == (0.5, 0.5, 1.0)

    def test_the_summary_survives_everything(self) -> None:
        table = timed()
        assert LayerTable.from_dict(json.loads(json.dumps(table.to_dict()))) == table
        assert table.inclusive().timing == table.where(lambda row: row.depth < 2).timing == table.timing
        old = reused().to_dict()
        del old["timing"]
        assert LayerTable.from_dict(old) == reused()

    def test_flops_per_second_are_of_what_the_table_includes(self) -> None:
        own, inclusive = timed(), timed().inclusive()
        assert [flops_per_s(own, row) for row in own.rows] == [0.0, None, 500.0, 750.0, None]
        assert [flops_per_s(inclusive, row) for row in inclusive.rows] == [500.0, 4000 / 6, 500.0, 750.0, None]

    def test_totals_are_those_of_the_outermost_calls(self) -> None:
        assert total_seconds(timed(), "forward_s") == 8.0
        assert total_seconds(timed(), "forward_self_s") == 7.0  # without a child that has no row
        assert total_seconds(timed().where(lambda row: row.path != ROOT), "forward_s") == 6.0
        assert total_seconds(timed().where(lambda row: row.path == "list.0"), "backward_s") is None

    def test_a_layer_of_another_owner_is_within_its_caller(self) -> None:
        caller = LayerRow("head", "Head", 1, 0, 0, 0, 0, 0, 0, forward_s=3.0, forward_self_s=1.0)
        shared = LayerRow("embed.table", "Embedding", 2, 0, 0, 0, 0, 0, 0, parent=0, forward_s=2.0, forward_self_s=2.0)
        assert total_seconds(LayerTable((caller, shared)), "forward_s") == 3.0

    def test_what_is_left_out_takes_its_seconds_along(self) -> None:
        left = timed().where(lambda row: row.path != "list.1")
        root, held, first, _ = left.rows
        assert (root.forward_s, root.backward_s) == (4.0, 3.0)
        assert (held.forward_s, held.backward_s) == (2.0, 0.0)
        assert first == timed().rows[2]
        assert flops_per_s(left.inclusive(), left.inclusive().rows[0]) == 1000 / 4

    def test_the_frame_has_what_is_derived(self) -> None:
        frame = timed().to_frame()
        assert list(frame.columns) == FRAME_COLUMNS
        assert frame["forward_share"].tolist()[:4] == [1 / 7, 0.0, 2 / 7, 4 / 7]
        assert timed().inclusive().to_frame()["forward_share"].tolist() == [1.0, 6 / 8, 2 / 8, 4 / 8, None]
        assert frame["flops_per_s"].tolist() == [0.0, None, 500.0, 750.0, None]
        assert reused().to_frame()["forward_s"].tolist() == [None] * len(reused().rows)

    def test_layer_times_survive_json(self) -> None:
        times = dataclasses.replace(TIMES, unmet=("min_samples=10",))
        assert LayerTimes.from_dict(json.loads(json.dumps(times.to_dict()))) == times
        old = TIMES.to_dict()
        del old["unmet"]
        assert LayerTimes.from_dict(old) == TIMES


def whole(seconds: list[float], parts: list[float], has_plain: bool = True) -> LayerTimes:
    """Of an inference whose one layer took ``parts`` in steps that took ``seconds``."""
    phase = PhaseTimes(tuple(seconds) if has_plain else (), tuple(seconds))
    return LayerTimes("inference", (CallTime(ROOT, "Net", 0, None, tuple(parts)),), 0, phase)


class TestDoubt:
    @pytest.mark.parametrize(("factor", "share"), [(0.89, "89%"), (1.25, "125%"), (50, "more than 1000%")])
    def test_calls_that_add_up_to_less_or_more_are(self, factor: float, share: str) -> None:
        times = whole([1.0] * 5, [factor] * 5)
        (warning,) = times.warnings
        assert warning.text == f"the times of the calls add up to {share} of the forward without probes"
        assert times.summary.forward.doubt == warning.text

    def test_the_medians_count_that_a_table_shows_and_the_pairs_as_well(self) -> None:
        assert whole([1.0] * 5, [0.91] * 5).warnings == whole([1.0] * 5, [1.09] * 5).warnings == ()
        assert whole([1.0, 1.0, 5.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 5.0]).warnings == ()
        assert whole([1.0, 2.0, 3.0], [3.0, 1.0, 2.0]).warnings != (), "pairs of 3, 0.5 and 0.67"
        assert whole([1.0, 1.0, 1.0, 5.0, 5.0], [1.0, 1.0, 5.0, 5.0, 5.0]).warnings != (), "medians of 1 and 5"

    def test_without_steps_that_had_no_probes_the_rest_is_an_estimate(self) -> None:
        (warning,) = whole([1.0], [0.6], has_plain=False).warnings
        assert "add up to 60% of the forward with probes" in warning.text
        assert "which no step without probes confirms" in warning.text
        assert "sweeprof.Profiler" in warning.advice
        assert whole([1.0], [0.95], has_plain=False).warnings == ()


def test_what_is_above_and_below() -> None:
    assert [above(path) for path in ("a.b.c", "a", ROOT, OUTSIDE)] == [[ROOT, "a", "a.b"], [ROOT], [], []]
    assert is_below("a.b", "a")
    assert is_below("a", ROOT)
    for path, place in (("ab", "a"), ("a", "a"), (ROOT, ROOT), (OUTSIDE, ROOT)):
        assert not is_below(path, place)
