"""Counts of equal blocks are copied, and only where running each of them gives the same table."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sweeprof
from sweeprof.backends.torch.counting import count_layers
from sweeprof.backends.torch.model import build_on_meta
from sweeprof.counting.formulas import DEFAULTS, Cost, Formulas
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import without_collection
from sweeprof.results.layers import LayerTable

RUNS: list[str] = []
"""A note for every forward that ran."""


def counted(module: nn.Module, *arguments: object, **keywords: object) -> LayerTable:
    """The table of a module, in inference; it must be the same where every call is run."""
    inputs = Inputs(arguments or (TensorSpec((2, 8)),), keywords)
    module.eval()
    RUNS.clear()
    table = count_layers(module, inputs)
    runs = list(RUNS)
    assert table == count_layers(module, inputs, DEFAULTS.without_reuse())
    RUNS[:] = runs
    return table


class Block(nn.Module):
    """A residual block, with whatever a test adds to what it does."""

    def __init__(self, index: int = 0, extra: Callable[[Any, torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.layer_idx = index
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)
        self.extra = extra
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> Any:
        RUNS.append("block")
        inner = self.second(self.first(self.norm(x)).relu_())
        if self.extra is not None:
            inner = self.extra(self, inner)
        return x + inner


def blocks(extra: Callable[[Any, torch.Tensor], torch.Tensor] | None = None, count: int = 6) -> nn.Sequential:
    return nn.Sequential(*(Block(index, extra) for index in range(count)))


def test_equal_blocks_are_run_once() -> None:
    table = counted(blocks())
    assert RUNS == ["block"]
    assert table.macs == 6 * 2 * 2 * 8 * 16
    assert [row.path for row in table.rows][-4:] == ["5", "5.norm", "5.first", "5.second"]
    assert table.params == 6 * (8 * 16 + 16 + 16 * 8 + 8 + 16)


def test_weights_that_are_real_are_no_obstacle() -> None:
    counted(blocks())
    assert len(RUNS) == 1
    counted(build_on_meta(blocks))
    assert len(RUNS) == 1


def test_a_block_that_is_called_several_times_with_other_shapes_between() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block(index) for index in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
                block(x[:1])
            return x

    table = counted(Twice())
    assert len(RUNS) == 2
    assert [row.call for row in table.rows if row.path == "blocks.3"] == [0, 1]


def test_weights_that_are_shared_count_once() -> None:
    model: Any = blocks()
    model[3].first.weight = model[0].first.weight
    table = counted(model)
    assert next(row for row in table.rows if row.path == "3.first").params == 16
    shared = nn.Sequential(*([Block()] * 3), Block())
    counted(shared)


def test_a_frozen_parameter_is_told_from_a_buffer() -> None:
    class Scale(nn.Module):
        scale: torch.Tensor

        def __init__(self, values: torch.Tensor) -> None:
            super().__init__()
            if isinstance(values, nn.Parameter):
                self.register_parameter("scale", values)
            else:
                self.register_buffer("scale", values)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    class Scaled(nn.Sequential):
        def __init__(self, values: torch.Tensor) -> None:
            super().__init__(Scale(values))

    table = counted(nn.Sequential(Scaled(nn.Parameter(torch.ones(8), requires_grad=False)), Scaled(torch.ones(8))))
    scales = [row for row in table.rows if row.type == "Scale"]
    assert [(row.params, row.buffers) for row in scales] == [(8, 0), (0, 8)]


def test_a_model_is_freed_with_its_last_reference() -> None:
    model = blocks(count=3)
    counted(model)
    reference = weakref.ref(model)
    with without_collection():
        count_layers(model, Inputs((TensorSpec((2, 8)),)))
        del model
        assert reference() is None


def test_views_and_lists_among_results() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 24)

        def forward(self, x: torch.Tensor, kept: bool) -> tuple[Any, ...]:
            RUNS.append("split")
            a, b, c = self.layer(x).chunk(3, -1)
            return a, [b, x[:, :4]], {"c": c.t(), "x": x, "kept": kept, "none": None}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Split() for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                a, (b, half), rest = block(x, True)
                assert rest["x"] is x
                assert half.shape == (2, 4)
                assert half.stride() == (8, 1)
                assert (a.stride(), b.storage_offset(), rest["c"].stride()) == ((24, 1), 8, (1, 24))
                x = a + b + rest["c"].t()
            return x

    counted(Model())
    assert len(RUNS) == 1


def test_layers_that_return_their_input_may_differ_in_a_probability() -> None:
    counted(nn.Sequential(*(nn.Sequential(Block(), nn.Dropout(0.1 * index)) for index in range(5))))
    assert len(RUNS) == 1
    arguments = [row.arguments for row in counted(nn.Sequential(*(nn.Dropout(0.1 * i) for i in range(3)))).rows[1:]]
    assert arguments == ["p=0.0, inplace=False", "p=0.1, inplace=False", "p=0.2, inplace=False"]


def _by_position(block: Any, x: torch.Tensor) -> torch.Tensor:
    return x.exp() if block.layer_idx % 2 else x


def _remembers(block: Any, x: torch.Tensor) -> torch.Tensor:
    block.seen = x
    return x


def _counts_itself(block: Any, x: torch.Tensor) -> torch.Tensor:
    block.times = getattr(block, "times", 0) + 1
    return x


def _counts_in_a_list(block: Any, x: torch.Tensor) -> torch.Tensor:
    block.calls.append(1)
    return x


def _draws(block: Any, x: torch.Tensor) -> torch.Tensor:
    return x.exp() if random.random() < 2 else x


def _draws_a_tensor(block: Any, x: torch.Tensor) -> torch.Tensor:
    return x.exp() if float(torch.rand(1)) < 2 else x


def _draws_with_numpy(block: Any, x: torch.Tensor) -> torch.Tensor:
    return x.exp() if np.random.random() < 2 else x


def _reads_a_weight(block: Any, x: torch.Tensor) -> torch.Tensor:
    return x.exp() if bool(block.norm.weight.sum() > 4) else x


def _changes_its_shape(block: Any, x: torch.Tensor) -> torch.Tensor:
    x.unsqueeze_(0)
    return x.squeeze(0)


HIDDEN: list[Any] = []


def _keeps(block: Any, x: torch.Tensor) -> torch.Tensor:
    HIDDEN.append(x)
    return x


@pytest.mark.parametrize(
    "extra",
    [
        _by_position,
        _remembers,
        _counts_itself,
        _counts_in_a_list,
        _draws,
        _draws_a_tensor,
        _draws_with_numpy,
        _reads_a_weight,
        _changes_its_shape,
        _keeps,
    ],
)
def test_every_block_is_run_that_may_differ(extra: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
    HIDDEN.clear()
    counted(blocks(extra))
    assert len(RUNS) >= 6
    HIDDEN.clear()


IMPORTS_NUMPY = """
    import sys
    import torch
    from sweeprof.backends.torch.counting import count_layers
    from sweeprof.measuring.inputs import Inputs, TensorSpec

    class Block(torch.nn.Module):
        draws = False
        runs = 0

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            type(self).runs += 1
            if self.draws:
                import numpy.random
                numpy.random.random()
            return self.layer(x)

    for Block.draws in (False, True):
        Block.runs = 0
        count_layers(torch.nn.Sequential(*(Block() for _ in range(6))), Inputs((TensorSpec((2, 8)),)))
        print(Block.runs, "numpy.random" in sys.modules)
