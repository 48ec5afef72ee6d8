"""Command lines and config files as plans: baselines, names, values that YAML, Python or Hydra confuse, clusters, searches."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any, cast

import pytest
from hydra.core.utils import setup_globals
from rich.console import Console

from support import planning
from support.planning import composer, write_configs
from sweeprof.config.override_syntax import spelled
from sweeprof.errors import UserError
from sweeprof.plan import compose
from sweeprof.plan.compose import change_problems
from sweeprof.plan.plan import Plan, SearchPlan
from sweeprof.results.compared_rows import SearchGoal
from sweeprof.targets import instantiate, restored, storable

FAKE = ("model=fake", "backend=fake", "dataset=synthetic", "tracking=none")
OPEN = "model.fake._target_=builtins.dict"
"""A builder that takes any argument."""


def mlp_plan(*arguments: str, configs: Path | None = None) -> Plan:
    return planning.planned(["model=mlp", "metrics=latency", "tracking=none", *arguments], configs)


def fake_plan(*arguments: str, configs: Path | None = None) -> Plan:
    return planning.planned([*FAKE, *arguments], configs)


def arguments_of(plan: Plan) -> list[dict[str, Any]]:
    """What the model's builder gets in each combination."""
    return [c.config["model"]["fake"] for c in plan.combinations]


# What others are compared with, and what is measured once


PRECISIONS, LAYOUTS = "backend.precision=bf16,fp32", "backend.channels_last=true,false"


@pytest.mark.parametrize(
    ("arguments", "baseline"),
    [
        ([], {"backend": "torch"}),
        (["batch_size=1,8"], {"backend": "torch"}),
        (["backend=tensorflow"], {}),
        (["backend=jax,tensorflow", PRECISIONS], {"backend": "jax", "backend.precision": "fp32"}),
        (["backend.precision=bf16,int8"], {"backend": "torch"}),
        ([PRECISIONS, LAYOUTS], {"backend.precision": "fp32", "backend.channels_last": False}),
        (["backend=torch_compile,torch", PRECISIONS], {"backend": "torch", "backend.precision": "fp32"}),
        ([PRECISIONS, "compare.baseline={backend.precision: bf16}"], {"backend.precision": "bf16"}),
        ([PRECISIONS, "compare.baseline=null"], {"backend.precision": "fp32"}),
        (["model.fake.limit=1,nan,-inf", "compare.baseline={model.fake.limit: nan}"], {"model.fake.limit": "nan"}),
    ],
)
def test_the_baseline_is_the_plainest_of_what_a_sweep_varies(arguments: list[str], baseline: dict[str, Any]) -> None:
    plan = mlp_plan(*arguments)
    assert plan.baseline == baseline
    assert len(plan.shards) == 1


@pytest.mark.slow
def test_a_loss_and_an_optimizer_of_the_users_key_by_key() -> None:
    """As a model and its arguments: none of these keys is in the default config, in which both are names."""
    optimizer = ("training.optimizer._target_=builtins.dict", "training.optimizer.lr=0.1,0.01")
    plan = mlp_plan("mode=training", "training.loss._target_=operator.sub", *optimizer)
    assert [c.config["training"] for c in plan.combinations] == [
        {"loss": {"_target_": "operator.sub"}, "optimizer": {"_target_": "builtins.dict", "lr": rate}}
        for rate in (0.1, 0.01)
    ]


def test_an_inference_is_measured_once_whatever_trains() -> None:
    plan = mlp_plan("mode=inference,training", "training.optimizer=sgd,adamw,none")
    kinds = [(c.axes["mode"], c.axes["training.optimizer"]) for c in plan.combinations]
    assert kinds == [("inference", "sgd"), *(("training", name) for name in ("sgd", "adamw", "none"))]
    assert [excluded.axes["training.optimizer"] for excluded in plan.excluded] == ["adamw", "none"]
    assert all(excluded.reason.startswith("the same as ") for excluded in plan.excluded)


# Names and commands


