"""Trains the models of the zoo on the training split of the digits: ``python -m sweeprof.zoo.train [name ...]``.

The recipe is fixed in advance and the last epoch is what is saved: the test split only shows how good that is.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import torch
from safetensors.numpy import save
from torch.nn import functional

from sweeprof.datasets import SplitName
from sweeprof.datasets.arrays import Digits
from sweeprof.zoo import WEIGHTS

EPOCHS = {"lenet5": 80, "mlp": 120, "digits_resnet": 15}
PEAK_RATE = {"lenet5": 4e-3, "mlp": 2e-3, "digits_resnet": 1e-2}
BATCH = 32
REACH = 3
"""Pixels by which a training image is shifted at most; one pixel of the original scan is 4."""
SMOOTHING = 0.1
"""Label smoothing keeps the logits small, and so the float32 differences between the frameworks."""


def train(name: str, folder: Path = WEIGHTS, epochs: int | None = None, seed: int = 0) -> dict[SplitName, float]:
    """Train one model, write ``folder/<name>.safetensors`` and return its accuracy on both splits."""
    torch.manual_seed(seed)
    model: torch.nn.Module = import_module(f"sweeprof.zoo.{name}").torch_model(pretrained=False)
    fit(model, *tensors("train"), EPOCHS[name] if epochs is None else epochs, PEAK_RATE[name])
    # BatchNorm counts its batches only to average without a momentum, which no model here does.
    state = {key: value for key, value in model.state_dict().items() if not key.endswith("num_batches_tracked")}
    # Not save_file, which makes a file that only its owner can read, also once it is packaged.
    (folder / f"{name}.safetensors").write_bytes(save({key: value.numpy() for key, value in state.items()}))
    return {"train": accuracy(model, *tensors("train")), "test": accuracy(model, *tensors("test"))}


def tensors(name: SplitName) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images ``(n, 1, 32, 32)`` and class indices ``(n,)`` of a split of the digits."""
    split = Digits().split(name)
    return torch.from_numpy(split.inputs), torch.from_numpy(split.targets)


def fit(model: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor, epochs: int, peak_rate: float) -> None:
    """Train a model with AdamW and a one-cycle learning rate."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    steps = epochs * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(images)), BATCH):
            loss = functional.cross_entropy(model(shifted(images[batch])), targets[batch], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


def shifted(images: torch.Tensor) -> torch.Tensor:
    """Return each image of ``(n, 1, height, width)`` moved by its own random number of pixels, filled with background."""
    height, width = images.shape[-2:]
    padded = functional.pad(images, [REACH] * 4)
    corners = torch.randint(0, 2 * REACH + 1, (len(images), 2)).tolist()
    moved = [image[:, y : y + height, x : x + width] for image, (y, x) in zip(padded, corners, strict=True)]
    return torch.stack(moved)


@torch.no_grad()
def accuracy(model: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the share of the images whose largest logit is that of the right class."""
    model.eval()
    return float((model(images).argmax(dim=1) == targets).double().mean())


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m sweeprof.zoo.train", description="Retrain the models of the zoo.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(EPOCHS)}; all when none is given")
    names = parser.parse_args().names or list(EPOCHS)
    unknown = set(names) - set(EPOCHS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Known: {', '.join(EPOCHS)}.")
    for name in names:
        shares = train(name)
        print(f"{name}: train accuracy {shares['train']:.4f}, test accuracy {shares['test']:.4f}", flush=True)


if __name__ == "__main__":
    main()
