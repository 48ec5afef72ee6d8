"""``sweeprof compare BASE NEW``: show what changed from one sweep to another; the check of nightly sweeps."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Sequence

from sweeprof.cli.common import add_output, add_trust, output_file, sweep_folder
from sweeprof.errors import ExitCode, Problem, UserError, choice_problem
from sweeprof.paths import expanded_address
from sweeprof.report.changes import KINDS, Changes, changes_headline, changes_of, junit, markdown, print_changes
from sweeprof.report.columns import independent_metrics, shown_metrics
from sweeprof.results.compared_rows import Comparison, set_against
from sweeprof.results.constraints import metric_names
from sweeprof.results.files import write_atomically, write_json
from sweeprof.results.measurement import MetricInfo
from sweeprof.run.reports import SweepLocations, located, read_sweep, set_tag
from sweeprof.text import console

PIPED_WIDTH = 160
"""Columns of the output where it is not a terminal, as in a log."""
EPILOG = "BASE and NEW: a sweep's folder, a comparison.json, last, last~1, NAME/last, tag:NAME, mlflow:RUN_ID.\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = EPILOG
    parser.add_argument("base", metavar="BASE", help="the sweep to compare with, or with --tag alone the one to tag")
    parser.add_argument("new", metavar="NEW", nargs="?", help="the sweep to compare")
    parser.add_argument(
        "--fail-on", metavar="KIND", help=f"exit with 3 on any of: {', '.join(KINDS)}; separate several by commas"
    )
    parser.add_argument(
        "--metric", metavar="NAME", action="append", default=[], help="compare only this metric; repeatable"
    )
    parser.add_argument(
        "--threshold",
        metavar="SHARE",
        action="append",
        default=[],
        help="0.03 or 3%% for all, latency=3%% for one; repeatable",
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the comparison, with its changes")
    parser.add_argument("--markdown", type=output_file, metavar="FILE", help="also write what is printed as Markdown")
    parser.add_argument(
        "--junit",
        type=output_file,
        metavar="FILE",
        help="also write a JUnit report; failures are the kinds of --fail-on, by default worse",
    )
    parser.add_argument(
        "--tag", metavar="NAME", help="tag NEW as tag:NAME, unless --fail-on fails, or BASE if NEW is not given"
    )
    add_trust(parser)
    add_output(parser)
    parser.add_argument(
        "--uri", metavar="ADDRESS", help="address of MLflow (default: MLFLOW_TRACKING_URI, else OUTPUT/mlflow.db)"
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Run the subcommand; return the exit code."""
    uri = expanded_address(options.uri) if options.uri else os.environ.get("MLFLOW_TRACKING_URI")
    place = SweepLocations(options.output.absolute(), uri)
    kinds = [kind.strip() for kind in options.fail_on.split(",")] if options.fail_on is not None else []
    problems = [choice_problem("--fail-on", kind, "kind of change", KINDS) for kind in kinds if kind not in KINDS]
    if problems:
        raise UserError(problems)
    if options.new is None:
        if not options.tag:
            raise UserError("NEW is missing: the sweep to compare; see sweeprof compare --help")
        _tag(options.tag, options.base, "BASE", place)
        return ExitCode.OK
    base = read_sweep(located(options.base, place, "BASE"), options.base, "BASE", options.trust)
    new = read_sweep(located(options.new, place, "NEW"), options.new, "NEW", options.trust)
    compared = set_against(_with_thresholds(new, options.threshold), base, options.base)
    metrics = _metrics(options.metric, new, base)
    if new == base:  # a nightly check that compares a sweep with itself would succeed every night
        message = f"is the same sweep as BASE ({options.base}), in which nothing can have changed: name two sweeps."
        raise UserError([Problem("NEW", options.new, message)])
    assert compared.against is not None
    absent: list[MetricInfo] = []
    if not options.metric:
        shown = {info.name for info in shown_metrics(base)}
        absent = [info for info in compared.against.absent_metrics if info.name in shown]
    against = dataclasses.replace(compared.against, absent_metrics=tuple(absent))
    compared = dataclasses.replace(compared, against=against)
    # The rows with the cells of these metrics, so that only their tests are counted.
    names = {info.name for info in metrics}
    rows = []
    for row in compared.rows:
        cells = {name: cell for name, cell in row.cells.items() if name in names}
        rows.append(dataclasses.replace(row, cells=cells))
    counted = dataclasses.replace(compared, metrics=tuple(metrics), rows=tuple(rows))
    changes = changes_of(counted, metrics)
    _write(options, kinds, compared, changes, junit(changes, counted, kinds or ["worse"]))
    if changes.of(kinds):
        if options.tag:
            print(f"tag:{options.tag} is not set, because of the changes that --fail-on names")
        return ExitCode.CHANGED
    if options.tag:
        _tag(options.tag, options.new, "NEW", place)
    return ExitCode.OK


