"""Shapes of sweeps, by the real command: the combinations that they mean, and that each one's command repeats it alone."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.command import Command
from support.planning import planned, write_configs
from sweeprof.text import axis_text

BASE = "defaults: [override /model: fake, override /backend: fake, override /dataset: synthetic, override /tracking: none]\n"
STATIC = "metrics: {select: [latency/forward]}\n"


class Case(NamedTuple):
    """A sweep file, the combinations that should result, and what the command line adds."""

    text: str
    axes: str
    """The axes of the combinations that are compared."""
    rows: list[Any]
    """Their values in each combination; of a single axis the value alone."""
    arguments: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


STEP, THREADS = "model.fake.step_s", "backend.threads"
OPEN = "model: {fake: {_target_: builtins.dict}}\n"
"""A model whose builder takes any argument."""
ZIP = f"[{{batch_size: [1, 8], {STEP}: [0.001, 0.008]}}]"
SIZES = f"{{small: {{{STEP}: 0.001, batch_size: 1}}, large: {{{STEP}: 0.008, batch_size: 8}}}}"
STEPS = f"{{small: {{{STEP}: 0.001}}, large: {{{STEP}: 0.008}}}}"
EXCLUDED = f"exclude:\n- {{batch_size: 1, {THREADS}: [2]}}\n- batch_size * {THREADS} > 8\n- {{batch_size: [4]}}\n"
GRIDS = (
    f"axes: {{{THREADS}: [1]}}\ngrids:\n"
    f"- axes: {{batch_size: [1, 2], {STEP}: [0.001, 0.002]}}\n  exclude: [{{batch_size: 2, {STEP}: 0.002}}]\n"
    f"- axes: {{batch_size: 64, {THREADS}: [1, 2]}}\n  include: [{{batch_size: 5}}]\n"
)

CASES = {
    "zip on the command line": Case("", f"batch_size {STEP}", [(1, 0.001), (8, 0.008)], (f"zip={ZIP}",)),
    "variants on the command line": Case(
        "", "size batch_size", [("small", 2), ("large", 2)], (f"variants.size={STEPS}", "batch_size=2")
    ),
    "a key of variants on the command line": Case(
        f"variants: {{size: {SIZES}}}", f"size {STEP} batch_size", [("small", 0.5, 1), ("large", 0.5, 8)], (f"{STEP}=0.5",)
    ),
    "a key of tied variants on the command line": Case(
        f"variants: {{size: {SIZES}}}\nzip: [{{size: [small, large], {THREADS}: [1, 2]}}]",
        *(f"size {STEP} {THREADS}", [("small", 0.5, 1), ("large", 0.5, 2), ("small", 1.0, 1), ("large", 1.0, 2)]),
        (f"{STEP}=0.5,1.0",),
    ),
    "include": Case(
        f"axes: {{batch_size: [1, 2]}}\nexclude: [batch_size > 1]\ninclude: [{{batch_size: 64, {THREADS}: 2}}]",
        *(f"batch_size {THREADS}", [(1, 1), (64, 2)]),
        left_out=("batch_size > 1",),
    ),
    "grids on the command line beside points of a file": Case(
        *("include: [{batch_size: 2}, {batch_size: 5}]", "batch_size", [1, 2, 64]),
        ("batch_size=1,2", "grids=[{include: [{batch_size: 64}]}]"),
    ),
    "exclude by values, lists and conditions": Case(
        f"axes: {{batch_size: [1, 2, 4, 8], {THREADS}: [1, 2]}}\n{EXCLUDED}",
        *(f"batch_size {THREADS}", [(1, 1), (2, 1), (2, 2), (8, 1)]),
        left_out=("batch_size=1, backend.threads=[2]", "batch_size * backend.threads > 8", "batch_size=[4]"),
    ),
    "grids": Case(
        *(GRIDS, f"batch_size {STEP} {THREADS}"),
        [(1, 0.001, 1), (1, 0.002, 1), (2, 0.001, 1), (64, 0.001, 1), (64, 0.001, 2), (5, 0.001, 1)],
        left_out=("batch_size=2, model.fake.step_s=0.002",),
    ),
    "range, choice and glob on the command line": Case(
        *("", f"backend batch_size {THREADS}", [("fake", b, t) for b in (1, 2) for t in (3, 4)]),
        ("batch_size=range(1,3)", f"{THREADS}=choice(3,4)", "backend=glob(*,exclude=[c*,t*,j*,l*,o*])"),
    ),
    "a YAML list in hydra.sweeper.params": Case(
        "hydra: {sweeper: {params: {batch_size: [1, 2], backend.threads: '3,4'}}}",
        *(f"batch_size {THREADS}", [(1, 3), (1, 4), (2, 3), (2, 4)]),
    ),
    "constructor arguments that the config does not have": Case(
        f"axes: {{model.fake.depth: [2, 4]}}\ngrids: [{{}}, {{axes: {{model.fake.depth: 8, model.fake.width: [1]}}}}]\n{OPEN}",
        *("model.fake.depth model.fake.width", [(2, None), (4, None), (8, 1)]),
    ),
    "hash-like values on the command line": Case(
        *(OPEN, "model.fake.tag", ["9e51464034", "123e999", "1e5"]),
        ("model.fake.tag=9e51464034,123e999,'1e5'", "name=9e51464034"),
    ),
}  # fmt: skip


def written(folder: Path, case: Case) -> list[str]:
    """Write the case's file below ``folder``, and return the arguments that run it."""
    write_configs(folder / "mine", {"sweep/s": f"{BASE}{STATIC}{case.text}\n"})
    return ["--config-dir", "mine", "+sweep=s", *case.arguments]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_shape_means_its_combinations_and_each_can_be_repeated_alone(
    called: Command, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    arguments = written(tmp_path, case)
    plan = planned(arguments[2:], tmp_path / "mine")
    rows = [row if isinstance(row, tuple) else (row,) for row in case.rows]
    assert [tuple(c.axes.get(key) for key in case.axes.split()) for c in plan.combinations] == rows
    assert all(list(c.axes) == list(plan.axes) for c in plan.combinations)
    rules = [one.reason.removeprefix("exclude: ") for one in plan.excluded if one.reason.startswith("exclude: ")]
    assert set(rules) == set(case.left_out)
    count = len(plan.combinations)
    for place in sorted({0, count // 2, count - 1}):
        combination = plan.combinations[place]
        again = planned(shlex.split(combination.command)[3:], tmp_path / "mine")
        assert [c.id for c in again.combinations] == [combination.id], combination.command
    ran = called(*arguments, "dry_run=true")
    assert ran.code == 0, ran.err
    assert f"{plan.name}: {len(case.rows)} combination" in ran.out
    assert all(combination.id in ran.out for combination in plan.combinations)
    values = itertools.chain.from_iterable(plan.axes.values())
    assert {axis_text(value) for value in values if value is not None} <= set(ran.out.split())
    assert all(f"(exclude: {rule})" in ran.out for rule in case.left_out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
