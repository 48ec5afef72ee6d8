"""What the command that opens MLflow says where there is nothing to open."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.command import subcommand
from support.servers import free_port
from sweeprof.results.files import write_json
from sweeprof.tracking.connection import LOGIN, is_healthy
from sweeprof.tracking.viewer import TokenGuard, with_token

main = subcommand("ui")

Capture = pytest.CaptureFixture[str]
GOLDEN = Path(__file__).parents[2] / "golden" / "sweep-v2"
MLFLOW = "sweeprof.tracking.mlflow.MlflowTracker"


Said = Callable[..., tuple[int, str]]


@pytest.fixture
def said(capsys: Capture) -> Said:
    """Runs the command; returns its exit code and error."""

    def run(*words: object) -> tuple[int, str]:
        code = main([*map(str, words)])
        out, err = capsys.readouterr()
        assert out == ""
        return code, err.removesuffix("\n")

    return run


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """The folder of a finished sweep that was sent nowhere."""
    folder = tmp_path / "outputs" / "golden" / "2026-11-21_22-50-17Z"
    shutil.copytree(GOLDEN, folder)
    return folder


def sent(sweep: Path, uri: str | None, complete: bool = True, target: str | None = MLFLOW) -> None:
    write_json(sweep / "tracking.json", {"config": {"_target_": target, "uri": uri}, "complete": complete})


def test_a_sweep_that_was_not_tracked_names_the_command_that_sends_it(sweep: Path, said: Said) -> None:
    expected = f"error: DIR: '{sweep}' was not sent to MLflow; to send it: sweeprof sync {sweep}"
    assert said(sweep) == (1, expected)
    sent(sweep, None, target=None)
    assert said(sweep) == (1, expected)


def test_without_a_folder_the_newest_sweep_that_was_sent_is_chosen(sweep: Path, said: Said) -> None:
    older = sweep.with_name("2026-11-20_10-00-00Z")
    shutil.copytree(sweep, older)
    sent(older, None)
    code, err = said("--output", sweep.parents[1])
    chosen, error = err.splitlines()
    assert code == 1
    reason = f"the newest sweep, {sweep}, was not sent to MLflow (to send it: sweeprof sync {sweep})"
    assert chosen == f"Showing {older}: {reason}"
    assert error.endswith(f"to send it: sweeprof sync {older}")  # its database is gone
    unsent = f"error: DIR: '{sweep}' was not sent to MLflow; to send it: sweeprof sync {sweep}"
    assert said("last", "--output", sweep.parents[1]) == (1, unsent)


def test_a_database_that_is_gone_is_named(sweep: Path, said: Said) -> None:
    sent(sweep, None)
    code, err = said(sweep)
    assert code == 1
    assert err.startswith(f"error: DIR: 'sqlite:///{sweep.parents[1]}/mlflow.db' does not exist; to send it: ")


def test_a_password_that_is_not_kept_is_asked_for(sweep: Path, said: Said) -> None:
    sent(sweep, "postgresql://***@db.example/sweeps", complete=False)
    code, err = said(sweep)
    assert code == 1
    assert "had a password, which is not stored; set MLFLOW_TRACKING_URI" in err


def test_a_silent_server_is_named_without_password(sweep: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    sent(sweep, f"http://***@127.0.0.1:{port}", complete=False)
    code, err = said(sweep)
    assert code == 2
    assert err == f"error: MLflow at http://127.0.0.1:{port} gave no answer: [Errno 111] Connection refused"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://ann:pa55word@127.0.0.1:{port}")
    code, err = said(sweep)
    assert code == 2
    assert "pa55word" not in err


def test_a_refusing_database_is_named_without_password(
    sweep: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg")
    sent(sweep, "postgresql://***@127.0.0.1:1/sweeps", complete=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://ann:pa55word@127.0.0.1:1/sweeps")
    code, err = said(sweep)
    assert code == 1
    assert err.startswith("error: DIR: 'postgresql://127.0.0.1:1/sweeps' refuses the connection: connection failed: ")
    assert "pa55word" not in err


@pytest.mark.parametrize(
    ("uri", "package", "extra"),
    [("sqlite:///{sweep}/mlflow.db", "mlflow", "mlflow"), ("postgresql://h/sweeps", "psycopg", "postgresql")],
)
def test_a_missing_package_is_named_with_what_installs_it(
    sweep: Path, said: Said, monkeypatch: pytest.MonkeyPatch, uri: str, package: str, extra: str
) -> None:
    (sweep / "mlflow.db").touch()
    monkeypatch.setattr("sweeprof.cli.ui.find_spec", lambda name: None if name == package else object())
    sent(sweep, uri.format(sweep=sweep))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(sweep=sweep))
    code, err = said(sweep, "--port", "0")
    assert code == 1
    assert err.endswith(f"needs {package}, which is not installed: pip install 'sweeprof[{extra}]'.")


def test_a_port_that_cannot_be_used(sweep: Path, said: Said, login: str) -> None:
    (sweep.parents[1] / "mlflow.db").touch()
    sent(sweep, None)
    allowed = "error: --port: 70000 is not a port that you may use: 1024 to 65535, or 0 for any free port."
    assert said(sweep, "--port", "70000") == (1, allowed)
    with answering(404) as server:
        code, err = said(sweep, "--port", server.server_port)
        assert code == 1
        assert err.startswith(f"error: --port: {server.server_port} is taken: another program listens there")
        assert server.logins == []  # the login is not for whoever listens on this machine
        assert is_healthy(server.address.replace("//", "//ann:pa55word@"))
        assert server.logins_for_health == [None]


def test_a_server_that_wants_a_password_gets_it_from_the_address_or_the_environment(
    sweep: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(401) as server:
        sent(sweep, server.address)
        expected = f"error: MLflow at {server.address} gave no answer: 401 Unauthorized; {LOGIN}"
        assert said(sweep) == (2, expected)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address.replace("//", "//ann:pa%2Fss@"))
        assert said(sweep) == (2, expected)
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "bob")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "word")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{server.address}/")
        assert said(sweep) == (2, expected)
        assert server.logins == [None, "Basic YW5uOnBhL3Nz", "Basic Ym9iOndvcmQ="]


def test_a_server_of_the_folder_gets_no_login(
    sweep: Path, said: Said, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with answering(401) as server:
        sent(sweep, server.address)
        code, err = said(sweep)
        assert (code, server.logins) == (2, [None])
        assert err.endswith(
            f"your login was not sent, as only the sweep's folder names this server; "
            f"to send it, set MLFLOW_TRACKING_URI={server.address})"
        )
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
        assert said(sweep)[0] == 2
        assert server.logins == [None, login]


def test_another_server_gets_no_password(sweep: Path, said: Said, login: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering() as other, answering(302, location=f"http://localhost:{other.server_port}/") as server:
        sent(sweep, server.address)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
        code, err = said(sweep)
        assert (code, err.partition(";")[0]) == (2, f"error: MLflow does not have {sweep}")
        assert set(server.logins) == {login}
        assert set(other.logins_for_health) == {None}


def test_the_table_is_opened_in_a_graphical_session_unless_only_the_folder_names_the_server(
    sweep: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("sweeprof.cli.ui.webbrowser.open", opened.append)
    monkeypatch.setattr("sweeprof.cli.ui.sys.platform", "linux")
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    found = {"experiments": [{"experiment_id": "7"}], "runs": [{"info": {"run_id": "r1"}}]}
    with answering(content=found) as server:
        address = server.address
        sent(sweep, address)
        with monkeypatch.context() as named:
            named.setenv("MLFLOW_TRACKING_URI", address)
            assert main([str(sweep)]) == 0
        monkeypatch.setenv("DISPLAY", ":0")
        assert main([str(sweep)]) == 0
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert main([str(sweep), "--no-browser"]) == 0
        assert opened == []
        capsys.readouterr()
        assert main([str(sweep)]) == 0
    pages = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert opened == [pages["Table"]]
    assert list(pages) == ["Table", "Charts", "Sweep", "Report"]
    assert pages["Sweep"] == f"{address}/#/experiments/7/runs/r1?workflowType=machine_learning"
    assert all(page.startswith(address) and "workflowType=machine_learning" in page for page in pages.values())


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> str:
    """The header of the user whom the environment names."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "bob")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "word")
    return "Basic Ym9iOndvcmQ="


