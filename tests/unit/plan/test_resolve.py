"""How values and names of a sweep become configs: bounded work at scale, and kinds that YAML, Python or Hydra confuse."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import setup_globals

from support.planning import composer, planned
from sweeprof.config.validation import part_problems
from sweeprof.errors import UserError
from sweeprof.targets import instantiate, restored, storable

BASE = ["model=fake", "backend=fake", "dataset=synthetic", "tracking=none"]
OPEN = ["model.fake._target_=builtins.dict"]
GRID = ["batch_size=range(1,101)", "backend.slowdown=1.0,2.0,3.0,4.0", "model.fake.step_s=range(0.001,0.0255,0.001)"]


def test_ten_thousand_combinations_take_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: Counter[str] = Counter()

    def counting(name: str, part: Any) -> Any:
        looked[name] += 1
        return part_problems(name, part)

    monkeypatch.setattr("sweeprof.plan.sweep_file.part_problems", counting)
    made = composer([*BASE, *GRID])
    plan = made.plan()
    assert len(plan.combinations) == len({c.id for c in plan.combinations}) == 10_000
    assert (made.points.resolver.compositions, made.points.resolver.resolutions) == (1, 1)
    expected = {"model": 25, "backend": 4, "batch_size": 100}
    assert {name: looked[name] for name in looked if looked[name] > 1} == expected
    assert len({id(c.config["model"]) for c in plan.combinations}) == 25
    assert len({id(c.config["protocol"]) for c in plan.combinations}) == 1
    data = plan.to_dict()
    assert [len(data["parts"][name]) for name in ("model", "backend", "protocol")] == [25, 4, 1]
    assert len(json.dumps(data)) < 10_000_000


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def test_a_composition_that_is_no_longer_in_memory_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        f"model__m{i}": f"fake: {{_target_: builtins.dict, place: {i}, read: '${{batch_size}}'}}\n" for i in range(3)
    }
    words = ["model=m0,m1,m2", "batch_size=2,4", *BASE[1:]]
    write(tmp_path, **files)
    kept = [c.id for c in planned(words, tmp_path).combinations]
    monkeypatch.setattr("sweeprof.plan.sweep_file.KEPT", 1)
    made = composer(words, tmp_path)
    assert [c.id for c in made.plan().combinations] == kept
    assert made.points.resolver.compositions > 4


@pytest.mark.parametrize(
    ("config", "words", "expected"),
    [
        ("{of: '${hydra:runtime.choices.model}'}", ["batch_size=1,2"], [{"of": "own"}] * 2),
        ("{of: '${.${.which}}', which: x, x: 1, y: 2}", ["model.fake.which=x,y"], [{"of": 1}, {"of": 2}]),
        ("{of: '${.a-b}', a-b: 1}", ["++model.fake.a-b=5,6"], [{"of": 5}, {"of": 6}]),
        ("{of: '${oc.select:batch_size}', other: '${oc.dict.values:dataset.shape_of}'}", ["batch_size=3,4"], None),
    ],
    ids=["a resolver of Hydra", "an interpolation in an interpolation", "a key with a dash", "a key that is missing"],
)
def test_what_an_interpolation_reads_follows_the_axes(
    tmp_path: Path, config: str, words: list[str], expected: list[Any] | None
) -> None:
    write(tmp_path, model__own=f"fake: {config}\n".replace("{of", "{_target_: builtins.dict, of"))
    setup_globals()  # Hydra's resolvers, which a run has
    arguments = ["model=own", *BASE[1:], *words]
    if expected is None:
        with pytest.raises(UserError, match="cannot be composed"):
            planned(arguments, tmp_path)
        return
    found = [c.config["model"]["fake"] for c in planned(arguments, tmp_path).combinations]
    assert [{key: node[key] for key in want} for node, want in zip(found, expected, strict=True)] == expected


def test_names_of_variants_are_those_that_the_file_has(tmp_path: Path) -> None:
    """YAML 1.1 reads ``on``, ``no``, ``1e3`` and ``0x10`` as booleans and numbers."""
    names = ("on", "no", "1e3", "0x10", "'yes'")
    variants = ", ".join(f"{name}: {{batch_size: {place + 1}}}" for place, name in enumerate(names))
    text = f"variants: {{kind: {{{variants}}}}}\nexclude: [{{kind: no}}, kind == '1e3']\ninclude: [{{kind: no}}]\n"
    plan = planned([*BASE, "+sweep=s"], write(tmp_path, sweep__s=text))
    rows = [(c.axes["kind"], c.config["batch_size"]) for c in plan.combinations]
    assert rows == [("on", 1), ("0x10", 4), ("yes", 5), ("no", 2)]
    for word, batch_size in (("on", 1), ("'yes'", 5), ("'0x10'", 4)):
        (only,) = planned([*BASE, "+sweep=s", f"kind={word}", "include=[]"], tmp_path).combinations
        assert only.config["batch_size"] == batch_size


@pytest.mark.parametrize(
    ("values", "rule", "left"),
    [
        ("1, true, 2", "1", [True, 2]),
        ("1, true, 2", "true", [1, 2]),
        ("0.0, -0.0, 0", "-0.0", [0.0, 0]),
        ("0, false, null, ''", "[0, null]", [False, ""]),
        ("[1], [true]", "[[1]]", [[True]]),
    ],
)
def test_values_that_are_equal_in_python_are_different_values(
    tmp_path: Path, values: str, rule: str, left: list[Any]
) -> None:
    text = f"axes: {{model.fake.x: [{values}]}}\nexclude: [{{model.fake.x: {rule}}}]\n"
    plan = planned([*BASE, *OPEN, "+sweep=s"], write(tmp_path, sweep__s=text))
    found = [c.config["model"]["fake"]["x"] for c in plan.combinations]
    assert list(map(repr, found)) == list(map(repr, left))
    chosen = [text.strip() for text in values.split(", ")][1]
    if not chosen.startswith("["):
        (only,) = planned([*BASE, *OPEN, "+sweep=s", f"model.fake.x={chosen}", "exclude=[]"], tmp_path).combinations
        assert repr(only.config["model"]["fake"]["x"]) == {"true": "True", "-0.0": "-0.0", "false": "False"}[chosen]


def test_a_list_of_values_may_stand_elsewhere_in_the_config(tmp_path: Path) -> None:
    text = "model: {fake: {sizes: [2, 4]}}\naxes: {batch_size: '${model.fake.sizes}', model.fake.x: '${batch_size}'}\n"
    plan = planned([*BASE, *OPEN, "+sweep=s"], write(tmp_path, sweep__s=text))
    assert [(c.config["batch_size"], c.axes["model.fake.x"]) for c in plan.combinations] == [(2, 2), (4, 4)]


@pytest.mark.parametrize("words", [["model=own"], ["model=own", "batch_size=1,2"], ["+sweep=s"]])
def test_a_value_that_is_left_open_is_found_while_planning(tmp_path: Path, words: list[str]) -> None:
    own = "fake: {_target_: builtins.dict, width: ???}\n".replace("???", "'???'")
    write(tmp_path, model__own=own, sweep__s="axes: {model: [own]}\n")
    with pytest.raises(
        UserError, match=r"model\.fake\.width: '\?\?\?' has no value; give it one: model\.fake\.width=VALUE"
    ):
        planned([*BASE[1:], *words], tmp_path)
    plan = planned([*BASE[1:], *words, "model.fake.width=3"], tmp_path)
    assert {c.config["model"]["fake"]["width"] for c in plan.combinations} == {3}


def test_two_files_that_list_combinations_are_refused(tmp_path: Path) -> None:
    write(
        tmp_path,
        sweep__a="axes: {batch_size: [1, 2]}\n",
        sweep__b="zip: [{batch_size: [1]}]\n",
        sweep__c="exclude: [batch_size > 1]\n",
    )
    with pytest.raises(UserError, match=r"sweep: 'a, b' list combinations; .* as `grids` of one file"):
        planned([*BASE, "+sweep=[a,b]"], tmp_path)
    assert [c.config["batch_size"] for c in planned([*BASE, "+sweep=[a,c]"], tmp_path).combinations] == [1]


def test_a_mapping_that_is_swept_twice_is_refused() -> None:
    with pytest.raises(UserError, match=r"model\.fake\.m: .* is swept twice"):
        planned([*BASE, *OPEN, "model.fake.m={a: 1},{a: 2}", "model.fake.m={b: 1},{b: 2}"])


def test_a_mapping_that_the_grammar_cannot_express_is_refused(tmp_path: Path) -> None:
    text = "axes: {model.fake.m: [{'1': a}, {1: a}]}\n"
    with pytest.raises(UserError, match="would not read as text"):
        planned([*BASE, *OPEN, "+sweep=s"], write(tmp_path, sweep__s=text))


def test_a_model_of_an_experiment_is_named_by_its_builder(tmp_path: Path) -> None:
    text = "# @package _global_\nmodel: {torch: {_target_: sweeprof.zoo.mlp.torch_model, pretrained: false}}\n"
    plan = planned(["+exp=own", "backend=torch,onnxruntime", "tracking=none"], write(tmp_path, exp__own=text))
    assert [c.axes["model"] for c in plan.combinations] == ["torch_model", "torch_model"]
    chosen = ["model=lenet5", "model.torch._target_=sweeprof.zoo.mlp.torch_model", "backend=torch,tensorflow"]
    plan = planned([*chosen, "tracking=none"])
    assert [c.axes["model"] for c in plan.combinations] == ["torch_model", "lenet5"]


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
    assert instantiate({"_target_": "builtins.dict", "_partial_": True, "width": 4, "m": {"_items_": [[1, "a"]]}}) == {
        "width": 4,
        "m": {1: "a"},
    }
