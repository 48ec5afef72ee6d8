"""Files that are valid JSON and not what they should be: named, left out, set aside by resume, never a traceback."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.command import subcommand
from support.plans import fake_plan, sweep_folder
from sweeprof.cli.run import run_command
from sweeprof.errors import Damaged, UserError
from sweeprof.passes.registry import checked_record
from sweeprof.plan.plan import Plan
from sweeprof.report.summary import MOST_DAMAGED, footnotes
from sweeprof.report.terminal import text
from sweeprof.results import files
from sweeprof.results.compared_rows import Comparison, comparison_from
from sweeprof.results.files import read_json, write_json
from sweeprof.results.record import Json
from sweeprof.run.comparison import comparison_of
from sweeprof.run.locks import Driver
from sweeprof.run.resume import count_trials, restore_environment, retry_statuses
from sweeprof.storage import Folder, TrialEvent, events_of, parsed

report = subcommand("report")

GOLDEN = Path(__file__).parents[2] / "golden" / "sweep-v2"
ID = "c000000000001"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    path = tmp_path / "outputs" / "golden" / "2026-11-22_06-00-00Z"
    shutil.copytree(GOLDEN, path)
    return Folder(path)


def timing(folder: Folder) -> Path:
    return folder.records / ID / "timing-r1.json"


def with_value(key: str, value: Any) -> Callable[[str], str]:
    """A change of a record: the value of a dotted key."""

    def change(content: str) -> str:
        data = json.loads(content)
        *parents, last = key.split(".")
        node = data
        for parent in parents:
            node = node[parent]
        node[last] = value
        return json.dumps(data)

    return change


DAMAGES: dict[str, tuple[Callable[[str], str], str]] = {
    "status": (with_value("status", "banana"), "status: 'banana' is not one of ok, "),
    "truth for a number": (with_value("round", True), "round: True is not an integer"),
    "another combination's": (with_value("combination_id", "c2"), "is the record of another trial, c2/timing-r1.json"),
    "path for an id": (with_value("combination_id", "../../x"), "combination_id: '../../x' is not an id"),
    "unknown pass": (with_value("pass", "../x"), "pass: '../x' is not the name of a pass"),
    "newer": (with_value("schema_version", 99), "record schema 99 is newer than this sweeprof"),
    "huge integer": (with_value("observations.loops", 10**4000), "observations.loops: 1000"),
    "environment": (with_value("environment.versions", "banana"), "environment.versions: 'banana' is not an object"),
    "sample": (with_value("observations.samples", [0.1, "x"]), "observations: samples[1]: 'x' is not a finite number"),
    "no samples": (with_value("observations.samples", []), "observations: samples: tuple is not a list of at least"),
    "no observations": (with_value("observations", {}), "observations: dict is not complete: it has no 'first_step_s'"),
    "nested": (lambda _: "[" * 100_000, "is nested too deeply"),
    "nested config": (with_value("config", json.loads('{"a":' * 99 + "1" + "}" * 99)), "nested more than 64 levels"),
    "NaN": (lambda content: content.replace('"wall_s": 1.5', '"wall_s": NaN'), "has NaN, which is not a number"),
    "repeated key": (lambda content: content.replace('"round": 1', '"round": 1, "round": 1', 1), "repeats a key"),
    "list": (lambda _: "[]", "list is not a record"),
    "half of a character": (with_value("reason", "\ud800"), "has text that is not Unicode"),
    "cut": (lambda content: content[:-20], "is not JSON: "),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_named_and_its_trial_is_missing(damage: str, folder: Folder) -> None:
    change, said = DAMAGES[damage]
    timing(folder).write_text(change(timing(folder).read_text()))
    comparison = comparison_of(folder)
    (line,) = comparison.damaged
    assert line.startswith(f"records/{ID}/timing-r1.json: ")
    assert said in line
    assert len(line) < 400
    row = next(row for row in comparison.rows if row.combination_id == ID)
    assert row.status == "lost"
    assert "timing: its record is damaged: " in str(row.reason)
    assert sum(row.status == "ok" for row in comparison.rows) == sum(r.status == "ok" for r in whole().rows) - 1


@cache
def whole() -> Comparison:
    return comparison_of(Folder(GOLDEN))


def test_what_is_not_a_file_or_too_large_is_not_read(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    timing(folder).unlink()
    os.mkfifo(timing(folder))
    assert comparison_of(folder).damaged == (f"records/{ID}/timing-r1.json: is not a regular file",)
    timing(folder).unlink()
    with timing(folder).open("wb") as file:
        file.truncate(files.MOST_BYTES + 1)
    (line,) = comparison_of(folder).damaged
    assert "has 536,870,913 bytes, more than the 536,870,912 that are read" in line


def test_the_report_names_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sweep_folder(tmp_path / "outputs" / "test" / "2026-11-22_06-00-00Z", fake_plan({"a": {}}))
    record = folder.records / "ca" / "timing-r0.json"
    record.parent.mkdir(parents=True)
    record.write_text("[]")
    (folder.path / "environment.json").write_text('{"cpu": "banana"}')
    folder.events.mkdir()
    (folder.events / "shard-0.jsonl").write_bytes(b'{"event": "begin"}\n[1]\n' + b"[" * 90_000 + b'\n{"ev')
    assert report([str(folder.path)]) == 0
    shown = "".join(capsys.readouterr().out.split())
    made = (folder.path / "report.html").read_text() + (folder.path / "comparison.md").read_text()
    for line in (
        "records/ca/timing-r0.json: list is not a record",
        "environment.json: cpu: 'banana' is not an object",
        "events/shard-0.jsonl: 3 lines cannot be read",
    ):
        assert "".join(line.split()) in shown
        assert line.partition(":")[0] in made
    assert len(comparison_from(read_json(folder.path / "comparison.json")).damaged) == 3


def test_of_many_damaged_files_the_first_are_named(folder: Folder) -> None:
    for path in folder.records.glob("*/*.json"):
        path.write_text("{}")
    comparison = comparison_of(folder)
    notes = [note for note in footnotes(comparison) if note.code == "damaged_file"]
    assert len(notes) == MOST_DAMAGED + 1
    assert f"{len(comparison.damaged) - MOST_DAMAGED} more files cannot be read" in text(comparison)


def test_resume_sets_damaged_records_aside_and_measures_their_trials_again(folder: Folder) -> None:
    timing(folder).write_text(with_value("status", "banana")(timing(folder).read_text()))
    before = timing(folder).read_bytes()
    plan = folder.read_plan()
    assert "1 damaged" in str(count_trials(folder, plan, retry_statuses([]), move=False))
    assert timing(folder).exists()
    count_trials(folder, plan, retry_statuses([]), move=True)
    assert not timing(folder).exists()
    assert (folder.path / "damaged" / "records" / ID / "timing-r1-0.json").read_bytes() == before
    (folder.path / "environment.json").write_text('{"cpu": 3}')
    restore_environment(folder)
    assert "host" in read_json(folder.path / "environment.json")
    assert (folder.path / "damaged" / "environment-0.json").read_text() == '{"cpu": 3}'
    assert comparison_of(folder).damaged == ()


def test_a_damaged_comparison_of_another_sweep_is_named(folder: Folder) -> None:
    plan = read_json(folder.plan)
    plan["compare"]["against"] = {"label": "last~1", "file": "/nowhere"}
    write_json(folder.plan, plan)
    (folder.path / "baseline.json").write_text('{"schema_version": 2, "rows": "banana"}')
    comparison = comparison_of(folder)
    assert comparison.against is None
    assert comparison.damaged == ("baseline.json: is not a comparison of sweeprof: rows: 'banana' is not a list",)


def paths(node: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Of everything in parsed JSON; of long lists the first three."""
    items = node.items() if isinstance(node, dict) else enumerate(node[:3]) if isinstance(node, list) else ()
    return [path, *(one for key, value in items for one in paths(value, (*path, key)))]


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([[], {}, [[]], [None], {"a": 1}, 10**400, -1, 0, "banana", "../../x"]),
)


