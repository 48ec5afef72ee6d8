"""Descriptions of runs in Markdown, with links within MLflow's pages.

MLflow folds a description after a few lines: what matters, and the links, are in its first paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from sweeprof.credentials import without_credentials
from sweeprof.report.cells import ratio_text, value_text
from sweeprof.report.markdown import escaped
from sweeprof.results.comparison import Row, value_of
from sweeprof.text import one_line, printable, shortened
from sweeprof.tracking.views import run_address

TAG_LIMIT = 8000
"""Characters; MLflow truncates longer values at the end, where a reason or a path is most informative."""
BASELINE_TAG = "baseline."
"""Begins the key of the tag of a sweep that is the baseline of a name."""

_MOST_FIGURES = 6
"""Of a description: the page has all metrics beside it."""
_BASELINE = "Baseline "
_BLOCK = re.compile(r"^(`{3,})sh\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)
"""A command in Markdown."""


def capped(text: str) -> str:
    """``text`` fit for a tag: without credentials, its middle left out where it is too long."""
    return shortened(printable(without_credentials(text)), TAG_LIMIT)


def links_to(parent_id: str, experiment_id: str) -> str:
    """Links from a combination to its sweep."""
    sweep, report = run_address("", experiment_id, parent_id), run_address("", experiment_id, parent_id, "report.html")
    return f"[sweep]({sweep}) · [report]({report})"


def outcome_text(row: Row, titles: Mapping[str, str], links: str) -> str:
    """Return the outcome of a combination; ``titles`` are those of the metrics in the tables, by name."""
    reason = shortened(one_line(row.reason or ""), TAG_LIMIT // 4).replace("`", "'")
    outcome = f"**{row.status}**: `{reason}`" if reason else f"**{row.status}**"
    head = f"{outcome}, the baseline of others · {links}" if row.is_baseline else f"{outcome} · {links}"
    command = _code(shortened(row.command, TAG_LIMIT // 2)) if row.command else ""
    return capped("\n\n".join(part for part in (head, "\n".join(_figures(row, titles)), command) if part))


def _figures(row: Row, titles: Mapping[str, str]) -> Iterator[str]:
    known = [name for name in titles if value_of(row, name) is not None]
    for name in known[:_MOST_FIGURES]:
        cell = row.cells[name]
        ratio = "" if row.is_baseline or cell.verdict is None else f", {ratio_text(cell)}"
        yield f"- {escaped(titles[name])}: **{value_text(cell.measurement)}**{escaped(ratio)}"


def description(markdown: str, links: str, baselines: Iterable[str] = ()) -> str:
    """A report of any length as a description: its headline, ``links``, ``baselines``, and as many whole lines as fit."""
    wrapped = _BLOCK.sub(lambda block: _code(block[2]), without_credentials(markdown))
    head, _, rest = wrapped.strip().partition("\n\n")
    # Links on a line of their own would lie below the veil that MLflow draws over a folded description.
    text = printable(with_baselines(f"{head} {links}\n\n{rest}".strip(), baselines))
    if len(text) <= TAG_LIMIT:
        return text
    ending = "\n\n… the rest is in the artifact comparison.md"
    kept = text[: TAG_LIMIT - len(ending)]
    return (kept.rpartition("\n")[0] or kept) + ending


def _code(command: str) -> str:
    """A command as inline code: a block is not wrapped, and a long line would push half of MLflow's page out of the window."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", command)), default=0))
    return f"{fence} {one_line(command)} {fence}"


def with_baselines(text: str, names: Iterable[str]) -> str:
    """A sweep's description that says after its first paragraph which baselines the sweep is, and no others."""
    head, *rest = text.split("\n\n")
    rest = [part for part in rest if not part.startswith(_BASELINE)]
    message = _BASELINE + ", ".join(f"**{escaped(name)}**" for name in sorted(names))
    return "\n\n".join([head, *([message] if message != _BASELINE else []), *rest])


def baseline_names(tags: Mapping[str, str]) -> list[str]:
    """The names of the baselines that a run is, by its tags."""
    return [key.removeprefix(BASELINE_TAG) for key in tags if key.startswith(BASELINE_TAG)]