"""


@pytest.mark.slow
def test_numpy_random_is_not_imported_for_its_state() -> None:
    """The first forward that imports it has drawn from it."""
    program = [sys.executable, "-c", textwrap.dedent(IMPORTS_NUMPY)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 False", "7 True"]


def test_blocks_with_an_attribute_that_differs_are_run() -> None:
    model: Any = blocks(lambda block, x: x.exp() if block.kind == "b" else x)
    for index, block in enumerate(model):
        block.kind = "ab"[index % 2]
    counted(model)
    assert len(RUNS) == 2
    for block in model:
        block.register_forward_hook(lambda module, args, output: output.exp())
    counted(model)
    assert len(RUNS) == 6


TURNS = 0
"""How often a block with a global variable was run."""


class GlobalVariable(Block):
    def forward(self, x: torch.Tensor) -> Any:
        global TURNS  # noqa: PLW0603  # that is what is tested
        TURNS += 1
        return super().forward(x) if TURNS % 2 else super().forward(x).relu()


def enclosing_variable() -> type[Block]:
    turns = 0

    class EnclosingVariable(Block):
        def forward(self, x: torch.Tensor) -> Any:
            def turned() -> int:
                nonlocal turns
                turns += 1
                return turns

            return super().forward(x) if turned() % 2 else super().forward(x).relu()

    return EnclosingVariable


class OwnVariable(Block):
    def forward(self, x: torch.Tensor) -> Any:
        added = super().forward(x)
        added = added + 1

        def result() -> Any:
            return added

        return result()


@pytest.mark.parametrize(("kind", "runs"), [(GlobalVariable, 4), (enclosing_variable(), 4), (OwnVariable, 1)])
def test_blocks_that_assign_to_variables_outside_are_run(kind: type[Block], runs: int) -> None:
    counted(nn.Sequential(*(kind() for _ in range(4))))
    assert len(RUNS) == runs


def test_a_memory_that_blocks_share_is_noticed() -> None:
    class Memory:
        step = 0

    memory = Memory()
    memory.step = 0

    def stepping(block: Any, x: torch.Tensor) -> torch.Tensor:
        block.memory.step += 1
        return x.exp() if block.memory.step > 3 else x

    model: Any = blocks(stepping)
    for block in model:
        block.memory = memory
    table = count_layers(model.eval(), Inputs((TensorSpec((2, 8)),)))
    assert [sum(o.name == "exp" for o in row.operators) for row in table.rows if row.type == "Block"].count(1) >= 3


def test_an_object_among_the_arguments_is_an_obstacle() -> None:
    class Cache:
        def __init__(self) -> None:
            self.held: list[torch.Tensor] = []

    class Caching(nn.Module):
        def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
            RUNS.append("caching")
            cache.held.append(x.exp())
            return x + sum(cache.held)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Caching() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            cache = Cache()
            for block in self.blocks:
                x = block(x, cache)
            return x

    counted(Model())
    assert len(RUNS) == 4


def test_the_values_of_arguments_are_those_of_the_same_tensor() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            RUNS.append("masked")
            return x[mask].exp().sum() + x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Masked() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for index, block in enumerate(self.blocks):
                x = block(x, torch.arange(2) <= index)
            return x

    count_layers(
        Model(), Inputs((TensorSpec((2, 8)),))
    )  # torch imports what it needs, and keeps tensors alive meanwhile
    table = counted(Model())
    assert len(RUNS) == 4
    rows = [1, 2, 2, 2]  # that are selected
    assert table.flops == sum(2 * 8 * selected + 16 for selected in rows)


def test_a_formula_of_the_user_is_asked_for_every_call() -> None:
    asked: list[object] = []

    def formula(module: object, inputs: object, outputs: object) -> Cost:
        asked.append(module)
        return Cost(macs=len(asked))

    table = count_layers(blocks().eval(), Inputs((TensorSpec((2, 8)),)), Formulas({nn.LayerNorm: formula}, DEFAULTS))
    assert [row.macs for row in table.rows if row.type == "LayerNorm"] == [1, 2, 3, 4, 5, 6]


def test_it_can_be_switched_off() -> None:
    x = torch.ones(2, 8)
    RUNS.clear()
    table = sweeprof.profile(blocks().eval(), x).layers
    assert len(RUNS) == 1
    RUNS.clear()
    other = sweeprof.profile(blocks().eval(), x, reuse_counts=False).layers
    assert len(RUNS) == 6
    assert table.rows == other.rows


def test_the_peak_is_found_in_a_block_that_is_not_run() -> None:
    """The last blocks run while more is alive."""

    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(5))

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            kept = []
            for block in self.blocks:
                x = block(x)
                kept.append(x)
            return kept

    table = counted(Growing())
    assert len(RUNS) == 1
    assert table.liveness is not None
    assert table.liveness.peak_at.startswith("blocks.4")


class Convolutions(nn.Module):
    """A block with a mask that it applies itself, without a hook."""

    def __init__(self, pruned: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, (3, 1), padding=(1, 0), groups=2)
        self.weight_orig = nn.Parameter(torch.ones(4, 1, 1))
        self.weight_mask: torch.Tensor
        self.register_buffer("weight_mask", (torch.arange(4) >= pruned).float().reshape(4, 1, 1))

    def forward(self, x: torch.Tensor) -> Any:
        RUNS.append("block")
        return self.conv(x) * (self.weight_orig * self.weight_mask)


def test_columns_of_blocks_that_are_not_run() -> None:
    table = counted(nn.Sequential(*map(Convolutions, (1, 0, 3))), torch.ones(1, 4, 8, 8))
    assert len(RUNS) == 1
    rows = [(row.kernel_size, row.stride, row.groups) for row in table.rows if row.type == "Conv2d"]
    assert rows == [((3, 1), (1, 1), 2)] * 3
    assert [row.pruned for row in table.rows if row.type == "Convolutions"] == [1, 0, 3]
    assert table.pruned == 4


@pytest.mark.parametrize("chosen", [{"exclude": "1.first"}, {"include": ["0", "2.norm"]}])
def test_one_of_several_equal_blocks_may_be_excluded(chosen: dict[str, Any]) -> None:
    model, x = blocks(count=3).eval(), torch.ones(2, 8)
    whole, layers = sweeprof.profile(model, x).layers, sweeprof.profile(model, x, **chosen).layers
    kept = {row.path for row in layers.rows}
    assert 0 < len(kept) < len(whole.rows)
    assert layers.rows == whole.where(lambda row: row.path in kept).rows
    assert layers.with_functional().macs == layers.macs


def test_the_graph_has_the_operators_of_every_block() -> None:
    profile = sweeprof.profile(blocks(count=3).eval(), torch.ones(2, 8))
    nodes = [node for node in profile.graph.nodes if node.operator == "linear"]
    assert [node.scope for node in nodes] == [f"{block}.{layer}" for block in range(3) for layer in ("first", "second")]
    assert profile.graph.macs == profile["compute/macs"].value
