"""What MLflow shows of an experiment before any of its runs: its views and its description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sweeprof.tracking.connecting import dispensable
from sweeprof.tracking.sweeps import experiment_tags
from sweeprof.tracking.views import ViewOf, outdated_views

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


def write_views(client: MlflowClient, experiment_id: str, of: ViewOf) -> None:
    """Write the views of a sweep, and remove those that are out of date; what MLflow refuses is only warned of."""
    write_tags(client, experiment_id, of.title, lambda there: experiment_tags(of, experiment_id, there))


def write_tags(
    client: MlflowClient,
    experiment_id: str,
    title: str,
    make: Callable[[Mapping[str, str]], Mapping[str, str]],
) -> None:
    """Set the tags of an experiment that ``make`` returns for those that are there; refusals are only warned of."""
    with dispensable(f"saved view of {title}"):
        there = client.get_experiment(experiment_id).tags
        written = make(there)
        for key in sorted(key for key, value in written.items() if there.get(key) != value):
            client.set_experiment_tag(experiment_id, key, written[key])
        for key in outdated_views({**there, **written}):
            client.delete_experiment_tag(experiment_id, key)
