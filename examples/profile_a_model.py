"""What a model of your own costs: parameters, operations, memory, latency, and which layer takes the time."""

import torch
from torch import nn

import sweeprof


class Net(nn.Module):
    """A small convolutional network; put your own model here."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(2 * width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of ten classes."""
        scores: torch.Tensor = self.head(self.features(images).mean((2, 3)))
        return scores


def main() -> sweeprof.Profiler:
    """Print what the model costs; return the profiler, which keeps everything that it has computed."""
    # `inputs` is a tensor, a shape, a tuple of arguments, or a mapping of keyword arguments.
    profiler = sweeprof.Profiler(
        Net(), inputs=torch.randn(8, 3, 32, 32), protocol=sweeprof.Protocol(min_s=0.1, warmup_s=0.05)
    )

    # From shapes alone: nothing is run.
    print(profiler.compute_all("static"))
    print(profiler.layers)
    print(profiler.layers.by_type(column="macs"))

    # Measured: the model runs for about as long as the protocol says.
    print(profiler.compute("latency/forward"))
    profiler.seen("layer_times")
    print(profiler.layers.top("forward_self_s", 3))

    # A value in its base unit, or None with a reason.
    macs = profiler.compute("compute/macs").value
    accuracy = profiler.compute("quality/accuracy")
    print(f"{macs} multiply-accumulates; no accuracy: {accuracy.reason}")
    return profiler


if __name__ == "__main__":
    main()