@pytest.mark.slow
def test_a_model_of_a_file_is_the_users_own(tmp_path: Path) -> None:
    """It has its name, and neither arguments nor builders of the default model, which would be measured beside it."""
    node = "model: {torch: {_target_: sweeprof.zoo.mlp.torch_model, pretrained: false}}\n"
    sweep = f"axes: {{backend: [torch, tensorflow]}}\n{node}"
    write_configs(tmp_path, {"sweep/mine": sweep, "exp/own": f"# @package _global_\n{node}"})
    of_sweep = planning.planned(["+sweep=mine", "tracking=none"], tmp_path)
    words = ("model.torch._target_=sweeprof.zoo.mlp.torch_model", "model.torch.pretrained=false")
    typed = planning.planned([*words, "backend=torch,tensorflow", "tracking=none"])
    assert [c.id for c in of_sweep.combinations] == [c.id for c in typed.combinations]
    assert [c.unsupported is None for c in of_sweep.combinations] == [True, False]
    of_experiment = planning.planned(["+exp=own", "batch_size=1,2", "tracking=none"], tmp_path)
    for plan in (of_sweep, of_experiment):
        assert [c.axes["model"] for c in plan.combinations] == ["torch_model", "torch_model"]
    excluding = planning.planned([words[0], "batch_size=1,8", "exclude=['batch_size > 1']", "tracking=none"])
    assert [excluded.axes["model"] for excluded in excluding.excluded] == ["torch_model"]
    chosen = planning.planned(["model=lenet5", words[0], "backend=torch,tensorflow", "tracking=none"])
    assert [c.axes["model"] for c in chosen.combinations] == ["torch_model", "lenet5"]


@pytest.mark.parametrize(("named", "name"), [("[one,team/three]", "one+team-three"), ("größe", "größe")])
def test_a_plan_with_the_name_of_its_sweep_files_can_be_read(tmp_path: Path, named: str, name: str) -> None:
    names = ("one", "team/three", "größe")
    write_configs(tmp_path, {f"sweep/{file}": f"seed: {{weights: {at}}}\n" for at, file in enumerate(names)})
    plan = planning.planned([f"+sweep={named}", "tracking=none"], tmp_path)
    assert plan.name == name
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))).name == name


def test_names_of_config_files_may_have_any_letters(tmp_path: Path) -> None:
    steps = {"my-größtes-模型": 1, "my-2": 2, "my own": 3}
    text = "fake: {{_target_: sweeprof.backends.fake.FakeModel, step_s: {}}}\n"
    write_configs(tmp_path, {f"model/{name}": text.format(step_s) for name, step_s in steps.items()})
    plan = planning.planned([*FAKE[1:], "model=glob(my*)"], tmp_path)
    assert {c.axes["model"]: c.config["model"]["fake"]["step_s"] for c in plan.combinations} == steps


@pytest.mark.slow
def test_names_of_variants_are_those_that_the_file_has(tmp_path: Path) -> None:
    """YAML 1.1 reads ``on``, ``no``, ``1e3`` and ``0x10`` as booleans and numbers."""
    names = ("on", "no", "1e3", "0x10", "'yes'")
    variants = ", ".join(f"{name}: {{batch_size: {place + 1}}}" for place, name in enumerate(names))
    text = f"variants: {{kind: {{{variants}}}}}\nexclude: [{{kind: no}}, kind == '1e3']\ninclude: [{{kind: no}}]\n"
    plan = fake_plan("+sweep=s", configs=write_configs(tmp_path, {"sweep/s": text}))
    rows = [(c.axes["kind"], c.config["batch_size"]) for c in plan.combinations]
    assert rows == [("on", 1), ("0x10", 4), ("yes", 5), ("no", 2)]
    for word, batch_size in (("on", 1), ("'yes'", 5), ("'0x10'", 4)):
        (only,) = fake_plan("+sweep=s", f"kind={word}", "include=[]", configs=tmp_path).combinations
        assert only.config["batch_size"] == batch_size


def test_the_command_is_stored_as_it_was_typed() -> None:
    words = [*FAKE, "name=20240101", "batch_size=1,2", "compare.baseline={batch_size: 1}"]
    command = planning.planned(words).command
    assert shlex.split(command)[3:] == words
    assert " name=20240101 " in command


# Values


def test_a_range_has_its_values() -> None:
    assert mlp_plan("protocol.max_s=range(1,2,0.25)").axes["protocol.max_s"] == [1, 1.25, 1.5, 1.75]


def test_the_command_line_overrides_what_a_sweep_file_gives_the_sweeper() -> None:
    params = "hydra.sweeper.params={batch_size: '1,2', backend.threads: 3}"
    plan = mlp_plan(params, "batch_size=4,8")
    assert [(c.axes["batch_size"], c.config["backend"]["threads"]) for c in plan.combinations] == [(4, 3), (8, 3)]


