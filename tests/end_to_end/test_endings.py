"""Trials that end badly, for real: each becomes a row, the others go on, nothing is left running."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support.command import Command, start_command
from support.processes import left_after, of_kind

FAKE = ("model=fake", "backend=fake", "dataset=synthetic", "tracking=none", "compare.baseline={batch_size: 1}")


@pytest.fixture(autouse=True)
def _no_process_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert left_after(tmp_path, 10) == []


def _rows(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "comparison.csv").set_index("batch_size")


ENDINGS = {
    "raise": ("failed", "ValueError: the fake model was told to raise"),
    "memory_error": ("oom", "MemoryError: the fake model was told to run out of memory"),
    "exit": ("crashed", "exited with code 3 without leaving a record"),
    "segfault": ("crashed", "killed by SIGSEGV (signal 11)"),
    "kill": ("crashed", "killed by SIGKILL (signal 9)"),
}


def test_an_ending_is_a_row_with_a_reason(called: Command) -> None:
    ran = called(*FAKE, f"model.fake.on_step={','.join(ENDINGS)}")
    assert ran.code == 2
    rows = pd.read_csv(ran.folder("adhoc") / "comparison.csv").set_index("model.fake.on_step")
    assert set(rows.index) == set(ENDINGS)
    for event, (status, reason) in ENDINGS.items():
        row = rows.loc[event]
        assert row["status"] == status
        assert reason in row["reason"]
        assert pd.isna(row["latency/forward"])
        assert row["params/total"] == 1000  # what another pass measured is kept
        assert status in ran.out
    assert "Traceback" not in ran.out + ran.err


def test_a_sweep_whose_only_combination_fails_ends_with_2(called: Command) -> None:
    ran = called(*FAKE, "model.fake.on_step=kill", "metrics=latency")
    assert ran.code == 2
    assert _rows(ran.folder("adhoc")).loc[1]["status"] == "crashed"


HARMFUL = """
import os, pathlib, resource, shutil, signal, subprocess, sys, tempfile, time
from sweeprof.backends.fake import FakeModel

def sweep():
    (folder,) = pathlib.Path(__file__).parent.glob("outputs/adhoc/*")
    return folder

def busy():
    while True:
        pass

def ignore_signals():
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    time.sleep(600)

def leave_processes():
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)

def put_a_file_in_place_of_artifacts():
    (sweep() / "artifacts").write_text("")

def close_to_all():
    records = sweep() / "records"
    records.mkdir(exist_ok=True)
    for path in (records, sweep()):
        path.chmod(0)

HARMS = {
    "nothing": lambda: None,
    "processor time": lambda: (resource.setrlimit(resource.RLIMIT_CPU, (1, 60)), busy()),
    "own session": os.setsid,
    "temporary files": lambda: shutil.rmtree(tempfile.gettempdir()),
    "permissions": close_to_all,
    "a file": put_a_file_in_place_of_artifacts,
    "descriptors": lambda: os.closerange(3, 256),
    "exit": lambda: os._exit(0),
    "directory": lambda: os.chdir("/"),
    "parent": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "group": lambda: os.killpg(os.getpgid(0), signal.SIGKILL),
    "signals": ignore_signals,
    "children": leave_processes,
}

def model(harm):
    if harm == "own session":
        os.setpgid(0, os.getpgid(os.getppid()))  # else it may not
    HARMS[harm]()
    return FakeModel(0.001)
"""
HARMS = {
    "nothing": ("ok", None),
    "processor time": ("crashed", "killed by SIGXCPU (signal 24)"),
    "own session": ("ok", None),
    "temporary files": ("ok", None),
    "permissions": ("ok", None),
    "a file": ("ok", None),
    "descriptors": ("ok", None),
    "exit": ("crashed", "exited with code 0 without leaving a record"),
    "directory": ("ok", None),
    "parent": ("lost", "its fork server process was killed by SIGKILL (signal 9)"),
    "group": ("crashed", "killed by SIGKILL (signal 9)"),
    "signals": ("timeout", "took longer than limits.timeout_s=4"),
    "children": ("ok", None),
}
"""What the code of a model does to its process, its sweep and its machine, and what its row then says."""
CHANGED = {
    "permissions": ("it had the mode 000", "records had the mode 000"),
    "a file": ("artifacts was not a folder",),
}


@pytest.fixture
def harmful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with the harmful models, and a folder of its own for temporary files, which one of them removes."""
    (tmp_path / "harmful.py").write_text(HARMFUL)
    temporary = tmp_path.with_name(f"{tmp_path.name}-tmp")
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))


