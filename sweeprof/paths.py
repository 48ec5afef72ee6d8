"""The folders of the package's configs and of caches."""

from __future__ import annotations

import os
from pathlib import Path


def conf_folder() -> Path:
    """The folder of the configs: beside the package in a checkout, inside it when installed from a wheel."""
    package = Path(__file__).resolve().parent
    return next(folder for folder in (package / "conf", package.parent / "conf") if (folder / "config.yaml").is_file())


def cache_folder(name: str) -> Path | None:
    """Return the folder of a cache, by the XDG base directory specification; None for a user without a home."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        base = configured if configured.is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # a container may run as a user without a name
        return None
    return base / "sweeprof" / name
