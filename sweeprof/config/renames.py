"""Names of the last release, which are accepted for one release, with a warning that has the present name."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from omegaconf import DictConfig, OmegaConf, open_dict

from sweeprof.config.schema import EARLIER_INTERLEAVE, RENAMED

EARLIER_PROTOCOL = "duel"
"""The file ``conf/protocol/interleaved.yaml`` in the last release."""


def without_earlier(group: str, choices: Iterable[str]) -> list[str]:
    """Return the choices of a config group without those that have another name now, to be listed."""
    return [choice for choice in choices if (group, choice) != ("protocol", EARLIER_PROTOCOL)]


def with_present_name(override: str) -> tuple[str, str | None]:
    """Return an override of the command line with the present name of its key, and a warning if it has an earlier one."""
    prefix = override[: len(override) - len(override.lstrip("+~"))]
    key, separator, value = override.removeprefix(prefix).partition("=")
    if key == "backend.quantization":
        return override, _QUANTIZATION_WARNING
    if key not in RENAMED:
        return override, None
    return f"{prefix}{RENAMED[key]}{separator}{value}", _warning(key)


def rename_keys(config: DictConfig, overridden: Collection[str]) -> list[str]:
    """Give the keys that a sweep file sets by earlier names their present names; returns the warnings.

    Args:
        overridden: keys that the command line sets; their values stay.
    """
    warnings = []
    for earlier, present in RENAMED.items():
        if earlier in config:
            with open_dict(config):
                value = config.pop(earlier)
                if present not in overridden:
                    config[present] = value
            warnings.append(_warning(earlier))
    if config.hydra.runtime.choices.get("protocol") == EARLIER_PROTOCOL:
        warnings.append(f"protocol={EARLIER_PROTOCOL} is now called protocol=interleaved")
    if OmegaConf.select(config, "protocol.interleave") == EARLIER_INTERLEAVE:
        warnings.append(f"protocol.interleave={EARLIER_INTERLEAVE} is now called protocol.interleave=samples")
    if "quantization" in config.backend or "backend.quantization" in (config.get("axes") or {}):
        warnings.append(_QUANTIZATION_WARNING)
    return warnings


_QUANTIZATION_WARNING = (
    "backend.quantization is now called backend.precision=fp32,fp16,int8"
    " with backend.precision_method=dynamic,static for int8"
)


def _warning(earlier: str) -> str:
    return f"the key {earlier!r} is now called {RENAMED[earlier]!r}"
