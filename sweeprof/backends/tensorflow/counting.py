"""Counts what cannot be called on Keras's symbolic tensors, on the graph that ``tf.function`` traces of it: nothing is run.

Keras models are counted by ``sweeprof.backends.keras``. This is for layers that call TensorFlow itself, and for models that are
no Keras layers. A Keras layer that such code calls is again counted by the symbolic trace, and is a placeholder in the graph, so
that the rest of the graph is the outer layer's own. Every operator that the outputs, or the inner layers, depend on is counted by
a definition of :mod:`sweeprof.counting.operators`, known to do no arithmetic, or listed as uncovered. Loops are uncovered: their
bodies run an unknown number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from sweeprof.backends.keras import counting
from sweeprof.backends.keras.calls import as_called, symbolic
from sweeprof.backends.keras.counting import OperationRun, SymbolicTrace
from sweeprof.backends.keras.private import replaced, takes_training
from sweeprof.backends.tensorflow import private
from sweeprof.counting import file_graph
from sweeprof.counting.file_graph import CallTensor, OperatorCall
from sweeprof.counting.formulas import DEFAULTS, Args, Formulas, Kwargs, operator_cost
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.observations import OwnCounts

# ---------------------------------------------------------------------------------------------------------------------
# Costs of operators
# ---------------------------------------------------------------------------------------------------------------------

_ELEMENTWISE = """
arithmetic: Add AddV2 BiasAdd Sub DivNoNan FloorDiv FloorMod Mod Xdivy Xlogy Maximum Minimum ClipByValue
arithmetic: Neg Abs Sign Square Pow Floor Ceil Round Rint
multiply: Mul
divide: RealDiv Div
function: Exp Expm1 Log Log1p Sqrt Sin Cos Tan Erf Erfc Reciprocal Inv Sinh Cosh Asin Acos Atan Atan2 Asinh Acosh Atanh
relu: Relu
rsqrt: Rsqrt
tanh: Tanh
sigmoid: Sigmoid
hardtanh: Relu6
leaky_relu: LeakyRelu
elu: Elu
selu: Selu
softplus: Softplus
softsign: Softsign
squared_difference: SquaredDifference
bilinear: ResizeBilinear
bicubic: ResizeBicubic
"""


COSTS: dict[str, file_graph.Rule] = file_graph.by_name(
    {
        **file_graph.elementwise_rules(_ELEMENTWISE),
        "AddN": file_graph.sum_of_tensors,
        "Sum Prod Max Min": partial(file_graph.reduction, "sum"),
        "Mean Cumsum Cumprod": partial(file_graph.reduction, "mean"),
        "L2Loss EuclideanNorm": partial(file_graph.reduction, "norm"),
        "Softmax": file_graph.softmax,
        "LogSoftmax": file_graph.log_softmax,
        "AvgPool AvgPool3D": partial(file_graph.average_pool, window=("ksize",)),
        "MaxPool MaxPoolV2 MaxPool3D": file_graph.max_pool,
        "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3": partial(file_graph.batch_norm, training="is_training"),
        "RFFT IRFFT": partial(file_graph.fourier, axes=1, is_real=True),
        "FFT IFFT": partial(file_graph.fourier, axes=1, is_real=False),
        "FFT2D IFFT2D": partial(file_graph.fourier, axes=2, is_real=False),
        # Kernel (*space, in/groups, out).
        "Conv2D Conv3D": partial(file_graph.convolution, first=0, end=-1),
        # Kernel (height, width, in, multiplier).
        "DepthwiseConv2dNative": partial(file_graph.convolution, first=0, end=-2),
        # Inputs are (output shape, kernel (*space, out, in), values).
        "Conv2DBackpropInput Conv3DBackpropInputV2": partial(
            file_graph.transposed_convolution, first=0, end=-1, given=2, bias=None
        ),
        "MatMul": partial(file_graph.matmul, transposed="transpose_a"),
        "BatchMatMul BatchMatMulV2 BatchMatMulV3": partial(file_graph.matmul, transposed="adj_x"),
        "Einsum": file_graph.einsum,
    }
)
"""Rule by type of operator."""
ATTRIBUTES = ("adj_x", "equation", "is_training", "ksize", "transpose_a")
"""Those that rules read."""
DILATED = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")
"""Convolutions that may be dilated by operators around them."""


FREE = frozenset(
    """
    Placeholder Const Identity IdentityN NoOp ReadVariableOp ResourceGather VarHandleOp StopGradient PreventGradient
    Reshape Squeeze ExpandDims Transpose Shape ShapeN Size Rank StridedSlice Slice Split SplitV Unpack Pack Concat ConcatV2
    Pad PadV2 MirrorPad Tile Reverse ReverseV2 Roll GatherV2 GatherNd ScatterNd BroadcastTo BroadcastArgs Fill ZerosLike OnesLike
    Range Cast Bitcast OneHot Where SelectV2 Select SpaceToBatchND BatchToSpaceND SpaceToDepth DepthToSpace
    Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot IsNan IsInf IsFinite
    Real Imag Complex Bucketize DenseBincount Bincount AsString StringToHashBucketFast
    BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift
    LookupTableFindV2 StringLower StringUpper StringStrip StringLength StaticRegexReplace RegexReplaceV2 StringSplitV2 StringJoin
    StringNGrams UnicodeDecodeWithOffsets RaggedTensorToTensor RaggedRange RaggedGather
    All Any ArgMax ArgMin TopKV2 ResizeNearestNeighbor
    RandomUniform RandomStandardNormal StatelessRandomUniformV2 StatelessRandomNormalV2 MatrixBandPart MatrixDiagV3 EnsureShape
    """.split()
)
"""Operators that move, choose, compare or make data."""


# ---------------------------------------------------------------------------------------------------------------------
# Layers
# ---------------------------------------------------------------------------------------------------------------------

PREFIX = "tensorflow::"
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
"""Operators that call a function, such as a grouped convolution, or the function of a file."""


_A_FUNCTION = tf.function(lambda: None)


def count_layers(model: object, inputs: Inputs, formulas: Formulas = DEFAULTS) -> LayerTable:
    """Return the layers of a Keras model, or of any callable of tensors, for inputs in the layout that the model expects.

    A ``tf.function`` is counted as the function that it was made of: layers that are called in a graph within the graph hide what
    was done before them.
    """
    if type(model) is type(_A_FUNCTION):
        model = getattr(model, "python_function")  # noqa: B009  # of a type that TensorFlow does not name
    return counting.count_layers(model, inputs, formulas, fallback=count_graph)


def count_training(model: object, inputs: Inputs, formulas: Formulas = DEFAULTS) -> Training:
    """Return one training step of a Keras model."""
    return counting.count_training(model, inputs, formulas, fallback=count_graph)


def count_graph(trace: SymbolicTrace, compute: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Count ``compute`` into the call that is running, and return what it does as symbolic tensors."""
    leaves = keras.tree.flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, keras.KerasTensor)]
    start_over = tf.autograph.experimental.do_not_convert(trace.beginning())

    def run(*tensors: object) -> object:
        start_over()  # a function that makes variables is traced twice
        entering.clear()
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        positional, named = keras.tree.pack_sequence_as((args, kwargs), filled)
        return compute(*positional, **named)

    given = [leaves[place] for place in places]
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in given]
    with _layers_apart(trace) as entering:
        traced = tf.function(run).get_concrete_function(*specs)
    graph = traced.graph
    if not isinstance(trace.current.layer, keras.Layer):
        trace.variables += graph.variables
    wanted = [*tf.nest.flatten(traced.outputs), *(tensor for tensor in entering if tensor.graph is graph)]
    for operator in reversed(list(_reachable(graph, wanted))):
        _count(trace, operator)
    for tensor in entering:
        if tensor.graph is not graph and tensor.op.type != "Placeholder":
            trace.current.miss(f"{PREFIX}{tensor.op.type} within a function", trace.times)
    outputs = _sized(trace, traced.structured_outputs, args, kwargs)
    trace.ran.append(OperationRun(trace.current.path, given, keras.tree.flatten(outputs)))
    return outputs


