"""The registry of passes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sweeprof.passes
from sweeprof.backends.fake import FakeBackend, FakeModel
from sweeprof.datasets.arrays import Synthetic
from sweeprof.errors import Damaged
from sweeprof.passes import registry
from sweeprof.passes.registry import Pass, exclusive_passes, parameters, passes
from sweeprof.profiling.session import BuiltSession
from sweeprof.results.record import Protocol

ONE = """
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.results.measurement import Artifact

PASS = Pass(
    name={name!r}, order={order}, run=lambda session, backend: None, read=Artifact.from_dict, kind="once",
    is_exclusive=True, provides=(Parameter({parameter!r}),),
)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules are modules of ``sweeprof.passes`` too."""
    forget()
    monkeypatch.setattr(sweeprof.passes, "__path__", [*sweeprof.passes.__path__, str(tmp_path)])
    yield tmp_path
    forget()
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(f"sweeprof.passes.{file.stem}", None)


def forget() -> None:
    for function in (passes, parameters, exclusive_passes):
        function.cache_clear()


def test_a_module_in_the_folder_is_a_pass(folder: Path) -> None:
    (folder / "further.py").write_text(ONE.format(name="further", order=55, parameter="found"))
    (folder / "helper.py").write_text("PASS = None\n")
    names = list(passes())
    assert names[names.index("peaks") + 1] == "further"
    assert names[names.index("further") + 1] == "timing"
    assert parameters()["found"][0].name == "further"
    assert "further" in exclusive_passes()


@pytest.mark.parametrize(
    ("name", "parameter", "message"),
    [
        ("timing", "other", "two passes are called 'timing'"),
        ("further", "layers", "the passes 'analysis' and 'further' both provide the parameter 'layers'"),
    ],
)
def test_names_are_unique(folder: Path, name: str, parameter: str, message: str) -> None:
    (folder / "clashing.py").write_text(ONE.format(name=name, order=999, parameter=parameter))
    with pytest.raises(ValueError, match=message):
        passes()


def test_a_name_is_that_of_a_file(folder: Path) -> None:
    (folder / "escaping.py").write_text(ONE.format(name="../x", order=999, parameter="other"))
    with pytest.raises(Damaged, match="is not the name of a pass"):
        passes()


def test_an_unknown_pass_is_damage() -> None:
    with pytest.raises(Damaged, match="pass: 'weather' is not one of analysis, "):
        registry.pass_named("weather")


def of_the_fake_backend() -> list[Pass[Any]]:
    """Return the passes that the fake backend supports on any host: it takes one request at a time, and few hosts count energy."""
    found = [one for one in passes().values() if one.name not in ("concurrent", "energy")]
    return [one for one in found if one.capability is None or FakeBackend.has(one.capability)]


@pytest.mark.parametrize("one", of_the_fake_backend(), ids=lambda one: one.name)
def test_a_pass_reads_what_it_wrote(one: Pass[Any]) -> None:
    protocol = Protocol(warmup_s=0, sample_s=0, min_samples=3, min_s=0)
    session = BuiltSession(
        build=FakeModel, backend=FakeBackend(), dataset=Synthetic((3, 4), samples=10), protocol=protocol
    )
    result: Any = session.run(one.name)
    written = result.to_dict() if hasattr(result, "to_dict") else dataclasses.asdict(result)
    read: Any = one.read(written)
    assert type(read) is type(result)
    again = read.to_dict() if hasattr(read, "to_dict") else dataclasses.asdict(read)
    assert {**again, "warnings": None} == {**written, "warnings": None}


def test_passes_import_no_framework() -> None:
    frameworks = {"torch", "tensorflow", "keras", "jax", "onnx", "onnxruntime", "hydra", "mlflow", "pandas"}
    program = (
        "import sys; from sweeprof.passes.registry import passes; passes(); "
        f"print(sorted({frameworks} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
