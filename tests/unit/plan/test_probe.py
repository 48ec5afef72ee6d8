"""Targets and devices, as only an import can tell them."""

from __future__ import annotations

import copy
import importlib
import os
from pathlib import Path

import pytest

from support.fakes import fake_config
from sweeprof.errors import Problem
from sweeprof.plan.plan import Combination
from sweeprof.plan.probe import device_problem, probe
from sweeprof.targets import target_problems

KEY = "model.torch._target_"
FINE = """
SIZE = 3
class MyNet: ...
class Optimizer:
    def __init__(self, params, lr=0.1, momentum=0.0): ...
def build(): ...
def loss(outputs, targets, *, weight=1.0): ...
def anything(outputs, targets, **options): ...
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "probed_fine.py").write_text(FINE)
    (tmp_path / "probed_raising.py").write_text("raise RuntimeError('no luck')\n")
    (tmp_path / "probed_unparsable.py").write_text("def (:\n")
    (tmp_path / "probed_exiting.py").write_text("import sys\nsys.exit('bye')\n")
    (tmp_path / "probed_crashing.py").write_text("import os\nos._exit(7)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


@pytest.mark.parametrize(
    "target",
    ["probed_fine.MyNet", "probed_fine.build", "sweeprof.zoo.mlp.torch_model", "collections.OrderedDict.fromkeys"],
)
def test_fine(modules: Path, target: str) -> None:
    assert not target_problems(KEY, target, ())


@pytest.mark.parametrize(
    ("target", "said", "nearest"),
    [
        ("MyNet", "is not the dotted name of a class or function, such as my_package.MyNet.", None),
        ("probed_raising.MyNet", "cannot be imported: RuntimeError: no luck (probed_raising.py:1 in <module>).", None),
        ("probed_fine.MyNett", "cannot be imported: probed_fine has no 'MyNett'.", "MyNet"),
        ("probed_fine.zzz", "cannot be imported: probed_fine has no 'zzz'.", None),
        ("probed_fine.SIZE", "is a int, which cannot be called; name a class or a function.", None),
    ],
)  # fmt: skip
def test_problems(modules: Path, target: str, said: str, nearest: str | None) -> None:
    (problem,) = target_problems(KEY, target, ())
    assert (problem.key, problem.value, problem.allowed, problem.nearest) == (KEY, target, said, nearest)


def test_a_module_that_does_not_exist_comes_with_the_search_path(modules: Path) -> None:
    (problem,) = target_problems(KEY, "no_such_module.MyNet", ())
    said = "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'; sys.path: "
    assert problem.allowed.startswith(said)
    assert str(modules) in problem.allowed


def test_an_import_within_a_users_module_names_that_module(modules: Path) -> None:
    (modules / "probed_importing.py").write_text("import json\nfrom no_such_package import layer\n")
    (problem,) = target_problems(KEY, "probed_importing.MyNet", ())
    said = "ModuleNotFoundError: No module named 'no_such_package' (probed_importing.py:2 in <module>); sys.path: "
    assert said in problem.allowed
    assert str(modules) in problem.allowed


def test_a_syntax_error(modules: Path) -> None:
    (problem,) = target_problems(KEY, "probed_unparsable.MyNet", ())
    assert "cannot be imported: SyntaxError: " in problem.allowed
    assert "(probed_unparsable.py:1)" in problem.allowed


DATASETS = """
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
"""


def test_data_of_another_form_are_reported_before_anything_is_measured(modules: Path) -> None:
    (modules / "probed_data.py").write_text(DATASETS)
    packaged = frozenset({"sweeprof.backends.fake.FakeModel", "sweeprof.backends.fake.FakeBackend"})

    def found(*names: str, here: bool = True) -> list[Problem]:
        made = [combination("sweeprof.backends.fake.FakeModel") for _ in names]
        for one, name in zip(made, names, strict=True):
            one.config["dataset"] = {"_target_": f"probed_data.{name}"}
        return probe(made, packaged, here)

    (problem,) = found("Good", "Pairs", "Raising")
    assert (problem.key, problem.value) == ("dataset", "probed_data.Pairs")
    assert (
        "probed_data.Pairs (probed_data.py:12 in Pairs.split): split('test').inputs is a list of 2" in problem.allowed
    )
    assert found("Pairs", here=False) == []  # the data are on the nodes of a cluster
    assert found("Exiting") == []


@pytest.mark.parametrize("target", [".MyNet", "probed_fine.", ""])
def test_odd_names_are_problems_too(modules: Path, target: str) -> None:
    assert target_problems(KEY, target, ())


def combination(target: str, device: str = "cpu") -> Combination:
    config = copy.deepcopy(fake_config())
    config["model"]["fake"] = {"_target_": target}
    config["device"]["type"] = device
    return Combination("c", {}, config, "")


PACKAGED = frozenset(["sweeprof.datasets.arrays.Digits", "sweeprof.backends.fake.FakeBackend"])


def test_a_process_of_its_own_looks(modules: Path) -> None:
    targets = ("probed_fine.MyNet", "probed_fine.MyNett", "probed_raising.MyNet", "probed_fine.MyNett")
    problems = probe([combination(target) for target in targets], PACKAGED)
    assert [(p.key, p.value) for p in problems] == [
        ("model.fake._target_", "probed_fine.MyNett"),
        ("model.fake._target_", "probed_raising.MyNet"),
    ]


@pytest.mark.parametrize("module", ["probed_exiting", "probed_crashing"])
def test_an_import_that_ends_its_process_is_a_problem(modules: Path, module: str) -> None:
    (problem,) = probe([combination(f"{module}.MyNet")], PACKAGED)
    assert problem.value == f"{module}.MyNet"
    assert problem.allowed.startswith("cannot be imported: ")


@pytest.mark.parametrize(
    ("target", "arguments", "nearest"),
    [
        ("probed_fine.Optimizer", {"lr": 1, "momentun": 2}, "momentum"),
        ("probed_fine.loss", {"wieght": 2}, "weight"),
        ("probed_fine.loss", {"zzz": 2}, None),
    ],
)
def test_a_misspelt_argument(modules: Path, target: str, arguments: dict[str, int], nearest: str | None) -> None:
    (problem,) = target_problems("training.loss._target_", target, arguments)
    assert (problem.key, problem.value, problem.nearest) == ("training.loss", list(arguments)[-1], nearest)
    assert problem.allowed.startswith(f"is not an argument of {target}. Known: ")


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("probed_fine.Optimizer", {"lr": 1, "momentum": 2}),
        ("probed_fine.loss", {"weight": 2}),
        ("probed_fine.anything", {"zzz": 2}),
        ("builtins.dict", {"zzz": 2}),  # which has no signature
    ],
)
def test_arguments_that_are_accepted(modules: Path, target: str, arguments: dict[str, int]) -> None:
    assert target_problems("training.loss._target_", target, arguments) == []


def test_arguments_of_a_training_step_are_looked_at(modules: Path) -> None:
    one = combination("probed_fine.MyNet")
    one.config["training"] = {"optimizer": {"_target_": "probed_fine.Optimizer", "lrr": [0.1]}, "loss": "mean"}
    (problem,) = probe([one, one], PACKAGED)
    assert (problem.key, problem.value, problem.nearest) == ("training.optimizer", "lrr", "lr")


def test_arguments_of_a_model_and_a_dataset_are_looked_at(modules: Path) -> None:
    one = combination("probed_fine.Optimizer")
    one.config["model"]["fake"]["momentun"] = {"_target_": "probed_fine.MyNet"}
    one.config["dataset"] = {"_target_": "probed_fine.loss", "wieght": 1, "preload": []}
    assert [(p.key, p.value, p.nearest) for p in probe([one], PACKAGED)] == [
        ("model.fake", "momentun", "momentum"),
        ("dataset", "wieght", "weight"),
    ]


def test_packaged_targets_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeprof.plan.probe.Child", None)
    assert probe([combination("packaged.Model")], PACKAGED | {"packaged.Model"}) == []


def test_a_device_that_the_host_lacks(modules: Path) -> None:
    (problem,) = probe([combination("probed_fine.MyNet", "cuda")], PACKAGED)
    assert (problem.key, problem.value) == ("device.type", "cuda")
    assert problem.allowed == "is not a device of this host. Known: cpu."


def test_devices_are_the_backends() -> None:
    backend = fake_config()["backend"]
    assert device_problem(backend, "cpu") is None
    problem = device_problem(backend, "cpus")
    assert problem is not None
    assert problem.nearest == "cpu"
