"""The content of a tracker's run for a whole sweep, as plain data; reads nothing but the sweep's ``comparison.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sweeprof.credentials import without_credentials
from sweeprof.report.answer import answer
from sweeprof.report.cells import axis_text, one_line, shortened
from sweeprof.report.columns import baseline_text
from sweeprof.report.markdown import escaped
from sweeprof.report.units import fixed_key
from sweeprof.results.compare import Comparison
from sweeprof.results.environment import user_name
from sweeprof.results.record import Record
from sweeprof.tracking import SweepInfo, SweepOutcome
from sweeprof.tracking.descriptions import baseline_names, capped, description
from sweeprof.tracking.inputs import dataset_inputs
from sweeprof.tracking.ratios import RATIOS, Ratios
from sweeprof.tracking.runs import NAME_LIMIT, PARAM_LIMIT, RunContent, RunStatus, milliseconds, run_name, time_span
from sweeprof.tracking.tables import safe_key, tracked_keys
from sweeprof.tracking.views import (
    HEADLINES,
    HISTORY,
    NOTE,
    TREND,
    ViewOf,
    newest_view,
    run_address,
    view_address,
    view_tags,
)
from sweeprof.tracking.views import links as view_links

if TYPE_CHECKING:
    from mlflow.entities import Run

_EXPERIMENT_NOTE = "Sweeps measured by sweeprof"
"""Begins the description of an experiment; one that somebody has written begins otherwise, and stays."""
_EXPECTED = ("latency/forward", "memory/added_bytes", "throughput/samples_per_s", "quality/accuracy")
"""What most sweeps measure."""
_SETTINGS = ("mode", "inputs", "dataset", "protocol", "seed")
"""Beginnings of the keys of settings that are parameters of a sweep."""
PARAMS_TAG = "sweeprof.params"
"""The keys of the sweep's parameters, one a line: others that its run has are somebody else's."""
_STATUS: dict[SweepOutcome, RunStatus] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


def sweep_info(comparison: Comparison) -> SweepInfo:
    """Return the properties of the sweep that were known when it began."""
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
        "mlflow.user": user_name() or "",
        "mlflow.source.name": capped(sweep.command),
        "mlflow.source.type": "LOCAL",
        NOTE: f"{sweep.combinations} combinations are being measured.",
    }
    start = milliseconds(sweep.created)
    return RunContent(run_title(sweep), start, start, "FINISHED", {k: text for k, text in tags.items() if text}, {}, {})


def sweep_content(
    comparison: Comparison,
    records: Sequence[Record],
    folder: Path,
    ending: SweepOutcome,
    experiment_id: str,
    parent: Run,
    history_id: str | None = None,
) -> RunContent:
    """The sweep's run with what came out.

    Args:
        folder: of ``comparison.md``.
        parent: the sweep's run.
        history_id: of the experiment with the history of its combinations.
    """
    before, found = opened(sweep_info(comparison)), answer(comparison)
    report = folder / "comparison.md"
    markdown = report.read_text(encoding="utf-8") if report.is_file() else f"**{found}**"
    links = view_links(experiment_id, final_view(comparison, parent.info.run_id))
    if history_id is not None:
        links.append(f"[history]({view_address('', history_id, HISTORY, TREND)})")
    note = description(markdown, f"Compare as {' · '.join(links)}", baseline_names(parent.data.tags))
    params = sweep_params(comparison)
    tags = {**before.tags, NOTE: note, "answer": capped(str(found))}
    tags |= {"sweeprof.baseline": capped(baseline_text(comparison)), PARAMS_TAG: capped("\n".join(params))}
    if found.confidence:
        tags["confidence"] = found.confidence
    revision = (comparison.environment.get("git") or {}).get("revision")
    if revision:
        tags["mlflow.source.git.commit"] = capped(str(revision))
    counts = {"combinations_ok": float(comparison.counts()["ok"]), "combinations_total": float(len(comparison.rows))}
    _, end = time_span(comparison, records)
    inputs = dataset_inputs(record.config for record in records)
    return RunContent(before.name, before.start_ms, end, _STATUS[ending], tags, params, counts, None, inputs)


def sweep_params(comparison: Comparison) -> dict[str, str]:
    """The parameters of the sweep's run: each axis with its values, and settings that all combinations have in common."""
    params = {}
    for axis in comparison.axes:
        values = dict.fromkeys(axis_text(row.axes[axis]) for row in comparison.rows if axis in row.axes)
        params[safe_key(axis)] = shortened(", ".join(values), PARAM_LIMIT)
    for key, value in comparison.settings.items():
        if key.partition(".")[0] in _SETTINGS and value not in (None, "", {}, []):
            params.setdefault(safe_key(key), shortened(without_credentials(axis_text(value)), PARAM_LIMIT))
    return params


def experiment_tags(of: ViewOf, experiment_id: str, there: Mapping[str, str]) -> dict[str, str]:
    """The tags of the experiment: the views of a sweep and, unless ``there`` are those of a newer one, what it says of itself."""
    tags = view_tags(of)
    if of.created_ms < newest_view(there):
        return tags
    if of.headlines:
        tags["mlflow.experiment.primaryMetric.name"] = of.keys[of.headlines[0]]
    if there.get(NOTE, _EXPERIMENT_NOTE).startswith(_EXPERIMENT_NOTE):
        sweep, links = run_address("", experiment_id, of.parent_id), " · ".join(view_links(experiment_id, of))
        # One line: the page shows no more unless it is asked.
        tags[NOTE] = f"{_EXPERIMENT_NOTE}; the newest is [{escaped(of.title)}]({sweep}): {links}"
    return tags


def first_view(sweep: SweepInfo, parent_id: str) -> ViewOf:
    """The view before it is known which metrics there will be."""
    keys = {name: fixed_key(name, HEADLINES[name]) for name in _EXPECTED}
    axes = {safe_key(axis): 0 for axis in sweep.axes}
    created = milliseconds(sweep.created)
    return ViewOf(sweep.sweep_id, run_title(sweep), parent_id, created, axes, keys, f"{RATIOS}latency")


def final_view(comparison: Comparison, parent_id: str) -> ViewOf:
    """The view of what was measured: an axis with one value needs no column."""
    sweep = sweep_info(comparison)
    axes = {
        safe_key(axis): max((len(axis_text(row.axes.get(axis))) for row in comparison.rows), default=0)
        for axis in comparison.varying_axes() or comparison.axes
    }
    return ViewOf(
        sweep.sweep_id,
        run_title(sweep),
        parent_id,
        milliseconds(sweep.created),
        axes,
        tracked_keys(comparison),
        Ratios(comparison).main_key(comparison.rows),
        max((len(run_name(comparison, row)) for row in comparison.rows), default=0),
        failures=any(row.status != "ok" for row in comparison.rows),
    )
