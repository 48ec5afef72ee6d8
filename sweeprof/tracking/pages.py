"""The pages of a tracking server that show one sweep."""

from __future__ import annotations

from sweeprof.credentials import redacted_address
from sweeprof.tracking.rest import found_experiment, run_id
from sweeprof.tracking.sweeps import experiment_name
from sweeprof.tracking.views import addresses, run_address


def pages_of(address: str, sweep_name: str, sweep_id: str, login: bool = True) -> dict[str, str]:
    """Addresses by what they show, the most useful first; none where the server does not have the sweep.

    Args:
        login: whether the server may be told the user and password of the environment.

    Raises:
        ServerUnreachable: the server was not reached, or refused.
    """
    experiment, tags = found_experiment(address, experiment_name(sweep_name), login)
    condition = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = 'sweep'"
    sweep = run_id(address, experiment, condition, login) if experiment else None
    if experiment is None or sweep is None:
        return {}
    shown = redacted_address(address, "")
    return {
        **{kind.capitalize(): page for kind, page in addresses(shown, experiment, sweep_id, sweep, tags).items()},
        "Sweep": run_address(shown, experiment, sweep),
        "Report": run_address(shown, experiment, sweep, "report.html"),
    }
