"""Every shape of a sweep, by the real command: the combinations that it means, and that each one's command repeats it alone."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.command import Command
from support.planning import planned

BASE = "defaults: [override /model: fake, override /backend: fake, override /dataset: synthetic, override /tracking: none]\n"
STATIC = "metrics: {select: [latency/forward]}\n"


@dataclass(frozen=True)
class Case:
    """A sweep file, or several, what the command line adds, and the combinations that should result."""

    files: dict[str, str]
    rows: list[dict[str, Any]]
    arguments: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    configs: dict[str, str] = field(default_factory=dict)
    """Further config files."""


def rows(keys: str, *values: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(keys.split(), row, strict=True)) for row in values]


STEP, THREADS = "model.fake.step_s", "backend.threads"

OPEN = "model: {fake: {_target_: builtins.dict}}\n"
"""A model whose builder takes any argument."""

CASES = {
    "axes": Case(
        {"s": f"axes: {{batch_size: [1, 2], {STEP}: [0.001, 0.002]}}\n"},
        rows(f"batch_size {STEP}", (1, 0.001), (1, 0.002), (2, 0.001), (2, 0.002)),
    ),
    "zip": Case(
        {"s": f"axes: {{{THREADS}: [1, 2]}}\nzip: [{{batch_size: [1, 8], {STEP}: [0.001, 0.008]}}]\n"},
        rows(f"{THREADS} batch_size {STEP}", (1, 1, 0.001), (1, 8, 0.008), (2, 1, 0.001), (2, 8, 0.008)),
    ),
    "zip narrowed by the command line": Case(
        {"s": f"zip: [{{batch_size: [1, 8], {STEP}: [0.001, 0.008]}}]\n"},
        rows(f"batch_size {STEP}", (8, 0.008)),
        ("batch_size=8",),
    ),
    "zip on the command line": Case(
        {"s": ""},
        rows(f"batch_size {STEP}", (1, 0.001), (8, 0.008)),
        (f"zip=[{{batch_size: [1, 8], {STEP}: [0.001, 0.008]}}]",),
    ),
    "variants": Case(
        {
            "s": f"axes: {{{THREADS}: [1, 2]}}\n"
            f"variants: {{size: {{small: {{{STEP}: 0.001, batch_size: 1}}, large: {{{STEP}: 0.008, batch_size: 8}}}}}}\n"
        },
        rows(f"size {THREADS} batch_size", ("small", 1, 1), ("small", 2, 1), ("large", 1, 8), ("large", 2, 8)),
    ),
    "variants narrowed by the command line": Case(
        {"s": f"variants: {{size: {{small: {{{STEP}: 0.001}}, large: {{{STEP}: 0.008}}}}}}\n"},
        rows("size batch_size", ("large", 1)),
        ("size=large",),
    ),
    "variants on the command line": Case(
        {"s": ""},
        rows("size batch_size", ("small", 2), ("large", 2)),
        (f"variants.size={{small: {{{STEP}: 0.001}}, large: {{{STEP}: 0.008}}}}", "batch_size=2"),
    ),
    "include": Case(
        {
            "s": f"axes: {{batch_size: [1, 2]}}\nexclude: [batch_size > 1]\ninclude: [{{batch_size: 64, {THREADS}: 2}}]\n"
        },
        rows(f"batch_size {THREADS}", (1, 1), (64, 2)),
        left_out=("batch_size > 1",),
    ),
    "exclude by values, lists and conditions": Case(
        {
            "s": f"axes: {{batch_size: [1, 2, 4, 8], {THREADS}: [1, 2]}}\n"
            f"exclude:\n- {{batch_size: 1, {THREADS}: [2]}}\n- batch_size * {THREADS} > 8\n- {{batch_size: [4]}}\n"
        },
        rows(f"batch_size {THREADS}", (1, 1), (2, 1), (2, 2), (8, 1)),
        left_out=("batch_size=1, backend.threads=[2]", "batch_size * backend.threads > 8", "batch_size=[4]"),
    ),
    "exclude on the command line": Case(
        {"s": "axes: {batch_size: [1, 2, 4]}\n"},
        rows("batch_size", (1,), (4,)),
        ("exclude=['1 < batch_size < 4']",),
        left_out=("1 < batch_size < 4",),
    ),
    "grids": Case(
        {
            "s": f"axes: {{{THREADS}: [1]}}\ngrids:\n"
            f"- axes: {{batch_size: [1, 2], {STEP}: [0.001, 0.002]}}\n  exclude: [{{batch_size: 2, {STEP}: 0.002}}]\n"
            f"- axes: {{batch_size: 64, {THREADS}: [1, 2]}}\n  include: [{{batch_size: 5}}]\n"
        },
        rows(
            f"batch_size {STEP} {THREADS}",
            *((1, 0.001, 1), (1, 0.002, 1), (2, 0.001, 1), (64, 0.001, 1), (64, 0.001, 2), (5, 0.001, 1)),
        ),
        left_out=("batch_size=2, model.fake.step_s=0.002",),
    ),
    "range, choice and glob in a file": Case(
        {"s": f'axes: {{batch_size: "range(1,4)", {THREADS}: ["choice(1,2)", 4], backend: "glob(fa*)"}}\n'},
        [{"batch_size": b, THREADS: t, "backend": "fake"} for b in (1, 2, 3) for t in (1, 2, 4)],
    ),
    "range, choice and glob on the command line": Case(
        {"s": ""},
        [{"backend": "fake", "batch_size": b, THREADS: t} for b in (1, 2) for t in (3, 4)],
        ("batch_size=range(1,3)", f"{THREADS}=choice(3,4)", "backend=glob(*,exclude=[t*,j*,l*,o*])"),
    ),
    "a YAML list in hydra.sweeper.params": Case(
        {"s": "hydra: {sweeper: {params: {batch_size: [1, 2], backend.threads: '3,4'}}}\n"},
        rows(f"batch_size {THREADS}", (1, 3), (1, 4), (2, 3), (2, 4)),
    ),
    "constructor arguments that the config does not have": Case(
        {
            "s": "axes: {model.fake.depth: [2, 4]}\n"
            "grids: [{}, {axes: {model.fake.depth: 8, model.fake.width: [1]}}]\n" + OPEN
        },
        rows("model.fake.depth model.fake.width", (2, None), (4, None), (8, 1)),
    ),
    "a group of one's own": Case(
        {"s": "axes: {speed: [slow, fast]}\n"},
        rows("speed", ("slow",), ("fast",)),
        configs={
            "speed/slow": "# @package backend\nslowdown: 3.0\n",
            "speed/fast": "# @package backend\nslowdown: 1.0\n",
        },
    ),
    "a file of combinations and a file of settings": Case(
        {
            "s": "axes: {batch_size: [1, 2]}\n",
            "settings": "seed: {weights: 7}\nname: both\nexclude: [{batch_size: 2}]\n",
        },
        rows("batch_size", (1,)),
        left_out=("batch_size=2",),
    ),
    "duplicates": Case(
        {"s": "axes: {batch_size: [1, 2, 2]}\ngrids: [{}, {axes: {batch_size: [2, 3]}}]\n"},
        rows("batch_size", (1,), (2,), (3,)),
    ),
    "hash-like values": Case(
        {"s": f"axes: {{model.fake.tag: ['9e51464034', abc]}}\n{OPEN}"},
        rows("model.fake.tag", ("9e51464034",), ("abc",)),
    ),
    "hash-like values on the command line": Case(
        {"s": OPEN},
        rows("model.fake.tag", ("9e51464034",), ("123e999",), ("1e5",)),
        ("model.fake.tag=9e51464034,123e999,'1e5'", "name=9e51464034"),
    ),
}


def written(folder: Path, case: Case) -> list[str]:
    """The case's files below ``folder``, and the arguments that run it."""
    (folder / "mine" / "sweep").mkdir(parents=True)
    for name, text in case.files.items():
        head = BASE + STATIC if name == "s" else BASE
        (folder / "mine" / "sweep" / f"{name}.yaml").write_text(head + text)
    for name, text in case.configs.items():
        path = folder / "mine" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    named = next(iter(case.files)) if len(case.files) == 1 else f"[{','.join(case.files)}]"
    return ["--config-dir", "mine", f"+sweep={named}", *case.arguments]


