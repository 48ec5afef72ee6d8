"""Errors and names that would control a terminal, a spreadsheet or a page, in everything that a sweep prints and writes."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.live import Live
from rich.text import Text

from support.command import subcommand
from support.hostile_model import ESCAPES
from support.plans import fake_plan, read_records, sweep_folder
from sweeprof.report.csv import csv_lines
from sweeprof.run import locks
from sweeprof.run.progress import ProgressDisplay
from sweeprof.run.shard import run_shard
from sweeprof.storage import Folder
from sweeprof.text import SafeConsole, console, guard_output, printable
from sweeprof.tracking.runs import TAG_LIMIT, capped

report = subcommand("report")

prune = subcommand("prune")

FORBIDDEN = re.compile("(?![\n\r\t])[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
FORMULA = "=cmd|' /C calc'!A0"


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A sweep with a model whose error is hostile and five million characters long, and axis values that are formulas."""
    plan = fake_plan({"a": {}, "b": {}}, metrics=["compute/macs", "latency/forward", "params/total"])
    good, bad = plan.combinations
    model = {"fake": {"_target_": "support.hostile_model.model"}}
    axes = [{**good.axes, "model": FORMULA, "mine": -0.5}, {**bad.axes, "model": f"@{ESCAPES}", "mine": "+1"}]
    plan = dataclasses.replace(
        plan,
        command=f"python -m sweeprof '{ESCAPES}'",
        axes={**plan.axes, "model": [one["model"] for one in axes], "mine": [-0.5, "+1"]},
        baseline={},
        combinations=(
            dataclasses.replace(good, axes=axes[0]),
            dataclasses.replace(bad, axes=axes[1], config={**bad.config, "model": model}),
        ),
    )
    folder = sweep_folder(tmp_path_factory.mktemp("sweep") / "test" / "2026-11-21_00-30-00Z", plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks, "FOLDER", folder.path / "locks")
        run_shard(folder, 0)
    return folder


@pytest.mark.slow
def test_a_record_keeps_both_ends_of_a_long_error(failed: Folder) -> None:
    assert max(path.stat().st_size for path in failed.records.glob("cb/*.json")) < 100_000
    for record in read_records(failed.records):
        if record.combination_id == "cb":
            reason, traceback = str(record.reason), str(record.traceback)
            assert record.status == "failed"
            assert reason.startswith(r"ValueError: \u001b]0;owned\u0007")
            assert "hostile_model.py" in traceback
            assert "characters left out] … " in traceback
            assert " ends\n=1+1" in traceback.replace(r"\n", "\n")[-30:]
            assert not FORBIDDEN.search(reason + traceback)


def test_names_and_reasons_are_shown_as_plain_text(failed: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert report([str(failed.path)]) == 0
    printed = capsys.readouterr()
    assert "ValueError" in printed.out
    assert not FORBIDDEN.search(printed.out + printed.err)
    names = ["comparison.md", "comparison.csv", "comparison-tables.tex", "report.html"]
    for path in [*(failed.path / name for name in names), *failed.path.glob("tables/*.csv")]:
        text = path.read_text(encoding="utf-8")
        text, _, _ = text.partition("<script")  # the page's own scripts follow
        assert not FORBIDDEN.search(text), path
    page = (failed.path / "report.html").read_text(encoding="utf-8")
    embedded = re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert embedded
    for data in embedded:
        assert not FORBIDDEN.search(json.dumps(json.loads(data), ensure_ascii=False).replace("\\u", ""))
    json.loads((failed.path / "comparison.json").read_text(encoding="utf-8"))


def test_a_formula_is_text_in_a_spreadsheet_and_a_number_stays_one(failed: Folder) -> None:
    report([str(failed.path)])
    for name in ("comparison.csv", "tables/measurements.csv", "tables/problems.csv"):
        rows = list(csv.DictReader(io.StringIO((failed.path / name).read_text(encoding="utf-8"))))
        models = {row["model"] for row in rows}
        if name != "tables/problems.csv":  # which has failures only
            assert f"'{FORMULA}" in models
            assert {row["mine"] for row in rows} == {"-0.5", "+1"}
        assert any(model.startswith("'@") for model in models)
        for row in rows:
            for cell in row.values():
                assert not cell.startswith(("=", "@", "\t", "\r")), (name, cell)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("-2+3", "'-2+3"),
        ("+cmd", "'+cmd"),
        ("\tx", "'\tx"),
        ("-1.5e-3", "-1.5e-3"),
        (-7, "-7"),
        (True, "true"),
        (None, ""),
        ("a=b", "a=b"),
    ],
)
def test_what_begins_like_a_formula_and_is_no_number_begins_with_an_apostrophe(value: object, cell: str) -> None:
    assert next(csv.reader(io.StringIO(csv_lines([["first", value]])))) == ["first", cell]


