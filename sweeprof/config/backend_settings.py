"""The settings of a backend in sweeps over several: which of them support which values.

A setting that a backend lacks makes a combination `unsupported`, unless it has its default value: then the backend is measured
without it. A setting that no backend of the sweep has is a mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sweeprof.backends.lookup import TARGETS
from sweeprof.backends.precision import unsupported_reason
from sweeprof.config.override_syntax import spelled
from sweeprof.config.schema import constraint_problems
from sweeprof.config.signatures import Argument, constant_of, given_arguments, kind_problems, signature_of
from sweeprof.errors import Problem, choice_problem, key_problem
from sweeprof.measuring.instantiate import NOT_ARGUMENTS
from sweeprof.results.record import Json

_DEFAULTS = {"precision": "fp32"}
"""The meaning of a setting's default, if its constructor's default is None: the model as it is."""
_NO_DEFAULT = ("mode", "layout")
"""Settings whose default says how one framework works; it is not true of a framework that lacks the setting."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The config node of a backend, checked against what its constructor accepts."""

    node: Json
    """Without the settings that the backend lacks and that have their default value."""
    dropped: frozenset[str] = frozenset()
    """Names of the settings that were removed."""
    unsupported: str | None = None
    """Why the backend cannot run with these settings."""
    problems: tuple[Problem, ...] = ()


def fitted(node: Json, name: str, targets: Callable[[], Collection[str]]) -> Fitted:
    """The node of the backend called ``name``, in a sweep over backends with these ``targets`` (asked for only if needed)."""
    target = str(node.get("_target_"))
    signature = signature_of(target)
    if signature is None:  # the process that imports it will tell
        return Fitted(node)
    dropped: set[str] = set()
    reasons: list[str] = []
    problems: list[Problem] = []
    refused = {problem.key for problem in constraint_problems({"backend": node})}
    for setting, value in given_arguments(node).items():
        key = f"backend.{setting}"
        if key in refused or (signature.is_open and setting not in signature.arguments):
            continue
        if setting in signature.arguments:
            found = list(kind_problems(key, value, signature.arguments[setting].kind))
            if found and any(value in _choices(other, setting) for other in TARGETS):
                only = ", ".join(map(str, _choices(target, setting)))
                reasons.append(f"{name} does not support {setting}={value} (only {only})")
            elif found and _choices(target, setting):
                known = {choice for one in (target, *targets()) for choice in _choices(one, setting)}
                problems.append(choice_problem(key, value, setting, map(str, known)))
            else:
                problems += found
            continue
        owners = [one for other in targets() if (one := _arguments(other).get(setting)) is not None]
        if not owners:
            problems.append(unknown_setting(key, value, [target, *targets()]))
        elif setting in _NO_DEFAULT:
            reasons.append(f"{name} has no setting '{setting}'")
        elif any(value == _default(setting, owner) for owner in owners):
            dropped.add(setting)
        else:
            only = spelled(_default(setting, owners[0]))
            reasons.append(f"{name} does not support {setting}={spelled(value)} (only the default, {only})")
    if not problems:
        reasons += _precision_reasons(target, name, node)
    kept = {key: value for key, value in node.items() if key not in dropped}
    return Fitted(_without_idle_method(kept), frozenset(dropped), "; ".join(reasons) or None, tuple(problems))


def _precision_reasons(target: str, name: str, node: Json) -> list[str]:
    """Return why the backend does not run in the precision of its node, if its class declares which it supports."""
    methods, gaps = constant_of(target, "precision_methods"), constant_of(target, "precision_gaps")
    if not isinstance(methods, Mapping):
        return []
    known_gaps = gaps if isinstance(gaps, Mapping) else {}
    reason = unsupported_reason(name, methods, known_gaps, node.get("precision"), node.get("precision_method"))
    return [] if reason is None else [reason]


def _without_idle_method(node: Json) -> Json:
    """Return the node without a method that has no effect: combinations that differ in it alone are one."""
    return (
        {**node, "precision_method": None} if node.get("precision") == "fp32" and "precision_method" in node else node
    )


def unknown_setting(key: str, value: object, targets: Collection[str]) -> Problem:
    """The problem of a key that is a setting of none of the backends with these targets."""
    return key_problem(key, value, {f"backend.{name}" for target in targets for name in _arguments(target)})


def is_setting(key: str, targets: Collection[str]) -> bool:
    """True if ``key`` can be set in a sweep over backends with these targets."""
    name = key.split(".")[1]
    signatures = [signature_of(target) for target in targets]
    accepted = any(signature is None or signature.accepts(name) for signature in signatures)
    return accepted or name in (*NOT_ARGUMENTS, "_target_")


def _choices(target: str, setting: str) -> tuple[object, ...]:
    argument = _arguments(target).get(setting)
    return argument.kind.choices if argument and argument.kind else ()


def _default(setting: str, argument: Argument) -> object:
    return _DEFAULTS.get(setting) if argument.default is None else argument.default


def _arguments(target: str) -> Mapping[str, Argument]:
    signature = signature_of(target)
    return signature.arguments if signature else {}
