"""Planning at scale, by work counted and not timed; and what is put together is what Hydra would have composed."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.planning import composer
from sweeprof.config.validation import part_problems
from sweeprof.plan import resolve
from sweeprof.plan.plan import Plan

BASE = ["model=fake", "backend=fake", "dataset=synthetic", "tracking=none"]
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
    (only,) = made.sections
    assert (only.resolver.compositions, only.resolver.resolutions) == (1, 1)
    expected = {"model": 25, "backend": 4, "batch_size": 100}
    assert {name: looked[name] for name in looked if looked[name] > 1} == expected
    assert len({id(c.config["model"]) for c in plan.combinations}) == 25
    assert len({id(c.config["protocol"]) for c in plan.combinations}) == 1
    data = plan.to_dict()
    assert [len(data["parts"][name]) for name in ("model", "backend", "protocol")] == [25, 4, 1]
    assert len(json.dumps(data)) < 10_000_000


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Four models and three backends of one's own."""
    for kind in ("model", "backend"):
        (tmp_path / kind).mkdir()
    for i in range(4):
        step = f"fake:\n  _target_: sweeprof.backends.fake.FakeModel\n  step_s: 0.{i + 1}\n"
        (tmp_path / "model" / f"m{i}.yaml").write_text(step)
    for i in range(3):
        (tmp_path / "backend" / f"b{i}.yaml").write_text(f"defaults: [fake]\nslowdown: {i + 1}.0\n")
    return tmp_path


FAKE = "_target_: sweeprof.backends.fake.FakeBackend, framework: fake, preload: [], environment: {}, threads: 1, slowdown: 9.0"
CHOICES = ["dataset=synthetic", "tracking=none", "model=m0,m1,m2,m3", "backend=b0,b1,b2", "batch_size=1,2"]


def content(plan: Plan) -> list[Any]:
    return [(c.id, c.axes, c.config, c.command) for c in plan.combinations]


@pytest.mark.slow
def test_choices_of_groups_are_put_together_as_hydra_composes_them(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "WHOLE", 0)
    few = composer(CHOICES, own)
    together = few.plan()
    # None alone, four models, three backends, one device: with more of each, far less than their product.
    assert few.sections[0].resolver.compositions == 1 + 4 + 3 + 1
    monkeypatch.setattr(resolve, "WHOLE", 1000)
    many = composer(CHOICES, own)
    assert content(many.plan()) == content(together)
    assert many.sections[0].resolver.compositions == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("backend/b2.yaml", f"# @package _global_\nmodel: {{fake: {{step_s: 7.0}}}}\nbackend: {{{FAKE}}}\n"),
        ("model/m3.yaml", "defaults:\n- /backend@extra: ${backend}\n- fake\n"),
        ("model/m3.yaml", "defaults: [fake]\nfake: {step_s: '${batch_size}'}\n"),
    ],
)
def test_choices_that_meet_are_left_to_hydra(own: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str) -> None:
    (own / file).write_text(text)
    choices = ["dataset=synthetic", "tracking=none", "model=m0,m3", "backend=b0,b2", "batch_size=1,2"]
    found = []
    for whole in (0, 1000):
        monkeypatch.setattr(resolve, "WHOLE", whole)
        found.append(content(composer(choices, own).plan()))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["mode=inference,training", "training.optimizer=sgd,adam"],
        ["training.optimizer={_target_: fractions.Fraction, numerator: 1},adam", "mode=training"],
        ["batch_size=1,2", "dataset.samples='${batch_size}',64"],
        ["metrics.select=[latency/forward],[compute/macs]"],
    ],
)
def test_values_that_are_read_or_read_others_go_through_omegaconf(arguments: list[str]) -> None:
    for combination in composer([*BASE, *arguments]).plan().combinations:
        (again,) = composer(shlex.split(combination.command)[3:]).plan().combinations
        assert again.id == combination.id
        assert "${" not in json.dumps(combination.config)
