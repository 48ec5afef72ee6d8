"""The keys of the schema are those of ``conf/``, of ``--help`` and of ``docs/config.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from sweeprof.cli.run import help_lines
from sweeprof.config.overrides import VERSION_BASE
from sweeprof.config.schema import GROUPS, KEYS, PARTS, TOP_LEVEL, keys_below
from sweeprof.paths import conf_folder

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


PROTOCOLS = sorted((conf_folder() / "protocol").glob("*.yaml"))


@pytest.mark.parametrize("file", PROTOCOLS, ids=lambda file: file.stem)
def test_every_protocol_has_all_keys(file: Path) -> None:
    assert set(loaded("protocol", file.name)) == set(keys_below("protocol"))


def defaults_of_cluster(*but: str) -> dict[str, object]:
    return {key: value for key, value in defaults_below("cluster").items() if key not in but}


def test_the_defaults_of_the_default_choices_are_those_of_the_schema() -> None:
    assert loaded("protocol", "quick.yaml") == defaults_below("protocol")
    assert loaded("device", "cpu.yaml") == defaults_below("device")
    assert loaded("cluster", "slurm.yaml") == {**defaults_of_cluster("address"), "scheduler": "slurm"}
    of_slurm = ("partition", "time", "parallel")
    assert loaded("cluster", "ray.yaml") == {**defaults_of_cluster(*of_slurm), "scheduler": "ray", "poll_s": 2}
    assert loaded("tracking", "mlflow.yaml").items() >= defaults_below("tracking").items()
    assert loaded("backend", "torch.yaml").items() >= defaults_below("backend").items()


def test_metric_sets_have_no_other_keys() -> None:
    for file in (conf_folder() / "metrics").glob("*.yaml"):
        assert set(loaded("metrics", file.name)) <= set(keys_below("metrics")), file.name


def test_the_help_lists_every_key() -> None:
    text = "\n".join(help_lines())
    for name, key in KEYS.items():
        assert name.partition(".")[0] == "job" or f" {name.rpartition('.')[2]}" in text, key


def test_values_of_the_page_are_not_cut_within_braces() -> None:
    for line in (ROOT / "docs" / "config.md").read_text(encoding="utf-8").splitlines():
        values = line.rpartition(" | ")[2]
        assert values.count("{") == values.count("}"), line
