"""The folder of a sweep comes from somebody else: nothing that it names is run, told a password, or written to."""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import command as commands
from support.command import Command, Ran, call_command, run_command, subcommand
from support.plans import fake_plan, sweep_folder
from sweeprof.cli.run import run_command as run_words
from sweeprof.config.schema import RESOURCES
from sweeprof.errors import UserError
from sweeprof.results.files import read_json, write_json
from sweeprof.results.record import Json, Record
from sweeprof.run.reports import read_sweep
from sweeprof.run.tracker_process import stored_tracker
from sweeprof.storage import Folder, Jobs
from sweeprof.tracking import MLFLOW
from sweeprof.tracking.connection import LOGINS

GOLDEN = Path(__file__).parents[2] / "golden" / "sweep-v2"
EVIL = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()
def metric(): pathlib.Path(__file__).with_name("called").touch()
class Tracker:
    def __init__(self, **_): pathlib.Path(__file__).with_name("called").touch()
"""
SERVER = "http://tracker.example:5000"
report, sync, ui = map(subcommand, ("report", "sync", "ui"))


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*LOGINS, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def evil(tmp_path: Path, write_module: Callable[[str, str], None]) -> Path:
    """A folder on the search path with a module that leaves a mark when it is imported."""
    write_module("evil", EVIL)
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return sweep_folder(tmp_path / "outputs" / "test" / "2026-11-22_10-00-00Z", fake_plan({"a": {}}))


def tracked(folder: Folder, **config: Any) -> None:
    config = {"_target_": MLFLOW, "uri": None, **config}
    write_json(folder.tracking, {"config": config, "complete": True, "sent": None})


def change_plan(folder: Folder, change: Callable[[Json], object]) -> None:
    plan = read_json(folder.plan)
    change(plan)
    write_json(folder.plan, plan)


def everywhere(plan: Json) -> None:
    """Name the module wherever a plan names something to be constructed."""
    target = {"_target_": "evil.metric", "nested": {"_target_": "evil.metric"}}
    for part in ("model", "dataset", "backend"):
        plan["parts"][part] = [{**one, **target, "preload": ["evil"]} for one in plan["parts"][part]]
    plan["parts"]["model"] = [{"fake": target} for _ in plan["parts"]["model"]]
    plan["metrics"].append({"_target_": "evil.metric"})
    plan["cluster"] = {"settings": {}, "resources": []}


WORDS = {
    "report": ["report", "DIR"],
    "compare": ["compare", "DIR", "DIR"],
    "tag": ["compare", "DIR", "--tag", "nightly"],
    "collect": ["collect", "DIR"],
    "collect --wait": ["collect", "DIR", "--wait"],
    "sync": ["sync", "DIR"],
    "sync unsent": ["sync", "unsent"],
    "ui": ["ui", "DIR", "--port", "0", "--no-browser"],
    "prune": ["prune", "test", "--keep", "1"],
    "resume": ["resume=DIR"],
    "dry run": ["resume=DIR", "dry_run=true"],
}


@pytest.mark.parametrize("command", [name for name, words in WORDS.items() if "resume=DIR" not in words])
def test_commands_that_read_a_folder_import_nothing_that_it_names(
    command: str, folder: Folder, evil: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_plan(folder, everywhere)
    tracked(folder, _target_="evil.Tracker", nested={"_target_": "evil.Tracker"})
    shutil.copytree(folder.path, folder.path.with_name("2026-11-22_11-00-00Z"))
    monkeypatch.chdir(evil)
    code = run_words([word.replace("DIR", str(folder.path)) for word in WORDS[command]])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert not any((evil / mark).exists() for mark in ("imported", "called"))
    if command in ("report", "compare", "collect", "sync"):
        assert (code, err.startswith("error: ")) == (1, True)
        assert "evil." in err
        assert "--trust" in err


MINE = """
import sweeprof
@sweeprof.metric(name="own/one", unit="", better=None)
def one(batch_size): return 1
"""


def test_with_trust_metrics_are_used(folder: Folder, write_module: Callable[[str, str], None]) -> None:
    write_module("mine", MINE)
    change_plan(folder, lambda plan: plan["metrics"].append({"_target_": "mine.one"}))
    with pytest.raises(UserError, match=r"is code outside sweeprof, .*--trust"):
        read_sweep(folder.path, "x", "NEW")
    assert report([str(folder.path), "--trust"]) == 0
    assert "own/one" in (folder.path / "comparison.json").read_text()
    assert "own/one" in [metric.name for metric in read_sweep(folder.path, "x", "NEW", trust=True).metrics]


@pytest.mark.parametrize("id", ["../../x", "/tmp/x", "a/b", "..", ".hidden", "", "c1\n", "x" * 100, "ø", 3, None])
def test_an_id_that_leads_elsewhere_is_refused(id: Any, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    def change(plan: Json) -> None:
        plan["combinations"][0]["id"] = id
        plan["shards"] = [[id]]

    change_plan(folder, change)
    before = sorted(path for path in folder.path.parents[2].rglob("*"))
    assert report([str(folder.path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: DIR: '{folder.path}' has a plan.json that cannot be read: combinations[0].id: ")
    assert len(err.splitlines()) == 1
    assert sorted(path for path in folder.path.parents[2].rglob("*")) == before


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("sweep_id", "s' or '1' = '1", "sweep_id: "),
        ("name", "../../x", "name: "),
        ("passes", ["../../x"], "passes[0]: '../../x' is not one of analysis"),
        ("schema_version", 99, "plan schema 99 is newer than this sweeprof"),
        ("created", "yesterday", "created: 'yesterday' is not a time"),
        ("compare", {"against": {"label": 1, "file": "x"}}, "compare.against.label: 1 is not text"),
        ("shards", [["c0"]], "shards[0]: 'c0' is not the id of a combination"),
    ],
)
def test_a_plan_is_checked_before_anything_is_done_with_it(
    key: str, value: Any, said: str, folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    change_plan(folder, lambda plan: plan.update({key: value}))
    assert report([str(folder.path)]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["layers", "records", "comparison.json", "logs/c1", "artifacts/ca/x", "report.lock"])
def test_a_link_in_the_folder_is_refused_before_anything_is_written(
    name: str, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "private").mkdir()
    link = folder.path / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "private")
    assert report([str(folder.path)]) == 1
    assert f"contains a link, {name}; no link is allowed" in capsys.readouterr().err
    assert list((tmp_path / "private").iterdir()) == []


def test_a_login_goes_to_a_stored_address_only_if_it_is_given(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    tracked(folder, uri=SERVER)
    assert stored_tracker(folder, "uri").confined
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    with pytest.raises(UserError) as refused:
        stored_tracker(folder, "uri")
    assert str(refused.value) == (
        f"uri: '{SERVER}' is an address that only the sweep's folder names; your login (MLFLOW_TRACKING_TOKEN) is sent there "
        f"if you give uri={SERVER}, or MLFLOW_TRACKING_URI."
    )
    for given in ("http://tracker.example", f"{SERVER}0", "http://other"):
        with pytest.raises(UserError, match="only the sweep's folder names"):
            stored_tracker(folder, "uri", [given])
    assert not stored_tracker(folder, "uri", [f"{SERVER}/"]).confined
    assert not stored_tracker(folder, "uri", trust=True).confined
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:pw@tracker.example:5000")
    found = stored_tracker(folder, "uri")
    assert (found.confined, found.config["uri"]) == (False, "http://me:pw@tracker.example:5000")


def test_a_login_in_mlflows_own_file_counts(folder: Folder, tmp_path: Path) -> None:
    tracked(folder, uri=SERVER)
    file = tmp_path / "home" / ".mlflow" / "credentials"
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(UserError, match=r"your login \(~/.mlflow/credentials\)"):
        stored_tracker(folder, "uri")


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("sqlite:////elsewhere/mlflow.db", "is a database that only the sweep's folder names"),
        ("sqlite:///OUTPUT/../../elsewhere.db", "is a database that only the sweep's folder names"),
        ("postgresql://host/db", "is a database that only the sweep's folder names"),
        ("databricks", "is a database that only the sweep's folder names"),
        ({"_target_": "evil.metric"}, "cannot be read: config.uri: dict is not text or null"),
    ],
)
def test_a_stored_database_elsewhere_is_not_opened(uri: Any, said: str, folder: Folder) -> None:
    output = str(folder.path.parents[1])
    tracked(folder, uri=uri.replace("OUTPUT", output) if isinstance(uri, str) else uri)
    with pytest.raises(UserError, match=said):
        stored_tracker(folder, "uri")
    tracked(folder, uri=f"sqlite:///{output}/other.db")
    assert stored_tracker(folder, "uri").confined


def test_a_database_is_not_beside_a_sweep_because_both_are_below_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"config": {"_target_": MLFLOW, "uri": "sqlite:////home/me/mlflow.db"}, "complete": True}
    monkeypatch.setattr("sweeprof.run.tracker_process.read_tracking", lambda _: stored)
    for path in ("/sweep", "/data/sweep"):
        with pytest.raises(UserError, match="is a database that only the sweep's folder names"):
            stored_tracker(Folder(Path(path)), "uri")


@pytest.mark.parametrize(
    "content", ["", "[]", "[" * 100_000, '{"config": [], "complete": true}', '{"config": {"_target_": 3}}']
)
def test_a_damaged_tracking_json_is_one_error(content: str, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.tracking.write_text(content)
    for main in (sync, ui):
        assert main([str(folder.path)]) == 1
        assert "has a tracking.json that cannot be read: " in capsys.readouterr().err
    assert report([str(folder.path)]) == 0


def test_the_text_of_a_setting_stands_for_nothing_else(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra would put the variable into the address that the sweep is sent to."""
    from sweeprof.run.tracker_process import _made

    monkeypatch.setenv("SECRET", "pa55word")
    config = {"_target_": MLFLOW, "uri": "http://host/${oc.env:SECRET}", "output": str(folder.path.parents[1])}
    made: Any = _made({"config": config, "trust": False, "confined": False})
    assert made._uri == config["uri"]


