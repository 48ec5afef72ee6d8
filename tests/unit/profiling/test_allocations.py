"""Levels, peaks and shares of allocations written by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sweeprof.measuring.process_memory import MOMENTS, Change, course, thinned_levels
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.observations import LayerMemory, Moment

A, B = (ROOT, "a"), (ROOT, "b")
CHANGES = [
    Change(1_000, 0, 0, ()),  # the first step begins
    Change(1_001, 100, 1, A),
    Change(1_002, 40, 2, B),
    Change(1_003, -100, 1, B),
    Change(1_004, 30, 3, ()),
    Change(2_000, 0, 0, ()),  # the second
    Change(2_001, 60, 1, A),  # at an address that is free again
    Change(2_002, -60, 1, A),
    Change(2_003, 0, 0, B),
    Change(2_004, -40, 2, ("c",)),  # which had not run before
]
BEGINS, ENDS = (1_000, 2_000), (1_010, 2_010)


def test_the_peak_and_who_ran() -> None:
    seen = course(CHANGES, BEGINS, ENDS)
    assert (seen.peak_bytes, seen.peak_at) == (140, "b")
    assert seen.step_peaks_bytes == (140, 130)
    assert seen.allocated_per_step_bytes == 60


def test_what_each_module_did() -> None:
    by_layer = {layer.path: layer for layer in course(CHANGES, BEGINS, ENDS).by_layer}
    assert by_layer == {
        OUTSIDE: LayerMemory(OUTSIDE, 70, 0, 30, 0),
        ROOT: LayerMemory(ROOT, 140, 0, 0, 0),
        "a": LayerMemory("a", 130, 60, 0, 100),
        "b": LayerMemory("b", 140, 0, 0, 40),
        "c": LayerMemory("c", 70, 0, 0, 0),
    }


def test_the_timeline_begins_with_the_first_step() -> None:
    moments = course(CHANGES, BEGINS, ENDS).timeline
    assert moments[0] == Moment(1e-9, 100, "a")
    assert [moment.bytes for moment in moments] == [100, 140, 40, 70, 130, 70, 30]
    assert moments[-1] == Moment(14e-9, 30, "c")  # 4 ns into the second step, after the 10 of the first


def test_the_timeline_leaves_out_what_lies_between_steps() -> None:
    between = [Change(1_500, -30, 3, ()), Change(2_900, -40, 2, ())]  # after the first step, and after the last
    moments = course([*CHANGES[:-1], *between], BEGINS, ENDS).timeline
    assert [round(1e9 * moment.s) for moment in moments] == [1, 2, 3, 4, 10, 11, 12, 20]
    assert [moment.bytes for moment in moments] == [100, 140, 40, 70, 40, 100, 40, 0]


def test_the_order_in_which_changes_are_given_does_not_matter() -> None:
    assert course(CHANGES[::-1], BEGINS, ENDS) == course(CHANGES, BEGINS, ENDS)


def test_memory_from_before_the_first_step_is_left_out() -> None:
    before = [Change(900, 1_000, 7, ()), Change(1_001, -1_000, 7, A), Change(1_001, -5_000, 8, B)]
    assert course([*before, *CHANGES], BEGINS, ENDS).timeline == course(CHANGES, BEGINS, ENDS).timeline
    only_releases = course([Change(1_000, 0, 0, ()), *before], (1_000,), (1_010,))
    assert (only_releases.peak_bytes, only_releases.timeline) == (0, ())


def test_nothing_allocated() -> None:
    seen = course([Change(5, 0, 0, ())], (5,), (6,))
    assert (seen.peak_bytes, seen.peak_at, seen.step_peaks_bytes, seen.allocated_per_step_bytes) == (
        0,
        OUTSIDE,
        (0,),
        0,
    )
    assert seen.timeline == ()


def test_a_step_that_allocates_nothing_has_the_level_it_began_with() -> None:
    assert course([*CHANGES, Change(3_000, 0, 0, ())], (*BEGINS, 3_000), (*ENDS, 3_010)).step_peaks_bytes == (
        140,
        130,
        30,
    )


def test_the_peak_of_a_step_that_begins_with_a_release_has_what_was_there_before() -> None:
    changes = [Change(1_001, 100, 1, A), Change(2_001, -100, 1, A), Change(2_002, 40, 2, B)]
    assert course(changes, BEGINS, ENDS).step_peaks_bytes == (100, 100)


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=400), st.integers(4, 50))
def test_a_thinned_timeline_keeps_the_ends_and_the_peak(levels: list[int], most: int) -> None:
    kept = thinned_levels(levels, most)
    assert kept == sorted(set(kept))
    assert len(kept) <= max(most, 4)
    assert {0, len(levels) - 1} <= set(kept)
    assert max(levels[i] for i in kept) == max(levels)
    assert min(levels[i] for i in kept) == min(levels)
    if len(levels) <= most:
        assert kept == list(range(len(levels)))


def test_a_thinned_timeline_keeps_every_peak_that_stands_out() -> None:
    levels = [1000 if i % 1000 == 500 else i % 7 for i in range(100_000)]
    kept = thinned_levels(levels)
    assert len(kept) <= MOMENTS
    assert sum(levels[i] == 1000 for i in kept) == 100


@given(st.lists(st.tuples(st.integers(1, 100), st.sampled_from("abc")), max_size=60), st.data())
def test_the_shares_sum_up(blocks: list[tuple[int, str]], data: st.DataObject) -> None:
    changes, alive = [Change(0, 0, 0, ())], []
    for address, (size, path) in enumerate(blocks):
        changes.append(Change(len(changes), size, address, (ROOT, path)))
        alive.append((address, size))
        if data.draw(st.booleans()):
            gone, its_size = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            changes.append(Change(len(changes), -its_size, gone, (ROOT,)))
    seen = course(changes, (0,), (len(changes),))
    assert sum(layer.at_peak_bytes for layer in seen.by_layer) == seen.peak_bytes
    assert sum(layer.allocated_bytes for layer in seen.by_layer) == seen.allocated_per_step_bytes
    assert sum(layer.kept_bytes for layer in seen.by_layer) == sum(size for _, size in alive)
    assert max(layer.peak_bytes for layer in seen.by_layer) == seen.peak_bytes
