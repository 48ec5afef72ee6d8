"""Every row of a sweep is measured with the config that plain Hydra composes from its overrides, given as single values.

Sweeps are generated: axes over values, elements of lists, mappings, config groups, packages and whole experiments, with
interpolations between them, on the command line and in sweep files. The reference is ``hydra.compose`` in a process of its own.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import random
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command import run_command
from support.planning import planned, write_configs
from sweeprof.config.override_syntax import frozen
from sweeprof.errors import UserError
from sweeprof.paths import conf_folder
from sweeprof.plan.plan import Combination
from sweeprof.targets import restored

BASE = ["dataset=synthetic", "tracking=none", "metrics=latency", "mode=training"]
GROUPS = ("model", "backend", "exp", "speed", "opt@model.fake.opt")
MEASURED = ("model", "backend", "dataset", "protocol", "batch_size", "mode", "training", "device")

REFERENCE = """
import pickle, sys
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
import sweeprof.config.overrides
conf, own, given, result = sys.argv[1:]
found = []
for lines in pickle.load(open(given, "rb")):
    try:
        with initialize_config_dir(conf, version_base="1.3"):
            config = compose("config", overrides=[f"hydra.searchpath=[file://{own}]", *lines], return_hydra_config=True)
        parts = {}
        for key in MEASURED:
            node = config[key]
            parts[key] = OmegaConf.to_container(node, resolve=True, throw_on_missing=True) if OmegaConf.is_config(node) else node
    except (HydraException, OmegaConfBaseException) as error:
        found.append(f'{lines}: {error}')
    else:
        found.append((parts, dict(config.hydra.runtime.choices)))
pickle.dump(found, open(result, "wb"))
"""

CHOICES = "defaults: [{override /model: m0}, {override /backend: b0}]"
FILES = {
    "model/m0": "fake: {_target_: builtins.dict, a: 1, b: {x: 1, y: [1, 2, {z: 3}]}, c: '${.a}', e: '${batch_size}', l: [0, 1]}\n",
    "model/m1": "defaults: [m0]\nfake: {a: two, f: '${model.fake.a}-${batch_size}', b: {y: [4]}}\n",
    "model/m2": "fake: {_target_: builtins.dict, a: null, b: {}, open: '???', twice: '${.open}', l: [[0]]}\n",
    "backend/b0": "defaults: [fake]\nslowdown: 2.0\n",
    "backend/b1": "defaults: [fake]\nslowdown: 3.0\nthreads: ${batch_size}\n",
    "exp/e0": "# @package _global_\ndefaults: [{override /model: m1}, {override /backend: b1}]\nbatch_size: 5\n",
    "exp/e1": f"# @package _global_\n{CHOICES}\nbatch_size: 6\nmodel: {{fake: {{a: 66}}}}\n",
    "exp/e2": f"# @package _global_\n{CHOICES}\nprotocol: {{min_samples: 9}}\n",
    "speed/s0": "# @package backend\nslowdown: 8.0\n",
    "speed/s1": "# @package backend\nslowdown: ${batch_size}\n",
    "opt/o0": "{lr: 0.1, kind: sgd}\n",
    "opt/o1": "{lr: '${model.fake.a}', kind: adam}\n",
}

AXES: dict[str, list[Any]] = {
    "model": ["m0", "m1", "m2"],
    "backend": ["b0", "b1"],
    "exp": ["e0", "e1", "e2"],
    "speed": ["s0", "s1"],
    "opt@model.fake.opt": ["o0", "o1"],
    "batch_size": [2, 4],
    "model.fake.a": [1, True, 1.0],
    "model.fake.zero": [0, 0.0, -0.0, False],
    "model.fake.b": [{"x": 5}, {"y": 6, "v": 7}],
    "model.fake.b.x": [7, "seven"],
    "model.fake.b.y": [[1], [2, 3]],
    "model.fake.l.0": [10, 11],
    "model.fake.new": [[1, 2], [{"k": 3}], None],
    "model.fake.m": [{1: "a"}, {2: "b", True: "c"}],
    "model.fake.g": ["${batch_size}", "x${model.fake.a}", "${oc.select:model.fake.b.x,none}"],
    "model.fake.open": [1, None],
    "model.fake.limit": [math.inf, 1.5, math.nan],
    "model.fake.text": ["it's", "a,b", "true", "1", " ", "ü", "a\\b", "a=b", "{x}"],
    "dataset.samples": ["${batch_size}", 32],
    "protocol.min_samples": [3, 5],
    "training.optimizer": ["sgd", {"_target_": "torch.optim.SGD", "lr": 0.1}],
}
"""Values of axes, as YAML and Python have them."""
FIXED: dict[str, Any] = {
    "model.fake.b.w": 9,
    "model.fake.b.x": "${batch_size}",
    "model.fake.h": "${model.fake.b}",
    "model.fake.new": "${model.fake.a}",
    "model.fake.opt.lr": 3,
    "protocol.rounds": "${batch_size}",
    "backend.slowdown": 4.0,
    "model.fake.b": {"u": 1},
    "batch_size": 3,
    "model.fake.open": 5,
}


def text(value: Any) -> str:
    """A value in the grammar of overrides; written here again, so that the product's own function is tested too."""
    if isinstance(value, dict):
        items = [f"{'true' if key is True else key}:{text(inner)}" for key, inner in value.items()]
        return f"{{{','.join(items)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(text, value))}]"
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def line(key: str, value: Any) -> str:
    """An override as plain Hydra wants it; a key that the config may lack is added."""
    if key in GROUPS:
        return f"{'' if key in ('model', 'backend') else '+'}{key}={value}"
    return f"++{key}={text(value)}"


