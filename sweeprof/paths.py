"""Paths that users write, and the folders of the package's configs and of caches."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sweeprof.errors import Problem, UserError

WEIGHTS = "SWEEPROF_WEIGHTS"
"""Environment variable of fork servers: the folder in which the trials of one shard leave weights for each other."""
_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})")


def expanded(path: str, key: str = "path") -> str:
    """Return a path that a user wrote with its ``~``, ``~NAME`` and ``$VARIABLE`` replaced, as a shell would.

    Args:
        key: of the config or the command line that has the path.

    Raises:
        UserError: there is no such user or variable.
    """
    if not path.startswith("~") and "$" not in path:
        return path
    text = os.path.expandvars(os.path.expanduser(path))  # noqa: PTH111  # a Path would lose a slash at the end
    if text.startswith("~") and path.startswith("~"):
        reason = f"begins with {path.partition('/')[0]}, which is no user with a home folder."
        raise UserError([Problem(key, path, reason)])
    unknown = _VARIABLE.search(text)
    if unknown and not Path(text).exists():
        raise UserError([Problem(key, path, f"has an environment variable that is not set: {unknown[0]}.")])
    return text


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return the path that a user wrote, see :func:`expanded`."""
    return Path(expanded(os.fspath(path)))


def conf_folder() -> Path:
    """Return the folder of the configs: beside the package in a checkout, inside it when installed from a wheel."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if (inside / "config.yaml").is_file() else package.parent / "conf"


def expanded_address(uri: str) -> str:
    """Return the address of a store of MLflow; that of a SQLite file with its path :func:`expanded`."""
    scheme = "sqlite:///"
    if not uri.startswith(scheme):
        return uri
    return scheme + expanded(uri.removeprefix(scheme), "uri")


def cache_folder(name: str, configured_folder: str | None = None) -> Path | None:
    """Return the configured folder of a cache, else that of the XDG base directory specification; None without a home."""
    if configured_folder is not None:
        return user_path(configured_folder).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:  # a container may run as a user without a name
            return None
    return base / "sweeprof" / name


SAVED_MODEL = "SavedModel"


def kind_of_model(path: str | os.PathLike[str]) -> str:
    """Return the suffix of the file of a model, such as ``.onnx``, or :data:`SAVED_MODEL` for the folder of one of TensorFlow."""
    place = user_path(path)
    if (place / "saved_model.pb").is_file():
        return SAVED_MODEL
    return place.suffix
