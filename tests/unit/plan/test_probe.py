"""Targets and devices, as only an import can tell them."""

from __future__ import annotations

import copy
import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from support.planning import fake_config
from sweeprof.errors import Problem
from sweeprof.plan.plan import Combination
from sweeprof.plan.probe import device_problem, probe
from sweeprof.targets import target_problems

KEY = "training.loss._target_"
MODULES = {
    "fine": """
SIZE = 3
class MyNet: ...
class Optimizer:
    def __init__(self, params, lr=0.1, momentum=0.0): ...
def build(): ...
def loss(outputs, targets, *, weight=1.0): ...
def anything(outputs, targets, **options): ...
""",
    "raising": "raise RuntimeError('no luck')\n",
    "unparsable": "def (:\n",
    "importing": "import json\nfrom no_such_package import layer\n",
    "exiting": "import sys\nsys.exit('bye')\n",
    "crashing": "import os\nos._exit(7)\n",
    "data": """
import numpy as np
from sweeprof.datasets import Split

class Good:
    sample_shape, channel_axis = (4,), None

    def split(self, name):
        return Split(np.zeros((8, 4)), None)

class Pairs(Good):
    def split(self, name):
        return Split([np.zeros((8, 4)), np.zeros((8, 4))], None)

class Raising(Good):
    def split(self, name):
        raise FileNotFoundError("only on the node")

class Exiting(Good):
    def split(self, name):
        raise SystemExit(3)
""",
}
PACKAGED = frozenset(
    ["sweeprof.datasets.arrays.Digits", "sweeprof.backends.fake.FakeBackend", "sweeprof.backends.fake.FakeModel"]
)


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in MODULES.items():
        (tmp_path / f"probed_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def combination(target: str, device: str = "cpu") -> Combination:
    config = copy.deepcopy(fake_config())
    config["model"]["fake"] = {"_target_": target}
    config["device"]["type"] = device
    return Combination("c", {}, config, "")


def keys_of(problems: list[Problem]) -> list[tuple[Any, ...]]:
    return [(problem.key, problem.value, problem.nearest) for problem in problems]


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("probed_fine.build", {}),
        ("sweeprof.zoo.mlp.torch_model", {}),
        ("collections.OrderedDict.fromkeys", {}),
        ("probed_fine.Optimizer", {"lr": 1, "momentum": 2}),
        ("probed_fine.anything", {"zzz": 2}),
        ("builtins.dict", {"zzz": 2}),  # which has no signature
    ],
)
def test_fine(target: str, arguments: dict[str, int]) -> None:
    assert target_problems(KEY, target, arguments) == []


NO_MODULE = "cannot be imported: ModuleNotFoundError: No module named"


@pytest.mark.parametrize(
    ("target", "said", "nearest"),
    [
        ("MyNet", "is not the dotted name of a class or function, such as my_package.MyNet.", None),
        (".MyNet", "is not the dotted name", None),
        ("probed_fine.", "is not the dotted name", None),
        ("", "is not the dotted name", None),
        ("probed_raising.MyNet", "cannot be imported: RuntimeError: no luck (probed_raising.py:1 in <module>).", None),
        ("probed_fine.MyNett", "cannot be imported: probed_fine has no 'MyNett'.", "MyNet"),
        ("probed_fine.zzz", "cannot be imported: probed_fine has no 'zzz'.", None),
        ("probed_fine.SIZE", "is a int, which cannot be called; name a class or a function.", None),
        ("no_such_module.MyNet", f"{NO_MODULE} 'no_such_module'; sys.path: {{}}", None),
        ("probed_importing.MyNet", f"{NO_MODULE} 'no_such_package' (probed_importing.py:2 in <module>); sys.path: {{}}", None),
    ],
)  # fmt: skip
def test_problems(modules: Path, target: str, said: str, nearest: str | None) -> None:
    (problem,) = target_problems(KEY, target, ())
    assert (problem.key, problem.value, problem.nearest) == (KEY, target, nearest)
    assert problem.allowed.startswith(said.format(modules))


def test_a_syntax_error() -> None:
    (problem,) = target_problems(KEY, "probed_unparsable.MyNet", ())
    assert problem.allowed.startswith("cannot be imported: SyntaxError: ")
    assert "(probed_unparsable.py:1)" in problem.allowed


