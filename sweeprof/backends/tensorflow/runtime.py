"""TensorFlow's run-time: threads and GPUs, which are set before it starts or never, and the names of its devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from sweeprof.backends.keras.kernel import resembling_kernel
from sweeprof.errors import Problem, UserError
from sweeprof.measuring.calibration import CHANNELS, ROWS, SIDE, Kernel, KernelName

INTER_OP_THREADS = 1
"""Operators run one after the other; ``threads`` work within one."""


def configure(threads: int, seed: int) -> None:
    """Threads, seeds, and GPUs whose memory is taken as it is needed.

    Args:
        threads: within an operator.
        seed: of TensorFlow, Keras, numpy and Python.

    Raises:
        UserError: TensorFlow already runs with other threads.
    """
    threading = tf.config.threading
    try:
        if threading.get_intra_op_parallelism_threads() != threads:
            threading.set_intra_op_parallelism_threads(threads)
        if threading.get_inter_op_parallelism_threads() != INTER_OP_THREADS:
            threading.set_inter_op_parallelism_threads(INTER_OP_THREADS)
        for gpu in tf.config.list_physical_devices("GPU"):
            if not tf.config.experimental.get_memory_growth(gpu):
                tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        raise UserError([Problem("backend.threads", threads, _too_late(str(error)))]) from error
    keras.utils.set_random_seed(seed)


def _too_late(error: str) -> str:
    threading = tf.config.threading
    set_now = f"{threading.get_intra_op_parallelism_threads()} and {threading.get_inter_op_parallelism_threads()}"
    return (
        "cannot be set: TensorFlow already runs in this process, and takes its threads (within an operator and between "
        f"operators, now {set_now}; 0: one per processor) and the way it takes memory of GPUs only before it starts "
        f"({error}). Set them before its first operation, or use isolation=fork."
    )


def settings_in_effect() -> dict[str, Any]:
    """Return the settings that influence how fast a model runs, by name."""
    threading = tf.config.threading
    return {
        "threads": threading.get_intra_op_parallelism_threads(),
        "inter-op threads": threading.get_inter_op_parallelism_threads(),
        "dtype policy": keras.config.dtype_policy().name,
        "floatx": keras.config.floatx(),
        "XLA": tf.config.optimizer.get_jit(),
        "TF32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "functions run eagerly": tf.config.functions_run_eagerly(),
        "graph optimizer": {name: str(value) for name, value in tf.config.optimizer.get_experimental_options().items()},
    }


def devices() -> list[str]:
    """Return the devices of this host by sweeprof's names."""
    gpus = tf.config.list_physical_devices("GPU")
    return ["cpu"] + (["cuda", *(f"cuda:{i}" for i in range(len(gpus)))] if gpus else [])


def tensorflow_name(device: str) -> str:
    """``cuda:0`` as TensorFlow calls it."""
    return device.replace("cuda", "gpu")


def sweeprof_name(device: str) -> str:
    """``/job:localhost/replica:0/task:0/device:GPU:0`` as sweeprof calls it; there is one CPU."""
    found = tf.DeviceSpec.from_string(device)
    return "cpu" if found.device_type in (None, "CPU") else f"cuda:{found.device_index}"


def kernel(model: object, device: str, wanted: KernelName | None) -> Kernel:
    """The kernel on ``device``; always in single precision, so that variants have the same.

    Args:
        model: a Keras layer, or any callable of a tensor.
        device: as TensorFlow calls it.
        wanted: which; None: the one that resembles the model.
    """
    name = wanted or resembling_kernel(model)
    with tf.device(device):
        run = _convolution() if name == "convolution" else _product()

    def step() -> None:
        with tf.device(device):
            run()
        if device != "cpu":
            tf.test.experimental.sync_devices()

    return Kernel(name, step)


def _convolution() -> Callable[[], object]:
    images = tf.ones((1, SIDE, SIDE, CHANNELS))
    weights = tf.fill((3, 3, CHANNELS, CHANNELS), 1e-3)
    return lambda: tf.nn.conv2d(images, weights, 1, "SAME")


def _product() -> Callable[[], object]:
    matrix = tf.fill((ROWS, ROWS), 1e-3)
    return lambda: tf.matmul(matrix, matrix)
