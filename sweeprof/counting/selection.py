"""The modules that are counted and timed, chosen by name, pattern or type before anything is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sweeprof.errors import Problem, UserError, nearest
from sweeprof.results.layer_times import OUTSIDE, ROOT, above

ModulePattern = str | type[Any]
"""A path or a glob of paths (``stage1.*``), the name of a class or a glob of it (``Conv2d``, ``*Norm*``), or a class."""
ModulePatterns = ModulePattern | Iterable[ModulePattern]


@dataclass(frozen=True, slots=True)
class ModuleSelection:
    """The modules that are counted and timed; a module that is excluded is so with everything inside it."""

    include: tuple[ModulePattern, ...] = ()
    """Only these modules and everything inside them; empty: all."""
    exclude: tuple[ModulePattern, ...] = ()
    """Not these modules, nor anything inside them."""

    @classmethod
    def of(cls, include: ModulePatterns, exclude: ModulePatterns) -> ModuleSelection:
        """Return the selection of one pattern or several.

        Raises:
            UserError: something is neither text nor a class.
        """
        chosen = []
        for key, given in (("include", include), ("exclude", exclude)):
            patterns = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | type) else (given,)
            wrong = [one for one in patterns if not isinstance(one, str | type)]  # type: ignore[redundant-expr]
            if wrong:
                raise UserError(
                    [Problem(key, wrong[0], "must be a path, a glob, a class or its name, or several of these.")]
                )
            chosen.append(patterns)
        return cls(*chosen)

    @property
    def is_everything(self) -> bool:
        """True if nothing is excluded."""
        return not self.include and not self.exclude

    def excluded(self, modules: Mapping[str, type[Any] | str]) -> frozenset[str]:
        """Return the paths that are excluded, that of code outside any module among them.

        Args:
            modules: the class, or its name, of every module by its path.

        Raises:
            UserError: a pattern matches no module, or no module is left.
        """
        if self.is_everything:
            return frozenset()
        problems = []
        matched: dict[str, set[str]] = {}
        for key, patterns in (("include", self.include), ("exclude", self.exclude)):
            matched[key] = set()
            for pattern in patterns:
                found = {path for path, kind in modules.items() if _matches(pattern, path, kind)}
                matched[key] |= found
                if not found:
                    options = [*modules, *(_name_of(kind) for kind in modules.values())]
                    closest = nearest(_name_of(pattern), sorted(set(options)))
                    problems.append(Problem(key, _name_of(pattern), "matches no module of the model.", closest))
        if problems:
            raise UserError(problems)
        excluded = set()
        for path in modules:
            around = {path, *above(path)}
            if not around.isdisjoint(matched["exclude"]) or (self.include and around.isdisjoint(matched["include"])):
                excluded.add(path)
        if len(excluded) == len(modules):
            key, patterns = ("exclude", self.exclude) if self.exclude else ("include", self.include)
            raise UserError([Problem(key, ", ".join(map(_name_of, patterns)), "leaves no module to measure.")])
        return frozenset(excluded | {OUTSIDE} if self.include else excluded)


EVERYTHING = ModuleSelection()
"""Nothing is excluded."""


def outermost(excluded: Iterable[str]) -> tuple[str, ...]:
    """Return the paths of excluded modules whose parents are not excluded."""
    paths = set(excluded) - {OUTSIDE}
    return tuple(sorted(path for path in paths if paths.isdisjoint(above(path)[-1:])))


def _matches(pattern: ModulePattern, path: str, kind: type[Any] | str) -> bool:
    if isinstance(pattern, str):
        is_path = path == pattern if path == ROOT else fnmatchcase(path, pattern)
        return is_path or fnmatchcase(_name_of(kind), pattern)
    return issubclass(kind, pattern) if isinstance(kind, type) else kind == pattern.__name__


def _name_of(kind: type[Any] | str) -> str:
    return kind if isinstance(kind, str) else kind.__name__
