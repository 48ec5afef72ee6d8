"""The files of a combination and of a sweep, laid out as a tracker shows them."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeprof.credentials import without_credentials
from sweeprof.report.layers.text import tree
from sweeprof.results.compare import Comparison
from sweeprof.results.files import read_json, write_atomically, write_json
from sweeprof.results.layers import LayerTable
from sweeprof.results.record import Record
from sweeprof.tracking import tables
from sweeprof.tracking.inputs import Input, log_inputs

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


STRUCTURE_FILE = "model.txt"
STRUCTURE_TAG = "model.structure"

MOST_STRUCTURE_LINES = 5000
"""Of the tree; of a model with more calls the deepest levels are left out."""
_DIGEST_LINE = "structure"


def structure_text(record: Path) -> str | None:
    """The tree of the layers in the record of an analysis, its digest in the last line; None where there is no such record.

    Raises:
        Damaged: the file is not a record.
    """
    if not record.is_file():
        return None
    found = Record.from_dict(read_json(record))
    if found.status != "ok" or found.observations is None:
        return None
    table = LayerTable.from_dict(found.observations)
    depth = _deepest_drawn_level(table)
    left_out = [] if depth is None else [f"Levels below {depth} are left out; layers.csv has them."]
    return "\n".join([tree(table, depth=depth), *left_out, f"{_DIGEST_LINE}  {structure_digest(table)}", ""])


def structure_digest(table: LayerTable) -> str:
    """12 hexadecimal digits, the same for models with the same modules and parameters, whatever they are run on."""
    modules = {row.path: (row.path, row.type, row.params, row.trainable) for row in table.rows}
    content = json.dumps(sorted(modules.values()), separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def structure_tag(folder: Path) -> dict[str, str]:
    """The tag with the digest of the structure below ``folder``; empty where there is none."""
    path = folder / STRUCTURE_FILE
    last = path.read_text(encoding="utf-8").splitlines()[-1].split() if path.is_file() else []
    return {STRUCTURE_TAG: last[1]} if len(last) == 2 and last[0] == _DIGEST_LINE else {}


def _deepest_drawn_level(table: LayerTable) -> int | None:
    """The deepest level that is drawn; None: all."""
    if len(table.rows) <= MOST_STRUCTURE_LINES:
        return None
    rows = Counter(row.depth for row in table.rows)
    depth, lines = 0, 0
    while (lines := lines + rows[depth]) <= MOST_STRUCTURE_LINES:
        depth += 1
    return max(0, depth - 1)


_LOG = logging.getLogger(__name__)
_BINARY = {".gz"}
"""Traces."""
_OF_SWEEP = ("comparison.md", "comparison.csv", "comparison.json", "report.html")


def stage_combination(target: Path, folder: Path, combination_id: str, config: Mapping[str, Any] | None) -> None:
    """Copy a combination's files below ``target``, and write its resolved config.

    ``records/*.json``, ``layers.{csv,html}``, ``operators.csv`` and ``memory/*.csv``, and what the passes left:
    ``trace.json.gz``, ``lines_*.txt``. Made of them: ``model.txt``, ``tables/{layers,operators}.json``.
    """
    for name in ("records", "memory"):
        for path in sorted(p for p in (folder / name / combination_id).glob("[!.]*") if p.is_file()):
            _copy(path, target / name / path.name)
    for name in ("layers", "operators"):
        for path in sorted((folder / name).glob(f"{combination_id}.*")):
            _copy(path, target / f"{name}{path.suffix}")
    left = folder / "artifacts" / combination_id
    for path in sorted(path for path in left.rglob("[!.]*") if path.is_file()):
        _copy(path, target / path.relative_to(left))
    if config is not None:
        write_json(target / "config.json", config, durable=False)
        _copy(target / "config.json", target / "config.json")
    _make_from(target / "layers.csv", target / tables.LAYERS, tables.layers)
    _make_from(target / "operators.csv", target / tables.OPERATORS, tables.operators)
    _make(target / STRUCTURE_FILE, lambda: structure_text(target / "records" / "analysis-r0.json"))


def stage_sweep(target: Path, folder: Path, comparison: Comparison) -> None:
    """Copy the comparison and the report of ``folder`` to ``target``, those that there are.

    Made of ``comparison``: ``tables/comparison.json``.
    """
    for path in (folder / name for name in _OF_SWEEP):
        if path.is_file():
            _copy(path, target / path.name)
    _make(target / tables.COMPARISON, lambda: tables.combinations(comparison))


def add_extras(client: MlflowClient, run_id: str, staged: Path, inputs: Sequence[Input]) -> None:
    """Tag a run with which of its files are tables and what its model's structure is, and add its datasets.

    Raises:
        mlflow.exceptions.MlflowException: the server does not take them.
    """
    from mlflow.entities import RunTag

    tags = tables.tag_of(staged) | structure_tag(staged)
    if tags:
        client.log_batch(run_id, tags=[RunTag(key, text) for key, text in tags.items()], synchronous=True)
    log_inputs(client, run_id, inputs)


def _make_from(source: Path, target: Path, make: Callable[[str], Any]) -> None:
    if source.is_file():
        _make(target, lambda: make(source.read_text(encoding="utf-8")))


def _make(target: Path, make: Callable[[], Any]) -> None:
    """Write what ``make`` returns, text or a table, unless it is None or has no rows."""
    try:
        made = make()
    except Exception:
        # It repeats what other files hold: whatever is wrong with it, those are worth more.
        _LOG.warning("there is no %s", target.name, exc_info=True)
        return
    if isinstance(made, str):
        write_atomically(target, without_credentials(made), durable=False)
    elif made is not None and made["data"]:
        write_json(target, made, compact=True, durable=False)


def _copy(path: Path, target: Path) -> None:
    """A tracker is read by others than the machine's owner: text loses the passwords of its addresses."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in _BINARY:
        shutil.copyfile(path, target)
        return
    # Bytes that are no text pass through unchanged, and so do the ends of lines.
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    target.write_bytes(without_credentials(text).encode("utf-8", "surrogateescape"))
