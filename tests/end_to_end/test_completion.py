"""The command completed by real shells: what a user sees who presses Tab."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import sys
import time
from pathlib import Path

import pytest

from support.command import Command, environment
from sweeprof.paths import conf_folder

LIMIT_S = 60
MODELS = sorted(file.stem for file in (conf_folder() / "model").glob("*.yaml"))
SHELLS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}


class Shell:
    """An interactive shell on a terminal of its own."""

    def __init__(self, name: str, cwd: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = {**environment(cwd), "PATH": path, "TERM": "dumb", "COLUMNS": "200", "SHELL_SESSIONS_DISABLE": "1"}
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe(SHELLS[name][0], SHELLS[name], variables)

    def close(self) -> None:
        os.close(self.terminal)
        os.waitpid(self.pid, 0)

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def read(self, pattern: str) -> str:
        """What the shell writes, up to what matches ``pattern``."""
        seen, end = "", time.monotonic() + LIMIT_S
        while not re.search(pattern, seen) and time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.1)[0]:
                seen += os.read(self.terminal, 65536).decode(errors="replace")
        assert re.search(pattern, seen), seen
        return seen


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("model=lenet5,m", ["model=lenet5,mlp"]),
        ("backend=torch,tensorflow_", ["backend=torch,tensorflow_eager", "backend=torch,tensorflow_xla"]),
        ("device=cpu,", ["device=cpu,cuda"]),
        ("--config-dir mine model=ow", ["model=owned"]),
        ("+sweep=quick", ["+sweep=quickstart"]),
        ("backend.precision=f", [f"backend.precision={name}" for name in ("fp32", "fp16", "fp8")]),
        ("resume=", ["resume=last", "resume=nightly/last"]),
        ("sync last --ou", ["--output"]),
        ("protocol.roun", ["protocol.rounds="]),
        ("model=lenet6,x model=", [f"model={name}" for name in MODELS]),
    ],
)
def test_every_fixed_choice_is_offered(
    called: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, offered: list[str]
) -> None:
    for file in ("mine/model/owned.yaml", "outputs/nightly/2026-11-20_02-00-00Z/plan.json"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    monkeypatch.setenv("COMP_LINE", f"sweeprof {typed}")
    ran = called("-sc", "query=bash")
    assert (ran.code, ran.out.split()) == (0, offered)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_tab_completes_the_command(tmp_path: Path, name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: make {name}")
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "owned.yaml").write_text("torch: {_target_: my_package.Net}\n")
    shell = Shell(name, tmp_path)
    try:
        shell.type(f'eval "$(python -m sweeprof -sc install={name})"; echo re""ady\n')
        shell.read(r"\nready")
        for typed, completed in (
            ("python -m sweeprof dataset=synth", "synthetic"),
            ("sweeprof protocol.roun", r"protocol\.rounds="),
            ("sweeprof coll", "collect"),
            ("python -m sweeprof --config-dir mine batch_size=8 model=ow", "owned"),
            ("sweeprof model=lenet5,ml", "model=lenet5,mlp"),
        ):
            shell.type(f"{typed}\t")
            shell.read(f"{completed}")
            shell.type("\x15")  # clear the line
    finally:
        shell.close()
