"""The structure of a combination's model as text, and a digest by which equal models are told from others."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

from sweeprof.report.tree import tree
from sweeprof.results.files import read_json
from sweeprof.results.layers import LayerTable
from sweeprof.results.record import Record

FILE = "model.txt"
TAG = "model.structure"

MOST_LINES = 5000
"""Of the tree; of a model with more calls the deepest levels are left out."""
_LAST = "structure"


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
    depth = _depth(table)
    left_out = [] if depth is None else [f"Levels below {depth} are left out; layers.csv has them."]
    return "\n".join([tree(table, depth=depth), *left_out, f"{_LAST}  {digest(table)}", ""])


def digest(table: LayerTable) -> str:
    """12 hexadecimal digits, the same for models with the same modules and parameters, whatever they are run on."""
    modules = {row.path: (row.path, row.type, row.params, row.trainable) for row in table.rows}
    content = json.dumps(sorted(modules.values()), separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def tag_of(folder: Path) -> dict[str, str]:
    """The tag with the digest of the structure below ``folder``; empty where there is none."""
    path = folder / FILE
    last = path.read_text(encoding="utf-8").splitlines()[-1].split() if path.is_file() else []
    return {TAG: last[1]} if len(last) == 2 and last[0] == _LAST else {}


def _depth(table: LayerTable) -> int | None:
    """The deepest level that is drawn; None: all."""
    if len(table.rows) <= MOST_LINES:
        return None
    rows = Counter(row.depth for row in table.rows)
    depth, lines = 0, 0
    while (lines := lines + rows[depth]) <= MOST_LINES:
        depth += 1
    return max(0, depth - 1)
