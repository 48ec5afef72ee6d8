"""Probes: marks in time at every call of every module, and at every node of the backward.

A module's ``forward`` is wrapped on the instance, which costs a fifth of a pair of hooks and sees ``module.forward(...)`` too. The
backward is followed where it happens, in the nodes of the autograd graph: a pre-hook marks when each begins, and the node
belongs to the call that made it. So it is right where hooks on modules are not: for the root, for inputs that need no gradient,
for in-place operations, and for outputs of any form. Between two marks lies what the first of them began, the engine's own work
included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sweeprof.backends.torch.callsites import paths_of, tensors_in
from sweeprof.backends.torch.state import forwards_wrapped, running_as_python
from sweeprof.measuring.layer_timing import FOLLOWED, LEFT, Event

_sequence = torch._C._autograd._get_sequence_nr
CHECKPOINT = "CheckpointFunctionBackward"
"""The node of a reentrant checkpoint, which runs a forward and a backward of its own."""
ANEW = 2**40
"""Added to the numbers of nodes that are made during the backward: on an accelerator it runs in a thread that counts on its own."""


class ModuleProbes:
    """Marks the calls of every module below a root while it is :meth:`attached`.

    Args:
        root: the model.
        mark: a mark in time (:class:`sweeprof.measuring.timing.Clock`).
        with_backward: whether calls also note how far the numbering of autograd nodes has come.
    """

    def __init__(self, root: torch.nn.Module, mark: Callable[[], Any], with_backward: bool) -> None:
        self.paths = paths_of(root)
        self.modules = running_as_python(self.paths)
        self.events: list[Event] = []
        self.is_in_backward = False
        self._mark, self._with_backward = mark, with_backward
        self._handles: list[Any] = []
        self._nodes: set[Any] = set()
        """Kept, as the hook of a node is gone when its Python object is."""

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within it every call of a module leaves two marks; afterwards every module is as it was."""
        index = {module: number for number, module in enumerate(self.modules)}
        try:
            with forwards_wrapped(self.modules, lambda module: self._probed(index[module], module.forward)):
                yield
        finally:
            self.forget()

    def _probed(self, index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        mark = self._mark
        if not self._with_backward:

            def probed(*args: Any, **kwargs: Any) -> Any:
                append = self.events.append
                append((index, 0, mark()))
                try:
                    return forward(*args, **kwargs)
                finally:
                    append((LEFT, 0, mark()))

            return probed

        def numbered(*args: Any, **kwargs: Any) -> Any:
            append = self.events.append
            append((index, self._number(_sequence()), mark()))
            try:
                outputs = forward(*args, **kwargs)
            finally:
                append((LEFT, self._number(_sequence()), mark()))
            if self.is_in_backward and _is_reentrant():
                self.follow(outputs)
                append((FOLLOWED, 0, mark()))
            return outputs

        return numbered

    def follow(self, outputs: Any) -> None:
        """Mark when each node of the backward of ``outputs`` begins; of a node that is followed already nothing changes."""
        waiting = [(tensor.grad_fn, tensor.grad_fn) for tensor in tensors_in(outputs) if tensor.grad_fn is not None]
        while waiting:
            node, user = waiting.pop()
            if node in self._nodes:
                continue
            self._nodes.add(node)
            # A node that adds to a gradient has no number of its own: it belongs to the node that it serves.
            number = self._number((user if hasattr(node, "variable") else node)._sequence_nr())
            self._handles.append(node.register_prehook(self._begun(number)))
            waiting += [(after, node) for after, _ in node.next_functions if after is not None]

    def _number(self, sequence: int) -> int:
        return sequence + ANEW if self.is_in_backward else sequence

    def _begun(self, number: int) -> Callable[[Any], None]:
        mark, append = self._mark, self.events.append

        def begun(_gradients: Any) -> None:
            append((None, number, mark()))

        return begun

    def hold(self, handle: Any) -> None:
        """Another hook on the backward, to be removed with the others."""
        self._handles.append(handle)

    def forget(self) -> list[Event]:
        """Every event since the last time; the backward is no longer followed."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()
        events, self.events = self.events, []
        self.is_in_backward = False
        return events

    def described(self) -> list[tuple[list[str], str]]:
        """Per index, the paths and the class name of the module."""
        return [(self.paths[module], type(module).__name__) for module in self.modules]


def _is_reentrant() -> bool:
    """True if a reentrant checkpoint is recomputing its forward pass."""
    node: Any = torch._C._current_autograd_node()
    return bool(node is not None and node.name() == CHECKPOINT)
