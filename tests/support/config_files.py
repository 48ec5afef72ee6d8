"""What makes composing cheaper in a process of tests, which does it hundreds of times: packaged files are parsed once."""

from __future__ import annotations

import copy

from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource

from sweeprof.paths import conf_folder


def parse_packaged_configs_once() -> None:
    """Have Hydra keep what it reads below conf/ and of its own configs, and give each composition a copy.

    With its schemas, of which it copies those that it uses once more, it then does not copy all of them for each composition.
    """
    Plugins.instance()  # which imports the modules of the sources anew
    ConfigStore.__deepcopy__ = lambda self, _: self  # type: ignore[attr-defined]
    for scheme, packaged in (("file", str(conf_folder())), ("pkg", "hydra.conf")):
        _keep_configs(SourcesRegistry.instance().resolve(scheme), packaged)


def _keep_configs(source: type[ConfigSource], packaged: str) -> None:
    """Have a kind of source parse each file of the folder or package ``packaged`` once."""
    read = source.load_config
    kept: dict[tuple[str, str], ConfigResult] = {}

    def load_config(self: ConfigSource, config_path: str) -> ConfigResult:
        if self.path != packaged:
            return read(self, config_path)
        key = (self.provider, config_path)
        if key not in kept:
            kept[key] = read(self, config_path)
        return copy.deepcopy(kept[key])

    source.load_config = load_config  # type: ignore[method-assign]
