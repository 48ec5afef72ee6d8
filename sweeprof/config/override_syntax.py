"""Overrides as text: in Hydra's grammar, as the user typed them, without secrets; and when two of their values are the same."""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


CONFIG_DIR = ("--config-dir", "-cd")
"""The flags that name a folder of the user's configs."""
SWEEP_GROUP = "sweep@_global_"
"""The group of sweep files, with the package that `cli/run.py` puts them into."""


def spelled(value: object) -> str:
    """Return ``value`` in Hydra's override grammar."""
    if isinstance(value, list):
        return f"[{','.join(map(spelled, value))}]"
    if isinstance(value, dict):
        # The grammar has no quotes for a key of a mapping, and no text at all for the string ``'1'``.
        items = [f"{key if isinstance(key, str) else spelled(key)}:{spelled(inner)}" for key, inner in value.items()]
        return f"{{{','.join(items)}}}"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and not _reads_as_itself(value):
        return quoted(value)
    return str(value)


def is_spellable(value: object) -> bool:
    """True if Hydra's grammar can express a value: every string that is a key of a mapping must not read as something else."""
    if isinstance(value, list):
        return all(map(is_spellable, value))
    if isinstance(value, dict):
        names = [key for key in value if isinstance(key, str)]
        return all(map(_reads_as_itself, names)) and all(map(is_spellable, value.values()))
    return True


def _reads_as_itself(text: str) -> bool:
    keyword = text.lower() in ("true", "false", "null", "inf", "nan")
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./\-]*", text) is not None and not keyword


def quoted(text: str) -> str:
    """Return ``text`` in quotes; in Hydra's grammar a backslash is one, but for those before a quote."""
    escaped = re.sub(r"(\\+)(?='|\Z)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


_QUOTED_OR_WORDS = re.compile(r"""'[^']*'|"[^"]*"|[^'",\[\]{}()]+""")
_MAPPING_KEY = re.compile(r"\s*[\w.@/]+\s*:\s*")


def with_quotes(value: str) -> str:
    """Return the value of an override with quotes around words that Hydra's grammar does not allow without them.

    These have letters outside of ASCII, or a ``~`` that is not within a word. A value with a backslash or an interpolation stays as
    it is.
    """
    if "\\" in value or "${" in value:
        return value

    def replacement(found: re.Match[str]) -> str:
        words = found[0]
        if words[0] in "'\"":
            return words
        key = _MAPPING_KEY.match(words)
        begin = key[0] if key and value.startswith(("{", "[")) else ""
        text = words.removeprefix(begin).strip()
        if text.isascii() and not re.search(r"(?<!\w)~", text):
            return words
        return begin + quoted(text)

    return _QUOTED_OR_WORDS.sub(replacement, value)


def as_typed(override: str) -> str:
    """Return an override as the user would type it; reverts the changes that `cli/run.py` makes for Hydra."""
    plain = override.removeprefix("++").replace(SWEEP_GROUP, "sweep")
    return re.sub(r"^(name|compare\.baseline)='([\w.\-~]+)'$", r"\1=\2", plain)


TOO_MANY_DIGITS = "is too large: a whole number must have at most 38 digits."
_LONG_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d_]{1000,}(?![\w.])")


def long_number(text: str) -> str | None:
    """Return the first whole number in a text with more digits than Python converts; None if there is none."""
    found = _LONG_NUMBER.search(text)
    return found[0] if found else None


_DOUBLING = re.compile(r"\s*doubling\s*\((.*)\)\s*", re.DOTALL)


def doubled(text: str) -> list[int] | None:
    """Return the numbers that ``doubling(1,256)`` stands for: 1, 2, 4, … 256; None for any other text.

    Raises:
        ValueError: its arguments are not two whole numbers, of which the first is at least 1 and the last at least as large.
    """
    call = _DOUBLING.fullmatch(text)
    if call is None:
        return None
    words = [word.strip() for word in call[1].split(",")]
    if len(words) != 2 or not all(re.fullmatch(r"[0-9]{1,18}", word) for word in words):
        raise ValueError("is not doubling(first,last) with two whole numbers, such as doubling(1,256).")
    value, last = map(int, words)
    if not 1 <= value <= last:
        raise ValueError("has no values: doubling(first,last) needs 1 ≤ first ≤ last, such as doubling(1,256).")
    values = []
    while value <= last:
        values.append(value)
        value *= 2
    return values


def frozen(value: object) -> Hashable:
    """A hashable stand-in for a value of a config; 1, 1.0 and true have different ones, and so have 0.0 and -0.0."""
    if isinstance(value, Mapping):
        return "mapping", frozenset((frozen(key), frozen(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return "list", tuple(map(frozen, value))
    return type(value), repr(value)


def is_among(value: object, others: Iterable[object]) -> bool:
    """True if one of ``others`` is the same value of a config: 1 is neither 1.0 nor true."""
    stand_in = frozen(value)
    return any(frozen(other) == stand_in for other in others)


# ----------------------------------------------------------------------------------------------------------------------
# The samplers of Optuna that a search can use, by their names

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # A search has few trials: only a few of them are chosen at random.
    "GPSampler": {"n_startup_trials": 6},
    # Axes depend on each other: the best batch size is another one for each backend.
    "TPESampler": {"n_startup_trials": 6, "multivariate": True},
}
"""Options that are not Optuna's defaults, by sampler."""
PACKAGES = {"CmaEsSampler": "cmaes", "GPSampler": "torch"}
"""Packages that samplers need beside Optuna."""
SAMPLERS = ("CmaEsSampler", "GPSampler", "NSGAIISampler", "NSGAIIISampler", "QMCSampler", "RandomSampler", "TPESampler")
"""Samplers that can be made from a seed alone, and work outside of Optuna's own loop."""


def is_installed() -> bool:
    """True if Optuna is installed."""
    return find_spec("optuna") is not None


def default_sampler() -> str:
    """Return the sampler of a search that names none: Gaussian processes need fewer trials, and PyTorch."""
    return "GPSampler" if find_spec("torch") is not None else "TPESampler"


def samplers() -> list[str]:
    """Return the names of the samplers whose packages are installed."""
    return [name for name in SAMPLERS if find_spec(PACKAGES.get(name, "optuna")) is not None]


def make_sampler(name: str, seed: int) -> BaseSampler:
    """Return a new sampler."""
    import optuna.samplers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of options that Optuna calls experimental
        sampler: BaseSampler = getattr(optuna.samplers, name)(seed=seed, **OPTIONS.get(name, {}))
    return sampler
