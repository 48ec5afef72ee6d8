"""Every backend and what to expect of it: a new one is a line in BACKENDS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figures:
    """Of a model, counted by hand per sample of the digits."""

    macs: int
    params: int
    backward_macs: int | None = None
    """Weights' gradients of every layer, inputs' gradients of every layer but the first."""


FIGURES = {
    "mlp": Figures(139_904, 140_106, 2 * 139_904 - 1024 * 128),
    "lenet5": Figures(416_520, 61_706, 2 * 416_520 - 28 * 28 * 6 * 25),
    "digits_resnet": Figures(12_206_720, 77_754, 2 * 12_206_720 - 32 * 32 * 16 * 9),
    "fake": Figures(1 * 32 * 32 * 10, 1000),
    "perceptron": Figures(139_904, 140_106),
}
"""By the name of the file under ``conf/model/``; ``perceptron`` is that of docs/backends.md."""


@dataclass(frozen=True)
class Case:
    """A backend."""

    config: str
    """Its file under ``conf/backend/``."""
    models: tuple[str, ...] = ("mlp", "lenet5", "digits_resnet")
    """Those that it runs; most is asked about the first."""
    threads: str = ""
    """Evaluates to its threads, after ``backend.threads=3``."""
    exhaust: str = "bytearray(2**60)"
    """Runs out of memory when evaluated in a process that has imported it."""
    mark: str = ""
    """``slow`` or ``thorough``: what asks it, and ``make test`` does not."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """By question, why a capability that the backend has is not there for this variant or model."""

    @property
    def model(self) -> str:
        return self.models[0]


_TRACED_ONCE = "mode={}: the source lines run once, when the graph is traced; backend.mode=eager runs them"
_NO_LAYERS = "not supported upstream: a compiled XLA program has no layers; mode=function has the same model with them"

BACKENDS = {
    "torch": Case("torch", threads="__import__('torch').get_num_threads()", exhaust="__import__('torch').ones(2**50)"),
    "tensorflow": Case(
        "tensorflow",
        threads="__import__('tensorflow').config.threading.get_intra_op_parallelism_threads()",
        exhaust="__import__('tensorflow').fill([2**44], 1.0)",
        mark="slow",
        refuses={"lines": _TRACED_ONCE.format("function")},
    ),
    "tensorflow_eager": Case(
        "tensorflow_eager",
        exhaust="__import__('tensorflow').fill([2**44], 1.0)",
        mark="thorough",  # as the graph, but for what tests of the mode have
    ),
    "tensorflow_xla": Case(
        "tensorflow_xla",
        exhaust="__import__('tensorflow').fill([2**44], 1.0)",
        mark="thorough",
        refuses={
            "lines": _TRACED_ONCE.format("xla"),
            **dict.fromkeys(("layer_times", "trained_layers", "operators"), _NO_LAYERS),
        },
    ),
    "onnxruntime": Case(
        "onnxruntime",
        exhaust="__import__('onnxruntime').OrtValue.ortvalue_from_shape_and_type([2**44], float, 'cpu')",
        mark="slow",  # each model is exported by a process of its own
        refuses={"trained_layers": "not applicable: ONNX Runtime runs models, and trains none"},
    ),
    "jax": Case("jax", exhaust="__import__('jax').numpy.ones(2**50)", mark="thorough"),
    # A file has batch normalisation in the weights before it.
    "litert": Case("litert", ("mlp", "lenet5"), mark="thorough"),
    "openvino": Case(
        "openvino",
        exhaust="[ov.Tensor(ov.Type.f32, ov.Shape([2**44])) for ov in [__import__('openvino')]]",
        mark="thorough",  # each model is converted by a process of its own
        refuses={"trained_layers": "not applicable: OpenVINO runs models, and trains none"},
    ),
    "numpy": Case("numpy", ("perceptron",), exhaust="__import__('numpy').ones(2**50)"),
    "fake": Case("fake", ("fake",)),
}