@pytest.mark.parametrize(
    ("config", "axis", "expected"),
    [
        ("of: '${hydra:runtime.choices.model}'", "batch_size=1,2", ["own", "own"]),
        ("of: '${.${.which}}', which: x, x: 1, y: 2", "model.fake.which=x,y", [1, 2]),
        ("of: '${.a-b}', a-b: 1", "++model.fake.a-b=5,6", [5, 6]),
    ],
)
def test_what_an_interpolation_reads_follows_the_axes(
    tmp_path: Path, config: str, axis: str, expected: list[Any]
) -> None:
    write_configs(tmp_path, {"model/own": f"fake: {{_target_: builtins.dict, {config}}}\n"})
    setup_globals()  # Hydra's resolvers, which a run has
    plan = fake_plan("model=own", axis, configs=tmp_path)
    assert [node["of"] for node in arguments_of(plan)] == expected


def test_an_interpolation_of_a_key_that_is_missing_is_a_mistake(tmp_path: Path) -> None:
    write_configs(tmp_path, {"model/own": "fake: {_target_: builtins.dict, of: '${oc.dict.values:dataset.nothing}'}\n"})
    with pytest.raises(UserError, match="cannot be composed"):
        fake_plan("model=own", "batch_size=3,4", configs=tmp_path)


@pytest.mark.parametrize(
    ("values", "rule", "left"),
    [
        ("1, true, 2", "1", [True, 2]),
        ("0.0, -0.0, 0", "-0.0", [0.0, 0]),
        ("0, false, null, ''", "[0, null]", [False, ""]),
        ("[1], [true]", "[[1]]", [[True]]),
    ],
)
def test_values_that_are_equal_in_python_are_different_values(
    tmp_path: Path, values: str, rule: str, left: list[Any]
) -> None:
    text = f"axes: {{model.fake.x: [{values}]}}\nexclude: [{{model.fake.x: {rule}}}]\n"
    plan = fake_plan(OPEN, "+sweep=s", configs=write_configs(tmp_path, {"sweep/s": text}))
    assert [repr(node["x"]) for node in arguments_of(plan)] == list(map(repr, left))
    chosen = fake_plan(OPEN, "+sweep=s", f"model.fake.x={spelled(left[0])}", configs=tmp_path)
    assert [repr(node["x"]) for node in arguments_of(chosen)] == [repr(left[0])]


def test_a_list_of_values_may_stand_elsewhere_in_the_config(tmp_path: Path) -> None:
    text = "model: {fake: {sizes: [2, 4]}}\naxes: {batch_size: '${model.fake.sizes}', model.fake.x: '${batch_size}'}\n"
    plan = fake_plan(OPEN, "+sweep=s", configs=write_configs(tmp_path, {"sweep/s": text}))
    assert [(c.config["batch_size"], c.axes["model.fake.x"]) for c in plan.combinations] == [(2, 2), (4, 4)]


@pytest.mark.parametrize("words", [["model=own"], ["+sweep=s"]])
def test_a_value_that_is_left_open_is_found_while_planning(tmp_path: Path, words: list[str]) -> None:
    own = "fake: {_target_: builtins.dict, width: '???'}\n"
    write_configs(tmp_path, {"model/own": own, "sweep/s": "axes: {model: [own]}\n"})
    said = r"model\.fake\.width: '\?\?\?' has no value; give it one: model\.fake\.width=VALUE"
    with pytest.raises(UserError, match=said):
        planning.planned([*FAKE[1:], *words], tmp_path)
    plan = planning.planned([*FAKE[1:], *words, "model.fake.width=3"], tmp_path)
    assert {node["width"] for node in arguments_of(plan)} == {3}


def test_two_files_that_list_combinations_are_refused(tmp_path: Path) -> None:
    zipped = "zip: [{batch_size: [1]}]\n"
    files = {"a": "axes: {batch_size: [1, 2]}\n", "b": zipped, "c": "exclude: [batch_size > 1]\n"}
    write_configs(tmp_path, {f"sweep/{name}": text for name, text in files.items()})
    with pytest.raises(UserError, match=r"sweep: 'a, b' list combinations; .* as `grids` of one file"):
        fake_plan("+sweep=[a,b]", configs=tmp_path)
    assert [c.config["batch_size"] for c in fake_plan("+sweep=[a,c]", configs=tmp_path).combinations] == [1]


