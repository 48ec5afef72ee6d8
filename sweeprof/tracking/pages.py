"""The pages of a tracking server that show one sweep."""

from __future__ import annotations

from sweeprof.tracking.addresses import COMPARED, artifact_address, compare_address
from sweeprof.tracking.asking import experiment_id, run_ids
from sweeprof.tracking.credentials import without_credentials
from sweeprof.tracking.sweeps import experiment_name
from sweeprof.tracking.views import KINDS, PLACE_TAG, view_address

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