def test_a_plan_of_another_user_is_resumed_only_with_trust(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.check_owner("resume")
    folder.path.chmod(0o777)
    with pytest.raises(UserError, match="can be written by every user, and resuming runs the code"):
        folder.check_owner("resume")
    folder.path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: folder.path.stat().st_uid + 1)
    with pytest.raises(UserError, match=r"resume: .* belongs to another user, .*: add trust=true"):
        folder.check_owner("resume")


@pytest.mark.slow
def test_artifacts_stay_where_the_sweeps_are(folder: Folder, tmp_path: Path) -> None:
    """A database says where the artifacts of its runs belong; one that came with the folder may say anything."""
    from mlflow.tracking import MlflowClient

    output = folder.path.parents[1]
    client = MlflowClient(f"sqlite:///{output}/mlflow.db")
    (tmp_path / "private").mkdir()
    client.create_experiment("test", artifact_location=(tmp_path / "private").as_uri())
    tracked(folder)
    assert sync([str(folder.path)]) == 2
    assert list((tmp_path / "private").rglob("*")) == []
    assert "by the word of a place that only the sweep's folder names" in str(
        json.loads(folder.tracking.read_text())["trouble"]
    )


CONNECTS = {("ray", "collect"), ("http", "collect"), ("http", "sync"), ("http", "ui"), ("baseline", "collect")}
"""Of one's own folder: what these commands are for."""
LOGIN = "CANARY"


