"""Batches in a caller's hands: splits, arguments and targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sweeprof.datasets.collate import TARGETS
from sweeprof.errors import Unsupported, UserError
from sweeprof.measuring.inputs import Inputs, TensorSpec, pattern_of
from sweeprof.profiling.session import Data


class Loader:
    """Neither a list nor a mapping: it can be gone through again and again."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.times = batches, 0

    def __iter__(self) -> Iterator[Any]:
        self.times += 1
        return iter(self.batches)


def taken(batch: Any, **given: Any) -> tuple[Inputs, Any]:
    (found,) = Data.of([batch], **given).labelled("test")
    return found


@pytest.mark.parametrize(
    ("batch", "inputs", "targets"),
    [
        (("x", "y"), Inputs(("x",)), "y"),
        (["x", "y"], Inputs(("x",)), "y"),
        (("x",), Inputs(("x",)), None),
        ("x", Inputs(("x",)), None),
        ((("a", "b"), "y"), Inputs(("a", "b")), "y"),
        ((["a", "b"], "y"), Inputs((["a", "b"],)), "y"),
        (({"ids": "a", "mask": "b"}, "y"), Inputs(kwargs={"ids": "a", "mask": "b"}), "y"),
        ({"ids": "a", "mask": "b"}, Inputs(kwargs={"ids": "a", "mask": "b"}), None),
        (("a", "b", "y"), Inputs(("a", "b", "y")), None),
        ((TensorSpec((2, 3)), "y"), Inputs((TensorSpec((2, 3)),)), "y"),
    ],
)
def test_arguments_and_targets(batch: Any, inputs: Inputs, targets: Any) -> None:
    assert taken(batch) == (inputs, targets)
    assert Data.of([batch]).first()[0] == inputs


@pytest.mark.parametrize("key", TARGETS)
def test_a_mapping_may_hold_its_targets(key: str) -> None:
    assert taken({"x": "a", key: "y"}) == (Inputs(kwargs={"x": "a"}), "y")


def test_a_pattern_says_what_the_model_is_given() -> None:
    assert taken(("b", "a", "y"), pattern=pattern_of(1, 0, "_")) == (Inputs(("a", "b")), "y")
    with pytest.raises(ValueError, match="for 3 elements"):
        taken(("b", "y"), pattern=pattern_of(1, 0, "_"))
    with pytest.raises(RuntimeError, match="StopIteration"):  # or the data would end here
        taken(("b", "y"), pattern=lambda _: next(iter(())))


def test_splits() -> None:
    data = Data.of({"train": [("a", 0)], "test": [("b", 1), ("c", 2)]})
    assert data.first()[0] == Inputs(("b",))
    assert list(data.split("train")) == [("a", 0)]
    assert [targets for _, targets in data.labelled("test")] == [1, 2]
    with pytest.raises(UserError, match=r"split: 'trian' is not a split\. Did you mean 'train'\? Known: test, train\."):
        data.split("trian")


def test_a_single_split_goes_by_any_name() -> None:
    for data in (Data.of([("a", 0)]), Data.of({"validation": [("a", 0)]})):
        assert list(data.split("test")) == list(data.split("train")) == [("a", 0)]


def test_no_data() -> None:
    with pytest.raises(Unsupported, match="there are no data: give the profiler `data=`"):
        Data.of(None).split("test")


def test_no_batch() -> None:
    with pytest.raises(UserError, match="the data have no batch"):
        Data.of([]).first()[0]
    assert list(Data.of([]).labelled("test")) == []


@pytest.mark.parametrize("given", [7, 1.5, object()])
def test_what_is_no_data(given: Any) -> None:
    with pytest.raises(UserError, match=r"data: '.*' must be an iterable of batches, or a mapping of splits"):
        Data.of(given)


def test_data_are_taken_as_they_are() -> None:
    data = Data.of([("a", 0)])
    assert Data.of(data) is data


def test_a_loader_is_gone_through_each_time() -> None:
    loader = Loader([("a", 0), ("b", 1)])
    data = Data.of(loader)
    assert data.first()[0] == Inputs(("a",))
    assert len(list(data.labelled("test"))) == 2
    assert loader.times == 2


def test_an_iterator_loses_none_of_its_batches() -> None:
    """It can be gone through once; looking at the first batch must not take it from the evaluation."""
    read: list[int] = []

    def generated() -> Iterator[Any]:
        for number in range(3):
            read.append(number)
            yield f"x{number}", number

    for data in (Data.of(generated()), Data.of({"test": generated()})):
        assert data.first()[0] == Inputs(("x0",))
        assert read == [0]
        assert data.first()[0] == Inputs(("x0",))
        assert [targets for _, targets in data.labelled("test")] == [0, 1, 2]
        assert [targets for _, targets in data.labelled("test")] == [0, 1, 2]
        assert read == [0, 1, 2]
        read.clear()
