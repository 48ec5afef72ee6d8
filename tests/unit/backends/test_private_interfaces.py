"""Private interfaces of Keras, TensorFlow and JAX: each is looked up, and no file but ``private.py`` of a backend uses one."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from packaging.requirements import Requirement

from support.private_interfaces import missing_interfaces

ROOT = Path(__file__).parents[3]
BACKENDS = ROOT / "sweeprof" / "backends"
PRIVATE = re.compile(r"\b(keras\.src|tensorflow\.python|tensorflow\.tsl|jax\._src)\b")
PACKAGES = ["keras", "tensorflow", "jax"]


def parsed(package: str) -> ast.Module:
    return ast.parse((BACKENDS / package / "private.py").read_text())


def constant(package: str, name: str) -> Any:
    """A constant of a private.py, read from its text: importing it would fail at the first interface that is gone."""
    for node in parsed(package).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{package}/private.py has no {name}")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_private_interface_is_there(package: str) -> None:
    assert not missing_interfaces(package, constant(package, "TESTED"), constant(package, "INTERFACES"))


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
    assert [name for name in of_keras.LAYER_ATTRIBUTES if not hasattr(layer, name)] == []
    assert of_keras.own_parameters(layer) == layer.trainable_variables
    assert of_keras.stored_dtype(layer.kernel) == "float32"
    given = keras.Input((3,), name="given")
    assert of_keras.takes_mapping(keras.Model({"given": given}, layer(given)))
    assert not of_keras.takes_mapping(keras.Model(given, layer(given)))
    assert hasattr(tf.function(lambda: None), of_tensorflow.FUNCTION_ATTRIBUTE)


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_that_is_imported_is_looked_up(package: str) -> None:
    imports = [node for node in ast.walk(parsed(package)) if isinstance(node, ast.ImportFrom)]
    names = [(node.module, alias.name) for node in imports if PRIVATE.match(node.module or "") for alias in node.names]
    assert names
    for source, name in names:
        assert any(
            known.startswith((f"{source}:{name}", f"{source}.{name}")) for known in constant(package, "INTERFACES")
        ), name


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_file_uses_one(package: str) -> None:
    for file in sorted((BACKENDS / package).glob("*.py")):
        if file.name != "private.py":
            assert not PRIVATE.findall(file.read_text()), file.name


@pytest.mark.parametrize("package", PACKAGES)
def test_versions_are_bounded_from_above(package: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    requirements = [Requirement(text) for extra in extras.values() for text in extra]
    wanted = [requirement for requirement in requirements if requirement.name == package]
    assert wanted
    for requirement in wanted:
        assert requirement.specifier.contains(constant(package, "TESTED"))
        assert not requirement.specifier.contains("99.0")
