"""Mistakes that are told when a sweep is planned: overrides, and what must be said of them."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from support.planning import planned
from sweeprof.config.errors import choice_of_hydra
from sweeprof.config.validation import mode_problems
from sweeprof.errors import UserError
from sweeprof.plan.shape import Grid

FAKE = "model=fake backend=fake"
SYNTHETIC = f"{FAKE} dataset=synthetic"
SLURM = f"{SYNTHETIC} cluster=slurm"
GENERATING = "mode=generation metrics.select=[generation/latency]"

MISTAKES = (
    # Modes and training
    ("training.optimizer=sgd,adamw", "training.optimizer: 'sgd,adamw' has no effect with mode=inference; add mode=training."),

    ("mode=training training.optimizer.lr=0.1", "training.optimizer._target_: None is not the dotted name"),
    (f"{FAKE} mode=loading", "mode: 'loading' measures the data loader alone, without ", ": add metrics=loading"),
    ("mode=generation generation.prompt_length=8", "generation.prompt_length: 8 has an effect with dataset=auto only."),
    (f"{GENERATING} generation.function=my_generation.generat", "generation.function: ", "has no 'generat'. Did you mean"),
    (f"{GENERATING} generation.function=my_generatio.generate", "generation.function", "cannot be imported"),
    # Shapes
    ("grids=5", "grids: 5 is not a list"),
    ("batch_size=range(0,1000000000000)", "has 1,000,000,000,000 values, but an axis can have at most 100,000."),

    (
        f"{SYNTHETIC} model.fake._target_=builtins.dict 'model.fake.m={{a: 1}},{{a: 2}}' 'model.fake.m={{b: 1}},{{b: 2}}'",
        *("model.fake.m: ", "is swept twice"),
    ),
    # Data
    (
        f"{FAKE} dataset=images dataset.path=nowhere dataset.channels=2",
        *("dataset.path: 'nowhere' is not a folder.", "dataset.channels: 2 is not 1 (grey) or 3 (colours)."),
    ),
    (f"{FAKE} dataset=images dataset.image_siz=3", "dataset: 'image_siz' is not an argument of", "Did you mean 'image_size'?"),
    (f"{FAKE} dataset=images dataset.limit=few", "dataset.limit: 'few' is not a whole number or null."),
    (f"{FAKE} dataset=npz dataset.path=a.npz dataset.layout=last", "dataset.layout: 'last' is not"),
    (f"{FAKE} dataset=npz dataset.path=a.npz dataset.inputs=z", "a.npz has no array 'z', but x, y"),
    (f"{FAKE} dataset=torch dataset.source._target_=nowhere.Data", "dataset.source._target_: 'nowhere.Data' cannot be"),
    # Settings of backends
    (
        "backend=torch,onnxruntime backend.precison=fp32,bf16",
        "backend.precison: 'fp32,bf16' is given to a key that does not exist. Did you mean 'backend.precision'?",
    ),

    (f"{FAKE} backend.precision=fp32,bf16", "backend.precision: 'fp32,bf16' is given to a key that does not exist."),
    (
        "backend=tensorflow,jax backend.mode=eager,egaer",
        "backend.mode: 'egaer' is not a mode. Did you mean 'eager'? Known: eager, function, jit, xla.",
    ),

    (
        "backend=torch backend.compile=inductor,openvin",
        "'openvin' is not true, false or a compiler. Did you mean 'openvino'? Known: inductor, openvino,",
    ),
    ("backend=onnxruntime backend.opset=new", "backend.opset: 'new' is not a whole number."),

    # Clusters and launchers
    (f"{SLURM} +cluster.mem=4GiB", "cluster.mem: ", "Did you mean 'cluster.memory'"),
    (
        f"{SLURM} 'cluster.options={{job-name: mine, nice: 5, array: 0-3}}'",
        *("cluster.options.job-name: ", "cluster.options.array: "),
    ),
    ("hydra/launcher=slurm", "hydra/launcher: 'slurm' is selected by cluster=slurm"),
    ("cluster=slurm hydra/launcher=joblib", "hydra/launcher: 'joblib' cannot be combined with cluster=slurm"),

    # Searches
    ("search.maximize=[]", "search.maximize: [] is not a metric such as throughput, a list of metrics, or null."),
    ("search.trials=3", "search.trials: 3 needs a goal: search.maximize or search.minimize, such as search.maximize=throughput."),
    (
        "search.minimize=latency search.sampler=GridSampler",
        "search.sampler: 'GridSampler' is not a sampler for a search. Did you mean 'GPSampler'? Known: GPSampler, ",
    ),
    (
        f"{FAKE} metrics=latency batch_size=doubling(1,64) shards=2 search.maximize=[throughptu,latency] "
        "search.minimize=[per_sample,latency/per_sample] \"search.subject_to=['latncy < 5 ms',latency]\"",
        "shards: 2 must be 1 for a search, which measures one combination after the other.",
        "search.maximize: 'throughptu' is not a metric of this sweep. Did you mean 'throughput'?",
        "search.maximize: 'latency' is better the lower it is: write search.minimize=latency.",
        "search.minimize: 'latency/per_sample' is named twice.",
        "search.subject_to: 'latncy < 5 ms' uses 'latncy', which is not known. Did you mean 'latency'?",
        "search.subject_to: 'latency' has 'latency', which is not a condition: compare it with a value.",
    ),
)  # fmt: skip
DESCRIBED = (
    ("model=timm model.name=resnet81", "model.name: 'resnet81' is not a model of timm. Did you mean 'resnet18'"),
    ("model=timm model.name=zzz*", "model.name: 'zzz*' matches no model."),
    ("model=timm model.nam=resnet18", "model: 'nam' is not a setting of this model. Did you mean 'name'"),
    ("model=timm inputs.image_siz=64", "inputs.image_siz: 64 is given to a key that does not exist. Did you mean"),
    ("model=lenet5 inputs.image_size=64", "inputs: {'image_size': 64} has an effect only with a dataset"),
    ("model=lenet5 dataset=auto", "needs a model whose source describes its inputs, and lenet5 has none"),
    ("model=lenet5 model.name=a*", "model.name: 'a*' is a pattern, and this model's source cannot list its models."),
    ("model=file backend=onnxruntime", "model.path: None is missing: it must name a file."),
)
"""Mistakes in models whose source describes their inputs."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 4)), y=np.zeros(3, np.int64))
    (tmp_path / "my_generation.py").write_text("def generate(model, inputs, new_tokens, on_token, top=1): pass\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("described_here")
@pytest.mark.parametrize(
    "mistake",
    [*MISTAKES, *(pytest.param(mistake, marks=pytest.mark.slow) for mistake in DESCRIBED)],
    ids=lambda mistake: mistake[0][:70],
)
def test_a_mistake_is_told(mistake: tuple[str, ...]) -> None:
    command, *messages = mistake
    model = "" if "model=" in command else "model=mlp"
    with pytest.raises(UserError) as caught:
        planned([*model.split(), *shlex.split(command), "tracking=none"])
    assert [message for message in messages if message not in str(caught.value)] == [], str(caught.value)
    assert len(caught.value.problems) <= len(messages)  # and nothing else


@pytest.mark.parametrize(
    "command",
    [
        "training.optimizer=sgd",
        "mode=training training.optimizer=sgd,adamw",
        "generation.prompt_length=8",  # mode=inference does not read it
        f"{GENERATING} generation.function=my_generation.generate generation.top=3",
        "hydra/launcher=submitit_slurm",
    ],
)
def test_no_mistake(command: str) -> None:
    plan = planned(["model=mlp", "tracking=none", *command.split()])
    assert len(plan.combinations) == 1 + command.count(",")
    assert plan.cluster == {}


def test_an_axis_that_the_command_line_narrowed_to_one_value_is_no_mistake() -> None:
    assert list(mode_problems({"training.optimizer": ["adamw"]}, ["inference"])) == []


def test_our_own_launcher_is_chosen_by_the_cluster() -> None:
    for words in (["cluster=slurm"], ["cluster=slurm", "hydra/launcher=slurm"]):
        assert planned(["model=mlp", "tracking=none", *words]).cluster


def test_a_launcher_that_an_extra_brings_says_so_where_it_is_not_installed() -> None:
    for launcher, extra in (("ray", "ray"), ("submitit_slurm", "submitit"), ("joblib", "joblib")):
        said = str(choice_of_hydra("hydra/launcher", launcher, "launcher", ["basic", "slurm"]))
        assert said == f"hydra/launcher: '{launcher}' is not installed here: pip install 'sweeprof[{extra}]'."
    said = str(choice_of_hydra("hydra/launcher", "slrum", "launcher", ["basic", "slurm"]))
    assert said.endswith("is not a launcher. Did you mean 'slurm'? Known: basic, slurm.")


MILLION = "batch_size=range(1,101) backend.threads=range(1,101) model.fake.seed=range(0,100)"
GRIDS = "grids: [{axes: {batch_size: 'range(1,401)', backend.threads: 'range(1,301)'}}, {axes: {batch_size: [1, 2]}}]"
INCLUDED = "include: [{model.fake.step_s: 1}, {batch_size: 7}]"


@pytest.mark.parametrize(
    ("file", "words", "total", "told"),
    [
        ("", MILLION, 1_000_000, "1,000,000 = 100 batch_size × 100 backend.threads × 100 model.fake.seed"),
        (GRIDS, "", 120_002, "120,002: 120,000 = 400 batch_size × 300 backend.threads; 2 = 2 batch_size"),
        # The first included point is there once for every point of the axes, the second one for every one with its batch size.
        (INCLUDED, MILLION, 2_010_000, "100 model.fake.seed + 1,010,000 of include"),
    ],
)
def test_a_product_that_is_too_large_is_rejected_before_it_is_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, words: str, total: int, told: str
) -> None:
    def expanded(*_: object) -> None:
        raise AssertionError("it was expanded")

    monkeypatch.setattr(Grid, "product", expanded)
    monkeypatch.setattr(Grid, "narrowed", expanded)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "s.yaml").write_text(f"# @package _global_\nseed: {{weights: 0}}\n{file}\n")
    with pytest.raises(UserError) as raised:
        planned([*SYNTHETIC.split(), "tracking=none", "+sweep=s", *words.split()], tmp_path)
    said = str(raised.value)
    assert said.startswith(
        f"combinations: {total} is more than the 100,000 combinations that a sweep can have before `exclude` ("
    )
    assert told in said
    assert said.endswith("give the axes fewer values.")
