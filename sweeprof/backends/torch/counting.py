"""Counts a torch module in one dispatch pass over shapes, and makes the rows of its table.

The parameters and buffers of every module are counted with it, each tensor in memory once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from sweeprof.backends import Build
from sweeprof.backends.torch.callsites import (
    CallSites,
    LiveBytes,
    ModuleCall,
    costs_of,
    dtype_name,
    is_plain,
    operator_counts,
    paths_of,
    stored_parts,
    stored_size,
    tensors_in,
)
from sweeprof.backends.torch.dispatch import (
    CONSTANT_ELEMENTS,
    MOST_CONSTANT_ELEMENTS,
    AutocastOnShapes,
    CountingMode,
    NotOnShapes,
    apart_from_others,
)
from sweeprof.backends.torch.graph import GraphRecorder
from sweeprof.backends.torch.model import (
    MODES,
    UNTIED_MODES,
    AutocastWatch,
    AutogradWatch,
    GradientMode,
    as_shapes,
    built,
    copied_to_meta,
    device_of,
    finished,
    further_modes,
    made,
    materialised,
    on_device,
    with_own_state,
)
from sweeprof.backends.torch.state import (
    MASK,
    ORIGINAL,
    UnseenOperators,
    attributes_of,
    children_of,
    frozen_weights,
    is_training,
    modules_of,
    parameters_kept,
    seen_whole,
    tensors_among,
    unchanged,
)
from sweeprof.counting.formulas import (
    DEFAULTS,
    NO_WEIGHTS,
    Args,
    Cost,
    FormulaFailed,
    Formulas,
    Kwargs,
    ParamSize,
    Variable,
    added,
    declared_size,
    outermost,
    summed,
)
from sweeprof.errors import Unsupported, first_line
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.timing import without_collection
from sweeprof.results.graph import Graph
from sweeprof.results.layer_times import OUTSIDE, ROOT, above
from sweeprof.results.layers import LayerRow, LayerTable, Weights
from sweeprof.text import stored

StorageKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ModuleWeights:
    """The weights of every module."""

    own: dict[torch.nn.Module, Weights]
    """Without what a module before it holds already."""
    subtree: dict[torch.nn.Module, Weights]
    """With everything below, each tensor once."""


def inventory(
    modules: Mapping[torch.nn.Module, Sequence[str]], sizes: Mapping[torch.nn.Module, ParamSize]
) -> ModuleWeights:
    """The weights of every module; a tensor that several hold counts once, with the first of them and in each subtree.

    A buffer in the memory of a parameter, such as a view of it, is not counted.

    Args:
        modules: a root and everything below it, parents first, each with the paths under which it is held.
        sizes: bytes per element, of modules that declare them.
    """
    trained: dict[int, list[torch.Tensor]] = {}
    for parameter in tensors_among(modules, buffers=False):
        if not is_lazy(parameter):
            trained.setdefault(place_of(parameter)[0], []).append(parameter)
    held = {module: _tensors(module, sizes.get(module, {}), trained) for module in modules}
    before: set[Hashable] = set()
    own: dict[torch.nn.Module, Weights] = {}
    for module, tensors in held.items():
        fresh = {tensor.key: tensor for tensor in tensors if tensor.key not in before}
        before.update(fresh)
        own[module] = summed(fresh.values())
    subtree: dict[torch.nn.Module, Weights] = {}
    is_tree = sum(map(len, modules.values())) == len(modules)
    if is_tree and len(before) == sum(map(len, held.values())):  # nothing is shared
        for module in reversed(list(held)):  # children come after their parents
            children = [subtree[child] for child in children_of(module) if child in subtree]
            subtree[module] = added([own[module], *children])
        return ModuleWeights(own, subtree)
    for module in held:
        below = {tensor.key: tensor for inner in modules_of(module) for tensor in held.get(inner, ())}
        subtree[module] = summed(below.values())
    return ModuleWeights(own, subtree)


def _tensors(
    module: torch.nn.Module, sizes: ParamSize, trained: Mapping[int, Sequence[torch.Tensor]]
) -> list[Variable]:
    """Return the parameters and persistent buffers that a module holds itself, without buffers in the memory of parameters.

    Args:
        trained: every parameter, by storage.
    """
    found = []
    for name, parameter in module._parameters.items():
        if parameter is None or is_lazy(parameter):
            continue
        pruned: int | None = 0
        if name.endswith(ORIGINAL):
            mask = module._buffers.get(name.removesuffix(ORIGINAL) + MASK)
            if mask is not None:
                pruned = None if mask.is_meta else mask.numel() - int(mask.count_nonzero())
        found.append(_described(name, parameter, sizes, False, pruned))
    for name, buffer in module._buffers.items():
        if buffer is None or is_lazy(buffer) or name in module._non_persistent_buffers_set:
            continue
        for around in trained.get(place_of(buffer)[0], ()):
            first, last = _span(around)
            begin, end = _span(buffer)
            if first <= begin and end <= last:
                break
        else:
            found.append(_described(name, buffer, sizes, True))
    for name, constant in frozen_weights(module):
        found.append(_described(name, constant, sizes, False))
    if _may_be_packed(type(module).__module__):
        for name, packed in _packed(module):  # a copy, whose memory the next module's may take
            found.append(_described(name, packed, sizes, False)._replace(key=(id(module), name)))
    return found


@cache
def _may_be_packed(package: str) -> bool:
    return "ao.nn" in package or "nn.quantized" in package


def _packed(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights of torch's quantised modules, which hold them in an object of their own and give them by a method."""
    for name in ("weight", "bias"):
        give: Any = getattr(module, name, None)
        value = give() if callable(give) else None
        if isinstance(value, torch.Tensor):
            yield name, value
    for name in ("get_weight", "get_bias"):
        give = getattr(module, name, None)
        if callable(give):
            for key, value in give().items():
                if isinstance(value, torch.Tensor):
                    yield key, value


