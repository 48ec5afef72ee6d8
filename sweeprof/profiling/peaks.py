"""What a machine can do at its best, measured once per host and remembered."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeprof.results.environment import capture
from sweeprof.results.files import read_json, write_json
from sweeprof.results.peaks import Peaks, PeakSettings

if TYPE_CHECKING:
    from sweeprof.backends import MeasuresPeaks


def remembered(backend: MeasuresPeaks, device: str, model: Any = None) -> Peaks:
    """The peaks of this host with the settings of this process: from the cache, or measured and put there.

    Args:
        backend: what measures them.
        device: where.
        model: the caller's, where there is one, for the sake of its data type.
    """
    folder, settings = cache(), backend.peak_settings(device, model)
    if folder is None:
        return backend.peaks(settings)
    path = folder / f"{_key(backend, settings)}.json"
    found = _read(path)
    if found is not None:
        return replace(found, is_cached=True)
    found = backend.peaks(settings)
    with suppress(OSError):  # a home that cannot be written to costs the next combination a few seconds
        write_json(path, found.to_dict())
    return found


def cache() -> Path | None:
    """The folder of the cache, by the XDG base directory specification; None for a user without a home."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        base = given if given.is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # a container may run as a user without a name
        return None
    return base / "sweeprof" / "peaks"


def _read(path: Path) -> Peaks | None:
    try:
        return Peaks.from_dict(read_json(path))
    except (OSError, ValueError, TypeError):  # not there, or not what this version writes: measured anew
        return None


def _key(backend: MeasuresPeaks, settings: PeakSettings) -> str:
    """What the figures depend on: host, processor, versions, the kind of backend, and what is set in this process."""
    environment = capture()
    known = [*(environment[name] for name in ("host", "cpu", "gpus", "versions")), type(backend).__qualname__]
    return hashlib.sha256(json.dumps([known, asdict(settings)], default=str).encode()).hexdigest()[:16]