def _sized(trace: SymbolicTrace, outputs: object, args: Args, kwargs: Kwargs) -> object:
    """Symbolic outputs, whose sizes are known: the graph may not know what the layer itself says.

    Raises:
        Unsupported: neither does.
    """

    def as_symbolic(value: Any) -> Any:
        if not isinstance(value, tf.TypeSpec) and not tf.is_tensor(value):
            return value
        return keras.KerasTensor(value.shape if value.shape.rank is not None else (None,), value.dtype)

    def are_known(outputs: object) -> bool:
        return all(None not in getattr(leaf, "shape", ()) for leaf in keras.tree.flatten(outputs))

    layer = trace.current.layer
    outputs = keras.tree.map_structure(as_symbolic, outputs)
    if not are_known(outputs) and isinstance(layer, keras.Layer):
        with trace.paused():
            outputs = layer.compute_output_spec(*args, **kwargs)
    if not are_known(outputs):
        raise Unsupported(f"the sizes of what {trace.current.path} returns are known only from values")
    return outputs


@contextmanager
def _layers_apart(trace: SymbolicTrace) -> Iterator[list[tf.Tensor]]:
    """Within it, layers that are called on tensors of a graph are counted by the trace; gives the tensors that they were given."""
    call = keras.Layer.__call__
    entering: list[tf.Tensor] = []

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apart(layer: keras.Layer, *args: object, **kwargs: object) -> object:
        tensors = [leaf for leaf in keras.tree.flatten((args, kwargs)) if tf.is_tensor(leaf)]
        if not tensors or not trace.sees():
            return call(layer, *args, **kwargs)
        entering.extend(tensors)
        args, kwargs = keras.tree.map_structure(
            lambda leaf: symbolic(leaf) if tf.is_tensor(leaf) else leaf, (args, kwargs)
        )
        outputs = call(layer, *args, **kwargs)
        return keras.tree.map_structure(lambda tensor: tf.compat.v1.placeholder(tensor.dtype, tensor.shape), outputs)

    with replaced(keras.Layer, "__call__", apart):
        yield entering


