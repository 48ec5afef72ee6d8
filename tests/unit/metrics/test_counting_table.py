"""What docs/counting.md says of operators and conventions is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from support.peer_models import MODELS
from sweeprof.backends.torch.costs import COSTS
from sweeprof.backends.torch.counting import count_layers
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.metrics import compat
from sweeprof.metrics.metric import Metric

PAGE = (Path(__file__).parents[3] / "docs" / "counting.md").read_text(encoding="utf-8")
ELEMENTS = 12


def rows() -> list[tuple[str, int, int]]:
    """Operator, FLOPs and operations an element, of the table of elementwise operators."""
    table = PAGE.partition("## Elementwise operators")[2].partition("\n## ")[0]
    found = re.findall(r"^\| ([a-z].*?) \| (\d+) \| (\d+) \|$", table, re.MULTILINE)
    return [(name, int(flops), int(ops)) for names, flops, ops in found for name in names.split(", ")]


@pytest.mark.parametrize(("name", "flops", "ops"), rows())
def test_an_elementwise_operator_costs_what_the_page_says(name: str, flops: int, ops: int) -> None:
    operator, _, variant = name.partition(" ")
    keywords = {"approximate": "tanh"} if variant == "(tanh)" else {}
    output = torch.empty(ELEMENTS, device="meta")
    assert COSTS[f"aten::{operator}"]((output,), keywords, output) == (0, flops * ELEMENTS, ops * ELEMENTS)


def test_the_page_has_the_table() -> None:
    assert len(rows()) >= 40


@pytest.mark.parametrize(("model", "column"), [("lenet5", 1), ("resnet18_c100_functional_relu", 2)])
def test_the_conventions_have_the_figures_of_the_page(model: str, column: int) -> None:
    make, shape = MODELS[model]
    table = count_layers(make().eval(), Inputs((TensorSpec(shape),)))
    shown = dict(re.findall(rf"^\| `compat/(\w+)` \|.*?(?:\| ([\d,]+)[^|]*){{{column}}}", PAGE, re.MULTILINE))
    conventions = {name: value for name, value in vars(compat).items() if isinstance(value, Metric)}
    ours = {name: f"{convention({'layers': table}):,}" for name, convention in conventions.items()}
    assert shown == ours