@dataclass(frozen=True)
class Listener:
    """A port, and what everything that connects to it says first."""

    address: str
    heard: list[bytes]


@pytest.fixture
def listener() -> Iterator[Listener]:
    heard: list[bytes] = []

    class Noting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            heard.append(b"")
            self.request.settimeout(1)
            with suppress(OSError):
                heard[-1] = self.request.recv(1 << 16)
                self.request.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Noting) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield Listener(f"127.0.0.1:{server.server_address[1]}", heard)
        server.shutdown()
        thread.join()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the user's login, and with a Ray that connects and then fails."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text(f"default login u password {LOGIN}\n")
    (home / ".netrc").chmod(0o600)
    ray = tmp_path / "stub" / "ray"
    ray.mkdir(parents=True)
    (ray / "__init__.py").write_text("def init(*_, **__): raise RuntimeError('stub')\n")
    (ray / "exceptions.py").write_text(
        "class RayError(Exception): pass\nActorDiedError = ActorUnavailableError = GetTimeoutError = RayError\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stub"))
    for name in ("RAY_ADDRESS", "http_proxy", "HTTP_PROXY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    return home


def write_folder(home: Path, kind: str, listener: Listener) -> Folder:
    """Write a sweep that was measured by a job, whose folder names the address, and a newer one."""
    path = home / "outputs" / "test" / "2026-11-22_10-00-00Z"
    folder = sweep_folder(path, fake_plan({"a": {}}, ["analysis"], limits={"locks": str(home.with_name("locks"))}))
    Record("s1", "ca", "analysis", "ok").write(folder.records)
    resources: Json = {**dict.fromkeys(RESOURCES), "options": {}}
    scheduler = "ray" if kind == "ray" else None
    settings: Json = {**resources, "scheduler": scheduler, "address": listener.address, "poll_s": 0.1}
    resources["cpus"] = 1
    plan = read_json(folder.plan)
    plan["cluster"] = {"settings": settings, "resources": [resources]}
    if kind == "baseline":
        plan["compare"]["against"] = {"label": "x", "file": str(GOLDEN), "sweep_id": "s0"}
    write_json(folder.plan, plan)
    if kind == "ray":
        jobs = Jobs(folder.path)
        jobs.keep(jobs.new("test", [0], resources), "#!/bin/bash\n")
    uri = {"http": f"http://{listener.address}", "database": f"postgresql://{listener.address}/x"}.get(kind)
    target = MLFLOW if uri else None
    tracked(folder, _target_=target, uri=uri)
    shutil.copytree(folder.path, path.with_name("2026-11-22_11-00-00Z"))
    return folder


def belong_to_another(folder: Folder) -> None:
    """Let every user write the folder and a newer one."""
    for path in (folder.path, folder.path.with_name("2026-11-22_11-00-00Z")):
        path.chmod(0o777)


def ran(home: Path, folder: Folder, command: str, *more: str, call: Command = call_command) -> Ran:
    return call(home, *(word.replace("DIR", str(folder.path)) for word in WORDS[command]), *more)


def used(kind: str, folder: Folder, listener: Listener) -> bool:
    """Return whether the address was used."""
    return folder.baseline.exists() if kind == "baseline" else bool(listener.heard)


NAMED = [
    *((kind, command) for kind in ("http", "database") for command in WORDS),
    # Without a tracker, `sync` sends the sweep to a database beside it.
    *((kind, command) for kind in ("ray", "baseline") for command in WORDS if command != "sync"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "command"), NAMED)
def test_no_command_uses_an_address_that_only_the_folder_of_another_user_names(
    kind: str, command: str, home: Path, listener: Listener
) -> None:
    folder = write_folder(home, kind, listener)
    belong_to_another(folder)
    done = ran(home, folder, command)
    assert not used(kind, folder, listener), listener.heard
    assert "Traceback" not in done.err
    if (kind, command) in CONNECTS:
        assert done.code == 1
        assert "is named by a folder that can be written by every user" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "command"), sorted(CONNECTS))