def _metrics(given: Sequence[str], new: Comparison, base: Comparison) -> list[MetricInfo]:
    """Return the metrics to compare: those named, else those that the tables of either sweep show, as far as NEW measures them."""
    names, infos = metric_names(new.metrics), {info.name: info for info in new.metrics}
    if not given:  # of a metric that has no value any more, only the tables of BASE have a column
        shown = dict.fromkeys(info.name for info in (*shown_metrics(new), *shown_metrics(base)))
        return independent_metrics([infos[name] for name in shown if name in infos])
    problems = [choice_problem("--metric", name, "metric of NEW", names) for name in given if name not in names]
    if problems:
        raise UserError(problems)
    return [infos[names[name]] for name in dict.fromkeys(given)]


def _with_thresholds(new: Comparison, given: Sequence[str]) -> Comparison:
    """Return the comparison with the command line's thresholds; a threshold for all replaces those of single metrics."""
    names = metric_names(new.metrics)
    whole: float | None = None
    single: dict[str, float] = {}
    problems: list[Problem] = []
    for text in given:
        name, _, share = text.rpartition("=")
        try:
            value = float(share.removesuffix("%"))
        except ValueError:
            value = 0
        if share.endswith("%"):
            value /= 100
        if not 0 < value < 1:
            message = "is not a fraction between 0 and 1, such as 0.03, 3% or latency=3%."
            problems.append(Problem("--threshold", text, message))
        elif not name:
            whole = value
        elif name not in names:
            problems.append(choice_problem("--threshold", name, "metric of NEW", names))
        else:
            single[names[name]] = value
    if problems:
        raise UserError(problems)
    if whole is None:
        return dataclasses.replace(new, thresholds={**new.thresholds, **single})
    return dataclasses.replace(new, threshold=whole, thresholds=single)


def _write(
    given: argparse.Namespace, failing: Sequence[str], compared: Comparison, changes: Changes, report: str
) -> None:
    """Print the changes, and write them to the files that were asked for; ``report``: as a JUnit report."""
    title = f"{given.new} compared with {given.base}"
    try:  # before anything is printed: a program that reads the output, such as `head`, may close it
        if given.json:
            words = {"headline": changes_headline(changes), "answer": str(changes.answer)}
            data = {**compared.to_dict(), **dataclasses.asdict(changes), **words}
            write_json(given.json, data)
        if given.markdown:
            write_atomically(given.markdown, markdown(changes, title, failing))
        if given.junit:
            write_atomically(given.junit, report)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from None
    print_changes(changes, title, console(PIPED_WIDTH, highlight=False), failing)


def _tag(name: str, reference: str, key: str, place: SweepLocations) -> None:
    folder = located(reference, place, key)
    if not (folder / "plan.json").is_file():
        raise UserError([Problem(key, reference, "is not the folder of a sweep; only a folder can be tagged.")])
    sweep_id = sweep_folder(str(folder), place.output).read_plan().sweep_id
    trouble = set_tag(name, folder, sweep_id, place)
    note = f"; not in MLflow: {trouble}" if trouble else ""
    print(f"tag:{name} is {folder}{note}")
