"""The parts of the pages that are made from the code; as a program, it writes all of them: ``python docs/generated.py``.

They stand between ``<!-- generated: NAME -->`` and ``<!-- end -->``, and are committed, so that they can be read on any host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from runpy import run_path

from sweeprof.cli.common import COMMANDS, command_parser
from sweeprof.cli.run import help_text
from sweeprof.config.schema import INTERNAL, KEYS, PARTS, TOP_LEVEL, Key, Role, keys_below
from sweeprof.metrics.metric import builtin_metrics

DOCS = Path(__file__).parent
WIDTH = "100"
"""Of the lines of ``--help``, on every terminal."""
_TITLES = {
    Role.IDENTITY: "Keys that change what is measured",
    Role.SHAPE: "Keys that define the combinations of a sweep",
    Role.COMPARISON: "Keys of the comparison",
    Role.TRIAL: "Keys that define how trials are run",
    Role.RUN: "Other keys of the run",
}
_NOTES = {
    Role.IDENTITY: "They are part of a combination's identity, and each can be an axis.",
    Role.SHAPE: "[sweeps.md](sweeps.md) has an example of each. On the command line, KEY=a,b adds an axis or replaces its values.",
    Role.COMPARISON: "[comparing.md](comparing.md) has examples.",
    Role.TRIAL: "A resumed sweep may change them.",
    Role.RUN: "They do not change the measurements.",
}


def command_line() -> Iterator[str]:
    """Return ``--help`` of the command and of each subcommand, in lines of ``COLUMNS`` characters."""
    yield from ("```text", help_text().rstrip(), "```", "")
    for name in COMMANDS:
        yield from (f"## sweeprof {name}", "", "```text", command_parser(name).format_help().rstrip(), "```", "")


def metric_table() -> Iterator[str]:
    """Return a table of the built-in metrics for each of their families."""
    family = ""
    for name, metric in sorted(builtin_metrics().items()):
        if family != name.partition("/")[0]:
            family = name.partition("/")[0]
            yield from ("", f"### {family}", "")
            yield from ("| metric | unit | better | definition | passes | options |", "|---|---|---|---|---|---|")
        passes = ", ".join(sorted(metric.passes))
        options = ", ".join(f"`{option}`" for option in metric.options)
        cells = (f"`{name}`", metric.info.unit, metric.info.better or "", metric.info.definition, passes, options)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def config_keys() -> Iterator[str]:
    """Return every key of a config, by its role."""
    for role in Role:
        yield from (f"## {_TITLES[role]}", "", _NOTES[role], "")
        names = [name for name in TOP_LEVEL if KEYS[name].role is role and name != INTERNAL]
        yield from _table([KEYS[name] for name in names if name not in PARTS])
        for name in names:
            if name in PARTS:
                yield from (f"### {name}", "", KEYS[name].help, "")
                yield from _table(list(keys_below(name).values()))


def _table(keys: Sequence[Key]) -> list[str]:
    if not keys:
        return []
    lines = ["| key | default | unit | meaning | values |", "|---|---|---|---|---|"]
    for key in keys:
        allowed = key.constraint.message if key.constraint else ""
        meaning = key.help.replace("_target_", r"\_target\_")  # not emphasis
        cells = [f"`{key.name}`", f"`{_spelled(key.default)}`", key.unit or "", meaning, _values(allowed)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""]


def _values(message: str) -> str:
    """Return the part of a constraint's error message that lists the accepted values."""
    text = message.removeprefix("is not ").removesuffix(".")
    for separator in (" Known: ", ": "):
        before, found, values = text.partition(separator)
        if found and "{" not in before:  # as in {metric: a number}
            return values
    return text


def _spelled(value: object) -> str:
    """Return a default as YAML has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_spelled, value))}]"
    return str(value)


GENERATED: dict[str, Callable[[], Iterator[str]]] = {
    "command_line": command_line,
    "config_keys": config_keys,
    "metrics": metric_table,
    "features": run_path(str(DOCS / "feature_table.py"))["table"],
    "costs": run_path(str(DOCS / "cost_tables.py"))["tables"],
}


def pages() -> Iterator[tuple[Path, str]]:
    """Yield every page with generated parts, and its text with these parts as they are now."""
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"^<!-- generated: (\w+) -->$", text, flags=re.M):
            begin = f"<!-- generated: {name} -->"
            before, _, rest = text.partition(begin)
            _, end, after = rest.partition("<!-- end -->")
            if not end:
                raise ValueError(f"{path}: {begin} has no end")
            made = "\n".join(GENERATED[name]()).strip()
            text = f"{before}{begin}\n\n{made}\n\n{end}{after}"
            yield path, text


if __name__ == "__main__":
    os.environ["COLUMNS"] = WIDTH
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
