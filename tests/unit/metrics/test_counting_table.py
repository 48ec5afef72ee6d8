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
BY_HAND = """
relu 1 1
sigmoid 1 3
tanh 1 7
leaky_relu prelu 1 4
elu celu 1 3
selu 1 7
softplus gelu 1 5
gelu-tanh 1 15
silu 1 4
mish 1 13
hardtanh relu6 1 2
hardsigmoid 1 4
hardswish 1 5
glu 1 4
add sub mul div pow sqrt exp log abs neg clamp maximum minimum 1 1
rsqrt 1 2
lerp addcmul addcdiv 3 3
upsample_nearest2d 0 0
upsample_linear1d 3 3
upsample_bilinear2d 7 7
upsample_trilinear3d 15 15
upsample_bicubic2d 31 31
"""
"""FLOPs and textbook operations of each element, counted in the operators' definitions by hand."""


def by_hand() -> list[tuple[str, int, int]]:
    lines = [line.split() for line in BY_HAND.strip().split("\n")]
    return [(name, int(flops), int(ops)) for *names, flops, ops in lines for name in names]


@pytest.mark.parametrize(("name", "flops", "ops"), by_hand())
def test_an_elementwise_operator_costs_what_its_definition_says(name: str, flops: int, ops: int) -> None:
    operator, _, variant = name.partition("-")
    keywords = {"approximate": variant} if variant else {}
    output = torch.empty(ELEMENTS, device="meta")
    assert COSTS[f"aten::{operator}"]((output,), keywords, output) == (0, flops * ELEMENTS, ops * ELEMENTS)


@pytest.mark.parametrize(("model", "column"), [("lenet5", 1), ("resnet18_c100_functional_relu", 2)])
def test_the_conventions_have_the_figures_of_the_page(model: str, column: int) -> None:
    make, shape = MODELS[model]
    table = count_layers(make().eval(), Inputs((TensorSpec(shape),)))
    shown = dict(re.findall(rf"^\| `compat/(\w+)` \|.*?(?:\| ([\d,]+)[^|]*){{{column}}}", PAGE, re.MULTILINE))
    conventions = {name: value for name, value in vars(compat).items() if isinstance(value, Metric)}
    ours = {name: f"{convention({'layers': table}):,}" for name, convention in conventions.items()}
    assert shown == ours