def _reachable(graph: tf.Graph, outputs: Iterable[tf.Tensor]) -> Iterator[tf.Operation]:
    """Everything the outputs depend on; Keras leaves other operators behind in the graph."""
    waiting = [tensor.op for tensor in outputs]
    found = set()
    while waiting:
        operator = waiting.pop()
        if operator in found:
            continue
        found.add(operator)
        waiting.extend(tensor.op for tensor in operator.inputs)
        if operator.type in CALLS:
            yield from _body(graph, operator)
        else:
            yield operator


def _body(graph: tf.Graph, operator: tf.Operation) -> list[tf.Operation]:
    """Return what the function that an operator calls runs, in the shapes that it is called with.

    A function from a file may have been traced for any size of the batch.
    """
    inlined = _InlinedFunctions(graph)
    arguments, returned = inlined.add(operator.get_attr("f").name)
    for node, given in zip(arguments, operator.inputs, strict=True):
        variable = private.variable_of(given)
        node.attr["shape"].shape.CopyFrom(given.shape.as_proto() if variable is None else variable.shape)
        if variable is not None:  # a placeholder would not tell the shape of the variable
            node.op, node.attr["dtype"].type = "VarHandleOp", variable.dtype
    body = private.graph_with(tf.compat.v1.GraphDef(node=inlined.nodes))
    found = _reachable(body, [body.get_tensor_by_name(name) for name in returned])
    return [one for one in found if one.name not in inlined.calls]


