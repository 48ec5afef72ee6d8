"""Signatures of functions and classes, read from their source files: planning imports neither frameworks nor user code.

The parts: what arguments a target accepts; signatures of functions and classes; the values that an annotation allows; source files.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from sweeprof.config.constraints import is_integer
from sweeprof.errors import Problem, choice_problem, nearest
from sweeprof.targets import NOT_ARGUMENTS, source_file

_HYDRA = ("_target_", "_args_", "_partial_", "_convert_", "_recursive_")
"""Keys of a node that Hydra reads itself."""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """The values that an annotation allows."""

    text: str
    """As a message says it: "a whole number"."""
    accepts: Callable[[object], bool]
    choices: tuple[object, ...] = ()
    """Of a ``Literal``."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of a function or constructor."""

    kind: ValueKind | None
    """None if its annotation says nothing that can be checked."""
    default: object = None
    """A literal; None also if there is no default, or another one."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters that can be given by name."""

    arguments: Mapping[str, Argument]
    is_open: bool = False
    """True if any further name is accepted (``**options``)."""

    def accepts(self, name: str) -> bool:
        """True if there is an argument of that name."""
        return self.is_open or name in self.arguments


def given_arguments(node: Mapping[str, object]) -> dict[str, object]:
    """The keys of a config node that are passed to its target, with their values."""
    return {str(key): value for key, value in node.items() if key not in (*NOT_ARGUMENTS, *_HYDRA)}


def argument_problems(key: str, node: Mapping[str, object]) -> Iterator[Problem]:
    """The arguments of the node at ``key`` that its target does not accept, if the source of the target can be read."""
    target = str(node.get("_target_"))
    signature = signature_of(target)
    if signature is None:
        return
    for name, value in given_arguments(node).items():
        if not signature.accepts(name):
            yield choice_problem(key, name, f"argument of {target}", signature.arguments)
        elif name in signature.arguments:
            yield from kind_problems(f"{key}.{name}", value, signature.arguments[name].kind)


def kind_problems(key: str, value: object, kind: ValueKind | None) -> Iterator[Problem]:
    """The problem of a value that an annotation does not allow; an object that is yet to be made can be anything."""
    if kind is None or (isinstance(value, Mapping) and "_target_" in value) or kind.accepts(value):
        return
    yield Problem(key, value, f"is not {kind.text}.", nearest(str(value), [str(one) for one in kind.choices]))


@cache
def constant_of(target: str, name: str) -> object:
    """A literal that the class with a dotted name or a base of it assigns to ``name``; None if there is none, or no source."""
    module, _, class_name = target.rpartition(".")
    definition, home = _definition(module, class_name) if module else (None, "")
    if not isinstance(definition, ast.ClassDef):
        return None
    for node in definition.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=found), value=value) if found == name:
                return _literal(value)
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return _literal(value)
    for base in definition.bases:
        if isinstance(base, ast.Name):
            inherited = constant_of(f"{home}.{base.id}", name)
            if inherited is not None:
                return inherited
    return None


# ----------------------------------------------------------------------------------------------------------------------
# Signatures


@cache
def signature_of(target: str) -> Signature | None:
    """The signature of a dotted name; None if its source cannot be found, or does not say (decorators, foreign bases)."""
    module, _, name = target.rpartition(".")
    return _signature(module, name) if module else None


def _signature(module: str, name: str) -> Signature | None:
    definition, home = _definition(module, name)
    if isinstance(definition, ast.FunctionDef) and not definition.decorator_list:
        return _of_function(definition, home, skip=0)
    if isinstance(definition, ast.ClassDef):
        return _of_class(definition, home)
    return None


def _of_class(definition: ast.ClassDef, home: str) -> Signature | None:
    decorators = {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in definition.decorator_list}
    if decorators - {"dataclass", "final"}:
        return None
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return None if node.decorator_list else _of_function(node, home, skip=1)
    arguments: dict[str, Argument] = {}
    is_open = False
    for base in reversed(definition.bases):
        found = _signature(home, base.id) if isinstance(base, ast.Name) else None
        if found is None:
            return None
        arguments |= found.arguments
        is_open |= found.is_open
    if "dataclass" in decorators:
        arguments |= _fields(definition, home)
    return Signature(arguments, is_open)


