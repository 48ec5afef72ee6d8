"""The command line, taken apart into axes and single values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from sweeprof.sweep.spelling import spelled


@dataclass(frozen=True, slots=True)
class Arguments:
    """The command line, taken apart."""

    axes: dict[str, list[Any]]
    """Swept keys, with the values as they would be composed."""
    fixed: dict[str, Override]
    """Keys with one value."""

    @classmethod
    def parsed(cls, loader: ConfigLoader, arguments: Sequence[str], params: DictConfig | None) -> Arguments:
        """The overrides of the command line, after those of ``hydra.sweeper.params``; the last one for a key counts."""
        parser = OverridesParser.create(config_loader=loader)
        lines = [*_param_lines(params), *arguments]
        axes: dict[str, list[Any]] = {}
        fixed: dict[str, Override] = {}
        for override in parser.parse_overrides(lines):
            key = override.get_key_element().lstrip("+~")
            if override.is_sweep_override():
                fixed.pop(key, None)
                axes[key] = [_value(parser, key, text) for text in override.sweep_string_iterator()]
            else:
                axes.pop(key, None)
                fixed[key] = override
        return cls(axes, fixed)


def _param_lines(params: DictConfig | None) -> list[str]:
    """``hydra.sweeper.params`` as overrides; a YAML list sweeps over its elements, as one would expect."""
    lines = []
    for name, value in (params or {}).items():
        key = str(name)
        listed = OmegaConf.is_list(value) or isinstance(value, list)
        text = ",".join(spelled(v) for v in value) if listed else str(value)
        lines.append(f"{key}={text}")
    return lines


def _value(parser: OverridesParser, key: str, text: str) -> Any:
    return parser.parse_override(f"{key}={text}").value()
