"""The package in new environments: on every Python, with each extra alone, and with the oldest and the newest dependencies.

`make versions` runs these tests, which need a package index. `newest` installs the package as a user does; `oldest` installs the
lowest version of every dependency that pyproject.toml allows. uv finds the Pythons or downloads them; a row is skipped if it can do
neither.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

import sweeprof
from support.command import environment

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if "Python :: 3." in name]
BACKENDS = ["torch", "tensorflow", "onnxruntime", "jax", "litert", "openvino"]
ROWS = [
    *((python, extra, "newest") for python in PYTHONS for extra in ("none", *BACKENDS, "mlflow", "all")),
    *((PYTHONS[0], extra, "oldest") for extra in ("none", *BACKENDS, "mlflow")),
]
INSTALL_S, SWEEP_S = 400, 900
MLP_MACS = 1024 * 128 + 128 * 64 + 64 * 10
SHOWN = "torch tensorflow onnxruntime jax keras ai-edge-litert openvino mlflow hydra-core numpy pandas".split()
FAKE = ("model=fake", "backend=fake", "dataset=synthetic")
UNTRACKED = "tracking: MLflow is not installed"

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(INSTALL_S + 2 * SWEEP_S)]


@dataclass(frozen=True)
class Installed:
    """An environment with the package, and an empty folder in which commands run."""

    python: Path
    cwd: Path

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run ``python ARGUMENTS``; return what it prints."""
        variables = {name: value for name, value in environment(self.cwd).items() if name != "PYTHONPATH"}
        command: list[str | Path] = [self.python, *arguments]
        output = subprocess.STDOUT
        done = subprocess.run(
            command,
            cwd=self.cwd,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            timeout=SWEEP_S,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def sweep(self, *arguments: str, code: int = 0) -> str:
        """Run ``python -m sweeprof ARGUMENTS``."""
        return self.run("-m", "sweeprof", *arguments, f"limits.locks={self.cwd / 'locks'}", code=code)

    def report(self) -> pd.DataFrame:
        """Write the reports of the newest sweep again; return its comparison."""
        folder = max(self.cwd.glob("outputs/*/*/plan.json"), key=lambda path: path.stat().st_mtime).parent
        (folder / "report.html").unlink()
        self.run("-m", "sweeprof", "report", str(folder))
        assert "<html" in (folder / "report.html").read_text()
        table = pd.read_csv(folder / "comparison.csv")
        assert set(table["status"]) == {"ok"}
        return table


def uv(*arguments: str | Path) -> None:
    """Run uv, which also finds the Pythons of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [str(folder) for folder in sorted(pyenv.glob("versions/3.*/bin"))]
    variables = {**os.environ, "PATH": os.pathsep.join([*folders, os.environ["PATH"]])}
    command = [sys.executable, "-m", "uv", "--quiet", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"uv {' '.join(map(str, arguments))} failed: {done.stderr}")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist, and of the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--out-dir", folder, ROOT)
    return folder


@pytest.fixture
def installed(request: pytest.FixtureRequest, distributions: Path, tmp_path: Path) -> Iterator[Installed]:
    """A new environment with one extra; `none` installs the sdist, all others the wheel."""
    python, extra, age = request.param
    venv, away = tmp_path / "venv", tmp_path / "away"
    away.mkdir()
    try:
        uv("venv", "--python", python, venv)
    except RuntimeError as error:
        pytest.skip(f"Python {python} cannot be found or downloaded: {error}")
    name = "*.tar.gz" if extra == "none" else "*.whl"
    (package,) = distributions.glob(name)
    extras = [] if extra == "none" else [extra]
    install = ("pip", "install", "--python", venv / "bin" / "python")
    if age == "newest":
        uv(*install, f"sweeprof[{','.join(extras)}] @ {package.as_uri()}")
    else:
        named = [f"--extra={extra}" for extra in extras]
        uv(*install, "--resolution=lowest-direct", "--requirements", ROOT / "pyproject.toml", *named)
        uv(*install, "--no-deps", package)
    environment = Installed(venv / "bin" / "python", away)
    program = "from importlib.metadata import *; [print(d.name, d.version) for d in distributions()]"
    lines = environment.run("-c", program)
    versions = dict(line.split() for line in lines.splitlines())
    print(f"\nPython {python} · {extra} · {age}:", *(f"{name} {versions[name]}" for name in SHOWN if name in versions))
    yield environment
    subprocess.run(["rm", "-rf", venv], check=True)


def rows(*extras: str) -> pytest.MarkDecorator:
    """The rows of these extras."""
    chosen = [row for row in ROWS if row[1] in extras]
    return pytest.mark.parametrize("installed", chosen, ids=["-".join(row) for row in chosen], indirect=True)


@rows("none")
def test_without_extras(installed: Installed) -> None:
    """The help, one error that names the extra, and a sweep from the user's own folder of configs."""
    assert "sweeprof KEY=VALUE" in installed.run("-m", "sweeprof", "--help")
    assert f"sweeprof {sweeprof.__version__}" in installed.run("-m", "sweeprof", "--version")
    said = installed.sweep(code=1)
    assert "error: backend: 'torch' is not installed here: pip install 'sweeprof[torch]'." in said
    assert "Traceback" not in said
    own = installed.cwd / "configs" / "sweep"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(
        "defaults:\n- override /model: fake\n- override /backend: fake\n- override /dataset: synthetic\n"
        "axes: {batch_size: [1, 2]}\n"
    )
    assert UNTRACKED in installed.sweep("--config-dir", "configs", "+sweep=mine")
    assert list(installed.report()["batch_size"]) == [1, 2]


@rows("torch", "tensorflow", "jax", "litert")
def test_a_backend_alone(installed: Installed, request: pytest.FixtureRequest) -> None:
    backend = request.node.callspec.params["installed"][1]
    assert "sweeprof KEY=VALUE" in installed.run("-m", "sweeprof", "--help")
    said = installed.sweep("model=mlp", f"backend={backend}")
    (line,) = [line for line in said.splitlines() if "MLflow" in line]
    assert line.startswith(UNTRACKED)
    _check_mlp(installed.report())


@rows("onnxruntime", "openvino")
def test_files_without_a_framework(installed: Installed, request: pytest.FixtureRequest) -> None:
    """Without a framework these run files; a model that they would have to convert is an error that names the extra."""
    backend = request.node.callspec.params["installed"][1]
    said = installed.sweep("model=mlp", f"backend={backend}", code=1)
    assert "'torch' is needed to build the model for" in said
    assert "and is not installed here: pip install 'sweeprof[torch]'." in said
    installed.run("-c", FILES[backend])
    suffix = {"onnxruntime": "onnx", "openvino": "xml"}[backend]
    assert UNTRACKED in installed.sweep("model=file", f"model.path=mlp.{suffix}", f"backend={backend}", "dataset=auto")
    _check_mlp(installed.report())


@rows("mlflow")
def test_mlflow_alone(installed: Installed) -> None:
    assert "MLflow UI" in installed.sweep(*FAKE)
    installed.report()
    runs = "import mlflow; print(len(mlflow.search_runs(search_all_experiments=True)))"
    program = f"import mlflow; mlflow.set_tracking_uri('sqlite:///outputs/mlflow.db'); {runs}"
    assert installed.run("-c", program).split()[-1] == "2"


@rows("all")
def test_the_commands_of_the_readme(installed: Installed) -> None:
    installed.sweep("+sweep=quickstart")
    assert len(installed.report()) == 18
    installed.sweep("model=mlp,lenet5", "backend=torch,onnxruntime", "batch_size=1,32")
    assert len(installed.report()) == 8


def _check_mlp(table: pd.DataFrame) -> None:
    assert table["compute/macs_per_sample"].item() == MLP_MACS
    assert 0 < table["latency/forward"].item() < 1
    assert table["params/total"].item() == MLP_MACS + 128 + 64 + 10


FILES = {
    "onnxruntime": """
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(0)
nodes, weights, value = [], [], "x"
for number, (inputs, outputs) in enumerate([(1024, 128), (128, 64), (64, 10)]):
    weights.append(numpy_helper.from_array(random.random((inputs, outputs), np.float32), f"weight{number}"))
    weights.append(numpy_helper.from_array(random.random(outputs, np.float32), f"bias{number}"))
    nodes.append(helper.make_node("Gemm", [value, f"weight{number}", f"bias{number}"], [f"y{number}"]))
    value = f"y{number}"
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1024])
y = helper.make_tensor_value_info(value, TensorProto.FLOAT, ["batch", 10])
model = helper.make_model(
    helper.make_graph(nodes, "mlp", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
)
onnx.save(model, "mlp.onnx")
""",
    "openvino": """
import numpy as np
import openvino
from openvino import opset13 as ops

random = np.random.default_rng(0)
x = value = ops.parameter([-1, 1024], np.float32, name="x")
for inputs, outputs in [(1024, 128), (128, 64), (64, 10)]:
    product = ops.matmul(value, ops.constant(random.random((inputs, outputs), np.float32)), False, False)
    value = ops.add(product, ops.constant(random.random(outputs, np.float32)))
openvino.save_model(openvino.Model([value], [x], "mlp"), "mlp.xml", compress_to_fp16=False)
""",
}
"""By backend, a program that writes the multilayer perceptron of `model=mlp`, with other weights."""
