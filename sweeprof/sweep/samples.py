"""Raw samples of a sweep's timing, read for its page."""

from __future__ import annotations

from sweeprof.report.explore.samples import room, thinned
from sweeprof.results.compare import Comparison
from sweeprof.sweep.folder import Folder


def samples_of(folder: Folder, comparison: Comparison) -> dict[str, list[list[float]]]:
    """Milliseconds of single steps by combination id and round, as many as the page has room for.

    Only records of timing are read, one combination after another: those of all of them may not fit into memory.
    """
    most = room(len(comparison.rows))
    found = {}
    for row in comparison.rows:
        found[row.combination_id] = thinned(folder.records_of(row.combination_id, "timing"), most)
    return found
