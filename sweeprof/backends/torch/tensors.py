"""The tensors that are alive in this process, each storage once, by the names that a model and its optimizer have for them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from sweeprof.backends.torch.callsites import dtype_name, tensors_in
from sweeprof.errors import Problem, UserError
from sweeprof.results.memory import Kind, TensorRow, largest_first

OTHERS = 1000
"""At most so many rows of tensors that nothing names; the smaller ones beyond share a row per device."""
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def live_tensors(
    model: torch.nn.Module, optimizer: Any = None, inputs: object = (), besides: Iterable[StorageWeakRef] = ()
) -> tuple[TensorRow, ...]:
    """Every storage that a Python object refers to, largest first; sizes are those of whole storages, views included.

    Parameters, buffers, their gradients, what the optimizer holds and the inputs have their names and kinds; tensors that are plain
    attributes of a module have their names; all others in the process are found through the collector of garbage. What only
    autograd or a kernel's cache refers to is not seen. The model is not touched, nor is anything brought from another device.

    Args:
        model: compiled or not.
        optimizer: its ``state`` and ``param_groups`` are searched.
        inputs: tensors in any containers.
        besides: storages that are left out where nothing names them, as :func:`storages` gave them.

    Raises:
        UserError: the model is no module.
    """
    if not isinstance(model, torch.nn.Module):
        raise UserError([Problem("model", type(model).__name__, "is not a torch.nn.Module.")])
    table = _Table({reference.cdata for reference in besides})
    # Subclasses are asked as tensors: what they do instead of an operation is none of this table's business.
    with torch._C.DisableTorchFunctionSubclass():
        names = _add_model(table, getattr(model, "_orig_mod", model))
        if optimizer is not None:
            _add_optimizer(table, optimizer, names)
        for index, tensor in enumerate(tensors_in(inputs)):
            table.add(tensor, "input", f"input[{index}]")
        for found in _every_tensor():
            table.add(found, "other")
    return table.rows()


def storages() -> list[StorageWeakRef]:
    """Every storage that a Python object refers to now; none is kept alive, and none made later is taken for one of them."""
    with torch._C.DisableTorchFunctionSubclass():
        parts = [part for tensor in _every_tensor() if not is_lazy(tensor) for part in _parts(tensor)]
        return [_reference(part) for part in parts if _storage(part) is not None]


def _reference(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _every_tensor() -> list[torch.Tensor]:
    # Only the type is asked: a proxy may answer `isinstance` with code of its own.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]


def _add_model(table: _Table, model: torch.nn.Module) -> dict[torch.Tensor, str]:
    """Add what the model holds; returns the first name of every parameter."""
    parameters = list(model.named_parameters(remove_duplicate=False))
    for name, parameter in parameters:
        table.add(parameter, "parameter", name)
    for name, buffer in model.named_buffers(remove_duplicate=False):
        table.add(buffer, "buffer", name)
    names: dict[torch.Tensor, str] = {}
    for name, parameter in parameters:
        if names.setdefault(parameter, name) == name and parameter.is_leaf and parameter.grad is not None:
            table.add(parameter.grad, "gradient", f"{name}.grad")
    for path, module in model.named_modules():
        for attribute, value in vars(module).items():
            if issubclass(type(value), torch.Tensor):
                table.add(value, "other", f"{path}.{attribute}" if path else attribute)
    return names


def _add_optimizer(table: _Table, optimizer: Any, names: dict[torch.Tensor, str]) -> None:
    names = dict(names)
    for index, group in enumerate(getattr(optimizer, "param_groups", ())):
        for key, value in group.items():
            if key != "params":
                _add_all(table, value, f"optimizer.{key}")
        for position, parameter in enumerate(group["params"]):
            if parameter not in names:  # the optimizer's alone
                names[parameter] = f"group{index}[{position}]"
                table.add(parameter, "parameter", f"optimizer.{names[parameter]}")
    for parameter, state in dict(getattr(optimizer, "state", {})).items():
        if isinstance(state, dict):
            for key, value in state.items():
                _add_all(table, value, f"optimizer.{names.get(parameter, 'state')}.{key}")


def _add_all(table: _Table, value: object, name: str) -> None:
    """Add a tensor, or those in a container, as the optimizer's."""
    found = tensors_in(value)
    for index, tensor in enumerate(found):
        table.add(tensor, "optimizer", name if tensor is value else f"{name}[{index}]")


@dataclass(slots=True)
class _Storage:
    """A storage, and what is known of the tensors on it."""

    names: dict[str, None]
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    device: str
    bytes: int


class _Table:
    def __init__(self, besides: Set[int]) -> None:
        """Args:
        besides: keys of storages that are added only by a name.
        """
        self._besides = besides
        self._found: dict[int, _Storage] = {}
        self._seen: list[torch.Tensor] = []
        """Keeps alive whose storages are keys."""

    def add(self, tensor: torch.Tensor, kind: Kind, name: str | None = None) -> None:
        """Add the storages of a tensor; the first to name one says what kind it is."""
        if is_lazy(tensor):
            return
        for part in _parts(tensor):
            storage = _storage(part)
            key, device, size = storage or (id(part), part.device, part.numel() * part.element_size())
            if name is None and key in self._besides:
                continue
            self._seen.append(part)
            shape, dtype = tuple(part.shape), dtype_name(part.dtype)
            row = self._found.setdefault(key, _Storage({}, kind, shape, dtype, str(device), size))
            if name is not None:
                row.names[name] = None
            elif not row.names and part.numel() > torch.Size(row.shape).numel():  # of views the largest
                row.shape, row.dtype = shape, dtype

    def rows(self) -> tuple[TensorRow, ...]:
        rows = largest_first(
            TensorRow(tuple(s.names), s.kind, s.shape, s.dtype, s.device, s.bytes) for s in self._found.values()
        )
        others = [row for row in rows if row.kind == "other" and not row.names]
        if len(others) <= OTHERS:
            return rows
        small = others[OTHERS:]
        sizes, counts = Counter[str](), Counter(row.device for row in small)
        for row in small:
            sizes[row.device] += row.bytes
        dropped = set(map(id, small))
        together = (TensorRow((f"{counts[d]} small ones",), "other", (), "", d, sizes[d]) for d in counts)
        return largest_first((*(row for row in rows if id(row) not in dropped), *together))


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with a storage that a tensor is made of: mostly itself; a compiler's stand-in of symbolic size has no memory."""
    if tensor._has_symbolic_sizes_strides:
        return
    inner: list[Any] = []
    if is_traceable_wrapper_subclass_type(type(tensor)):
        wrapper: Any = tensor
        inner = [getattr(wrapper, name) for name in wrapper.__tensor_flatten__()[0]]
    elif tensor.layout is torch.sparse_coo:
        inner = [tensor._indices(), tensor._values()]
    elif tensor.layout in _COMPRESSED:
        inner = [getattr(tensor, name)() for name in _COMPRESSED[tensor.layout]]
    else:
        yield tensor
    for part in inner:
        yield from _parts(part)


def _storage(tensor: torch.Tensor) -> tuple[int, torch.device, int] | None:
    """Identity, device and bytes of a tensor's storage; a fake tensor's is on ``meta``. None where it has none of its own."""
    try:
        storage = tensor.untyped_storage()
        return storage._cdata, storage.device, storage.nbytes()
    except (NotImplementedError, RuntimeError):  # oneDNN's layout, wrappers of torch.func
        return None
