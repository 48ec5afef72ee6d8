"""The pages of a tracking server that show one sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from sweeprof.tracking.credentials import without_credentials
from sweeprof.tracking.rest import experiment_id, run_ids
from sweeprof.tracking.sweeps import experiment_name
from sweeprof.tracking.views import KINDS, PLACE_TAG, view_address

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


REPORT = "report.html"


def pages_of(address: str, sweep_name: str, sweep_id: str, login: bool = True) -> dict[str, str]:
    """Addresses by what they show, the most useful first; none where the server does not have the sweep.

    Args:
        login: whether the server may be told the user and password of the environment.

    Raises:
        NoAnswer: the server was not reached, or refused.
    """
    experiment = experiment_id(address, experiment_name(sweep_name), login)
    if experiment is None:
        return {}
    runs = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = "
    sweep = run_ids(address, experiment, f"{runs} 'sweep'", "attributes.start_time", 1, login)
    if not sweep:
        return {}
    # One run without metrics would leave the page with none to begin with.
    measured = f"{runs} 'combination' and attributes.status = 'FINISHED'"
    combinations = run_ids(address, experiment, measured, f"tags.`{PLACE_TAG}`", COMPARED, login)
    shown = without_credentials(address)
    pages = {kind.capitalize(): view_address(shown, experiment, sweep_id, kind) for kind in KINDS}
    if len(combinations) > 1:
        pages["Side by side"] = compare_address(shown, experiment, combinations)
    return {**pages, "Report": artifact_address(shown, experiment, sweep[0], REPORT)}
