"""What a sweep as a whole leaves in a tracker, as plain data; reads nothing but the sweep's ``comparison.md``."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from pathlib import Path

from sweeprof.report.cells import axis_text, one_line, shortened
from sweeprof.report.summary import headline
from sweeprof.report.units import fixed_key
from sweeprof.results.compare import Comparison
from sweeprof.results.record import Record
from sweeprof.tracking import Ending, SweepInfo
from sweeprof.tracking.credentials import without_credentials
from sweeprof.tracking.keys import metric_keys, safe_key
from sweeprof.tracking.runs import (
    NAME_LIMIT,
    TAG_LIMIT,
    RunContent,
    RunStatus,
    capped,
    milliseconds,
    time_span,
)
from sweeprof.tracking.views import HEADLINES, KINDS, ViewOf, view_address

_STATUS: dict[Ending, RunStatus] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


def sweep_info(comparison: Comparison) -> SweepInfo:
    """What was known of the sweep when it began."""
    c = comparison
    return SweepInfo(c.sweep_id, c.name, c.command, c.created, c.axes, len(c.rows))


def experiment_name(sweep_name: str) -> str:
    """The experiment that takes all sweeps of a name; an empty name would be refused."""
    return shortened(one_line(sweep_name), NAME_LIMIT) or "sweeprof"


def run_title(sweep: SweepInfo) -> str:
    """Name of the sweep's run, e.g. ``quickstart 2026-11-21 00:30``."""
    return f"{shortened(experiment_name(sweep.name), NAME_LIMIT - 20)} {sweep.created[:16].replace('T', ' ')}"


def opened(sweep: SweepInfo) -> RunContent:
    """The sweep's run before anything is measured."""
    tags = {
        "sweeprof.kind": "sweep",
        "sweeprof.sweep_id": sweep.sweep_id,
        "mlflow.user": _user(),
        "mlflow.source.name": capped(sweep.command),
        "mlflow.source.type": "LOCAL",
        "mlflow.note.content": f"{sweep.combinations} combinations are being measured.",
    }
    start = milliseconds(sweep.created)
    return RunContent(run_title(sweep), start, start, "FINISHED", {k: text for k, text in tags.items() if text}, {}, {})


def sweep_content(
    comparison: Comparison, records: Sequence[Record], folder: Path, ending: Ending, experiment_id: str
) -> RunContent:
    """The sweep's run with what came out; ``folder`` is where ``comparison.md`` is."""
    before = opened(sweep_info(comparison))
    report = folder / "comparison.md"
    markdown = report.read_text(encoding="utf-8") if report.is_file() else f"**{headline(comparison)}.**"
    links = " · ".join(f"[{kind}]({view_address('', experiment_id, comparison.sweep_id, kind)})" for kind in KINDS)
    revision = (comparison.environment.get("git") or {}).get("revision")
    tags = {**before.tags, "mlflow.note.content": description(markdown, f"Compare as {links}")}
    if revision:
        tags["mlflow.source.git.commit"] = capped(str(revision))
    counts = {"combinations_ok": float(comparison.counts()["ok"]), "combinations_total": float(len(comparison.rows))}
    _, end = time_span(comparison, records)
    return RunContent(before.name, before.start_ms, end, _STATUS[ending], tags, {}, counts)


def description(markdown: str, links: str) -> str:
    """A report of any length as a description: its headline, ``links``, and as many whole lines as fit."""
    head, _, rest = without_credentials(markdown).strip().partition("\n\n")
    # Links on a line of their own would lie below the veil that MLflow draws over a folded description.
    text = f"{head} {links}\n\n{rest}".strip()
    if len(text) <= TAG_LIMIT:
        return text
    ending = "\n\n… the rest is in the artifact comparison.md"
    kept = text[: TAG_LIMIT - len(ending)]
    return (kept.rpartition("\n")[0] or kept) + ending


def first_view(sweep: SweepInfo, parent_id: str) -> ViewOf:
    """The view before it is known which metrics there will be."""
    keys = {name: fixed_key(name, unit) for name, unit in HEADLINES.items()}
    axes = {safe_key(axis): 0 for axis in sweep.axes}
    return ViewOf(sweep.sweep_id, run_title(sweep), parent_id, milliseconds(sweep.created), axes, keys)


def final_view(comparison: Comparison, parent_id: str) -> ViewOf:
    """The view of what was measured: an axis with one value needs no column."""
    sweep = sweep_info(comparison)
    axes = {
        safe_key(axis): max((len(axis_text(row.axes.get(axis))) for row in comparison.rows), default=0)
        for axis in comparison.varying_axes() or comparison.axes
    }
    keys, failures = metric_keys(comparison.metrics), any(row.status != "ok" for row in comparison.rows)
    return ViewOf(sweep.sweep_id, run_title(sweep), parent_id, milliseconds(sweep.created), axes, keys, failures)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user id may have no name.
        return ""
