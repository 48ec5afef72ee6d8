"""What a sweep's folder has beside its page: a comment, tables for a paper, plots, and everything measured as tidy tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal

from sweeprof.report.figure import Plot
from sweeprof.report.latex import TABLES, document, latex
from sweeprof.report.parquet import has_parquet, write_parquet
from sweeprof.report.png import png
from sweeprof.report.pull_request import pull_request
from sweeprof.report.svg import svg
from sweeprof.report.table import Table
from sweeprof.report.tidy import Tidy, csv_chunks, measurements, problems, rounds, samples
from sweeprof.results.compare import Comparison
from sweeprof.results.files import write_atomically, write_bytes
from sweeprof.results.record import Record
from sweeprof.sweep.folder import Folder

Format = Literal["samples", "svg", "parquet", "pictures"]
MOST_UNASKED = 1000
"""Combinations of a sweep of which large files are written unasked."""
FORMATS: dict[Format, str] = {
    "samples": f"tables/samples.csv, every raw sample, also of more than {MOST_UNASKED:,} combinations",
    "svg": f"plots/*.svg, also of more than {MOST_UNASKED:,} combinations",
    "parquet": "tables/*.parquet, the tidy tables with their types (needs pyarrow)",
    "pictures": "pictures/ID/*.svg, what is drawn of each combination",
}
"""What is written on request: large, or of use to few."""
_LARGE: tuple[Format, ...] = ("samples", "svg")


def standing(folder: Folder) -> set[Format]:
    """What was asked for at an earlier time: left as it is, it would contradict the files that are made again."""
    found: dict[Format, bool] = {
        "samples": (folder.path / "tables" / "samples.csv").is_file(),
        "svg": any((folder.path / "plots").glob("*.svg")),
        "parquet": (folder.path / "tables" / "measurements.parquet").is_file() and has_parquet(),
        "pictures": any((folder.path / "pictures").glob("*/*.svg")),
    }
    return {name for name, is_there in found.items() if is_there}


def left_out(comparison: Comparison, formats: Collection[Format]) -> str | None:
    """What a sweep of this size has not, and how to get it; None: nothing is missing."""
    missing = [name for name in _LARGE if not _is_wanted(name, comparison, formats)]
    if not missing:
        return None
    return (
        f"{', '.join(missing)}: of {len(comparison.rows):,} combinations on request alone, --format {','.join(missing)}"
    )


def _is_wanted(name: Format, comparison: Comparison, formats: Collection[Format]) -> bool:
    return name in formats or (name in _LARGE and len(comparison.rows) <= MOST_UNASKED)


def write_exports(
    folder: Folder,
    comparison: Comparison,
    plots: Sequence[Plot],
    formats: Collection[Format],
    made: Sequence[Table] | None = None,
) -> None:
    """Write ``pull_request.md``, ``comparison{,-tables}.tex``, ``plots/*.{png,svg}``, ``tables/*.csv`` and what else is wanted.

    Args:
        folder: of the sweep.
        comparison: what was measured.
        plots: what ``plots/`` has.
        formats: what is wanted beside what is always written.
        made: the comparison's tables, where they are made already.

    Raises:
        UserError: Parquet is wanted, and pyarrow is not installed.
    """
    texts = {
        "pull_request.md": pull_request(comparison, made),
        "comparison.tex": document(comparison),
        f"{TABLES}.tex": latex(comparison, made),
    }
    for name, text in texts.items():
        write_atomically(folder.path / name, text, durable=False)
    (folder.path / "plots").mkdir(exist_ok=True)
    for plot in plots:
        write_bytes(folder.path / "plots" / f"{plot.key}.png", png(plot), durable=False)
        if _is_wanted("svg", comparison, formats):
            write_bytes(folder.path / "plots" / f"{plot.key}.svg", svg(plot), durable=False)
    for make in _tables(folder, comparison, formats):
        _write_table(folder.path / "tables", make, "parquet" in formats)


def _tables(folder: Folder, comparison: Comparison, formats: Collection[Format]) -> Iterator[Callable[[], Tidy]]:
    yield from (partial(table, comparison) for table in (measurements, rounds, problems))
    if _is_wanted("samples", comparison, formats):
        yield lambda: samples(comparison, _timings(folder, comparison))


def _write_table(into: Path, make: Callable[[], Tidy], is_parquet_wanted: bool) -> None:
    table = make()
    with _replacing(into / f"{table.name}.csv") as file:
        for text in csv_chunks(table):
            file.write(text.encode())
    if is_parquet_wanted:
        with _replacing(into / f"{table.name}.parquet") as file:
            write_parquet(make(), file)


def _timings(folder: Folder, comparison: Comparison) -> Iterator[Record]:
    """The timing records of all combinations, one combination in memory at a time."""
    for row in comparison.rows:
        done = [record for record in folder.records_of(row.combination_id, "timing") if record.status == "ok"]
        yield from sorted(done, key=lambda record: record.round)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` once it is whole; as ``results.files``, for what is too large for one text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
