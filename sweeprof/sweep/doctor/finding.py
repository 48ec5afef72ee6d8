"""One thing that was found out, or the reason why it was not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change, and how."""

    text: str
    command: str
    """For a shell."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of what ``python -m sweeprof.doctor`` says."""

    section: str
    name: str
    value: str | None
    """None: it could not be had."""
    reason: str | None = None
    """Why it could not be had."""
    advice: Advice | None = None
    distorts: bool = False
    """Whether it makes small differences untrustworthy."""


def known(section: str, name: str, value: object | None, reason: str = "the system does not tell") -> Finding:
    """A finding without advice; ``reason`` counts where there is no value."""
    if value is None:
        return Finding(section, name, None, reason)
    said = {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    return Finding(section, name, said)
