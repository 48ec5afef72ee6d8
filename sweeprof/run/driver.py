"""The driver of a sweep: runs a plan and writes a folder with its comparison, even if single trials fail.

folder ▶ shards run, and the tracker opens meanwhile ▶ reports ▶ table ▶ tracker closes ▶ three lines
"""

from __future__ import annotations

import logging
import os
import shlex
import threading
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from sweeprof.cluster.job_tracker import Detached
from sweeprof.errors import ExitCode, Problem, SweeprofError, UserError
from sweeprof.metrics.select import needs_trust
from sweeprof.plan.plan import Plan
from sweeprof.processes import heard_by_the_main_thread, terminable
from sweeprof.report.terminal import Report
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.environment import capture
from sweeprof.results.files import unwritable, write_json
from sweeprof.results.record import Json
from sweeprof.run.comparison import comparison_of
from sweeprof.run.launchers import Launch, error_line, launch_shards
from sweeprof.run.locks import driver_lock, report_lock, warn_of_oversubscription
from sweeprof.run.progress import ProgressDisplay, tell
from sweeprof.run.reports import ClusterReports, keep_baseline, sent_to, write_reports
from sweeprof.run.stopping import begin_budget
from sweeprof.run.tracker_process import (
    StoredTracker,
    TrackerProcess,
    keep_config,
    note_ending,
    sending_command,
    shown_at,
)
from sweeprof.storage import Folder, stamp_of
from sweeprof.tracking import Links, SweepOutcome

OPENED_S = 30.0
"""How long a sweep that does not wait for its jobs waits for its tracker to open."""
SENDING_S = 600.0
"""Maximum time for sending to the tracker after the last measurement; ``sweeprof sync`` sends the rest."""
EXPLAINED_AFTER_S = 5.0

log = logging.getLogger(__name__)


def run(plan: Plan, output: Path, tracking: Json, launch: Launch, out: Console, live: Console) -> int:
    """Measure the plan in a new folder; ``out`` gets the tables, ``live`` the progress. Returns the exit code.

    Raises:
        UserError: the output folder cannot be written.
    """
    folder = _new_folder(output, plan)
    try:
        with driver_lock(folder.path):
            write_json(folder.environment, capture())
            write_json(folder.plan, plan.to_dict())
            return measure_missing(folder, plan, StoredTracker(tracking, confined=False), launch, out, live)
    except OSError as error:
        return disk_failure(folder, error, live)


def measure_missing(
    folder: Folder,
    plan: Plan,
    tracking: StoredTracker,
    launch: Launch,
    out: Console,
    live: Console,
    trust: bool = True,
) -> int:
    """Measure the trials that have no record, write the reports and send them; returns the exit code.

    The caller has the driver lock.

    Args:
        trust: whether code of the plan may run: true if the plan is the user's own, or is to be measured.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    tell({"folder": str(folder.path)})
    begin_budget(folder, plan)
    keep_config(folder, tracking.config)
    keep_baseline(folder, plan, trust)
    warn_of_oversubscription(plan, live)
    with heard_by_the_main_thread(), terminable(), TrackerProcess(tracking, folder, trust) as tracker:
        tracker.open(plan, partial(_warn_of_tracking, live))
        try:
            with sent_to(tracker.show):
                missing, interrupted = _measure(plan, folder, launch, live)
        except Detached as detached:
            return _detached(folder, plan, str(detached), out, tracker.opened(OPENED_S), trust)
        for change in folder.repair_all():
            live.print(Text(f"a trial changed the sweep's folder: {change}", style="yellow"), soft_wrap=True)
        folder.check_exists()
        with report_lock(folder.path):
            comparison = comparison_of(folder, missing, trust=trust)
            code = exit_code(comparison, plan.budget is not None)
            if interrupted:
                code = ExitCode.INTERRUPTED
            report = write_reports(folder, comparison)
        with suppress(SystemExit, BrokenPipeError):  # the output is closed, as with `| head`
            out.print(Report(comparison, folder.path))
        note_ending(folder, ending_of(code), missing)
        links = None
        message = f"sending to the tracker, for at most {SENDING_S:g} s; Ctrl-C ends it and keeps everything"
        timer = threading.Timer(EXPLAINED_AFTER_S, live.print, [Text(message)], {"soft_wrap": True})
        timer.daemon = True
        timer.start()
        try:
            links = tracker.close(ending_of(code), SENDING_S)
        except KeyboardInterrupt:  # everything is on disk
            code, tracker.trouble = ExitCode.INTERRUPTED, "interrupted before everything was sent"
        finally:
            timer.cancel()
    with suppress(SystemExit, BrokenPipeError):
        out.print()
        _print_line(out, "Report", str(report))
        if links:
            _print_line(out, *shown_at(folder, links))
        if tracker.trouble:
            command = f"{sending_command(folder)}{_trust_option(plan)}"
            _print_line(out, "Not sent", f"{tracker.trouble}; send it with: {command}")
        if code != ExitCode.OK:
            _print_line(out, "Resume", _resume_command(folder))
    return code


def _print_line(out: Console, name: str, value: str) -> None:
    out.print(Text.assemble((f"{name:<11}", "bold"), value), soft_wrap=True)
    tell({"name": name, "value": value})


def _warn_of_tracking(live: Console, trouble: str) -> None:
    message = f"tracking: {trouble}; everything is sent after the last measurement"
    live.print(Text(message, style="yellow"), soft_wrap=True)


def disk_failure(folder: Folder, error: OSError, live: Console) -> int:
    """Print what to do about a folder that cannot be written any longer, and return the exit code; raises any other error."""
    why = unwritable(error, folder.path)
    if why is None:
        raise error
    following = "start the sweep again"
    if os.path.lexists(folder.plan):
        following = f"resume with: {_resume_command(folder)}"
    if why == "was removed":
        message = f"{folder.path} was removed or unmounted while it was measured: {following}"
    else:
        first = "make room" if why == "is full" else "make it writable"
        message = f"the disk of {folder.path} {why}: {first}, then {following}"
    live.print(Text(message, style="red"), soft_wrap=True)
    return ExitCode.INCOMPLETE


def _trust_option(plan: Plan) -> str:
    """Return the option that later commands need for the sweep's metrics: code outside of sweeprof is imported only on request."""
    return " --trust" if needs_trust(plan.metrics) else ""


