"""The outputs of a model as arrays on the host, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sweeprof.errors import Unsupported

HostArray = npt.NDArray[np.float32]
HostOutputs = HostArray | Mapping[str, HostArray]
"""One output ``(batch, ...)``, or several by their names: the keys of a mapping (``logits``), positions in a tuple (``0``)."""
T = TypeVar("T")


def floating_outputs(
    outputs: object,
    tensors: Mapping[str, T],
    is_floating: Callable[[T], bool],
    on_host: Callable[[T], HostArray],
    noun: str = "a tensor",
) -> HostOutputs:
    """Return every floating-point output; where there is none, the first output.

    Args:
        outputs: what the model returned.
        tensors: those in it by name.
        is_floating: True for a tensor of a floating-point type.
        on_host: copies a tensor to the host as float32.
        noun: what the framework calls a tensor.

    Raises:
        Unsupported: there are no tensors.
    """
    if not tensors:
        raise Unsupported(f"the model returned a {type(outputs).__name__} without {noun}")
    chosen = {name: tensor for name, tensor in tensors.items() if is_floating(tensor)} or dict(
        [next(iter(tensors.items()))]
    )
    if len(chosen) == 1:
        return on_host(next(iter(chosen.values())))
    return {name: on_host(tensor) for name, tensor in chosen.items()}


def named(outputs: HostOutputs) -> Mapping[str, HostArray]:
    """Return the outputs by name; a single one has the name ``""``."""
    return outputs if isinstance(outputs, Mapping) else {"": outputs}