@st.composite
def mutated(draw: st.DrawFn, original: Any) -> Any:
    data: Any = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(paths(data)))
        if not path:
            continue
        node: Any = data
        for key in path[:-1]:
            node = node[key]
        match draw(st.sampled_from(["replace", "replace", "remove", "repeat"])):
            case "replace":
                node[path[-1]] = copy.deepcopy(draw(values))  # the next change may be within it
            case "remove":
                del node[path[-1]]
            case "repeat" if isinstance(path[-1], int):
                node.append(copy.deepcopy(node[path[-1]]))
    return data


EVENT = {"event": "begin", "time": 1.0, "combination_id": "c1", "pass": "timing", "round": 0}
RECORDS = [
    path for path in sorted(GOLDEN.glob(f"records/{ID}/*.json")) if not path.name.endswith(("-r1.json", "-r2.json"))
]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", [path.name for path in RECORDS])
def test_a_changed_record_is_a_record_or_damaged(name: str, data: st.DataObject, place: Path) -> None:
    path = place / name
    path.write_text(json.dumps(data.draw(mutated(read_json(GOLDEN / "records" / ID / name)))))
    with suppress(Damaged):  # and nothing else
        checked_record(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a combination's records."""
    made = tmp_path_factory.mktemp("fuzz") / ID
    made.mkdir()
    return made


def _plan() -> Json:
    plan: Json = read_json(GOLDEN / "plan.json")
    return {**plan, "combinations": plan["combinations"][:3], "shards": [[c["id"] for c in plan["combinations"][:3]]]}


@settings(max_examples=150, deadline=None)
@given(data=mutated(_plan()))
def test_a_changed_plan_is_a_plan_or_damaged(data: Json) -> None:
    try:
        plan = Plan.from_dict(json.loads(json.dumps(data)))
    except Damaged:
        return
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@settings(max_examples=100, deadline=None)
@given(line=st.one_of(st.binary(max_size=60), values.map(lambda value: json.dumps(value).encode())))
def test_whatever_an_event_log_holds_the_events_in_it_are_read(line: bytes, place: Path) -> None:
    (place / "shard-0.jsonl").write_bytes(line.replace(b"\n", b"") + b"\n" + json.dumps(EVENT).encode() + b"\n")
    assert list(events_of(place)) == [TrialEvent("begin", 1.0, "c1", "timing", 0)]


@pytest.mark.parametrize("name", ["../x", "\x1b[2J", "", "Timing", "a" * 81])
def test_an_event_of_what_cannot_be_a_pass_is_damaged(name: str) -> None:
    assert parsed(json.dumps(EVENT).encode()) is not None
    assert parsed(json.dumps({**EVENT, "pass": name}).encode()) is None


WRONG = ('"x"', "-1", "null", '{"x": [1]}', "[[1]]", '"\\ud800"', "1e400", "1" + "0" * 5000, "[" * 3000 + "]" * 3000)
"""Values of JSON, and what Python takes for such, of which at most a few have the type of any field."""
DECIDED = f"records/{ID}/decided.json"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["plan.json", "tracking.json", "driver.json", DECIDED, "comparison.json"])
def test_no_value_of_a_wrong_type_ends_a_command_with_a_traceback(
    name: str, folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder.note_decided(ID, 2)
    write_json(folder.path / "driver.json", dataclasses.asdict(Driver(1, "elsewhere", None, "a", None)))
    write_json(folder.tracking, {"config": {"_target_": None}, "complete": True})
    assert report([str(folder.path)]) == 0
    file = folder.path / name
    original = file.read_bytes()
    output = str(folder.output)
    commands = [["report", str(folder.path)]]
    if name in ("plan.json", "tracking.json", "driver.json"):
        commands += [["ui", str(folder.path), "--no-browser"], ["collect", str(folder.path)]]
        commands += [
            ["prune", "golden", "--keep", "1", "--dry-run", "--output", output],
            ["sync", "unsent", "--output", output],
        ]
    if name == "comparison.json":
        commands = [["compare", str(file), str(GOLDEN), "--output", output]]
    for key in json.loads(original):
        for wrong in WRONG:
            file.write_text(json.dumps({**json.loads(original), key: "@"}).replace('"@"', wrong) + "\n")
            for words in commands:
                capsys.readouterr()
                code = run_command(words)
                printed = capsys.readouterr()
                assert code in (0, 1, 2), (key, wrong[:20], words)
                assert code != 1 or printed.err.startswith("error: "), (key, wrong[:20], printed.err)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix, contextlib.chdir(path.parent):  # the path of a socket is short
        unix.bind(path.name)


@pytest.mark.parametrize(
    "name",
    [
        *("report.lock", "driver.lock", "work.lock", "sending.lock", "tracking.json", "stop", "baseline.json"),
        *(f"records/{ID}/timing-r1.json", "events/shard-0.jsonl", "logs/x.log", "report.html"),
    ],
)
def test_no_command_waits_for_what_is_not_a_file(folder: Folder, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = folder.path / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for command in ("report", "sync", "ui", "collect"):
        assert run_command([command, str(folder.path)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line == f"error: DIR: '{path}' is not a regular file: remove it."


def test_a_plan_that_is_not_a_file_is_no_sweep(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.plan.unlink()
    os.mkfifo(folder.plan)
    output = str(folder.output)
    assert run_command(["report", "last", "--output", output]) == 1
    assert run_command(["prune", "golden", "--keep", "1", "--output", output]) == 0
    assert folder.plan.exists()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, _socket, lambda path: path.symlink_to("elsewhere")])
def test_what_is_not_a_regular_file_is_never_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "report.lock"
    make(path)
    for mode in ("rb", "r+b", "ab", "a+b"):
        with pytest.raises(UserError, match=r"report\.lock' is not a regular file: remove it"):
            files.open_regular(path, mode)
