"""OpenVINO: models as graphs, from a torch module, a Keras model, or a file; their counts, and the times of their operators."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
import openvino

from sweeprof.backends import AnyArray, Gap, Shape, by_name, shapes_of
from sweeprof.backends.model_files import Feed, FileBackend, FileModel, fitting, gaps_of, is_fitting
from sweeprof.backends.openvino.convert import MODULE, WEIGHT, Converted, OpenvinoConverter
from sweeprof.counting import file_graph, operators
from sweeprof.counting.file_graph import (
    BATCH_NORM_BUFFERS,
    GRU,
    LSTM,
    QUANTISED,
    RNN,
    CallTensor,
    FileGraph,
    GraphFacts,
    OperatorCall,
    cost_by,
    module_table,
    numbers_of,
)
from sweeprof.counting.formulas import DEFAULTS, Formulas, OperatorCost
from sweeprof.counting.operators import INTEGER, NOTHING, REAL
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.layer_timing import NodeRun, in_turns, module_times, operator_rows, origin_of, pairs_in_turns
from sweeprof.measuring.timing import lasting, without_collection
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import ROOT, LayerTimes, PhaseTimes
from sweeprof.results.layers import LayerTable
from sweeprof.results.observations import Operators
from sweeprof.results.record import Protocol

Hint = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """Settings that a model is compiled with."""

    device: str
    threads: int
    streams: int | None
    hint: Hint
    inference_precision: str | None
    """``f32`` or ``bf16``; None: OpenVINO chooses."""

    def compiled(self, graph: openvino.Model, *, counters: bool = False) -> openvino.CompiledModel:
        """Return the graph as it runs.

        Args:
            graph: with its shapes.
            counters: True: it notes the time of each operator.
        """
        config: dict[str, Any] = {
            "PERFORMANCE_HINT": self.hint.upper(),
            "INFERENCE_NUM_THREADS": self.threads,
            "PERF_COUNT": counters,
        }
        if self.streams is not None:
            config["NUM_STREAMS"] = self.streams
        if self.inference_precision is not None:
            config["INFERENCE_PRECISION_HINT"] = self.inference_precision
        return openvino.Core().compile_model(graph, self.device.upper(), config)


class OpenvinoModel(FileModel):
    """A graph in OpenVINO, compiled for the shapes of the first inputs."""

    settings: CompileSettings
    graph: Any
    """The ``openvino.Model`` with the shapes of the first inputs."""

    def open(self, inputs: Inputs) -> None:
        self.graph = openvino.Core().read_model(self.file.path)
        self._slots = [self.graph.input(name) for name in self.file.input_names(self.graph)]
        reshape(self.graph, self._slots, [array.shape for array in self._fed(inputs)])
        self.native = self.settings.compiled(self.graph)
        self._request = self.native.create_infer_request()

    def fits(self, inputs: Inputs) -> bool:
        given = by_name(self.file.input_names(self.graph), *self.shapes(inputs))
        return all(map(is_fitting, given.values(), [tuple(slot.shape) for slot in self._slots]))

    def _fed(self, inputs: Inputs) -> list[AnyArray]:
        """Return the arrays in the order of the arguments."""
        return list(by_name(self.file.input_names(self.graph), *self.arrays(inputs)).values())

    def feed(self, inputs: Inputs) -> Feed:
        given = self._fed(inputs)
        rows = len(given[0]) if given and given[0].ndim else None
        tensors = []
        for array, slot in zip(given, self._slots, strict=True):
            fitted = fitting(array, tuple(slot.shape), "the graph is compiled for")
            fitted = np.ascontiguousarray(fitted, slot.element_type.to_dtype())
            tensors.append(openvino.Tensor(fitted, shared_memory=True))
        return Feed(tuple(tensors[self._slots.index(slot)] for slot in self.graph.inputs), rows)

    def step_of(self, batch: Feed) -> Callable[[], object]:
        return self.steps_of(self._request, batch)

    @staticmethod
    def steps_of(request: openvino.InferRequest, batch: Feed) -> Callable[[], object]:
        """Return a function that runs one forward of ``batch`` by a request, and returns the outputs when they are complete."""
        for index, tensor in enumerate(batch.values):
            request.set_input_tensor(index, tensor)
        outputs = [request.get_output_tensor(index).data for index in range(len(request.output_tensors))]
        infer, rows = request.infer, batch.rows

        def step() -> object:
            infer(share_outputs=True)
            return rows, outputs

        return step

    def named_outputs(self, values: Any) -> dict[str, AnyArray]:
        slots = self.graph.outputs
        names = self.file.outputs or [min(slot.get_names(), default=str(i)) for i, slot in enumerate(slots)]
        return dict(zip(names, values, strict=True))


def reshape(graph: openvino.Model, slots: Sequence[openvino.Output], shapes: Sequence[Shape]) -> None:
    """Set the shapes of the inputs.

    Raises:
        Unsupported: the graph takes others.
    """
    given = {}
    for slot, sizes in zip(slots, shapes, strict=True):
        given[slot] = shape = openvino.PartialShape(list(sizes))
        if not slot.get_partial_shape().compatible(shape):
            raise Unsupported(f"the graph takes a {slot.get_partial_shape()} as {slot.get_any_name()}, not a {shape}")
    graph.reshape(given)


@dataclass(slots=True)
class OpenvinoBackend(FileBackend):
    """Graphs in OpenVINO; ``threads`` are those of all streams together.

    ``precision``: ``fp16`` stores weights in 16 bits; ``bf16`` computes in 16 where the processor can; ``int8`` quantizes by NNCF;
    None: as the model is stored, computed in what OpenVINO prefers on this processor.
    """

    gaps: ClassVar[Mapping[str, Gap]] = {
        **gaps_of("OpenVINO"),
        "allocations": Gap("not supported upstream", "tensors share memory that is planned before any step"),
    }
    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert",),
        "bf16": ("autocast",),
        "int8": ("static",),
    }
    MODEL: ClassVar[type[OpenvinoModel]] = OpenvinoModel
    out_of_memory: ClassVar[tuple[str, ...]] = ("bad_alloc", "not enough memory")
    hint: Hint = "latency"
    """What OpenVINO chooses the number of streams for: ``latency`` of one request, or ``throughput`` of several at a time."""
    streams: int | None = None
    """Requests that are computed at the same time; None: as the hint and the threads suggest."""
    requests: int | None = None
    """Requests in flight while throughput/concurrent is measured; None: as many as OpenVINO finds best for its streams."""

    def converter(self) -> OpenvinoConverter:
        storage = self.precision if self.precision in ("fp16", "int8") else "fp32"
        if storage == "int8" and find_spec("nncf") is None:
            raise Unsupported("precision=int8 needs NNCF: pip install 'sweeprof[nncf]'")
        return OpenvinoConverter(self.seed, self.cache, self.samples, storage, kept=self.kept)

    def session_settings(self, device: str) -> CompileSettings:
        if self.precision == "bf16" and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise Unsupported("this processor has no instructions for bfloat16 (AVX-512 BF16 or AMX)")
        inference: str | None = self.precision
        if inference not in (None, "bf16"):
            inference = "f32"
        return CompileSettings(device, self.threads, self.streams, self.hint, inference)

    def settings_of(self, native: openvino.CompiledModel) -> dict[str, Any]:
        return {
            "threads": native.get_property("INFERENCE_NUM_THREADS"),
            "streams": native.get_property("NUM_STREAMS"),
            "optimal requests": native.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"),
            "inference precision": native.get_property("INFERENCE_PRECISION_HINT").to_string(),
        }

    def counted(
        self, file: Converted, stored: Converted, inputs: Inputs, axis: int | None, formulas: Formulas
    ) -> LayerTable:
        model = openvino.Core().read_model(file.path)
        sized = by_name(file.input_names(model), *shapes_of(inputs, axis))
        reshape(model, list(map(model.input, sized)), list(sized.values()))
        graph = read(model, file)
        if file.is_of_onnx:
            graph = replace(graph, weights=without_scales(graph))
        sizes = {}
        if stored != file:
            sizes = stored_bytes(graph, read(openvino.Core().read_model(stored.path), stored))
        facts = GraphFacts(file.types, file.weights, sizes, VIEWS, {"BatchNormInference": BATCH_NORM_BUFFERS})
        return module_table(graph, facts, partial(cost_of, formulas=formulas), "openvino")

    def layer_times(self, model: OpenvinoModel, work: Work, protocol: Protocol) -> LayerTimes:
        # Means over steps with and without counters in turns, each kind in its own request.
        self.check_inference(work)
        counters, clock, longest = Counters(model, work.batch), model.clock(), protocol.max_s
        with model.stepping(work.batch) as plain, without_collection():
            bare = partial(lasting, plain, 1, clock)
            warming = in_turns(bare, bare)
            pairs_in_turns(warming, clock, protocol.warmup_steps, protocol.warmup_s, longest, protocol.warmup_steps)
            pair = in_turns(bare, partial(lasting, counters.step, 1, clock))
            pairs = pairs_in_turns(pair, clock, protocol.min_samples, protocol.min_s, longest, FEWEST_STEPS)
        nodes = counters.nodes()
        if not nodes:
            raise Unsupported("the compiled graph has no operators: its results are constants")
        step_s, counted_s = map(statistics.fmean, zip(*pairs, strict=True))
        unmet = () if len(pairs) >= protocol.min_samples else (f"min_samples={protocol.min_samples}",)
        return LayerTimes(
            mode="inference",
            calls=module_times([nodes], [min(step_s, counted_s)], model.file.types),
            warmup=0,
            forward=PhaseTimes((step_s,), (counted_s,)),
            probe_s={"outside": max(0.0, counted_s - step_s)},
            unmet=unmet,
        )

    def operators(self, model: OpenvinoModel, work: Work) -> Operators:
        self.check_inference(work)
        counters = Counters(model, work.batch)
        step_s = lasting(counters.step, OPERATOR_STEPS, model.clock()) / OPERATOR_STEPS
        return Operators("inference", operator_rows(counters.nodes(), 1), OPERATOR_STEPS, step_s)

    def concurrently(self, model: OpenvinoModel, batch: Feed, seconds: float) -> tuple[int, int, float]:
        queue = openvino.AsyncInferQueue(model.native, self.requests or 0)
        for request in queue:
            model.steps_of(request, batch)
        requests = len(queue)
        for _ in range(requests):
            queue.start_async()  # the first of each request allocates
        queue.wait_all()
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            queue.start_async()  # waits for a free request
            count += 1
        queue.wait_all()
        return requests, count, time.perf_counter() - begin


# ---------------------------------------------------------------------------------------------------------------
# Counts of a file as it was converted: before OpenVINO fuses and folds, which changes how it is computed
# ---------------------------------------------------------------------------------------------------------------

OpenvinoNode = OperatorCall[CallTensor]
OpenvinoGraph = FileGraph[OpenvinoNode, CallTensor]
VIEWS = {"Reshape", "Squeeze", "Unsqueeze"}
"""Operators whose result is their input under another shape: no memory of its own."""
KINDS = {"f": "float", "bf": "bfloat", "nf": "normal_float", "i": "int", "u": "uint"}
"""What the names of data types begin with: ``f32`` is ``float32``, ``f8e4m3`` is ``float8_e4m3``."""
SETTINGS_ELEMENTS = 64
"""Constants of integers up to this size may be settings of an operator, such as axes."""
COMPRESSED = "_compressed"
"""What the names of constants of 16 bits end in."""


def cost_of(node: OpenvinoNode, formulas: Formulas) -> OperatorCost | None:
    """Return the cost of an operator in a step, or None if it is unknown."""
    if all(value is None or value.is_constant for value in node.inputs):
        return NOTHING
    return cost_by(node, formulas, "openvino", COSTS, FREE)


def read(model: openvino.Model, file: Converted) -> OpenvinoGraph:
    """Return the graph of a model with the shapes that it has."""
    values: dict[Any, CallTensor] = {}
    nodes, weights = [], []
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_friendly_name()
        given = tuple(values[key_of(slot)] for slot in node.input_values())
        is_fixed = kind == "Constant" or (bool(given) and all(value.is_constant for value in given))
        made = []
        for index, slot in enumerate(node.outputs()):
            shape = tuple(slot.get_shape()) if slot.get_partial_shape().is_static else None
            label = f"{name}:{index}" if index else name
            dtype: str = slot.get_element_type().to_string()
            found = re.fullmatch(r"(bf|nf|[fiu])(\d+)(\w*)", dtype)
            if found is not None:
                bits, variant = found[2], found[3]
                dtype = "_".join(filter(None, [KINDS[found[1]] + bits, variant]))
            elif dtype == "boolean":
                dtype = "bool"
            size = slot.get_element_type().bitwidth / 8
            value = CallTensor(label, shape, dtype, size, numbers_of(dtype), is_constant=is_fixed)
            values[key_of(slot)] = value
            made.append(value)
        if kind == "Constant":
            made[0].name = name.removeprefix(WEIGHT).removesuffix(COMPRESSED)
            if made[0].numbers is not INTEGER or made[0].dtype in QUANTISED:
                weights.append(made[0])
            elif made[0].elements <= SETTINGS_ELEMENTS:
                made[0].data = np.asarray(node.data)
        elif kind not in ("Parameter", "Result"):
            attributes = node.get_attributes()
            nodes.append(OperatorCall(kind, path_of(name, file), given, tuple(made), attributes, name, "openvino"))
    inputs = tuple(values[key_of(slot)] for slot in model.inputs)
    outputs = tuple(values[key_of(slot.get_node().input_value(0))] for slot in model.outputs)
    return FileGraph(tuple(nodes), inputs, outputs, tuple(weights))


def key_of(slot: Any) -> tuple[str, int]:
    """Return what tells an output of an operator from all others."""
    return slot.get_node().get_name(), slot.get_index()


def path_of(name: str, file: Converted) -> str:
    """Return the module of an operator, by its name: ``__module.model.stage1.conv1/aten::_convolution/Convolution``.

    Other converters write ``model/conv1/Conv2D``, or names without modules.
    """
    start = MODULE if file.types else "__module"
    parts = list(filter(None, name.split("/"))) or [""]
    if parts[0] == start or parts[0].startswith(f"{start}."):
        return parts[0].removeprefix(start).lstrip(".") or ROOT
    if file.types:
        return ROOT
    return ".".join(parts[:-1]) or ROOT


def stored_bytes(graph: OpenvinoGraph, quantized: OpenvinoGraph) -> dict[str, int]:
    """Return by the name of each weight of several axes the bytes that a quantized graph stores instead of it.

    Its scale and its zero point are among them.
    """
    found: dict[str, int] = {}
    stored = _weights_by_reader(quantized)
    for reader, weights in _weights_by_reader(graph).items():
        instead = stored.get(reader, [])
        names = [weight.name for weight in weights if weight.shape is not None and len(weight.shape) > 1]
        if names and any(weight.dtype in ("int8", "uint8") and weight.elements > 1 for weight in instead):
            found[names[0]] = sum(int(weight.nbytes) for weight in instead)
    return found


def without_scales(graph: OpenvinoGraph) -> tuple[CallTensor, ...]:
    """Return the weights without the scales and zero points of quantised ones, as they are counted in an ONNX file.

    They are converted, a zero point is subtracted, and a scale is multiplied. Biases of 32 bits are marked as the real numbers
    that they stand for; other integers of that size are settings.
    """
    behind: dict[CallTensor | None, CallTensor] = {}
    """The constant that a value is converted, moved or scaled from."""
    for node in graph.operators:
        behind.update((value, value) for value in node.inputs if value is not None and value.is_constant)
    for node in graph.operators:
        for value in node.outputs:
            behind.pop(value, None)
    scales: set[CallTensor] = set()
    biases: dict[CallTensor, None] = {}
    for node in graph.operators:
        first, second = behind.get(node.input(0)), behind.get(node.input(1))
        if first is None or node.op not in ("Convert", "Reshape", "Unsqueeze", "Broadcast", "Subtract", "Multiply"):
            continue
        behind[node.result] = first
        if node.op in ("Subtract", "Multiply") and second is not None and first.dtype in (*QUANTISED, "int32"):
            scales.add(second)
            if node.op == "Multiply" and first.dtype == "int32":
                first.numbers = REAL
                biases[first] = None
    return tuple(value for value in dict.fromkeys([*graph.weights, *biases]) if value not in scales)


def _weights_by_reader(graph: OpenvinoGraph) -> dict[str, list[CallTensor]]:
    """Return by the name of each operator that a step runs the weights that it reads, past what only converts or scales them."""
    behind = {weight: [weight] for weight in graph.weights}
    found: dict[str, list[CallTensor]] = {}
    for node in graph.operators:
        read = []
        for value in node.inputs:
            if value is not None:
                read += behind.get(value, [])
        if node.result.is_constant:
            behind[node.result] = read
        elif node.op != "FakeQuantize":
            found[node.name] = read
    return found


OpenvinoRule = Callable[[OpenvinoNode], OperatorCost | None]


def attention(node: OpenvinoNode) -> OperatorCost:
    """``(batch, …, heads, L, E)``; the mask may be a scalar that stands for none, and a causal one is no operand."""
    query, key, value = (node.operand(position).sizes for position in range(3))
    mask = node.input(3)
    masks = int(mask is not None and len(mask.sizes) > 0)
    return operators.attention(prod(query[:-1]), key[-2], query[-1], value[-1], node.operand(0).numbers, masks=masks)


def mean_variance_norm(node: OpenvinoNode) -> OperatorCost:
    """Weight and bias are operators of their own."""
    given, axes = node.operand(0), node.input(1)
    rows = prod(given.sizes[:2])
    if axes is not None and axes.data is not None:
        rows = given.elements // max(1, file_graph.length_along(given.sizes, axes.data.ravel().tolist()))
    return operators.normalisation(given.elements, rows, weight=False, bias=False)


COSTS: dict[str, OpenvinoRule] = file_graph.by_name(
    {
        "Add Subtract Power Mod FloorMod Negative Abs Sign Clamp Floor Ceiling Round Maximum Minimum": partial(
            file_graph.elementwise, "arithmetic"
        ),
        "Multiply": partial(file_graph.elementwise, "multiply"),
        "Divide": partial(file_graph.elementwise, "divide"),
        "Sqrt Exp Log Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh": partial(
            file_graph.elementwise, "function"
        ),
        "Relu ReLU": partial(file_graph.elementwise, "relu"),
        "Sigmoid": partial(file_graph.elementwise, "sigmoid"),
        "Tanh": partial(file_graph.elementwise, "tanh"),
        "PRelu PReLU": partial(file_graph.elementwise, "leaky_relu"),
        "Elu": partial(file_graph.elementwise, "elu"),
        "SoftSign": partial(file_graph.elementwise, "softsign"),
        "Selu": partial(file_graph.elementwise, "selu"),
        "SoftPlus": partial(file_graph.elementwise, "softplus"),
        "Mish": partial(file_graph.elementwise, "mish"),
        "HardSigmoid HSigmoid": partial(file_graph.elementwise, "hardsigmoid"),
        "Swish": partial(file_graph.elementwise, "silu"),
        "HSwish": partial(file_graph.elementwise, "hardswish"),
        "SquaredDifference": partial(file_graph.elementwise, "squared_difference"),
        "Gelu": partial(file_graph.gelu, "approximation_mode"),
        "MatMul": partial(file_graph.matmul, transposed="transpose_a"),
        "Convolution": partial(file_graph.convolution, first=1),
        "GroupConvolution": partial(file_graph.convolution, first=2),
        "ConvolutionBackpropData": partial(file_graph.transposed_convolution, first=1, bias=None),
        "GroupConvolutionBackpropData": partial(file_graph.transposed_convolution, first=2, bias=None),
        "Einsum": file_graph.einsum,
        "ScaledDotProductAttention": attention,
        "BatchNormInference": file_graph.batch_norm,
        "MVN": mean_variance_norm,
        "GroupNormalization": file_graph.group_norm,
        "Softmax": partial(file_graph.softmax, axis=1),
        "LogSoftmax": file_graph.log_softmax,
        "AvgPool": partial(file_graph.average_pool, window=("kernel",)),
        "AdaptiveAvgPool": file_graph.adaptive_average_pool,
        "MaxPool AdaptiveMaxPool": file_graph.max_pool,
        "ReduceMean": partial(file_graph.reduction, "mean"),
        "ReduceSum ReduceMax ReduceMin ReduceProd": partial(file_graph.reduction, "sum"),
        "ReduceL1": partial(file_graph.reduction, "sum_of_squares"),
        "ReduceL2": partial(file_graph.reduction, "norm"),
        "Interpolate": file_graph.resize,
        "CumSum": file_graph.scan,
        "ScatterElementsUpdate ScatterNDUpdate": file_graph.scatter,
        "LSTMSequence": partial(file_graph.recurrent, LSTM, weight=4),
        "LSTMCell": partial(file_graph.recurrent, LSTM, weight=3),
        "GRUSequence": partial(file_graph.recurrent, GRU, weight=3),
        "GRUCell": partial(file_graph.recurrent, GRU, weight=2),
        "RNNSequence": partial(file_graph.recurrent, RNN, weight=3),
        "RNNCell": partial(file_graph.recurrent, RNN, weight=2),
    }
)
"""Rule by the name of the operator."""

FREE = frozenset(
    """
    Convert ConvertLike ConvertPromoteTypes Reshape Squeeze Unsqueeze Transpose Concat Split VariadicSplit Slice StridedSlice
    SliceScatter Gather GatherElements GatherND GatherTree Broadcast Tile Pad DepthToSpace SpaceToDepth SpaceToBatch BatchToSpace
    ShuffleChannels ShapeOf Range OneHot Eye Roll Reverse ReverseSequence NonZero Unique Select ScatterUpdate ExtractImagePatches
    Identity Equal NotEqual Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr LogicalXor LogicalNot IsNaN IsInf IsFinite
    ReduceLogicalAnd ReduceLogicalOr BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitwiseLeftShift BitwiseRightShift
    TopK ArgMax NonMaxSuppression Bucketize SearchSorted RandomUniform Multinomial FakeQuantize FakeConvert
    ReadValue Assign
    """.split()
)
"""Operators that move, choose, compare or make data."""


# ---------------------------------------------------------------------------------------------------------------
# Times of modules and operators, from the counters that OpenVINO keeps for each operator of the compiled graph
# ---------------------------------------------------------------------------------------------------------------

FIRST_STEPS = 2
"""Of a request, which are not counted: they allocate."""
FEWEST_STEPS, OPERATOR_STEPS = 20, 50
NOT_RUN = ("Const", "Input", "Output")
"""Kinds of operators of the compiled graph that a step does not run."""
FUSED = "undef"
"""The kernel of an operator that is part of another one; it has no time of its own."""


class Counters:
    """A request of the model that keeps the time of each operator.

    A counter shows the mean of all steps so far in whole microseconds, so that only differences over many steps are exact.
    """

    def __init__(self, model: OpenvinoModel, batch: Feed) -> None:
        compiled = model.settings.compiled(model.graph, counters=True)
        self._request = compiled.create_infer_request()
        self._step = model.steps_of(self._request, batch)
        self._steps = 0
        self._operators = compiled_operators(compiled.get_runtime_model(), read(model.graph, model.file), model.file)
        for _ in range(FIRST_STEPS):
            self.step()
        self._first = self._totals()

    def step(self) -> None:
        """Run one forward."""
        self._step()
        self._steps += 1

    def nodes(self) -> list[NodeRun]:
        """Return the operators with their mean seconds since the first steps."""
        nodes = []
        for name, total in self._totals().items():
            seconds = max(0.0, total - self._first[name]) / (self._steps - FIRST_STEPS)
            nodes.append(replace(self._operators[name], seconds=seconds))
        return nodes

    def _totals(self) -> dict[str, float]:
        found = {}
        for entry in self._request.profiling_info:
            if entry.exec_type != FUSED and entry.node_name in self._operators:
                found[entry.node_name] = entry.real_time.total_seconds() * self._steps
        return found


def compiled_operators(compiled: openvino.Model, graph: OpenvinoGraph, file: Converted) -> dict[str, NodeRun]:
    """Return the operators of the compiled graph by their names."""
    known = {node.name: node for node in graph.operators}
    makers: dict[CallTensor | None, OpenvinoNode] = {}
    for operator in graph.operators:
        makers.update(dict.fromkeys(operator.outputs, operator))
    originals: dict[str, list[str]] = {}
    owned = set[OpenvinoNode]()
    for node in compiled.get_ordered_ops():
        names = node.get_rt_info()["originalLayersNames"].astype(str).split(",")
        originals[node.get_friendly_name()] = [name for name in names if name]
        owned.update(known[name] for name in names if name in known)
    found = {}
    for node in compiled.get_ordered_ops():
        kind, name = node.get_rt_info()["layerType"].astype(str), node.get_friendly_name()
        if kind in NOT_RUN:
            continue
        members = [known[original] for original in originals[name] if original in known]
        waiting = list(members)
        while waiting:  # what is fused may have lost its name
            for value in waiting.pop(0).inputs:
                maker = makers.get(value)
                if maker is not None and maker not in owned and maker not in members:
                    members.append(maker)
                    waiting.append(maker)
        if originals[name]:
            paths = [path_of(original, file) for original in originals[name]]
        else:  # a change of layout, named after the operator that it is for
            paths = [known[other].path for other in known if name.endswith(other)]
        path, flops = (paths or [ROOT])[0], None
        if members:
            path, flops = origin_of(members, partial(cost_of, formulas=DEFAULTS))
        shapes = tuple(tuple(slot.get_shape()) for slot in node.inputs() if slot.get_partial_shape().is_static)
        found[name] = NodeRun(kind, path, flops, 0.0, None, shapes)
    return found
