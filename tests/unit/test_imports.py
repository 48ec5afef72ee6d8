"""Rules that the import contracts in pyproject.toml cannot express: frameworks by folder, the cost of a start, processes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sweeprof.plan.plan import EVERY_TRIAL

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sweeprof"
FILES = sorted(PACKAGE.rglob("*.py"))
PLUGINS = sorted((ROOT / "hydra_plugins").rglob("*.py"))

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
READS_PROC = {
    "passes/energy.py",
    "results/environment.py",
    "measuring/process_memory.py",
    "measuring/timing.py",
    # The children of this process, after every trial.
    "run/fork_server.py",
    # The memory of this process at each line.
    "measuring/line_profile.py",
    # The memory of a trial and of the processes that it started.
    "run/trial_limits.py",
    # The boot of the host, whose monotonic clock a budget is kept by.
    "run/stopping.py",
    # Who holds a lock that a command waits for.
    "run/locks.py",
}


def relative(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's tree, which many tests look through."""
    return tuple(ast.walk(parsed(file)))


def of_every(files: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """A test of each file in turn, which names the first that fails; as tests of their own they would take a minute."""

    def taking(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            for file in files:
                try:
                    check(file)
                except AssertionError as error:
                    raise AssertionError(f"{file.relative_to(ROOT)}: {error}") from error

        test.__doc__ = check.__doc__
        return test

    return taking


MODULES = {module_name(file) for file in FILES}


def for_types_only(tree: ast.Module) -> set[ast.AST]:
    """Every node below an ``if TYPE_CHECKING``: it is never run."""
    guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test).endswith("TYPE_CHECKING")]
    return {inner for guard in guards for statement in guard.body for inner in ast.walk(statement)}


def imports(file: Path, types_too: bool = True) -> Iterator[str]:
    """Modules that the file imports, at its top and within functions; ``from a import b`` is ``a.b`` where that is a module."""
    ignored = set() if types_too else for_types_only(parsed(file))
    for node in nodes_of(file):
        if node in ignored:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)


def test_the_public_names_are_imported_when_asked() -> None:
    assert [name for name in imports(PACKAGE / "__init__.py", types_too=False) if name.startswith("sweeprof")] == []


@cache
def lint_settings() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]


@of_every(FILES)
def test_frameworks_are_imported_in_their_folders_only(file: Path) -> None:
    """As pyproject.toml has it for ruff, which sees the same; here also through ``import_module``."""
    settings = lint_settings()
    assert set(FRAMEWORKS) == set(settings["flake8-tidy-imports"]["banned-api"])
    allowed = any(
        "TID251" in codes and fnmatch(file.relative_to(ROOT).as_posix(), pattern.replace("**", "*"))
        for pattern, codes in settings["per-file-ignores"].items()
    )
    found = {name.split(".")[0] for name in imports(file)} & set(FRAMEWORKS)
    found |= set(re.findall(rf"import_module\([\"'](?:{'|'.join(FRAMEWORKS)})\b", file.read_text(encoding="utf-8")))
    assert allowed or not found


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
    "cli/run.py": {"hydra", "omegaconf"},
    "run/sweeper.py": {"hydra", "omegaconf"},
    "config/overrides.py": {"hydra", "omegaconf"},
    "plan/compose.py": {"hydra", "omegaconf"},
    "plan/sweep_file.py": {"hydra", "omegaconf"},
    "run/resume.py": {"omegaconf"},
    "config/errors.py": {"hydra", "omegaconf"},
    "targets.py": {"hydra"},
}


@of_every(FILES)
def test_a_folder_imports_its_own_frameworks_only(file: Path) -> None:
    """What ruff cannot say: that the torch folder must not import TensorFlow."""
    allowed = next((names for place, names in FRAMEWORKS_BY_FOLDER.items() if relative(file).startswith(place)), set())
    assert {name.split(".")[0] for name in imports(file)} & set(FRAMEWORKS) <= allowed


@of_every(sorted((PACKAGE / "zoo").glob("*.py")))
def test_the_zoo_imports_frameworks_in_its_builders_only(file: Path) -> None:
    if file.name == "train.py":  # makes the weight files; no run imports it
        return
    tree = parsed(file)
    skipped = for_types_only(tree)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in skipped:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [str(node.module)]
            assert not {name.split(".")[0] for name in names} & set(FRAMEWORKS)


