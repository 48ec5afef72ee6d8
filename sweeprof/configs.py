"""Where the configs are that travel with the package."""

from __future__ import annotations

from pathlib import Path


def conf_folder() -> Path:
    """The folder of the configs: beside the package in a checkout, inside it when installed from a wheel."""
    package = Path(__file__).resolve().parent
    return next(folder for folder in (package / "conf", package.parent / "conf") if (folder / "config.yaml").is_file())
