"""Source lines of a Keras model's ``call``, or of other functions that a step runs; only where Python runs them: eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType

import keras

from sweeprof.backends.tensorflow.model import TensorflowModel
from sweeprof.backends.tensorflow.training import EagerTraining, training
from sweeprof.errors import Unsupported
from sweeprof.measuring.line_profile import LineMemory, functions_named, python_function, watched
from sweeprof.measuring.timing import without_collection
from sweeprof.measuring.training_config import Work
from sweeprof.results.lines import Lines


def lines(model: TensorflowModel, work: Work, functions: Sequence[str]) -> Lines:
    """Time by line while ``work`` is repeated.

    Args:
        functions: dotted names, as :func:`functions_named` takes them; none: the ``call`` of the model itself.

    Raises:
        Unsupported: the model runs as a graph, a function is not Python's, or line_profiler is not installed.
        UserError: a name is not that of a function.
        Exception: whatever the model raised.
    """
    if model.compiles:
        mode = model.variant.mode
        raise Unsupported(
            f"mode={mode}: the source lines run once, when the graph is traced; backend.mode=eager runs them"
        )
    layers = model.native._flatten_layers() if isinstance(model.native, keras.Layer) else ()
    classes = [type(layer) for layer in layers]
    chosen = functions_named(functions, classes) if functions else [_call_of(model.native)]
    with _steps(model, work) as step, without_collection():
        return watched(chosen, step, _no_memory, model.device)


@contextmanager
def _steps(model: TensorflowModel, work: Work) -> Iterator[Callable[[], object]]:
    if work.training is None:
        with model.stepping(work.batch) as step:
            yield step
        return
    with training(model, work.batch, work.targets, work.training) as phases:
        assert isinstance(phases, EagerTraining)
        yield phases.all_phases


def _call_of(model: object) -> FunctionType:
    function = python_function(model.call if isinstance(model, keras.Layer) else model)
    if function is None:
        raise Unsupported(f"the call of {type(model).__name__} is no Python function: it has no source lines to watch")
    return function


def _no_memory(*_: object) -> LineMemory:
    return LineMemory(
        reason="TensorFlow allocates by itself, from large blocks that it takes at once: what a line allocates does not show"
    )
