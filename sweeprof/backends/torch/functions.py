"""A function as a module, so that it is counted and measured like any model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


class FunctionModule(torch.nn.Module):
    """Calls a function; the modules and parameters that the function uses are its own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        for path, value in _held_by(function):
            name = path.replace(".", "_")
            if hasattr(self, name) or any(
                value is held for held in (*self._modules.values(), *self._parameters.values())
            ):
                continue
            if isinstance(value, torch.nn.Module):
                self.add_module(name, value)
            else:
                self.register_parameter(name, value)

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, object]) -> FunctionModule:
        raise TypeError("a function cannot be copied with the modules that it uses: count a torch.nn.Module instead")


def module_of(function: Callable[..., Any]) -> torch.nn.Module:
    """Return a module that calls the function, of a class with the function's name."""
    inner = function.func if isinstance(function, functools.partial) else function
    name = getattr(inner, "__name__", type(inner).__name__)
    kind = type(
        name if name.isidentifier() else "function", (FunctionModule,), {"__module__": FunctionModule.__module__}
    )
    return kind(function)  # type: ignore[no-any-return]


def _held_by(function: Any) -> Iterator[tuple[str, torch.nn.Module | torch.nn.Parameter]]:
    """Yield the modules and parameters that a function reads: from its closure, defaults, global variables, object or arguments."""
    if isinstance(function, functools.partial):
        yield from _held_by(function.func)
        yield from _found({f"argument_{i}": value for i, value in enumerate(function.args)})
        yield from _found(function.keywords)
        return
    function = inspect.unwrap(function)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        yield type(owner).__name__, owner
    elif owner is not None or not hasattr(function, "__code__"):
        yield from _found(getattr(function if owner is None else owner, "__dict__", {}))
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")
        if not inspect.isfunction(function):
            return
    variables = inspect.getclosurevars(function)
    yield from _found(variables.nonlocals)
    yield from _found(variables.globals)
    yield from _found(
        {name: p.default for name, p in inspect.signature(function).parameters.items() if p.default is not p.empty}
    )


def _found(variables: Mapping[str, object]) -> Iterator[tuple[str, torch.nn.Module | torch.nn.Parameter]]:
    for name, value in variables.items():
        if isinstance(value, torch.nn.Module | torch.nn.Parameter):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from _found({f"{name}_{index}": item for index, item in enumerate(value)})
        elif isinstance(value, dict):
            yield from _found({f"{name}_{key}": item for key, item in value.items()})
