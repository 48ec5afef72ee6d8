"""The YAML files of conf/, which a process of tests composes hundreds of times, are parsed once in it."""

from __future__ import annotations

import copy
from pathlib import Path

from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource

from sweeprof.paths import conf_folder


def parse_packaged_configs_once() -> None:
    """Have Hydra keep what it reads below conf/, and give each composition a copy: a quarter of the time of composing."""
    Plugins.instance()  # which imports the module of that class anew
    source = SourcesRegistry.instance().resolve("file")
    read = source.load_config
    packaged = str(conf_folder())
    kept: dict[tuple[str, str, str, int], ConfigResult] = {}

    def load_config(self: ConfigSource, config_path: str) -> ConfigResult:
        file = Path(self.path, self._normalize_file_name(config_path))
        if self.path != packaged or not file.is_file():
            return read(self, config_path)
        key = (self.provider, self.path, config_path, file.stat().st_mtime_ns)
        if key not in kept:
            kept[key] = read(self, config_path)
        return copy.deepcopy(kept[key])

    source.load_config = load_config  # type: ignore[method-assign]
