"""What a task sends to the tracker itself, with ``tracking.writer=job``: the combinations of its shard, once they are measured."""

from __future__ import annotations

import sys
from contextlib import suppress

from sweeprof.results.files import read_json
from sweeprof.results.record import Json
from sweeprof.sweep.artifacts import observed, write_artifacts
from sweeprof.sweep.finish import title_of
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.plan import Plan
from sweeprof.sweep.queued import reachable
from sweeprof.sweep.tracker import TrackerProcess, sending_s


def send_shard(folder: Folder, plan: Plan, shard: int) -> None:
    """Send a shard's combinations, if jobs are to; what goes wrong is printed, for the head sends what is missing in the end."""
    config = _config(folder)
    if config is None or config.get("writer") != "job":
        return
    ids = plan.shards[shard]
    for id in ids:
        write_artifacts(folder, id, observed(folder, id), title_of(plan, plan.combination(id)))
    with TrackerProcess(config, folder) as tracker:
        tracker.add(ids, sending_s(plan))
        if tracker.trouble:
            print(f"not sent by this job: {tracker.trouble}", file=sys.stderr)


def _config(folder: Folder) -> Json | None:
    """How the sweep's tracker is reached; None where that is not known here, or there is none."""
    with suppress(OSError, ValueError, KeyError):
        return reachable(read_json(folder.tracking))
    return None
