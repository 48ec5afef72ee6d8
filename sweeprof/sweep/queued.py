"""What a sweep's folder says of its tracker, in ``tracking.json``: where the sweep is sent, and whether all of it was.

The folder is the queue: whatever was not sent is in it, and sending again finds out by itself what is missing.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from sweeprof.results.files import read_json, write_json
from sweeprof.results.record import Json
from sweeprof.sweep.folder import Folder, sweeps
from sweeprof.sweep.hold import is_headed
from sweeprof.sweep.spelling import redacted
from sweeprof.tracking import Ending
from sweeprof.tracking.credentials import knows_login, without_credentials

HIDDEN = "***"
"""Stands for the user and password of an address, which are not stored."""
_NOTHING_YET: Json = {"sent": None, "trouble": None, "ending": None, "missing": None}


def keep_config(folder: Folder, tracking: Json) -> None:
    """Store the config of the tracker before there is anything to send.

    Nothing secret is stored; ``complete`` says that this left nothing out.
    """
    if folder.tracking.exists() and not tracking.get("_target_"):  # tracking=none, once, does not forget the tracker
        write_json(folder.tracking, {**read_json(folder.tracking), **_NOTHING_YET})
        return
    config = {key: redacted(value) if isinstance(value, str) else value for key, value in tracking.items()}
    write_json(folder.tracking, {"config": config, "complete": config == tracking, **_NOTHING_YET})


def reachable(stored: Json) -> Json | None:
    """The config of the tracker in ``tracking.json``; None where it lacks a password that the environment does not have either."""
    config: Json = dict(stored["config"])
    if stored["complete"]:
        return config
    address = without_credentials(str(config.get("uri")))
    return {**config, "uri": address} if knows_login(address) else None


def note_ending(folder: Folder, ending: Ending, missing: str) -> None:
    """Note how measuring ended and why what has no record has none, for whoever sends the folder later."""
    with suppress(OSError, ValueError):  # without the note, it is judged by the records
        write_json(folder.tracking, {**read_json(folder.tracking), "ending": ending, "missing": missing})


def noted_ending(folder: Folder) -> tuple[Ending, str] | None:
    """What :func:`note_ending` noted of the last time of measuring; None where that was killed."""
    with suppress(OSError, ValueError, KeyError):
        stored = read_json(folder.tracking)
        return (stored["ending"], stored["missing"]) if stored["ending"] else None
    return None


def note_sent(folder: Folder, trouble: str | None) -> None:
    """Note that everything in the folder was sent by now, or why not; what was sent before stays so."""
    with suppress(OSError, ValueError):  # without the note it is sent once more, which changes nothing
        stored = read_json(folder.tracking)
        sent = stored.get("sent") if trouble else datetime.now(UTC).isoformat(timespec="seconds")
        write_json(folder.tracking, {**stored, "sent": sent, "trouble": trouble})


def unsent(output: Path) -> list[Folder]:
    """The sweeps below ``output`` that were to be sent and were not, the oldest first, those that are being measured left out."""
    return [folder for folder in reversed(list(sweeps(output))) if is_unsent(folder) and not is_headed(folder.path)]


def is_unsent(folder: Folder) -> bool:
    """Whether the sweep was to be sent and was not."""
    try:
        stored = read_json(folder.tracking)
        return bool(stored["config"].get("_target_")) and stored["sent"] is None
    except (OSError, ValueError, KeyError):  # of an earlier version, or being made: nothing is known of it
        return False


def sending_command(folder: Folder) -> str:
    """The command that sends the sweep; :data:`HIDDEN` is what the user has to fill in."""
    words = ["python", "-m", "sweeprof.sync", str(folder.path)]
    with suppress(OSError, ValueError, KeyError):
        stored = read_json(folder.tracking)
        if not stored["complete"]:
            words.append(f"uri={stored['config']['uri']}")
    return shlex.join(words)


def viewing_command(folder: Folder, uri: str | None = None) -> str:
    """The command that opens MLflow on the sweep; :data:`HIDDEN` is what the user has to fill in.

    Args:
        uri: of the database that has the sweep, where it is not the one that the folder names.
    """
    words = ["python", "-m", "sweeprof.ui", str(folder.path)]
    with suppress(OSError, ValueError, KeyError):
        stored = read_json(folder.tracking)
        if uri or not stored["complete"]:
            words += ["--uri", redacted(uri or stored["config"]["uri"])]
    return shlex.join(words)
