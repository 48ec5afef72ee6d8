"""A step, whole or phase by phase, whether it is a forward or trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from sweeprof.backends.torch.model import TorchModel
from sweeprof.backends.torch.recipes import training
from sweeprof.profiling.recipe import Work
from sweeprof.results.operators import Phase

Within = Callable[[Phase], AbstractContextManager[Any]]
"""What a phase runs within."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The phases of a step, none of which waits for the device; of inference it is the first alone."""

    device: torch.device
    forward: Callable[[], Any]
    """Returns the outputs, or with a backward the loss."""
    backward: Callable[[Any], None] | None = None
    update: Callable[[], None] | None = None
    optimizer: Any = None

    def whole(self, within: Within = lambda _: nullcontext()) -> None:
        """All phases, until the device is done; what they return is not kept."""
        with within("forward"):
            outputs = self.forward()
        if self.backward is not None and self.update is not None:
            with within("backward"):
                self.backward(outputs)
            with within("update"):
                self.update()
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


@contextmanager
def stepping(model: TorchModel, work: Work) -> Iterator[Steps]:
    """The steps of ``work``; what training does to the weights is their owner's to take back.

    Raises:
        Unsupported: the recipe does not fit the model.
    """
    if work.recipe is None:
        with torch.inference_mode():
            yield Steps(model.device, model.forward_of(work.batch))
        return
    with training(model, work.batch, work.targets, work.recipe) as phases:
        yield Steps(model.device, phases.forward, phases.backward, phases.update, phases.optimizer)
