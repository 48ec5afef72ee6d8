"""The pages on backends, models, data and language models and the tutorial, as a reader would follow them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance.asking import GUIDE, write_guide

from support.command import Ran, call_command, environment, values_of
from support.planning import planned
from sweeprof.measuring.inputs import Inputs, Workload, workload_of

DOCS = Path(__file__).parents[2] / "docs"
QUICKLY = ("tracking=none", "protocol.min_s=0.02", "protocol.warmup_s=0.02", "protocol.rounds=1")
pytestmark = pytest.mark.usefixtures("measured_in_forks")


def blocks(page: str, language: str) -> list[str]:
    """The contents of the blocks of code in a language."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def written(page: str, folder: Path) -> list[list[str]]:
    """Write the files that a page shows, and return the arguments of its commands."""
    for block in (*blocks(page, "python"), *blocks(page, "yaml")):
        name = re.match(r"# (\S+\.(?:py|yaml))\n", block)
        if name:
            (folder / name[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / name[1]).write_text(block[name.end() :], encoding="utf-8")
    text = (DOCS / page).read_text(encoding="utf-8")
    return [shlex.split(line)[1:] for line in re.findall(r"^sweeprof .*$", text, re.MULTILINE)]


def command_of(page: str, folder: Path, word: str) -> list[str]:
    """Write the files of a page, and return the arguments of its only command that has a word."""
    (command,) = [line for line in written(page, folder) if word in " ".join(line)]
    return command


def measured(folder: Path, *arguments: str, name: str = "adhoc") -> list[dict[str, Any]]:
    """The rows of a sweep that measures everything."""
    rows = call_command(folder, *arguments, *QUICKLY).rows(name)
    assert {row["status"] for row in rows} == {"ok"}, [row["reason"] for row in rows]
    return rows


SMALL = "model.config.n_layer=1 model.config.n_embd=32 model.config.n_head=2 inputs.sequence_length=8"
CACHE_BYTES = 2 * 2 * 4 * 32 * (16 + 64) * 4 * 4
FIGURES: dict[str, tuple[str, str, dict[str, tuple[float, float]]]] = {
    "training.loss=own": (
        "models.md",
        f"{SMALL} metrics.select=[latency/iteration]",
        {"latency/iteration": (0, 100)},
    ),
    "torchmetrics": ("data.md", "", {"quality/f1": (0.98, 1), "quality/certain": (0.9, 1)}),
    "my_detection": ("data.md", "", {"quality/places": (0.2, 0.5)}),  # of three classes, by chance
    "=t5": ("language_models.md", "", {"generation/kv_cache_bytes": (CACHE_BYTES - 1, CACHE_BYTES + 1)}),
}
"""By a word of a command, its page, what a test adds, and between which figures the values are."""


@pytest.mark.thorough
@pytest.mark.parametrize("word", FIGURES)
def test_a_command_gives_the_figures_that_it_should(tmp_path: Path, word: str) -> None:
    page, more, figures = FIGURES[word]
    (row,) = measured(tmp_path, *command_of(page, tmp_path, word), *more.split())
    for name, (low, high) in figures.items():
        assert low < values_of(row)[name] < high, name


# Backends


@pytest.mark.slow
def test_a_backend_of_ones_own_is_swept_beside_torch(tmp_path: Path) -> None:
    write_guide(tmp_path)
    (command,) = re.findall(r"^sweeprof (--config-dir mine .*)$", GUIDE.read_text(), re.MULTILINE)
    rows = measured(tmp_path, *command.split())
    points = {(row["axes"]["backend"], row["axes"]["batch_size"]) for row in rows}
    assert points == {(backend, size) for backend in ("torch", "numpy") for size in (1, 32)}
    for row in rows:
        values = values_of(row)
        assert values["compute/macs"] == row["axes"]["batch_size"] * 139_904
        assert values["params/total"] == 140_106
        assert 0 <= values["quality/agreement"] < 1e-4
        assert values["latency/forward"] > 0


# Models


@pytest.mark.thorough
def test_a_source_of_ones_own(tmp_path: Path) -> None:
    rows = measured(tmp_path, *command_of("models.md", tmp_path, "--config-dir"))
    macs = {(row["axes"]["model.name"], row["axes"]["inputs.rows"]): values_of(row)["compute/macs"] for row in rows}
    assert macs == {(name, r): layers * r * 32 * 32 for name, layers in (("shallow", 1), ("deep", 4)) for r in (8, 16)}


@pytest.mark.thorough
@pytest.mark.usefixtures("described_here")
def test_the_commands_can_be_planned(tmp_path: Path) -> None:
    lines = written("models.md", tmp_path)
    others = ("--config-dir", "FOLDER", "net.onnx")
    lines = [line for line in lines if not any(other in " ".join(line) for other in others)]
    assert len(lines) == 7
    for line in lines:
        plan = planned([*line, "tracking=none"])
        assert all("inputs" in c.config["dataset"]["inputs"] for c in plan.combinations)


# Data


@pytest.mark.thorough
def test_data_of_ones_own(tmp_path: Path) -> None:
    command = command_of("data.md", tmp_path, "--config-dir")
    rows = measured(tmp_path, *command, "model.config.num_hidden_layers=1", "metrics.select=[quality/accuracy]")
    assert [row["axes"]["dataset.length"] for row in rows] == [16, 64]
    assert all(0 <= values_of(row)["quality/accuracy"] <= 1 for row in rows)


def test_the_unit_of_a_dataset_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written("data.md", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    clips = import_module("my_audio").Clips()
    batch, _ = clips.split("test").batch(np.arange(3))
    assert batch["x"].shape == (3, 16000)  # 3 s with the padding
    assert workload_of(clips, Inputs.from_batch(batch), 3) == Workload("seconds of audio", 1 + 0.5 + 0.75)


@pytest.mark.slow
def test_data_in_five_minutes(tmp_path: Path) -> None:
    others = ("--config-dir", "torchmetrics", "my_detection")  # have tests of their own
    commands = [line for line in written("data.md", tmp_path) if not any(word in " ".join(line) for word in others)]
    assert len(commands) == 3
    subprocess.run([sys.executable, "make_data.py"], cwd=tmp_path, check=True, timeout=120)
    accuracies: list[float] = []
    select = "metrics.select=[quality/accuracy,latency/forward]"
    for number, command in enumerate(commands):
        rows = measured(tmp_path, *command, select, f"name={number}", "protocol.rounds=1", name=str(number))
        accuracies += [values_of(row)["quality/accuracy"] for row in rows]
    both, chosen, table = set(accuracies[:2]), accuracies[2], accuracies[3]
    assert both == {table}
    assert min(table, chosen) > 0.9


@pytest.mark.slow
def test_a_source_of_data_of_ones_own(tmp_path: Path) -> None:
    written("data.md", tmp_path)
    (tmp_path / "lines").mkdir()
    for name in ("cat-1", "dog-1", "dog-2"):
        (tmp_path / "lines" / f"{name}.txt").write_text("1 2 3.5")
    line = ("--config-dir", "mine", "dataset=lines", "model=fake", "backend=fake", "metrics.select=[quality/accuracy]")
    (row,) = measured(tmp_path, *line)
    assert values_of(row)["quality/accuracy"] is not None
    (tmp_path / "lines" / "cat-1.txt").write_text("1 2 x")
    ran = call_command(tmp_path, *line, "tracking=none")
    assert ran.code == 1
    assert "cat-1.txt has something else than numbers" in ran.err


# Language models

LANGUAGE = "language_models.md"


def reasons(row: dict[str, Any]) -> dict[str, str]:
    measurements = {name: cell["measurement"] for name, cell in row["cells"].items()}
    return {name: m["reason"] for name, m in measurements.items() if m["value"] is None}


@pytest.mark.slow
def test_a_sweep_of_generations_with_a_scripted_clock(tmp_path: Path) -> None:
    """New tokens are an axis, modes too; every figure can be told by heart."""
    scripted = "model.fake.prefill_s=0.25 model.fake.token_s=[0.5,0.125,0.0625] model=fake backend=fake batch_size=4"
    protocol = "protocol.warmup_s=0 protocol.warmup_steps=1 protocol.min_samples=8 protocol.min_s=0"
    axes = "mode=inference,generation generation.new_tokens=1,4 metrics=generation tracking=none isolation=inline"
    rows = call_command(tmp_path, *scripted.split(), *protocol.split(), *axes.split()).rows()
    assert {row["status"] for row in rows} == {"ok"}
    by_axes = {(row["axes"]["mode"], row["axes"]["generation.new_tokens"]): row for row in rows}
    assert len(by_axes) == 3  # of inference one row, whatever the number of tokens
    found = values_of(by_axes["generation", 4])
    prompt = 32 * 32  # pixels of an image of digits
    expected = {
        "time_to_first_token": 0.25,
        "first_gap": 0.5,
        "time_per_token": (0.125 + 0.0625) / 2,
        "latency": 0.25 + 0.6875,
        "decode_throughput": 4 * 3 / 0.6875,
        "prefill_throughput": 4 * prompt / 0.25,
    }
    assert {name: found[f"generation/{name}"] for name in expected} == pytest.approx(expected)
    assert found["generation/kv_cache_bytes"] == 8 * 4 * (prompt + 4 - 1)
    one = by_axes["generation", 1]
    assert values_of(one)["generation/time_to_first_token"] == pytest.approx(0.25)
    assert reasons(one)["generation/first_gap"] == "generation.new_tokens=1: this needs at least 2"
    (inference,) = [row for (mode, _), row in by_axes.items() if mode == "inference"]
    assert reasons(inference)["generation/latency"] == "mode=generation is needed: nothing was generated"


@pytest.mark.thorough
def test_a_decoder(tmp_path: Path) -> None:
    rows = measured(tmp_path, *command_of(LANGUAGE, tmp_path, "=llama"), "generation.prompt_length=64")
    assert {row["axes"]["generation.cache_implementation"] for row in rows} == {"dynamic", "static"}
    for row in rows:
        found = values_of(row)
        assert found["generation/kv_cache_bytes"] == 2 * 4 * 2 * 32 * (64 + 16 - 1) * 4
        assert set(reasons(row)) <= {f"generation/time_per_token_p{p}" for p in (95, 99)}
        assert 0 < found["rate/mbu_decode"] < 2
        assert found["generation/time_to_first_token"] < found["generation/latency"]


@pytest.mark.slow
def test_a_function_of_ones_own(tmp_path: Path) -> None:
    (row,) = measured(tmp_path, *command_of(LANGUAGE, tmp_path, "my_generation"))
    assert not reasons(row)
    assert set(values_of(row)) == {"generation/time_to_first_token", "generation/time_per_token"}


@pytest.mark.slow
def test_the_page_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    from sweeprof.model_sources.transformers import import_transformers

    import_transformers()
    (code,) = [block for block in blocks(LANGUAGE, "python") if block.startswith("import sweeprof\n")]
    expected = re.findall(r"# ([\d ·]+)$", code, re.MULTILINE)[0].replace("·", "*")
    exec(code, {})
    assert int(capsys.readouterr().out) == eval(expected)


# The tutorial

ELSEWHERE = ("python3 -m venv", "pip install", "sweeprof ui", "SWEEP=")
"""Lines that other tests run: of packages, of MLflow's pages and of the nightly recipe."""
GATE = "sweeprof compare tag:good widths/last --fail-on worse"


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_every_line_of_the_tutorial_in_its_order(tmp_path: Path) -> None:
    written("tutorial.md", tmp_path)
    ran: dict[str, Ran] = {}
    lines = [line for block in blocks("tutorial.md", "sh") for line in block.splitlines()]
    for line in lines:
        if line.startswith(ELSEWHERE):
            continue
        program, *arguments = shlex.split(line)
        if program != "sweeprof":
            command = [sys.executable if program == "python" else program, *arguments]
            subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), check=True, timeout=120)
            continue
        quickly = QUICKLY if "=" in line else ()
        if "protocol=default" in line:
            # The gate is for parameters, of which one round of one row is enough; the line before has both backends.
            quickly = (*quickly, "model.torch.width=64", "batch_size=32", "backend=torch")
        ran[line] = call_command(tmp_path, *arguments, *quickly)
        if "_target_=my_models.perceptron" in line:
            assert_figures_of_the_page(max((tmp_path / "outputs" / "adhoc").iterdir()))
    failed = {line: (one.out, one.err) for line, one in ran.items() if one.code}
    assert list(failed) == [GATE], failed
    assert ran[GATE].code == 3, failed
    assert ran[GATE].out.startswith("FAILED (exit 3): ")
    assert "8 combinations" in ran["sweeprof --config-dir conf +sweep=widths dry_run=true"].out
    assert "parameters" in ran[GATE].out
    assert "worse" in ran[GATE].out


def assert_figures_of_the_page(folder: Path) -> None:
    """MACs by hand, and the accuracy of a model that is not trained."""
    rows = json.loads((folder / "comparison.json").read_text())["rows"]
    macs = {row["axes"]["model.torch.width"]: values_of(row)["compute/macs_per_sample"] for row in rows}
    assert macs == {64: 66_176, 256: 1024 * 256 + 256 * 10}
    assert all(values_of(row)["quality/accuracy"] < 0.3 for row in rows)
