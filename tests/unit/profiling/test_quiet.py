"""A process is quiet when none of its other threads runs."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from sweeprof.measuring import timing
from sweeprof.measuring.timing import become_quiet


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "AT_MOST_S", 60.0)


def test_it_waits_for_a_thread_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    own, seen, look = str(threading.get_native_id()), list[bool](), timing._others_run
    worker = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"", b"", 500_000))  # without the lock
    worker.start()
    while not look(own):
        assert worker.is_alive()

    def noted(task: str) -> bool:
        seen.append(look(task))
        return seen[-1]

    monkeypatch.setattr(timing, "_others_run", noted)
    become_quiet()
    assert seen[0]
    assert not seen[-1]
    worker.join()


def test_it_does_not_wait_for_threads_that_wait() -> None:
    end = threading.Event()
    waiting = threading.Thread(target=end.wait)
    waiting.start()
    become_quiet()
    assert waiting.is_alive()
    end.set()
    waiting.join()


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_others_run", lambda own: True)
    monkeypatch.setattr(timing, "AT_MOST_S", 0.01)
    become_quiet()


def test_where_the_system_does_not_tell_nobody_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "TASKS", tmp_path / "absent")
    assert not timing._others_run("1")
    (tmp_path / "7").mkdir()
    monkeypatch.setattr(timing, "TASKS", tmp_path)
    assert not timing._others_run("1"), "it ended meanwhile"
    (tmp_path / "7" / "stat").write_text("7 (a) b (R) S 1 2")
    assert not timing._others_run("1")
    (tmp_path / "7" / "stat").write_text("7 (a) b (S) R 1 2")
    assert timing._others_run("1")
    assert not timing._others_run("7")
