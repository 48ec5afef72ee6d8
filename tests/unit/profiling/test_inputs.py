"""What can be profiled, and what a model is called with."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from onnx import helper
from torch import nn
from torch.nn import functional

import sweeprof
from support.onnx_graphs import floats, saved
from sweeprof.datasets.collate import TARGETS
from sweeprof.errors import Unsupported, UserError
from sweeprof.measuring.inputs import Inputs, TensorSpec, pattern_of
from sweeprof.profiling.session import Data
from sweeprof.targets import builders_of, chosen_builder


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
        (((1, 8), (1, 4)), (TensorSpec((1, 8)), TensorSpec((1, 4)))),
        (("a", (2, 3)), ("a", TensorSpec((2, 3)))),
        ((True, False), (True, False)),
        (None, (None,)),
        ([1, 2], (TensorSpec((1, 2)),)),
        ([1.0, 2], ([1.0, 2],)),
        (torch.Size((2, 3)), (TensorSpec((2, 3)),)),
        ((np.int64(2), 3), (TensorSpec((2, 3)),)),
        (["a", (2, 3)], (["a", (2, 3)],)),
        (Pair("a", "b"), (Pair("a", "b"),)),
        (Fields("a", "b"), (Fields("a", "b"),)),
    ],
)
def test_what_a_caller_most_likely_means(given: Any, args: tuple[Any, ...]) -> None:
    assert Inputs.of(given) == Inputs(args)


@pytest.mark.parametrize(
    ("given", "kwargs"),
    [
        ({"ids": (2, 3), "mask": "m", "flag": True}, {"ids": TensorSpec((2, 3)), "mask": "m", "flag": True}),
        ({"x": [1, 2], "y": [3]}, {"x": TensorSpec((1, 2)), "y": TensorSpec((3,))}),
        ({"x": [1, 2], "flag": True}, {"x": [1, 2], "flag": True}),
    ],
)
def test_a_mapping_are_keyword_arguments(given: Any, kwargs: dict[str, Any]) -> None:
    made = Inputs.of(given)
    assert made == Inputs(kwargs=kwargs)
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


# Input patterns, row 91


@pytest.mark.parametrize(
    ("pattern", "batch", "args"),
    [
        (("_", 1, 2, "_", 0), [None, "b", "c", None, "a"], ("a", "b", "c")),
        (("_", "_"), ("x", "y"), ()),
        pytest.param((0, "_"), ((1, 2), "y"), ((1, 2),), id="what it picks is not looked into"),
    ],
)
def test_a_pattern_puts_the_batch_in_order(pattern: Any, batch: Any, args: tuple[Any, ...]) -> None:
    assert pattern_of(*pattern)(batch) == Inputs(args)


@pytest.mark.parametrize("pattern", [(0, 0), (1, 2), (-1, 0), (0, "x"), (0, 1.0), (True, 0), (None, 0)])
def test_patterns_that_are_none(pattern: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="pattern"):
        pattern_of(*pattern)


@pytest.mark.parametrize("batch", [("x",), ("x", "y", "z")])
def test_batches_of_another_length(batch: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=rf"for 2 elements, the batch has {len(batch)}"):
        pattern_of(0, "_")(batch)


# Batches in a caller's hands: splits, arguments and targets


def taken(batch: Any, **given: Any) -> tuple[Inputs, Any]:
    (found,) = Data.of([batch], **given).labelled("test")
    return found


@pytest.mark.parametrize(
    ("batch", "inputs", "targets"),
    [
        (("x", "y"), Inputs(("x",)), "y"),
        (("x",), Inputs(("x",)), None),
        ((("a", "b"), "y"), Inputs(("a", "b")), "y"),
        ((["a", "b"], "y"), Inputs((["a", "b"],)), "y"),
        (({"ids": "a", "mask": "b"}, "y"), Inputs(kwargs={"ids": "a", "mask": "b"}), "y"),
        ({"ids": "a", "mask": "b"}, Inputs(kwargs={"ids": "a", "mask": "b"}), None),
        (("a", "b", "y"), Inputs(("a", "b", "y")), None),
        *(({"x": "a", key: "y"}, Inputs(kwargs={"x": "a"}), "y") for key in TARGETS),
    ],
)
def test_arguments_and_targets(batch: Any, inputs: Inputs, targets: Any) -> None:
    assert taken(batch) == (inputs, targets)
    assert Data.of([batch]).first()[0] == inputs


def test_a_pattern_says_what_the_model_is_given() -> None:
    assert taken(("b", "a", "y"), pattern=pattern_of(1, 0, "_")) == (Inputs(("a", "b")), "y")
    with pytest.raises(ValueError, match="for 3 elements"):
        taken(("b", "y"), pattern=pattern_of(1, 0, "_"))
    with pytest.raises(RuntimeError, match="StopIteration"):  # or the data would end here
        taken(("b", "y"), pattern=lambda _: next(iter(())))


def test_splits() -> None:
    data = Data.of({"train": [("a", 0)], "test": [("b", 1), ("c", 2)]})
    assert Data.of(data) is data
    assert data.first()[0] == Inputs(("b",))
    assert list(data.split("train")) == [("a", 0)]
    assert [targets for _, targets in data.labelled("test")] == [1, 2]
    with pytest.raises(UserError, match=r"split: 'trian' is not a split\. Did you mean 'train'\? Known: test, train\."):
        data.split("trian")
    for single in (Data.of([("a", 0)]), Data.of({"validation": [("a", 0)]})):
        assert list(single.split("test")) == list(single.split("train")) == [("a", 0)]


def test_no_data() -> None:
    with pytest.raises(Unsupported, match="there are no data: give the profiler `data=`"):
        Data.of(None).split("test")
    with pytest.raises(UserError, match="the data have no batch"):
        Data.of([]).first()[0]
    assert list(Data.of([]).labelled("test")) == []
    with pytest.raises(UserError, match=r"data: '.*' must be an iterable of batches, or a mapping of splits"):
        Data.of(1.5)


def test_a_loader_is_gone_through_each_time() -> None:
    class Loader:
        times = 0

        def __iter__(self) -> Iterator[Any]:
            self.times += 1
            return iter([("a", 0), ("b", 1)])

    loader = Loader()
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
        for _ in range(2):
            assert [targets for _, targets in data.labelled("test")] == [0, 1, 2]
        assert read == [0, 1, 2]
        read.clear()


# What can be profiled: modules, any function of tensors, files of models, and the builders of a configuration


NET = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
SCALE = nn.Parameter(torch.ones(4, 4))


def scaled_net(x: torch.Tensor) -> Any:
    return (NET(x) @ SCALE).softmax(-1)


class Pipeline:
    """An object with modules of its own, which is no module."""

    def __init__(self) -> None:
        self.first = nn.Linear(8, 8)
        self.rest = [nn.Linear(8, 2)]

    def __call__(self, x: torch.Tensor) -> Any:
        return self.rest[0](self.first(x))

    def embed(self, x: torch.Tensor) -> Any:
        return self.first(x)


def test_a_function_of_a_global_model() -> None:
    layers = sweeprof.profile(scaled_net, (2, 8)).layers
    assert [(row.path, row.type) for row in layers.rows] == [
        ("__root__", "scaled_net"),
        ("NET", "Sequential"),
        ("NET.0", "Linear"),
        ("NET.1", "ReLU"),
        ("NET.2", "Linear"),
    ]
    assert layers.macs == 2 * (8 * 16 + 16 * 4 + 4 * 4)
    assert layers.params == 8 * 16 + 16 + 16 * 4 + 4 + 16
    assert NET.training


@pytest.mark.parametrize(
    ("function", "macs", "params"),
    [
        (Pipeline().embed, 2 * 64, 64 + 8 + 16 + 2),
        (NET.forward, 2 * (8 * 16 + 16 * 4), 8 * 16 + 16 + 16 * 4 + 4),
        (Pipeline(), 2 * (64 + 16), 64 + 8 + 16 + 2),
        (partial(torch.matmul, other=torch.ones(8, 3)), 2 * 8 * 3, 0),
        (lambda x, net=NET: net(x), 2 * (8 * 16 + 16 * 4), 8 * 16 + 16 + 16 * 4 + 4),
        (functional.gelu, 0, 0),
    ],
)
def test_whatever_can_be_called(function: object, macs: int, params: int) -> None:
    profile = sweeprof.profile(function, (2, 8))
    assert (profile["compute/macs"].value, profile["params/total"].value) == (macs, params)
    assert profile["compute/flops"].value


def test_its_training_step_is_estimated() -> None:
    measurement = sweeprof.profile(scaled_net, (2, 8), ["compute/macs_backward"])["compute/macs_backward"]
    assert measurement.value == 2 * 2 * (8 * 16 + 16 * 4 + 4 * 4)
    assert "a function cannot be copied" in measurement.warnings[0].text


def test_a_class_is_not_a_model() -> None:
    with pytest.raises(sweeprof.UserError, match="model: 'type' is not a model of a framework"):
        sweeprof.profile(nn.Linear, (2, 8))


# Models that are given as the path of a file


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["auto", "openvino"])
def test_an_onnx_file(backend: str, tmp_path: Path) -> None:
    product = helper.make_node("MatMul", ["a", "w"], ["y"], "product")
    path = saved(tmp_path, [product], {"a": (3, 8)}, {"w": floats(8, 5)})
    profile = sweeprof.profile(Path(path), (3, 8), backend=backend)
    assert (profile["compute/macs"].value, profile["params/total"].value) == (120, 40)


def test_an_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(8, 5), (torch.ones(3, 8),)), path)
    assert sweeprof.profile(path, (3, 8))["compute/macs"].value == 120


def test_what_is_no_file_of_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model: 'nowhere\.onnx' is not a file"):
        sweeprof.profile("nowhere.onnx", (3, 8))
    with pytest.raises(
        UserError, match=r"model: 'resnet18' is not a model, nor a file of one: \.onnx, \.xml, \.tflite"
    ):
        sweeprof.profile("resnet18", (3, 8))


# Which of a model's builders a backend runs


def test_a_backend_runs_the_first_builder_that_the_model_has() -> None:
    torch_model, keras_model = {"_target_": "a.torch_model"}, {"_target_": "a.keras_model"}
    several = {"framework": "onnx", "builders": ["onnx", "torch", "tensorflow"]}
    assert chosen_builder(several, {"tensorflow": keras_model, "torch": torch_model}) == ("torch", torch_model)
    assert chosen_builder(several, {"torch": None, "tensorflow": keras_model}) == ("tensorflow", keras_model)
    assert builders_of({"framework": "torch"}) == ["torch"]
    with pytest.raises(Unsupported, match=r"^the model names no builder for jax$"):
        chosen_builder({"framework": "jax"}, {"torch": torch_model})
    with pytest.raises(Unsupported, match=r"^the model names no builder for onnx, torch or tensorflow$"):
        chosen_builder(several, {"fake": {}})
