"""Memory: allocations in the first steps of a model, tensors that are alive, and the memory and time of source lines.

Allocations are read from the events of torch's profiler. Every allocator of torch tells the profiler of each block that it
gives away and takes back, on the host too; the module that runs is marked in the same trace, so that both are in one order. A
node of the backward belongs to the module whose forward made it: both carry autograd's sequence number.
"""

from __future__ import annotations

import gc
import pickle
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy

from sweeprof.backends.torch.callsites import dtype_name, stored_parts, tensors_in
from sweeprof.backends.torch.model import TorchModel, accelerators
from sweeprof.backends.torch.operators import MODULE, NODE, STEP, annotated, check_no_profiler
from sweeprof.backends.torch.private import (
    DisableTorchFunctionSubclass,
    EventType,
    RecordFunction,
    is_history_recorded,
    memory_snapshot,
    record_memory_history,
)
from sweeprof.backends.torch.state import in_one_thread, modules_of
from sweeprof.backends.torch.training import stepping
from sweeprof.display import Rows
from sweeprof.errors import Problem, Unsupported, UserError
from sweeprof.measuring.inputs import Inputs, shape_of
from sweeprof.measuring.line_profile import (
    LineMemory,
    MeasureMemory,
    chosen_functions,
    host_memory,
    metered_memory,
    watched,
)
from sweeprof.measuring.nvml import Gpu
from sweeprof.measuring.process_memory import Change, course
from sweeprof.measuring.timing import without_collection
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import is_below
from sweeprof.results.observations import Allocations, Kind, Lines, TensorRow, largest_first


class AcceleratorMeter:
    """The peaks of an accelerator's allocator, and after each step the memory of this process and of the whole device.

    Args:
        allocator: ``torch.accelerator``, or what stands in for it.
        process_bytes: of this process on the device; None where it cannot be had.
        copied: bytes of copies of what a caller has on the device, too, which are not counted.
    """

    def __init__(
        self, device: torch.device, allocator: Any, process_bytes: Callable[[], int | None], copied: int = 0
    ) -> None:
        self._device, self._allocator, self._process_bytes, self._copied = device, allocator, process_bytes, copied
        self._pre = 0
        self._seen: dict[str, list[int]] = {"process_peak_bytes": [], "device_peak_bytes": []}

    def begin(self) -> None:
        """Note the figures before the first step."""
        self._allocator.synchronize(self._device)
        self._allocator.reset_peak_memory_stats(self._device)
        self._pre = self._allocator.memory_allocated(self._device)

    def stepped(self) -> None:
        """Note the figures after a step."""
        self._allocator.synchronize(self._device)
        free, total = self._allocator.get_memory_info(self._device)
        self._seen["device_peak_bytes"].append(total - free)
        process = self._process_bytes()
        if process is not None:
            self._seen["process_peak_bytes"].append(process)

    def result(self) -> dict[str, int]:
        return {
            "allocated_pre_bytes": self._pre - self._copied,
            "allocated_peak_bytes": self._allocator.max_memory_allocated(self._device) - self._copied,
            "allocated_post_bytes": self._allocator.memory_allocated(self._device) - self._copied,
            "reserved_peak_bytes": self._allocator.max_memory_reserved(self._device),
            **{name: max(values) for name, values in self._seen.items() if values},
        }


def meter_of(model: TorchModel, work: Work) -> AcceleratorMeter | None:
    """Return the meter of the model's device, which does not count the copies of the caller's arguments that are there already.

    None on the host, which has no figures beside the allocations themselves.
    """
    device = model.device
    if device.type == "cpu":
        return None
    allocator, copied = allocator_of(device), 0
    if work.given is not None:
        given = tensors_in((work.given.args, work.given.kwargs))
        name = str(device)  # `cuda` is any of `cuda:0`, `cuda:1` …
        there = [tensor for tensor in given if name in (str(tensor.device), tensor.device.type)]
        before = allocator.memory_allocated(device)
        copies = model.put(Inputs(tuple(there)))
        copied = allocator.memory_allocated(device) - before
        del copies
    return AcceleratorMeter(device, allocator, partial(_process_bytes, device), copied)


def allocator_of(device: torch.device) -> Any:
    """Return ``torch.accelerator``, which reads the allocator of any accelerator; the device's own functions before torch 2.9."""
    if hasattr(torch.accelerator, "memory_stats"):
        return torch.accelerator
    module = torch.get_device_module(device)
    names = "memory_stats memory_allocated max_memory_allocated max_memory_reserved reset_peak_memory_stats synchronize"
    functions = {name: getattr(module, name) for name in names.split()}
    return SimpleNamespace(**functions, get_memory_info=module.mem_get_info)


