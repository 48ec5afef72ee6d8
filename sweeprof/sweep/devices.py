"""Which GPU a trial runs on: one that no other uses, and the only one that its process sees.

A shard keeps to one GPU for what it measures, because two of one model differ; what measures nothing takes any that is free.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweeprof.results.record import Json, Record
from sweeprof.results.system import ROOT, gpus
from sweeprof.sweep.lock import Turns, Waiting
from sweeprof.sweep.plan import MEASURING

SYSTEM = ROOT
"""Where the driver's list of GPUs is looked up."""


@dataclass(frozen=True, slots=True)
class Visible:
    """A GPU that this process may use."""

    token: str
    """What ``CUDA_VISIBLE_DEVICES`` calls it."""
    uuid: str
    """What all processes of the host call it."""
    model: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a trial runs, once it is its turn."""

    gpu: Visible | None = None
    alone: bool = False
    """Whether its process is to see no other GPU."""
    others: Sequence[Json] = ()
    """Turns of others on this host, as the trial began."""

    @property
    def environment(self) -> dict[str, str]:
        """What the environment of the trial's process has beside the shard's."""
        return {"CUDA_VISIBLE_DEVICES": self.gpu.token} if self.gpu and self.alone else {}

    def noted(self, blank: Record) -> Record:
        """The record with the place in its environment."""
        more: dict[str, Any] = {"others": {"trials": list(self.others)}} if blank.pass_name in MEASURING else {}
        if self.gpu:
            more["gpu"] = {"uuid": self.gpu.uuid, "model": self.gpu.model, "visible": self.gpu.token}
        return replace(blank, environment={**blank.environment, **more})


def visible(root: Path, inherited: str | None) -> list[Visible]:
    """The GPUs that may be used: all that the driver lists, or those that ``CUDA_VISIBLE_DEVICES`` names where it is set.

    A scheduler's words are passed on as they are; its numbers are taken to follow the order of the bus.
    """
    known = gpus(root)
    if inherited is None:
        return [Visible(gpu.uuid, gpu.uuid, gpu.model) for gpu in known]
    found = []
    for token in filter(None, (word.strip() for word in inherited.split(","))):
        if token == "-1":  # CUDA ignores what follows
            break
        if token.isdigit():
            at = known[int(token)] if int(token) < len(known) else None
        else:
            at = next((gpu for gpu in known if gpu.uuid.startswith(token)), None)
        found.append(Visible(token, at.uuid if at else f"number-{token}", at.model if at else "unknown"))
    return found


class Places:
    """Gives trials their turns and their GPUs; a context; safe to be used by several threads.

    Args:
        turns: of this host.
        shard: its number, by which shards are spread where every GPU is taken.
        available: the GPUs that may be used.
    """

    def __init__(self, turns: Turns, shard: int, available: Sequence[Visible]) -> None:
        self._turns, self._gpus = turns, {gpu.uuid: gpu for gpu in available}
        self._rotation = itertools.count(shard)
        self._own: str | None = None
        self._claim: int | None = None

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        if self._claim is not None:
            os.close(self._claim)

    def give_up(self) -> None:
        """Let no thread wait for its turn any longer."""
        self._turns.give_up()

    @contextmanager
    def taken(self, blanks: Sequence[Record], waiting: Waiting | None = None) -> Iterator[Place]:
        """A turn for the trials of a bout; ``waiting`` is told of those who hold it up."""
        device = _device(blanks)
        measures = blanks[0].pass_name in MEASURING
        with self._turns.taken(measures, self._candidates(device, measures), waiting) as uuid:
            others = [_plain(holder) for holder in self._turns.holders()] if measures else []
            yield Place(self._gpus[uuid] if uuid else None, device in ("cuda", "gpu"), others)

    def _candidates(self, device: str, measures: bool) -> list[str]:
        """The ids of the GPUs that a trial may have, the one to wait for first."""
        kind, _, number = device.partition(":")
        uuids = list(self._gpus)
        if kind not in ("cuda", "gpu") or not uuids:
            return []
        if number:
            return uuids[int(number) : int(number) + 1]
        if measures:
            return [self._of_this_shard(uuids)]
        first = next(self._rotation) % len(uuids)
        return uuids[first:] + uuids[:first]

    def _of_this_shard(self, uuids: list[str]) -> str:
        if self._own is None:
            first = next(self._rotation) % len(uuids)
            self._own, self._claim = self._turns.claimed(uuids[first:] + uuids[:first])
        return self._own


def places(turns: Turns, shard: int, environment: Mapping[str, str] = os.environ) -> Places:
    """The places of this host."""
    return Places(turns, shard, visible(SYSTEM, environment.get("CUDA_VISIBLE_DEVICES")))


def _device(blanks: Sequence[Record]) -> str:
    """The device of a bout; one whose trials differ in it takes the whole host, as the processor does."""
    found = {str(blank.config["device"]["type"]) for blank in blanks}
    return found.pop() if len(found) == 1 else "cpu"


def _plain(holder: Any) -> Json:
    return {
        "sweep_id": holder.sweep_id,
        "user": holder.user,
        "pid": holder.pid,
        "measures": holder.measures,
        "device": holder.device,
    }