def generated(seed: int) -> tuple[list[str], dict[str, str], list[list[str]], list[str]]:
    """A sweep with two to four axes, some of them in a file, and values that are the same for all points.

    Returns its command line, its files, the overrides of every point that it declares, and its axes.
    """
    chance = random.Random(seed)
    keys = chance.sample(list(AXES), chance.randint(2, 4))
    axes = {key: chance.sample(AXES[key], min(len(AXES[key]), chance.randint(2, 3))) for key in keys}
    in_file = [key for key in keys if chance.random() < 0.5 and key != "model.fake.limit"]
    typed = [key for key in keys if key not in in_file]
    fixed = [key for key in chance.sample(list(FIXED), chance.randint(0, 3)) if key not in keys]
    if "m2" in axes.get("model", ()) and "model.fake.open" not in (*keys, *fixed) and chance.random() < 0.8:
        fixed.append("model.fake.open")  # which m2 leaves open; else planning has to say so
    given = typed + fixed
    chance.shuffle(given)
    begin = ["model=m0"] * ("model" not in keys) + ["backend=b0"] * ("backend" not in keys)
    if "exp" in keys:
        begin = []  # so that the experiment chooses
    arguments = [*BASE, *begin]
    for key in given:
        own = axes[key] if key in axes else [FIXED[key]]
        plus = "+" if key in ("exp", "speed", "opt@model.fake.opt") else ""
        arguments.append(f"{plus}{key}={','.join(value if key in GROUPS else text(value) for value in own)}")
    files = dict(FILES)
    file: dict[str, Any] = {}
    rows: list[list[tuple[str, Any]]] = [[]]
    tied: list[str] = []
    if len(in_file) > 1 and chance.random() < 0.5:
        tied = in_file[:2]
        size = min(len(axes[key]) for key in tied)
        axes.update({key: axes[key][:size] for key in tied})
        file["zip"] = [{key: axes[key] for key in tied}]
        rows = [list(zip(tied, values, strict=True)) for values in zip(*(axes[key] for key in tied), strict=True)]
    single = [key for key in in_file if key not in tied]
    if single and chance.random() < 0.3:
        (key, *single) = single
        file["variants"] = {"kind": {f"v{place}": {key: value} for place, value in enumerate(axes[key])}}
        rows = [[*row, (key, value)] for row in rows for value in axes[key]]
    for key in single:
        file.setdefault("axes", {})[key] = axes[key]
        rows = [[*row, (key, value)] for row in rows for value in axes[key]]
    if file:
        files["sweep/s"] = yaml.safe_dump(file, sort_keys=False)
        arguments = ["+sweep=s", *arguments]
    points = []
    for row in rows:
        for values in itertools.product(*(axes[key] for key in given if key in axes)):
            left = iter(values)
            late = [line(key, next(left) if key in axes else FIXED[key]) for key in given]
            # Hydra applies what a file gives the axes before what the command line says.
            of_file = [line(key, value) for key, value in row]
            points.append([*BASE, *begin, *of_file, *late])
    return arguments, files, points, keys


