"""Every YAML under conf/ composes and says what it is; its keys are those of the schema, of --help and of docs/config.md."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from support.planning import composed_of, planned
from sweeprof.cli.run import help_lines
from sweeprof.config.overrides import VERSION_BASE, packaged_targets
from sweeprof.config.schema import GROUPS, KEYS, PARTS, TOP_LEVEL, keys_below
from sweeprof.config.validation import config_problems
from sweeprof.paths import conf_folder

CONF = Path(conf_folder())
FILES = sorted(CONF.rglob("*.yaml"))


def relative(file: Path) -> str:
    return str(file.relative_to(CONF))


def options() -> Iterator[tuple[str, str]]:
    for file in FILES:
        parent = file.parent.relative_to(CONF)
        if parent.parts[:1] not in ((), ("sweep",)):
            yield str(parent), file.stem


def test_every_file_begins_with_what_it_is() -> None:
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        assert re.match(r"# \S", text), file
        assert text.endswith("\n"), file


@pytest.mark.parametrize("file", sorted((CONF / "sweep").glob("*.yaml")), ids=relative)
def test_a_sweep_begins_with_its_command(file: Path) -> None:
    first, second, *_ = file.read_text(encoding="utf-8").splitlines()
    assert first == f"# python -m sweeprof +sweep={file.stem}"
    assert re.match(r"# \S", second)


@pytest.mark.parametrize(("group", "option"), list(options()))
def test_every_option_composes(group: str, option: str) -> None:
    needed = {"model=file": ["model.path=net.onnx"], "backend=command": ["backend.command=[true]"]}
    assert config_problems(composed_of(f"{group}={option}", *needed.get(f"{group}={option}", []))) == []


@pytest.mark.usefixtures("described_here")
@pytest.mark.parametrize("name", sorted(file.stem for file in (CONF / "sweep").glob("*.yaml")))
def test_every_combination_of_a_sweep_composes(name: str) -> None:
    plan = planned([f"+sweep={name}"])  # which looks for problems of every combination
    assert {combination.unsupported for combination in plan.combinations} == {None}
    written = OmegaConf.to_container(OmegaConf.load(CONF / "sweep" / f"{name}.yaml"))
    assert isinstance(written, dict)
    for values in written["axes"].values():
        assert len(values) == len(set(map(str, values)))


@pytest.mark.parametrize("target", sorted(t for t in packaged_targets() if t != "null"))
@pytest.mark.filterwarnings("ignore")  # of MLflow's own imports
def test_what_it_names_can_be_called(target: str) -> None:
    module, _, name = target.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


# The schema


ROOT = Path(__file__).parents[3]


def loaded(*names: str) -> dict[str, Any]:
    plain = OmegaConf.to_container(OmegaConf.load(conf_folder().joinpath(*names)))
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items()}


def defaults_below(part: str) -> dict[str, Any]:
    return {name: key.default for name, key in keys_below(part).items()}


def test_the_main_config_has_the_keys_of_the_schema_with_their_defaults() -> None:
    with initialize_config_dir(str(conf_folder()), **VERSION_BASE):
        composed = OmegaConf.to_container(compose("config"))
    assert isinstance(composed, dict)
    assert set(composed) == set(TOP_LEVEL)
    for name in set(TOP_LEVEL) - set(GROUPS):
        assert composed[name] == (defaults_below(name) if name in PARTS else KEYS[name].default), name
    main = loaded("config.yaml")
    assert main["hydra"]["mode"] == "MULTIRUN"
    groups = {name for entry in main["defaults"] if isinstance(entry, dict) for name in entry if " " not in name}
    assert groups == set(GROUPS)


def test_every_protocol_has_all_keys() -> None:
    for file in (conf_folder() / "protocol").glob("*.yaml"):
        assert set(loaded("protocol", file.name)) == set(keys_below("protocol")), file.name


def defaults_of_cluster(*but: str) -> dict[str, object]:
    return {key: value for key, value in defaults_below("cluster").items() if key not in but}


def test_the_defaults_of_the_default_choices_are_those_of_the_schema() -> None:
    assert loaded("protocol", "quick.yaml") == defaults_below("protocol")
    assert loaded("device", "cpu.yaml") == defaults_below("device")
    assert loaded("cluster", "slurm.yaml") == {**defaults_of_cluster("address"), "scheduler": "slurm"}
    of_slurm = ("partition", "time", "parallel")
    assert loaded("cluster", "ray.yaml") == {**defaults_of_cluster(*of_slurm), "scheduler": "ray", "poll_s": 2}
    # MLflow itself sets the variable for what runs within a run.
    by_variable = {"parent_run": "${oc.env:MLFLOW_RUN_ID,null}"}
    assert loaded("tracking", "mlflow.yaml").items() >= {**defaults_below("tracking"), **by_variable}.items()
    assert loaded("backend", "torch.yaml").items() >= defaults_below("backend").items()


def test_the_help_lists_every_key() -> None:
    text = "\n".join(help_lines())
    for name, key in KEYS.items():
        assert name.partition(".")[0] == "job" or f" {name.rpartition('.')[2]}" in text, key


def test_values_of_the_page_are_not_cut_within_braces() -> None:
    for line in (ROOT / "docs" / "config.md").read_text(encoding="utf-8").splitlines():
        values = line.rpartition(" | ")[2]
        assert values.count("{") == values.count("}"), line
