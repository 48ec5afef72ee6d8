"""SavedModels: ``model.tensorflow._target_=sweeprof.backends.tensorflow.files.SavedModel model.tensorflow.path=…``."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sweeprof.errors import Problem, UserError
from sweeprof.paths import user_path

SERVED = ("serve", "serving_default")
"""What a SavedModel is called by, where nothing else is said: as ``model.export`` writes it, as TensorFlow does."""


class SavedModel(keras.Layer):  # type: ignore[misc]
    """Runs one function of a SavedModel, whose variables are its weights.

    A function of several tensors takes them by position or by name; a signature names its outputs, of which there may be one.
    """

    def __init__(self, path: str, endpoint: str | None = None) -> None:
        """Load the folder.

        Args:
            path: of the folder.
            endpoint: the function or signature that runs; None: the first of :data:`SERVED` that exists, else the only signature.

        Raises:
            UserError: the folder is no SavedModel, or has no such endpoint.
        """
        folder = user_path(path)
        if not (folder / "saved_model.pb").exists():
            raise _problem(path, "is not the folder of a SavedModel: it has no saved_model.pb.")
        super().__init__(name="saved_model", autocast=False)
        self._loaded = tf.saved_model.load(str(folder))
        self._function, self._names = _endpoint(self._loaded, path, endpoint)
        read = {}
        for function in getattr(self._function, "concrete_functions", None) or [self._function]:
            read.update({id(variable): variable for variable in function.variables})
        for variable in read.values():  # the same variable as one of Keras, whose names have no slashes
            about = {"dtype": variable.dtype.name, "trainable": variable.trainable}
            self._track_variable(keras.Variable(variable, name=variable.name.replace("/", "_"), **about))
        self.built = True

    def call(self, *args: object, **kwargs: object) -> object:
        """The function's outputs; those of a signature by name, or the only one itself."""
        if self._names is None:
            return self._function(*args, **kwargs)
        found = self._function(**dict(zip(self._names, args, strict=False)), **kwargs)
        return next(iter(found.values())) if len(found) == 1 else found

    def input_specs(self) -> dict[str, tf.TensorSpec]:
        """Return the tensors that the function takes, in their order, by their names.

        Raises:
            ValueError: it takes something else.
        """
        functions = getattr(self._function, "concrete_functions", None) or [self._function]
        args, named = functions[0].structured_input_signature
        specs: dict[str, Any] = {getattr(spec, "name", None) or str(at): spec for at, spec in enumerate(args)} | named
        for spec in specs.values():
            if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
                raise ValueError("its function does not take tensors of known shapes alone")
        return specs


def _endpoint(loaded: Any, path: str, wanted: str | None) -> tuple[Any, list[str] | None]:
    """The function, and of a signature the names of its inputs in their order."""
    signatures = loaded.signatures
    names = [*SERVED] if wanted is None else [wanted]
    if wanted is None and len(signatures) == 1:
        names += signatures
    for name in names:
        if name in signatures:
            _, named = signatures[name].structured_input_signature
            return signatures[name], list(named)
        if callable(getattr(loaded, name, None)):
            return getattr(loaded, name), None
    known = ", ".join(sorted(signatures)) or "none"
    raise _problem(path, f"has no function or signature {wanted or ' or '.join(SERVED)}. Its signatures: {known}.")


def _problem(path: str, allowed: str) -> UserError:
    return UserError([Problem("model.tensorflow.path", path, allowed)])
