"""One group of the config, composed outside of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeprof.config.errors import diagnosed, no_folder
from sweeprof.config.groups import VERSION_BASE
from sweeprof.config.validation import part_problems
from sweeprof.errors import UserError
from sweeprof.paths import conf_folder
from sweeprof.results.record import Json


def composed_group(group: str, overrides: Sequence[str], config_dir: Path | None) -> Json:
    """Return a group of the config for overrides of the command line.

    Args:
        config_dir: a folder with config files of the user's own.

    Raises:
        UserError: with every problem of the overrides.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise UserError([no_folder(config_dir)])
    own = [f"--config-dir={config_dir}"] if config_dir else []
    search = [f"hydra.searchpath=[file://{config_dir.absolute()}]"] if config_dir else []
    try:
        with initialize_config_dir(str(conf_folder()), **VERSION_BASE):
            config = compose("config", overrides=[*search, *overrides])
    except (HydraException, OmegaConfBaseException) as error:
        raise diagnosed(error, [*own, *overrides]) from None
    found: Any = OmegaConf.to_container(config[group], resolve=True)
    problems = part_problems(group, found)
    if problems:
        raise UserError(problems)
    return dict(found)
