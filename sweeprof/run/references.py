"""References to sweeps: a folder, ``last~1``, a comparison.json, a run of MLflow, a tag."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from sweeprof.errors import Damaged, Problem, UserError, nearest
from sweeprof.paths import user_path
from sweeprof.plan.comparing import KEY as BASELINE_KEY
from sweeprof.plan.plan import Plan
from sweeprof.processes import NO_WORKING_DIRECTORY, module_command
from sweeprof.results.compare import Comparison, comparison_from
from sweeprof.results.cross_sweep import set_against
from sweeprof.results.files import read_json, write_json
from sweeprof.results.validation import validated
from sweeprof.run.comparison import comparison_of
from sweeprof.storage.addresses import check_address
from sweeprof.storage.folder import Folder, last_sweep, sweeps
from sweeprof.tracking.connection import ENVIRONMENT

KNOWN = (
    "is not a sweep. Known: a sweep's folder, a comparison.json, last, last~1 …, NAME/last, tag:NAME, mlflow:RUN_ID; "
    "of a sweep's own combinations an id such as c0123456789ab."
)
FETCH_S = 120.0
"""Time limit for MLflow, whose library takes seconds to import and whose server may be slow."""
_TAG = re.compile(r"\w[\w.\-]{0,99}", re.ASCII)


class Tag(TypedDict):
    """The file of a tag."""

    folder: str
    """Relative to the folder of all sweeps."""
    sweep_id: str


@dataclass(frozen=True, slots=True)
class Place:
    """The places where sweeps are searched."""

    output: Path
    """The folder of all sweeps."""
    uri: str | None = None
    """Of MLflow; None: the database below ``output``."""
    name: str | None = None
    """The name whose newest sweep is ``last``; None: of all names."""

    @property
    def tags(self) -> Path:
        """The folder of the tags: a file for each, which says where its sweep is."""
        return self.output / ".tags"

    @property
    def address(self) -> str | None:
        """Address of MLflow; None if it is unknown."""
        database = self.output.absolute() / "mlflow.db"
        return self.uri or (f"sqlite:///{database}" if database.exists() else None)


def located(reference: str, place: Place, key: str) -> Path:
    """Return the folder or the ``comparison.json`` of ``reference``; a sweep in MLflow is downloaded.

    Raises:
        UserError: there is none; ``key`` is the key or argument with the reference.
    """
    if last := last_sweep(reference, place.output, key, place.name):
        return last.path
    kind, _, rest = reference.partition(":")
    if kind == "tag":
        return _tagged(rest, place, key)
    if kind == "mlflow":
        return _downloaded(rest, place, Problem(key, reference, ""))
    path = user_path(reference).absolute()
    if (path / "plan.json").is_file() or (path / "comparison.json").is_file() or path.is_file():
        return path
    raise UserError([Problem(key, reference, KNOWN, _nearest(reference, place))])


def read_sweep(path: Path, reference: str, key: str, trust: bool = False) -> Comparison:
    """The comparison of a folder or a file that :func:`located` found.

    Args:
        trust: whether metrics outside sweeprof may be imported, which the plan of a folder without a comparison names.

    Raises:
        UserError: there is none in it, or none that this version reads.
    """
    file = path / "comparison.json" if path.is_dir() else path
    try:
        if not file.exists():  # of a sweep that was killed
            return comparison_of(Folder(path), trust=trust)
        return comparison_from(read_json(file))
    except (OSError, Damaged) as error:
        raise UserError([Problem(key, reference, f"cannot be read: {file}: {error}")]) from None


def set_tag(name: str, folder: Path, sweep_id: str, place: Place) -> str | None:
    """Tag the sweep in ``folder``, on disk and in MLflow; returns why the tag could not be set in MLflow.

    Raises:
        UserError: the name is invalid.
    """
    if not _TAG.fullmatch(name):
        raise UserError(
            [
                Problem(
                    "--tag",
                    name,
                    "is not a tag: up to 100 letters of ASCII, digits, '.', '_' and '-', the first no '.' or '-'.",
                )
            ]
        )
    write_json(place.tags / name, {"folder": os.path.relpath(folder, place.output), "sweep_id": sweep_id})
    return _asked(place, "tag", name, sweep_id) if place.address else None


def tagged(place: Place) -> dict[str, list[str]]:
    """The tags of a sweep, by its folder's true path and also by its id, as folders may be reached by several paths.

    Raises:
        UserError: a tag cannot be read.
    """
    found: dict[str, list[str]] = {}
    for file in sorted(place.tags.glob("[!.]*")):
        try:
            tag = validated(Tag, read_json(file))
            names = {str((place.output / tag["folder"]).resolve()), str(tag["sweep_id"])}
        except (OSError, Damaged) as error:
            message = f"is a tag that cannot be read: {error}; tag a sweep again, or remove the file."
            raise UserError([Problem(f"tag:{file.name}", str(file), message)]) from None
        for name in names:
            found.setdefault(name, []).append(f"tag:{file.name}")
    return found


MOST_SAVED = 5
"""Tagged sweeps that the page of another sweep offers as baselines."""


def against_saved(comparison: Comparison, folder: Path) -> list[Comparison]:
    """Return the comparison with each tagged sweep of the same name, in the order of the tags; unreadable ones are left out.

    Args:
        comparison: of the sweep in ``folder``, two levels below the folder of all sweeps.
        folder: its folder.
    """
    output = Folder(folder).output
    known = {comparison.sweep_id, comparison.against.sweep_id if comparison.against else None}
    found: list[Comparison] = []
    for file in sorted(Place(output).tags.glob("[!.]*")):
        try:
            tag = validated(Tag, read_json(file))
            path = output / tag["folder"]
            if tag["sweep_id"] in known or path.parent.resolve() != folder.absolute().parent.resolve():
                continue
            compared = set_against(comparison, comparison_from(read_json(path / "comparison.json")), f"tag:{file.name}")
        except (OSError, Damaged):
            continue
        if len(found) < MOST_SAVED and any(row.baseline_id is not None for row in compared.rows):
            found.append(compared)
    return found


def _tagged(name: str, place: Place, key: str) -> Path:
    reference = f"tag:{name}"
    known = sorted(path.name for path in place.tags.glob("[!.]*"))
    file = place.tags / name
    message = f"is not a tagged sweep. Known: {', '.join(known) or 'none'}; tag one: sweeprof compare DIR --tag NAME."
    problem = Problem(key, reference, message, nearest(name, known))
    if _TAG.fullmatch(name) and file.is_file():
        try:
            folder = place.output / validated(Tag, read_json(file))["folder"]
        except (OSError, Damaged) as error:
            raise UserError([Problem(key, reference, f"is a tag that cannot be read: {error}.")]) from None
        if folder.is_dir():
            return folder
        problem = Problem(key, reference, f"names {folder}, which no longer exists; tag another with --tag {name}.")
    if not _TAG.fullmatch(name) or place.address is None:
        raise UserError([problem])
    return _downloaded(reference, place, problem)


def _downloaded(run: str, place: Place, problem: Problem) -> Path:
    target = place.output.absolute() / ".baselines" / f"{re.sub(r'[^0-9A-Za-z]+', '-', run)[:100]}.json"
    if place.address is None:
        message = f"is not in MLflow: {place.output / 'mlflow.db'} does not exist; give the address with --uri or tracking.uri."
        raise UserError([Problem(problem.key, problem.value, message)])
    target.parent.mkdir(parents=True, exist_ok=True)
    trouble = _asked(place, "fetch", run, str(target))
    if trouble is not None:
        raise UserError([Problem(problem.key, problem.value, problem.allowed or f"cannot be downloaded: {trouble}")])
    return target


def _asked(place: Place, *words: str) -> str | None:
    """Query MLflow in a separate process, because its library is large; returns the error."""
    # An address may hold a password, which a command line would show to everyone.
    # Its requests may be repeated, unlike those of a tracker.
    own = {"MLFLOW_TRACKING_URI": str(place.address), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
    variables: Mapping[str, str] = {**os.environ, **ENVIRONMENT, **own, **NO_WORKING_DIRECTORY}
    command = [*module_command("sweeprof.tracking.baselines"), *words]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        return f"MLflow did not answer within {FETCH_S:g} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _nearest(reference: str, place: Place) -> str | None:
    names = {folder.path.name: str(folder.path) for folder in sweeps(place.output)}
    words = {**names, **{path: path for path in names.values()}, "last": "last", "last~1": "last~1"}
    close = nearest(reference, list(words)) or nearest(Path(reference).name, list(words))
    return words[close] if close else None


def keep_baseline(folder: Folder, plan: Plan, trust: bool = False) -> None:
    """Copy the other sweep's comparison, where there is one, into the folder, unless it is there already.

    Raises:
        UserError: it cannot be read, or the folder names a file that it may not.
    """
    against = plan.compare.against
    if against and not folder.baseline.exists():
        how = f"copy the comparison.json of that sweep to {folder.baseline}"
        check_address(folder, BASELINE_KEY, against.file, [], how, trust)
        other = read_sweep(Path(against.file), against.label, BASELINE_KEY, trust)
        write_json(folder.baseline, other.to_dict())


def find_baseline(output: Path, uri: str | None, text: str, name: str) -> Path:
    """Return the folder or the file of the sweep that ``compare.baseline=text`` means for a sweep called ``name``.

    Raises:
        UserError: it means none, or none that this version reads.
    """
    path = located(text, Place(output, uri, name), BASELINE_KEY)
    read_sweep(path, text, BASELINE_KEY)
    return path
