"""Iteration: how long one step of a training loop took, and its phases."""

from __future__ import annotations

from dataclasses import dataclass

from sweeprof.display import Displayed


@dataclass(frozen=True, slots=True)
class Iteration(Displayed):
    """The duration of one step and its phases, in seconds. A phase that did not take place is None."""

    iteration_s: float
    """From the beginning to the end of the step, whatever the loop does in between; as forward and backward with what the probes
    cost, a few per cent of a large model and more of a small one."""
    forward_s: float | None
    """The model's calls, those that were differentiated where any were."""
    backward_s: float | None
    """From the first gradient of the model's outputs to the end of the backward, of all backwards."""
    update_s: float | None
    """The optimizers' steps."""
    batch_size: int | None = None
    """Length of the first axis of the first tensor that the model was called with, all calls together."""

    def samples_per_s(self, replicas: int = 1) -> float | None:
        """Samples in a second, of all ``replicas`` of the model that train on a batch of this size each."""
        return None if self.batch_size is None else self.batch_size * replicas / self.iteration_s
