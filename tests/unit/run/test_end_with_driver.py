"""Processes that a launcher started end with the driver, also where it was killed before they began."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sweeprof.results.files import write_json

PROGRAM = "import sys; from pathlib import Path; from sweeprof.run.locks import end_with_driver; end_with_driver(Path(sys.argv[1]))"


@pytest.mark.parametrize(("is_same_session", "code"), [(True, 70), (False, 0)])
def test_a_process_begins_no_work_for_a_driver_of_its_session_that_is_dead(
    tmp_path: Path, is_same_session: bool, code: int
) -> None:
    driver = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet waited for by whoever started it
    told = {"pid": driver.pid, "host": socket.gethostname(), "user": None, "token": "x", "gpus": None}
    write_json(tmp_path / "driver.json", {**told, "session": os.getsid(0)})
    worker = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    assert subprocess.run(worker, start_new_session=not is_same_session, check=False).returncode == code
    driver.wait()
