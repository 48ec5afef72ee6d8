"""Host slots: permission for a trial to run on this host, with a GPU of its own that is the only one its process sees.

A shard keeps to one GPU for passes that measure, because two GPUs of one model differ; other passes take any that is free.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from sweeprof.passes.registry import exclusive_passes
from sweeprof.plan.plan import Plan
from sweeprof.results.environment import ROOT, gpus, usable_processors
from sweeprof.results.record import Json, Record, Warning
from sweeprof.run.locks import Holder, HostLock, OnWait

SYSTEM = ROOT
"""Below this folder is the GPU driver's list of GPUs."""


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """A GPU that this process may use."""

    token: str
    """Its name in ``CUDA_VISIBLE_DEVICES``."""
    uuid: str
    """Its name for all processes of the host."""
    model: str


@dataclass(frozen=True, slots=True)
class HostSlot:
    """Permission to run on this host, and the GPU to use."""

    gpu: VisibleGpu | None = None
    alone: bool = False
    """True if the trial's process is to see no other GPU."""
    others: Sequence[Json] = ()
    """The other processes that held the host lock when the trial began."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the trial's process, beside the shard's."""
        return {"CUDA_VISIBLE_DEVICES": self.gpu.token} if self.gpu and self.alone else {}

    def noted(self, blank: Record) -> Record:
        """Return the record with the slot in its environment."""
        more: Json = {"others": {"trials": list(self.others)}} if blank.pass_name in exclusive_passes() else {}
        if self.gpu:
            more["gpu"] = {"uuid": self.gpu.uuid, "model": self.gpu.model, "visible": self.gpu.token}
        return replace(blank, environment={**blank.environment, **more})


def visible_gpus(root: Path, inherited: str | None) -> list[VisibleGpu]:
    """Return the GPUs that may be used: all that the driver lists, or those that ``CUDA_VISIBLE_DEVICES`` names where it is set.

    Identifiers are passed on unchanged; numbers are assumed to follow the order of the bus.
    """
    known = gpus(root)
    if inherited is None:
        return [VisibleGpu(gpu.uuid, gpu.uuid, gpu.model) for gpu in known]
    found = []
    for token in filter(None, (word.strip() for word in inherited.split(","))):
        if token == "-1":  # CUDA ignores what follows
            break
        if token.isdigit():
            at = known[int(token)] if int(token) < len(known) else None
        else:
            at = next((gpu for gpu in known if gpu.uuid.startswith(token)), None)
        found.append(VisibleGpu(token, at.uuid if at else f"number-{token}", at.model if at else "unknown"))
    return found


class HostSlots:
    """Gives slots to trials; a context, safe to be used by several threads.

    Args:
        lock: of this host.
        shard: its number, by which shards are spread over GPUs if every GPU is taken.
        available: the GPUs that may be used.
    """

    def __init__(self, lock: HostLock, shard: int, available: Sequence[VisibleGpu]) -> None:
        self._lock, self._gpus = lock, {gpu.uuid: gpu for gpu in available}
        self._rotation = itertools.count(shard)
        self._own: str | None = None
        self._claim: int | None = None

    def __enter__(self) -> HostSlots:
        return self

    def __exit__(self, *_: object) -> None:
        if self._claim is not None:
            os.close(self._claim)

    @contextmanager
    def taken(self, blanks: Sequence[Record], on_wait: OnWait | None = None) -> Iterator[HostSlot]:
        """Take a slot for the trials of a group; ``on_wait`` is called with the processes that it waits for."""
        device = _device(blanks)
        measures = blanks[0].pass_name in exclusive_passes()
        with self._lock.taken(measures, self._candidates(device, measures), on_wait) as uuid:
            others = [_described(holder) for holder in self._lock.holders()] if measures else []
            yield HostSlot(self._gpus[uuid] if uuid else None, device in ("cuda", "gpu"), others)

    @contextmanager
    def shared(self, on_wait: OnWait | None = None) -> Iterator[None]:
        """Keep everything on this host from measuring; no further slot must be taken meanwhile."""
        with self._lock.taken(False, (), on_wait):
            yield

    def _candidates(self, device: str, measures: bool) -> list[str]:
        """Return the ids of the GPUs that a trial may use; the first is the one to wait for."""
        kind, _, number = device.partition(":")
        uuids = list(self._gpus)
        if kind not in ("cuda", "gpu") or not uuids:
            return []
        if number:
            return uuids[int(number) : int(number) + 1]
        if measures:
            if self._own is None:
                self._own, self._claim = self._lock.claim_gpu(self._rotated(uuids))
            return [self._own]
        return self._rotated(uuids)

    def _rotated(self, uuids: list[str]) -> list[str]:
        first = next(self._rotation) % len(uuids)
        return uuids[first:] + uuids[:first]


def host_slots(lock: HostLock, shard: int, environment: Mapping[str, str] = os.environ) -> HostSlots:
    """Return the slots of this host."""
    return HostSlots(lock, shard, visible_gpus(SYSTEM, environment.get("CUDA_VISIBLE_DEVICES")))


def _device(blanks: Sequence[Record]) -> str:
    """Return the device of a group; a group on several devices takes the whole host, like one on the CPU."""
    devices = {str(blank.config["device"]["type"]) for blank in blanks}
    return devices.pop() if len(devices) == 1 else "cpu"


def _described(holder: Holder) -> Json:
    return {
        "sweep_id": holder.sweep_id,
        "user": holder.user,
        "pid": holder.pid,
        "measures": holder.measures,
        "device": holder.device,
    }


def oversubscription(plan: Plan, processors: int | None = None) -> Warning | None:
    """Return the warning for a plan whose trials use more threads than there are CPUs; ``processors``: those of this process."""
    available = processors or usable_processors()
    threads = max((int(c.config["backend"].get("threads") or 1) for c in plan.combinations), default=1)
    if plan.cluster:  # its nodes may have more
        return None
    if threads <= available:
        return None
    text = f"backend.threads={threads} asks for more than the {available} processors that this process may use"
    return Warning("oversubscribed", text, f"backend.threads={available}")


def warn_of_oversubscription(plan: Plan, out: Console) -> None:
    """Print the warning of oversubscription, if any."""
    warning = oversubscription(plan)
    if warning:
        out.print(Text(f"{warning.code}: {warning.text}; {warning.advice}", style="yellow"), soft_wrap=True)
