"""What probes cost and what the times of the layers add up to, beside other profilers in the same run.

Every profiler has a model of its own, takes turns with the others, and each of its steps is compared with one beside it that has no
profiler, in processor time. Where others report leaves, ours reports what every call took itself.
"""

from __future__ import annotations

import copy
import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from benchmarks.counters import quiet
from benchmarks.layer_models import MODELS, Timed
from benchmarks.layer_profilers import OURS, PEERS, LayerProfiler, Pair, Watch
from torch import nn

TURNS = 5


def _quick(seconds: Iterable[float]) -> float:
    """The lower quartile: other programs disturb it less than the median, and a single lucky step does not move it."""
    return statistics.quantiles(seconds, n=4)[0]


@dataclass(frozen=True)
class Ratios:
    """Each over what the same phase takes without a profiler."""

    whole: float
    """The phase with the probes: what they cost."""
    parts: float
    """The sum of what is reported for the parts."""
    model: float | None
    """What is reported for the model."""

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Ratios:
        reported = [pair.reported for pair in pairs]
        whole = _quick(each.spent for each in reported) / _quick(pair.plain for pair in pairs)
        models = [each.model for each in reported if each.model is not None]
        parts = statistics.median(each.parts for each in reported)
        return cls(whole, whole * parts, whole * statistics.median(models) if models else None)

    @property
    def error(self) -> float:
        return abs(self.parts - 1)


@dataclass(frozen=True)
class Taken:
    """A profiler with its model."""

    name: str
    watch: Watch
    module: nn.Module


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("timed", MODELS, ids=lambda timed: timed.name)
def test_forward(timed: Timed) -> None:
    installed = [peer for peer in PEERS if peer.is_installed()]
    missing = ", ".join(peer.name for peer in PEERS if peer not in installed) or "none"
    module = _made(timed, in_place=True).eval()
    taken = [Taken(each.name, each.forward, copy.deepcopy(module)) for each in (OURS, *installed)]
    with torch.inference_mode():
        _assert_ours_is_best(f"{timed.name}, inference; not installed: {missing}", _measured(timed, taken))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("timed", MODELS, ids=lambda timed: timed.name)
def test_backward(timed: Timed) -> None:
    taken, notes = [], ""
    for each in (OURS, *PEERS):
        if each.backward is None or not each.is_installed():
            continue
        in_place = _can_work_in_place(each, timed)
        taken.append(Taken(each.name, each.backward, _made(timed, in_place).train()))
        notes += (
            "" if in_place else f"; {each.name} raises where layers work in place and has a model whose layers do not"
        )
    _assert_ours_is_best(f"{timed.name}, backward{notes}", _measured(timed, taken))


def _made(timed: Timed, in_place: bool) -> nn.Module:
    torch.manual_seed(0)
    module = timed.make(in_place)
    assert sum(parameter.numel() for parameter in module.parameters()) == timed.params
    return module


def _can_work_in_place(profiler: LayerProfiler, timed: Timed) -> bool:
    assert profiler.backward is not None
    try:
        with _in_silence():
            profiler.backward(_made(timed, in_place=True).train(), torch.randn(timed.shape), 1)
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        return False
    return True


def _measured(timed: Timed, taken: Sequence[Taken]) -> dict[str, Ratios]:
    given = torch.randn(timed.shape)
    pairs: dict[str, list[Pair]] = {each.name: [] for each in taken}
    with _in_silence():
        for _ in range(TURNS):
            for each in taken:
                pairs[each.name] += each.watch(each.module, given, timed.steps)
    return {name: Ratios.of(found) for name, found in pairs.items()}


@contextmanager
def _in_silence() -> Iterator[None]:
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _assert_ours_is_best(title: str, ratios: dict[str, Ratios]) -> None:
    print(f"\n{title}\n{'over without a profiler':<24}{'with probes':>14}{'sum of parts':>14}{'model':>14}")
    for name, found in ratios.items():
        model = "-" if found.model is None else f"{found.model:.3f}"
        print(f"{name:<24}{found.whole:>14.3f}{found.parts:>14.3f}{model:>14}", flush=True)
    ours = ratios[OURS.name]
    for name, theirs in ratios.items():
        if name != OURS.name:
            assert ours.whole < theirs.whole, f"our probes cost more than those of {name}"
            assert ours.error < theirs.error, f"our parts add up to the whole less well than those of {name}"
