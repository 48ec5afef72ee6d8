"""Peak rates of the machine, measured once per host and kept in a cache."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, replace

from sweeprof.backends import Backend
from sweeprof.passes.registry import Pass, Session
from sweeprof.paths import cache_folder
from sweeprof.results.environment import Peaks, capture
from sweeprof.results.files import read_json, write_json


def run(session: Session, backend: Backend) -> Peaks:
    """Return the peak rates of this host."""
    with session.timed("measure"):
        return cached_peaks(backend, session.device_name(), session.caller_model())


def cached_peaks(backend: Backend, device: str, model: object = None) -> Peaks:
    """Return the peaks of this host with the settings of this process: from the cache, or measured and put there.

    Args:
        backend: measures them.
        device: on which they are measured.
        model: the caller's, if there is one: its data type counts.
    """
    folder, settings = cache_folder("peaks"), backend.peak_settings(device, model)
    if folder is None:
        return backend.peaks(settings)
    environment = capture()
    # All that the rates depend on.
    known = [*(environment[name] for name in ("host", "cpu", "gpus", "versions")), type(backend).__qualname__]
    key = hashlib.sha256(json.dumps([known, asdict(settings)], default=str).encode()).hexdigest()[:16]
    path = folder / f"{key}.json"
    with suppress(OSError, ValueError, TypeError):  # there is none, or it is not of this version: measured again
        return replace(Peaks.from_dict(read_json(path)), is_cached=True)
    peaks = backend.peaks(settings)
    with suppress(OSError):  # a home that cannot be written to costs the next combination a few seconds
        write_json(path, peaks.to_dict())
    return peaks


PASS = Pass(
    name="peaks",
    order=50,
    run=run,
    read=Peaks.from_dict,
    kind="once",
    capability="peaks",
    is_exclusive=True,
)
