"""Mistakes: one clear error each, all at once, no traceback, nothing written, exit code 1."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from support.command import Command, Ran

GOLDEN = Path(__file__).parents[1] / "golden" / "sweep-v2"
FAKE = "model=fake backend=fake dataset=synthetic"
SMALL = "model=fake backend=fake metrics.select=[params/total]"

MISTAKES = (
    # Each of these commands makes several mistakes.
    (
        "model=lenet6 backend=tensorflw +sweep=quickstrat metrics=defualt metrics.select=[latency/forwrd] hydra/launcher=slrum "
        "cluster.partition=gpu batch_size=0 bathc_size=8 protocol.round=2,3",
        "model: 'lenet6' is not a model. Did you mean 'lenet5'? Known: ",
        "backend: 'tensorflw' is not a backend. Did you mean 'tensorflow'?",
        "sweep: 'quickstrat' is not a sweep. Did you mean 'quickstart'?",
        "metrics: 'defualt' is not a metric set. Did you mean 'default'?",
        "'latency/forwrd' is not a metric. Did you mean 'latency/forward'?",
        "hydra/launcher: 'slrum' is not a launcher",
        "cluster.partition: 'gpu' is a setting of a cluster, but no cluster is chosen: add cluster=slurm.",
        "batch_size: 0 is not a batch size: a whole number from 1 to 10,000,000.",
        "bathc_size: '8' is given to a key that does not exist. Did you mean 'batch_size'?",
        "protocol.round: '2,3' is given to a key that does not exist. Did you mean 'protocol.rounds'?",
    ),
    (
        "model=mlp,lenet6 'compare.baseline={backnd: torch}' limits.memory=lots isolation=forkk "
        "tracking.uri=foo tracking.parent_run=a/b",
        "model: 'lenet6' is not a model",
        "compare.baseline: 'backnd' is not an axis of this sweep. Did you mean 'backend'?",
        "limits.memory: 'lots' is not a size of at most 1024 TiB, such as 2GiB, or null.",
        "isolation: 'forkk' is not an isolation. Did you mean 'fork'?",
        "tracking.uri: 'foo' is not an address of MLflow",
        "tracking.parent_run: 'a/b' is not the id of a run of MLflow",
    ),
    (
        "backend=command 'backend.command=[sleep, \"{args.secnds}\"]' args.seconds=1,2 "
        "backend.unsupported=[300] backend.timeout_s=0",
        "backend.command: '{args.secnds}' names no value of the config. Did you mean 'args.seconds'? Known: args.seconds",
        "args: 'seconds' is used by no argument: write {args.seconds} where the program gets the value",
        "backend.unsupported: [300] is not a list of exit codes from 0 to 255, such as [77].",
        "backend.timeout_s: 0 is not a duration: seconds above 0, or null.",
    ),
    (
        "backend=command backend.command=ls 'backend.metrics={a: {jsn: x}, b: {regex: \"(\"}, time: {json: x, better: more}}'",
        "backend.metrics.a: 'jsn' is not a key of a reported metric. Did you mean 'json'?",
        "backend.metrics.a: {'jsn': 'x'} needs either json, a path such as results[0].value, or regex.",
        "backend.metrics.b.regex: '(' is not a regular expression: missing ), unterminated subpattern",
        "backend.metrics: 'time' is not a name: letters, digits and '_', with a letter first, other than time, user_time",
        "backend.metrics.time.better: 'more' is not a direction. Known: higher, lower.",
    ),
    (
        "backend=command backend.command=ls 'backend.metrics={a: a, b: null, c: {json: x, unit: 4}, nan: {json: x}}'",
        "backend.metrics.a: 'a' is not {json: PATH, unit: UNIT, better: lower}.",
        "backend.metrics.b: None is not {json: PATH, unit: UNIT, better: lower}.",
        "backend.metrics.c.unit: 4 is not a text.",
        "backend.metrics: nan is not a name: letters, digits",
    ),
    (
        "backend=command backend.command=[ls] compare.baseline={tool:m} 'variants={tool: "
        "{m: {backend.metrics: {t: {json: x, unit: ms, better: lower}, same: {json: y, unit: s}}}, "
        "s: {backend.metrics: {t: {json: x, unit: s, better: higher}, same: {regex: y, unit: s}}}}}' backend.timeout_s=0",
        "backend.metrics.t.unit: 's' differs from 'ms' of another combination: a number has one unit",
        "backend.metrics.t.better: 'higher' differs from 'lower' of another combination",
        "backend.timeout_s: 0 is not a duration",
    ),
    (
        "backend=command backend.command=[ls] args.a=1,2 "
        "'backend.server={comand: x, ready: {url: \"localhost:{port}\"}, per: [args.b], timeout_s: -1}'",
        "backend.server: 'comand' is not a key of a server. Did you mean 'command'?",
        "backend.server.command: None is missing: name the program and its arguments",
        "backend.server.ready.url: 'localhost:{port}' is not an address that begins with http:// or https://.",
        "backend.server.per: '{args.b}' names no value of the config. Did you mean 'args.a'?",
        "backend.server.timeout_s: -1 is not a duration",
    ),
    (
        "backend=command backend.command=[ls] 'backend.server={command: [x, \"{args.a}\"], ready: {port: http}}' args.a=1,2 "
        "protocol=interleaved compare.baseline={args.a:1}",
        "backend.server.ready.port: 'http' is not a port: '{port}', or a number from 1 to 65535.",
    ),
    (
        "backend=command backend.command=[ls] 'backend.server={command: [x, \"{args.a}\"], ready: {log: ok}}' args.a=1,2 "
        "protocol=interleaved compare.baseline={args.a:1}",
        "protocol.interleave: 'samples' alternates between combinations that need different servers, of which one runs at a time",
    ),
    ("model.args.width=1,2", "model.args.width: 'args' is not a framework: ", "Did you mean 'model.torch.width'?"),
    ("backend=command backend.command=[ls] backend.server=x", "backend.server: 'x' is not {command: […], ready: {port: '{port}'}}"),
    ("backend=command", "backend.command: [] is missing: name the program and its arguments, such as "),
    ("backend=command backend.command=ls metrics=default", "mode: 'inference' measures a model, and backend=command has none"),
    ("backend=fake model=fake metrics=command", "mode: 'command' measures programs, and this backend runs a model"),
    ("backend=fake model=fake args.x=1", "args: {'x': 1} has an effect with backend=command only."),
    (
        "batch_size=8,abc model.toch._target_=a.b 'compare.baseline={backend: trch}'",
        "batch_size: 'abc' is not a batch size",
        "model.toch: 'toch' is not a framework. Did you mean 'torch'?",
        "compare.baseline.backend: 'trch' is not a value of that axis",
    ),
    (
        "isolation=fork,inline metrics.select=[]",
        "isolation: ['fork', 'inline'] cannot be an axis, because it does not change what is measured",
        "metrics.select: [] is not a list of at least one metric.",
    ),
    (
        "hydra.sweep.dir=mine hydra.run.dir=mine hydra.sweep.subdir=x hydra.output_subdir=y",
        "hydra.sweep.dir: 'mine' has no effect in sweeprof, which has its own folders; use output=PATH.",
        "hydra.run.dir: 'mine' has no effect",
        "hydra.sweep.subdir: 'x' has no effect in sweeprof, which has its own folders; use name=NAME.",
        "hydra.output_subdir: 'y' has no effect",
    ),
    (
        f"batch_size=1,1{'0' * 5000} model.fake.classes=1{'0' * 6000}",
        *("batch_size: '1,10000", "model.fake.classes: '10000", "is too large: a whole number must have at most 38 digits"),
    ),
    (
        "batch_size=range(1,1) backend.threads=range(9,1)",
        "batch_size: 'range(1,1)' has no values: range(start,stop) ends before stop, such as range(1,9).",
        "backend.threads: 'range(9,1)' has no values",
    ),
    (
        "metrics=[latency,static] tracking=[none,mlflow]",
        "metrics: '[latency,static]' is a list of metric sets; choose one. metrics=full has all metrics",
        "tracking: '[none,mlflow]' is a list, and a choice is one name.",
    ),
    ("--config-dir mein model=own", "--config-dir: 'mein' is not a folder.", "model: 'own' is not a model."),
    # Names of files and groups.
    ("model=[mlp,lenet5]", "is a list, and a choice is one name; to measure each, write model=mlp,lenet5."),
    ("metrics=latency,static,training", "metrics: 'latency,static,training' cannot be an axis: every combination has the metrics"),
    (
        "model=bert dataset=???",
        "model: 'bert' is not a model. Known: ",
        "A published model has a name: model=timm model.name=resnet18",
        "dataset: '???' is not a dataset. Known: audio, ",
    ),
    (
        "model=resnet50,mlp batch_size=0",
        "model: 'resnet50' is the name of a published model: write model=timm model.name=resnet50 or "
        "model=torchvision model.name=resnet50 or model=keras_applications model.name=ResNet50.",
        "batch_size: 0",
    ),
    ("model=null", "model: 'null' is not a model; a choice is a name. Known: "),
    # Keys and values.
    (f"batch_size=range(1,1001) protocol.rounds=10000 {SMALL}", "10000 is too many for 1,000 combinations: all of them together"),
    (
        f"name={'n' * 300} metrics.select=[lines]",
        *("name: 'nnn", "at most 255 bytes", "metrics.select: ['lines'] names passes alone: add a metric"),
    ),
    ("'exclude=[{batch_size: 1}]'", "excludes every combination"),
    ("tracking=none tracking.uri=http://x", "tracking.uri: 'http://x' is given to a key"),
    (
        "dataset.shape=[3,224,224] dataset.sed=1",
        "dataset: 'shape' is not an argument of sweeprof.datasets.arrays.Digits. Known: seed, test_share. "
        "Datasets that have it: dataset=synthetic, dataset=table.",
        "dataset: 'sed' is not an argument of sweeprof.datasets.arrays.Digits. Did you mean 'seed'?",
    ),
    (
        "batch_size=[1,8]",
        "batch_size: [1, 8] is not a batch size: a whole number from 1 to 10,000,000. "
        "To measure each, write batch_size=1,8, or in a file axes: {batch_size: [1,8]}.",
    ),
    ("dataset=synthetic dataset.shape=[3,a,224]", "dataset.shape: [3, 'a', 224] is not a list of whole numbers."),
    (
        "search.minimize=latency 'search.subject_to=[latency < 5 ms]'",
        "search.subject_to: '[latency < 5 ms]' is not a list of conditions; "
        "write 'search.subject_to=[\"latency < 5 ms\"]', with both kinds of quotes.",
    ),
    (
        "search.minimize=latency,first_step",
        "['latency', 'first_step'] cannot be an axis; write one list: search.minimize=[latency,first_step].",
    ),
    (
        "batch_size=doublng(1,8)",
        "'doublng(1,8)' is not a call that lists values. Did you mean 'doubling(first,last)'? Known: choice(a,b), ",
    ),
    # Models, their arguments and devices.
    (f"{SMALL} model.fake=5", "model.fake: 5 is not a builder"),
    ("model.torch._target_=nope.Net", "model.torch._target_: 'nope.Net' cannot be imported"),
    ("model.torch.pretraind=false", "model.torch: 'pretraind' is not an argument of sweeprof.zoo.lenet5.torch_model. Did you mean"),
    # A key of another choice is taken for no key that is called alike.
    ("metrics.functions=foo", "metrics.functions: 'foo' is given to a key that does not exist. Known: "),
    (
        f"{FAKE} compare.baseline=last 'compare.thresholds={{latncy: 0.1}}' compare.pareto=[latency] "
        "'compare.constraints=[\"latency < 5 mss\"]'",
        "compare.baseline: 'last' does not exist: there are no sweeps",
        "Did you mean 'latency'?",
        "a Pareto front needs at least two",
        "has a number in 'mss', which is not a unit",
    ),
    # The command line, paths.
    (
        "quickstart",
        "command line: 'quickstart' is not an override (expected KEY=VALUE) or a subcommand. "
        "A sweep is started by overrides alone, such as sweeprof +sweep=NAME. Subcommands: report, compare, ",
        "Did you mean '+sweep=quickstart'?",
    ),
    ("--model lenet5", "command line: '--model' is not a flag: write model=lenet5."),
    ("model=mlp --batch-size=8", "command line: '--batch-size=8' is not a flag: write batch_size=8."),
    ("batch_size=8 model mlp", "command line: 'model' has no value: write model=mlp."),
    (
        "model=lenet5, backend=torch",
        "model: 'lenet5,' ends with a comma; write values without spaces between them: model=lenet5,VALUE.",
    ),
    ("'a b=3'", "command line: 'a b=3' does not begin with a key: KEY=VALUE."),
    ("reprot --trust", "command line: 'reprot' is not", "Did you mean 'report'?"),
    ("report last", "does not exist: there are no sweeps in"),
    (f"sync {GOLDEN} uir=x", "Did you mean 'uri'?"),
    ("collect", "required: DIR; see sweeprof collect --help"),
    ("--mutirun", "command line: '--mutirun' is not a flag", "Did you mean '--multirun'?"),
    ("batch_size=[1 mode=a]]", "batch_size: '[1' has a [ without a ].", "mode: 'a]]' has a ] without a [."),
    ("batch_size=1,,2 model=,mlp", "batch_size: '1,,2' has a comma without a value beside it.", "',mlp' has a comma without"),
    ("\"name='a\"", "has a ' that is not closed."),
    ("'name=a;b'", "name: 'a;b' has characters that need two kinds of quotes: \"name='a;b'\"."),
    ("-sc install=bsh", "-sc: 'bsh' is not a shell with completion", "'bash'?"),
    ("output=/proc/nowhere", "output: '/proc/nowhere' cannot be written", "output=PATH"),
    (f"{FAKE} output=/dev/null", "output: '/dev/null' cannot be written"),
    (f"{FAKE} output=$NO_SUCH/out", "output: '$NO_SUCH/out' has an environment variable that is not set: $NO_SUCH."),
    (f"{FAKE} output=~nobody-here/out", "output: '~nobody-here/out' begins with ~nobody-here, which is no user"),
    (f"{FAKE} --config-dir=$NO_SUCH", "--config-dir: '$NO_SUCH' has an environment variable"),
    (f"{FAKE} limits.locks=~nobody-here/locks", "limits.locks: '~nobody-here/locks' is not the full path of a folder"),
)  # fmt: skip
"""Commands, and what each is told."""


def errors(ran: Ran) -> list[str]:
    """The lines of the error output; not the progress of planning, which is shown where a busy machine makes it take long."""
    return [line for line in ran.err.splitlines() if not line.startswith("planning")]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake[0][:70])
def test_a_mistake_gets_one_clear_error(called: Command, tmp_path: Path, mistake: tuple[str, ...]) -> None:
    command, *messages = mistake
    ran = called(*shlex.split(command))
    assert ran.code == 1
    assert [message for message in messages if message not in ran.err] == [], ran.err
    assert "Traceback" not in ran.err
    assert "HYDRA_FULL_ERROR" not in ran.err
    assert all(line.startswith("error: ") for line in errors(ran))
    assert ran.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["model=lenet6", "bogus=1"], ["quickstart"]])
def test_a_mistake_in_a_process_of_its_own(sweeprof: Command, called: Command, arguments: list[str]) -> None:
    """Shows that the calls of the other tests are like the command."""
    ran, like = sweeprof(*arguments), called(*arguments)
    assert (ran.code, ran.out, ran.err) == (like.code, like.out, like.err)
    assert ran.code == 1


def test_an_axis_is_not_missing_beside_another_mistake(called: Command) -> None:
    (error,) = errors(called("model=file", "backend=onnxruntime", "model.path=a.onnx,b.onnx", "metrics=nope"))
    assert error.startswith("error: metrics: 'nope' is not a metric set.")


COLOUR = """
import torch

