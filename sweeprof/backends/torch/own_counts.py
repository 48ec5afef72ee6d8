"""What torch's own counter says of a model, on shapes."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from sweeprof.backends import Build
from sweeprof.backends.torch.building import build_on_meta, copied_to_meta, materialised
from sweeprof.backends.torch.counting import in_inference, said_by, slow_paths
from sweeprof.backends.torch.feeding import on_device
from sweeprof.profiling.inputs import Inputs
from sweeprof.results.own_counts import OwnCounts

NAME = "flop_counter"


def own_counts(build: Build, inputs: Inputs) -> OwnCounts:
    """``torch.utils.flop_counter`` over one forward in inference mode; nothing is run."""
    shapes = on_device(inputs, "meta")
    try:
        module = copied_to_meta(in_inference(materialised(build_on_meta(build), shapes)))
        with torch.no_grad(), slow_paths(), FlopCounterMode(display=False) as counter:
            shapes.call(module)
    except Exception as error:  # a model may refuse shapes in any way
        return OwnCounts({}, {NAME: f"the model does not run on shapes: {said_by(error)}"})
    return OwnCounts({NAME: counter.get_total_flops()})
