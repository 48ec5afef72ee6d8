"""The language of constraints, and the rows of a comparison that they, a Pareto front or a best value select. Pure functions."""

from __future__ import annotations

import ast
import dataclasses
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

import numpy as np

from sweeprof.errors import nearest
from sweeprof.numbers import rounded, text_unit
from sweeprof.results.compared_rows import Comparison, Row, reason_of, value_of
from sweeprof.results.measurement import Measurement, MetricInfo, plain_title
from sweeprof.text import axis_text, one_line

# The language of conditions over named values, as in ``batch_size * model.width > 4096`` or ``latency < 5 ms``: its words become
# Python's, Python parses them, and a walk over the tree computes the value.

UNITS: dict[str, int | Decimal] = {
    "s": 1, "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "ns": Decimal("1e-9"), "%": Decimal("1e-2"),
    "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9,
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
}  # fmt: skip
"""The value of a unit in base units: seconds, bytes, or 1."""

MAX_LENGTH, MAX_DEPTH, MAX_BITS = 2000, 50, 1024
"""Limits of one expression: characters, nesting, and the size of an integer."""

_WORDS = ("and", "or", "not", "in", "True", "False", "None")
_CONSTANTS = {"true": "True", "false": "False", "null": "None"}
_FUNCTIONS = ("min", "max", "abs", "len")
_ARITHMETIC: dict[type[ast.AST], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
}
_ORDER: dict[type[ast.AST], tuple[str, Callable[[Any, Any], bool]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number> (?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?)
        (?:\s*(?P<unit> %(?=\s*(?:$|[)\],*/<>=!]|(?:and|or|not|in)\b))  # any other % is the remainder of a division
                      |(?!(?:and|or|not|in)\b)[^\W\d]+(?!\w)))?
    |(?P<text> '[^']*'|"[^"]*")
    |(?P<sign> \*\*|//|<=|>=|==|!=|[-+*/%<>()\[\],])
    |(?P<word> [^\W\d]\w*(?:[./]\w+)*)
    )""",
    re.VERBOSE,
)

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expression:
    """A condition, or another value, over named values."""

    text: str
    """As it was written."""
    names: frozenset[str]
    """The names that it uses."""
    _tree: ast.expr = field(repr=False, compare=False)
    _named: Mapping[str, str] = field(repr=False, compare=False)
    """The name behind each identifier of the tree."""
    _numbers: Mapping[str, int | float] = field(repr=False, compare=False)
    """Numbers that have a unit, in base units, by identifier."""
    _converted: Mapping[str, str] = field(repr=False, compare=False)
    """The unit of the names that are compared with a number in another unit of the same kind, by identifier."""

    def value(self, values: Values) -> Any:
        """Return the value of the expression for these values of its names.

        Raises:
            ValueError: a name has no value here, or values do not fit: an order of a text and a number, a sum or an order with
                nothing (null), something else than a condition beside ``and``, a division by zero, a number that is too large.
        """
        try:
            return _value(self._tree, self._given(values))
        except KeyError as missing:
            raise ValueError(f"uses '{self._named[missing.args[0]]}', which has no value here") from None
        except ZeroDivisionError:
            raise ValueError("divides by zero") from None
        except OverflowError:
            raise ValueError("has a number beyond all bounds") from None

    def _given(self, values: Values) -> Values:
        """Return the values by the identifiers of the tree."""
        given: dict[str, Any] = dict(self._numbers)
        for identifier, name in self._named.items():
            if name not in values:
                continue
            given[identifier] = values[name]
            unit = self._converted.get(identifier)
            if unit is not None and _is_number(values[name]) and math.isfinite(values[name]):
                # By decimals, as numbers of the text are converted, so that equal ones are equal.
                given[identifier] = float(Decimal(str(values[name])) * UNITS[unit])
        return given

    def excess(self, values: Values) -> float:
        """Return how far a condition is from its limit: above 0 where it is false, else 0 or less.

        Of ``a < b`` it is the logarithm of a / b, and of ``a > b`` that of b / a; of any other condition 1 or -1.

        Raises:
            ValueError: as of :meth:`value`.
        """
        distance = 1.0
        holds = self.value(values) is True
        tree = self._tree
        if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and type(tree.ops[0]) in _ORDER:
            left, right = (_value(side, self._given(values)) for side in (tree.left, tree.comparators[0]))
            if _is_number(left) and _is_number(right) and left > 0 and right > 0 and left != right:
                distance = abs(math.log(left / right))
        return -distance if holds else distance


def parse(text: str, names: Collection[str], units: Mapping[str, str] | None = None) -> Expression:  # noqa: PLR0912  # one for each kind of token
    """Read an expression over ``names``; if several fit, as ``latency`` and ``latency/forward``, the longest is meant.

    Args:
        units: of the names whose values are not in base units, such as ``ms``. A comparison with a number that has a unit of the
            same kind is in base units; with a number without unit it is in the unit of the name.

    Raises:
        ValueError: it cannot be read, or uses an unknown name; with the nearest and all known names.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"is longer than {MAX_LENGTH} characters")
    longest_first = sorted(names, key=len, reverse=True)
    identifiers: dict[str, str] = {}  # by name: its identifier in Python
    numbers: dict[str, int | float] = {}
    kinds: dict[str, str] = {}
    written: dict[str, str] = {}  # as the text has the numbers with units
    pieces: list[str] = []
    position = 0
    while text[position:].strip():
        token = _TOKEN.match(text, position)
        if token is None:
            rest = text[position:].lstrip()
            hint = "; equality is written ==" if rest[0] == "=" else ""
            raise ValueError(f"cannot be read from '{rest}' on{hint}")
        position = token.end()
        if token["unit"]:
            identifier = f"u{len(numbers)}"
            numbers[identifier] = _in_base_units(token["number"], token["unit"])
            kinds[identifier] = _kind(token["unit"])
            written[identifier] = token[0].strip()
            pieces.append(identifier)
        elif token["number"]:
            pieces.append(repr(_in_base_units(token["number"], token["unit"])))
        elif token["text"]:
            pieces.append(repr(token["text"][1:-1]))
        elif token["sign"]:
            pieces.append(token["sign"])
        else:
            name = _name(text, token.start("word"), token["word"], longest_first)
            position = token.start("word") + len(name)
            if not _is_of_the_language(text, position, name):
                name = identifiers.setdefault(name, f"n{len(identifiers)}")
            pieces.append(_CONSTANTS.get(name, name))
    named = {identifier: name for name, identifier in identifiers.items()}
    written |= named
    try:
        tree = ast.parse(" ".join(pieces), mode="eval").body
    except SyntaxError as error:
        end = 0
        for piece in pieces:
            end += len(piece) + 1
            if error.offset and error.offset <= end:
                raise ValueError(f"cannot be read at {written.get(piece, piece)}") from None
        raise ValueError("ends where something should follow" if pieces else "is empty") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"is nested more than {MAX_DEPTH} deep") from None
    _check(tree)
    converted = _converted(tree, named, kinds, units or {})
    return Expression(text, frozenset(identifiers), tree, named, numbers, converted)