class Colour(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))
"""


@pytest.mark.thorough
def test_a_model_of_other_inputs_gets_the_dataset_to_choose_once(called: Command, tmp_path: Path) -> None:
    (tmp_path / "colour.py").write_text(COLOUR)
    sweep = ("model.torch._target_=colour.Colour", "metrics=static", "tracking=none")
    ran = called(*sweep, "batch_size=1,8")
    assert ran.code == 2
    (line,) = [line for line in ran.err.splitlines() if "to have 3 channels" in line]  # of two combinations
    advice = "The samples of dataset=digits are 1×32×32; for others, add dataset=synthetic 'dataset.shape=[3,224,224]'"
    assert f"(colour.py:10 in forward). {advice}; log: " in line
    assert "failed: batch_size=1; batch_size=8 – analysis: " in " ".join(ran.out.split())
    assert called(*shlex.split(advice.partition("add ")[2]), *sweep).code == 0


@pytest.mark.parametrize(
    ("missing", "arguments", "said"),
    [
        (
            "torch",
            "backend=onnxruntime model=mlp dry_run=true",
            ["model.torch: 'torch' is needed to build the model for onnx, and is not installed here", "'sweeprof[torch]'"],
        ),
        ("timm torchvision", "model=resnet50", ["write model=keras_applications model.name=ResNet50."]),
        ("mlflow", f"{FAKE} dry_run=true tracking.uri=http://localhost:1", ["pip install 'sweeprof[mlflow]'"]),
    ],
)  # fmt: skip
def test_a_missing_extra_says_what_to_install(
    called: Command, monkeypatch: pytest.MonkeyPatch, missing: str, arguments: str, said: list[str]
) -> None:
    """An interpreter that cannot see the packages, as after ``pip install sweeprof`` alone."""
    for package in missing.split():
        monkeypatch.setitem(sys.modules, package, None)
    ran = called(*arguments.split())
    assert ran.code == 1
    assert all(text in ran.err for text in said), ran.err


def test_without_mlflow_a_sweep_is_not_tracked(called: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    ran = called(*FAKE.split(), "isolation=inline")
    assert ran.code == 0, ran.err
    (line,) = [line for line in ran.err.splitlines() if "MLflow" in line]
    assert line.startswith("tracking: MLflow is not installed")
    assert "pip install 'sweeprof[mlflow]'" in line
    assert not (ran.cwd / "outputs" / "mlflow.db").exists()
    (config,) = ran.cwd.glob("outputs/*/*/tracking.json")
    assert json.loads(config.read_text())["config"] == {"_target_": None}


# Files of configs.


def with_file(folder: Path, name: str, content: str | bytes) -> tuple[str, str]:
    """Write a file of a folder of configs, and return the flag that names the folder."""
    path = folder / "mine" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return ("--config-dir", "mine")


ONE = "axes: {batch_size: [1]}\n"
UNKNOWN = "is given to a key that does not exist. Did you mean "


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("name: x\naxis: {batch_size: [1, 2]}", f":2: axis: {{'batch_size': [1, 2]}} {UNKNOWN}'axes'?"),
        ("axes: {batch_size: []}", ":1: axes.batch_size: [] has no values."),
        ("axes: {batch_size: [1, 2}", ":1: is not YAML: while parsing a flow sequence, expected ',' or ']', but got '}'"),
        (f"{ONE}axes: {{}}", ":2: is not YAML: while constructing a mapping, found duplicate key axes"),
        ("axes:\n  batch_size:\n  - 1\n  - 0", ":4: batch_size: 0 is not a batch size"),
        (f"{ONE}limits:\n  timeot_s: 3", f":3: limits.timeot_s: 3 {UNKNOWN}'limits.timeout_s'?"),
        (f"{ONE}exclude:\n- batch_size > 7\n- batchsize > 1", ":4: exclude: 'batchsize > 1' uses 'batchsize'"),
        (
            "defaults:\n- override /dataset: digts",
            ":2: dataset: 'digts' is not a dataset. Did you mean 'digits'? Known: audio, auto, digits, "
            "huggingface, images, none, npz, synthetic, table, tensorflow, tokens, torch.",
        ),
        (f"{ONE}name: ${{nothing}}", ":2: file: 'small.yaml' - Interpolation key 'nothing' not found"),
        ("hydra:\n  sweep:\n    dir: mine", ":3: hydra.sweep.dir: 'mine' has no effect in sweeprof"),
        (f"model: {{fake: {{classes: 0x1{'0' * 5000}}}}}", ":1: model.fake.classes: a number of thousands of digits is too large"),
        ("axes: {}", ":1: axes: {} is empty; it must be {axis: [values]} or absent."),
        ("", ": file: 'small.yaml' is empty"),
        (
            f"{ONE}# café\n".encode("latin-1"),
            ":2: file: b'\\xe9' is not UTF-8, the encoding of config files; save the file as UTF-8.",
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_a_sweep_file_has_its_line(
    called: Command, tmp_path: Path, content: str | bytes, expected: str
) -> None:
    flag = with_file(tmp_path, "sweep/small.yaml", content)
    ran = called(*flag, "+sweep=small", "model=fake", "backend=fake", "tracking=none")
    assert ran.code == 1
    (error,) = errors(ran)
    assert f"error: mine/sweep/small.yaml{expected}" in error
    assert not (tmp_path / "outputs").exists()


def test_what_the_command_line_gives_is_not_looked_for_in_a_file(called: Command, tmp_path: Path) -> None:
    flag = with_file(tmp_path, "sweep/small.yaml", "axes: {batch_size: [1, 2]}\nlimits: {timeout_s: 3}\n")
    ran = called(*flag, "+sweep=small", "batch_size=0", "limits.timeout_s=-1")
    assert "error: batch_size: 0 is not" in ran.err
    assert "error: limits.timeout_s: -1 is not" in ran.err
    (error,) = errors(called("model=mlp", "model.torch.width=4"))
    assert error.startswith("error: model.torch: 'width' is not an argument of sweeprof.zoo.mlp.torch_model.")


def test_a_mistake_in_a_model_file_has_its_line(called: Command, tmp_path: Path) -> None:
    text = "torch:\n  _target_: sweeprof.zoo.mlp.torch_model\n  pretraind: false\n"
    (error,) = errors(called(*with_file(tmp_path, "model/own.yaml", text), "model=mlp,own"))
    assert error.startswith("error: mine/model/own.yaml:3: model.torch: 'pretraind' is not an argument of ")


# What is no regular file.


IRREGULAR = (
    "compare odd last",
    f"compare {GOLDEN} odd.json",
    "compare last last --json=odd.json",
    "lines odd.py",
    "lines --output=odd fine.py",
    "prune adhoc --keep=1 --output=odd",
    "report odd",
    "resume=odd",
    f"{SMALL} output=odd",
    f"{SMALL} compare.baseline=odd.json",
    f"--config-dir odd {SMALL}",
    "--config-dir mine --config-name odd",
    "--config-dir mine +sweep=odd",
    "model=file backend=onnxruntime model.path=odd.onnx",
    f"{SMALL} dataset=npz dataset.path=odd.npz",
    f"{SMALL} dataset=table dataset.path=odd.csv dataset.targets=[y]",
    f"{SMALL} dataset=tokens dataset.path=odd.bin",
    f"{SMALL} dataset=images dataset.path=odd",
)


@pytest.mark.slow
@pytest.mark.parametrize("command", IRREGULAR)
@pytest.mark.timeout(120)
def test_a_fifo_in_place_of_a_file_is_one_message(called: Command, tmp_path: Path, command: str) -> None:
    """Opening a FIFO waits for its other end, and replacing one breaks it."""
    for folder in ("mine/sweep", "mine/model", "mine/cluster"):
        (tmp_path / folder).mkdir(parents=True)
        os.mkfifo(tmp_path / folder / "odd.yaml")
    for name in ("odd", "odd.json", "odd.py", "odd.onnx", "odd.npz", "odd.csv", "odd.bin", "test.npz", "train.npz"):
        os.mkfifo(tmp_path / name)
    os.mkfifo(tmp_path / "mine" / "odd.yaml")
    (tmp_path / "fine.py").write_text("def one():\n    return 1\n\n\none()\n")
    ran = called(*shlex.split(command))
    assert ran.code == 1
    assert any("odd" in line or "test.npz" in line for line in errors(ran))
    assert all(line.startswith("error: ") for line in errors(ran))
    assert not (tmp_path / "odd").is_file()