def _described(name: str, tensor: torch.Tensor, sizes: ParamSize, is_buffer: bool, pruned: int | None = 0) -> Variable:
    elements, nbytes = stored_size(tensor)
    dtype = dtype_name(tensor.dtype)
    if type(tensor).__name__.startswith("Int4"):  # torchao stores several in a larger integer
        dtype = "int4"
    elif not is_plain(tensor):
        dtype = dtype_name(stored_parts(tensor)[0].dtype)
    return Variable(
        place_of(tensor),
        elements,
        declared_size(sizes, name, nbytes / max(1, elements), is_buffer),
        dtype,
        tensor.requires_grad,
        is_buffer,
        pruned,
    )


def place_of(tensor: torch.Tensor) -> StorageKey:
    """Return a key that is equal for tensors which share memory, whatever their shapes; on meta there are no addresses."""
    try:
        return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tensor.numel()
    except (RuntimeError, NotImplementedError):  # sparse and other layouts have no storage of their own
        return id(tensor), 0, tensor.numel()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage and the one after its last."""
    _, offset, elements = place_of(tensor)
    if tensor.layout is torch.strided and elements:
        elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return offset * tensor.itemsize, (offset + elements) * tensor.itemsize


_AS_COUNTED = Cost()
_LONGEST_ARGUMENTS = 200
_OUTERMOST = frozenset({ROOT, OUTSIDE})


class _Layer(NamedTuple):
    """What a row says of a module whatever it is called with."""

    type: str = ""
    arguments: str = ""
    kernel_size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    groups: int | None = None


def _layer_of(module: torch.nn.Module) -> _Layer:
    """Return the description of a module."""
    attributes = vars(module)
    kernel_size = _sizes(attributes.get("kernel_size"))
    groups = attributes.get("groups")
    if not kernel_size or not isinstance(groups, int):
        groups = None
    stride = _sizes(attributes.get("stride"))
    return _Layer(type(module).__name__, arguments_of(module), kernel_size, stride, groups)


def arguments_of(module: torch.nn.Module) -> str:
    """Return the constructor's arguments as ``repr(module)`` prints them; empty where the module's own code for that fails."""
    try:
        return stored(module.extra_repr(), _LONGEST_ARGUMENTS)
    except Exception:  # a user's code, which only a printed model runs otherwise
        return ""


def _sizes(value: object) -> tuple[int, ...]:
    """Return a kernel size or stride; empty for a value that is none."""
    if value is None:  # most layers have no such attribute
        return ()
    if not isinstance(value, tuple | list):
        value = (value,)
    if set(map(type, value)) <= {int}:
        return tuple(value)
    return ()


def rows_of(sites: CallSites) -> tuple[LayerRow, ...]:
    """One row per call in the order of the calls; a list of modules comes before the first call below it."""
    declared = {c.module: c.counted.param_size for c in sites.calls if c.module is not None and c.counted is not None}
    kept = {module: names for module, names in sites.paths.items() if names[0] not in sites.excluded}
    weights = inventory(kept, declared)
    called = {call.path for call in sites.calls}
    waiting = {names[0]: module for module, names in kept.items() if names[0] not in called}
    lists = {path for path, module in waiting.items() if children_of(module)}
    times: dict[str, int] = {}
    rows: list[LayerRow] = []

    def add(call: ModuleCall, module: torch.nn.Module, index: int) -> None:
        call.row = len(rows)
        own = weights.own.pop(module, NO_WEIGHTS)
        around = call.parent
        while around is not None and around.is_excluded:
            around = around.parent
        parent = None
        if around is not None:
            parent = around.row
        rows.append(_row(call, _layer_of(module), own, weights.subtree.get(module), index, parent))

    entered: set[str] = set()
    for call in sites.calls:
        holder = call.path.rpartition(".")[0]
        if lists and holder not in entered:
            entered.add(holder)
            for path in above(call.path)[1:]:
                if path in lists:
                    lists.discard(path)
                    add(ModuleCall(None, path, None), waiting.pop(path), -1)
        if call.module is not None:
            index = times.get(call.path, 0)
            times[call.path] = index + 1
            add(call, call.module, index)
    for path, module in waiting.items():
        add(ModuleCall(None, path, None), module, -1)
    if sites.outside.operators and not sites.outside.is_excluded:
        rows.append(_row(sites.outside, _Layer(), NO_WEIGHTS, None, 0, None))
    return tuple(rows)


def _row(
    call: ModuleCall, layer: _Layer, own: Weights, subtree: Weights | None, index: int, parent: int | None
) -> LayerRow:
    macs, flops, ops = costs_of(call)
    inputs, outputs, message = call.inputs, call.outputs, call.counted or _AS_COUNTED
    scale = message.activation_size
    output_bytes = outputs.nbytes
    if scale is not None:
        output_bytes = outputs.elements * scale
    depth = 0 if call.path in _OUTERMOST else call.path.count(".") + 1
    row = LayerRow(call.path, layer.type, depth, index, own.params, own.trainable, own.params_bytes, own.buffers, macs)
    # As keyword arguments, so many would take as long as the rest of the row.
    row.input_shapes = message.input_shapes or inputs.shapes
    row.output_shapes = message.output_shapes or outputs.shapes
    row.flops = flops
    row.ops = ops
    row.act_bytes = 0 if call.children else output_bytes
    row.input_bytes = inputs.nbytes
    row.output_bytes = output_bytes
    row.input_dtypes = inputs.dtypes
    row.output_dtypes = outputs.dtypes
    row.buffers_bytes = own.buffers_bytes
    row.dtypes = own.dtypes
    row.subtree = subtree
    row.parent = parent
    row.operators = operator_counts(call)
    row.arguments = layer.arguments
    row.kernel_size = layer.kernel_size
    row.stride = layer.stride
    row.groups = layer.groups
    row.declared_flops = message.flops if message.is_declared else None
    row.pruned = own.pruned
    return row


ON_SHAPES = "shapes"
FOR_REAL = "real forward"
_BY_DEVICE = "autocast chooses data types by the device of a tensor"
_FLEX_ATTENTION = {"_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True, "_validate_device": lambda *_: None}
"""Settings of torch's flex attention while it is counted: no warning that it is not compiled, and the meta device is allowed."""