def _process_bytes(device: torch.device) -> int | None:
    """Return the device memory of this process, contexts and libraries included; None if the driver does not tell."""
    if device.type != "cuda":
        return None
    try:
        with closing(Gpu(f"GPU-{torch.cuda.get_device_properties(device).uuid}")) as gpu:
            return gpu.own_bytes()
    except Unsupported:
        return None


STEPS = 3
"""The first makes gradients and optimizer state, the second has those of the first, the third is like all that follow."""


def allocations(model: TorchModel, work: Work) -> Allocations:
    """Trace the first steps; nothing may have run before.

    Raises:
        Unsupported: the caller's own torch.profiler is running, or the device's allocator does not tell the profiler anything.
    """
    check_no_profiler()
    meter = meter_of(model, work)
    with (
        annotated(model.native),
        stepping(model, work) as steps,
        in_one_thread("torch's profiler", steps.whole),
        without_collection(),
    ):
        gc.collect()
        before = storages()
        if meter is not None:
            meter.begin()
        with (
            snapshot_of(model.device) as files,
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler,
        ):
            for _ in range(STEPS):
                with RecordFunction(STEP):
                    steps.whole()
                if meter is not None:
                    meter.stepped()
                gc.collect(0)  # cycles that the step left; what is older has been collected
        optimizer = None if steps.training is None else steps.training.optimizer
        tensors = live_tensors(model.native, optimizer, (work.batch, work.targets), before)
        device = {} if meter is None else meter.result()
    roots = profiler.profiler.kineto_results.experimental_event_tree()
    changes, begins, ends = _followed(roots, model.device.type)
    if model.device.type != "cpu" and not any(change.bytes for change in changes):
        raise Unsupported(f"torch's profiler shows no allocations on {model.device.type}")
    found = course(changes, begins, ends, mode=work.mode, tensors=tensors, device=device)
    return replace(found, files=files)


MOST_ENTRIES = 20_000
"""Allocations and releases of which the snapshot has the source lines: a few KB each."""


@contextmanager
def snapshot_of(device: torch.device) -> Iterator[dict[str, bytes]]:
    """Yield a mapping that has the snapshot of CUDA's allocator by the name of its file when the context is left.

    It is empty on other devices, and where the caller records the allocator's history, which is left alone.
    """
    files: dict[str, bytes] = {}
    if device.type != "cuda" or is_history_recorded():
        yield files
        return
    record_memory_history(max_entries=MOST_ENTRIES, stacks="python")
    try:
        yield files
        files["memory_snapshot.pickle"] = pickle.dumps(memory_snapshot(device))
    finally:
        record_memory_history(enabled=None)


def _followed(roots: Iterable[Any], device: str) -> tuple[list[Change], list[int], list[int]]:
    """Return the changes of one kind of device's memory in a tree of events, and when the steps began and ended."""
    changes: list[Change] = []
    begins: list[int] = []
    ends: list[int] = []
    made: list[tuple[int, tuple[str, ...]]] = [(-1, ())]
    """Rising sequence numbers of forward operators, with the modules that ran them; several may ask for the next number."""
    newest_first = sorted(roots, key=lambda event: -event.start_time_ns)
    waiting: list[tuple[Any, tuple[str, ...], bool]] = [(root, (), False) for root in newest_first]
    node: tuple[str, ...] = ()
    while waiting:
        event, stack, is_backward = waiting.pop()
        begin, name, details = event.start_time_ns, event.name, event.extra_fields
        if event.tag == EventType.Allocation:
            if details.device.type == device:
                changes.append(Change(begin, details.alloc_size, details.ptr, stack))
            continue
        if name.startswith(NODE):
            # Gradients are accumulated by nodes without a number, right after the one that made them.
            if details.sequence_number >= 0:
                # The last one that asked for this number took it; or the last known one before it.
                node = made[bisect_right(made, details.sequence_number, key=lambda entry: entry[0]) - 1][1]
            stack, is_backward = node, True
        elif name.startswith(MODULE):
            path = name.removeprefix(MODULE)
            if is_backward:  # a segment that runs once more, perhaps for a node of one of its own modules
                stack = tuple([outer for outer in stack if is_below(path, outer)])
            stack, is_backward = (*stack, path), False
        elif name == STEP:
            begins.append(begin)
            ends.append(event.end_time_ns)
        elif event.tag == EventType.TorchOp and not is_backward and details.sequence_number >= max(0, made[-1][0]):
            made.append((details.sequence_number, stack))
        if name == STEP or name.startswith((NODE, MODULE)):
            changes.append(Change(begin, 0, 0, stack))
        waiting += [(child, stack, is_backward) for child in reversed(event.children)]
    return changes, begins, ends


