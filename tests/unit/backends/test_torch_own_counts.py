"""What torch's own counter says, beside ours."""

from __future__ import annotations

import torch
from torch import nn

from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.metrics.compute import flop_counter, xla
from sweeprof.results.operators import OwnCounts
from sweeprof.zoo import lenet5


def counted(module: nn.Module, *shape: int) -> OwnCounts:
    return TorchBackend().own_counts(lambda: module, Inputs((TensorSpec(shape),)), None)


def test_it_is_twice_the_products_of_lenet5() -> None:
    found = counted(lenet5.torch_model(pretrained=False), 3, 1, 32, 32)
    assert found == OwnCounts({"flop_counter": 2 * 3 * 416_520})
    assert OwnCounts.from_dict(found.to_dict()) == found
    assert flop_counter({"own_counts": found}) == 2 * 3 * 416_520
    assert xla({"own_counts": found}).reason == "it is no counter of this framework"


def test_a_model_that_asks_for_values_has_none_and_a_reason() -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum().item() > 0 else -x

    found = counted(Asks(), 2, 2)
    assert not found.counts
    assert found.reasons["flop_counter"].startswith("the model does not run on shapes: ")
    assert flop_counter({"own_counts": found}).reason == found.reasons["flop_counter"]
