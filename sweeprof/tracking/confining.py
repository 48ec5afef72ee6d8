"""Limits where MLflow's client may put artifacts of a sweep if only the sweep's folder names the tracker.

A server, and a database, say where the artifacts of their runs belong, which may be any folder of this machine: a folder
prepared by somebody else would have its files written there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sweeprof.errors import UserError


def confine_artifacts(output: Path | None) -> None:
    """Let MLflow's client, in this process, send artifacts through a tracking server only.

    Args:
        output: of a database, the folder of all sweeps: artifacts may then be written below it.
    """
    from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry
    from mlflow.utils.file_utils import local_file_uri_to_path

    kinds: dict[str, Callable[..., Any]] = _artifact_repository_registry._registry

    def refused(artifact_uri: str, *_: Any, **__: Any) -> Any:
        raise UserError(
            f"artifacts belong at {artifact_uri}, by the word of a place that only the sweep's folder names; give its address"
        )

    def local(kind: Callable[..., Any]) -> Callable[..., Any]:
        def made(artifact_uri: str, *words: Any, **named: Any) -> Any:
            path = Path(local_file_uri_to_path(artifact_uri)).resolve()  # type: ignore[no-untyped-call]
            if output is None or not path.is_relative_to(output.resolve()):
                return refused(artifact_uri)
            return kind(artifact_uri, *words, **named)

        return made

    for scheme, kind in kinds.items():
        if scheme in ("", "file"):
            kinds[scheme] = local(kind)
        elif scheme != "mlflow-artifacts":
            kinds[scheme] = refused