def composed_by_hydra(folder: Path, points: list[list[str]]) -> list[Any]:
    """What Hydra composes in a process of its own: the parts that are measured and the choices from groups, or an error."""
    given, result = folder / "given.pickle", folder / "result.pickle"
    given.write_bytes(pickle.dumps(points))
    program = REFERENCE.replace("MEASURED", repr(MEASURED))
    command = [sys.executable, "-c", program, str(conf_folder()), str(folder), str(given), str(result)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: list[Any] = pickle.loads(result.read_bytes())
    return found


def measured(combination: Combination) -> dict[str, Any]:
    found: dict[str, Any] = restored({key: combination.config[key] for key in MEASURED})
    return found


def value_at(config: Any, key: str) -> Any:
    for word in key.split("."):
        config = config[int(word)] if isinstance(config, list) else config[word]
    return config


def is_labelled(combination: Combination, axes: list[str], parts: dict[str, Any], choices: dict[str, Any]) -> bool:
    """True if the row's labels are what its config has; mappings are labelled by what the axis adds to them."""
    for axis, label in combination.axes.items():
        if axis in GROUPS:
            if label != choices[axis]:
                return False
        elif axis in (*axes, "batch_size") and not isinstance(label, dict | str):
            found = value_at(parts, axis)
            if frozen(label) != frozen(found) and not isinstance(found, dict):
                return False
    return True


SEEDS = [
    0,
    pytest.param(1, marks=pytest.mark.slow),
    *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 30)),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_is_what_hydra_composes_from_its_overrides(tmp_path: Path, seed: int) -> None:
    arguments, files, points, axes = generated(seed)
    folder = write_configs(tmp_path, files)
    expected = composed_by_hydra(folder, points)
    if any(isinstance(one, str) for one in expected):
        with pytest.raises(UserError):
            planned(arguments, folder)
        return
    plan = planned(arguments, folder)
    assert len(plan.combinations) + len(plan.excluded) == len(points), arguments
    assert all(one.reason.startswith("the same as ") for one in plan.excluded)
    assert {frozen(measured(c)) for c in plan.combinations} == {frozen(parts) for parts, _ in expected}, arguments
    for combination in plan.combinations:
        alike = [(parts, choices) for parts, choices in expected if frozen(parts) == frozen(measured(combination))]
        assert any(is_labelled(combination, axes, parts, choices) for parts, choices in alike), combination.axes
    json.dumps(plan.to_dict(), allow_nan=False)
    for combination in random.Random(seed).sample(plan.combinations, min(2, len(plan.combinations))):
        (again,) = planned(shlex.split(combination.command)[5:], folder).combinations
        assert again.id == combination.id, combination.command


RECORDER = """
import pickle
from sweeprof.backends.fake import FakeModel
def make(**given):
    with open("got.txt", "a") as file:
        print(pickle.dumps(given).hex(), file=file)
    return FakeModel()
"""


@pytest.mark.slow(rows=1)
@pytest.mark.parametrize("seed", [1005, 1537])
def test_a_model_gets_what_hydra_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """In a real run of a sweep whose model is built by a function that notes its arguments."""
    for name, content in FILES.items():
        monkeypatch.setitem(FILES, name, content.replace("builtins.dict", "recorder.make"))
    arguments, files, points, _ = generated(seed)
    folder = write_configs(tmp_path / "conf", files)
    (tmp_path / "recorder.py").write_text(RECORDER)
    expected = [parts["model"]["fake"] for parts, _ in composed_by_hydra(folder, points)]
    ran = run_command(tmp_path, "--config-dir", "conf", *arguments)
    assert ran.code == 0, ran.err
    got = [pickle.loads(bytes.fromhex(line)) for line in (tmp_path / "got.txt").read_text().split()]
    assert {frozen({"_target_": "recorder.make", **one}) for one in got} == {frozen(one) for one in expected}