@pytest.mark.slow
@pytest.mark.usefixtures("harmful")
def test_what_the_code_of_one_model_does_hurts_no_other(sweeprof: Command) -> None:
    ran = sweeprof(
        *("model=fake", "backend=fake", "dataset=synthetic", "tracking=none", "protocol=quick", "metrics=latency"),
        *("model.fake._target_=harmful.model", "~model.fake.step_s", f"+model.fake.harm={','.join(HARMS)}"),
        *("limits.timeout_s=4", "compare.baseline={}"),
    )
    assert ran.code == 2
    assert "Traceback" not in ran.out + ran.err
    folder = ran.folder("adhoc")
    rows = pd.read_csv(folder / "comparison.csv").set_index("model.fake.harm")
    for harm, (status, reason) in HARMS.items():
        row = rows.loc[harm]
        assert (harm, row["status"]) == (harm, status)
        assert reason is None or reason in row["reason"]
    warnings: dict[str, str] = {}
    for path in folder.glob("records/*/*.json"):
        record = json.loads(path.read_text())
        warnings[record["axes"]["model.fake.harm"]] = str(record["warnings"])
    for harm, texts in CHANGED.items():
        assert all(text in warnings[harm] for text in texts)
    assert not any("folder_changed" in warnings[harm] for harm in HARMS.keys() - CHANGED.keys())


@pytest.mark.slow
@pytest.mark.usefixtures("harmful")
def test_an_interleaved_trial_that_removes_temporary_files_or_its_connection_hurts_no_other(sweeprof: Command) -> None:
    harms = ["temporary files", "descriptors", "nothing", "directory"]
    ran = sweeprof(
        *("model=fake", "backend=fake", "dataset=synthetic", "tracking=none", "protocol=interleaved"),
        *("protocol.rounds=1", "protocol.min_s=0.1", "metrics=latency", "model.fake._target_=harmful.model"),
        *("~model.fake.step_s", f"+model.fake.harm={','.join(harms)}"),
        "compare.baseline={model.fake.harm: nothing}",
    )
    rows = pd.read_csv(ran.folder("adhoc") / "comparison.csv").set_index("model.fake.harm")
    assert dict(rows["status"]) == {**dict.fromkeys(harms, "ok"), "descriptors": "crashed"}
    assert "its connection to the shard is gone" in rows.loc["descriptors"]["reason"]


def test_a_hanging_trial_is_ended_by_its_limit_and_the_others_go_on(called: Command) -> None:
    ran = called(*FAKE, "metrics=latency", "model.fake.on_step=hang,null", "limits.timeout_s=2")
    assert ran.code == 2
    table = pd.read_csv(ran.folder("adhoc") / "comparison.csv").set_index("model.fake.on_step", drop=False)
    statuses = dict(zip(table["model.fake.on_step"].fillna("null"), table["status"], strict=True))
    assert statuses == {"null": "ok", "hang": "timeout"}
    assert "limits.timeout_s=2" in str(table[table["status"] == "timeout"]["reason"].iloc[0])


def test_a_memory_limit_ends_the_trial_that_passes_it(called: Command) -> None:
    ran = called(*FAKE, "model.fake.on_step=allocate", "limits.memory=200MiB")
    assert ran.code == 2
    assert _rows(ran.folder("adhoc")).loc[1]["status"] == "oom"


@pytest.mark.slow
def test_a_model_without_a_builder_is_unsupported(sweeprof: Command) -> None:
    ran = sweeprof("model=fake", "backend=fake,torch", "dataset=synthetic", "tracking=none")
    assert ran.code == 0  # nothing failed
    table = pd.read_csv(ran.folder("adhoc") / "comparison.csv").set_index("backend")
    assert table.loc["fake", "status"] == "ok"
    assert table.loc["torch", "status"] == "unsupported"
    assert "names no builder for torch" in str(table.loc["torch", "reason"])


@pytest.mark.slow
def test_a_forward_that_rejects_the_shape_fails_with_the_frameworks_words(sweeprof: Command, tmp_path: Path) -> None:
    (tmp_path / "mynet.py").write_text(
        "import torch\n"
        "class Mine(torch.nn.Module):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
        "        self.linear = torch.nn.Linear(width, 10)\n"
        "    def forward(self, x):\n"
        "        return self.linear(x.flatten(1))\n"
    )
    ran = sweeprof("model.torch._target_=mynet.Mine", "model.torch.width=1024,7", "backend=torch", "tracking=none")
    assert ran.code == 2
    table = pd.read_csv(ran.folder("adhoc") / "comparison.csv").set_index("model.torch.width")
    assert list(table["model"].unique()) == ["Mine"]
    assert table.loc[1024, "status"] == "ok"
    assert table.loc[1024, "params/total"] == 10_250
    assert table.loc[1024, "compute/macs"] == 10_240
    assert table.loc[7, "status"] == "failed"
    assert "mat1 and mat2 shapes cannot be multiplied" in str(table.loc[7, "reason"])


def _wait_for(condition: Any, process: subprocess.Popen[str]) -> Any:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (found := condition()) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError(f"did not happen; the command said {process.communicate()}")


