"""What a model is called with."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from sweeprof.measuring.inputs import Inputs, TensorSpec, pattern_of


class Pair(NamedTuple):
    left: Any
    right: Any


Untyped = namedtuple("Untyped", "a b")


class Fields(Pair):
    """A class derived from a named tuple, which may have a constructor of its own."""


@pytest.mark.parametrize(
    ("given", "args"),
    [
        ((1, 3, 224, 224), (TensorSpec((1, 3, 224, 224)),)),
        ((5,), (TensorSpec((5,)),)),
        (((1, 8), (1, 4)), (TensorSpec((1, 8)), TensorSpec((1, 4)))),
        (("a", (2, 3)), ("a", TensorSpec((2, 3)))),
        ((), ()),
        ((True, False), (True, False)),
        ((1, 2.0), (1, 2.0)),
        ("a", ("a",)),
        (7, (7,)),
        (None, (None,)),
        ([1, 2], (TensorSpec((1, 2)),)),
        ([1.0, 2], ([1.0, 2],)),
        (([1, 2], "a"), ([1, 2], "a")),
        (torch.Size((2, 3)), (TensorSpec((2, 3)),)),
        ((np.int64(2), 3), (TensorSpec((2, 3)),)),
        (["a", (2, 3)], (["a", (2, 3)],)),
        (TensorSpec((2,), "int64"), (TensorSpec((2,), "int64"),)),
        (Pair("a", "b"), (Pair("a", "b"),)),
        (Fields("a", "b"), (Fields("a", "b"),)),
        ((Pair("a", "b"),), (Pair("a", "b"),)),
    ],
)
def test_what_a_caller_most_likely_means(given: Any, args: tuple[Any, ...]) -> None:
    assert Inputs.of(given) == Inputs(args)


def test_a_mapping_are_keyword_arguments() -> None:
    assert Inputs.of({"ids": (2, 3), "mask": "m", "flag": True}) == Inputs(
        kwargs={"ids": TensorSpec((2, 3)), "mask": "m", "flag": True}
    )
    assert Inputs.of(OrderedDict(x=[1.0])).kwargs == {"x": [1.0]}
    assert Inputs.of({"x": [1, 2], "y": [3]}).kwargs == {"x": TensorSpec((1, 2)), "y": TensorSpec((3,))}
    assert Inputs.of({"x": [1, 2], "flag": True}).kwargs == {"x": [1, 2], "flag": True}


def test_inputs_are_taken_as_they_are() -> None:
    made = Inputs(((1, 2),), {"x": (3, 4)})
    assert Inputs.of(made) is made


def test_leaves() -> None:
    inputs = Inputs(("a", ["b", ("c", {"d": "e"})], Pair("f", ["g"]), Untyped("h", 1)), {"k": {"l": ("m",)}})
    assert inputs.map(lambda leaf: leaf * 2) == Inputs(
        ("aa", ["bb", ("cc", {"d": "ee"})], Pair("ff", ["gg"]), Untyped("hh", 2)), {"k": {"l": ("mm",)}}
    )
    assert Inputs((OrderedDict(a=[1]),)).map(lambda leaf: leaf + 1) == Inputs((OrderedDict(a=[2]),))
    changed = inputs.map(str)
    assert isinstance(changed.args[2], Pair)
    assert isinstance(changed.args[3], Untyped)


@pytest.mark.parametrize("tree", [MappingProxyType({"a": 1}), {1, 2}, Fields(1, 2), "text"])
def test_other_containers_are_leaves(tree: Any) -> None:
    """They may have constructors of their own."""
    seen: list[Any] = []
    Inputs((tree,)).map(seen.append)
    assert seen == [tree]
    assert seen[0] is tree


def test_the_step_is_kept() -> None:
    def step(model: Any, x: int) -> Any:
        return model(x) + 1

    inputs = Inputs((2,), forward=step).map(lambda leaf: leaf * 10)
    assert inputs.call(lambda x: x) == 21
    assert Inputs((2,), {"b": 3}).call(lambda a, b: (a, b)) == (2, 3)


# Input patterns, row 91


def test_a_pattern_puts_the_batch_in_order() -> None:
    """Case 47."""
    assert pattern_of("_", 1, 2, "_", 0)([None, "b", "c", None, "a"]) == Inputs(("a", "b", "c"))
    assert pattern_of(0, "_")(("x", "y")) == Inputs(("x",))
    assert pattern_of("_", "_")(("x", "y")) == Inputs()
    assert pattern_of(1, 0)(("x", "y")) == Inputs(("y", "x"))


def test_what_a_pattern_picks_is_not_looked_into() -> None:
    assert pattern_of(0, "_")(((1, 2), "y")) == Inputs(((1, 2),))


@pytest.mark.parametrize("pattern", [(0, 0), (1, 2), (0, 2), (-1, 0), (0, "x"), (0, 1.0), (True, 0), (None, 0), ("0",)])
def test_patterns_that_are_none(pattern: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="pattern"):
        pattern_of(*pattern)


@pytest.mark.parametrize("batch", [("x",), ("x", "y", "z"), ()])
def test_batches_of_another_length(batch: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=rf"for 2 elements, the batch has {len(batch)}"):
        pattern_of(0, "_")(batch)