class _InlinedFunctions:
    """The nodes of a function, and in the place of its calls those of the functions that it calls.

    Args:
        graph: that knows the functions.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self.nodes: list[Any] = []
        self.calls: set[str] = set()
        """Names of the nodes that return what a call does, and are no operators of a function."""
        self._graph = graph

    def add(self, name: str, prefix: str = "") -> tuple[list[Any], list[str]]:
        """Add the nodes of a function, with names that begin with ``prefix``; return its arguments and the names of its outputs."""
        definition = private.function_of(self._graph, name)
        with self._graph.as_default():
            flat, names = private.function_def_to_graph_def(definition)
        self.nodes += flat.node
        for node in flat.node:
            inputs = [prefix + source for source in node.input if not source.startswith("^")]
            node.name = prefix + node.name
            node.attr.pop("_class", None)
            node.ClearField("input")
            if node.op in CALLS:
                inputs = self._called(node, inputs)
            node.input.extend(inputs)
        returned = [prefix + names[definition.ret[output.name]] for output in definition.signature.output_arg]
        return list(flat.node[: len(definition.signature.input_arg)]), returned

    def _called(self, node: Any, inputs: list[str]) -> list[str]:
        """Add what a call does; the node returns it, and has the inputs that this returns."""
        arguments, returned = self.add(node.attr["f"].func.name, f"{node.name}>")
        for argument, source in zip(arguments, inputs, strict=True):
            argument.op, kind = "Identity", argument.attr["dtype"].type
            argument.attr.clear()
            argument.attr["T"].type = kind
            argument.input.append(source)
        self.calls.add(node.name)
        kinds = list(node.attr["Tout"].list.type)
        node.op = "IdentityN" if kinds else "NoOp"
        node.attr.clear()
        if kinds:
            node.attr["T"].list.type.extend(kinds)
        return returned


def _count(trace: SymbolicTrace, operator: tf.Operation) -> None:
    """Add an operator of a graph to the call that is running."""
    rule, name = COSTS.get(operator.type), PREFIX + operator.type
    written = trace.formulas.of_operator(name)
    if written is None and operator.type in FREE:
        trace.current.operator_calls += trace.times
        return
    is_known = all(tensor.shape.is_fully_defined() for tensor in (*operator.inputs, *operator.outputs))
    given, made = operator.inputs, operator.outputs
    if written is not None and is_known:
        sizes = [sized(tensor) for tensor in made]
        cost = operator_cost(written, [sized(tensor) for tensor in given], {}, sizes[0] if len(sizes) == 1 else sizes)
    elif rule is not None and is_known:
        computed = [_uncut(operator)] if operator.type in DILATED else made
        attributes = {key: operator.get_attr(key) for key in ATTRIBUTES if key in operator.node_def.attr}
        inputs, outputs = tuple(map(sized, given)), tuple(map(sized, computed))
        cost = rule(OperatorCall(operator.type, "", inputs, outputs, attributes))
    else:
        trace.current.miss(name, trace.times)
        return
    trace.current.count(name, cost, given[:1], made[:1], trace.times)


def sized(tensor: tf.Tensor) -> CallTensor:
    """Return the shape and data type of a tensor whose shape is known."""
    dtype = tensor.dtype.name
    return CallTensor("", tuple(tensor.shape.as_list()), dtype, numbers=file_graph.numbers_of(dtype))


def _uncut(convolution: tf.Operation) -> tf.Tensor:
    """Return the result of a convolution before a BatchToSpaceND cuts it: a dilated one computes padding too."""
    consumers = convolution.outputs[0].consumers()
    while len(consumers) == 1 and consumers[0].type == "Squeeze":
        consumers = consumers[0].outputs[0].consumers()
    is_cut = len(consumers) == 1 and consumers[0].type == "BatchToSpaceND"
    return (consumers[0] if is_cut else convolution).outputs[0]


# ---------------------------------------------------------------------------------------------------------------------
# TensorFlow's own counts
# ---------------------------------------------------------------------------------------------------------------------


def own_counts(model: object, inputs: Inputs) -> OwnCounts:
    """Float operations of one forward on ``inputs``, two for a multiply-accumulate.

    Raises:
        Exception: whatever the model raised.
    """

    def specified(value: object) -> Any:
        tensor = symbolic(value)
        return tf.TensorSpec(tensor.shape, tensor.dtype) if isinstance(tensor, keras.KerasTensor) else value

    given = as_called(model, inputs).map(specified)
    keywords = {"training": False} if isinstance(model, keras.Layer) and takes_training(model) else {}

    def run(*args: object, **kwargs: object) -> object:
        return Inputs(args, {**keywords, **kwargs}, given.forward).call(model)

    graph = tf.function(run).get_concrete_function(*given.args, **given.kwargs).graph
    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation()).with_empty_output().build()
    found = int(profiler.profile(graph=graph, options=options).total_float_ops)
    if found:
        return OwnCounts({"tfprof": found})
    reason = "TensorFlow's profiler finds no float operation in the graph; into functions, as of a SavedModel, it does not look"
    return OwnCounts({}, {"tfprof": reason})
