"""Mistakes: one clear error each, all at once, no traceback, nothing written, exit code 1."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command import Command, Ran

SMALL = ("model=fake", "backend=fake", "metrics.select=[params/total]")

CASES = {
    "unknown model": (["model=lenet6"], ["model: 'lenet6' is not a model. Did you mean 'lenet5'? Known: "]),
    "a list of metric sets": (
        ["metrics=[latency,static]", "tracking=[none,mlflow]"],
        [
            "metrics: '[latency,static]' is a list of metric sets; choose one. metrics=full has all metrics",
            "tracking: '[none,mlflow]' is a list, and a choice is one name.",
        ],
    ),
    "a list of models": (
        ["model=[mlp,lenet5]"],
        ["is a list, and a choice is one name; to measure each, write model=mlp,lenet5."],
    ),
    "metric sets as an axis": (
        ["metrics=latency,static,training"],
        ["metrics: 'latency,static,training' cannot be an axis: every combination has the metrics of all sets."],
    ),
    "a published model without its source": (
        ["model=resnet18"],
        ["model: 'resnet18' is not a model. Known: ", "A published model has a name: model=timm model.name=resnet18"],
    ),
    "a value that is missing": (["dataset=???"], ["dataset: '???' is not a dataset. Known: audio, "]),
    "a model's builder that is a number": ([*SMALL, "model.fake=5"], ["model.fake: 5 is not a builder"]),
    "unknown model in a sweep": (["model=mlp,lenet6"], ["model: 'lenet6' is not a model"]),
    "unknown backend": (["backend=tensorflw"], ["backend: 'tensorflw' is not a backend", "Did you mean 'tensorflow'?"]),
    "unknown sweep": (["+sweep=quickstrat"], ["sweep: 'quickstrat' is not a sweep", "Did you mean 'quickstart'?"]),
    "unknown sweep beside a list": (["+sweep=quickstrat", "model=mlp,lenet5"], ["sweep: 'quickstrat' is not a sweep"]),
    "unknown metric set": (["metrics=defualt"], ["metrics: 'defualt' is not a metric set", "Did you mean 'default'?"]),
    "unknown metric": (
        ["metrics.select=[latency/forwrd]"],
        ["'latency/forwrd' is not a metric", "Did you mean 'latency/forward'?"],
    ),
    "unknown launcher": (["hydra/launcher=slrum"], ["hydra/launcher: 'slrum' is not a launcher"]),
    "a setting of a cluster that is not chosen": (
        ["cluster.partition=gpu"],
        ["cluster.partition: 'gpu' is a setting of a cluster, but no cluster is chosen: add cluster=slurm."],
    ),
    "batch size 0": (["batch_size=0"], ["batch_size: 0 is not a batch size: a whole number from 1 to 10,000,000."]),
    "numbers of thousands of digits": (
        ["batch_size=1,1" + "0" * 5000, "model.fake.classes=1" + "0" * 6000],
        [
            "batch_size: '1,10000",
            "model.fake.classes: '10000",
            "is too large: a whole number must have at most 38 digits",
        ],
    ),
    "more rounds than a plan can list": (
        ["protocol.rounds=99999999999"],
        ["protocol.rounds: 99999999999 is not a number of rounds: a whole number from 1 to 10,000."],
    ),
    "more rounds of all combinations than a plan can list": (
        ["batch_size=range(1,1001)", "protocol.rounds=10000", *SMALL],
        ["protocol.rounds: 10000 is too many for 1,000 combinations: all of them together can have 5,000,000 rounds."],
    ),
    "a name that the folder of results has": (
        ["name=mlflow.db", "dry_run=true"],
        ["name: 'mlflow.db' is not a name: "],
    ),
    "folders of Hydra": (
        ["hydra.sweep.dir=mine", "hydra.run.dir=mine", "hydra.sweep.subdir=x", "hydra.output_subdir=y"],
        [
            "hydra.sweep.dir: 'mine' has no effect in sweeprof, which has its own folders; use output=PATH.",
            "hydra.run.dir: 'mine' has no effect",
            "hydra.sweep.subdir: 'x' has no effect in sweeprof, which has its own folders; use name=NAME.",
            "hydra.output_subdir: 'y' has no effect",
        ],
    ),
    "a name that is too long": (["name=" + "n" * 300], ["name: 'nnn", "at most 255 bytes"]),
    "batch size -1": (["batch_size=-1"], ["batch_size: -1 is not a batch size"]),
    "batch size abc": (["batch_size=8,abc"], ["batch_size: 'abc' is not a batch size"]),
    "unknown key": (
        ["bathc_size=8"],
        ["bathc_size: '8' is given to a key that does not exist", "Did you mean 'batch_size'?"],
    ),
    "unknown nested key": (["protocol.round=2,3"], ["protocol.round: '2,3'", "Did you mean 'protocol.rounds'?"]),
    "an argument that an optimizer lacks": (
        ["training.optimizer={_target_: torch.optim.SGD, lrr: 0.1}", "mode=training"],
        ["training.optimizer: 'lrr' is not an argument of torch.optim.SGD.", "Did you mean 'lr'?"],
    ),
    "an axis of the training step without one": (
        ["training.optimizer=sgd,adamw"],
        ["training.optimizer: 'sgd,adamw' has no effect with mode=inference; add mode=training."],
    ),
    "no such device": (["device=cuda"], ["device.type: 'cuda' is not a device of this host. Known: cpu"]),
    "target that cannot be imported": (
        ["model.torch._target_=nope.Net"],
        ["model.torch._target_: 'nope.Net' cannot be imported"],
    ),
    "target that is misspelt": (
        ["model.torch._target_=sweeprof.zoo.mlp.torch_modl"],
        ["has no 'torch_modl'", "Did you mean 'torch_model'?"],
    ),
    "target that is not callable": (
        ["model.torch._target_=sweeprof.errors.__doc__"],
        ["is a str, which cannot be called"],
    ),
    "misspelt framework": (
        ["model.toch._target_=a.b"],
        ["model.toch: 'toch' is not a framework", "Did you mean 'torch'?"],
    ),
    "baseline that is no axis": (
        ["compare.baseline={backnd: torch}"],
        ["compare.baseline: 'backnd'", "Did you mean 'backend'?"],
    ),
    "baseline that is no value": (
        ["compare.baseline={backend: trch}"],
        ["compare.baseline.backend: 'trch' is not a value of that axis"],
    ),
    "several sweeps as a list of values": (["+sweep=quickstart,quickstart"], ["+sweep=[quickstart,quickstart]"]),
    "size": (
        ["limits.memory=lots"],
        ["limits.memory: 'lots' is not a size of at most 1024 TiB, such as 2GiB, or null."],
    ),
    "isolation": (["isolation=forkk"], ["isolation: 'forkk' is not an isolation", "Did you mean 'fork'?"]),
    "an axis that changes nothing": (
        ["isolation=fork,inline"],
        ["isolation: ['fork', 'inline'] cannot be an axis, because it does not change what is measured"],
    ),
    "a list for a number": (["batch_size=[1,8]"], ["batch_size: [1, 8] is not a batch size"]),
    "no metrics": (["metrics.select=[]"], ["metrics.select: [] is not a list of at least one metric."]),
    "passes without a metric": (
        ["metrics.select=[lines]"],
        ["metrics.select: ['lines'] names passes alone: add a metric"],
    ),
    "exclude names no axis": (
        ["batch_size=1,2", "exclude=[{batchsize: 2}]"],
        ["exclude: 'batchsize'", "Did you mean 'batch_size'?"],
    ),
    "exclude is no rule": (
        ["exclude=[batch_size]"],
        ["exclude: 'batch_size' is 1, which is not a condition: compare it with a value."],
    ),
    "exclude leaves nothing": (["exclude=[{batch_size: 1}]"], ["excludes every combination"]),
    "no address": (["tracking.uri=foo"], ["tracking.uri: 'foo' is not an address of MLflow"]),
    "no such key in the chosen group": (
        ["tracking=none", "tracking.uri=http://x"],
        ["tracking.uri: 'http://x' is given to a key"],
    ),
    "a word": (
        ["quickstart"],
        [
            "command line: 'quickstart' is not an override (expected KEY=VALUE) or a subcommand. Known: report, compare, "
        ],
    ),
    "a misspelt subcommand": (["reprot", "--trust"], ["command line: 'reprot' is not", "Did you mean 'report'?"]),
    "a word after an override": (
        ["batch_size=8", "report"],
        ["command line: 'report' is not an override (expected KEY=VALUE)."],
    ),
    "an unknown option of a subcommand": (
        ["report", "last", "--fromat", "all"],
        ["sweeprof report: '--fromat' is not an option. Did you mean '--format'?"],
    ),
    "a subcommand without its folder": (["collect"], ["required: DIR; see sweeprof collect --help"]),
    "unknown flag": (["--mutirun"], ["command line: '--mutirun' is not a flag", "Did you mean '--multirun'?"]),
    "not an override": (["batch_size=[1"], ["batch_size: '[1' cannot be read"]),
    "unwritable output": (["output=/proc/nowhere"], ["output: '/proc/nowhere' cannot be written", "output=PATH"]),
    "several faults": (
        ["backend=tensorflw", "batch_size=0", "bogus=1", "protocol.rounds=none"],
        ["'tensorflw' is not a backend", "batch_size: 0", "bogus: '1'", "protocol.rounds: 'none'"],
    ),
}


CASES |= {
    "a misspelt group": (["modle=mlp"], ["modle: 'mlp' is given to a key that does not exist. Did you mean 'model'?"]),
    "a choice that is no name": (["model=null"], ["model: 'null' is not a model; a choice is a name. Known: "]),
    "a choice that is no name among others": (["model=mlp,null"], ["model: None is not a model"]),
    "an axis without values": (["axes={batch_size: []}"], ["axes.batch_size: [] has no values."]),
    "no axes": (["axes={}"], ["axes: {} is empty; it must be {axis: [values]}."]),
    "a misspelt key in a mapping": (
        ["limits={timeot_s: 3}"],
        ["limits.timeot_s: 3", "Did you mean 'limits.timeout_s'?"],
    ),
    "a folder of configs that is not there": (
        ["--config-dir", "mein", "model=own"],
        ["--config-dir: 'mein' is not a folder.", "model: 'own' is not a model."],
    ),
    "a shape with a letter": (
        ["dataset=synthetic", "dataset.shape=[3,a,224]"],
        ["dataset.shape: [3, 'a', 224] is not a list of whole numbers."],
    ),
    "an argument that a model of the zoo lacks": (
        ["model.torch.pretraind=false"],
        [
            "model.torch: 'pretraind' is not an argument of sweeprof.zoo.lenet5.torch_model.",
            "Did you mean 'pretrained'?",
        ],
    ),
    "an argument that a model of the user lacks": (
        ["model.torch._target_=torch.nn.Linear", "model.torch.in_featurs=3"],
        ["model.torch: 'in_featurs' is not an argument of torch.nn.Linear. Did you mean 'in_features'?"],
    ),
    "a setting that the backend lacks beside another mistake": (
        ["backend.threds=1", "model=lenet6"],
        ["backend.threds: '1'", "Did you mean 'backend.threads'?", "model: 'lenet6'"],
    ),
    "a condition without quotes": (
        ["search.minimize=latency", "search.subject_to=[latency < 5 ms]"],
        [
            "search.subject_to: '[latency < 5 ms]' is not a list of conditions; "
            "write 'search.subject_to=[\"latency < 5 ms\"]', with both kinds of quotes."
        ],
    ),
    "a call that lists nothing": (
        ["batch_size=doublng(1,8)"],
        [
            "batch_size: 'doublng(1,8)' is not a call that lists values. Did you mean 'doubling(first,last)'? Known: choice(a,b), "
        ],
    ),
    "a range without values": (
        ["batch_size=range(1,1)", "backend.threads=range(9,1)"],
        [
            "batch_size: 'range(1,1)' has no values: range(start,stop) ends before stop, such as range(1,9).",
            "backend.threads: 'range(9,1)' has no values",
        ],
    ),
    "several goals as an axis": (
        ["search.minimize=latency,first_step"],
        [
            "search.minimize: ['latency', 'first_step'] cannot be an axis; write one list: search.minimize=[latency,first_step]."
        ],
    ),
    "several faults of a search": (
        ["search.maximize=throughputt", "search.sampler=TPE", "search.trials=0", "budget=10mins"],
        [
            "search.maximize: 'throughputt'",
            "search.sampler: 'TPE'",
            "search.trials: 0",
            "budget: '10mins' is not a duration",
        ],
    ),
    "a shell without completion": (["-sc", "install=bsh"], ["-sc: 'bsh' is not a shell with completion", "'bash'?"]),
    "completion of nothing": (["-sc"], ["-sc: '' takes install=SHELL or uninstall=SHELL."]),
}

ASKS_ELSEWHERE = (
    "an argument that an optimizer lacks",
    "no such device",
    "target that is misspelt",
    "target that is not callable",
    "an argument that a model of the user lacks",
)
"""Mistakes that only a process with the framework can tell, which takes its time."""


def errors(ran: Ran) -> list[str]:
    """The lines of the error output; not the progress of planning, which is shown where a busy machine makes it take long."""
    return [line for line in ran.err.splitlines() if not line.startswith("planning")]


@pytest.mark.parametrize("arguments", [["model=lenet6", "bogus=1"], ["quickstart"]])
def test_a_mistake_in_a_process_of_its_own(sweeprof: Command, called: Command, arguments: list[str]) -> None:
    """Shows that the calls below are like the command."""
    ran, like = sweeprof(*arguments), called(*arguments)
    assert (ran.code, ran.out, ran.err) == (like.code, like.out, like.err)
    assert ran.code == 1


TOGETHER = (
    (
        *(
            "unknown model",
            "unknown backend",
            "unknown sweep",
            "unknown metric set",
            "unknown metric",
            "unknown launcher",
        ),
        *("a setting of a cluster that is not chosen", "batch size 0", "unknown key", "unknown nested key"),
    ),
    (
        *("unknown model in a sweep", "baseline that is no axis"),
        *("size", "isolation", "no address"),
    ),
    ("unknown sweep beside a list", "batch size -1"),
    (
        *("batch size abc", "an axis of the training step without one", "misspelt framework"),
        "baseline that is no value",
    ),
    ("an axis that changes nothing", "a list for a number", "no metrics"),
)
"""Mistakes that one command makes together: each is told all the same."""
ALONE = [case for case in CASES if not any(case in cases for cases in TOGETHER)]
COMMANDS = [
    *(pytest.param(cases, id=f"{cases[0]} and others") for cases in TOGETHER),
    *(pytest.param((case,), id=case, marks=pytest.mark.slow if case in ASKS_ELSEWHERE else ()) for case in ALONE),
]


@pytest.mark.parametrize("cases", COMMANDS)
def test_a_mistake_gets_one_clear_error(called: Command, tmp_path: Path, cases: tuple[str, ...]) -> None:
    ran = called(*(argument for case in cases for argument in CASES[case][0]))
    assert ran.code == 1
    for text in (text for case in cases for text in CASES[case][1]):
        assert text in ran.err
    assert "Traceback" not in ran.err
    assert "HYDRA_FULL_ERROR" not in ran.err
    assert all(line.startswith("error: ") for line in errors(ran))
    assert ran.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["metrics.functions=foo"], ["backend=tensorflow", "backend.compile=true"]])
def test_a_key_that_belongs_to_another_choice_is_taken_for_no_other(called: Command, arguments: list[str]) -> None:
    ran = called(*arguments)
    assert ran.code == 1
    assert "is given to a key that does not exist. Known: " in ran.err
    assert "Did you mean" not in ran.err


def test_an_axis_is_not_missing_beside_another_mistake(called: Command) -> None:
    (error,) = errors(called("model=file", "backend=onnxruntime", "model.path=a.onnx,b.onnx", "metrics=nope"))
    assert error.startswith("error: metrics: 'nope' is not a metric set.")


def test_an_output_that_is_a_file_is_refused(called: Command, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    ran = called("output=taken", "model=fake", "backend=fake")
    assert ran.code == 1
    assert "output: " in ran.err
    assert "Traceback" not in ran.err


def test_a_missing_extra_says_what_to_install(called: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that cannot see the frameworks, as after ``pip install sweeprof`` alone."""
    for framework in ("tensorflow", "mlflow"):
        monkeypatch.setitem(sys.modules, framework, None)
    ran = called("backend=tensorflow", "tracking=mlflow")
    assert ran.code == 1
    assert "pip install 'sweeprof[tensorflow]', or use what is installed: backend=torch" in ran.err
    assert "pip install 'sweeprof[mlflow]'" in ran.err


