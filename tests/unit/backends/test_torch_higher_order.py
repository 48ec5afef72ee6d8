"""Operators that take functions: control flow, attention with a score function, checkpoints."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import _higher_order_ops as higher_order
from torch import nn
from torch._higher_order_ops import associative_scan, scan
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.wrap import wrap
from torch._ops import HigherOrderOperator
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import sweeprof
from support.torch_modules import Functional, counted, figures
from sweeprof.backends.torch.training import count_training
from sweeprof.measuring.inputs import Inputs

# These are not typed, or for other functions than they take.
map_over: Any = importlib.import_module("torch._higher_order_ops.map").map
strict_mode: Any = importlib.import_module("torch._higher_order_ops.strict_mode").strict_mode
while_loop: Any = higher_order.while_loop

PRODUCT = (64, 128, 112)
"""Of two matrices, 4 × 4."""


class Weighted(nn.Module):
    """Applies a function to a layer and the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(self.layer, *given)


# Functions that run as often as they are called, whatever the values


@pytest.mark.parametrize(
    "function",
    [
        lambda x: wrap(torch.mm, x, x),
        lambda x: hints_wrapper(lambda y: y @ y, (x,), {}, hints={}),
        lambda x: strict_mode(lambda y: y @ y, (x,)),
        lambda x: checkpoint(lambda y: y @ y, x, use_reentrant=False),
        torch.compiler.nested_compile_region(lambda y: y @ y),
        lambda x: torch.cond(
            torch.ones(2, dtype=torch.int64).sum() > 0, lambda y: y @ y, lambda y: y + 1, (x,)
        ),  # a constant decides
    ],
)
def test_a_function_that_runs_once(function: Callable[..., Any]) -> None:
    assert figures(counted(Functional(function), (4, 4))) == PRODUCT


def test_a_function_runs_for_each_step() -> None:
    three = tuple(3 * figure for figure in PRODUCT)
    assert figures(counted(Functional(lambda x: map_over(lambda y: y @ y, x)), (3, 4, 4))) == three
    sums = Functional(lambda x: scan(lambda carried, y: (carried @ y, y.clone()), x[0], x))
    assert figures(counted(sums, (3, 4, 4))) == three

    def counting(x: torch.Tensor) -> Any:
        return while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y @ y), (torch.tensor(0), x))

    assert figures(counted(Functional(counting), (4, 4))) == three


def test_an_associative_scan_takes_the_products_of_its_tree() -> None:
    """Eight elements: 4 + 2 + 1 products upwards, 1 + 3 downwards."""
    function = Functional(lambda x: associative_scan(torch.mul, x, dim=0, combine_mode="generic"))
    assert figures(counted(function, (8, 4))) == (0, 11 * 4, 11 * 4)


def test_layers_within_have_rows() -> None:
    table = counted(Weighted(map_over), (3, 4, 4))
    assert [(row.path, row.call, row.macs) for row in table.rows[1:]] == [("layer", call, 64) for call in range(3)]


# Values that decide


def branch(layer: nn.Linear, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda y: layer(layer(y)), lambda y: y + 1, (x,))


def loop(layer: nn.Linear, x: torch.Tensor) -> Any:
    return while_loop(lambda y: y.sum() < 8, lambda y: (layer(y),), (x,))


def test_the_branch_that_runs_is_counted() -> None:
    table = counted(Weighted(branch), torch.ones(4, 4), complete=False)
    assert (table.macs, table.uncovered) == (2 * 64, {})
    assert table.method == "real forward: what higher_order::cond runs depends on values"
    assert counted(Weighted(branch), -torch.ones(4, 4), complete=False).macs == 0


def test_a_loop_counts_as_often_as_it_runs() -> None:
    module = Weighted(loop)
    with torch.no_grad():
        module.layer.weight.copy_(2 * torch.eye(4))
    assert counted(module, torch.full((1, 4), 0.5), complete=False).macs == 2 * 16