class Server(ThreadingHTTPServer):
    """A program that is healthy and gives one answer to every question; it notes the logins that it is sent."""

    def __init__(self, status: int, content: object, location: str | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.content, self.location = status, json.dumps(content).encode(), location
        self.logins: list[str | None] = []
        self.logins_for_health: list[str | None] = []
        self.address = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.logins_for_health.append(self.headers["Authorization"])
        self.answer(200)

    def do_POST(self) -> None:
        self.server.logins.append(self.headers["Authorization"])
        self.answer(self.server.status)

    def answer(self, status: int) -> None:
        self.send_response(status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()
        self.wfile.write(self.server.content)


@contextmanager
def answering(status: int = 200, content: object = None, location: str | None = None) -> Iterator[Server]:
    with Server(status, content or {}, location) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


TOKEN = "0123456789abcdef"
COOKIE = f"sweeprof-ui-5000={TOKEN}"
Sent = list[dict[str, Any]]


def asked(path: str, method: str = "GET", kind: str = "http", query: str = "", **headers: str) -> Sent:
    """The messages that answer a request; of one that is passed on, ``{"passed": True}``."""
    sent: Sent = []

    async def behind(*_: object) -> None:
        sent.append({"passed": True})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "server": ("127.0.0.1", 5000),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
    }
    asyncio.run(TokenGuard(behind, TOKEN)(scope, None, send))  # type: ignore[arg-type]
    return sent


def basic(user: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:'.encode()).decode()}"


@pytest.mark.parametrize(("path", "method"), [("/", "GET"), ("/health", "POST"), ("//health", "GET"), ("/x", "HEAD")])
def test_a_request_without_the_token_is_refused(path: str, method: str) -> None:
    wrong = TOKEN[:-1] + "0"
    for headers in (
        *[{}, {"cookie": f"sweeprof-ui-5000={wrong}"}, {"cookie": f"sweeprof-ui-5001={TOKEN}"}, {"cookie": "\xff=;;="}],
        *[{"authorization": basic(wrong)}, {"authorization": "Basic %"}, {"authorization": f"Bearer {TOKEN}"}],
    ):
        start, body = asked(path, method, query=f"token={wrong}&x=%ff", **headers)
        assert start["status"] == 403
        assert TOKEN.encode() not in body["body"]
    assert asked("/get-artifact", query=f"token={TOKEN}")[0]["status"] == 403  # not the page of the printed address


def test_what_has_the_token_is_passed_on() -> None:
    for headers in ({"cookie": f"a b=c; \xe9; {COOKIE}"}, {"authorization": basic(TOKEN)}):
        assert asked("/api/2.0/mlflow/experiments/search", "POST", **headers) == [{"passed": True}]
        assert asked("/", kind="websocket", **headers) == [{"passed": True}]
    assert asked("/health") == [{"passed": True}]
    assert asked("/", kind="websocket") == [{"type": "websocket.close", "code": 1008}]


def test_the_address_with_the_token_gives_a_cookie_and_keeps_the_page() -> None:
    page = "http://127.0.0.1:5000/#/experiments/1?a=b"
    assert with_token(page, "T") == "http://127.0.0.1:5000/?token=T#/experiments/1?a=b"
    start, _ = asked("/", query=f"token={TOKEN}")
    headers = dict(start["headers"])
    assert (start["status"], headers[b"location"]) == (303, b"/")
    assert headers[b"set-cookie"].decode().split("; ") == [COOKIE, "Path=/", "HttpOnly", "SameSite=Lax"]
