"""Counts a torch module in one dispatch pass over shapes: nothing is allocated, torch is not patched.

Every operator that reaches the dispatcher is either counted by a formula, known to do no multiply-accumulate, or listed as
uncovered; there is no silent zero. The formulas are those of ``torch.utils.flop_counter``, halved: it counts two FLOPs for each
multiply-accumulate of matrix products, convolutions and attention, and nothing else.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from sweeprof.backends import Build
from sweeprof.backends.torch.free import does_no_macs
from sweeprof.profiling.layers import ROOT, LayerRow, LayerTable

Shapes = tuple[tuple[int, ...], ...]


def count_layers(build: Build, batch_shape: tuple[int, ...], dtype: torch.dtype) -> LayerTable:
    """The layers of the module that ``build`` makes, for one input of ``batch_shape``.

    The module is built and run on the meta device; one that cannot be (its forward depends on values, it has operators
    without shape functions) is built and run for real, which ``LayerTable.method`` then says.

    Raises:
        Exception: whatever the module raised in the real forward.
    """
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")  # a module loading its weights onto meta is what is wanted here
            return _count(built(build), torch.empty(batch_shape, dtype=dtype), "shapes")
    except Exception:  # whatever it is, the real forward below either works or reports it
        return _count(built(build), torch.zeros(batch_shape, dtype=dtype), "real forward")


def built(build: Build) -> torch.nn.Module:
    """What the builder makes.

    Raises:
        TypeError: that is no module.
    """
    module = build()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"the model's builder returned a {type(module).__name__}, not a torch.nn.Module")
    return module


def _count(module: torch.nn.Module, batch: torch.Tensor, method: str) -> LayerTable:
    module = module.eval()
    calls = _CallSites(module)
    with torch.no_grad(), _slow_paths(), calls.tracking(), _Counting(calls):
        module(batch)
    return LayerTable(tuple(_rows(calls)), dict(calls.uncovered), method)


@contextmanager
def _slow_paths() -> Iterator[None]:
    """Switch off the fused kernels that hide attention from the dispatcher."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


class _CallSites:
    """Which module is running, and what has been counted for each of its calls."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.paths: dict[torch.nn.Module, str] = {m: name or ROOT for name, m in module.named_modules()}
        self.stack: list[tuple[torch.nn.Module, int]] = []
        self.times_called: Counter[torch.nn.Module] = Counter()
        self.macs: Counter[tuple[torch.nn.Module, int]] = Counter()
        self.shapes: dict[tuple[torch.nn.Module, int], tuple[Shapes, Shapes]] = {}
        self.uncovered: Counter[str] = Counter()

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """Follow the calls of every module by hooks that are removed again, also after an error."""
        with ExitStack() as hooks:
            for module in self.paths:
                hooks.enter_context(module.register_forward_pre_hook(self._enter))
                hooks.enter_context(module.register_forward_hook(self._leave, with_kwargs=True, always_call=True))
            yield

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        self.stack.append((module, self.times_called[module]))
        self.times_called[module] += 1

    def _leave(self, module: torch.nn.Module, args: Any, kwargs: Mapping[str, Any], outputs: Any) -> None:
        self.shapes[self.stack.pop()] = (_shapes_of((args, kwargs)), _shapes_of(outputs))


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds each operator's multiply-accumulates to the call that is running."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here; being wrapped for it would import the compiler, two seconds in every process.
        return False

    def __init__(self, calls: _CallSites) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func._overloadpacket
        if packet not in flop_registry and not does_no_macs(func):
            with self:  # a composite operator is counted by its parts
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            self._calls.uncovered[str(packet)] += 1
        outputs = func(*args, **kwargs)
        if packet in flop_registry and self._calls.stack:
            self._calls.macs[self._calls.stack[-1]] += flop_registry[packet](*args, **kwargs, out_val=outputs) // 2
        return outputs


def _shapes_of(tree: Any) -> Shapes:
    return tuple(tuple(leaf.shape) for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _rows(calls: _CallSites) -> Iterator[LayerRow]:
    seen: set[tuple[int, int, int]] = set()
    for module, path in calls.paths.items():
        own = {_place(p): p for p in module.parameters(recurse=False) if _place(p) not in seen}
        seen.update(own)
        persistent = {
            name: b for name, b in module.named_buffers(recurse=False) if name not in module._non_persistent_buffers_set
        }
        for call in range(calls.times_called[module]) or (-1,):
            first = call <= 0
            inputs, outputs = calls.shapes.get((module, call), ((), ()))
            yield LayerRow(
                path=path,
                type=type(module).__name__,
                depth=0 if path == ROOT else path.count(".") + 1,
                call=call,
                params=sum(p.numel() for p in own.values()) if first else 0,
                trainable=sum(p.numel() for p in own.values() if p.requires_grad) if first else 0,
                params_bytes=sum(p.numel() * p.element_size() for p in own.values()) if first else 0,
                buffers=sum(b.numel() for b in persistent.values()) if first else 0,
                macs=calls.macs[module, call],
                input_shapes=inputs,
                output_shapes=outputs,
            )


def _place(parameter: torch.Tensor) -> tuple[int, int, int]:
    """What two tensors share that are one in memory, whatever their shapes; on meta there are no addresses."""
    return parameter.untyped_storage()._cdata, int(parameter.storage_offset()), parameter.numel()
