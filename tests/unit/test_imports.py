"""Rules that the import contracts in pyproject.toml cannot express: frameworks by folder, the environment, the cost of a start."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from sweeprof.plan.plan import EVERY_TRIAL

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sweeprof"
FILES = sorted(PACKAGE.rglob("*.py"))

FRAMEWORKS = (
    *("torch", "tensorflow", "keras", "jax", "onnx", "onnxruntime", "ai_edge_litert", "openvino"),
    *("mlflow", "hydra", "omegaconf"),
)
NOT_AT_START = {*FRAMEWORKS, "pandas"} - {"omegaconf"}

WRITES_ENVIRONMENT = {
    # HYDRA_FULL_ERROR makes Hydra raise instead of exiting; it has no other switch.
    # Its completion reads the line that is completed from there.
    "cli/run.py",
    # MLflow reads its settings from the environment only, in a process of its own.
    "run/tracker_process.py",
    # TensorFlow reads there which allocator oneDNN uses; in a process that only measures what a model adds.
    "backends/tensorflow/adapter.py",
    # What a head starts, through whatever launcher, inherits whose it is.
    "run/locks.py",
    # A shard sees the GPUs that its head saw, whatever its launcher hid; its trials inherit that.
    "run/launchers.py",
    # What a run starts, through whatever launcher, sees the samples that it decoded.
    "datasets/source.py",
    # XLA asks NPROC for the size of its pools, when its client starts; it has no other switch.
    "backends/jax/adapter.py",
}


def relative(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's tree, which many tests look through."""
    return tuple(ast.walk(parsed(file)))


def imported_by_statement(node: ast.AST) -> list[str]:
    """Modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [str(node.module)]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


# Rules for every file: what breaks them


FRAMEWORKS_BY_FOLDER = {
    "model_sources/": {"torch", "keras"},
    "backends/torch/": {"torch"},
    "backends/keras/": {"keras"},
    "backends/tensorflow/": {"tensorflow", "keras"},
    "backends/jax/": {"jax", "keras"},
    "backends/onnxruntime/": {"onnx", "onnxruntime", "torch", "keras"},
    "backends/litert/": {"ai_edge_litert", "tensorflow", "keras"},
    "backends/openvino/": {"openvino", "torch"},
    "zoo/": {"torch", "tensorflow", "keras"},
    "profiling/conformance.py": {"torch"},
    "tracking/": {"mlflow"},
    "datasets/source.py": {"hydra"},
    "run/resume.py": {"omegaconf"},
    "targets.py": {"hydra"},
    "cli/run.py": {"hydra", "omegaconf"},
    "run/sweeper.py": {"hydra", "omegaconf"},
    "config/overrides.py": {"hydra", "omegaconf"},
    "config/errors.py": {"hydra", "omegaconf"},
    "plan/compose.py": {"hydra", "omegaconf"},
    "plan/sweep_file.py": {"hydra", "omegaconf"},
}


def frameworks_of_other_folders(file: Path) -> set[str]:
    """What ruff cannot say: that the torch folder must not import TensorFlow, also by ``import_module``."""
    allowed = next((names for place, names in FRAMEWORKS_BY_FOLDER.items() if relative(file).startswith(place)), set())
    found = {name.split(".")[0] for node in nodes_of(file) for name in imported_by_statement(node)}
    found.update(re.findall(r"import_module\([\"'](\w+)", file.read_text(encoding="utf-8")))
    return (found & set(FRAMEWORKS)) - allowed


def frameworks_outside_builders_of_the_zoo(file: Path) -> set[str]:
    if not relative(file).startswith("zoo/") or file.name == "train.py":  # makes the weight files; no run imports it
        return set()
    found = {name.split(".")[0] for node in parsed(file).body for name in imported_by_statement(node)}
    return found & set(FRAMEWORKS)


def environment_writes(file: Path) -> set[str]:
    """A child's environment is a dictionary of its own (run/fork_server.py), and no change to this process's."""
    found: set[str] = set()
    writing = r"os\.(putenv|unsetenv|environ\.(update|setdefault|pop|clear|popitem|__setitem__))"
    for node in nodes_of(file):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
            found.update(ast.unparse(t) for t in targets if ast.unparse(t).startswith("os.environ"))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            if re.fullmatch(writing, called):
                found.add(called)
    return found if relative(file) not in WRITES_ENVIRONMENT else set()


RULES: tuple[Callable[[Path], set[str]], ...] = (
    frameworks_of_other_folders,
    frameworks_outside_builders_of_the_zoo,
    environment_writes,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_there_are_no(rule: Callable[[Path], set[str]]) -> None:
    """Of all files at once; as tests of their own they would take a minute."""
    assert {relative(file): found for file in FILES if (found := rule(file))} == {}


# What a start imports


def imported_by(program: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after ``program``."""
    listing = "import atexit, sys; atexit.register(lambda: print('|' + ' '.join(sorted({m.split('.')[0] for m in sys.modules}))))"
    done = subprocess.run(
        [sys.executable, "-c", f"{listing}\n{program}"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.rpartition("|")[2].split())


MAIN = "import runpy, sys; sys.argv = ['sweeprof', {}]; runpy.run_module('sweeprof', run_name='__main__')"
COMMANDS = ("'--help'", "'compare', '--help'", "'report', '--help'")


@pytest.mark.parametrize(
    "program", ["import sweeprof; dir(sweeprof); sweeprof.__version__", *(MAIN.format(words) for words in COMMANDS)]
)
def test_a_start_imports_nothing_heavy(program: str) -> None:
    found = imported_by(program)
    assert "sweeprof" in found
    assert not found & NOT_AT_START


def test_an_interrupt_during_the_start_leaves_no_traceback() -> None:
    program = """
import sys
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "sweeprof.cli.run":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
from sweeprof.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.slow
def test_the_machinery_imports_no_framework() -> None:
    modules = "run.fork_server", "metrics.select", "run.shard", "cli.report", "cli.prune", "cli.sync"
    program = "".join(f"import sweeprof.{module}\n" for module in modules)
    program += "from sweeprof.passes.registry import passes; passes()"
    assert not imported_by(program) & {"torch", "tensorflow", "keras", "jax", "onnx", "mlflow", "pandas"}


def test_a_fork_server_of_a_small_backend_starts_without_what_only_reports_need() -> None:
    """Every sweep starts some, and SciPy took a third of their start."""
    program = "".join(f"import {module}\n" for module in (*EVERY_TRIAL, "sweeprof.run.fork_server"))
    assert not imported_by(program) & {"scipy", "pandas", "matplotlib", "plotly", "jinja2"}


def test_every_public_name_can_be_had() -> None:
    import sweeprof

    assert all(getattr(sweeprof, name) is not None for name in sweeprof.__all__)
    assert set(sweeprof.__all__) == set(dir(sweeprof)) > sweeprof._EXPERIMENTAL
    with pytest.raises(AttributeError, match="module 'sweeprof' has no attribute 'absent'"):
        getattr(sweeprof, "absent")  # noqa: B009  # what `sweeprof.absent` does
