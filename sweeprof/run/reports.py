"""The reports of a sweep, written into its folder: the page, tables, files of every combination; needs only the folder.

Also the sweeps that a reference names (``last``, ``tag:NAME``, ``mlflow:RUN_ID``), and the reports of a sweep that still runs.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict

from sweeprof.errors import Damaged, Problem, UserError, WorkerError, nearest
from sweeprof.paths import user_path
from sweeprof.plan.comparing import KEY as BASELINE_KEY
from sweeprof.plan.plan import Plan
from sweeprof.processes import NO_WORKING_DIRECTORY, NoAnswer, call
from sweeprof.report.changes import comparison_markdown
from sweeprof.report.csv import (
    Tidy,
    csv_chunks,
    csv_lines,
    csv_text,
    has_parquet,
    measurements,
    problems,
    rounds,
    samples,
    write_parquet,
)
from sweeprof.report.explore import room, thinned_samples
from sweeprof.report.html import Observed, details, html, prepare_html
from sweeprof.report.latex import TABLES, latex
from sweeprof.report.layer_formats import to_csv, to_html
from sweeprof.report.operators import operators_csv, tensors_csv
from sweeprof.report.services import benchmark_action, bmf
from sweeprof.report.table import ReportTable, tables
from sweeprof.results.compared_rows import Comparison, comparison_from, set_against
from sweeprof.results.environment import Peaks
from sweeprof.results.files import read_json, replacing, unwritable, validated, write_atomically, write_json
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.observations import Allocations, KernelRow, LayerMemory, Moment, Operators
from sweeprof.results.record import Json, PassName, Record
from sweeprof.run.comparison import comparison_of
from sweeprof.run.locks import report_lock
from sweeprof.storage import Folder, check_address, last_sweep, sweeps
from sweeprof.text import axes_text
from sweeprof.tracking.connection import ENVIRONMENT

KNOWN = (
    "is not a sweep. Known: a sweep's folder, a comparison.json, last, last~1 …, NAME/last, tag:NAME, mlflow:RUN_ID; "
    "of a sweep's own combinations an id such as c0123456789ab."
)
FETCH_S = 120.0
"""Time limit for MLflow, whose library takes seconds to import and whose server may be slow."""
_TAG = re.compile(r"\w[\w.\-]{0,99}", re.ASCII)


class Tag(TypedDict):
    """The file of a tag."""

    folder: str
    """Relative to the folder of all sweeps."""
    sweep_id: str


@dataclass(frozen=True, slots=True)
class SweepLocations:
    """Where sweeps are looked up."""

    output: Path
    """The folder of all sweeps."""
    uri: str | None = None
    """Of MLflow; None: the database below ``output``."""
    name: str | None = None
    """The name whose newest sweep is ``last``; None: of all names."""

    @property
    def tags(self) -> Path:
        """The folder of the tags: a file for each, which says where its sweep is."""
        return self.output / ".tags"

    @property
    def address(self) -> str | None:
        """Address of MLflow; None if it is unknown."""
        database = self.output.absolute() / "mlflow.db"
        return self.uri or (f"sqlite:///{database}" if database.exists() else None)


def located(reference: str, place: SweepLocations, key: str) -> Path:
    """Return the folder or the ``comparison.json`` of ``reference``; a sweep in MLflow is downloaded.

    Raises:
        UserError: there is none; ``key`` is the key or argument with the reference.
    """
    last = last_sweep(reference, place.output, key, place.name)
    if last is not None:
        return last.path
    kind, _, rest = reference.partition(":")
    if kind == "tag":
        return _tagged(rest, place, key)
    if kind == "mlflow":
        return _downloaded(rest, place, Problem(key, reference, ""))
    path = user_path(reference).absolute()
    if (path / "plan.json").is_file() or (path / "comparison.json").is_file() or path.is_file():
        return path
    words = {"last": "last", "last~1": "last~1"}
    for folder in sweeps(place.output):
        words[folder.path.name] = words[str(folder.path)] = str(folder.path)
    close = nearest(reference, list(words)) or nearest(Path(reference).name, list(words))
    raise UserError([Problem(key, reference, KNOWN, words[close] if close else None)])


def read_sweep(path: Path, reference: str, key: str, trust: bool = False) -> Comparison:
    """Return the comparison of a folder or a file that :func:`located` found.

    Args:
        trust: whether metrics outside sweeprof may be imported, which the plan of a folder without a comparison names.

    Raises:
        UserError: there is none in it, or none that this version reads.
    """
    file = path / "comparison.json" if path.is_dir() else path
    try:
        if not file.exists():  # of a sweep that was killed
            return comparison_of(Folder(path), trust=trust)
        return comparison_from(read_json(file))
    except (OSError, Damaged) as error:
        raise UserError([Problem(key, reference, f"cannot be read: {file}: {error}")]) from None


def set_tag(name: str, folder: Path, sweep_id: str, place: SweepLocations) -> str | None:
    """Tag the sweep in ``folder``, on disk and in MLflow; returns why the tag could not be set in MLflow.

    Raises:
        UserError: the name is invalid.
    """
    if not _TAG.fullmatch(name):
        message = "is not a tag: up to 100 letters of ASCII, digits, '.', '_' and '-', the first no '.' or '-'."
        raise UserError([Problem("--tag", name, message)])
    write_json(place.tags / name, {"folder": os.path.relpath(folder, place.output), "sweep_id": sweep_id})
    return _asked(place, {"tag": name, "sweep": sweep_id}) if place.address else None


def tagged(place: SweepLocations) -> dict[str, list[str]]:
    """Return the tags of a sweep, by its folder's true path and also by its id, as folders may be reached by several paths.

    Raises:
        UserError: a tag cannot be read.
    """
    found: dict[str, list[str]] = {}
    for file in sorted(place.tags.glob("[!.]*")):
        try:
            tag = validated(Tag, read_json(file))
            names = {str((place.output / tag["folder"]).resolve()), str(tag["sweep_id"])}
        except (OSError, Damaged) as error:
            message = f"is a tag that cannot be read: {error}; tag a sweep again, or remove the file."
            raise UserError([Problem(f"tag:{file.name}", str(file), message)]) from None
        for name in names:
            found.setdefault(name, []).append(f"tag:{file.name}")
    return found


MOST_SAVED = 5
"""Tagged sweeps that the page of another sweep offers as baselines."""


def against_saved(comparison: Comparison, folder: Path) -> list[Comparison]:
    """Return the comparison with each tagged sweep of the same name, in the order of the tags; unreadable ones are left out.

    Args:
        comparison: of the sweep in ``folder``, two levels below the folder of all sweeps.
        folder: its folder.
    """
    output = Folder(folder).output
    known = {comparison.sweep_id}
    if comparison.against:
        known.add(comparison.against.sweep_id)
    found: list[Comparison] = []
    for file in sorted(SweepLocations(output).tags.glob("[!.]*")):
        try:
            tag = validated(Tag, read_json(file))
            path = output / tag["folder"]
            if tag["sweep_id"] in known or path.parent.resolve() != folder.absolute().parent.resolve():
                continue
            compared = set_against(comparison, comparison_from(read_json(path / "comparison.json")), f"tag:{file.name}")
        except (OSError, Damaged):
            continue
        if len(found) < MOST_SAVED and any(row.baseline_id is not None for row in compared.rows):
            found.append(compared)
    return found


def _tagged(name: str, place: SweepLocations, key: str) -> Path:
    reference, file = f"tag:{name}", place.tags / name
    known = sorted(path.name for path in place.tags.glob("[!.]*"))
    message = f"is not a tagged sweep. Known: {', '.join(known) or 'none'}; tag one: sweeprof compare DIR --tag NAME."
    problem = Problem(key, reference, message, nearest(name, known))
    if not _TAG.fullmatch(name):
        raise UserError([problem])
    if file.is_file():
        try:
            folder = place.output / validated(Tag, read_json(file))["folder"]
        except (OSError, Damaged) as error:
            raise UserError([Problem(key, reference, f"is a tag that cannot be read: {error}.")]) from None
        if folder.is_dir():
            return folder
        problem = Problem(key, reference, f"names {folder}, which no longer exists; tag another with --tag {name}.")
    if place.address is None:
        raise UserError([problem])
    return _downloaded(reference, place, problem)


def _downloaded(run: str, place: SweepLocations, problem: Problem) -> Path:
    target = place.output.absolute() / ".baselines" / f"{re.sub(r'[^0-9A-Za-z]+', '-', run)[:100]}.json"
    if place.address is None:
        message = f"is not in MLflow: {place.output / 'mlflow.db'} does not exist; give the address with --uri or tracking.uri."
        raise UserError([Problem(problem.key, problem.value, message)])
    target.parent.mkdir(parents=True, exist_ok=True)
    trouble = _asked(place, {"run": run, "file": str(target)})
    if trouble is not None:
        raise UserError([Problem(problem.key, problem.value, problem.allowed or f"cannot be downloaded: {trouble}")])
    return target


def _asked(place: SweepLocations, question: Mapping[str, str]) -> str | None:
    """Query MLflow in a separate process, because its library is large; returns the error."""
    # An address may hold a password, which a command line would show to everyone.
    # Its requests may be repeated, unlike those of a tracker.
    own = {"MLFLOW_TRACKING_URI": str(place.address), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
    variables: Mapping[str, str] = {**os.environ, **ENVIRONMENT, **own, **NO_WORKING_DIRECTORY}
    try:
        error: str | None = call("sweeprof.tracking.runs:answered", question, variables, FETCH_S)["error"]
    except NoAnswer:
        return f"MLflow did not answer within {FETCH_S:g} s"
    except WorkerError as lost:
        return str(lost)
    return error


def keep_baseline(folder: Folder, plan: Plan, trust: bool = False) -> None:
    """Copy the other sweep's comparison, where there is one, into the folder, unless it is there already.

    Raises:
        UserError: it cannot be read, or the folder names a file that it may not.
    """
    against = plan.compare.against
    if against and not folder.baseline.exists():
        how = f"copy the comparison.json of that sweep to {folder.baseline}"
        check_address(folder, BASELINE_KEY, against.file, [], how, trust)
        other = read_sweep(Path(against.file), against.label, BASELINE_KEY, trust)
        write_json(folder.baseline, other.to_dict())


def find_baseline(output: Path, uri: str | None, text: str, name: str) -> Path:
    """Return the folder or the file of the sweep that ``compare.baseline=text`` means for a sweep called ``name``.

    Raises:
        UserError: it means none, or none that this version reads.
    """
    path = located(text, SweepLocations(output, uri, name), BASELINE_KEY)
    read_sweep(path, text, BASELINE_KEY)
    return path


# ---- The reports of a sweep ----


MOST_INDENTED = 1000
"""Largest number of rows for which ``comparison.json`` is indented, for people to read."""
MOST_LAYERS = 10_000
"""Rows of layer tables in the page; the tables of further combinations are only in their files."""


OBSERVED = frozenset({"analysis", "layer_times", "operators", "allocations", "peaks", "training"})
"""The passes with results of which a combination has files, or details in the page."""
Format = Literal["samples", "parquet", "bmf", "benchmark-action"]
MOST_UNASKED = 1000
"""Maximum number of combinations for which large files are written by default."""
FORMATS: dict[Format, str] = {
    "samples": f"tables/samples.csv, every raw sample, also of more than {MOST_UNASKED:,} combinations",
    "parquet": "tables/*.parquet, the tidy tables with their types (needs pyarrow)",
    "bmf": "bmf.json for Bencher, which draws the history (Bencher Metric Format)",
    "benchmark-action": "benchmark-action-{smaller,bigger}.json for github-action-benchmark, likewise",
}
"""Formats that are written on request, as they are large or rarely used."""
FILES_OF_SERVICES: dict[Format, dict[str, Callable[[Comparison], object]]] = {
    "bmf": {"bmf.json": bmf},
    "benchmark-action": {
        "benchmark-action-smaller.json": partial(benchmark_action, better="lower"),
        "benchmark-action-bigger.json": partial(benchmark_action, better="higher"),
    },
}


def prepare_reports() -> None:
    """Load libraries and templates, for which the first reports would otherwise need a third of a second more."""
    import scipy.special  # noqa: F401 – for the intervals

    prepare_html()


def write_reports(
    folder: Folder,
    comparison: Comparison,
    formats: Collection[Format] = (),
    is_final: bool = True,
) -> Path:
    """Write the reports of a sweep into its folder; returns the path of ``report.html``.

    ``comparison.{json,csv,md}``, ``report.html``, what :func:`write_exports` names, and the files of every
    combination that :func:`write_artifacts` names.

    Args:
        formats: formats that are written on request; those that exist are always written again.
        is_final: whether also the exports are written, which are for what follows a sweep.
    """
    wanted = {*formats, *standing(folder)}
    write_json(folder.path / "comparison.json", comparison, compact=len(comparison.rows) > MOST_INDENTED)
    write_atomically(folder.path / "comparison.csv", csv_text(comparison))
    made = tables(comparison)  # once: of ten thousand combinations they take seconds
    write_atomically(folder.path / "comparison.md", comparison_markdown(comparison, made))

    seen: dict[str, Observed] = {}
    links: dict[str, dict[str, str]] = {}
    layers: dict[str, LayerTable] = {}
    rows_left = MOST_LAYERS
    written = _written.get(folder.path, {})
    _written.clear()
    _written[folder.path] = written
    varying = comparison.varying_axes() or list(comparison.axes)
    for row in comparison.rows:
        name = axes_text({axis: row.axes[axis] for axis in varying if axis in row.axes})
        records = [record for record in folder.records_of(row.combination_id) if record.pass_name in OBSERVED]
        made_of = name, records, _files_of_passes(folder, row.combination_id)
        before, one, files = written.pop(row.combination_id, ((), None, {}))
        # A sweep that runs has its reports written often: what was written for the same results is not written again.
        if one is None or before != made_of or not all((folder.path / link).is_file() for link in files.values()):
            one = observed(folder, row.combination_id)
            files = write_artifacts(folder, row.combination_id, one, name)
        rows_left -= max(1, len(one.layers.rows)) if one.layers else 1
        if rows_left >= 0 or not seen:
            written[row.combination_id] = made_of, one, files
            seen[name], links[name] = one, files
            if one.layers is not None:
                layers[name] = one.layers
    left_out = len(comparison.rows) - len(seen)

    report = folder.path / "report.html"
    saved = against_saved(comparison, folder.path) if len(comparison.rows) <= MOST_UNASKED else []
    page = html(comparison, True, layers, details(seen, links), left_out, samples_of(folder, comparison), saved)
    write_atomically(report, page)
    if is_final:  # last: whatever may go wrong with a paper's tables, the page is there
        write_exports(folder, comparison, wanted, made)
    return report


_written: dict[Path, dict[str, tuple[tuple[object, ...], Observed | None, dict[str, str]]]] = {}
"""Of the combinations in the last page that this process has written, by folder and id: title, records and files that their own
files were made of; their observations; the addresses of the files."""


def samples_of(folder: Folder, comparison: Comparison) -> dict[str, list[list[float]]]:
    """Return milliseconds of single steps by combination id and round, as many as the page has room for.

    Only records of timing are read, one combination after another: those of all of them may not fit into memory.
    """
    most = room(len(comparison.rows))
    found = {}
    for row in comparison.rows:
        found[row.combination_id] = thinned_samples(folder.records_of(row.combination_id, "timing"), most)
    return found


def standing(folder: Folder) -> set[Format]:
    """Return the formats that were requested earlier: old files would contradict those that are written again."""
    found: set[Format] = set()
    if (folder.path / "tables" / "samples.csv").is_file():
        found.add("samples")
    if (folder.path / "tables" / "measurements.parquet").is_file() and has_parquet():
        found.add("parquet")
    for name, files in FILES_OF_SERVICES.items():
        if any((folder.path / file).is_file() for file in files):
            found.add(name)
    return found


def left_out(comparison: Comparison, formats: Collection[Format]) -> str | None:
    """Return which files a sweep of this size does not have, and how to get them; None if it has all."""
    if _has_samples(comparison, formats):
        return None
    return f"samples: of {len(comparison.rows):,} combinations only on request, --format samples"


def _has_samples(comparison: Comparison, formats: Collection[Format]) -> bool:
    return "samples" in formats or len(comparison.rows) <= MOST_UNASKED


def write_exports(
    folder: Folder,
    comparison: Comparison,
    formats: Collection[Format],
    made: Sequence[ReportTable],
) -> None:
    """Write ``comparison-tables.tex``, ``tables/*.csv`` and what else is wanted.

    Args:
        folder: of the sweep.
        comparison: what was measured.
        formats: optional formats to be written.
        made: the comparison's tables.

    Raises:
        UserError: Parquet is wanted, and pyarrow is not installed.
    """
    write_atomically(folder.path / f"{TABLES}.tex", latex(comparison, made), durable=False)
    makers: list[Callable[[], Tidy]] = [partial(table, comparison) for table in (measurements, rounds, problems)]
    if _has_samples(comparison, formats):
        makers.append(lambda: samples(comparison, _timings(folder, comparison)))
    for name, files in FILES_OF_SERVICES.items():
        if name in formats:
            for file_name, content in files.items():
                write_json(folder.path / file_name, content(comparison), durable=False)
    for make in makers:
        table = make()
        with replacing(folder.path / "tables" / f"{table.name}.csv", durable=False) as file:
            for text in csv_chunks(table):
                file.write(text.encode())
        if "parquet" in formats:
            with replacing(folder.path / "tables" / f"{table.name}.parquet", durable=False) as file:
                write_parquet(make(), file)


def _timings(folder: Folder, comparison: Comparison) -> Iterator[Record]:
    """Yield the timing records of all combinations, one combination in memory at a time."""
    for row in comparison.rows:
        done = [record for record in folder.records_of(row.combination_id, "timing") if record.status == "ok"]
        yield from sorted(done, key=lambda record: record.round)


def observed(folder: Folder, combination_id: str) -> Observed:
    """Return the observations of a combination's passes; None for a pass that failed or was not run."""
    observations: dict[PassName, Json] = {}
    for record in folder.records_of(combination_id):
        if record.status == "ok" and record.observations is not None:
            observations.setdefault(record.pass_name, record.observations)

    def read(pass_name: PassName, kind: Any) -> Any:
        return kind.from_dict(observations[pass_name]) if pass_name in observations else None

    layers, times = read("analysis", LayerTable), read("layer_times", LayerTimes)
    if layers and times:
        layers = layers.with_times(times)
    return Observed(
        layers=layers,
        operators=read("operators", Operators),
        allocations=read("allocations", Allocations),
        peaks=read("peaks", Peaks),
        training=read("training", Training),
        files=_files_of_passes(folder, combination_id),
    )


def _files_of_passes(folder: Folder, combination_id: str) -> tuple[str, ...]:
    """Return the names of the files that the passes of a combination left."""
    left = folder.path / "artifacts" / combination_id
    if not left.is_dir():
        return ()
    return tuple(sorted(path.name for path in left.iterdir() if path.is_file()))


def write_artifacts(folder: Folder, combination_id: str, seen: Observed, title: str) -> dict[str, str]:
    """Write the files of a combination; returns their addresses relative to the folder by what a reader knows them by.

    ``layers/ID.{csv,html}``, ``operators/ID.csv``, ``kernels/ID.csv`` and ``memory/ID/{timeline,layers,tensors}.csv``, each where
    there is something to write. Among the addresses are those of ``artifacts/ID/*``, which the passes left.
    """
    id = combination_id
    links = {name: f"artifacts/{id}/{name}" for name in seen.files}

    def write(name: str, path: str, text: str) -> None:
        write_atomically(folder.path / path, text, durable=False)
        links[name] = path

    if seen.layers is not None:
        write("layers.html", f"layers/{id}.html", to_html(seen.layers, title=title))
        write("layers.csv", f"layers/{id}.csv", to_csv(seen.layers))
    if seen.operators is not None:
        write("operators.csv", f"operators/{id}.csv", operators_csv(seen.operators))
        if seen.operators.kernels:
            write("kernels.csv", f"kernels/{id}.csv", _csv(KernelRow, seen.operators.kernels))
    if seen.allocations is not None:
        memory = seen.allocations
        write("memory/timeline.csv", f"memory/{id}/timeline.csv", _csv(Moment, memory.timeline))
        write("memory/layers.csv", f"memory/{id}/layers.csv", _csv(LayerMemory, memory.by_layer))
        write("memory/tensors.csv", f"memory/{id}/tensors.csv", tensors_csv(memory.tensors))
    return links


def _csv(kind: Any, rows: Sequence[Any]) -> str:
    """Return one header line, then one line per data class, its fields as columns."""
    names = [spec.name for spec in dataclasses.fields(kind)]
    return csv_lines([names, *map(operator.attrgetter(*names), rows)])


# ---- The reports of a sweep that still runs: what has been measured so far, and what is missing ----


SHARE = 0.02
"""Maximum share of the time that writing and sending take, after the first time."""
EVERY_S = 10.0
"""The shortest time between two reports, and before the first."""
LOCK_S = 2.0
"""How long the reports of a running sweep wait for another process that writes some; then they are written without the lock."""
WAKE_S = 5.0
"""How often the driver of a cluster's sweep looks for new records."""
NOT_BEGUN = "the sweep is running"


log = logging.getLogger(__name__)
_receivers: list[Callable[[Comparison], object]] = []
"""Called with what has been measured, after the reports were written."""


@contextmanager
def sent_to(send: Callable[[Comparison], object]) -> Iterator[None]:
    """Call ``send`` after each report of the shards of this process, which a launcher of Hydra runs."""
    _receivers.append(send)
    try:
        yield
    finally:
        _receivers.remove(send)


class LiveReports:
    """Writes the reports of a sweep that runs, whenever they are due."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._due = time.monotonic() + EVERY_S

    @property
    def is_due(self) -> bool:
        """True if there is time to write reports."""
        return time.monotonic() >= self._due

    def write(self) -> None:
        """Write the reports, and send them; errors are logged, the sweep goes on.

        Raises:
            OSError: nothing can be written into the folder, as on a full disk.
        """
        began = time.monotonic()
        try:
            with report_lock(self._folder.path, LOCK_S):
                comparison = comparison_of(self._folder, NOT_BEGUN, running=True, trust=True)
                write_reports(self._folder, comparison, is_final=False)
            for send in _receivers:
                send(comparison)
        except Exception as error:  # a metric of the user's may raise, and the reports are written again in the end
            if isinstance(error, OSError) and unwritable(error, self._folder.path):
                raise
            log.warning("the reports of the running sweep were not written: %s: %s", type(error).__name__, error)
        now = time.monotonic()
        self._due = now + max(EVERY_S, (now - began) / SHARE)


class ClusterReports:
    """Writes the reports while the driver waits for the jobs of a cluster; a context."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._reports = folder, LiveReports(folder)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sweeprof-reports", daemon=True)

    def __enter__(self) -> ClusterReports:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        reported = 0
        while not self._stop.wait(WAKE_S):
            if not self._reports.is_due:
                continue
            records = len(list(self._folder.records.glob("*/*-r*.json")))
            if records == reported:
                continue
            reported = records
            try:
                self._reports.write()
            except OSError as error:  # the jobs, which measure elsewhere, go on
                log.warning("the reports of the running sweep were not written: %s", error)
