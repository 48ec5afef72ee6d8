"""What a task sends to the tracker itself, with ``tracking.writer=job``: the combinations of its shard, once they are measured."""

from __future__ import annotations

import sys

from sweeprof.errors import UserError
from sweeprof.sweep.artifacts import observed, write_artifacts
from sweeprof.sweep.finish import title_of
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.plan import Plan
from sweeprof.sweep.queued import stored_tracker
from sweeprof.sweep.tracker import TrackerProcess, sending_s


def send_shard(folder: Folder, plan: Plan, shard: int) -> None:
    """Send a shard's combinations, if jobs are to; what goes wrong is printed, for the head sends what is missing in the end."""
    # A job runs the code of the plan, and was submitted by the user who gave this address: the folder is trusted here.
    try:
        stored = stored_tracker(folder, "tracking.uri", trust=True)
    except (UserError, OSError):
        return
    if stored.config.get("writer") != "job":
        return
    ids = plan.shards[shard]
    for id in ids:
        write_artifacts(folder, id, observed(folder, id), title_of(plan, plan.combination(id)))
    with TrackerProcess(stored, folder, trust=True) as tracker:
        tracker.add(ids, sending_s(plan))
        if tracker.trouble:
            print(f"not sent by this job: {tracker.trouble}", file=sys.stderr)
