"""Trials, drivers and disks that end badly, for real: each becomes a row or a line, the others go on, nothing is left running."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from support.command import FAKE, NOTING, Command, folder_of, running_command, wait_for

pytestmark = pytest.mark.usefixtures("no_process_is_left")

PAIRED = (*FAKE, "compare.baseline={batch_size: 1}")


def table(folder: Path, index: str) -> pd.DataFrame:
    return pd.read_csv(folder / "comparison.csv", keep_default_na=False, na_values=[""]).set_index(index)


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
        *(*FAKE, "protocol=quick", "metrics=latency"),
        *("model.fake._target_=harmful.model", "~model.fake.step_s", f"+model.fake.harm={','.join(HARMS)}"),
        *("limits.timeout_s=4", "compare.baseline={}"),
    )
    assert ran.code == 2
    assert "Traceback" not in ran.out + ran.err
    folder = ran.folder("adhoc")
    rows = table(folder, "model.fake.harm")
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


def events(cwd: Path) -> list[dict[str, str]]:
    """What the event logs of the only sweep say last."""
    logs = [path.read_text().splitlines() for path in cwd.glob("outputs/*/*/events/*.jsonl")]
    return [json.loads(lines[-1]) for lines in logs if lines and lines[-1].endswith("}")]


def hangs(cwd: Path) -> bool:
    """Whether the other combination is measured, and this one has begun to hang."""
    is_timed = any((event["event"], event["pass"]) == ("begin", "timing") for event in events(cwd))
    return is_timed and any(cwd.glob("outputs/*/*/records/*/*.json"))


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "noting.py").write_text(NOTING)
    arguments = ("model.fake.on_step=null,hang", "name=stopped", "tracking._target_=noting.Noting")
    with running_command(tmp_path, *PAIRED, *arguments) as process:
        wait_for(lambda: hangs(tmp_path), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    folder = folder_of(tmp_path, "stopped")
    records = [json.loads(path.read_text()) for path in folder.glob("records/*/*.json")]
    assert records
    assert {r["status"] for r in records} == {"ok"}
    assert "interrupted before it was measured" in " ".join(table(folder, "model")["reason"].dropna())
    assert json.loads((folder / "noted.json").read_text()) == [None, "interrupted"]
    assert (folder / "report.html").is_file()
    assert "Traceback" not in out + err


@pytest.mark.slow(rows=1)
def test_a_folder_that_is_removed_is_one_message(tmp_path: Path) -> None:
    with running_command(tmp_path, *FAKE, "metrics=latency", "batch_size=range(1,60)", "name=gone") as process:
        record = wait_for(lambda: next(tmp_path.glob("outputs/gone/*/records/*/*.json"), None), process)
        assert record is not None
        folder = record.parents[2]
        for _ in range(20):
            try:
                shutil.rmtree(folder.parent)
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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A disk of its own below the working directory, mounted with the size that is asked for, and changed by asking again."""
    place = tmp_path / "outputs"
    place.mkdir()
    options = ["-t", "tmpfs", "tmpfs", str(place), "-o"]

    def sized(size: str) -> Path:
        remount = "remount," if place.is_mount() else ""
        done = subprocess.run(["mount", *options, f"{remount}size={size}"], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        return place

    yield sized
    if place.is_mount():
        subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> None:
    """Leave no room at all."""
    with suppress(OSError), (place / "filler").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk")


@only_root
@pytest.mark.slow
def test_a_full_disk_is_one_line_and_loses_nothing(sweeprof: Command, disk: Callable[[str], Path]) -> None:
    place = disk("256k")
    ran = sweeprof(*PAIRED, "batch_size=1,2,3,4,5,6,7,8")
    assert ran.code == 2, ran.out
    (folder,) = (place / "adhoc").iterdir()
    full = [line for line in ran.err.splitlines() if "is full" in line]
    assert full == [f"the disk of {folder} is full: make room, then resume with: python -m sweeprof resume={folder}"]
    assert "Traceback" not in ran.out + ran.err
    kept = sorted(folder.glob("records/*/*.json"))
    assert 0 < len(kept) < 32
    assert {json.loads(path.read_text())["status"] for path in kept} == {"ok"}
    assert list(folder.rglob("*.tmp")) == []
    before = {path: path.stat().st_mtime for path in kept}

    fill(place)
    still = sweeprof(f"resume={folder}")
    assert (still.code, "Traceback" in still.err) == (2, False), still.err
    assert "is full: make room, then resume with" in still.err

    disk("64m")
    on = sweeprof(f"resume={folder}")
    assert on.code == 0, on.err
    assert {path: path.stat().st_mtime for path in kept} == before
    assert list(pd.read_csv(folder / "comparison.csv")["status"]) == ["ok"] * 8


@only_root
@pytest.mark.slow
def test_a_disk_that_is_full_from_the_start(sweeprof: Command, disk: Callable[[str], Path]) -> None:
    (disk("16k") / "filler").write_bytes(b"x" * (12 << 10))
    ran = sweeprof(*PAIRED)
    assert ran.code in (1, 2)
    assert "Traceback" not in ran.out + ran.err
    assert "full" in ran.err or "No space left" in ran.err
