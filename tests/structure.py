"""Print figures about the structure of the package, for this checkout or for others: ``python tests/structure.py [CHECKOUT …]``.

Computed from the source below ``sweeprof/``:

* *code lines*: lines with a token, without comments, blank lines, docstrings and other strings that stand alone;
* *branches per code line*: ``if``, ``for``, ``while``, conditional expressions, ``except`` handlers, ``case`` blocks, the ``for``
  and ``if`` clauses of comprehensions, and every ``and`` and ``or``;
* *comprehensions* and *conditional expressions* per 1,000 lines: per 1,000 code lines, generator expressions included;
* *lines of imports, percent*: of the code lines;
* *private functions*: functions at the top of a file whose name begins with an underscore, and those whose name the file uses once;
* *protocols with one implementation*: classes that derive from ``Protocol`` and have all their methods in at most one other class.

Counted while the program runs, by ``sys.setprofile`` in every process:

* *files entered*: files of the package of which a function or a class body runs; the code at the top of a module does not count;
* *switches*: distinct pairs of a file and another file that one of its functions calls, directly or through other libraries; a pair
  counts once for every process that is the first to show it (a forked process knows the pairs of its parent).

The last figures are those of ``tests/``.

The sweep measures two batch sizes with the fake backend, and sends nothing to a tracker.
"""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import tempfile
import tokenize
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType

PACKAGE = "sweeprof"
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
BRANCHES = (
    ast.If | ast.For | ast.AsyncFor | ast.While | ast.IfExp | ast.ExceptHandler | ast.match_case | ast.comprehension
)

COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True)
class Figures:
    """One column of the table; the order of the fields is that of the rows."""

    python_files: int
    code_lines: int
    branches_per_code_line: float
    comprehensions_per_1000_lines: float
    conditional_expressions_per_1000_lines: float
    lines_of_imports_percent: float
    private_functions: int
    private_functions_used_once: int
    protocols: int
    protocols_with_one_implementation: int
    files_entered_by_sweep: int
    switches_of_sweep: int
    test_files: int
    test_code_lines: int


@dataclass(frozen=True)
class Source:
    """One file of the package."""

    path: Path
    module: str
    text: str
    tree: ast.Module


def read_sources(checkout: Path, folder: str = PACKAGE) -> list[Source]:
    """Return every Python file of a folder: of the package, say."""
    sources = []
    for path in sorted((checkout / folder).rglob("*.py")):
        parts = path.relative_to(checkout).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        text = path.read_text(encoding="utf-8")
        sources.append(Source(path, ".".join(parts), text, ast.parse(text)))
    return sources


def code_lines(source: Source) -> int:
    """Return the number of lines with code."""
    strings: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - strings)


def branches(source: Source) -> int:
    """Return the number of branches."""
    count = 0
    for node in ast.walk(source.tree):
        count += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += len(node.ifs)
    return count


def uses(source: Source, kinds: type[ast.AST] | UnionType) -> int:
    """Return how many nodes of some kinds a file has."""
    return sum(isinstance(node, kinds) for node in ast.walk(source.tree))


def lines_of_imports(source: Source) -> int:
    """Return the number of lines that import statements take."""
    lines: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def private_functions(source: Source) -> dict[str, int]:
    """Return the private functions at the top of a file, and how often the file uses each."""
    names = {}
    for statement in source.tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name.startswith("_"):
            names[statement.name] = 0
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id in names:
            names[node.id] += 1
    return names


def protocols(sources: list[Source]) -> dict[str, int]:
    """Return the protocols of the package, and how many other classes have all the methods that each asks for."""
    methods: dict[str, set[str]] = {}
    asked: dict[str, set[str]] = {}
    for source in sources:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            own = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
            bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
            if "Protocol" in bases:
                asked[node.name] = own
            else:
                methods[f"{source.module}.{node.name}"] = own
    return {name: sum(own >= wanted for own in methods.values()) for name, wanted in asked.items() if wanted}


TRACER = """
import os, sys, threading

root = os.environ["STRUCTURE_ROOT"]
sink = os.open(os.environ["STRUCTURE_OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
seen = set()

def record(frame, event, argument):
    file = frame.f_code.co_filename
    if event != "call" or not file.startswith(root) or frame.f_code.co_name == "<module>":
        return
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(root):
        caller = caller.f_back
    pair = ("" if caller is None else caller.f_code.co_filename, file)
    if pair not in seen:
        seen.add(pair)
        os.write(sink, (chr(9).join(pair) + chr(10)).encode())

threading.setprofile(record)
sys.setprofile(record)
"""
"""Writes each pair of caller and called file as soon as it occurs, so that a process that is killed counts as well."""

SWEEP = ("backend=fake", "model=fake", "dataset=synthetic", "tracking=none", "batch_size=1,2")


def files_and_switches(checkout: Path) -> tuple[int, int]:
    """Return the files entered and the switches between files of the sweep."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tracer").mkdir()
        Path(folder, "tracer", "sitecustomize.py").write_text(TRACER, encoding="utf-8")
        out = Path(folder, "pairs.tsv")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join((str(Path(folder, "tracer")), str(checkout))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "STRUCTURE_ROOT": f"{checkout / PACKAGE}{os.sep}",
            "STRUCTURE_OUT": str(out),
        }
        command = [sys.executable, "-m", PACKAGE, *SWEEP]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed in {checkout}:\n{done.stdout}{done.stderr}")
        pairs = [line.split("\t") for line in out.read_text(encoding="utf-8").splitlines()]
    entered = {called for _, called in pairs}
    return len(entered), sum(caller not in ("", called) for caller, called in pairs)


def measure(checkout: Path) -> Figures:
    """Return the figures of one checkout."""
    sources = read_sources(checkout)
    lines = sum(map(code_lines, sources))
    functions = [private_functions(source) for source in sources]
    implementations = protocols(sources)
    tests = read_sources(checkout, "tests")
    return Figures(
        len(sources),
        lines,
        round(sum(map(branches, sources)) / lines, 3),
        round(1000 * sum(uses(source, COMPREHENSIONS) for source in sources) / lines, 1),
        round(1000 * sum(uses(source, ast.IfExp) for source in sources) / lines, 1),
        round(100 * sum(map(lines_of_imports, sources)) / lines, 1),
        sum(map(len, functions)),
        sum(count == 1 for names in functions for count in names.values()),
        len(implementations),
        sum(count <= 1 for count in implementations.values()),
        *files_and_switches(checkout),
        len(tests),
        sum(map(code_lines, tests)),
    )


def main(arguments: list[str]) -> None:
    """Print one column per checkout."""
    checkouts = [Path(name).resolve() for name in arguments] or [Path(__file__).resolve().parents[1]]
    for checkout in checkouts:
        if not (checkout / PACKAGE).is_dir():
            raise SystemExit(f"{checkout}: no folder {PACKAGE}/")
    columns = [measure(checkout) for checkout in checkouts]
    print(f"{'':38}{''.join(f'{checkout.name:>12}' for checkout in checkouts)}")
    for row in fields(Figures):
        label = row.name.replace("_", " ")
        print(f"{label:38}{''.join(f'{getattr(column, row.name):>12}' for column in columns)}")


if __name__ == "__main__":
    main(sys.argv[1:])