def test_progress_shows_names_without_their_escapes_and_markup(failed: Folder) -> None:
    plan = failed.read_plan()
    label = f"[/red][link=http://x]{ESCAPES}"
    named = [dataclasses.replace(one, axes={**one.axes, "model": f"{one.id}{label}"}) for one in plan.combinations]
    plan = dataclasses.replace(plan, combinations=tuple(named))
    events = failed.events / "shard-7.jsonl"
    out = io.StringIO()
    with ProgressDisplay(plan, failed, console(file=out, force_terminal=True, width=300)) as display:
        event = {"combination_id": "cb", "pass": "timing", "round": 0, "time": 0.0}
        ended = {**event, "event": "end", "status": "failed", "reason": ESCAPES}
        running = {**event, "combination_id": "ca", "event": "begin"}
        events.write_text("".join(json.dumps(one) + "\n" for one in ({**event, "event": "begin"}, ended, running)))
        display._take_new()
        display._refresh()
    shown = out.getvalue()
    assert shown.count("[/red][link=http://x]") >= 2  # the failure, and the bar's description
    assert r"\u001b]0;owned\u001b[2J" in shown  # rich leaves out the bell
    assert "\x1b]" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert "\x1b[31m" in shown  # rich's own red


def test_whatever_a_command_prints_is_printable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors of commands, logs and tracebacks; one long line shows both of its ends."""
    folder = tmp_path / "n\x1b[2J" / "2026-11-21_00-30-00Z"
    sweep_folder(folder, fake_plan({"a": {}}))
    assert prune(["n\x1b[2J", "--keep", "1", "--output", str(tmp_path)]) == 0
    assert prune(["gone\x1b[2J", "--keep", "1", "--output", str(tmp_path)]) == 1
    log = logging.Logger("hostile")
    log.addHandler(logging.StreamHandler(sys.stderr))
    file = logging.FileHandler(tmp_path / "sweep.log", encoding="utf-8")
    log.addHandler(file)
    log.error("%s", f"{ESCAPES}{'B' * 300_000} ends")
    file.close()
    print(f"{ESCAPES}{'B' * 300_000} ends", file=sys.stderr)
    printed = capsys.readouterr()
    logged = (tmp_path / "sweep.log").read_text(encoding="utf-8")
    assert logged.endswith(" ends\n")
    assert not FORBIDDEN.search(logged)
    assert len(logged) < 15_000
    assert "kept" in printed.out
    assert r"n\u001b[2J" in printed.out
    assert r"\u202egnp.exe\udcff" in printed.err
    assert not FORBIDDEN.search(printed.out + printed.err)
    assert len(printed.err) < 35_000
    assert " ends" in printed.err


def test_tags_in_mlflow_are_printable_and_keep_both_ends() -> None:
    tag = capped(f"{ESCAPES} begins {'A' * 100_000} ends")
    assert len(tag) <= TAG_LIMIT
    assert not FORBIDDEN.search(tag)
    assert tag.endswith(" ends")


def test_what_is_spelled_in_json_output_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    guard_output()
    print(json.dumps({"name": ESCAPES.replace("\udcff", "")}, ensure_ascii=False))
    text = capsys.readouterr().out
    assert not FORBIDDEN.search(text)
    assert json.loads(text) == {"name": ESCAPES.replace("\udcff", "")}


def test_other_text_is_printed_as_it_is() -> None:
    text = "plain\ttext\nwith ünïcode 🎉 …"
    assert printable(text) == text


def test_letters_that_the_encoding_of_the_output_lacks_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    guard_output()
    print("Report /srv/Läufe/report.html", flush=True)
    assert written.getvalue() == b"Report /srv/L?ufe/report.html\n"


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_error(closed: str, tmp_path: Path) -> None:
    """As under a supervisor that opens none: a file that is opened later must not get what is printed."""
    program = (
        "import sys\nfrom sweeprof.text import guard_output\nguard_output()\n"
        "with open(sys.argv[1], 'w') as file:\n    print('printed', flush=True)\n    file.write(str(file.fileno() > 2))"
    )
    written = tmp_path / "written"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" "$2" {closed}', sys.executable, program, str(written)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, written.read_text()) == (0, "", "True")


def test_a_progress_bar_controls_the_terminal_and_what_is_printed_beside_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    guard_output()
    shown = SafeConsole(stderr=True, force_terminal=True, color_system="standard", width=80)
    with Live(Text("measuring", style="green"), console=shown, auto_refresh=False) as live:
        live.refresh()
        sys.stderr.write("a model says \x1b[2J\n")
    assert "\x1b[32mmeasuring\x1b[0m" in terminal.getvalue()
    assert r"\u001b[32m" not in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue()
