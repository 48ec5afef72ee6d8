"""Addresses of MLflow's own pages, beside the saved views."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

COMPARED = 100
"""Runs on one page: more are no picture any more, and their address no line."""
_TRAINING = "workflowType=machine_learning"
"""Else the page comes up among those of language models."""


def compare_address(base: str, experiment_id: str, run_ids: Sequence[str]) -> str:
    """The page that lays runs side by side; ``base`` is the server's address.

    The page takes the runs from its address and nothing else: it begins with the first three parameters that differ, in
    alphabetical order, and the first metric that all runs have.
    """
    runs, experiments = (quote(json.dumps(list(ids))) for ids in (run_ids[:COMPARED], [experiment_id]))
    return f"{base.rstrip('/')}/#/compare-runs?runs={runs}&experiments={experiments}&{_TRAINING}"


def artifact_address(base: str, experiment_id: str, run_id: str, path: str) -> str:
    """The page that shows an artifact of a run; ``base`` is the server's address."""
    return f"{base.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}/artifacts/{quote(path)}?{_TRAINING}"