def attributes_of_os(file: Path) -> Iterator[str]:
    for node in nodes_of(file):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            yield f"os.{node.attr}"


def environment_writes(file: Path) -> list[str]:
    found = []
    for node in nodes_of(file):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
            found += [ast.unparse(t) for t in targets if ast.unparse(t).startswith("os.environ")]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            if re.fullmatch(
                r"os\.(putenv|unsetenv|environ\.(update|setdefault|pop|clear|popitem|__setitem__))", called
            ):
                found.append(called)
    return found


@of_every(FILES)
def test_the_environment_is_left_alone(file: Path) -> None:
    """A child's environment is a dictionary of its own (run/fork_server.py), and no change to this process's."""
    assert not environment_writes(file) or relative(file) in WRITES_ENVIRONMENT


@of_every(FILES)
def test_the_systems_files_are_read_in_few_places(file: Path) -> None:
    strings = [n.value for n in nodes_of(file) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    found = [text for text in strings if re.match(r"/(proc|sys)(/|$)", text)]
    assert not found or relative(file) in READS_PROC


@of_every(FILES)
def test_processes_are_the_sweeps(file: Path) -> None:
    starting = r"os\.(fork|forkpty|posix_spawnp?|spawn\w+|exec\w+|system|popen|kill|killpg)"
    found = [text for text in attributes_of_os(file) if re.fullmatch(starting, text)]
    found += [name for name in imports(file) if name.split(".")[0] in ("subprocess", "multiprocessing")]
    allowed = relative(file).startswith(("run/", "cluster/", "plan/", "cli/", "doctor/")) or relative(file) in {
        "processes.py",
        "results/environment.py",  # asks git for the revision
        "passes/memory.py",  # what it measures ends with it
        "backends/torch/state.py",  # follows the threads of a pool of multiprocessing
        "backends/fake.py",  # ends its own process, as it is told to
        "backends/model_files.py",  # what makes a model's file must not be in the process that is measured
    }
    assert not found or allowed


@of_every([f for f in FILES if re.match(r"report/|results/(compare|statistics)|plan/plan", relative(f))])
def test_what_is_pure_does_no_input_or_output(file: Path) -> None:
    calls = [ast.unparse(n.func) for n in nodes_of(file) if isinstance(n, ast.Call)]
    # `Console(file=StringIO()).print` makes a text; the templates of a report lie beside the code and are read once.
    forbidden = [c for c in calls if re.search(r"(^open|^print|\.(open|write_text|write_bytes|mkdir|unlink))$", c)]
    assert forbidden == []


@of_every([*FILES, *PLUGINS])
def test_a_file_says_what_it_is(file: Path) -> None:
    assert ast.get_docstring(parsed(file))


def imported_by(program: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after ``program``."""
    listing = "import atexit, sys; atexit.register(lambda: print('|' + ' '.join(sorted({m.split('.')[0] for m in sys.modules}))))"
    done = subprocess.run(
        [sys.executable, "-c", f"{listing}\n{program}"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.rpartition("|")[2].split())


@pytest.mark.parametrize(
    "program",
    [
        "import sweeprof; dir(sweeprof); sweeprof.__version__",
        "import runpy, sys; sys.argv = ['sweeprof', '--help']; runpy.run_module('sweeprof', run_name='__main__')",
        "import runpy, sys; sys.argv = ['sweeprof', '--version']; runpy.run_module('sweeprof', run_name='__main__')",
        "import runpy, sys; sys.argv = ['sweeprof', 'compare', '--help']; runpy.run_module('sweeprof', run_name='__main__')",
        "import runpy, sys; sys.argv = ['sweeprof', 'report', '--help']; runpy.run_module('sweeprof', run_name='__main__')",
    ],
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


def test_the_machinery_imports_no_framework() -> None:
    modules = "run.fork_server", "metrics.select", "run.shard", "cli.report", "cli.prune", "cli.sync"
    program = "".join(f"import sweeprof.{module}\n" for module in modules)
    assert not imported_by(program) & {"torch", "tensorflow", "keras", "mlflow"}


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
