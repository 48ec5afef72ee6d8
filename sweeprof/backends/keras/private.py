"""The private interfaces of Keras, and of frameworks below it, that several backends use.

``tests/unit/backends/test_private_interfaces.py`` looks up each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from sweeprof.backends import attribute, interface

backend = interface("keras.src.backend")
global_state = interface("keras.src.backend.common.global_state")
layer_module = interface("keras.src.layers.layer")
BaseConv = interface("keras.src.layers.convolutional.base_conv:BaseConv")
DropoutRNNCell = interface("keras.src.layers.rnn.dropout_rnn_cell:DropoutRNNCell")
GLOBAL_SEED_GENERATOR = interface("keras.src.random.seed_generator:GLOBAL_SEED_GENERATOR")
Mish = interface("keras.src.activations.activations:Mish")
FUNCTIONAL_CALL = interface("keras.src.models:Functional.call")
GRAPH_CALLS = (keras.Sequential.call, FUNCTIONAL_CALL)
"""The ``call`` of models that are made of a graph of layers."""
OWN_MODULES = "keras.src."
"""Where Keras defines its classes."""


@contextmanager
def replaced(owner: object, name: str, instead: object) -> Iterator[None]:
    """Within the context, an attribute of a class or module has another value."""
    before = vars(owner).get(name)  # not getattr, which would change a static method to a function
    is_own = name in vars(owner)
    setattr(owner, name, instead)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def takes_training(layer: keras.Layer) -> bool:
    """Return True if the layer's ``call`` has an argument ``training``."""
    return bool(attribute(layer, "_call_has_training_arg"))


def takes_mask(layer: keras.Layer) -> bool:
    """Return True if the layer's ``call`` has an argument ``mask``."""
    return bool(attribute(layer, "_call_has_mask_arg"))


def children_of(layer: keras.Layer) -> list[keras.Layer]:
    """Return the layers that a layer holds."""
    return list(attribute(layer, "_layers"))


def named_layers(layer: keras.Layer, above: str = "") -> Iterator[tuple[str, keras.Layer]]:
    """Every layer below another one with its path; one that is held twice comes with each."""
    for inner in children_of(layer):
        name = inner.name.replace(".", "_")
        yield above + name, inner
        yield from named_layers(inner, f"{above}{name}.")


def layer_types(model: keras.Layer) -> dict[str, str]:
    """Return the class names of a model (``""``) and of every layer below it, by their paths."""
    return {"": type(model).__name__, **{path: type(layer).__name__ for path, layer in named_layers(model)}}


def all_layers(model: object) -> list[keras.Layer]:
    """Return a layer and every layer below it; of other models none."""
    return list(attribute(model, "_flatten_layers")()) if isinstance(model, keras.Layer) else []


def tracker_of(layer: keras.Layer) -> object:
    """Return the object by which Keras knows the weights of a layer."""
    tracker: object = attribute(layer, "_tracker")
    return tracker


def own_parameters(layer: keras.Layer) -> list[keras.Variable]:
    """Return what an optimizer may change of a layer without its children, whether or not the layer is frozen."""
    return list(attribute(layer, "_trainable_variables"))


def own_state(layer: keras.Layer) -> list[keras.Variable]:
    """Return what no optimizer changes of a layer without its children."""
    return list(attribute(layer, "_non_trainable_variables"))


def stored_dtype(variable: keras.Variable) -> str:
    """Return the data type of a variable as it is stored, whatever it is cast to within a layer of mixed precision."""
    return str(attribute(variable, "_dtype"))


def takes_mapping(model: object) -> bool:
    """Return True if a model that is made of a graph has its inputs in a mapping."""
    return isinstance(getattr(model, "_inputs_struct", None), dict)


def unsorted_outputs(layer: keras.Layer, outputs: Any) -> Any:
    """Return what a call returned in the order of the model: on torch, a model made of a graph sorts the keys of mappings."""
    if getattr(type(layer), "call", None) != FUNCTIONAL_CALL:
        return outputs
    return keras.tree.map_structure(lambda _, output: output, layer.output, outputs)


def copy_mask(source: Any, target: Any) -> None:
    """Give a tensor the mask of another one, if that has one."""
    mask = getattr(source, "_keras_mask", None)
    if mask is not None:
        target._keras_mask = mask


def seed_generator() -> Any:
    """Return the generator that ``keras.utils.set_random_seed`` seeds; None before it is first used."""
    return global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)


def set_seed_generator(generator: Any) -> None:
    """Put back what :func:`seed_generator` returned."""
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)


def with_constants(function: Any) -> Any:
    """Return a traced function of TensorFlow with constants for its variables, and its control flow as operators that TFLite knows.

    The converter does the former itself, but then leaves recurrent layers as loops of another form.
    """
    return interface("tensorflow.python.framework.convert_to_constants:convert_variables_to_constants_v2")(function)


def is_jax_running() -> bool:
    """Return True if the process already has a JAX client."""
    return bool(interface("jax._src.xla_bridge:backends_are_initialized")())
