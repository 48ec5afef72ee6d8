"""The tracker of a sweep in its folder, ``tracking.json``: where the sweep is sent, and whether all of it was sent.

The folder is the queue: whatever was not sent is in it, and sending again finds out by itself what is missing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NotRequired, TypedDict

from sweeprof.credentials import redacted_address
from sweeprof.errors import Damaged, Problem, UserError
from sweeprof.results.files import damaged, read_json, validated, write_json
from sweeprof.results.record import Json
from sweeprof.run.locks import has_driver
from sweeprof.storage.folder import Folder, check_address, foreign, sweeps
from sweeprof.tracking import KNOWN, Links, SweepOutcome
from sweeprof.tracking.connection import knows_login, logins, same_address

HIDDEN = "***"
"""Stands for the user and password of an address, which are not stored."""
_NOTHING_YET: Json = {"sent": None, "trouble": None, "ending": None, "missing": None}


def keep_config(folder: Folder, tracking: Json) -> None:
    """Store the config of the tracker before there is anything to send.

    Nothing secret is stored; ``complete`` says that this left nothing out.
    """
    if folder.tracking.exists() and not tracking.get("_target_"):  # tracking=none, once, does not forget the tracker
        with suppress(Damaged):
            write_json(folder.tracking, {**read_tracking(folder), **_NOTHING_YET})
            return
    config = {key: redacted_address(value) if isinstance(value, str) else value for key, value in tracking.items()}
    write_json(folder.tracking, {"config": config, "complete": config == tracking, **_NOTHING_YET})


class Stored(TypedDict):
    """``tracking.json``."""

    config: Json
    complete: bool
    sent: NotRequired[str | None]
    trouble: NotRequired[str | None]
    ending: NotRequired[SweepOutcome | None]
    missing: NotRequired[str | None]


def read_tracking(folder: Folder) -> Stored:
    """Return the content of ``tracking.json``; that of a sweep without a tracker if there is no such file.

    Raises:
        Damaged: the file holds something else.
        OSError: it cannot be read.
    """
    if not folder.tracking.exists():
        return {"config": {"_target_": None}, "complete": True}
    stored = validated(Stored, read_json(folder.tracking))
    config = stored["config"]
    for key, kind in (("_target_", str), ("uri", str)):
        if not isinstance(config.get(key), kind | None):
            raise damaged(config[key], "text or null", ["config", key])
    return stored


@dataclass(frozen=True, slots=True)
class StoredTracker:
    """The tracker that a sweep's folder names, as far as the folder is trusted."""

    config: Json
    confined: bool
    """Whether only the folder names this address: it gets no logins, and names no other place for artifacts."""


def stored_tracker(folder: Folder, key: str, given: Sequence[str] = (), trust: bool = False) -> StoredTracker:
    """Return the tracker of ``tracking.json``.

    A folder may come from anybody. So it can only name a tracker of :data:`sweeprof.tracking.KNOWN`, and an address that
    :func:`sweeprof.storage.folder.check_address` allows.

    Args:
        key: by which the user would give the address, as ``uri`` or ``tracking.uri``.
        given: addresses that the user gave on the command line or in the config; ``MLFLOW_TRACKING_URI`` counts as well.
        trust: whether the folder may name any tracker and any address.

    Raises:
        UserError: the folder names something else, or something that may only be used with the user's permission.
    """
    try:
        stored = read_tracking(folder)
    except Damaged as error:
        message = f"has a tracking.json that cannot be read: {error}; remove it, or give {key}=…."
        raise UserError([Problem("DIR", str(folder.path), message)]) from None
    target, address = stored["config"].get("_target_"), stored["config"].get("uri")
    if not target:
        return StoredTracker({"_target_": None}, confined=False)
    config = settings_of(folder, stored, trust)
    mine = (*given, os.environ.get("MLFLOW_TRACKING_URI") or "")
    whole = next((one for one in mine if address is not None and one and same_address(one, address)), None)
    if whole is not None:
        return StoredTracker({**config, "uri": whole}, confined=False)
    if trust:
        known = reachable(stored)
        if known is not None:
            return StoredTracker({**config, "uri": known.get("uri")}, confined=False)
    if not stored["complete"]:
        message = (
            f"had a password, which is not stored; set MLFLOW_TRACKING_URI, or send it with: {sending_command(folder)}"
        )
        raise UserError([Problem(key, address, message)])
    database = address or f"sqlite:///{folder.output / 'mlflow.db'}"
    if not (_is_beside(folder, database) and foreign(folder.output) is None):
        how = "set MLFLOW_TRACKING_URI" if key == "MLFLOW_TRACKING_URI" else f"give {key}=…, or set MLFLOW_TRACKING_URI"
        check_address(folder, key, database, mine, how)
    if address is None or _is_beside(folder, address):
        return StoredTracker(config, confined=True)
    if _is_foreign_database(folder, address):
        message = (
            f"is a database that only the sweep's folder names; if it is yours, give {key}={shlex.quote(address)}."
        )
        raise UserError([Problem(key, address, message)])
    if known_logins := logins():
        message = (
            f"is an address that only the sweep's folder names; your login ({', '.join(known_logins)}) is sent there if you give "
            f"{key}={shlex.quote(address)}, or MLFLOW_TRACKING_URI."
        )
        raise UserError([Problem(key, address, message)])
    return StoredTracker(config, confined=True)


