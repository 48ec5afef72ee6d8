"""Private interfaces of Keras, TensorFlow and JAX: each is looked up, and no file but ``private.py`` of a backend uses one."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from packaging.requirements import Requirement

from support.private_interfaces import missing_interfaces


@dataclass(frozen=True)
class Private:
    """What a backend's ``private.py`` uses."""

    package: str
    """Whose interfaces these are."""
    tested: str
    """The version that they were tested with."""
    interfaces: tuple[str, ...]
    """What is looked up in modules and classes."""


ROOT = Path(__file__).parents[3]
BACKENDS = ROOT / "sweeprof" / "backends"
PRIVATE = re.compile(r"\b(keras\.src|tensorflow\.python|tensorflow\.tsl|jax\._src)\b")
USED = {
    "keras": Private(
        "keras",
        "3.15.1",
        (
            "keras.src.activations.activations:Mish.static_call",
            "keras.src.backend:Variable.__add__",
            "keras.src.backend:cast",
            "keras.src.backend:compute_output_spec",
            "keras.src.backend:convert_to_tensor",
            "keras.src.backend:is_tensor",
            "keras.src.backend:name_scope",
            "keras.src.backend:standardize_data_format",
            "keras.src.backend.common.global_state:get_global_attribute",
            "keras.src.backend.common.global_state:set_global_attribute",
            "keras.src.backend.common.name_scope:name_scope",
            "keras.src.layers.convolutional.base_conv:BaseConv.call",
            "keras.src.layers.convolutional.base_conv:BaseConv.convolution_op",
            "keras.src.layers.layer:Node",
            "keras.src.layers.preprocessing.image_preprocessing.random_crop:RandomCrop",
            "keras.src.layers.rnn.dropout_rnn_cell:DropoutRNNCell.get_dropout_mask",
            "keras.src.layers.rnn.dropout_rnn_cell:DropoutRNNCell.get_recurrent_dropout_mask",
            "keras.src.models:Functional.call",
            "keras.src.random.seed_generator:GLOBAL_SEED_GENERATOR",
            "keras.src.tree:map_structure",
            "keras.src.utils.image_utils:smart_resize",
            "keras.src.utils.naming:to_snake_case",
            "keras:Operation.__new__",
            "keras:Operation.symbolic_call",
            "keras:Layer._flatten_layers",
            "keras:Layer._maybe_build",
        ),
    ),
    "tensorflow": Private(
        "tensorflow",
        "2.21.0",
        (
            "tensorflow.python.autograph.impl.api:autograph_artifact",
            "tensorflow.python.client.pywrap_tf_session:TF_DeleteBuffer",
            "tensorflow.python.client.pywrap_tf_session:TF_GraphImportGraphDefWithResults",
            "tensorflow.python.client.pywrap_tf_session:TF_NewBufferFromString",
            "tensorflow.python.eager.record:record_operation",
            "tensorflow.python.eager.record:should_record_backprop",
            "tensorflow.python.eager.record:stop_recording",
            "tensorflow.python.framework.c_api_util:ScopedTFImportGraphDefOptions",
            "tensorflow.python.framework.c_api_util:ScopedTFImportGraphDefResults",
            "tensorflow.python.framework.function_def_to_graph:function_def_to_graph_def",
            "tensorflow.python.ops.handle_data_util:get_resource_handle_data",
            "tensorflow.tsl.profiler.protobuf.xplane_pb2:XSpace.FromString",
            "tensorflow:Graph._add_new_tf_operations",
            "tensorflow:Graph._get_function",
            "tensorflow:Operation._add_control_input",
        ),
    ),
    "litert": Private(
        "tensorflow",
        "2.21.0",
        ("tensorflow.python.framework.convert_to_constants:convert_variables_to_constants_v2",),
    ),
    "jax": Private(
        "jax",
        "0.10.2",
        ("jax._src.xla_bridge:backends_are_initialized",),
    ),
}
"""By the backend's folder."""
LAYER_ATTRIBUTES = (
    "_call_has_mask_arg",
    "_call_has_training_arg",
    "_layers",
    "_non_trainable_variables",
    "_tracker",
    "_trainable_variables",
)
"""What is looked up in a layer of Keras."""


def parsed(backend: str) -> ast.Module:
    return ast.parse((BACKENDS / backend / "private.py").read_text())


@pytest.mark.parametrize("backend", USED)
def test_every_private_interface_is_there(backend: str) -> None:
    used = USED[backend]
    assert not missing_interfaces(used.package, used.tested, used.interfaces)


def test_one_that_is_gone_is_named_with_the_versions() -> None:
    names = ["keras.src.layers.layer:Nodes", "keras.src.no_such:thing", "keras:Layer._flatten_layers"]
    first, second = missing_interfaces("keras", "3.15.1", names)
    assert first.startswith(f"keras.src.layers.layer:Nodes is not in keras {keras.__version__} (tested with 3.15.1)")
    assert second.startswith("keras.src.no_such:thing is not in keras")


def test_what_is_looked_up_in_objects_is_there() -> None:
    from sweeprof.backends.keras import private as of_keras
    from sweeprof.backends.tensorflow import private as of_tensorflow

    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    assert [name for name in LAYER_ATTRIBUTES if not hasattr(layer, name)] == []
    assert of_keras.own_parameters(layer) == layer.trainable_variables
    assert of_keras.stored_dtype(layer.kernel) == "float32"
    given = keras.Input((3,), name="given")
    assert of_keras.takes_mapping(keras.Model({"given": given}, layer(given)))
    assert not of_keras.takes_mapping(keras.Model(given, layer(given)))
    assert hasattr(tf.function(lambda: None), of_tensorflow.FUNCTION_ATTRIBUTE)


@pytest.mark.parametrize("backend", USED)
def test_everything_that_is_imported_is_looked_up(backend: str) -> None:
    imports = [node for node in ast.walk(parsed(backend)) if isinstance(node, ast.ImportFrom)]
    names = [(node.module, alias.name) for node in imports if PRIVATE.match(node.module or "") for alias in node.names]
    assert names
    for source, name in names:
        known = USED[backend].interfaces
        assert any(interface.startswith((f"{source}:{name}", f"{source}.{name}")) for interface in known), name


@pytest.mark.parametrize("backend", USED)
def test_no_other_file_uses_one(backend: str) -> None:
    for file in sorted((BACKENDS / backend).glob("*.py")):
        if file.name != "private.py":
            assert not PRIVATE.findall(file.read_text()), file.name


@pytest.mark.parametrize("backend", USED)
def test_versions_are_bounded_from_above(backend: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    requirements = [Requirement(text) for extra in extras.values() for text in extra]
    wanted = [requirement for requirement in requirements if requirement.name == USED[backend].package]
    assert wanted
    for requirement in wanted:
        assert requirement.specifier.contains(USED[backend].tested)
        assert not requirement.specifier.contains("99.0")