def test_a_mapping_that_the_grammar_cannot_express_is_refused(tmp_path: Path) -> None:
    write_configs(tmp_path, {"sweep/s": "axes: {model.fake.m: [{'1': a}, {1: a}]}\n"})
    with pytest.raises(UserError, match="would not read as text"):
        fake_plan(OPEN, "+sweep=s", configs=tmp_path)


@pytest.mark.parametrize(
    "node",
    [
        {"a": 1, "b": [1.5, {"c": None}]},
        {1: "a", False: [float("inf")], "b": {2.5: {"c": -float("inf")}}},
        [{1: {2: {3: 4}}}, float("inf")],
    ],
)
def test_what_json_cannot_express_is_stored_all_the_same(node: Any) -> None:
    again = restored(json.loads(json.dumps(storable(node), allow_nan=False)))
    assert repr(again) == repr(node)
    assert (storable(node) is node) == ("inf" not in repr(node))


def test_a_partial_node_is_called() -> None:
    node = {"_target_": "builtins.dict", "_partial_": True, "width": 4, "m": {"_items_": [[1, "a"]]}}
    assert instantiate(node) == {"width": 4, "m": {1: "a"}}


# Ten thousand combinations


@pytest.mark.thorough
def test_ten_thousand_combinations_take_bounded_work() -> None:
    steps = "model.fake.step_s=range(0.001,0.0255,0.001)"
    made = composer([*FAKE, "batch_size=range(1,101)", "backend.slowdown=1.0,2.0,3.0,4.0", steps])
    plan = made.plan()
    assert len(plan.combinations) == len({c.id for c in plan.combinations}) == 10_000
    assert (made.points.resolver.compositions, made.points.resolver.resolutions) == (1, 1)
    assert len({id(c.config["model"]) for c in plan.combinations}) == 25
    data = plan.to_dict()
    assert [len(data["parts"][name]) for name in ("model", "backend", "protocol")] == [25, 4, 1]
    assert len(json.dumps(data)) < 10_000_000


@pytest.mark.slow
def test_a_composition_that_is_no_longer_in_memory_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "fake: {{_target_: builtins.dict, place: {}, read: '${{batch_size}}'}}\n"
    write_configs(tmp_path, {f"model/m{i}": text.format(i) for i in range(3)})
    words = ["model=m0,m1,m2", "batch_size=2,4", *FAKE[1:]]
    kept = [c.id for c in planning.planned(words, tmp_path).combinations]
    monkeypatch.setattr("sweeprof.plan.sweep_file.KEPT", 1)
    made = composer(words, tmp_path)
    assert [c.id for c in made.plan().combinations] == kept
    assert made.points.resolver.compositions > 4


def test_planning_that_takes_long_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "LINE_S", 0.02)
    made = composer([*FAKE, "batch_size=range(1,41)", "backend.threads=range(1,41)"])
    made.live = Console(file=io.StringIO(), width=200)
    made.plan()
    lines = cast("io.StringIO", made.live.file).getvalue().splitlines()
    counted = [found for line in lines if (found := re.fullmatch(r"planning: ([\d,]+) of 1,600 combinations", line))]
    assert len({found[1] for found in counted}) > 1, lines
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize("text", ["${oc.env:HOME}", r"\\${x}", "a${b"])
def test_what_a_composed_config_has_is_resolved_no_further(text: str) -> None:
    made = instantiate({"_target_": "builtins.dict", "text": text, "more": [{"_target_": "builtins.dict", "of": text}]})
    assert made == {"text": text, "more": [{"of": text}]}


# Clusters: what tasks ask for, and how combinations are dealt out to them


def clustered(*arguments: str) -> Plan:
    return fake_plan("cluster=slurm", *arguments)


TWO = ("batch_size=1,2,3,4", "model.fake.step_s=0.001,0.002", "compare.baseline={model.fake.step_s: 0.001}")


def test_what_combinations_use_is_asked_for() -> None:
    plan = clustered("backend.threads=3", "cluster.memory=4GiB", "cluster.partition=cpu")
    (asked,) = plan.cluster["resources"]
    assert (asked["cpus"], asked["gpus"], asked["memory"], asked["partition"]) == (3, 0, "4GiB", "cpu")
    assert Plan.from_dict(plan.to_dict()) == plan