@pytest.mark.parametrize("trust", [False, True])
def test_of_ones_own_folder_and_with_trust_the_address_is_used_and_the_login_with_trust_alone(
    kind: str, command: str, trust: bool, home: Path, listener: Listener
) -> None:
    folder = write_folder(home, kind, listener)
    if trust:
        belong_to_another(folder)
    if trust and command == "ui":  # for which MLFLOW_TRACKING_URI names the address
        pytest.skip("ui has no --trust")
    ran(home, folder, command, *(["--trust"] if trust else []), call=run_command)
    assert used(kind, folder, listener)
    has_login = any(b"authorization" in heard.lower() for heard in listener.heard)
    assert has_login == (trust and kind == "http")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "variable", "command"),
    [("ray", "RAY_ADDRESS", "collect"), ("http", "MLFLOW_TRACKING_URI", "sync")],
)
def test_an_address_that_the_environment_names_too_is_used(
    kind: str, variable: str, command: str, home: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(home, kind, listener)
    belong_to_another(folder)
    address = listener.address if kind == "ray" else f"http://{listener.address}"
    plain = commands.environment
    monkeypatch.setattr(commands, "environment", lambda cwd: {**plain(cwd), variable: address})
    ran(home, folder, command, call=run_command)
    assert listener.heard


@pytest.mark.slow
def test_a_module_in_the_working_directory_is_not_imported(home: Path, listener: Listener) -> None:
    """``cd DIR; sweeprof collect .`` in a folder with a file mlflow.py."""
    folder = write_folder(home, "http", listener)
    for name in ("mlflow", "ray", "sweeprof_tracking", "requests"):
        (folder.path / f"{name}.py").write_text(f"open({str(home / 'imported')!r}, 'w').close()\n")
    call_command(folder.path, "sync", str(folder.path))
    assert not (home / "imported").exists()