def _detached(folder: Folder, plan: Plan, running: str, out: Console, links: Links | None, trust: bool) -> int:
    """Print the state of a sweep that does not wait for its jobs; returns the exit code."""
    if any(folder.records.glob("*/*.json")):
        with report_lock(folder.path):
            comparison = comparison_of(folder, "it has not begun yet", running=True, trust=trust)
            write_reports(folder, comparison)
        with suppress(SystemExit, BrokenPipeError):
            out.print(Report(comparison, folder.path))
            out.print()
    _print_line(out, "Running", running)
    _print_line(out, "Collect", shlex.join(["sweeprof", "collect", str(folder.path)]) + _trust_option(plan))
    if links:
        _print_line(out, *shown_at(folder, links))
    return ExitCode.RUNNING


def _resume_command(folder: Folder) -> str:
    return shlex.join(["python", "-m", "sweeprof", f"resume={folder.path}"])


def _new_folder(output: Path, plan: Plan) -> Folder:
    """Create ``<output>/<name>/<stamp>``; two sweeps of the same second get different folders."""
    stamp = stamp_of(plan.created)
    for number in range(1, 1000):
        path = output / plan.name / stamp
        if number > 1:
            path = path.with_name(f"{stamp}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not path.is_dir():
                raise UserError([Problem("output", str(output), "is not a folder.")]) from None
            continue
        except OSError as error:
            reason = f"cannot be written: {error.strerror}; choose another folder with output=PATH."
            raise UserError([Problem("output", str(output), reason)]) from None
        return Folder(path)
    raise UserError([Problem("output", str(output), "already has a thousand sweeps of this second.")])


def _measure(plan: Plan, folder: Folder, launch: Launch, live: Console) -> tuple[str, bool]:
    """Launch the shards; returns why trials may have no record, and whether the user interrupted the sweep."""
    if not plan.shards:
        return "nothing was planned for it", False
    try:
        with ProgressDisplay(plan, folder, live), ClusterReports(folder) if plan.cluster else nullcontext():
            launch_shards(plan, folder, launch, live)
    except (Detached, UserError):
        raise
    except KeyboardInterrupt:
        if not plan.cluster:
            folder.stop_because("an interrupt")  # for jobs that do not end with this process
        live.print(Text("interrupted: complete measurements are kept", style="yellow"), soft_wrap=True)
        return "interrupted before it was measured", True
    except Exception as error:  # a launcher may fail in any way; what was measured is on disk
        if unwritable(error, folder.path):
            raise
        if not isinstance(error, SweeprofError):  # sweeprof's own errors need no traceback, as when sbatch refuses
            log.exception("the launcher failed")
        live.print(Text(f"the launcher failed: {error_line(error)}", style="red"), soft_wrap=True)
        if folder.stopped() is None and not plan.cluster:
            folder.stop_because("a launcher that failed")  # for jobs that still wait in a queue
        return f"its shard ended before it was measured ({error_line(error)})", False
    stopped = folder.stopped()
    if stopped is not None:
        live.print(Text(f"stopped by {stopped}", style="yellow"), soft_wrap=True)
        return f"stopped by {stopped}", False
    return "its shard ended before it was measured", False


def exit_code(comparison: Comparison, is_limited: bool) -> int:
    """Return the exit code; ``is_limited``: the time of the sweep is limited, so that a search may have fewer trials."""
    search, rows = comparison.search, comparison.rows
    if search is None:
        is_complete = all(row.is_fully_measured for row in rows)
    else:
        left = search.combinations - search.too_large - len(rows)
        is_enough = is_limited or left <= 0 or len(rows) >= search.trials
        # Running out of memory is a valid result of a search.
        is_complete = bool(rows) and is_enough and all(row.is_fully_measured or row.status == "oom" for row in rows)
    return ExitCode.OK if is_complete else ExitCode.INCOMPLETE


def ending_of(code: int) -> SweepOutcome:
    """Return how a sweep ended that has this exit code."""
    endings: dict[int, SweepOutcome] = {ExitCode.OK: "finished", ExitCode.INTERRUPTED: "interrupted"}
    return endings.get(code, "failed")