def count_built(
    build: Build, inputs: Inputs, formulas: Formulas = DEFAULTS, recorders: list[GraphRecorder] | None = None
) -> LayerTable:
    """The layers of the module that ``build`` makes, in inference mode: made on meta, or for real where that cannot be.

    Args:
        build: makes the module.
        inputs: of one step.
        formulas: of the user.
        recorders: gets what noted the operators; None: nothing does.

    Raises:
        Exception: whatever the builder raised, or the module in a forward for real.
    """
    module = made(build)
    with without_collection(), apart_from_others():
        try:
            return _over_shapes(in_inference(module), inputs, formulas, recorders)
        except NotOnShapes:  # its forward needs values, which a module made on meta has not
            pass
    return count_layers(in_inference(built(build)), inputs, formulas, recorders)


def traced_graph(build: Build, inputs: Inputs, formulas: Formulas = DEFAULTS) -> Graph:
    """Return the graph of one forward, of the module that ``build`` makes, in inference mode.

    Raises:
        Unsupported: the forward needs values, and the module is on the meta device.
        Exception: whatever the builder or the module raised.
    """
    recorders: list[GraphRecorder] = []
    table = count_built(build, inputs, formulas, recorders)
    if table.uncounted is not None:
        raise Unsupported(table.uncounted)
    return recorders[-1].graph(table.method)