def test_onnxruntime_without_the_framework_that_builds_the_model(
    called: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    ran = called("backend=onnxruntime", "model=mlp", "dry_run=true")
    assert ran.code == 1
    assert "model.torch: 'torch' is needed to build the model for onnx, and is not installed here" in ran.err
    assert "pip install 'sweeprof[torch]'" in ran.err


def test_without_mlflow_a_sweep_is_not_tracked(called: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    ran = called("model=fake", "backend=fake", "dataset=synthetic", "isolation=inline")
    assert ran.code == 0, ran.err
    (line,) = [line for line in ran.err.splitlines() if "MLflow" in line]
    assert line.startswith("tracking: MLflow is not installed")
    assert "pip install 'sweeprof[mlflow]'" in line
    assert not (ran.cwd / "outputs" / "mlflow.db").exists()
    (config,) = ran.cwd.glob("outputs/*/*/tracking.json")
    assert json.loads(config.read_text())["config"] == {"_target_": None}


@pytest.mark.parametrize("asked", ["tracking=mlflow", "tracking.uri=http://localhost:1"])
def test_mlflow_that_is_asked_for_must_be_installed(
    asked: str, called: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    ran = called("model=fake", "backend=fake", "dataset=synthetic", "dry_run=true", asked)
    assert ran.code == 1
    assert "tracking: 'mlflow' is not installed here: pip install 'sweeprof[mlflow]'" in ran.err


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "name: x\naxis: {batch_size: [1, 2]}",
            "2: axis: {'batch_size': [1, 2]} is given to a key that does not exist. Did you mean 'axes'?",
        ),
        (
            "axes:\n  batchsize: [1, 2]",
            "2: batchsize: '1,2' is given to a key that does not exist. Did you mean 'batch_size'?",
        ),
        ("axes: {batch_size: []}", "1: axes.batch_size: [] has no values."),
        (
            "axes: {batch_size: [1, 2}",
            "1: is not YAML: while parsing a flow sequence, expected ',' or ']', but got '}'",
        ),
        (
            "axes: {batch_size: [1]}\naxes: {}",
            "2: is not YAML: while constructing a mapping, found duplicate key axes",
        ),
        ("axes:\n  batch_size:\n  - 1\n  - 0", "4: batch_size: 0 is not a batch size"),
        (
            "axes: {batch_size: [1]}\nlimits:\n  timeot_s: 3",
            "3: limits.timeot_s: 3 is given to a key that does not exist. Did you mean 'limits.timeout_s'?",
        ),
        (
            "axes: {batch_size: [1]}\nbackend:\n  slowdwn: 2.0",
            "3: backend.slowdwn: '2.0' is given to a key that does not exist. Did you mean 'backend.slowdown'?",
        ),
        (
            "axes: {batch_size: [1]}\nexclude:\n- batch_size > 7\n- batchsize > 1",
            "4: exclude: 'batchsize > 1' uses 'batchsize'",
        ),
        ("zip:\n- batch_size: []", "2: zip[0].batch_size: [] has no values."),
        (
            "defaults:\n- override /dataset: digts",
            "2: dataset: 'digts' is not a dataset. Did you mean 'digits'? Known: audio, auto, digits, "
            "huggingface, images, npz, synthetic, table, tensorflow, tokens, torch.",
        ),
        (
            "defaults:\n- override /datset: digits",
            "2: defaults: 'datset' is not a config group. Did you mean 'dataset'?",
        ),
        (
            "axes: {batch_size: [1]}\nname: ${nothing}",
            "2: file: 'small.yaml' - Interpolation key 'nothing' not found",
        ),
        ("axes:\n  batch_size: [1, 1" + "0" * 5000 + "]", "2: batch_size: '1000000"),
        ("hydra:\n  sweep:\n    dir: mine", "3: hydra.sweep.dir: 'mine' has no effect in sweeprof"),
        (
            "model: {fake: {classes: 0x1" + "0" * 5000 + "}}",
            "1: model.fake.classes: a number of thousands of digits is too large",
        ),
        ("axes: {}", "1: axes: {} is empty; it must be {axis: [values]} or absent."),
        ("", ": file: 'small.yaml' is empty"),
        ("- a", ": file: 'small.yaml' - ConfigTypeError"),
    ],
)
def test_a_mistake_in_a_sweep_file_has_its_line(called: Command, tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    (tmp_path / "mine" / "sweep" / "small.yaml").write_text(content)
    ran = called("--config-dir", "mine", "+sweep=small", "model=fake", "backend=fake", "tracking=none")
    assert ran.code == 1
    (error,) = errors(ran)
    assert f"error: mine/sweep/small.yaml{'' if expected.startswith(':') else ':'}{expected}" in error
    assert not (tmp_path / "outputs").exists()


def test_a_file_in_another_encoding_is_named(called: Command, tmp_path: Path) -> None:
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    (tmp_path / "mine" / "sweep" / "small.yaml").write_bytes("axes: {batch_size: [1]}\n# café\n".encode("latin-1"))
    ran = called("--config-dir", "mine", "+sweep=small")
    assert ran.code == 1
    assert ran.err == (
        "error: mine/sweep/small.yaml:2: file: b'\\xe9' is not UTF-8, the encoding of config files; save the file as UTF-8.\n"
    )


def test_what_the_command_line_gives_is_not_looked_for_in_a_file(called: Command, tmp_path: Path) -> None:
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    (tmp_path / "mine" / "sweep" / "small.yaml").write_text("axes: {batch_size: [1, 2]}\nlimits: {timeout_s: 3}\n")
    ran = called("--config-dir", "mine", "+sweep=small", "batch_size=0", "limits.timeout_s=-1")
    assert "error: batch_size: 0 is not" in ran.err
    assert "error: limits.timeout_s: -1 is not" in ran.err
    (error,) = errors(called("model=mlp", "model.torch.width=4"))
    assert error.startswith("error: model.torch: 'width' is not an argument of sweeprof.zoo.mlp.torch_model.")


def test_a_mistake_in_a_model_file_has_its_line(called: Command, tmp_path: Path) -> None:
    (tmp_path / "mine" / "model").mkdir(parents=True)
    text = "torch:\n  _target_: sweeprof.zoo.mlp.torch_model\n  pretraind: false\n"
    (tmp_path / "mine" / "model" / "own.yaml").write_text(text)
    ran = called("--config-dir", "mine", "model=mlp,own")
    (error,) = errors(ran)
    assert error.startswith("error: mine/model/own.yaml:3: model.torch: 'pretraind' is not an argument of ")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix, contextlib.chdir(path.parent):  # the path of a socket is short
        unix.bind(path.name)


IRREGULAR: dict[str, list[str]] = {
    "collect": ["collect", "odd"],
    "compare, base": ["compare", "odd", "last"],
    "compare, new": ["compare", str(Path(__file__).parents[1] / "golden" / "sweep-v2"), "odd.json"],
    "compare --json": ["compare", "last", "last", "--json=odd.json"],
    "compare --junit": ["compare", "last", "last", "--junit=odd"],
    "compare --markdown": ["compare", "last", "last", "--markdown=odd"],
    "lines": ["lines", "odd.py"],
    "lines --output": ["lines", "--output=odd", "fine.py"],
    "prune": ["prune", "adhoc", "--keep=1", "--output=odd"],
    "report": ["report", "odd"],
    "sync": ["sync", "odd"],
    "ui": ["ui", "odd"],
    "resume": ["resume=odd"],
    "output": [*SMALL, "output=odd"],
    "baseline": [*SMALL, "compare.baseline=odd.json"],
    "config dir": ["--config-dir", "odd", *SMALL],
    "config name": ["--config-dir", "mine", "--config-name", "odd"],
    "sweep": ["--config-dir", "mine", "+sweep=odd"],
    "model's config": ["--config-dir", "mine", "model=odd", "backend=fake"],
    "model's file": ["model=file", "backend=onnxruntime", "model.path=odd.onnx"],
    "npz": [*SMALL, "dataset=npz", "dataset.path=odd.npz"],
    "npz of a split": [*SMALL, "dataset=npz", "dataset.path='{split}.npz'"],
    "table": [*SMALL, "dataset=table", "dataset.path=odd.csv", "dataset.targets=[y]"],
    "tokens": [*SMALL, "dataset=tokens", "dataset.path=odd.bin"],
    "images": [*SMALL, "dataset=images", "dataset.path=odd"],
    "audio": [*SMALL, "dataset=audio", "dataset.path=odd"],
}


@pytest.mark.parametrize("make", [os.mkfifo, _socket, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("arguments", IRREGULAR.values(), ids=IRREGULAR)
@pytest.mark.timeout(120)
def test_a_fifo_a_socket_or_a_device_in_place_of_a_file_is_one_message(
    called: Command, tmp_path: Path, arguments: list[str], make: Callable[[Path], None]
) -> None:
    """Opening a FIFO waits for its other end, a device may never end, and replacing one breaks it."""
    for folder in ("mine/sweep", "mine/model", "mine/cluster"):
        (tmp_path / folder).mkdir(parents=True)
        make(tmp_path / folder / "odd.yaml")
    for name in ("odd", "odd.json", "odd.py", "odd.onnx", "odd.npz", "odd.csv", "odd.bin", "test.npz", "train.npz"):
        make(tmp_path / name)
    make(tmp_path / "mine" / "odd.yaml")
    (tmp_path / "fine.py").write_text("def one():\n    return 1\n\n\none()\n")
    ran = called(*arguments)
    assert ran.code == 1
    lines = [line for line in ran.err.splitlines() if not line.startswith("planning: ")]
    assert any("odd" in line or "test.npz" in line for line in lines)
    assert all(line.startswith("error: ") for line in lines)
    assert not (tmp_path / "odd").is_file()
