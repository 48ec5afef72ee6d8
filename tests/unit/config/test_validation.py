"""Every constraint of a config key, with values that it accepts and values that it rejects."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.planning import fake_config
from sweeprof import backends
from sweeprof.config.constraints import parse_size
from sweeprof.config.schema import KEYS, Role
from sweeprof.config.signatures import signature_of
from sweeprof.config.validation import config_problems
from sweeprof.datasets.arrays import Npz
from sweeprof.datasets.source import BOUNDS
from sweeprof.datasets.torch_dataset import TorchDataset
from sweeprof.errors import UserError
from sweeprof.paths import conf_folder

BASE = fake_config()

NOT_WHOLE = [1.5, "1", None, True, [1], float("nan")]
WHOLE_FROM_1 = ([1, 2, 4096], [0, -1, *NOT_WHOLE])
WHOLE_FROM_0 = ([0, 1, 10**6], [-1, *NOT_WHOLE])

SHARE_OR_NULL = ([None, 0.05, 0.999], [0, 1, 1.5, -0.1, "x", True, float("nan")])


TEXTS = ([[], ["latency"], ["latency < 5 ms", "accuracy > 0.97"]], ["latency", [1], None, {"a": "b"}])


KEPT = ["mlflow.db", "MLflow.db-journal", "mlflow.db.new", "mlruns", "mlflow-artifacts"]

CASES: dict[str, tuple[list[Any], list[Any]]] = {
    "metrics.select": ([["params/total"]], [None, [], "params/total", {}]),
    "metrics.strict": (["error", "warn", "ignore"], ["warning", None, True]),
    "mode": (["inference", "training", "generation"], ["train", "Training", None, 1, ["training"]]),
    "generation.prompt_length": ([None, 1, 512], [0, -1, 1.5, "64", True]),
    "generation.new_tokens": ([1, 32], [0, None, 2.5, "8", True]),
    "generation.function": ([None, "my_package.generate"], ["generate", "", 3]),
    # What they reject has further advice: test_an_optimizer_or_a_loss_that_cannot_be
    "training.optimizer": (["sgd", "none", {"_target_": "torch.optim.RMSprop", "lr": 0.01}], []),
    "training.loss": (["mean", "own", {"_target_": "my_package.my_loss"}], []),
    "batch_size": WHOLE_FROM_1,
    "backend.precision": (["fp32", "bf16", "fp16", "int8", "fp8", "int4", None], ["float16", "int2", 16, True]),
    "backend.precision_method": (["convert", "autocast", "torchao", "static", None], ["torch.ao", "int8", 1, True]),
    "backend.compile": ([True, False, "inductor", "openvino"], [1.5, "inductro", [True]]),
    "backend.compile_mode": ([None, "default", "reduce-overhead"], ["fast", True, 1]),
    "backend.compile_dynamic": ([None, True, False], [1, "auto"]),
    "backend.matmul_precision": ([None, "highest", "medium"], ["tf32", 1, True]),
    "backend.threads": WHOLE_FROM_1,
    "seed.weights": WHOLE_FROM_0,
    "protocol.rounds": WHOLE_FROM_1,
    "protocol.warmup_steps": WHOLE_FROM_0,
    "protocol.sample_s": ([0, 0.5, 3], [-0.1, "1", None, True, float("nan")]),
    "protocol.min_samples": WHOLE_FROM_1,
    "protocol.target_spread": SHARE_OR_NULL,
    "protocol.threshold": SHARE_OR_NULL,
    "quality": ([{}, {"f1": {"_target_": "a.b"}}], [64, "64", [64], None]),
    "inputs": ([{}, {"image_size": 64}], [64, "64", [64], None]),
    "limits.timeout_s": ([None, 0.001, 5, 604800], [0, -1, "1", True]),
    "limits.locks": ([None, "/tmp", "/tmp/not/yet/there"], ["locks", "", "/dev/null", 5, True]),
    "limits.memory": (
        [None, "2GiB", 4096, "1.5 MB"],
        [0, -1, "2 apples", "GiB", "", True, 1.5, "0GiB", "-1GiB", "2gib", "2KB", "1e3", "2GiB ", "0.2B"],
    ),
    "isolation": (["fork", "inline"], ["spawn", None, 1, "Fork"]),
    "tracking.uri": (
        [None, "http://h:5000", "https://u:p@h", "sqlite:////a/b.db", "postgresql+psycopg://h/d"],
        ["foo", "", 5, "ftp://h", "/a/b"],
    ),
    "tracking.parent_run": ([None, "0", "a" * 32], ["", "a-b", "a" * 33, 5]),
    "args": ([{}, {"threads": 1}], [64, "64", [64], None]),
    "shards": ([None, 1, 4], [0, -1, 1.5, "2", True]),
    "name": (
        [None, "a", "my sweep-1.2_x", "_", "mlflow", "é" * 127, "last.", "a.tags"],
        ["", ".", "..", "a/b", " ", 3, "a\nb", ".tags", ".x", "a ", " a", "-a", "é" * 128, "n" * 256, "\ud800", *KEPT],
    ),
    "metrics.functions": ([[], ["a.b"], ["a.b", "c"]], ["a.b", [1], None, {}]),
    "fail_fast": ([True, False], [None, 0, 1, "true"]),
    "resume": ([None, "last", "outputs/a/2026"], ["", 1, True, ["last"]]),
    "retry_statuses": ([[], ["oom", "timeout"], ["lost"]], ["oom", ["om"], None, [1]]),
    "protocol.interleave": (["rounds", "samples"], ["round", None, True]),
    "budget": ([None, "90s", "10min", "1.5h"], ["10", 10, "0s", "soon", True]),
    "search.maximize": ([None, "throughput", ["latency", "accuracy"]], [1, True, [1]]),
    # Conditions need a goal: tests/unit/plan/test_compose.py
    "search.subject_to": ([[]], ["latency < 5 ms", [1], {"a": "b"}]),
    "search.trials": ([None], [0, 1.5, "40", True]),
    "search.sampler": ([None, "TPESampler"], [1, True, ["TPESampler"]]),
    "search.seed": WHOLE_FROM_0,
    # The others need three rounds: tests/unit/run/test_stopping.py
    "protocol.decide": ([None], ["base", "pairs", True, ["baseline"]]),
    "compare.thresholds": ([{}, {"latency/forward": 0.03}], [{"a": 1}, {"a": "x"}, [0.1], None]),
    "compare.tolerance": ([None, 0.01], [0, 1, -0.1, "x", True]),
    "compare.pareto": TEXTS,
    "compare.constraints": TEXTS,
    "cluster.minutes": ([0.5, 10], [0, -1, "10", None]),
    "cluster.parallel": ([None, 1, 50], [0, 1.5, "2", True]),
    "cluster.time": ([None, "30min", "2h", "1.5d"], [30, "2:00:00", 7200, "0h", "h", True]),
    "cluster.memory": ([None, "4GiB", 2**32], [0, 8, 4096, "64kB", "4 apples", True]),
    "cluster.cpus": ([None, 1, 16], [0, "1", 1.5, True]),
    "cluster.gpus": ([None, 0, 2, "a100:1"], [-1, "a100", "1", 1.5, True]),
    "cluster.options": ([{}, {"nice": 100, "reservation": "night"}], [[], "nice=100", None]),
    "cluster.setup": TEXTS,
    "cluster.poll_s": ([0.1, 5], [0, "5", None]),
    "cluster.partition": ([None, "gpu"], ["", 3, True]),
}


def with_value(key: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(BASE)
    *parents, last = key.split(".")
    node = config
    for part in parents:
        node = node.setdefault(part, {})
    node[last] = value
    return config


def keys_of(config: dict[str, Any]) -> list[str]:
    return [problem.key for problem in config_problems(config)]


def test_every_constraint_has_its_cases() -> None:
    """Of keys with the same constraint one has them."""
    tested = {KEYS[name].constraint for name in CASES}
    assert [key.name for key in KEYS.values() if key.constraint and key.constraint not in tested] == []


@pytest.mark.parametrize("key", CASES)
def test_values_of_a_key(key: str) -> None:
    accepted, rejected = CASES[key]
    constraint = KEYS[key].constraint
    assert constraint is not None
    assert constraint.message.startswith("is not ")
    for value in accepted:
        assert config_problems(with_value(key, value)) == []
    for value in rejected:
        (problem,) = config_problems(with_value(key, value))
        assert problem.key == key
        assert problem.value is value
        advice = problem.allowed.removeprefix(constraint.message)
        if KEYS[key].role is Role.IDENTITY and isinstance(value, list):
            assert advice == "" or advice.startswith(f" To measure each, write {key}=")
        else:
            assert advice == ""


NUMBERS = [
    key.name
    for key in KEYS.values()
    if not {"int", "float"}.isdisjoint(key.type.replace("|", " ").split()) and not key.name.startswith("job.")
]


@pytest.mark.parametrize("key", NUMBERS)
def test_every_number_has_an_upper_bound(key: str) -> None:
    constraint = KEYS[key].constraint
    assert constraint is not None
    for value in (10**16, 10**40, 10**6000, -(10**6000), 1e300, float("inf")):
        (problem,) = config_problems(with_value(key, value))
        assert (problem.key, problem.allowed) == (key, constraint.message)
        assert len(str(problem)) < 900


DATASETS = [
    str(yaml.safe_load(path.read_text())["_target_"])
    for path in sorted((conf_folder() / "dataset").glob("*.yaml"))
    if path.stem != "auto"
]


def integers_of(target: str) -> set[str]:
    """The arguments that take a whole number, and perhaps None."""
    signature = signature_of(target)
    assert signature is not None
    found = signature.arguments.items()
    return {name for name, one in found if one.kind and one.kind.accepts(10**30) and not one.kind.accepts(1.5)}


@pytest.mark.parametrize("target", DATASETS)
def test_every_whole_number_of_a_dataset_has_bounds(target: str) -> None:
    checked = integers_of(target) - {"channels", "high"}  # an axis, or 1 or 3; ids are compared with the model's
    assert checked <= BOUNDS.keys()
    for name in checked:
        _, least, most = BOUNDS[name]
        for value in (most + 1, 10**37, least - 1):
            dataset = {"_target_": target, name: value}
            found = [problem for problem in config_problems(with_value("dataset", dataset)) if problem.value == value]
            assert [problem.key for problem in found] == [f"dataset.{name}"]
            assert f"a whole number from {least} to {most:,}." in str(found[0])


@pytest.mark.parametrize(("target", "name"), [("images.Images", "crop"), ("digits.Digits", "test_share")])
def test_a_whole_number_too_large_for_a_float_is_a_problem(target: str, name: str) -> None:
    dataset = {"_target_": f"sweeprof.datasets.{target}", name: 10**400}
    assert keys_of(with_value("dataset", dataset)) == [f"dataset.{name}"]


def test_a_program_gets_the_same_bounds(tmp_path: Path) -> None:
    (tmp_path / "x.npz").touch()
    with pytest.raises(UserError, match=r"dataset\.limit: 0 is not a number of samples: a whole number from 1 to"):
        Npz(path=str(tmp_path / "x.npz"), limit=0)
    with pytest.raises(UserError, match=r"dataset\.workers: 4097 is not a number of processes: .* from 0 to 4,096"):
        TorchDataset(source={"_target_": "builtins.list"}, workers=4097)


def test_sizes_and_times_as_text_have_upper_bounds() -> None:
    for key, unit in (("limits.memory", "GiB"), ("budget", "h"), ("cluster.time", "d")):
        for text in ("9" * 400, "99999999999 "):
            assert keys_of(with_value(key, text + unit)) == [key]
    assert keys_of(with_value("cluster.gpus", "a100:" + "9" * 5000)) == ["cluster.gpus"]


def test_an_argument_that_no_file_of_a_sweep_can_hold() -> None:
    for value in (10**5000, "a\0b", [1, {"x": 2**200}]):
        problems = config_problems({"dataset": {**BASE["dataset"], "path": value}})
        assert problems[0].key.startswith("dataset.path")


OPTIMIZERS = "Known: adam, adamw, momentum, none, sgd."
LOSSES = "Known: cross_entropy, mean, mse, own."


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("training.optimizer", "adamm", f": 'adamm' is not an optimizer. Did you mean 'adam'? {OPTIMIZERS}"),
        ("training.optimizer", {"lr": 1}, "._target_: None is not the dotted name of a class or function."),
        ("training.loss", None, f": None is not a loss. {LOSSES}"),
        ("training.loss", "my.loss", "write training.loss._target_=my.loss."),
        ("quality.f1", "my_metrics.f1", "write quality.f1._target_=my_metrics.f1."),
        ("model.fake._target_", None, "model.fake._target_: None is"),
        ("model.fake._target_", ["a"], "model.fake._target_: ['a'] is"),
    ],
)
def test_an_optimizer_or_a_loss_that_cannot_be(key: str, value: Any, told: str) -> None:
    (problem,) = config_problems(with_value(key, value))
    assert str(problem).startswith(key)
    assert told in str(problem)


@pytest.mark.parametrize("group", ["dataset", "backend"])
def test_a_missing_target(group: str) -> None:
    config = copy.deepcopy(BASE)
    del config[group]["_target_"]
    (problem,) = config_problems(config)
    assert (problem.key, problem.allowed) == (f"{group}._target_", "is missing: it must name a class or function.")


UNTRACKED = {**BASE, "tracking": {"_target_": None}}


def on_backend(framework: str) -> dict[str, Any]:
    return {**UNTRACKED, "backend": {**BASE["backend"], "framework": framework}}


@pytest.mark.parametrize(
    ("framework", "missing", "said"),
    [
        ("jax", {"jaxlib"}, "'jax' needs the package jaxlib, which is"),
        ("jax", {"jax", "keras"}, "'jax' is"),
        ("onnx", {"onnx"}, "'onnxruntime' needs the package onnx, which is"),
    ],
)
def test_a_package_that_is_not_installed(
    framework: str, missing: set[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(backends, "find_spec", lambda name: None if name in missing else found(name))
    (problem,) = config_problems(on_backend(framework))
    extra = said.split("'")[1]
    message = f"backend: {said} not installed here: pip install 'sweeprof[{extra}]', or use what is installed: "
    assert str(problem).startswith(message)
    with pytest.raises(UserError, match=rf"needs the package \w+: pip install 'sweeprof\[{extra}\]'"):
        backends.backend_named(extra)


def test_what_is_not_installed_where_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    (problem,) = config_problems(on_backend("tensorflow"))
    assert str(problem) == "backend: 'tensorflow' is not installed here: pip install 'sweeprof[tensorflow]'."


SIZES = {
    1: 1,
    "1": 1,
    "1B": 1,
    "2KiB": 2048,
    "2 MiB": 2 << 20,
    "1.5GiB": 3 << 29,
    "1TiB": 1 << 40,
    "2kB": 2000,
    "2TB": 2 * 10**12,
}


def test_sizes() -> None:
    assert {value: parse_size(value) for value in SIZES} == SIZES


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_new_tokens", 8, "is set by sweeprof: give generation.new_tokens."),
        ("stop_strings", "end", "is set by sweeprof, which measures until the last token."),
    ],
)
def test_arguments_of_generate_that_a_measurement_sets(name: str, value: object, allowed: str) -> None:
    (problem,) = config_problems(with_value("generation", {**BASE["generation"], name: value}))
    assert (problem.key, problem.value, problem.allowed) == (f"generation.{name}", value, allowed)
    own = {**BASE["generation"], "function": "my_package.generate", name: value}
    assert config_problems(with_value("generation", own)) == []
