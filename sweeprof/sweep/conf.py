"""The configs that travel with the package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from sweeprof.configs import conf_folder


def leaf_keys(config: DictConfig, prefix: str = "") -> list[str]:
    """Every dotted key of a config that a user may set."""
    keys: list[str] = []
    for name in config:
        key = prefix + str(name)
        if key in ("hydra", "job"):
            continue
        keys.append(key)
        node = config._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none():
            keys += leaf_keys(node, f"{key}.")
    return keys


def top_level_keys() -> set[str]:
    """The keys that ``config.yaml`` defines itself, beside those of the config groups."""
    return {str(key) for key in OmegaConf.load(conf_folder() / "config.yaml")} - {"defaults"}


def group_keys() -> set[str]:
    """The config groups that every config chooses from, by the keys under which their members stand."""
    return {folder.name for folder in conf_folder().iterdir() if folder.is_dir()} - {"hydra", "sweep"}


def mapping_keys() -> set[str]:
    """The keys of ``config.yaml`` under which further keys stand, with or without a default."""
    return {str(key) for key, node in OmegaConf.load(conf_folder() / "config.yaml").items() if OmegaConf.is_dict(node)}


def packaged_targets() -> frozenset[str]:
    """The targets that sweeprof's own configs name; the suite tests them, so a run need not."""
    files = conf_folder().rglob("*.yaml")
    return frozenset(t for file in files for t in re.findall(r"_target_: (\S+)", file.read_text(encoding="utf-8")))


def source_folders(config: DictConfig) -> list[Path]:
    """The folders that a composed config comes from, the user's first."""
    sources = [source for source in config.hydra.runtime.config_sources if source.schema == "file"]
    folders = [Path(str(source.path)) for source in sources]
    return sorted(folders, key=lambda folder: folder == conf_folder())


def config_file(folders: Sequence[Path], group: str, name: str) -> Path | None:
    """The file of a member of a config group; None if there is none."""
    paths = [folder / group / f"{name.removesuffix('.yaml')}.yaml" for folder in folders]
    return next((path for path in paths if path.is_file()), None)


def settings_by_part() -> dict[str, set[str]]:
    """The keys below each part of the config that has no others than those of sweeprof's own files."""
    whole = OmegaConf.load(conf_folder() / "config.yaml")
    assert isinstance(whole, DictConfig)
    found = {part: {str(name) for name in whole[part]} for part in ("training", "compare", "seed", "limits")}
    for group in ("protocol", "device", "cluster"):
        texts = [file.read_text(encoding="utf-8") for file in (conf_folder() / group).glob("*.yaml")]
        found[group] = {name for text in texts for name in re.findall(r"^(\w+):", text, re.MULTILINE)}
    return found
