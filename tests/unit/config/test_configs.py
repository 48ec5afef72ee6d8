"""Every YAML under conf/: it composes, has no problem, says what it is, and names what can be imported."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from support.fakes import composed_of
from support.planning import planned
from sweeprof.config.overrides import packaged_targets
from sweeprof.config.validation import config_problems
from sweeprof.paths import conf_folder

CONF = Path(conf_folder())
FILES = sorted(CONF.rglob("*.yaml"))
GROUPS = sorted({file.parent.name for file in FILES if file.parent != CONF and "hydra" not in file.parts})


def relative(file: Path) -> str:
    return str(file.relative_to(CONF))


def options() -> Iterator[tuple[str, str]]:
    for file in FILES:
        parent = file.parent.relative_to(CONF)
        if parent != Path() and parent.parts[0] not in ("sweep", "hydra"):
            yield str(parent), file.stem


def test_there_are_configs() -> None:
    assert {"model", "dataset", "backend", "device", "metrics", "protocol", "sweep", "tracking"} <= set(GROUPS)


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_it_begins_with_what_it_is(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert re.match(r"# \S", text)
    assert text.endswith("\n")


@pytest.mark.parametrize("file", sorted((CONF / "sweep").glob("*.yaml")), ids=relative)
def test_a_sweep_begins_with_its_command(file: Path) -> None:
    first, second, *_ = file.read_text(encoding="utf-8").splitlines()
    assert first == f"# python -m sweeprof +sweep={file.stem}"
    assert re.match(r"# \S", second)


def test_the_defaults_have_no_problem() -> None:
    assert config_problems(composed_of()) == []


@pytest.mark.parametrize(("group", "option"), list(options()))
def test_every_option_composes(group: str, option: str) -> None:
    needed = ["model.path=net.onnx"] if option == "file" else []
    assert config_problems(composed_of(f"{group}={option}", *needed)) == []


@pytest.mark.parametrize("file", sorted((CONF / "hydra").rglob("*.yaml")), ids=relative)
def test_every_hydra_option_composes(file: Path) -> None:
    group = str(file.parent.relative_to(CONF))
    composed_of(f"{group}={file.stem}")


@pytest.mark.usefixtures("described_here")
@pytest.mark.parametrize("name", sorted(file.stem for file in (CONF / "sweep").glob("*.yaml")))
def test_every_combination_of_a_sweep_composes(name: str) -> None:
    plan = planned([f"+sweep={name}"])
    assert plan.combinations
    for combination in plan.combinations:
        assert combination.unsupported is None
        assert config_problems(combination.config) == []
    written = OmegaConf.to_container(OmegaConf.load(CONF / "sweep" / f"{name}.yaml"))
    assert isinstance(written, dict)
    for values in written["axes"].values():
        assert len(values) == len(set(map(str, values)))


@pytest.mark.parametrize("target", sorted(t for t in packaged_targets() if t != "null"))
@pytest.mark.filterwarnings("ignore")  # of MLflow's own imports
def test_what_it_names_can_be_called(target: str) -> None:
    module, _, name = target.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("group", ["model", "dataset", "backend", "metrics", "protocol", "device", "tracking"])
def test_every_default_is_an_option(group: str) -> None:
    defaults = OmegaConf.load(CONF / "config.yaml").defaults
    (chosen,) = [entry[group] for entry in defaults if not isinstance(entry, str) and group in entry]
    assert (CONF / group / f"{chosen}.yaml").is_file()


def test_the_first_override_in_a_comment_can_be_read() -> None:
    """``mode=eager`` and the like, wherever a comment offers one."""
    parser = OverridesParser.create()
    for file in FILES:
        for override in re.findall(r"\b([a-z_.]+=[\w:.,/]+)", file.read_text(encoding="utf-8").split("\n", 1)[0]):
            parser.parse_override(override.rstrip(".,:"))
