"""The folders of the package's configs and of caches."""

from __future__ import annotations

import os
from pathlib import Path


def conf_folder() -> Path:
    """The folder of the configs: beside the package in a checkout, inside it when installed from a wheel."""
    package = Path(__file__).resolve().parent
    return next(folder for folder in (package / "conf", package.parent / "conf") if (folder / "config.yaml").is_file())


def cache_folder(name: str, configured_folder: str | None = None) -> Path | None:
    """Return the configured folder of a cache, else that of the XDG base directory specification; None without a home."""
    if configured_folder is not None:
        return Path(configured_folder).expanduser().absolute()
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        base = configured if configured.is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # a container may run as a user without a name
        return None
    return base / "sweeprof" / name