def _converted(
    tree: ast.expr, named: dict[str, str], kinds: Mapping[str, str], units: Mapping[str, str]
) -> dict[str, str]:
    """Give the names that are compared with a number in a unit of their kind identifiers of their own; return the unit of each."""
    converted: dict[str, str] = {}
    for comparison in ast.walk(tree):
        if not isinstance(comparison, ast.Compare):
            continue
        used = [node for node in ast.walk(comparison) if isinstance(node, ast.Name)]
        compared_kinds = {kinds[node.id] for node in used if node.id in kinds}
        for node in used:
            unit = units.get(named.get(node.id, ""), "")
            if node.id not in converted and unit in UNITS and UNITS[unit] != 1 and _kind(unit) in compared_kinds:
                name, node.id = named[node.id], f"{node.id} in base units"
                named[node.id], converted[node.id] = name, unit
    return converted


def _kind(unit: str) -> str:
    """Return what a unit measures: ``s``, ``B``, ``%``, or nothing."""
    return unit[-1] if unit[-1] in "sB%" else ""


def _name(text: str, start: int, word: str, longest_first: list[str]) -> str:
    """Return the longest known name or word of the language that begins at ``start``, as ``word`` does."""
    for name in longest_first:
        if text.startswith(name, start) and not re.match(r"\w|\.\w", text[start + len(name) :]):
            return name
    plain = re.split(r"[./]", word)[0]
    if _is_of_the_language(text, start + len(plain), plain):
        return plain
    close = nearest(word, longest_first)
    hint = f" Did you mean '{close}'?" if close else ""
    raise ValueError(
        f"uses '{word}', which is not known.{hint} Known: {', '.join(sorted(longest_first))};"
        f" a text stands in quotes: '{word}'"
    )


