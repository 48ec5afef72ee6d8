"""What MLflow shows of an experiment before any of its runs: its views and its description."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sweeprof.tracking.connecting import until_done
from sweeprof.tracking.sweeps import experiment_tags
from sweeprof.tracking.views import ViewOf, outdated_views

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_LOG = logging.getLogger(__name__)


def write_views(client: MlflowClient, experiment_id: str, of: ViewOf, limit_s: float) -> None:
    """Write the views of a sweep, and remove those that are out of date; never raises, and tries for ``limit_s``."""
    write_tags(client, experiment_id, of.title, lambda there: experiment_tags(of, experiment_id, there), limit_s)


def write_tags(
    client: MlflowClient,
    experiment_id: str,
    title: str,
    make: Callable[[Mapping[str, str]], Mapping[str, str]],
    limit_s: float,
) -> None:
    """Set the tags of an experiment that ``make`` returns for those that are there; never raises."""

    def write(_: int) -> None:
        there = client.get_experiment(experiment_id).tags
        written = make(there)
        for key in sorted(key for key, value in written.items() if there.get(key) != value):
            client.set_experiment_tag(experiment_id, key, written[key])
        for key in outdated_views({**there, **written}):
            client.delete_experiment_tag(experiment_id, key)

    try:
        until_done(write, limit_s)
    except Exception:
        # A view is a convenience: whatever is wrong with it, the numbers are worth more.
        _LOG.warning("MLflow took no saved view of %s", title, exc_info=True)