def settings_of(folder: Folder, stored: Stored, trust: bool) -> Json:
    """Return the config of the tracker with its settings checked; raises :class:`UserError` for a tracker of somebody's own."""
    target = stored["config"]["_target_"]
    if trust and target not in KNOWN:
        return stored["config"]
    if target not in KNOWN:
        trusting = "add --trust (resume: trust=true) if you trust its author."
        message = f"is sent by {target!r}, which is code outside sweeprof: {trusting}"
        raise UserError([Problem("DIR", str(folder.path), message)])
    try:
        settings = validated(KNOWN[target], stored["config"])
    except Damaged as error:
        raise UserError(
            [Problem("DIR", str(folder.path), f"has a tracking.json that cannot be read: {error}.")]
        ) from None
    return {"_target_": target, **asdict(settings)}


def _is_beside(folder: Folder, address: str) -> bool:
    """True if ``address`` is a database file below the folder of all sweeps, where the default one is."""
    if not address.startswith("sqlite:///") or "?" in address:
        return False
    output = folder.output.resolve()
    is_root = output == output.parent  # below which everything is
    return not is_root and Path(address.removeprefix("sqlite:///")).resolve().is_relative_to(output)


def _is_foreign_database(folder: Folder, address: str | None) -> bool:
    """True if ``address`` is a database elsewhere, which later commands use only if the user names it."""
    return address is not None and not address.startswith(("http://", "https://")) and not _is_beside(folder, address)


def reachable(stored: Stored) -> Json | None:
    """Return the config of the tracker in ``tracking.json``; None if it lacks a password that is not in the environment."""
    config: Json = dict(stored["config"])
    if stored["complete"]:
        return config
    address = redacted_address(str(config.get("uri")), "")
    return {**config, "uri": address} if knows_login(address) else None


def note_ending(folder: Folder, ending: SweepOutcome, missing: str) -> None:
    """Store how measuring ended and why records are missing, for a later process that sends the folder."""
    with suppress(OSError, ValueError):  # without the note, it is judged by the records
        write_json(folder.tracking, {**read_tracking(folder), "ending": ending, "missing": missing})


def noted_ending(folder: Folder) -> tuple[SweepOutcome, str] | None:
    """Return what :func:`note_ending` stored last; None if the driver was killed before."""
    with suppress(OSError, Damaged):
        stored = read_tracking(folder)
        ending, missing = stored.get("ending"), stored.get("missing")
        return (ending, missing or "") if ending else None
    return None


def note_sent(folder: Folder, trouble: str | None) -> None:
    """Store that everything in the folder was sent, or why not; a sweep that was sent before stays sent."""
    with suppress(OSError, ValueError):  # without the note it is sent once more, which changes nothing
        stored = read_tracking(folder)
        sent = stored.get("sent") if trouble else datetime.now(UTC).isoformat(timespec="seconds")
        write_json(folder.tracking, {**stored, "sent": sent, "trouble": trouble})


def unsent(output: Path) -> list[Folder]:
    """Return the sweeps below ``output`` that were not sent to their tracker, the oldest first, without those being measured."""
    return [folder for folder in reversed(list(sweeps(output))) if is_unsent(folder) and not has_driver(folder.path)]


def is_unsent(folder: Folder) -> bool:
    """True if the sweep has a tracker and was not sent."""
    try:
        stored = read_tracking(folder)
        return bool(stored["config"].get("_target_")) and stored["sent"] is None
    except (OSError, ValueError, KeyError):  # of an earlier version, or being made: nothing is known of it
        return False


def sending_command(folder: Folder) -> str:
    """Return the command that sends the sweep; :data:`HIDDEN` is what the user has to fill in."""
    words = ["sweeprof", "sync", str(folder.path)]
    with suppress(OSError, ValueError, KeyError):
        stored = read_tracking(folder)
        if not stored["complete"] or _is_foreign_database(folder, stored["config"]["uri"]):
            words.append(f"uri={stored['config']['uri']}")
    return shlex.join(words)


def shown_at(folder: Folder, links: Links, uri: str | None = None) -> tuple[str, str]:
    """Return how to open the sweep in its tracker, with a label: an address, or the command if no server shows it yet."""
    return ("MLflow UI", viewing_command(folder, uri)) if links.needs_viewer else ("Compare", links.comparison)


def viewing_command(folder: Folder, uri: str | None = None) -> str:
    """Return the command that opens MLflow on the sweep; :data:`HIDDEN` is what the user has to fill in.

    Args:
        uri: of the database that has the sweep, where it is not the one that the folder names.
    """
    if uri is not None:
        return shlex.join(["mlflow", "server", "--backend-store-uri", redacted_address(uri)])
    command = shlex.join(["sweeprof", "ui", str(folder.path)])
    with suppress(OSError, ValueError, KeyError):
        stored = read_tracking(folder)
        if not stored["complete"] or _is_foreign_database(folder, stored["config"]["uri"]):
            return f"MLFLOW_TRACKING_URI={shlex.quote(stored['config']['uri'])} {command}"
    return command