def _is_of_the_language(text: str, end: int, word: str) -> bool:
    """Return True for a word of the language that ends at ``end``; a function has a bracket behind it."""
    if word in _FUNCTIONS:
        return text[end:].lstrip().startswith("(")
    return word in _WORDS or word in _CONSTANTS


def _in_base_units(number: str, unit: str | None) -> int | float:
    if unit is not None and unit not in UNITS:
        raise ValueError(f"has a number in '{unit}', which is not a unit. Known: {', '.join(UNITS)}")
    factor = UNITS[unit] if unit else 1
    if number.isdigit() and isinstance(factor, int):
        return _bounded(int(number[:400]) * factor)
    value = float(Decimal(number) * factor)
    if math.isinf(value):
        raise ValueError("has a number beyond all bounds")
    return value


def _check(node: ast.expr, depth: int = 0) -> None:
    """Raise ``ValueError`` for expressions of Python that this language does not have."""
    if depth > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep")
    match node:
        case ast.Constant() | ast.Name():
            return
        case ast.Call(func=ast.Name(id=name), args=inner) if name in _FUNCTIONS:
            pass
        case ast.BoolOp() | ast.UnaryOp() | ast.BinOp() | ast.Compare() | ast.List():
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        case _:
            raise ValueError("has something else than conditions, sums, lists and min, max, abs, len of them")
    for child in inner:
        _check(child, depth + 1)