def _begun(cwd: Path, pass_name: str, batch_size: int) -> int | None:
    """Process id of the worker that runs this pass of this combination, once it does."""
    for events in cwd.glob("outputs/*/*/events/*.jsonl"):
        lines = [json.loads(line) for line in events.read_text().splitlines() if line.endswith("}")]
        plan = json.loads((events.parents[1] / "plan.json").read_text())
        sizes = {c["id"]: c["axes"]["batch_size"] for c in plan["combinations"]}
        if lines and lines[-1]["event"] in ("begin", "running"):  # running: it had to wait for its turn
            last = lines[-1]
            if (last["pass"], sizes[last["combination_id"]]) == (pass_name, batch_size):
                return _worker(cwd)
    return None


def _worker(home: Path) -> int | None:
    """The process of a trial."""
    return next((int(process.pid) for process in of_kind(home, "worker")), None)


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    slow = "model.fake.on_step=null,hang"
    process = start_command(tmp_path, *FAKE, slow, "name=stopped")
    _wait_for(lambda: _records(tmp_path, 1), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    (folder,) = (tmp_path / "outputs" / "stopped").iterdir()
    records = [json.loads(path.read_text()) for path in folder.glob("records/*/*.json")]
    assert records
    assert {r["status"] for r in records} == {"ok"}
    table = pd.read_csv(folder / "comparison.csv")
    assert "interrupted before it was measured" in " ".join(table["reason"].dropna())
    assert (folder / "report.html").is_file()
    assert "Traceback" not in out + err


def _records(cwd: Path, least: int) -> int | None:
    """How many of the combination that does not hang are there, once none is to come before the hang."""
    found = list(cwd.glob("outputs/*/*/records/*/*.json"))
    hanging = any(_last_event(path) == ("begin", "timing") for path in cwd.glob("outputs/*/*/events/*.jsonl"))
    return len(found) if hanging and len(found) >= least else None


def _last_event(path: Path) -> tuple[str, str]:
    lines = path.read_text().splitlines()
    event = json.loads(lines[-1]) if lines else {"event": "", "pass": ""}
    return event["event"], event["pass"]


@pytest.mark.thorough
@pytest.mark.timeout(500)
def test_one_killed_worker_of_the_quickstart_costs_one_row(tmp_path: Path) -> None:
    process = start_command(tmp_path, "+sweep=quickstart", "tracking=none")
    worker = _wait_for(lambda: _begun(tmp_path, "timing", 64), process)
    os.kill(worker, signal.SIGKILL)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 2, (out, err)
    (folder,) = (tmp_path / "outputs" / "quickstart").iterdir()
    table = pd.read_csv(folder / "comparison.csv")
    assert list(table["status"]).count("ok") == 17
    (lost,) = table[table["status"] != "ok"].to_dict("records")
    assert lost["status"] == "crashed"
    assert lost["reason"] == "2 of 3 rounds measured; timing: killed by SIGKILL (signal 9)"
    assert lost["batch_size"] == 64
    assert table[table["status"] == "ok"]["latency/forward"].notna().all()
    assert "17 of 18 combinations measured; 1 incomplete" in out
    assert "killed by SIGKILL" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_a_killed_driver_leaves_no_process_and_complete_records(tmp_path: Path) -> None:
    process = start_command(tmp_path, *FAKE, "model.fake.on_step=hang")
    _wait_for(lambda: _worker(tmp_path), process)
    process.kill()
    process.communicate(timeout=30)
    for path in tmp_path.glob("outputs/*/*/records/*/*.json"):
        json.loads(path.read_text())


def _moved_away(folder: Path) -> None:
    folder.rename(folder.parents[2] / "elsewhere")


def _replaced_by_a_file(folder: Path) -> None:
    _moved_away(folder)
    folder.write_text("")


@pytest.mark.slow
@pytest.mark.parametrize("remove", [shutil.rmtree, _moved_away, _replaced_by_a_file, lambda f: shutil.rmtree(f.parent)])
@pytest.mark.parametrize("metrics", ["metrics.select=[params/total]", "metrics=latency"])
def test_a_folder_that_is_removed_while_it_is_measured_is_one_message(
    tmp_path: Path, remove: Callable[[Path], None], metrics: str
) -> None:
    process = start_command(tmp_path, *FAKE[:4], metrics, "batch_size=range(1,60)", "name=gone")
    record = _wait_for(lambda: next(tmp_path.glob("outputs/gone/*/records/*/*.json"), None), process)
    folder = record.parents[2]
    for _ in range(20):
        try:
            remove(folder)
        except OSError:  # the sweep wrote something meanwhile
            continue
        break
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, (out, err)
    assert "Traceback" not in out + err
    said = " ".join(err.split())
    assert said.count("was removed or unmounted while it was measured: start the sweep again") == 1, err
    assert "Error executing job" not in said  # by Hydra, of a job whose overrides are not the user's
    assert str(folder) in said
    assert not (folder / "comparison.json").exists()