OTHERS = 1000
"""At most so many rows of tensors that nothing names; the smaller ones beyond share a row per device."""


def live_tensors(
    model: torch.nn.Module, optimizer: Any = None, inputs: object = (), besides: Iterable[StorageWeakRef] = ()
) -> Rows[TensorRow]:
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
    known = {reference.cdata for reference in besides}
    found: dict[int, _Storage] = {}
    seen: list[torch.Tensor] = []
    """Keeps alive whose storages are keys."""
    # Subclasses are asked as tensors: what they do instead of an operation is none of this table's business.
    with DisableTorchFunctionSubclass():
        for tensor, kind, name in _every_held_tensor(getattr(model, "_orig_mod", model), optimizer, inputs):
            for part in _parts(tensor):
                storage = _storage(part)
                key, device, size = storage or (id(part), part.device, part.numel() * part.element_size())
                if name is None and key in known:
                    continue
                seen.append(part)
                shape, dtype = shape_of(part) or (), dtype_name(part.dtype)
                row = found.setdefault(key, _Storage({}, kind, shape, dtype, str(device), size))
                if name is not None:
                    row.names[name] = None
                elif not row.names and part.numel() > torch.Size(row.shape).numel():  # of views the largest
                    row.shape, row.dtype = shape, dtype
    return _rows(found.values())


def storages() -> list[StorageWeakRef]:
    """Every storage that a Python object refers to now; none is kept alive, and none made later is taken for one of them."""
    with DisableTorchFunctionSubclass():
        parts = [part for tensor in _every_tensor() for part in _parts(tensor)]
        return [StorageWeakRef(part.untyped_storage()) for part in parts if _storage(part) is not None]  # type: ignore[no-untyped-call]


def _every_tensor() -> list[torch.Tensor]:
    # Only the type is asked: a proxy may answer `isinstance` with code of its own.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]


HeldTensor = tuple[torch.Tensor, Kind, str | None]


def _every_held_tensor(model: torch.nn.Module, optimizer: Any, inputs: object) -> Iterator[HeldTensor]:
    """Yield all tensors with their kinds and names; the first to name a storage says what kind it is."""
    names: dict[torch.Tensor, str] = {}
    yield from _of_model(model, names)
    yield from _of_optimizer(optimizer, names)
    for index, tensor in enumerate(tensors_in(inputs)):
        yield tensor, "input", f"input[{index}]"
    for tensor in _every_tensor():
        yield tensor, "other", None


def _of_model(model: torch.nn.Module, names: dict[torch.Tensor, str]) -> Iterator[HeldTensor]:
    """Yield what the model holds; ``names`` gets the first name of every parameter."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, name)
        yield parameter, "parameter", name
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield buffer, "buffer", name
    for tensor, name in names.items():
        if tensor.is_leaf and tensor.grad is not None:
            yield tensor.grad, "gradient", f"{name}.grad"
    for path, module in model.named_modules():
        for attribute, value in vars(module).items():
            if issubclass(type(value), torch.Tensor):
                yield value, "other", f"{path}.{attribute}".removeprefix(".")


def _of_optimizer(optimizer: Any, names: dict[torch.Tensor, str]) -> Iterator[HeldTensor]:
    """Yield what the optimizer holds, if there is one; ``names`` gets parameters that it alone has."""
    held: list[tuple[str, object]] = []
    for index, group in enumerate(getattr(optimizer, "param_groups", ())):
        held += [(key, value) for key, value in group.items() if key != "params"]
        for position, parameter in enumerate(group["params"]):
            if parameter not in names:
                names[parameter] = f"group{index}[{position}]"
                yield parameter, "parameter", f"optimizer.{names[parameter]}"
    for parameter, state in dict(getattr(optimizer, "state", {})).items():
        if isinstance(state, dict):
            held += [(f"{names.get(parameter, 'state')}.{key}", value) for key, value in state.items()]
    for name, value in held:
        for index, tensor in enumerate(tensors_in(value)):
            place = "" if tensor is value else f"[{index}]"
            yield tensor, "optimizer", f"optimizer.{name}{place}"


@dataclass(slots=True)
class _Storage:
    """A storage, and what is known of the tensors on it."""

    names: dict[str, None]
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    device: str
    bytes: int


def _rows(found: Iterable[_Storage]) -> Rows[TensorRow]:
    kept: list[TensorRow] = []
    unnamed: list[TensorRow] = []
    for s in found:
        row = TensorRow(tuple(s.names), s.kind, s.shape, s.dtype, s.device, s.bytes)
        if s.kind == "other" and not s.names:
            unnamed.append(row)
        else:
            kept.append(row)
    unnamed = list(largest_first(unnamed))
    kept += unnamed[:OTHERS]
    small = unnamed[OTHERS:]
    for device in {row.device for row in small}:
        sizes = [row.bytes for row in small if row.device == device]
        kept.append(TensorRow((f"{len(sizes)} small ones",), "other", (), "", device, sum(sizes)))
    return largest_first(kept)


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with a storage that a tensor is made of: mostly itself; a compiler's stand-in of symbolic size has no memory."""
    if is_lazy(tensor) or tensor._has_symbolic_sizes_strides:
        return
    for part in stored_parts(tensor):
        if part is tensor:
            yield tensor
        else:
            yield from _parts(part)


