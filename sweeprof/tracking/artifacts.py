"""The files of a combination and of a sweep, laid out as a tracker shows them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeprof.results.files import write_json
from sweeprof.tracking.credentials import without_credentials

_BINARY = {".png", ".gz"}
"""Pictures, and traces: names of operators and modules."""
_OF_SWEEP = ("comparison.md", "comparison.csv", "comparison.json", "report.html")


def stage_combination(target: Path, folder: Path, combination_id: str, config: Mapping[str, Any] | None) -> None:
    """Copy a combination's files below ``target``, and write its resolved config.

    ``records/*.json``, ``layers.{csv,html}``, ``operators.csv``, ``memory/*.csv`` and ``pictures/*.png``, and what the passes
    left: ``trace.json.gz``, ``lines_*.txt``.
    """
    for name in ("records", "memory", "pictures"):
        for path in sorted(p for p in (folder / name / combination_id).glob("[!.]*") if p.is_file()):
            _copy(path, target / name / path.name)
    for name in ("layers", "operators"):
        for path in sorted((folder / name).glob(f"{combination_id}.*")):
            _copy(path, target / f"{name}{path.suffix}")
    left = folder / "artifacts" / combination_id
    for path in sorted(path for path in left.rglob("[!.]*") if path.is_file()):
        _copy(path, target / path.relative_to(left))
    if config is not None:
        write_json(target / "config.json", config)
        _copy(target / "config.json", target / "config.json")


def stage_sweep(target: Path, folder: Path) -> None:
    """Copy the comparison, the report and the plots of ``folder`` to ``target``, those that there are."""
    for path in (folder / name for name in _OF_SWEEP):
        if path.is_file():
            _copy(path, target / path.name)
    for path in sorted((folder / "plots").glob("*.png")):
        _copy(path, target / "plots" / path.name)


def _copy(path: Path, target: Path) -> None:
    """A tracker is read by others than the machine's owner: text loses the passwords of its addresses."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in _BINARY:
        shutil.copyfile(path, target)
        return
    # Bytes that are no text pass through unchanged.
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    target.write_text(without_credentials(text), encoding="utf-8", errors="surrogateescape")
