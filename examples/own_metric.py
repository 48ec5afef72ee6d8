"""A metric of your own, and the cost of an operation that sweeprof cannot count."""

import torch
from torch import nn

import sweeprof


@sweeprof.metric(name="mine/macs_per_param", unit="MAC", better="lower")
def macs_per_param(layers: sweeprof.LayerTable) -> float:
    """Multiply-accumulates per parameter."""  # the first line is the definition in reports
    return layers.macs / layers.params


@sweeprof.metric(name="mine/share_above", unit="ratio", better="lower")
def share_above(timing: tuple[sweeprof.Timing, ...], seconds: float = 1e-3) -> float:
    """Share of the samples that take longer than a limit."""  # `seconds` has a default: it is an option
    samples = [sample for round in timing for sample in round.samples]
    return sum(sample > seconds for sample in samples) / len(samples)


@torch.library.custom_op("examples::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    """Return half of each element, as a kernel of your own would."""
    return x / 2


@halved.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@sweeprof.operator_formula("examples::halved")
def cost_of_halved(args: tuple[torch.Tensor, ...], kwargs: dict[str, object], output: torch.Tensor) -> sweeprof.Cost:
    """One operation per element; without this formula the operator is listed as not counted."""
    return sweeprof.Cost(macs=0, flops=output.numel(), ops=output.numel())


class Net(nn.Module):
    """A layer and an operator that sweeprof does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return half of what the layer returns."""
        half: torch.Tensor = halved(self.linear(x))
        return half


def main() -> sweeprof.Profiler:
    """Print the metrics; return the profiler."""
    profiler = sweeprof.Profiler(
        Net(), inputs=torch.randn(4, 64), protocol=sweeprof.Protocol(min_s=0.05, warmup_s=0.02)
    )
    profiler.register([macs_per_param, share_above])
    print(profiler.metrics["mine/macs_per_param"])
    print(profiler.compute("mine/macs_per_param"))
    print(profiler.compute("mine/share_above", seconds=50e-6))
    print(profiler.compute("compute/flops"), profiler.compute("compute/coverage"))
    return profiler


if __name__ == "__main__":
    main()
