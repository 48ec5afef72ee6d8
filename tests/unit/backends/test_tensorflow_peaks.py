"""The machine's peaks by TensorFlow, against the same product and copy by others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from sweeprof.backends.tensorflow import adapter
from sweeprof.backends.tensorflow.adapter import TensorflowBackend, peaks
from sweeprof.measuring import benchmarks


def best_s(call: Callable[[], object]) -> float:
    """Seconds of the quickest of a few calls."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


@pytest.mark.slow
def test_they_are_what_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """A larger product by TensorFlow itself, asked for directly, and numpy's copy."""
    monkeypatch.setattr(benchmarks, "COPIED_BYTES", 1 << 26)
    left, right = (tf.constant(np.random.default_rng(seed).random((1024, 1024), np.float32)) for seed in (0, 1))
    source, target = np.ones(1 << 26, np.uint8), np.empty(1 << 26, np.uint8)
    rates = []
    for _ in range(3):  # in turns: other processes may take the machine for a while
        found = peaks(TensorflowBackend().peak_settings("cpu"))
        assert (found.dtype, found.device, found.is_cached) == ("float32", "cpu", False)
        product_s, copy_s = best_s(lambda: tf.matmul(left, right)), best_s(lambda: np.copyto(target, source))
        rates.append((found.flops_per_s, 2 * 1024**3 / product_s, found.bytes_per_s, 2 * source.size / copy_s))
    own_flops, flops, own_bytes, copied = map(max, zip(*rates, strict=True))
    product, copy = own_flops / flops, own_bytes / copied
    print(f"product {product:.2f} of one that is asked for directly, copy {copy:.2f} of numpy's")
    assert 0.3 < product < 3.5
    assert 0.4 < copy < 3


def test_a_copy_is_one() -> None:
    """An identity would hand the same memory on."""
    source = tf.ones(1 << 22, tf.uint8)
    assert np.shares_memory(np.asarray(memoryview(source)), np.asarray(memoryview(tf.identity(source))))
    copied = tf.raw_ops.DeepCopy(x=source)
    assert not np.shares_memory(np.asarray(memoryview(source)), np.asarray(memoryview(copied)))


def test_a_slow_product_is_tried_small_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a kind of number is slow, the next size is eight times slower."""
    sizes: list[int] = []

    def matmul(left: Any, right: Any) -> None:
        sizes.append(len(left))

    monkeypatch.setattr(tf, "matmul", matmul)
    monkeypatch.setattr(adapter, "_best", lambda call, device: (call(), 0.01 * (sizes[-1] / 256) ** 3)[1])
    rate = benchmarks.product_rate(partial(adapter._product_seconds, "cpu", "float32"))
    assert sizes == [256, 512]  # 10 ms, then 80 ms; the next would be 640 ms
    assert rate == pytest.approx(2 * 256**3 / 0.01)


def test_the_settings_are_those_of_the_model_and_the_process() -> None:
    half = keras.Sequential([keras.layers.Dense(2, dtype="bfloat16")])
    half.build((None, 2))
    before = TensorflowBackend().peak_settings("cpu", half)
    assert (before.dtype, before.device) == ("bfloat16", "cpu")
    assert before.threads == tf.config.threading.get_intra_op_parallelism_threads()
    assert TensorflowBackend(precision="fp16").peak_settings("cpu").dtype == "float16"
    assert TensorflowBackend().peak_settings("cpu").dtype == "float32"
    is_on = tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        tf.config.experimental.enable_tensor_float_32_execution(not is_on)
        after = TensorflowBackend().peak_settings("cpu", half)
        assert after != before
        assert replace(after, numerics=before.numerics) == before
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(is_on)
