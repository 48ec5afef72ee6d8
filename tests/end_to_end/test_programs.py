"""backend=command: programs that are measured from outside, and the numbers that they report."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.command import Command, Ran, values_of
from support.plans import read_records
from sweeprof.config.override_syntax import spelled

SHORT = (
    *("backend=command", "tracking=none", "protocol.warmup_steps=1", "protocol.warmup_s=0", "protocol.min_samples=3"),
    *("protocol.min_s=0", "protocol.rounds=1", "limits.timeout_s=60"),
)
ONCE = ("protocol.warmup_steps=0", "protocol.min_samples=1", "protocol.max_s=0.001")
"""One run in a round."""
SPIN = """
import json, os, pathlib, sys, time
end = time.process_time() + float(sys.argv[1])
while time.process_time() < end:
    sum(range(50_000))
ticks = float(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
since_boot = float(pathlib.Path("/proc/uptime").read_text().split()[0])
print(json.dumps({"wall": since_boot - ticks / os.sysconf("SC_CLK_TCK"), "processor": time.process_time()}))
"""
"""Reports how long its process has run by the kernel's clock, and its own processor time."""
ALLOCATE = """
import subprocess, sys, time
mine = bytearray(int(sys.argv[1]) << 20)
child = f"import time; its_own = bytearray({sys.argv[1]} << 20); time.sleep(0.4)"
subprocess.run([sys.executable, "-c", child])
"""


def program(folder: Path, code: str, *arguments: str) -> str:
    """Return the override of a command that runs Python code with arguments."""
    path = folder / "program.py"
    path.write_text(code)
    return f"backend.command={spelled([sys.executable, str(path), *arguments])}"


def by_axis(ran: Ran, axis: str) -> dict[object, dict[str, Any]]:
    """Return the values of the metrics by the value of an axis."""
    return {row["axes"][axis]: values_of(row) for row in ran.rows()}


@pytest.mark.slow
def test_a_program_is_timed_as_by_an_independent_clock(called: Command, tmp_path: Path) -> None:
    """Both clocks time the same runs, so that what else the machine does is in both."""
    reported = f"backend.metrics={spelled({name: {'json': name, 'unit': 's'} for name in ('wall', 'processor')})}"
    spinning = program(tmp_path, SPIN, "{args.s}")
    found = by_axis(called(*SHORT, "protocol.min_samples=5", spinning, reported, "args.s=0.1,0.3"), "args.s")
    for values in found.values():
        # The end of the interpreter is not in what it reports.
        assert values["command/time"] == pytest.approx(values["command/wall"], rel=0.3)
        # The kernel divides short times between user and system mode by ticks: only their sum is steady.
        processor = values["command/user_time"] + values["command/system_time"]
        assert processor == pytest.approx(values["command/processor"], rel=0.2)
        assert values["command/exit_code"] == 0
    assert found[0.3]["command/user_time"] > 2 * found[0.3]["command/system_time"]


@pytest.mark.thorough
def test_memory_is_that_of_all_processes_together(called: Command, tmp_path: Path) -> None:
    ran = called(*SHORT, program(tmp_path, ALLOCATE, "{args.mib}"), "args.mib=20,120")
    values = by_axis(ran, "args.mib")
    grown = float(str(values[120]["command/memory"])) - float(str(values[20]["command/memory"]))
    assert grown == pytest.approx(2 * 100 * 2**20, rel=0.1)


@pytest.mark.slow
def test_the_start_of_a_shell_is_subtracted(called: Command) -> None:
    ran = called(
        *SHORT,
        "protocol.min_samples=20",
        "backend.shell=true",
        "backend.command='{args.x}'",
        "args.x=:,sleep 0.1 | cat",
    )
    cells = {row["axes"]["args.x"]: row["cells"]["command/time"]["measurement"] for row in ran.rows()}
    detail = cells["sleep 0.1 | cat"]["detail"]
    subtracted = detail["subtracted for the shell"]
    assert subtracted > 0
    assert detail["min"] + subtracted >= 0.1
    nothing = cells[":"]
    if nothing["value"] is None:
        assert nothing["reason"].startswith("it took no longer than an empty shell (")
    else:  # of a busy machine; the fastest of the runs took no longer than the mean of an empty shell
        assert nothing["detail"]["min"] < nothing["detail"]["subtracted for the shell"] / 2


GIVEN = """
import json, os, pathlib, socket, sys
port, *words = sys.argv[1:]
socket.create_server(("127.0.0.1", int(port)))
made = pathlib.Path("made")
environment = [os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OWN")]
print(json.dumps([words, environment, sys.stdin.readlines(), made.exists()]))
made.unlink()
"""


@pytest.mark.slow
def test_what_a_program_is_given(called: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A free port; a list as several words and null as none; the user's environment and its own; what ran before."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    (tmp_path / "work").mkdir()
    (tmp_path / "input").write_text("one\ntwo\n")
    settings = {
        "cwd": f"{tmp_path}/work",
        "stdin": f"{tmp_path}/input",
        "before_run": ["touch", f"{tmp_path}/work/made"],
        "env": {"OWN": "{args.on} {{port}}"},
    }
    ran = called(
        *(*SHORT, *ONCE, program(tmp_path, GIVEN, "{port}", "{args.flags}", "{args.on}", "{{args.on}}")),
        *(f"backend.{name}={spelled(value)}" for name, value in settings.items()),
        *("args.flags=[a,b],null", "args.on=true"),
    )
    ran.rows()
    outputs = [json.loads(path.read_text()) for path in ran.folder("adhoc").rglob("artifacts/*/stdout.txt")]
    assert sorted(output[0] for output in outputs) == [["a", "b", "true", "{args.on}"], ["true", "{args.on}"]]
    for output in outputs:
        assert output[1:] == [["3", None, "true {port}"], ["one\n", "two\n"], True]


REPORT = """
import json, pathlib, sys
x = int(sys.argv[1])
print("a line of a log")
pathlib.Path("written.json").write_text(json.dumps({"runs": [{"rate": x}, {"rate": 7}]}))
print(json.dumps({"seconds": [x, x + 2], "word": "no", "negative": -x}))
print("loss = 0.25", file=sys.stderr)
"""
METRICS = {
    "seconds": {"json": "seconds", "unit": "s", "better": "lower"},
    "rate": {"json": "runs[0].rate", "from": "written.json", "unit": "token/s", "better": "higher"},
    "all_rates": {"json": "runs[].rate", "from": "written.json"},
    "loss": {"regex": "loss = ([0-9.]+)", "from": "stderr"},
    "negative": {"json": "negative"},
    "absent": {"json": "sekonds"},
    "word": {"json": "word"},
    "no_file": {"json": "x", "from": "nothing.json"},
    "stale": {"json": "x", "from": "stale.json"},
}


@pytest.mark.slow
def test_numbers_that_a_program_reports_and_why_they_are_missing(called: Command, tmp_path: Path) -> None:
    (tmp_path / "stale.json").write_text('{"x": 1}')
    os.utime(tmp_path / "stale.json", (1, 1))
    ran = called(
        *(*SHORT, *ONCE, f"backend.cwd={tmp_path}", program(tmp_path, REPORT, "{args.x}")),
        *("args.x=2,4", f"backend.metrics={spelled(METRICS)}", "compare.baseline={args.x: 2}", "protocol.rounds=2"),
    )
    rows = {row["axes"]["args.x"]: row for row in ran.rows()}
    for x, row in rows.items():
        values = values_of(row)
        assert values["command/seconds"] == pytest.approx(x + 1)
        assert values["command/rate"] == pytest.approx(x)
        assert values["command/all_rates"] == pytest.approx((x + 7) / 2)
        assert values["command/loss"] == pytest.approx(0.25)
        assert values["command/negative"] == -x
        measurements = {name: cell["measurement"] for name, cell in row["cells"].items()}
        assert measurements["command/seconds"]["detail"]["n"] == 2 * 2  # rounds, numbers of a run
        assert measurements["command/rate"]["unit"] == "token/s"
        missing = {name: found["reason"] for name, found in measurements.items() if found["value"] is None}
        assert missing == {
            "command/absent": "run 1: stdout has no sekonds: there is no 'sekonds', did you mean 'seconds'?",
            "command/word": "run 1: 'no' in stdout is not a finite number",
            "command/no_file": "run 1: the program wrote no file nothing.json",
            "command/stale": "run 1: the file stale.json is older than the run",
        }
    assert rows[4]["cells"]["command/rate"]["ratio"] == pytest.approx(2)
    said = set(ran.out.split())
    assert not {"none", "dataset", "batch_size"} & said, "nothing is said of models"


@pytest.mark.slow
def test_how_a_program_ends_is_the_status(called: Command, tmp_path: Path) -> None:
    code = """
import os, sys, time
print("the last words", file=sys.stderr, flush=True)
end = sys.argv[1]
if end == "signal":
    os.kill(os.getpid(), 11)
if end == "hangs":
    time.sleep(100)
sys.exit(int(end))
"""
    exits = ("backend.success=[0,3]", "backend.unsupported=[77]", "backend.timeout_s=1")
    ran = called(*SHORT, *ONCE, *exits, program(tmp_path, code, "{args.end}"), "args.end=0,3,4,77,signal,hangs")
    rows = json.loads((ran.folder("adhoc") / "comparison.json").read_text())["rows"]
    status = {str(row["axes"]["args.end"]): row["status"] for row in rows}
    assert status == {"0": "ok", "3": "ok", "4": "failed", "77": "unsupported", "signal": "failed", "hangs": "timeout"}
    reasons = {
        record.config["args"]["end"]: str(record.reason) for record in read_records(ran.folder("adhoc") / "records")
    }
    name = Path(sys.executable)
    assert reasons[4] == f"{name} exited with code 4: the last words"
    assert reasons["signal"] == f"{name} was killed by SIGSEGV: the last words"
    assert reasons["hangs"] == f"{name} took longer than backend.timeout_s=1: the last words"


@pytest.mark.slow
def test_a_program_that_fails_once_is_run_in_the_next_round(called: Command, tmp_path: Path) -> None:
    code = """
import pathlib, sys
tried = pathlib.Path(sys.argv[1])
if not tried.exists():
    tried.touch()
    sys.exit("by chance")
"""
    ran = called(*SHORT, *ONCE, "protocol.rounds=2", program(tmp_path, code, str(tmp_path / "tried")))
    (row,) = json.loads((ran.folder("adhoc") / "comparison.json").read_text())["rows"]
    assert (row["status"], row["rounds_complete"]) == ("failed", 1)
    assert values_of(row)["command/time"] > 0


SERVER = """
import http.server, os, pathlib, signal, sys, time
port, how, folder = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
print("started as", how, flush=True)
if how == "early":
    sys.exit(4)
if how == "never":
    time.sleep(100)
memory = bytearray((100 if how == "large" else 1) << 20)
memory[::4096] = b"x" * (len(memory) // 4096)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/exit":
            print("the last words", flush=True)
            os._exit(3)
        if self.path == "/grow":
            self.server.grown = b"x" * (100 << 20)
        if self.path == "/kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(os.getpid()).encode())

    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("127.0.0.1", port), Handler)
with (folder / "servers").open("a") as file:
    file.write(f"{how} {os.getpid()}\\n")
print("listening", flush=True)
server.serve_forever()
"""
CLIENT = """
import pathlib, sys, time, urllib.request
url, n, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
try:
    pid = urllib.request.urlopen(url).read().decode()
except OSError:
    time.sleep(100)
with (folder / "clients").open("a") as file:
    file.write(f"{n} {pid}\\n")
time.sleep(0.1)
"""


def with_server(folder: Path, ready: Mapping[str, object], path: str = "", **settings: object) -> list[str]:
    """Return the overrides of a client and its server, whose kind is ``args.how``."""
    (folder / "server.py").write_text(SERVER)
    server = ["{python}", f"{folder}/server.py", "{port}", "{args.how}", str(folder)]
    client = program(folder, CLIENT, "http://127.0.0.1:{port}/" + path, "{args.n}", str(folder))
    return [client, f"backend.server={spelled({'command': server, 'ready': ready, **settings})}"]


def lines_of(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_rows_share_a_server_whose_memory_and_log_are_kept(called: Command, tmp_path: Path) -> None:
    server = with_server(tmp_path, {"url": "http://127.0.0.1:{port}/"})
    axes = ("args.how=small,large", "args.n=1,2", "protocol.rounds=2", "protocol.min_samples=1")
    ran = called(*SHORT, *server, *axes, "compare.baseline={args.how: small}")
    rows = ran.rows()
    starts, requests = lines_of(tmp_path / "servers"), lines_of(tmp_path / "clients")
    # In each round each server is started once, unless the last row of the round before had the same one.
    assert 3 <= len(starts) <= 4
    for how, pid in starts:
        mine = [n for n, by in requests if by == pid]
        assert {*mine} == {"1", "2"}, f"the server {how} is not that of all its rows"
    served = [pid for _, pid in requests]
    assert list(dict.fromkeys(served)) == [pid for _, pid in starts]
    assert served == sorted(served, key=[pid for _, pid in starts].index), "two servers ran at the same time"
    memory = {row["axes"]["how" if "how" in row["axes"] else "args.how"]: values_of(row) for row in rows}
    grown = memory["large"]["command/server_memory"] - memory["small"]["command/server_memory"]
    assert grown == pytest.approx(99 * 2**20, rel=0.1)
    for row in rows:
        log = ran.folder("adhoc") / "artifacts" / row["combination_id"] / "server.txt"
        assert log.read_text() == f"started as {row['axes']['args.how']}\nlistening\n"


@pytest.mark.slow
def test_axes_of_a_server_that_its_settings_do_not_name(called: Command, tmp_path: Path) -> None:
    ready = {"log": "^listening$"}
    server = with_server(tmp_path, ready, per=["args.n"], env={"OWN": 1}, cwd=str(tmp_path))
    called(*SHORT, *server, "args.how=small", "args.n=1,2").rows()
    assert len(lines_of(tmp_path / "servers")) == 2


@pytest.mark.slow
def test_how_a_server_ends_is_the_reason(called: Command, tmp_path: Path) -> None:
    server = with_server(tmp_path, {"port": "{port}"}, "{args.path}", timeout_s=3)
    axes = ("args.how=small,early,never,large", "args.path=grow,ok,exit,kill", "args.n=1", "limits.memory=80MiB")
    exclude = "exclude=[{args.how: [early,never,large], args.path: [grow,exit,kill]}]"
    ran = called(*SHORT, *server, *axes, exclude)
    found = {}
    for record in read_records(ran.folder("adhoc") / "records"):
        end = record.config["args"]["how"].replace("small", record.config["args"]["path"])
        found[end] = record.status, str(record.reason).replace(sys.executable, "python")
    assert found["ok"][0] == "ok"
    assert found["exit"] == (
        "failed",
        "the server python exited with code 3: started as small\nlistening\nthe last words",
    )
    assert found["kill"] == ("failed", "the server python was killed by SIGKILL: started as small\nlistening")
    assert found["early"] == ("failed", "the server python exited with code 4: started as early")
    status, reason = found["never"]
    assert status == "timeout"
    assert reason.startswith("the server python was not ready after 3 s, port=")
    assert reason.endswith("Connection refused: started as never")
    for end, whose in (("grow", "its processes and its server"), ("large", "the server python")):
        status, reason = found[end]
        assert status == "oom"
        assert re.fullmatch(rf"{whose} used \d+ MiB of memory, more than limits.memory \(80 MiB\)", reason)


@pytest.mark.slow
def test_a_server_is_not_taken_for_another_program_at_its_address(called: Command, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = called(*SHORT, *with_server(tmp_path, {"port": port}), "args.how=small", "args.n=1")
    (record,) = read_records(ran.folder("adhoc") / "records")
    assert record.status == "failed"
    assert str(record.reason).startswith(f"something answers at port={port} before the server is started")


# The recipes of docs/programs.md

ROOT = Path(__file__).parents[2]
TRAIN = """
import json, time, torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
seconds = []
for _ in range(5):
    begin = time.perf_counter()
    model(torch.randn(8, 64)).sum().backward()
    seconds.append(time.perf_counter() - begin)
if dist.get_rank() == 0:
    print(json.dumps({"step": seconds, "processes": dist.get_world_size()}))
dist.destroy_process_group()
"""
FIRST_S, TOKEN_S = 0.1, 0.02
COMPLETIONS = f"""
import http.server, json, sys, time
port = int(sys.argv[sys.argv.index("--port") + 1])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (self.path, asked["model"], asked["stream"]) == ("/v1/completions", "my-model", True)
        self.send_response(200)
        self.end_headers()
        for token in range(asked["max_tokens"]):
            time.sleep({TOKEN_S} if token else {FIRST_S})
            self.wfile.write(b"data: " + json.dumps({{"choices": [{{"text": "x"}}]}}).encode() + b"\\n\\n")
        self.wfile.write(b'data: {{"choices": [{{"text": "", "finish_reason": "length"}}]}}\\n\\ndata: [DONE]\\n\\n')

http.server.ThreadingHTTPServer(("localhost", port), Handler).serve_forever()
"""


def recipe(word: str) -> list[str]:
    """Return the arguments of the command of docs/programs.md that has a word."""
    text = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
        lines = re.split(r"^python -m sweeprof ", block.replace("\\\n", ""), flags=re.M)
        found += [shlex.split(line) for line in lines if word in line]
    (arguments,) = found
    return arguments


@pytest.mark.thorough
def test_recipe_two_scripts(called: Command, tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("import time; time.sleep(0.4)")
    (tmp_path / "new.py").write_text("")
    ran = called(*recipe("old.py,new.py"), *SHORT)
    assert by_axis(ran, "args.script").keys() == {"old.py", "new.py"}
    assert "new.py" in ran.out.splitlines()[0]


@pytest.mark.thorough
def test_recipe_benchmark_app(called: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ov = pytest.importorskip("openvino")
    parameter = ov.opset13.parameter([1, 64], ov.Type.f32, name="x")
    ov.save_model(ov.Model([ov.opset13.relu(parameter)], [parameter], "net"), tmp_path / "model.xml")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    ran = called(*recipe("benchmark_app"), *SHORT, *ONCE)
    for values in by_axis(ran, "args.streams").values():
        assert values["command/throughput"] > 100


@pytest.mark.thorough
def test_recipe_torchrun(called: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    ran = called(*recipe("torch.distributed.run"), *SHORT, *ONCE, "limits.timeout_s=200")
    for values in by_axis(ran, "args.processes").values():
        assert 0 < values["command/step"] < values["command/time"]
    outputs = [path.read_text() for path in ran.folder("adhoc").rglob("artifacts/*/stdout.txt")]
    assert {json.loads(text.splitlines()[-1])["processes"] for text in outputs} == {1, 2}


@pytest.mark.thorough
def test_recipe_load_test(called: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "load_test.py").write_text((ROOT / "examples" / "load_test.py").read_text(encoding="utf-8"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "transformers").write_text(f"#!{sys.executable}\n{COMPLETIONS}")
    (tmp_path / "bin" / "transformers").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    found = by_axis(called(*recipe("load_test.py"), *SHORT, *ONCE), "args.users")
    for values in found.values():
        assert FIRST_S <= values["command/first_token"] < 3 * FIRST_S
        assert TOKEN_S <= values["command/per_token"] < 3 * TOKEN_S
    # Four users have four times the tokens and the good requests, as far as the processors allow.
    assert 2 < found[4]["command/tokens"] / found[1]["command/tokens"] < 6
    assert found[4]["command/tokens"] / found[4]["command/good"] == pytest.approx(16)
