"""One measurement at a time per device of this host, whoever started it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from filelock import FileLock

FOLDER = Path(tempfile.gettempdir()) / "sweeprof-locks"


def measuring_lock(device: str) -> FileLock:
    """The lock that timing and memory trials on ``device`` hold; shared by all users, released by the system if its holder dies."""
    FOLDER.mkdir(exist_ok=True)
    if FOLDER.stat().st_uid == os.getuid():
        FOLDER.chmod(0o1777)
    return FileLock(FOLDER / f"{device.replace(':', '-')}.lock", mode=0o666)
