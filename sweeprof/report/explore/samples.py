"""Raw samples of timing, as many as a page has room for."""

from __future__ import annotations

from collections.abc import Iterable

from sweeprof.results.record import Record

MOST_SAMPLES = 25_000
"""Of all combinations together."""
MOST_OF_ONE = 400
LEAST_OF_A_ROUND = 5
"""The smallest, the largest and the quartiles."""


def room(combinations: int) -> int:
    """Samples that a page of so many combinations takes of each."""
    return min(MOST_OF_ONE, MOST_SAMPLES // max(1, combinations))


def thinned(records: Iterable[Record], most: int) -> list[list[float]]:
    """Milliseconds of single steps, one sorted list per round by its number; empty for a round that was not timed.

    Where there are more than ``most`` in all, those of a round are thinned to evenly spaced ranks, the smallest and the largest
    among them, so that what is drawn of them keeps its shape.

    Args:
        records: of one combination; all but its timing is left alone.
        most: samples in all; a round has five all the same.
    """
    timed = [record for record in records if record.pass_name == "timing" and record.status == "ok"]
    found = {record.round: sorted((record.observations or {}).get("samples", ())) for record in timed}
    each = max(LEAST_OF_A_ROUND, most // max(1, len(found)))
    rounds = (found.get(number, []) for number in range(max(found, default=-1) + 1))
    return [[float(f"{1e3 * seconds:.4g}") for seconds in _spaced(samples, each)] for samples in rounds]


def _spaced(ordered: list[float], most: int) -> list[float]:
    if len(ordered) <= most:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / (most - 1))] for place in range(most)]