def _storage(tensor: torch.Tensor) -> tuple[int, torch.device, int] | None:
    """Identity, device and bytes of a tensor's storage; a fake tensor's is on ``meta``. None where it has none of its own."""
    try:
        storage = tensor.untyped_storage()
        return storage._cdata, storage.device, storage.nbytes()
    except (NotImplementedError, RuntimeError):  # oneDNN's layout, wrappers of torch.func
        return None


def lines(model: TorchModel, work: Work, functions: Sequence[str]) -> Lines:
    """Time and memory by line while ``work`` is repeated.

    Args:
        functions: dotted names, as :func:`functions_named` takes them; none: the forward of the model itself.

    Raises:
        Unsupported: the model is compiled or scripted, a function is not Python's, or line_profiler is not installed.
        UserError: a name is not that of a function.
        Exception: whatever the model raised.
    """
    module = model.native
    if model.compiles:
        raise Unsupported("the model is compiled: its source lines do not run as they are written")
    kind = type(module).__name__
    if not functions and isinstance(module, torch.jit.ScriptModule):
        raise Unsupported(f"the model is scripted ({kind}): its forward is not run by Python")
    classes = [type(inner) for inner in modules_of(module)]
    chosen = chosen_functions(functions, classes, module.forward, f"forward of {kind}")
    with stepping(model, work) as steps, without_collection():
        return watched(chosen, steps.whole, _memory_on(model.device), str(model.device))


def _memory_on(device: torch.device) -> MeasureMemory:
    if device.type == "cpu":
        return host_memory
    try:
        return partial(metered_memory, LineMeter(device))
    except Unsupported as error:
        reason = str(error)
        return lambda *_: LineMemory(reason=reason)


def line_meter_of(device: str) -> LineMeter:
    """Return the meter of an accelerator by its name.

    Raises:
        Unsupported: this host has no such device, or its allocator keeps no statistics.
    """
    known = accelerators()
    if device not in known:
        raise Unsupported(f"this host has no device {device!r}. Known: {', '.join(known) or 'no accelerator'}")
    return LineMeter(torch.device(device))


class LineMeter:
    """The caching allocator of a device, in blocks as it hands them out (multiples of 512 bytes on CUDA).

    The process has one peak, which is reset here: other code that reads it gets the peak since then.

    Raises:
        Unsupported: the allocator keeps no statistics.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type not in accelerators():
            raise Unsupported(f"the allocator of {device.type} keeps no statistics")
        try:
            self._allocator = allocator_of(device)
            self._allocator.memory_stats(device)
        except (AttributeError, RuntimeError):
            raise Unsupported(f"the allocator of {device.type} keeps no statistics") from None

    def allocated(self) -> int:
        return self._read("allocated")

    def current(self) -> int:
        return self._read("current")

    def peak(self) -> int:
        return self._read("peak")

    def reset_peak(self) -> None:
        self._allocator.reset_peak_memory_stats(self._device)

    def _read(self, statistic: str) -> int:
        # Empty before the first allocation.
        return int(self._allocator.memory_stats(self._device).get(f"allocated_bytes.all.{statistic}", 0))
