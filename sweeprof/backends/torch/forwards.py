"""How a forward runs: with as little of autograd as it allows, until everything that it returns is computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch

from sweeprof.backends.interfaces import attribute
from sweeprof.backends.torch.private import SWITCHES_OF_AUTOGRAD, below_autograd, core
from sweeprof.backends.torch.state import is_compiled
from sweeprof.errors import Unsupported

GradientMode = Callable[[], AbstractContextManager[Any]]


@contextmanager
def without_autograd() -> Iterator[None]:
    """Within it operators arrive whole, as in inference mode, and what is computed is not tied to that mode."""
    with torch.no_grad(), below_autograd():
        yield


MODES: tuple[GradientMode, ...] = (torch.inference_mode, torch.no_grad, torch.enable_grad)
"""The first one in which a forward does what it does for its users: forces, physics-informed networks and explanations by gradients
need autograd within it. In inference mode some functions of torch return zeros then, and raise nothing."""
UNTIED_MODES: tuple[GradientMode, ...] = (without_autograd, torch.no_grad, torch.enable_grad)
"""The same for a forward whose module may keep what it computes."""
_KNOWN: WeakKeyDictionary[torch.nn.Module, GradientMode] = WeakKeyDictionary()
"""The mode in which a module has run."""


class AutogradWatch:
    """Within it, notes whether autograd is switched on."""

    def __init__(self) -> None:
        self.was_switched_on = False
        self._before: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._before = {name: attribute(core, name) for name in SWITCHES_OF_AUTOGRAD}
        for name, switch in self._before.items():
            setattr(core, name, self._noting(switch))

    def __exit__(self, *error: object) -> None:
        for name, switch in self._before.items():
            setattr(core, name, switch)

    def _noting(self, switch: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            self.was_switched_on |= args != (False,)
            return switch(*args)

        return noting


def further_modes(
    modes: Sequence[GradientMode], watch: AutogradWatch, error: Exception | None
) -> Sequence[GradientMode]:
    """Return the modes in which a forward is to be run again.

    Args:
        modes: the one in which it has run, and those after it.
        watch: on the forward.
        error: what it raised; None: it returned.
    """
    without = modes[0] in (torch.inference_mode, without_autograd)
    misses_autograd = error is not None and any(part in str(error) for part in ("nference tensor", "require grad"))
    is_refused = error is not None and modes[0] is without_autograd
    return modes[1:] if misses_autograd or is_refused or (without and watch.was_switched_on) else ()


@contextmanager
def inference(module: torch.nn.Module, forward: Callable[[], object]) -> Iterator[Callable[[], Any]]:
    """Yield a function that runs a forward of inference and returns what it returned, completely computed.

    The first step finds the mode, and is run again in another one if it switches autograd on.
    """
    with ExitStack() as surrounding:
        modes: Sequence[GradientMode] = MODES[MODES.index(_KNOWN.get(module, torch.inference_mode)) :]
        surrounding.enter_context(modes[0]())
        run_step: Callable[[], object] | None = None

        def first() -> object:
            nonlocal modes, run_step
            while True:
                watch = AutogradWatch()
                try:
                    # What is compiled would keep the functions by which autograd is watched.
                    with nullcontext() if is_compiled(module) else watch:
                        outputs = finished(forward())
                    further = further_modes(modes, watch, None)
                except Exception as error:
                    further = further_modes(modes, watch, error)
                    if not further:
                        raise
                if not further:
                    _KNOWN[module], run_step = modes[0], forward
                    return outputs
                outputs, modes = None, further
                surrounding.close()
                surrounding.enter_context(modes[0]())

        def step() -> object:
            outputs = first() if run_step is None else run_step()
            return outputs if type(outputs) is torch.Tensor else finished(outputs)

        yield step


def finished(outputs: Any) -> Any:
    """Return what a forward returned after what is lazy in it has run: generators and other iterators, and futures.

    Raises:
        Unsupported: it is a coroutine, which only an event loop runs.
    """
    kind = type(outputs)
    if isinstance(outputs, Iterator):
        return [finished(item) for item in outputs]
    if isinstance(outputs, Future | torch.futures.Future):
        return finished(outputs.result() if isinstance(outputs, Future) else outputs.wait())
    if kind in (list, tuple):
        return kind(finished(item) for item in outputs)
    if kind is dict:
        return {key: finished(item) for key, item in outputs.items()}
    if inspect.isawaitable(outputs) or inspect.isasyncgen(outputs):
        if inspect.iscoroutine(outputs):
            outputs.close()
        asks = "give a step that runs it, such as forward=lambda model, x: asyncio.run(model(x))"
        raise Unsupported(f"the model returned a coroutine, which has not run: {asks}")
    return outputs
