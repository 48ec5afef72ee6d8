"""Which module a node of a graph belongs to, as its exporter has noted it: by metadata, or in the node's name."""

from __future__ import annotations

import ast
from typing import Any

from sweeprof.results.paths import ROOT

SCOPES = "pkg.torch.onnx.name_scopes"
"""torch's exporter: every module around the node, outermost first, and the traced operation."""


def path_of_scopes(scopes: str | None) -> str:
    """``stage1.conv1`` from ``['', 'stage1', 'stage1.conv1', 'conv2d']``."""
    found = ast.literal_eval(scopes)[:-1] if scopes else []
    return next((str(path) for path in reversed(found) if path and not path.startswith("_empty_nn_module")), ROOT)


def path_of(node: Any) -> str:
    """The same of a node of any file: from its metadata, or from a name as other exporters write it.

    torch's older exporter names ``/stage1/stage1.0/conv1/Conv`` what belongs to ``stage1.0.conv1``, Keras's
    ``model/conv1/Conv2D`` what belongs to ``model.conv1``.
    """
    for note in node.metadata_props:
        if note.key == SCOPES:
            return path_of_scopes(note.value)
    parts: list[str] = []
    for part in [part for part in node.name.split("/") if part][:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(part)
    return ".".join(parts) or ROOT