@pytest.mark.parametrize(("function", "name"), [(branch, "cond"), (loop, "while_loop")])
def test_without_values_it_is_listed_and_the_rest_is_counted(function: Any, name: str) -> None:
    module = Weighted(lambda layer, x: function(layer, layer(x))).to("meta")
    with pytest.warns(sweeprof.UncountedWarning, match=f"no formula for higher_order::{name} ×1"):
        found = sweeprof.profile(module, (4, 4), ["compute/macs", "compute/coverage", "params/total"])
    assert (found["compute/macs"].value, found["compute/macs"].estimator) == (64, "lower bound")
    assert found["params/total"].value == 16


def test_an_exported_branch() -> None:
    exported = torch.export.export(Weighted(branch).eval(), (torch.ones(4, 4),)).module()
    assert counted(exported, torch.ones(4, 4), complete=False).macs == 2 * 64


# Attention


def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("masked", [False, True])
def test_flex_attention_is_counted_like_any_other_attention(masked: bool, device: str) -> None:
    def attended(x: torch.Tensor) -> Any:
        mask = create_block_mask(causal, 1, 1, 128, 128, device=x.device.type) if masked else None
        return flex_attention(x, x, x, block_mask=mask)

    given = torch.zeros(1, 2, 128, 16, device=device)
    dense = counted(Functional(lambda x: functional.scaled_dot_product_attention(x, x, x)), given)
    table = counted(Functional(attended), given)
    assert figures(table) == figures(dense)
    meta = given.to("meta")
    with FlopCounterMode(display=False) as counter:
        functional.scaled_dot_product_attention(meta, meta, meta)
    assert 2 * table.macs == counter.get_total_flops() == 4 * 2 * 128 * 128 * 16


def test_a_score_function_is_counted_for_every_score() -> None:
    x = torch.zeros(1, 2, 128, 16)
    plain = figures(counted(Functional(lambda x: flex_attention(x, x, x)), x))
    scored = Functional(lambda x: flex_attention(x, x, x, score_mod=lambda score, b, h, q, k: score * 2.0))
    assert figures(counted(scored, x)) == (plain[0], plain[1] + 2 * 128 * 128, plain[2] + 2 * 128 * 128)


def test_flex_attention_is_as_before_afterwards() -> None:
    import torch.nn.attention.flex_attention as flex

    before = dict(vars(flex))
    counted(Functional(lambda x: flex_attention(x, x, x)), (1, 2, 128, 16))
    assert dict(vars(flex)) == before


# Others


class Opaque(HigherOrderOperator):
    """An operator of a user's own that runs a kernel."""

    def __init__(self) -> None:
        super().__init__("opaque")  # type: ignore[no-untyped-call]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = super().__call__(x)  # type: ignore[no-untyped-call]
        return result


opaque = Opaque()


@opaque.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)
def _opaque(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def test_one_without_functions_is_listed_by_its_name() -> None:
    table = counted(Functional(lambda x: opaque(x) @ x), (4, 4), complete=False)
    assert (table.macs, table.uncovered, table.coverage) == (64, {"higher_order::opaque": 1}, 0.5)


def test_a_formula_says_what_an_operator_costs_in_place_of_its_functions() -> None:
    formulas = {
        "higher_order::opaque": lambda args, kwargs, output: sweeprof.Cost(macs=5),
        "higher_order::map_impl": lambda args, kwargs, output: sweeprof.Cost(macs=7),
    }
    module = Functional(lambda x: (opaque(x), map_over(lambda y: y @ y, x)))
    found = sweeprof.profile(module, (3, 4, 4), ["compute/macs"], formulas=formulas, strict="error")
    assert found["compute/macs"].value == 12


def test_its_backward_is_estimated_with_the_reason() -> None:
    """Torch compiles such functions for a backward; what they close over is not among the operator's arguments."""
    module = Weighted(lambda layer, x: scan(lambda c, y: (c + layer(y), y.clone()), x[0], x))
    step = count_training(module, Inputs((torch.ones(3, 4, 4),)))
    assert (step.forward_macs, step.backward_macs) == (192, 2 * 192)
    assert step.estimated == "the backward does not run on shapes: the backward of higher_order::scan is not known"