def test_a_gpu_is_asked_for_where_the_device_is_one() -> None:
    plan = planning.planned(["cluster=slurm", "device=cuda,cpu", "tracking=none"])
    device = {c.id: c.axes["device"] for c in plan.combinations}
    asked = zip(plan.shards, plan.cluster["resources"], strict=True)
    assert {device[id]: one["gpus"] for shard, one in asked for id in shard} == {"cuda": 1, "cpu": 0}


def test_a_pair_gets_what_is_enough_for_both() -> None:
    plan = clustered("batch_size=1,2", "backend.threads=1,4", "compare.baseline={backend.threads: 1}")
    assert [asked["cpus"] for asked in plan.cluster["resources"]] == [4]


@pytest.mark.parametrize(
    ("setting", "shards"),
    [("cluster.minutes=0.05", 4), ("cluster.minutes=1000", 1), ("shards=3", 3), ("shards=7", 4)],
)
def test_there_are_shards_for_about_the_minutes_or_as_many_as_were_asked_for(setting: str, shards: int) -> None:
    assert len(clustered(*TWO, setting).shards) == shards  # of four pairs


# Searches

LATENCY = "metrics=latency"
SIZES = "batch_size=doubling(1,64)"


def test_a_search_is_part_of_the_plan() -> None:
    given = "search={maximize: throughput, subject_to: ['latency < 5 ms'], trials: 4}"
    plan = fake_plan(LATENCY, SIZES, "compare.constraints=['batch_size < 64']", given)
    goals = (SearchGoal("throughput/samples_per_s", "maximize"),)
    assert plan.search == SearchPlan(goals, 4, "GPSampler", 0)
    assert plan.axes["batch_size"] == [1, 2, 4, 8, 16, 32, 64]
    assert plan.compare.constraints == ["batch_size < 64", "latency < 5 ms"]
    assert plan.size == 4
    assert len(plan.shards) == 1
    assert Plan.from_dict(plan.to_dict()) == plan
    assert "search" not in plan.combinations[0].command
    program = ("backend=command", "backend.command=[expr, '{args.n}']", "args.n=1,2", "tracking=none")
    reported = "backend.metrics={score: {regex: .+, better: higher}}"
    search = planning.planned([*program, reported, "search.maximize=score"]).search
    assert search is not None
    assert search.goals == (SearchGoal("command/score", "maximize"),)


def test_without_trials_a_sixth_of_the_combinations_is_measured_and_at_least_twenty() -> None:
    few = fake_plan(LATENCY, "batch_size=range(1,31)", "search.minimize=latency", "search.sampler=TPESampler")
    assert few.search == SearchPlan((SearchGoal("latency/forward", "minimize"),), 20, "TPESampler", 0)
    many = fake_plan(LATENCY, "batch_size=range(1,153)", "search.minimize=latency")
    fewer = fake_plan(LATENCY, SIZES, "search.minimize=latency")
    assert [plan.search.trials for plan in (many, fewer) if plan.search] == [26, 7]  # of 152, of 7


def test_several_goals_are_the_pareto_front() -> None:
    plan = fake_plan(LATENCY, SIZES, "search.maximize=throughput", "search.minimize=latency")
    assert plan.compare.pareto == ["throughput/samples_per_s", "latency/forward"]


def test_on_a_cluster_a_search_is_one_task_with_the_largest_of_the_resources() -> None:
    plan = clustered(LATENCY, SIZES, "backend.threads=1,3", "cluster.minutes=0.1", "search.maximize=throughput")
    assert plan.shards == (tuple(c.id for c in plan.combinations),)
    (resources,) = plan.cluster["resources"]
    assert resources["cpus"] == 3


def test_a_single_combination_is_no_search() -> None:
    assert fake_plan(LATENCY, "search.maximize=throughput", "single_combination=true").search is None


def test_changes_of_a_resumed_search() -> None:
    search = SearchPlan((SearchGoal("latency/forward", "minimize"),), 5, "TPESampler")
    assert list(change_problems(search, {"search.trials": 9, "limits.timeout_s": 3})) == []
    (problem,) = change_problems(search, {"search.maximize": "throughput"})
    said = "search.maximize: 'throughput' cannot be changed alone: repeat the command of the sweep"
    assert str(problem).startswith(said)
    (problem,) = change_problems(None, {"search.trials": 9})
    assert str(problem) == "search.trials: 9 cannot be set: the sweep that is resumed is not a search."
