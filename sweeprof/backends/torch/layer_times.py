"""How long every call of every layer takes, forward and backward: steps with probes and steps without, in turns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from sweeprof.backends.torch.calibration import calibrated
from sweeprof.backends.torch.model import TorchModel
from sweeprof.backends.torch.probes import Probes
from sweeprof.backends.torch.state import is_compiled
from sweeprof.backends.torch.steps import Steps, stepping
from sweeprof.errors import Unsupported
from sweeprof.profiling.layer_timing import TakePair, Turn, in_turns, timed_in_turns
from sweeprof.profiling.recipe import Work
from sweeprof.profiling.spans import Event, Reader
from sweeprof.profiling.timing import Clock, Protocol, without_collection
from sweeprof.results.layer_times import LayerTimes


def layer_times(model: TorchModel, work: Work, protocol: Protocol) -> LayerTimes:
    """The layers' times of inference, or with a recipe of training; as many repeats as the protocol asks of a round.

    Raises:
        Unsupported: the model is compiled or scripted, so that it has no layers when it runs.
        Exception: whatever the model raised.
    """
    if is_compiled(model.module):
        raise Unsupported("a compiled model has no layers when it runs; backend=torch has the same model with them")
    is_training, clock = work.recipe is not None, model.clock()
    probes = Probes(model.module, clock.mark, with_backward=is_training)
    with stepping(model, work) as steps, without_collection():
        measuring = _Measuring(steps, probes, Reader(probes.described(), clock.between), clock)
        calibrate = partial(calibrated, clock, model.device, with_backward=is_training)
        times = timed_in_turns(measuring.pairs(), calibrate, clock.now, protocol, is_training)
    if len(times.calls) < 2:
        raise Unsupported("no Python module of the model was called: a scripted model has no layers when it runs")
    return times


@dataclass(frozen=True, slots=True)
class _Measuring:
    """Takes the steps."""

    steps: Steps
    probes: Probes
    reader: Reader
    clock: Clock

    def pairs(self) -> TakePair:
        """Steps without probes and steps with them."""
        return in_turns(lambda: self._turn(None), self._probed_turn)

    def _probed_turn(self) -> Turn:
        with self.probes.attached():
            return self._turn(self.probes)

    def _turn(self, probes: Probes | None) -> Turn:
        """One step; no mark is read before it is over, as reading waits for the device, which then has nothing to do."""
        mark, between, backward = self.clock.mark, self.clock.between, self.steps.backward
        begin = mark()
        outputs = self.steps.forward()
        end = mark()
        if backward is None:
            step = None if probes is None else self.reader.step(probes.events, begin, end)[0]
            return Turn(between(begin, end), 0.0, step)
        forward_events = [] if probes is None else _turned_back(probes, outputs)
        backward_begin = mark()
        backward(outputs)
        backward_end = mark()
        step = None
        if probes is not None:
            step, timeline = self.reader.step(forward_events, begin, end)
            self.reader.backward(step, timeline, probes.events, backward_begin, backward_end)
        return Turn(between(begin, end), between(backward_begin, backward_end), step)


def _turned_back(probes: Probes, outputs: Any) -> list[Event]:
    """The events of the forward; from now on the probes follow its backward."""
    events = list(probes.events)
    probes.events.clear()
    probes.follow(outputs)
    probes.is_in_backward = True
    return events