@pytest.mark.slow
def test_data_of_another_form_are_reported_before_anything_is_measured() -> None:
    def found(*names: str, here: bool = True) -> list[Problem]:
        made = [combination("sweeprof.backends.fake.FakeModel") for _ in names]
        for one, name in zip(made, names, strict=True):
            one.config["dataset"] = {"_target_": f"probed_data.{name}"}
        return probe(made, PACKAGED, here)

    (problem,) = found("Good", "Pairs", "Raising")
    assert (problem.key, problem.value) == ("dataset", "probed_data.Pairs")
    said = "probed_data.Pairs (probed_data.py:12 in Pairs.split): split('test').inputs is a list of 2"
    assert said in problem.allowed
    assert found("Pairs", here=False) == []  # the data are on the nodes of a cluster
    assert found("Exiting") == []


def test_a_process_of_its_own_looks() -> None:
    targets = ("probed_fine.MyNet", "probed_fine.MyNett", "probed_raising.MyNet", "probed_fine.MyNett")
    assert keys_of(probe([combination(target) for target in targets], PACKAGED)) == [
        ("model.fake._target_", "probed_fine.MyNett", "MyNet"),
        ("model.fake._target_", "probed_raising.MyNet", None),
    ]


@pytest.mark.parametrize("module", ["probed_exiting", "probed_crashing"])
def test_an_import_that_ends_its_process_is_a_problem(module: str) -> None:
    (problem,) = probe([combination(f"{module}.MyNet")], PACKAGED)
    assert problem.value == f"{module}.MyNet"
    assert problem.allowed.startswith("cannot be imported: ")


def test_arguments_of_all_parts_are_looked_at() -> None:
    step, other = combination("probed_fine.MyNet"), combination("probed_fine.Optimizer")
    step.config["training"] = {"optimizer": {"_target_": "probed_fine.Optimizer", "lrr": [0.1]}, "loss": "mean"}
    (misspelt,) = probe([step, step], PACKAGED)
    assert (misspelt.key, misspelt.value, misspelt.nearest) == ("training.optimizer", "lrr", "lr")
    assert misspelt.allowed.startswith("is not an argument of probed_fine.Optimizer. Known: ")
    other.config["model"]["fake"]["momentun"] = {"_target_": "probed_fine.MyNet"}
    other.config["dataset"] = {"_target_": "probed_fine.loss", "wieght": 1, "preload": []}
    assert keys_of(probe([other], PACKAGED)) == [
        ("model.fake", "momentun", "momentum"),
        ("model.fake", "params", None),
        ("dataset", "wieght", "weight"),
        ("dataset", "outputs", None),
        ("dataset", "targets", None),
    ]


def test_required_arguments_of_models_are_needed() -> None:
    built = []
    for target, arguments in (
        ("probed_fine.Optimizer", {}),
        ("probed_fine.Optimizer", {"params": 1}),
        ("probed_fine.Optimizer", {"_args_": [1]}),
        ("probed_fine.Optimizer", {"param": 1}),  # which is not missing too
        ("probed_fine.loss", {"targets": 1}),
        ("probed_fine.anything", {"zzz": 2}),
        ("builtins.dict", {}),
    ):
        built.append(combination(target))
        built[-1].config["model"]["fake"] |= arguments
    problems = probe(built, PACKAGED)
    assert keys_of(problems) == [
        ("model.fake", "params", None),
        ("model.fake", "param", "params"),
        ("model.fake", "outputs", None),
        ("model.fake", "outputs", None),
        ("model.fake", "targets", None),
    ]
    said = "is a required argument of probed_fine.Optimizer: set model.fake.params=VALUE."
    assert problems[0] == Problem("model.fake", "params", said)


def test_packaged_targets_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeprof.plan.probe.Child", None)
    assert probe([combination("packaged.Model")], PACKAGED | {"packaged.Model"}) == []


@pytest.mark.slow
def test_devices_are_those_of_the_host_and_the_backend() -> None:
    (problem,) = probe([combination("probed_fine.MyNet", "cuda")], PACKAGED)
    assert (problem.key, problem.value) == ("device.type", "cuda")
    assert problem.allowed == "is not a device of this host. Known: cpu."
    backend = fake_config()["backend"]
    assert device_problem(backend, "cpu") is None
    misspelt = device_problem(backend, "cpus")
    assert misspelt is not None
    assert misspelt.nearest == "cpu"