def _of_function(definition: ast.FunctionDef, home: str, skip: int) -> Signature:
    """The signature of a function, without its first ``skip`` arguments and those that have no name for a caller."""
    given = definition.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    pairs = list(zip(positional, defaults, strict=True))
    named = [*pairs[max(skip, len(given.posonlyargs)) :], *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    arguments = {one.arg: Argument(_kind(one.annotation, home), _literal(default)) for one, default in named}
    if given.kwarg is None:
        return Signature(arguments)
    match given.kwarg.annotation:
        case ast.Subscript(value=ast.Name(id="Unpack"), slice=ast.Name(id=name)):
            return Signature(arguments | _options(name, home))
    return Signature(arguments, is_open=True)


def _options(name: str, home: str) -> dict[str, Argument]:
    """The keys of a ``TypedDict``, with those of its bases."""
    definition, where = _definition(home, name)
    if not isinstance(definition, ast.ClassDef):
        return {}
    found: dict[str, Argument] = {}
    for base in definition.bases:
        if isinstance(base, ast.Name) and base.id != "TypedDict":
            found |= _options(base.id, where)
    return found | _fields(definition, where)


def _fields(definition: ast.ClassDef, home: str) -> dict[str, Argument]:
    found = {}
    for node in definition.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        options = {option.arg: option.value for option in getattr(node.value, "keywords", [])}
        is_variable = ast.unparse(node.annotation).startswith(("ClassVar", "typing.ClassVar"))
        if is_variable or _literal(options.get("init")) is False:
            continue
        default = options.get("default") if isinstance(node.value, ast.Call) else node.value
        found[node.target.id] = Argument(_kind(node.annotation, home), _literal(default))
    return found


def _literal(node: ast.expr | None) -> object:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


# ----------------------------------------------------------------------------------------------------------------------
# Annotations


_SIMPLE = {
    "int": ValueKind("a whole number", is_integer),
    "float": ValueKind(
        # A whole number may be too large for a float.
        "a number",
        lambda value: (isinstance(value, float) and math.isfinite(value)) or is_integer(value),
    ),
    "bool": ValueKind("true or false", lambda value: isinstance(value, bool)),
    "str": ValueKind("a text", lambda value: isinstance(value, str)),
}
_NULL = ValueKind("null", lambda value: value is None)
_PLURALS = {"a whole number": "whole numbers", "a number": "numbers", "a text": "texts"}
_LISTS = ("Sequence", "list", "Iterable", "Collection")


def _kind(annotation: ast.expr | None, home: str) -> ValueKind | None:  # noqa: PLR0911  # one line per form
    match annotation:
        case ast.Constant(value=None):
            return _NULL
        case ast.Constant(value=str(text)):
            return _kind(ast.parse(text, mode="eval").body, home)
        case ast.Name(id=name) if name in _SIMPLE:
            return _SIMPLE[name]
        case ast.Name(id=name):
            definition, where = _definition(home, name)
            if isinstance(definition, ast.expr):
                return _kind(definition, where)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            one, other = _kind(left, home), _kind(right, home)
            if one is not None and other is not None:
                return ValueKind(
                    f"{one.text} or {other.text}",
                    lambda value: one.accepts(value) or other.accepts(value),
                    one.choices + other.choices,
                )
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            values = _literal(inner)
            choices = values if isinstance(values, tuple) else (values,)
            return ValueKind(f"one of {', '.join(map(str, choices))}", lambda value: value in choices, choices)
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _LISTS:
            item = _kind(inner, home)
            if item is not None:
                accepts = item.accepts
                return ValueKind(
                    f"a list of {_PLURALS.get(item.text, item.text)}",
                    lambda value: isinstance(value, list) and all(map(accepts, value)),
                )
    return None


# ----------------------------------------------------------------------------------------------------------------------
# Source files


def _definition(module: str, name: str, depth: int = 0) -> tuple[ast.AST | None, str]:
    """The class, function or assigned expression behind a name of a module, and the module that it is defined in."""
    tree = _tree(module)
    if tree is None or depth > 5:
        return None, module
    statements: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            statements += node.body
        else:
            statements.append(node)
    for node in statements:
        match node:
            case ast.FunctionDef() | ast.ClassDef() if node.name == name:
                return node, module
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                return value, module
            case ast.ImportFrom(module=str(source), level=0):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _definition(source, alias.name, depth + 1)
    return None, module


@cache
def _tree(module: str) -> ast.Module | None:
    path, name = source_file(module), module.rpartition(".")[2]
    if path is None or name not in (path.stem, path.parent.name):  # a class of the module before it
        return None
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
