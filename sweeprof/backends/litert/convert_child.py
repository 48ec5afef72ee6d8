"""The process that converts a model; :mod:`sweeprof.backends.model_files` has how it is asked and how it answers."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from sweeprof.backends.model_files import ChildFailure, ChildRequest, answer
from sweeprof.measuring.instantiate import instantiate


def converted_file(request: ChildRequest) -> ChildFailure | None:
    """Build, convert, and say what failed."""
    seed = request["seed"]
    random.seed(seed)
    np.random.seed(seed)  # Keras draws its seeds from Python's generator
    try:
        model = instantiate(request["node"])
    except Exception as error:  # a builder may raise anything
        return ChildFailure.of("build", error)
    if not callable(model):
        said = f"the model's builder returned a {type(model).__name__}, not a Keras model or a TfliteFile"
        return ChildFailure.of("build", TypeError(said))
    # TensorFlow, which a builder that fails need not wait for.
    from sweeprof.backends.litert.convert import converted, write

    samples = None if request["samples"] is None else np.load(request["samples"])
    try:
        content = converted(model, request["signature"], request["quantization"], samples)
    except Exception as error:  # and so may the converter
        return ChildFailure.of("convert", error)
    write(content, Path(request["file"]))
    return None


if __name__ == "__main__":
    answer(converted_file)
