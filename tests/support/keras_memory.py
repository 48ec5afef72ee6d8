"""Prints as JSON what steps of a Keras model allocate, mode by mode; ``TF_CPU_ALLOCATOR_USE_BFC=true`` belongs in its environment.

Dense(2000) and Dense(10) on 256 rows of 500 float32.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ROWS, WIDTH, HIDDEN, OUT = 256, 500, 2000, 10


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


if __name__ == "__main__":
    from sweeprof.backends.tensorflow.adapter import TensorflowBackend as Backend

    Backend().configure(seed=0)  # operators one after the other, as in a trial
    asked = [(mode, trains) for mode in ("function", "eager", "xla") for trains in (False, True)]
    print(json.dumps({f"{mode} {trains}": found(mode, trains) for mode, trains in asked}), file=sys.stdout)
