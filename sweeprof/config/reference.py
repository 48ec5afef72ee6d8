"""The description of every config key for users: the keys of ``--help``, and ``docs/config.md``.

``python -m sweeprof.config.reference > docs/config.md`` writes the page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from sweeprof.config.schema import KEYS, PARTS, TOP_LEVEL, Key, Role, keys_below

_INTERNAL = "job"
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
_INTRODUCTION = """\
# Config keys

Every key can be set on the command line as KEY=VALUE. `python -m sweeprof --cfg job` prints the composed config. Keys of a config
group (`model`, `dataset`, `backend`, `device`, `metrics`, `protocol`, `tracking`, `cluster`) have the values of the chosen file in
`conf/GROUP/`; the defaults below are those of the default choice. Classes named by `_target_` may have further arguments, such as
`backend.layout`. `sweeprof/config/schema.py` defines the keys; `python -m sweeprof.config.reference` prints this page.
"""


def help_lines(width: int = 110) -> Iterator[str]:
    """Return the keys as ``--help`` lists them: those of a part in one entry, with the first sentence of other keys."""
    for name in TOP_LEVEL:
        if name == _INTERNAL:
            continue
        if name in PARTS:
            start, text = f"{name}.", " ".join(keys_below(name))
            if not text:
                text = KEYS[name].help.rstrip(".")
            elif KEYS[name].has_target:
                text += " …"
        else:
            start, text = name, KEYS[name].help.partition(". ")[0].partition("; ")[0].rstrip(".")
        yield from textwrap.wrap(text, width, initial_indent=f"  {start:<11} ", subsequent_indent=" " * 14)


def page() -> str:
    """Return the Markdown text of ``docs/config.md``."""
    lines = [_INTRODUCTION]
    for role in Role:
        lines += [f"## {_TITLES[role]}", "", _NOTES[role], ""]
        names = [name for name in TOP_LEVEL if KEYS[name].role is role and name != _INTERNAL]
        lines += _table([KEYS[name] for name in names if name not in PARTS])
        for name in names:
            if name in PARTS:
                lines += [f"### {name}", "", KEYS[name].help, ""]
                lines += _table(list(keys_below(name).values()))
    return "\n".join(lines).rstrip() + "\n"


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


if __name__ == "__main__":
    print(page(), end="")
