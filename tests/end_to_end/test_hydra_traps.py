"""What looks right to a user of Hydra and is easily understood otherwise: each does what is meant, or says what to write."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest

from support.command import Command

pytestmark = pytest.mark.slow

OVERRIDES = "override /model: fake, override /backend: fake, override /dataset: synthetic, override /tracking: none"
HEAD = f"defaults: [{OVERRIDES}]\nmetrics: {{select: [latency/forward]}}\n"

FILES = {
    "plain": HEAD + "axes: {batch_size: [1, 2]}\n",
    "multirun": HEAD + "axes: {batch_size: [1, 2]}\nhydra: {mode: MULTIRUN}\n",
    "run": HEAD + "axes: {batch_size: [1, 2]}\nhydra: {mode: RUN}\n",
    "parallel": HEAD.replace("none]", "none, override /hydra/launcher: joblib]")
    + "axes: {batch_size: [1, 2]}\nshards: 2\nhydra: {launcher: {n_jobs: 2}}\n",
    "wrong": HEAD
    + "axes: {batch_size: 'interval(1,2)', model.fake.step_s: 9e51464034}\n"
    + "grids: [{axs: {batch_size: [1]}}]\n",
    "unknown": HEAD
    + "axes: {batchsize: [1]}\nzip: [{backend.thread: [1]}]\ninclude: [{backend.slowdwn: 2.0}]\n"
    + "variants: {size: {small: {protocol.round: 2}}}\nexclude: ['backend.threds > 1']\n",
    "hash": HEAD + "name: 9e51464034\n",
    "choices": "model: lenet5\ntracking: none\nseed: 3\ntypo: 1\naxes: {batch_size: [1, 2]}\n",
    "cut": HEAD + "axes: {batch_size: [choice(1,2), 4]}\n",
}

RIGHT = {
    "a sweep without a plus": (["sweep=plain"], "plain: 2 combinations"),
    "flags after overrides": (["+sweep=plain", "batch_size=1,2,3", "-m"], "plain: 3 combinations"),
    "the mode of a multirun": (["+sweep=multirun"], "multirun: 2 combinations"),
    "the mode on the command line": (["+sweep=plain", "hydra.mode=RUN"], "plain: 2 combinations"),
    "a launcher in a sweep file": (["+sweep=parallel"], "in 2 shards"),
    "range within a list": (["+sweep=plain", "zip=[{backend.threads: range(1,3)}]"], "plain: 4 combinations"),
}

WRONG = {
    "everything at once": (
        ["+sweep=wrong"],
        [
            "axes.batch_size: 'interval(1,2)' has no discrete values; write range(start,stop,step), "
            "doubling(first,last) or choice(a,b).",
            "quote a string that looks like a number, such as '9e51464034'.",
            "grids[0]: 'axs' is not a key of a grid. Did you mean 'axes'? Known: axes, exclude, include, zip.",
        ],
    ),
    "keys that do not exist": (
        ["+sweep=unknown"],
        ["'batch_size'?", "'backend.threads'?", "'backend.slowdown'?", "'protocol.rounds'?"],
    ),
    "two sweeps as values": (
        ["-m", "+sweep=plain,run"],
        ["is several sweeps; run each on its own, or write +sweep=[plain,run] if only one lists combinations."],
    ),
    "a name like a number in a file": (["+sweep=hash"], ["name: inf is not a name", "in quotes if it looks like"]),
    "a choice from a group beside the axes": (
        ["+sweep=choices"],
        [
            "in a file: axes: {model: [lenet5]} or defaults: [{override /model: lenet5}].",
            "tracking: 'none' is a choice from a config group; in a file: defaults: [{override /tracking: none}].",
            "seed: 3 is not {key: value}.",
            "typo: 1 is given to a key that does not exist.",
        ],
    ),
    "a call that YAML cuts at its comma": (
        ["+sweep=cut"],
        ["axes.batch_size: ['choice(1', '2)', 4] has only a part of 'choice(1…)'; quote a call within a list."],
    ),
    "a value that no tied axes have": (
        ["+sweep=plain", "zip=[{backend.threads: [1, 2]}]", "backend.threads=7"],
        ["backend.threads: 7 is not a value of the tied axes. Known: 1, 2."],
    ),
    "values of which no tied axes have both": (
        [
            "+sweep=plain",
            "zip=[{backend.threads: [1, 2], model.fake.step_s: [4, 2]}]",
            "backend.threads=1",
            "model.fake.step_s=2",
        ],
        ["excludes all tied or included points."],
    ),
    "a pattern that matches nothing": (
        ["model=glob(fakee*)"],
        ["model: 'glob(fakee*)' matches no config of that group."],
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / "mine" / "sweep" / f"{name}.yaml").write_text(text)
    return tmp_path


@pytest.mark.filterwarnings(r"ignore:\s*Running Hydra app with --multirun:UserWarning")
@pytest.mark.parametrize("case", RIGHT)
def test_what_is_meant_is_done(called: Command, folder: Path, case: str) -> None:
    arguments, told = RIGHT[case]
    ran = called(*arguments, "--config-dir", "mine", "dry_run=true")
    assert ran.code == 0, ran.err
    assert told in ran.out


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_meant_is_told(called: Command, folder: Path, case: str) -> None:
    arguments, told = WRONG[case]
    ran = called("--config-dir", "mine", *arguments)
    assert ran.code == 1
    for text in told:
        assert text in ran.err
    assert "Traceback" not in ran.err
    assert all(line.startswith(("error: ", "planning")) for line in ran.err.strip().splitlines())
    assert sorted(path.name for path in folder.iterdir()) == ["mine"]


def test_a_file_that_asks_for_a_single_run_sweeps_or_is_refused(called: Command, folder: Path) -> None:
    """Hydra 1.3 lets the command line decide; 1.4 wants the mode said nowhere else."""
    ran = called("--config-dir", "mine", "+sweep=run", "dry_run=true")
    if hydra.__version__.startswith("1.3."):
        assert "run: 2 combinations" in ran.out
    else:
        assert "hydra.mode changed during config composition" in ran.err
    assert "Traceback" not in ran.err