FIRST = ("axes", "zip", "variants", "a file of combinations and a file of settings")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FIRST else pytest.mark.slow) for n in CASES])
def test_a_shape_means_its_combinations_and_each_can_be_repeated_alone(
    called: Command, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    arguments = written(tmp_path, case)
    plan = planned(arguments[2:], tmp_path / "mine")
    assert [
        {key: c.axes.get(key) for key in row} for c, row in zip(plan.combinations, case.rows, strict=True)
    ] == case.rows
    assert all(list(c.axes) == list(plan.axes) for c in plan.combinations)
    rules = [one.reason.removeprefix("exclude: ") for one in plan.excluded if one.reason.startswith("exclude: ")]
    assert set(rules) == set(case.left_out)
    count = len(plan.combinations)
    for combination in {
        plan.combinations[place].id: plan.combinations[place] for place in (0, count // 2, -1)
    }.values():
        again = planned(shlex.split(combination.command)[3:], tmp_path / "mine")
        assert [c.id for c in again.combinations] == [combination.id], combination.command
    ran = called(*arguments, "dry_run=true")
    assert ran.code == 0, ran.err
    assert f"{plan.name}: {len(case.rows)} combination" in ran.out
    assert all(combination.id in ran.out for combination in plan.combinations)
    assert all(f"(exclude: {rule})" in ran.out for rule in case.left_out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