def _value(node: ast.expr, given: Values) -> Any:  # noqa: PLR0911, PLR0912  # one case per kind of node
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=identifier):
            return given[identifier]
        case ast.List(elts=items):
            return [_value(item, given) for item in items]
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_truth(_value(part, given), "and") for part in parts)
        case ast.BoolOp(values=parts):
            return any(_truth(_value(part, given), "or") for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _truth(_value(operand, given), "not")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(_value(operand, given), "-")
        case ast.UnaryOp(operand=operand):
            return _number(_value(operand, given), "-")
        case ast.BinOp(left=left, op=op, right=right):
            return _computed(op, _value(left, given), _value(right, given))
        case ast.Compare(left=first):
            left_value = _value(first, given)
            for comparison, comparator in zip(node.ops, node.comparators, strict=True):
                right_value = _value(comparator, given)
                if not _holds(comparison, left_value, right_value):
                    return False
                left_value = right_value
            return True
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _called(name, [_value(argument, given) for argument in arguments])
    raise AssertionError(node)


def _holds(op: ast.cmpop, left: Any, right: Any) -> bool:
    if isinstance(op, ast.Eq | ast.NotEq):
        return _equal(left, right) == isinstance(op, ast.Eq)
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(right, list | tuple) and not (isinstance(right, str) and isinstance(left, str)):
            raise ValueError(f"looks for {_spelled(left)} in {_spelled(right)}, which is no list")
        is_in = left in right if isinstance(right, str) else any(_equal(left, item) for item in right)
        return is_in == isinstance(op, ast.In)
    sign, holds = _ORDER[type(op)]
    if not (_is_number(left) and _is_number(right)) and not (isinstance(left, str) and isinstance(right, str)):
        raise ValueError(f"compares {_spelled(left)} with {_spelled(right)} by '{sign}', which have no order")
    return holds(left, right)


def _equal(left: Any, right: Any) -> bool:
    """True if two values are equal, also within lists; unlike in Python, true is not 1, and false is not 0."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _computed(op: ast.operator, left: Any, right: Any) -> Any:
    sign, computes = _ARITHMETIC[type(op)]
    _number(left, sign)
    _number(right, sign)
    if sign == "**" and isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MAX_BITS:
        raise OverflowError
    value = computes(left, right)
    if isinstance(value, complex):
        raise ValueError(f"takes a root of the negative number {left!r}")
    return _bounded(value)


def _called(name: str, arguments: list[Any]) -> Any:
    if name in ("len", "abs") and len(arguments) != 1:
        raise ValueError(f"has {name}() of {len(arguments)} values; it takes one")
    if name == "abs":
        return abs(_number(arguments[0], "abs"))
    values = arguments[0] if len(arguments) == 1 else arguments
    if name == "len":
        if not isinstance(values, list | tuple | str):
            raise ValueError(f"has len() of {_spelled(values)}, which is neither a list nor a text")
        return len(values)
    comparable = isinstance(values, list | tuple) and values
    if not comparable or not (all(map(_is_number, values)) or all(isinstance(value, str) for value in values)):
        raise ValueError(f"has {name}() of {_spelled(values)}, which are neither numbers nor texts")
    return min(values) if name == "min" else max(values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any, sign: str) -> Any:
    if not _is_number(value):
        raise ValueError(f"has {_spelled(value)} with '{sign}', which takes numbers")
    return value


def _truth(value: Any, word: str) -> bool:
    """Return the truth of a condition; anything else is a mistake, as in ``a == 1 or 2``."""
    if not isinstance(value, bool):
        raise ValueError(f"has {_spelled(value)} with '{word}', which takes conditions such as a > 1")
    return value


def _bounded(value: int | float) -> int | float:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError("has a number beyond all bounds")
    return value


def _spelled(value: Any) -> str:
    return {"True": "true", "False": "false", "None": "null"}.get(str(value), repr(value))


# The selection of rows: constraints, the Pareto front, the best rows.

Direction = Literal["lower", "higher"]
BATCH_AXIS = "batch_size"


@dataclass(frozen=True, slots=True)
class Condition:
    """One part of a constraint: what must hold for a combination to qualify."""

    expression: Expression

    @property
    def is_number(self) -> bool:
        """True if it is a sum of metrics, which cannot be a condition; its names must be those of numeric metrics."""
        try:
            return not isinstance(self.expression.value(dict.fromkeys(self.expression.names, 1.0)), bool)
        except ValueError:
            return False

    def misses(self, comparison: Comparison, row: Row, names: Mapping[str, str]) -> str | None:
        """Return the reason why the row misses the condition; None if it holds. A row without a value always misses it."""
        infos = {info.name: info for info in comparison.metrics}
        values, texts = {}, []
        for name in sorted(self.expression.names):
            info = infos.get(names[name])
            if info is None:
                value = row.axes.get(names[name])
                if value is None:
                    return f"{self.expression.text}: {name} has no value (no such axis here)"
                texts.append(axis_text(value))
            else:
                value = value_of(row, info.name)
                if value is None:
                    return f"{self.expression.text}: {name} has no value ({reason_of(row, info.name)})"
                texts.append(rounded(value, text_unit(info.name, info.unit)))
            values[name] = value
        try:
            holds = self.expression.value(values)
        except ValueError as error:
            return f"{self.expression.text}: {error}"
        if holds is True:
            return None
        return f"{self.expression.text}: {', '.join(texts)}"

    def uncertain(self, row: Row, names: Mapping[str, str]) -> tuple[str, Measurement] | None:
        """Return a name with its value if the condition is decided otherwise at an end of the value's 95 % interval."""
        values = {name: row.axes.get(names[name], value_of(row, names[name])) for name in self.expression.names}
        if None in values.values():
            return None
        for name in sorted(values):
            cell = row.cells.get(names[name])
            if cell is None or cell.measurement.interval is None:
                continue
            try:
                holds = self.expression.value(values)
                low, high = (self.expression.value({**values, name: end}) for end in cell.measurement.interval)
            except ValueError:
                continue
            if low is not holds or high is not holds:
                return name, cell.measurement
        return None


def conditions(
    constraints: Sequence[str], names: Sequence[str], units: Mapping[str, str] | None = None
) -> list[Condition]:
    """Return the constraints, split at ``and`` where that changes nothing, so that each part has its own reason.

    Args:
        units: as of :func:`parse`.

    Raises:
        ValueError: one cannot be read, or has an unknown name.
    """
    found = []
    for text in constraints:
        parse(text, names)  # an error names the place in the whole text
        parts = [text]
        if not re.search(r"[()'\"\[]|\bor\b", text):
            parts = re.split(r"\band\b", text)
        found += [Condition(parse(part.strip(), names, units)) for part in parts]
    return found


def metric_names(metrics: Sequence[MetricInfo]) -> dict[str, str]:
    """Return the names that a user may use for each metric, mapped to the full name.

    These are the full name itself, its title in a table, and its last part if no other metric has the same.
    """
    parts = Counter(info.name.rpartition("/")[2] for info in metrics)
    short, titles, full = {}, {}, {}
    for info in metrics:
        full[info.name] = info.name
        part = info.name.rpartition("/")[2]
        if parts[part] == 1:
            short[part] = info.name
        title = plain_title(info.name)
        if title is not None:
            titles[title] = info.name
    return {**short, **titles, **full}


def units_of(names: Mapping[str, str], metrics: Sequence[MetricInfo]) -> dict[str, str]:
    """Return the unit of each name of a metric, by the names of :func:`metric_names`."""
    units = {info.name: info.unit for info in metrics}
    return {name: units[full] for name, full in names.items() if full in units}


def _known_names(comparison: Comparison) -> dict[str, str]:
    return {**metric_names(comparison.metrics), **dict(zip(comparison.axes, comparison.axes, strict=True))}


def with_selection(comparison: Comparison, pareto: Sequence[str] = (), constraints: Sequence[str] = ()) -> Comparison:
    """Return the comparison with what every row misses of the constraints, and with the rows on the Pareto front.

    A front needs two metrics that have a direction and that the comparison has; it is of the rows that qualify.

    Raises:
        ValueError: a constraint cannot be read.
    """
    names = _known_names(comparison)
    wanted = conditions(constraints, list(names), units_of(names, comparison.metrics))
    rows = []
    for row in comparison.rows:
        if wanted and not row.has_values:
            misses = [f"{row.status}: {one_line(row.reason or 'no reason was given')}"]
        else:
            misses = list(filter(None, (condition.misses(comparison, row, names) for condition in wanted)))
        rows.append(dataclasses.replace(row, misses=tuple(misses)))
    infos = {info.name: info for info in comparison.metrics if info.better is not None}
    front = [infos[names[name]] for name in pareto if names.get(name) in infos]
    if len(front) != len(pareto) or len(front) < 2:
        front = []
    best = on_front([row for row in rows if not row.misses and not comparison.has_wrong_outputs(row)], front)
    return dataclasses.replace(
        comparison,
        rows=tuple(dataclasses.replace(row, on_front=row.combination_id in best) for row in rows),
        pareto=tuple(info.name for info in front),
        constraints=tuple(constraints),
    )


def uncertain_selection(comparison: Comparison) -> dict[str, tuple[str, Measurement]]:
    """Return by the id of a combination the value, with its name, because of which it is uncertain whether it qualifies."""
    names = _known_names(comparison)
    wanted = conditions(comparison.constraints, list(names), units_of(names, comparison.metrics))
    found = {}
    for row in comparison.rows:
        first: tuple[str, Measurement] | None = None
        certainly_misses = not row.has_values
        for condition in wanted:
            value = condition.uncertain(row, names)
            first = first or value
            if value is None and condition.misses(comparison, row, names) is not None:
                certainly_misses = True
        if first is not None and not certainly_misses:
            found[row.combination_id] = first
    return found


def named_metrics(comparison: Comparison) -> list[MetricInfo]:
    """Return the metrics that the constraints, the front and the goals of a search name, in the order of the comparison."""
    names = _known_names(comparison)
    wanted = set(comparison.pareto)
    for condition in conditions(comparison.constraints, list(names)):
        wanted.update(names[name] for name in condition.expression.names)
    if comparison.search is not None:
        wanted.update(goal.metric for goal in comparison.search.goals)
    return [info for info in comparison.metrics if info.name in wanted]


def dominant(points: Sequence[Sequence[float | None]], better: Sequence[Direction]) -> list[int]:
    """Return the positions of the points of any number of directions that no other dominates, in their order.

    One dominates another by being at least as good in every direction and better in one.
    """
    costs = np.array(points, dtype=float).reshape(len(points), len(better))
    costs[:, [direction == "higher" for direction in better]] *= -1
    found = []
    for place, cost in enumerate(costs):
        dominates = (costs <= cost).all(axis=1) & (costs < cost).any(axis=1)
        if not dominates.any():
            found.append(place)
    return found


def on_front(rows: Sequence[Row], metrics: Sequence[MetricInfo]) -> set[str]:
    """Return the ids of the measured rows that no other row dominates."""
    if not metrics:
        return set()
    ids, points = [], []
    for row in rows:
        values = [value_of(row, info.name) for info in metrics]
        if row.has_values and None not in values:
            ids.append(row.combination_id)
            points.append(values)
    return {ids[place] for place in dominant(points, [info.better or "lower" for info in metrics])}
