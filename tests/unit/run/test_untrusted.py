"""The folder of a sweep comes from somebody else: nothing that it names is run, told a password, or written to."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.plans import fake_plan, sweep_folder
from support.subcommands import subcommand
from sweeprof.errors import UserError
from sweeprof.results.files import read_json, write_json
from sweeprof.results.record import Json
from sweeprof.run.reports import read_sweep
from sweeprof.run.tracker_process import stored_tracker
from sweeprof.storage import Folder
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
Main = Callable[[Sequence[str]], int]
collect, compare, prune, report, sync, ui = map(subcommand, ("collect", "compare", "prune", "report", "sync", "ui"))
COMMANDS: dict[str, tuple[Main, list[str]]] = {
    "report": (report, []),
    "sync": (sync, []),
    "collect": (collect, []),
    "ui": (ui, ["--port", "0"]),
    "compare": (compare, [str(GOLDEN)]),
    "tag": (compare, ["--tag", "nightly"]),
}


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*LOGINS, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the search path with a module that leaves a mark when it is imported."""
    folder = tmp_path / "path"
    folder.mkdir()
    (folder / "evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return sweep_folder(tmp_path / "outputs" / "test" / "2026-11-22_10-00-00Z", fake_plan({"a": {}}))


def tracked(folder: Folder, complete: bool = True, **config: Any) -> None:
    write_json(
        folder.tracking, {"config": {"_target_": MLFLOW, "uri": None, **config}, "complete": complete, "sent": None}
    )


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


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_read_a_folder_import_nothing_that_it_names(
    command: str, folder: Folder, evil: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_plan(folder, everywhere)
    tracked(folder, _target_="evil.Tracker", nested={"_target_": "evil.Tracker"})
    main, words = COMMANDS[command]
    code = main([str(folder.path), *words])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert [path.name for path in evil.iterdir()] == ["evil.py"]
    if command != "tag":  # which reads the plan's id alone
        assert (code, err.startswith("error: ")) == (1, True)
        assert command == "ui" or "evil." in err
        assert command == "ui" or "--trust" in err


def test_pruning_imports_nothing_either(folder: Folder, evil: Path) -> None:
    change_plan(folder, everywhere)
    tracked(folder, _target_="evil.Tracker")
    newer = folder.path.with_name("2026-11-22_11-00-00Z")
    shutil.copytree(folder.path, newer)
    prune(["test", "--keep", "1", "--output", str(folder.path.parents[1])])
    assert [path.name for path in evil.iterdir()] == ["evil.py"]


@pytest.mark.parametrize("command", ["report", "compare"])
def test_who_trusts_the_folder_gets_its_metrics(
    command: str, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"mine_{command}.py").write_text(
        "import sweeprof\n@sweeprof.metric(name='own/one', unit='', better=None)\ndef one(batch_size): return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    change_plan(folder, lambda plan: plan["metrics"].append({"_target_": f"mine_{command}.one"}))
    with pytest.raises(UserError, match=r"is code outside sweeprof, .*--trust"):
        read_sweep(folder.path, "x", "NEW")
    if command == "report":
        assert report([str(folder.path), "--trust"]) == 0
        assert "own/one" in (folder.path / "comparison.json").read_text()
    else:
        assert "own/one" in [metric.name for metric in read_sweep(folder.path, "x", "NEW", trust=True).metrics]
    capsys.readouterr()


@pytest.mark.parametrize("id", ["../../x", "/tmp/x", "a/b", "..", ".hidden", "", "c1\n", "x" * 100, "ø", 3, None])
def test_an_id_that_leads_elsewhere_is_one_clear_error(
    id: Any, folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_login_goes_to_a_stored_address_only_if_the_user_gives_it(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_damaged_tracking_json_is_one_clear_error(
    content: str, folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
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
