"""Prints as JSON what steps of a Keras model allocate, mode by mode; ``TF_CPU_ALLOCATOR_USE_BFC=true`` belongs in its environment.

Dense(2000) and Dense(10) on 256 rows of 500 float32.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ROWS, WIDTH, HIDDEN, OUT = 256, 500, 2000, 10
WIDTHS = (64, 32, 2)


def found(mode: Any, trains: bool) -> dict[str, Any]:
    import keras
    import numpy as np

    from sweeprof.backends.tensorflow.adapter import TensorflowBackend
    from sweeprof.profiling.profiler import Profiler

    model = keras.Sequential(
        [keras.layers.Dense(HIDDEN, name="wide"), keras.layers.Dense(OUT, name="narrow")], name="net"
    )
    model.build((None, WIDTH))
    data = [(np.ones((ROWS, WIDTH), np.float32), np.zeros(ROWS, int))]
    kind: Any = "training" if trains else "inference"
    backend = TensorflowBackend(mode=mode)
    profiler = Profiler(model, data, backend=backend, mode=kind, loss="cross_entropy", optimizer="sgd")
    seen: Any = profiler.run("allocations")
    return dict(seen.to_dict())


def allocated_by_layer() -> dict[str, int]:
    """Of a model whose layers have the names that Keras gives them."""
    import keras
    import numpy as np

    import sweeprof

    model = keras.Sequential([keras.Input((64,)), *(keras.layers.Dense(width) for width in WIDTHS)])
    seen: Any = sweeprof.Profiler(model, inputs=np.zeros((4096, 64), np.float32)).seen("allocations")
    return {layer.path: layer.allocated_bytes for layer in seen.by_layer}


if __name__ == "__main__":
    from sweeprof.backends.tensorflow.adapter import TensorflowBackend as Backend

    Backend().configure(seed=0)  # operators one after the other, as in a trial
    asked = [(mode, trains) for mode in ("function", "eager", "xla") for trains in (False, True)]
    seen = {f"{mode} {trains}": found(mode, trains) for mode, trains in asked}
    json.dump({"seen": seen, "by layer": allocated_by_layer()}, sys.stdout)