def in_inference(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module in inference mode; ``eval`` is not called if it already is."""
    if any(is_training(inner) for inner in modules_of(module)):
        return module.eval()
    return module


def count_layers(
    module: torch.nn.Module, inputs: Inputs, formulas: Formulas = DEFAULTS, recorders: list[GraphRecorder] | None = None
) -> LayerTable:
    """The layers of ``module`` for one step on ``inputs``, in the mode the module is in; it is left as it was found.

    First over shapes; then, for a forward that asks for values or runs within autocast, for real. A module on the meta device has
    no values: there, autocast changes no data type, control flow that depends on values is listed as uncovered, and where the
    forward does not run at all, the table has the parameters and buffers of every layer, and ``LayerTable.uncounted`` says why it
    has nothing else.

    Raises:
        Exception: whatever the module raised in the real forward.
    """
    with without_collection(), apart_from_others():
        device = device_of(module)
        is_on_meta = device is not None and device.type == "meta"
        try:
            return _over_shapes(module, inputs, formulas, recorders, allows_autocast=is_on_meta)
        except NotOnShapes as error:
            reason = str(error)
        module = materialised(uncompiled(module), inputs)
        device = device_of(module)
        if device is not None and device.type == "meta":
            return _without_values(module, inputs, formulas, reason, recorders)

        method = f"{FOR_REAL}: {reason}"
        try:
            return count_forward(module, on_device(inputs, device or "cpu"), formulas, method, recorders=recorders)
        except FormulaFailed as failed:
            raise failed.error from None


def _over_shapes(
    module: torch.nn.Module,
    inputs: Inputs,
    formulas: Formulas,
    recorders: list[GraphRecorder] | None = None,
    *,
    allows_autocast: bool = False,
) -> LayerTable:
    """The layers as counted over shapes.

    First on the module itself; then on a copy that is on the meta device altogether, for a forward that insists on one device, or
    asks for the values of a larger constant or of one that it made of Python's numbers on meta; then with the integers among the
    inputs and the constants that the forward makes on meta too. Last, for a forward that asks for the values of integers that the
    caller has on meta, with zeros in their place.

    Raises:
        NotOnShapes: the forward raised something each time; the message is that of the first. As AutocastOnShapes: it runs within
            autocast, which is not allowed.
    """
    module = uncompiled(module)
    module = materialised(module, inputs)
    first: Exception | None = None
    for attempt in _ATTEMPTS:
        if attempt.zeros and not any(map(_is_integer_on_meta, tensors_in((inputs.args, inputs.kwargs)))):
            continue
        try:
            counted = module
            if attempt.is_copy:
                counted = copied_to_meta(module)
            device = device_of(counted)
            given = as_shapes(inputs, device, attempt.zeros) if attempt.constants else on_device(inputs, "meta")
            with _NumbersOffMeta() if attempt.is_copy and attempt.constants else nullcontext():
                return count_forward(
                    counted,
                    given,
                    formulas,
                    attempt.method,
                    constants=attempt.constants,
                    recorders=recorders,
                    allows_autocast=allows_autocast,
                )
        except FormulaFailed as failed:
            raise failed.error from None
        except AutocastOnShapes:
            raise
        except Exception as error:  # a forward may raise anything when it meets a meta tensor
            first = first or error
    assert first is not None
    raise NotOnShapes(message_of(first)) from first


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A way to count over shapes."""

    is_copy: bool
    """True: on a copy of the module on meta."""
    constants: int = CONSTANT_ELEMENTS
    """Up to how many elements constants are computed for real; 0: they and the integers among the inputs are on meta too."""
    zeros: bool = False
    """True: integers that are on meta are zeros."""
    method: str = ON_SHAPES


_ATTEMPTS = (
    _Attempt(is_copy=False),
    _Attempt(is_copy=True, constants=MOST_CONSTANT_ELEMENTS),
    _Attempt(is_copy=True, constants=0),
    _Attempt(is_copy=True, zeros=True, method=f"{ON_SHAPES}, with zeros for integers on the meta device"),
)


def _is_integer_on_meta(tensor: torch.Tensor) -> bool:
    return tensor.is_meta and not tensor.is_floating_point() and not tensor.is_complex()


class _NumbersOffMeta(TorchFunctionMode):
    """Keeps on the host what a forward makes of Python's numbers on meta, where the dispatcher sees no operator.

    It sees every function, which takes a little time, and so is for a second attempt.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and torch.device(device).type == "meta":
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


def _without_values(
    module: torch.nn.Module, inputs: Inputs, formulas: Formulas, reason: str, recorders: list[GraphRecorder] | None
) -> LayerTable:
    """Return the table of a module on the meta device whose forward needs values: its weights, and counts as far as possible."""
    try:
        given = as_shapes(inputs, None)
        return count_forward(
            module, given, formulas, ON_SHAPES, skips_branches=True, recorders=recorders, allows_autocast=True
        )
    except FormulaFailed as failed:
        raise failed.error from None
    except Exception:  # the forward asks for values in Python too
        missing = f"its forward needs values, and the model is on the meta device: {reason}"
        return _weights_of(module, missing, formulas)


def weights_alone(build: Build, reason: str) -> LayerTable:
    """The parameters and buffers of every layer of the module that ``build`` makes, without a forward.

    Args:
        reason: why the forward is not counted, for ``LayerTable.uncounted``.
    """
    return _weights_of(made(build), reason)


def _weights_of(module: torch.nn.Module, reason: str, formulas: Formulas = DEFAULTS) -> LayerTable:
    sites = CallSites(paths_of(module), formulas)
    rows = [replace(row, macs=None, flops=None, ops=None, act_bytes=None) for row in rows_of(sites)]
    return LayerTable(tuple(rows), method="weights only", uncounted=reason, excluded=outermost(sites.excluded))


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that was passed to ``torch.compile``, or the module itself if it is not compiled."""
    original: torch.nn.Module = getattr(module, "_orig_mod", module)
    return original


def count_forward(  # noqa: PLR0913  # how the mode treats what has no values
    module: torch.nn.Module,
    inputs: Inputs,
    formulas: Formulas,
    method: str,
    modes: Sequence[GradientMode] = (),
    *,
    constants: int = CONSTANT_ELEMENTS,
    skips_branches: bool = False,
    recorders: list[GraphRecorder] | None = None,
    allows_autocast: bool = False,
) -> LayerTable:
    """The layers as one forward is counted, in the first of ``modes`` in which it runs as it does for its users.

    Of a forward that runs operators where they are not seen, the weights.

    Args:
        allows_autocast: count over shapes without autocast, and say so as the method.

    Raises:
        AutocastOnShapes: the forward runs within autocast, and is not run for real.
        Exception: whatever the forward raised.
    """
    on_shapes = not method.startswith(FOR_REAL)
    modules = modules_of(module)
    tensors = tensors_among(modules)
    attributes = attributes_of(module, modules)
    protected = []
    if on_shapes:
        protected = [tensor for tensor in (*tensors, *attributes.further_tensors) if not tensor.is_meta]

    def count() -> LayerTable:
        tried = modes or (MODES if on_shapes else UNTIED_MODES)
        while True:
            had_compiler = has_compiler()
            called = with_own_state(inputs)
            given = tensors_in((called.args, called.kwargs))
            sites = CallSites(paths_of(module), formulas)
            live = LiveBytes(sites.where, [tensor for tensor in given if tensor.layout == torch.strided])
            mode = CountingMode(
                sites, live, formulas, on_shapes, protected, constants=constants, skips_branches=skips_branches
            )
            recorder = None if recorders is None else GraphRecorder(module, sites, live, given)
            mode.recorder = recorder
            restored = unchanged(module, values=not on_shapes, attributes=attributes, tensors=tensors)
            written = nullcontext() if on_shapes else parameters_kept(module, is_trained=False)
            following = mode.following_threads(tried[0])
            outputs = None
            watch, autocast = AutogradWatch(), AutocastWatch()
            try:
                with restored, written, tried[0](), watch, autocast, slow_paths(), sites.tracking(), following, mode:
                    outputs = finished(called.call(module))
                further = further_modes(tried, watch, None)
            except FormulaFailed:
                raise
            except Exception as error:
                further = further_modes(tried, watch, error)
                if not further:
                    raise
            without_autocast = on_shapes and autocast.was_on
            if without_autocast and not allows_autocast:
                raise AutocastOnShapes(_BY_DEVICE)
            if not further and has_compiler() == had_compiler:
                break
            tried = further or tried
        if recorder is not None and recorders is not None:
            recorder.returned(outputs)
            recorders.append(recorder)
        del outputs
        return LayerTable(
            rows=rows_of(sites),
            uncovered=sites.uncovered,
            method=f"{method}, without autocast: {_BY_DEVICE}" if without_autocast else method,
            operator_calls=mode.operator_calls,
            liveness=live.result(sum(stored_size(tensor)[1] for tensor in given)),
            excluded=outermost(sites.excluded),
        )

    try:
        return seen_whole("counting", count)
    except UnseenOperators as unseen:
        return _weights_of(module, str(unseen), formulas)


def has_compiler() -> bool:
    """Return whether torch's compiler is imported, which some shape rules of torch do when they first run.

    The import keeps the calls that led to it alive, and so their tensors: bytes that were counted meanwhile must be counted again.
    """
    return "torch._dynamo" in sys.modules


def message_of(error: Exception) -> str:
    """Return the message of an error in one line."""
    if isinstance(error, NotOnShapes):
        return str(error)
    return first_line(error)


@contextmanager
def slow_paths() -> Iterator[None]:
    """Switch off the fused kernels that hide attention from the dispatcher, compiled submodules, and compiling flex attention."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    flex: Any = sys.modules.get("torch.nn.attention.flex_attention")
    settings = {name: getattr(flex, name) for name in _FLEX_ATTENTION if hasattr(flex, name)}
    try:
        with ExitStack() as stack:
            if has_compiler():
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            for name in settings:
                setattr(flex, name, _FLEX_ATTENTION[name])
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
        for name, setting in settings.items():
            setattr(flex, name, setting)
