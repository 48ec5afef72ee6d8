"""The head of a sweep: from a plan to a folder with its comparison, whatever happens to single trials.

check ▶ folder ▶ shards run, beside them the tracker opens ▶ reports ▶ table ▶ tracker closes ▶ three lines
"""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from sweeprof.errors import Problem, SweeprofError, UserError
from sweeprof.metrics.select import needs_trust
from sweeprof.report.terminal import Report
from sweeprof.results.compare import Comparison
from sweeprof.results.environment import capture
from sweeprof.results.files import unwritable, write_json
from sweeprof.results.record import Json
from sweeprof.sweep.again import Launch, launched, words
from sweeprof.sweep.baseline import keep_baseline
from sweeprof.sweep.cluster.launch import Detached
from sweeprof.sweep.crowding import warn_of_crowding
from sweeprof.sweep.finish import comparison_of, write_reports
from sweeprof.sweep.folder import Folder, stamp_of
from sweeprof.sweep.hold import heading, reporting
from sweeprof.sweep.interrupts import heard_by_the_main_thread, terminable
from sweeprof.sweep.plan import Plan
from sweeprof.sweep.progress import ProgressDisplay
from sweeprof.sweep.queued import StoredTracker, keep_config, note_ending, sending_command, viewing_command
from sweeprof.sweep.tracker import TrackerProcess, sending_s
from sweeprof.tracking import Ending, Links

EXIT_OK, EXIT_SOME_FAILED, EXIT_INTERRUPTED = 0, 2, 130
OPENED_S = 30.0
"""How long a sweep whose jobs are not waited for waits for its tracker to open."""
EXPLAINED_AFTER_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sweep ended."""

    folder: Path
    exit_code: int
    running: bool = False
    """Whether jobs of a cluster go on with it."""


def run(plan: Plan, output: Path, tracking: Json, launch: Launch, out: Console, live: Console) -> Outcome:
    """Measure the plan in a new folder; ``out`` gets the tables, ``live`` the progress.

    Raises:
        UserError: the output folder cannot be written.
    """
    folder = _new_folder(output, plan)
    try:
        with heading(folder.path):
            write_json(folder.path / "environment.json", capture())
            write_json(folder.plan, plan.to_dict())
            return go_on(folder, plan, StoredTracker(tracking, confined=False), launch, out, live)
    except OSError as error:
        return halted(folder, error, live)


def go_on(
    folder: Folder,
    plan: Plan,
    tracking: StoredTracker,
    launch: Launch,
    out: Console,
    live: Console,
    trust: bool = True,
) -> Outcome:
    """Measure what has no record yet; the caller is the folder's head.

    Args:
        trust: whether code of the plan may run: it may where the plan is the user's own, or is to be measured.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    keep_config(folder, tracking.config)
    keep_baseline(folder, plan, trust)
    warn_of_crowding(plan, live)
    with heard_by_the_main_thread(), terminable(), TrackerProcess(tracking, folder, trust) as tracker:
        tracker.open(plan, partial(_warn_of_tracking, live))
        try:
            missing, interrupted = _measure(plan, folder, launch, live)
        except Detached as detached:
            return _left(folder, plan, str(detached), out, tracker.opened(OPENED_S), trust)
        with reporting(folder.path):
            comparison = comparison_of(folder, missing, trust=trust)
            report = write_reports(folder, comparison)
        with suppress(SystemExit, BrokenPipeError):  # nobody reads on, as with `| head`
            out.print(Report(comparison, folder.path))
        code = EXIT_INTERRUPTED if interrupted else _exit_code(comparison)
        note_ending(folder, _ending(code), missing)
        links = None
        try:
            with _explained(live, sending_s(plan)):
                links = tracker.close(_ending(code), missing, sending_s(plan))
        except KeyboardInterrupt:  # everything is on disk; what is left is to say so
            code, tracker.trouble = EXIT_INTERRUPTED, "interrupted before everything was sent"
    with suppress(SystemExit, BrokenPipeError):
        _print_links(out, folder, report, links)
        if tracker.trouble:
            said = f"{tracker.trouble}; send it with: {sending_command(folder)}{_trusting(plan)}"
            out.print(Text.assemble((f"{'Not sent':<11}", "bold"), said), soft_wrap=True)
        if code != EXIT_OK:
            out.print(Text.assemble((f"{'Go on':<11}", "bold"), _resuming(folder)), soft_wrap=True)
    return Outcome(folder.path, code)


def _warn_of_tracking(live: Console, trouble: str) -> None:
    said = f"tracking: {trouble}; everything is sent when it is measured"
    live.print(Text(said, style="yellow"), soft_wrap=True)


