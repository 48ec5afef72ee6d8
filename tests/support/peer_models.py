"""Small models for which other profilers' figures are known (tests/golden/peers.json)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from support.nets import LeNet5 as LeNet5  # noqa: PLC0414  # one of these models

Made = tuple[Callable[[], nn.Module], tuple[int, ...]]
"""What makes the model, and the shape of its input, batch included."""


class Block(nn.Module):
    """ResNet's basic block; one ReLU for both of its activations, as a module or as a function."""

    def __init__(self, cin: int, cout: int, stride: int, module_relu: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU() if module_relu else None
        self.shortcut = nn.Sequential()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        act = self.relu or functional.relu
        return act(self.bn2(self.conv2(act(self.bn1(self.conv1(x))))) + self.shortcut(x))


class ResNet18C100(nn.Module):
    """ResNet18 with a stem of 3 × 3 for images of 32 × 32 and 100 classes."""

    def __init__(self, module_relu: bool = False, classes: int = 100) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU() if module_relu else None
        layers, cin = [], 64
        for cout, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers.append(nn.Sequential(Block(cin, cout, stride, module_relu), Block(cout, cout, 1, module_relu)))
            cin = cout
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.linear = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (self.relu or functional.relu)(self.bn1(self.conv1(x)))
        x = functional.avg_pool2d(self.layer4(self.layer3(self.layer2(self.layer1(x)))), 4)
        logits: torch.Tensor = self.linear(x.flatten(1))
        return logits


class FunctionalNet(nn.Module):
    """The same operations as modules and as functions, a module used twice, ``@``, attention in one kernel, einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.gelu = nn.GELU()
        self.silu = nn.SiLU()
        self.ln = nn.LayerNorm(8)
        self.w = nn.Parameter(torch.randn(8, 8))
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.pool(self.relu(self.conv(x))))
        x = functional.interpolate(x, scale_factor=2.0)
        x = functional.adaptive_avg_pool2d(x, 4).flatten(2).transpose(1, 2)
        x = self.ln(self.silu(self.gelu(x)))
        x = functional.linear(torch.matmul(x @ self.w, self.w), self.w)
        x = torch.add(x, x) * x + x
        x = self.fc(self.fc(x))
        a = functional.softmax(torch.softmax(torch.bmm(x, x.transpose(1, 2)), -1), -1)
        x = functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0] + torch.bmm(a, x)
        return torch.einsum("bnc,cd->bnd", x, self.w)


class LSTMNet(nn.Module):
    """Two layers in both directions, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.fc(self.rnn(x)[0])
        return found


class SingleInputNet(nn.Module):
    """The network of torchinfo's documentation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.drop = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5), nn.Dropout2d(0.3)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(self.drop(self.conv2(x)), 2)).flatten(1)
        return functional.log_softmax(self.fc2(functional.relu(self.fc1(x))), 1)


def toy() -> nn.Module:
    """The network of deeplite-profiler's tests."""
    return nn.Sequential(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())


MODELS: dict[str, Made] = {
    "linear_8_32": (lambda: nn.Linear(8, 32), (1, 8)),
    "linear_8_32_nobias": (lambda: nn.Linear(8, 32, bias=False), (1, 8)),
    "linear_4_8_on_2x3x4": (lambda: nn.Linear(4, 8), (2, 3, 4)),
    "lenet5": (LeNet5, (1, 1, 32, 32)),
    "resnet18_c100_functional_relu": (ResNet18C100, (1, 3, 32, 32)),
    "resnet18_c100_module_relu": (lambda: ResNet18C100(module_relu=True), (1, 3, 32, 32)),
    "toy_conv_32": (toy, (1, 3, 32, 32)),
    "conv_transpose_4_6": (lambda: nn.ConvTranspose2d(4, 6, 4, 2, 1), (1, 4, 8, 8)),
    "functional_net": (FunctionalNet, (1, 3, 16, 16)),
    "lstm_2l_bidir": (LSTMNet, (1, 5, 8)),
    "encoder_layer": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (1, 10, 32)),
}
"""By the name that tests/golden/peers.json has for them."""
