"""Kernel sizes, strides, groups, trainable layers, shares of parameters and pruned weights of torch models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune as untyped_prune

import sweeprof
from sweeprof.backends.torch.counting import count_layers
from sweeprof.backends.torch.model import copied_to_meta
from sweeprof.measuring.inputs import Inputs

prune: Any = untyped_prune


class ConvNet(nn.Module):
    """The model of torchinfo's README."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = functional.relu(self.fc1(x.view(-1, 320)))
        return functional.log_softmax(self.fc2(x), dim=1)


def test_the_readme_example_of_torchinfo() -> None:
    model = ConvNet()
    for parameter in model.conv1.parameters():
        parameter.requires_grad = False
    layers = sweeprof.profile(model, (1, 1, 28, 28), ["params/total"]).layers
    columns = ("input_shapes", "output_shapes", "params", "params_share", "kernel_size", "macs", "trainable")
    header, _, *rows = layers.tree(columns=columns).splitlines()
    assert header.split() == "layer input shape output shape params params % kernel MACs trainable".split()
    found = {row.split()[0].lstrip("├└─"): row.split() for row in rows[:6]}
    assert "1.19 %" in rows[1]
    assert "5×5" in rows[1]
    assert rows[1].split()[-1] == "False"
    assert rows[0].split()[-1] == "Partial"
    assert rows[2].split()[-1] == "True"
    assert "22.985 %" in rows[2]
    assert found["Dropout2d"][-1] == "–"
    # The numbers of parameters that torchinfo's README prints.
    shares = [params / 21_840 for params in (0, 260, 5_020, 0, 16_050, 510)]
    assert layers.to_frame()["params_share"].tolist() == pytest.approx(shares)


def test_kernel_stride_and_groups_of_layers() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 8, (3, 1), groups=2, stride=(2, 1), padding=(1, 0)),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 4 * 8, 5),
    )
    layers = sweeprof.profile(model, (2, 4, 16, 16), ["params/total"]).layers
    found = [(row.kernel_size, row.stride, row.groups) for row in layers.rows]
    assert found == [((), (), None), ((3, 1), (2, 1), 2), ((2,), (2,), None), ((), (), None), ((), (), None)]
    assert "| 3×1 | 2×1 | 2 |" in layers.to_markdown(columns=["kernel_size", "stride", "groups"])
    frame = layers.to_frame()
    assert frame["is_trainable"].tolist() == [None, "True", None, None, "True"]


def pruned_model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 5), nn.Flatten(), nn.Linear(6 * 4 * 4, 10))
    # PyTorch's tutorial on pruning: 30 % of a layer's weights at random, its three smallest biases.
    prune.random_unstructured(model[0], name="weight", amount=0.3)
    prune.l1_unstructured(model[0], name="bias", amount=3)
    return model


def on_meta(model: nn.Module) -> nn.Module:
    return copied_to_meta(model)


@pytest.mark.parametrize("place", [lambda model: model, on_meta], ids=["real", "copied to meta"])
def test_pruned_weights_are_counted_separately(place: Callable[[nn.Module], nn.Module]) -> None:
    model = pruned_model()
    zeros = sum(int((mask == 0).sum()) for name, mask in model.named_buffers() if name.endswith("_mask"))
    table = count_layers(place(model), Inputs.of((1, 3, 8, 8)))
    assert zeros == 135 + 3
    assert table.pruned == zeros
    assert table.params == 450 + 6 + 960 + 10
    assert [row.pruned for row in table.rows] == [0, zeros, 0, 0]
    assert table.inclusive().rows[0].pruned == zeros
    assert table.where(lambda row: row.type != "Conv2d").inclusive().rows[0].pruned == 0
    text = sweeprof.profile(model, (1, 3, 8, 8), ["params/total"]).layers.tree(columns=["params", "pruned"])
    assert "pruned       138" in text


def test_pruned_weights_as_a_metric() -> None:
    profile = sweeprof.profile(pruned_model(), (1, 3, 8, 8), ["params/total", "params/pruned"])
    assert (profile["params/total"].value, profile["params/pruned"].value) == (1426, 138)
    with torch.device("meta"):
        built = pruned_model_without_values()
    missing = sweeprof.profile(built, (1, 4), ["params/pruned"])["params/pruned"]
    assert missing.value is None
    assert "without values" in str(missing.reason)


def pruned_model_without_values() -> nn.Module:
    model = nn.Linear(4, 2)
    prune.identity(model, "weight")
    return model


def test_a_training_step_of_a_pruned_model_is_counted() -> None:
    dense = nn.Sequential(nn.Conv2d(3, 6, 5), nn.Flatten(), nn.Linear(6 * 4 * 4, 10))
    counts: list[Any] = [
        sweeprof.Profiler(model, inputs=(1, 3, 8, 8)).seen("training") for model in (pruned_model(), dense)
    ]
    assert counts[0].estimated is None
    assert (counts[0].forward_macs, counts[0].backward_macs) == (counts[1].forward_macs, counts[1].backward_macs)


def test_what_pruning_made_permanent_is_not_pruned() -> None:
    model = pruned_model()
    prune.remove(model[0], "weight")
    prune.remove(model[0], "bias")
    assert sweeprof.profile(model, (1, 3, 8, 8), ["params/pruned"])["params/pruned"].value == 0