@contextmanager
def _explained(live: Console, limit_s: float) -> Iterator[None]:
    """Say what is waited for where sending takes a while."""
    said = f"sending to the tracker, for at most {limit_s:g} s (limits.tracking_s); Ctrl-C ends it and keeps everything"
    timer = threading.Timer(EXPLAINED_AFTER_S, live.print, [Text(said)], {"soft_wrap": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def halted(folder: Folder, error: OSError, live: Console) -> Outcome:
    """What becomes of a sweep whose disk is full or cannot be written: a line that says what to do. Raises any other error."""
    why = unwritable(error, folder.path)
    if why is None:
        raise error
    first = "make room" if why == "is full" else "make it writable"
    then = f"go on with: {_resuming(folder)}" if folder.plan.is_file() else "start the sweep again"
    said = f"the disk of {folder.path} {why}: {first}, then {then}"
    live.print(Text(said, style="red"), soft_wrap=True)
    return Outcome(folder.path, EXIT_SOME_FAILED)


def _trusting(plan: Plan) -> str:
    """What a later command needs to show the sweep's metrics: some are code that is not imported for just any folder."""
    return " --trust" if needs_trust(plan.metrics) else ""


def _left(folder: Folder, plan: Plan, running: str, out: Console, links: Links | None, trust: bool) -> Outcome:
    """What becomes of a sweep whose jobs are not waited for."""
    collect = shlex.join(["python", "-m", "sweeprof.collect", str(folder.path)]) + _trusting(plan)
    if any(folder.records.glob("*/*.json")):
        with reporting(folder.path):
            comparison = comparison_of(folder, "its turn has not come yet", running=True, trust=trust)
            write_reports(folder, comparison)
        with suppress(SystemExit, BrokenPipeError):
            out.print(Report(comparison, folder.path))
            out.print()
    lines = [("Running", running), ("Collect", collect), *([("Compare", links.comparison)] if links else [])]
    for name, value in lines:
        out.print(Text.assemble((f"{name:<11}", "bold"), value), soft_wrap=True)
    return Outcome(folder.path, EXIT_OK, running=True)


def _resuming(folder: Folder) -> str:
    return shlex.join(["python", "-m", "sweeprof", f"resume={folder.path}"])


def _new_folder(output: Path, plan: Plan) -> Folder:
    """``<output>/<name>/<stamp>``, which did not exist before; two sweeps of one second get different folders."""
    stamp = stamp_of(plan.created)
    for suffix in ("", *(f"-{i}" for i in range(2, 1000))):
        path = output / plan.name / (stamp + suffix)
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
    raise UserError([Problem("output", str(output), "holds a thousand sweeps of this second.")])


def _measure(plan: Plan, folder: Folder, launch: Launch, live: Console) -> tuple[str, bool]:
    """Launch the shards; returns what to say of trials that were not run, and whether the user ended the sweep."""
    if not plan.shards:
        return "nothing was planned for it", False
    try:
        with ProgressDisplay(plan, folder, live):
            launched(plan, folder, launch, live)
    except (Detached, UserError):
        raise
    except KeyboardInterrupt:
        if not plan.cluster:
            folder.stop_because("an interrupt")  # for jobs that do not end with this process
        live.print(Text("interrupted: what was measured is kept", style="yellow"), soft_wrap=True)
        return "interrupted before it was measured", True
    except Exception as error:  # a launcher may fail in any way; what was measured is on disk
        if unwritable(error, folder.path):
            raise
        if not isinstance(error, SweeprofError):  # ours mean what they say, as when sbatch refuses
            log.exception("the launcher failed")
        live.print(Text(f"the launcher failed: {words(error)}", style="red"), soft_wrap=True)
        if folder.stopped() is None and not plan.cluster:
            folder.stop_because("a launcher that failed")  # for jobs that still wait in a queue
        return f"its shard ended before it was measured ({words(error)})", False
    stopped = folder.stopped()
    if stopped is not None:
        live.print(Text(f"stopped by {stopped}", style="yellow"), soft_wrap=True)
        return f"stopped by {stopped}", False
    return "its shard ended before it was measured", False


def _exit_code(comparison: Comparison) -> int:
    return EXIT_OK if all(row.is_fully_measured for row in comparison.rows) else EXIT_SOME_FAILED


def _ending(code: int) -> Ending:
    endings: dict[int, Ending] = {EXIT_OK: "finished", EXIT_INTERRUPTED: "interrupted"}
    return endings.get(code, "failed")


def _print_links(out: Console, folder: Folder, report: Path, links: Links | None) -> None:
    out.print()
    lines = [("Report", str(report))]
    if links and links.needs_viewer:
        lines.append(("MLflow UI", viewing_command(folder)))
    if links:
        lines.append(("Compare", links.comparison))
    for name, value in lines:
        out.print(Text.assemble((f"{name:<11}", "bold"), value), soft_wrap=True)
