"""What the passes of each combination left in the folder of a sweep, and the files that are made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sweeprof.report.csv import csv_lines
from sweeprof.report.layers.csv import to_csv
from sweeprof.report.layers.html import to_html
from sweeprof.report.operators import to_csv as operators_csv
from sweeprof.report.pictures.combination import Observed, pictures
from sweeprof.report.png import png
from sweeprof.report.svg import svg
from sweeprof.report.tensors import to_csv as tensors_csv
from sweeprof.results.allocations import Allocations, LayerMemory, Moment
from sweeprof.results.files import write_atomically, write_bytes
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.operators import Operators
from sweeprof.results.peaks import Peaks
from sweeprof.results.record import PassName, Record
from sweeprof.sweep.folder import Folder


def observed(folder: Folder, combination_id: str) -> Observed:
    """What the passes of a combination saw; of a pass that failed or was not run, nothing."""
    records = folder.records_of(combination_id)
    layers = _read(records, "analysis", LayerTable)
    times = _read(records, "layer_times", LayerTimes)
    left = folder.path / "artifacts" / combination_id
    return Observed(
        layers=layers.with_times(times) if layers and times else layers,
        operators=_read(records, "operators", Operators),
        allocations=_read(records, "allocations", Allocations),
        peaks=_read(records, "peaks", Peaks),
        training=_read(records, "training", Training),
        files=tuple(sorted(path.name for path in left.iterdir() if path.is_file())) if left.is_dir() else (),
    )


def write_artifacts(
    folder: Folder, combination_id: str, seen: Observed, title: str, vectors: bool = False
) -> dict[str, str]:
    """Write the files of a combination; returns their addresses relative to the folder by what a reader knows them by.

    ``layers/ID.{csv,html}``, ``operators/ID.csv``, ``memory/ID/{timeline,layers,tensors}.csv`` and ``pictures/ID/*.png``, with
    ``vectors`` also ``*.svg``, each where there is something to write. Among the addresses are those of ``artifacts/ID/*``, which
    the passes left.
    """
    texts = _texts(combination_id, seen, title)
    for path, text in texts.values():
        write_atomically(folder.path / path, text, durable=False)
    for picture in pictures(seen):
        raster = folder.path / "pictures" / combination_id / f"{picture.key}.png"
        write_bytes(raster, png(picture), durable=False)
        if vectors:
            write_bytes(raster.with_suffix(".svg"), svg(picture), durable=False)
    left = {name: f"artifacts/{combination_id}/{name}" for name in seen.files}
    return left | {name: path for name, (path, _) in texts.items()}


def _texts(id: str, seen: Observed, title: str) -> Mapping[str, tuple[str, str]]:
    """Path and content by name."""
    found: dict[str, tuple[str, str]] = {}
    if seen.layers is not None:
        found["layers.html"] = (f"layers/{id}.html", to_html(seen.layers, title=title))
        found["layers.csv"] = (f"layers/{id}.csv", to_csv(seen.layers))
    if seen.operators is not None:
        found["operators.csv"] = (f"operators/{id}.csv", operators_csv(seen.operators))
    if seen.allocations is not None:
        memory = seen.allocations
        found["memory/timeline.csv"] = (f"memory/{id}/timeline.csv", _csv(Moment, memory.timeline))
        found["memory/layers.csv"] = (f"memory/{id}/layers.csv", _csv(LayerMemory, memory.by_layer))
        found["memory/tensors.csv"] = (f"memory/{id}/tensors.csv", tensors_csv(memory.tensors))
    return found


def _csv(kind: Any, rows: Sequence[Any]) -> str:
    """One header line, then one line per data class, its fields as columns."""
    names = [spec.name for spec in dataclasses.fields(kind)]
    return csv_lines([names, *([getattr(row, name) for name in names] for row in rows)])


def _read(records: Sequence[Record], pass_name: PassName, kind: Any) -> Any:
    """The result of a pass; None where it left none."""
    for record in records:
        if record.pass_name == pass_name and record.status == "ok" and record.observations is not None:
            return kind.from_dict(record.observations)
    return None
