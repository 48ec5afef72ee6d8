"""Times of tokens beside those of optimum-benchmark, for the same model in the same process, in alternation.

optimum-benchmark stamps in a logits processor, before the token is chosen; a stopping criterion is asked after it was. Only ratios
count. Its package may lie in a folder of PYTHONPATH: ``pip install --no-deps --target DIR optimum-benchmark flatten-dict colorlog
accelerate``.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.measured import lasting

from sweeprof.backends.torch.generation import generating, own_generation
from sweeprof.backends.torch.model import TorchModel
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import GenerationConfig
from sweeprof.model_sources.transformers import build, import_transformers

LAYERS, WIDTH, HEADS, KV, NEW, ROUNDS = 4, 256, 8, 2, 12, 7
SETTINGS = list(itertools.product((64, 256), (1, 4), ("eager", "sdpa"), ("dynamic", "static")))
COLUMNS = ("TTFT", "per token", "latency", "loop", "cost ours", "cost theirs")


def model_of(attention: str) -> TorchModel:
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KV, "num_hidden_layers": LAYERS}
    config = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "vocab_size": 8000, **heads}
    module = build("llama", None, "text-generation", config, attn_implementation=attention)
    return TorchModel(module.eval(), torch.device("cpu"))


@pytest.fixture(scope="module")
def tracker() -> Any:
    import_transformers()
    latency = pytest.importorskip("optimum_benchmark.trackers.latency", exc_type=ImportError)
    return latency.PerTokenLatencySessionTrackerLogitsProcessor


@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
def test_both_measure_the_same(tracker: Any) -> None:
    torch.set_num_threads(1)
    print("\nours over optimum-benchmark's; the loop's time over generate's; generate with stamps over without")
    print(f"{'prompt':>6} {'batch':>5} {'attention':>9} {'cache':>8}", *(f"{name:>11}" for name in COLUMNS))
    lines, models = [], {attention: model_of(attention) for attention in ("eager", "sdpa")}
    for prompt, batch, attention, cache in SETTINGS:
        ids = torch.arange(batch * prompt).reshape(batch, prompt) % 7000 + 3
        inputs = Inputs(kwargs={"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        config = GenerationConfig(NEW, {"cache_implementation": cache})
        with generating(models[attention], inputs, config) as step:
            assert step.cache_bytes() == 2 * LAYERS * KV * (WIDTH // HEADS) * (prompt + NEW - 1) * batch * 4
            loop = own_generation(models[attention], inputs, config)
            found = ratios(step, loop, tracker)
        lines.append(found)
        print(f"{prompt:>6} {batch:>5} {attention:>9} {cache:>8}", *(f"{ratio:>11.3f}" for ratio in found), flush=True)
    medians = [statistics.median(line[column] for line in lines) for column in range(len(COLUMNS))]
    for name, ratio in zip(COLUMNS, medians, strict=True):
        assert 0.9 < ratio < 1.1 or (name == "loop" and 0.5 < ratio < 1.2), (name, ratio)


def ratios(step: Any, loop: Callable[[], object], tracker: Any) -> list[float]:
    """Return the medians of the paired ratios, one for each column."""
    found: list[tuple[float, ...]] = []
    for number in range(ROUNDS + 2):
        theirs, points = tracker("cpu", "pytorch"), list[float]()

        def tracked(theirs: Any = theirs) -> None:
            with theirs.session(), theirs.track():
                step._generate(logits_processor=[theirs])

        def stamped(points: list[float] = points) -> None:
            points.append(time.perf_counter())
            step.generate(lambda: points.append(time.perf_counter()))

        seconds = {}
        steps = [("plain", step._generate), ("ours", stamped), ("theirs", tracked), ("loop", loop)]
        for name, run in steps[number % 4 :] + steps[: number % 4]:
            seconds[name] = lasting(run)
        first, *gaps = [after - before for before, after in itertools.pairwise(points)]
        their_first = theirs.prefill_end_events[0] - theirs.prefill_start_events[0]
        their_gaps = [b - a for a, b in zip(theirs.per_token_start_events, theirs.per_token_end_events, strict=True)]
        assert len(gaps) == len(their_gaps) == NEW - 1
        found.append(
            (
                first / their_first,
                statistics.median(gaps) / statistics.median(their_gaps),
                seconds["ours"] / seconds["theirs"],
                seconds["loop"] / seconds["plain"],
                seconds["ours"] / seconds["plain"],
                seconds["theirs"] / seconds["plain"],
            )
        )
    return [statistics.median(column) for column in zip(*found[2:], strict=True)]
