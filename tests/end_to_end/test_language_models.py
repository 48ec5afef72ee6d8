"""docs/language_models.md, as a reader would follow it, and sweeps of generations."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from end_to_end.test_model_guides import DOCS, QUICKLY, written

from support.command import Ran, call_command

PAGE = "language_models.md"

pytestmark = pytest.mark.usefixtures("measured_in_forks")


def rows_of(folder: Path, sweep: str, *arguments: str) -> list[dict[str, Any]]:
    return rows_in(call_command(folder, *arguments), sweep)


def rows_in(ran: Ran, sweep: str) -> list[dict[str, Any]]:
    assert ran.code == 0, (ran.out, ran.err)
    rows: list[dict[str, Any]] = json.loads((ran.folder(sweep) / "comparison.json").read_text())["rows"]
    assert {row["status"] for row in rows} == {"ok"}
    return rows


def values(row: dict[str, Any]) -> dict[str, float | None]:
    return {name: cell["measurement"]["value"] for name, cell in row["cells"].items()}


def reasons(row: dict[str, Any]) -> dict[str, str]:
    measurements = {name: cell["measurement"] for name, cell in row["cells"].items()}
    return {name: m["reason"] for name, m in measurements.items() if m["value"] is None}


def test_a_sweep_of_generations_with_a_scripted_clock(tmp_path: Path) -> None:
    """New tokens are an axis, modes too; every figure can be told by heart."""
    scripted = "model.fake.prefill_s=0.25 model.fake.token_s=[0.5,0.125,0.0625] model=fake backend=fake batch_size=4"
    protocol = "protocol.warmup_s=0 protocol.warmup_steps=1 protocol.min_samples=8 protocol.min_s=0"
    axes = "mode=inference,generation generation.new_tokens=1,4 metrics=generation"
    ran = call_command(
        tmp_path, *scripted.split(), *protocol.split(), *axes.split(), "tracking=none", "isolation=inline"
    )
    rows = rows_in(ran, "adhoc")
    by_axes = {(row["axes"]["mode"], row["axes"]["generation.new_tokens"]): row for row in rows}
    assert len(by_axes) == 3  # of inference one row, whatever the number of tokens
    found = values(by_axes["generation", 4])
    assert found["generation/time_to_first_token"] == pytest.approx(0.25)
    assert found["generation/first_gap"] == pytest.approx(0.5)
    assert found["generation/time_per_token"] == pytest.approx((0.125 + 0.0625) / 2)
    assert found["generation/latency"] == pytest.approx(0.25 + 0.6875)
    assert found["generation/decode_throughput"] == pytest.approx(4 * 3 / 0.6875)
    prompt = 32 * 32  # pixels of an image of digits
    assert found["generation/prefill_throughput"] == pytest.approx(4 * prompt / 0.25)
    assert found["generation/kv_cache_bytes"] == 8 * 4 * (prompt + 4 - 1)
    one = by_axes["generation", 1]
    assert values(one)["generation/time_to_first_token"] == pytest.approx(0.25)
    assert reasons(one)["generation/first_gap"] == "generation.new_tokens=1: this needs at least 2"
    (inference,) = [row for (mode, _), row in by_axes.items() if mode == "inference"]
    assert reasons(inference)["generation/latency"] == "nothing was generated: add mode=generation"


def command_of(folder: Path, word: str) -> list[str]:
    """Write the files of the page, and return the arguments of its only command that has a word."""
    (command,) = [line for line in written(PAGE, folder) if any(word in argument for argument in line)]
    return [*command, *QUICKLY]


@pytest.mark.thorough
def test_the_first_look(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "transformers", *command_of(tmp_path, "+sweep="))
    assert {row["axes"]["network"] for row in rows} == {"bert", "gpt2", "llama"}


@pytest.mark.slow
def test_a_decoder(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "adhoc", *command_of(tmp_path, "=llama"), "generation.prompt_length=64")
    assert {row["axes"]["generation.cache_implementation"] for row in rows} == {"dynamic", "static"}
    for row in rows:
        found = values(row)
        assert found["generation/kv_cache_bytes"] == 2 * 4 * 2 * 32 * (64 + 16 - 1) * 4
        assert set(reasons(row)) <= {f"generation/time_per_token_p{p}" for p in (95, 99)}
        assert 0 < float(found["rate/mbu_decode"] or 0) < 2
        latency, first_token = found["generation/latency"], found["generation/time_to_first_token"]
        assert latency is not None
        assert first_token is not None
        assert first_token < latency


@pytest.mark.slow
def test_an_encoder_with_a_decoder(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, "adhoc", *command_of(tmp_path, "=t5"), "protocol.rounds=1")
    assert values(row)["generation/kv_cache_bytes"] == 2 * 2 * 4 * 32 * (16 + 64) * 4 * 4


@pytest.mark.slow
def test_a_function_of_ones_own(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, "adhoc", *command_of(tmp_path, "my_generation"), "protocol.rounds=1")
    assert not reasons(row)
    assert set(values(row)) == {"generation/time_to_first_token", "generation/time_per_token"}


@pytest.mark.slow
def test_the_page_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    from sweeprof.model_sources.transformers import import_transformers

    import_transformers()
    text = (DOCS / PAGE).read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(import sweeprof\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    expected = re.findall(r"# ([\d ·]+)$", code, re.MULTILINE)[0].replace("·", "*")
    exec(code, {})
    assert int(capsys.readouterr().out) == eval(expected)
