"""The scripts and notebooks of examples/, as a reader runs them."""

from __future__ import annotations

import re
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import sweeprof
from sweeprof.results.compared_rows import Comparison

EXAMPLES = Path(__file__).parents[2] / "examples"
WAITING_S = 900
"""A sweep measures while no other one on this host does."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tests share their processors, and threads that wait for each other take many times as long then."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(name: str) -> Any:
    """What ``main`` of a script returns."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()


NEEDS_SERVER = "load_test"  # test_programs.py runs it


def test_every_example_is_listed_and_tested() -> None:
    listed = re.findall(r"\]\((\w+\.(?:py|ipynb))\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))
    here = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{name.removesuffix(".py")}"' in here for name in listed if name.endswith(".py"))


def test_a_model_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    profiler = run("profile_a_model")
    macs = 8 * (32 * 32 * 3 * 9 * 16 + 16 * 16 * 16 * 9 * 32 + 32 * 10)
    params = 16 * 3 * 9 + 16 + 32 * 16 * 9 + 32 + 10 * 32 + 10
    assert profiler.compute("compute/macs").value == macs
    assert profiler.compute("params/total").value == params
    printed = capsys.readouterr().out
    assert f"{macs} multiply-accumulates; no accuracy: quality: unsupported: there are no data" in printed
    assert "Conv2d (0)" in printed


def test_two_models(capsys: pytest.CaptureFixture[str]) -> None:
    teacher, student = run("compare_two_models")
    found = {one.name: one for one in sweeprof.compare(teacher, student)}
    sides = {width: (64 * width + width + 10 * width + 10, 32 * (64 * width + 10 * width)) for width in (512, 64)}
    assert (found["params/total"].baseline, found["compute/macs"].baseline) == sides[512]
    assert (found["params/total"].candidate, found["compute/macs"].candidate) == sides[64]
    assert found["compute/macs"].ratio == pytest.approx(1 / 8)
    for one in (found["quality/accuracy"].baseline, found["quality/accuracy"].candidate):
        assert one is not None
        assert 0 <= one <= 1
    first = " ".join(capsys.readouterr().out.partition("Confidence")[0].split())
    certain = r"(baseline|candidate) (is .* than|and candidate are .*)"
    assert re.fullmatch(rf"({certain}|No certain difference between baseline and candidate \(measured: ).*\.", first)


def test_a_training_loop(capsys: pytest.CaptureFixture[str]) -> None:
    profiler = run("watch_a_training")
    step = profiler.iteration
    assert (profiler.steps, step.batch_size) == (8, 32)
    assert step.forward_s + step.backward_s + step.update_s <= step.iteration_s
    assert profiler.layers.macs == 32 * (64 * 128 + 128 * 10)
    printed = capsys.readouterr().out
    assert "optimizer.0.weight.exp_avg" in printed
    assert "TensorRow(" not in printed


@pytest.mark.slow
def test_a_metric_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    profiler = run("own_metric")
    assert profiler.compute("mine/macs_per_param").value == 4 * 64 * 32 / (64 * 32 + 32)
    assert 0 <= profiler.compute("mine/share_above", seconds=50e-6).value <= 1
    assert profiler.compute("mine/share_above", seconds=0).value == 1
    assert (
        profiler.compute("compute/flops").value == 2 * 4 * 64 * 32 + 4 * 32 + 4 * 32
    )  # the bias, and the operator's own
    assert profiler.compute("compute/coverage").value == 1
    assert "mine/macs_per_param: 3.94 MAC" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.timeout(WAITING_S)
def test_a_sweep_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    comparison, latency = run("run_a_sweep")
    values = latencies(comparison)
    assert set(values) == {(model, size) for model in ("lenet5", "mlp") for size in (1, 32)}
    in_table = {(line.model, line.batch_size): line.value for line in latency.itertuples()}
    assert in_table == {key: pytest.approx(value, rel=1e-6) for key, value in values.items()}
    assert "4 of 4 combinations measured." in str(comparison)
    model, size = min(values, key=lambda key: values[key] or 0)
    printed = capfd.readouterr().out
    assert f"fastest: {{'model': '{model}', 'backend': 'torch', 'device': 'cpu', 'batch_size': {size}}}" in printed


def latencies(comparison: Comparison) -> dict[tuple[str, int], Any]:
    return {
        (row.axes["model"], row.axes["batch_size"]): row.cells["latency/forward"].measurement.value
        for row in comparison.rows
    }


def executed(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The code cells of a notebook after it has run in a kernel of its own."""
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(folder / "jupyter"))
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook, timeout=WAITING_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    shutil.rmtree(folder / "ipython", ignore_errors=True)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown_by(cells: list[Any], start: str) -> list[Any]:
    """The data of the outputs of the only cell that begins so, without what native libraries write."""
    (cell,) = [
        cell for cell in cells if cell.source.startswith(start) and (start != "comparison" or cell.source == start)
    ]
    return [output.data for output in cell.outputs if output.output_type != "stream"]


@pytest.mark.thorough
@pytest.mark.timeout(WAITING_S)
def test_a_first_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = executed(EXAMPLES / "first_look.ipynb", tmp_path, monkeypatch)
    macs = 8 * (32 * 32 * 3 * 9 * 16 + 16 * 16 * 16 * 9 * 32 + 32 * 10)
    (static,) = shown_by(cells, 'profiler.compute_all("static")')
    assert f'data-value="{macs}"' in static["text/html"]
    _, measured = shown_by(cells, 'profiler.compute_all(["latency')
    assert "latency/forward" in measured["text/html"]
    assert any("image/png" in data for data in shown_by(cells, "figure, axes"))
    *_, difference = shown_by(cells, "student =")
    assert re.match(
        r"(baseline|candidate|No certain difference between baseline and candidate) ", difference["text/plain"]
    )


@pytest.mark.slow
@pytest.mark.timeout(WAITING_S)
def test_a_sweep_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = executed(EXAMPLES / "explore_a_sweep.ipynb", tmp_path, monkeypatch)
    (progress,) = shown_by(cells, "%matplotlib inline")
    assert progress == {"text/plain": ""}  # the line is removed at the end
    (shown,) = shown_by([cell for cell in cells if cell.source == "comparison"], "")
    comparison = Comparison.read("notebook/last", output=tmp_path / "outputs")
    assert shown["text/plain"].startswith(str(comparison).splitlines()[0][:40])
    for value in latencies(comparison).values():
        assert f'data-value="{value}"' in shown["text/html"]
    (best,) = shown_by(cells, "comparison.best")
    assert str(min(latencies(comparison).values())) in best["text/html"]
    assert any("image/png" in data for data in shown_by(cells, "samples ="))


@pytest.mark.slow
def test_the_page_on_notebooks() -> None:
    text = (EXAMPLES.parent / "docs/notebooks.md").read_text(encoding="utf-8")
    program, shown_as, _ = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(program + shown_as, names)
    macs = {one.name: (one.baseline, one.candidate) for one in names["differences"]}["compute/macs"]
    assert macs == (16 * (64 * 32 + 32 * 10), 16 * (64 * 8 + 8 * 10))
    shown = names["differences"]
    assert str(shown).startswith("By MACs/sample, candidate is 4.0× lower than baseline.")
