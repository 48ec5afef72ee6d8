"""The GitHub Action `gate`: its script on a repository made here, with a local server in the place of GitHub's API."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command import environment, lock_folder

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "gate"
RECIPE = ROOT / "docs" / "recipes" / "gate.yml"
SWEEP = ("--config-dir", "conf", "model=mine", "backend=fake", "dataset=synthetic", "metrics=latency", "tracking=none")
QUICKLY = ("protocol.rounds=3", "protocol.min_s=0", "protocol.warmup_s=0", "isolation=inline")
COMMENTS = "/repos/me/nets/issues/7/comments"
TOKEN = "secret-of-the-job"


def test_the_action_has_only_keys_that_github_documents() -> None:
    """actionlint does not read the metadata of actions; the keys are those of GitHub's "Metadata syntax reference"."""
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    assert set(action) == {"name", "description", "inputs", "outputs", "runs"}
    for one in action["inputs"].values():
        assert set(one) <= {"description", "required", "default"}
        assert ("default" in one) is not one.get("required", False)
    assert all(set(one) == {"description", "value"} for one in action["outputs"].values())
    assert set(action["runs"]) == {"using", "steps"}
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert set(step) <= {"id", "name", "if", "run", "shell", "env", "uses", "with", "working-directory"}
        assert ("run" in step) is ("shell" in step) is ("uses" not in step)
    text = (ACTION / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(action["inputs"])
    # Every variable that the script reads is set, and nothing else.
    script = set(re.findall(r"GATE_\w+", (ACTION / "gate.py").read_text(encoding="utf-8"))) - {"GATE_"}
    assert script | {"GATE_SCRIPT"} == set(action["runs"]["steps"][0]["env"])
    for step in action["runs"]["steps"]:  # an input in a script would be run as a part of it
        assert "${{" not in step.get("run", "")


def test_the_recipe_and_the_inputs_that_it_sets_are_valid(tmp_path: Path) -> None:
    """actionlint checks the inputs of an action of the same repository."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    shutil.copytree(ACTION, tmp_path / ".github" / "actions" / "gate")
    workflow = tmp_path / ".github" / "workflows" / "gate.yml"
    workflow.parent.mkdir()
    text = RECIPE.read_text(encoding="utf-8")
    local = text.replace("OWNER/sweeprof/.github/actions/gate@v1", "./.github/actions/gate")
    assert local != text
    lint = [str(Path(sys.executable).with_name("actionlint"))]
    for content, complaint in ((local, ""), (local.replace("sweep: |", "swep: |"), 'input "swep" is not defined')):
        workflow.write_text(content)
        done = subprocess.run(lint, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is (complaint == "")
        assert complaint in done.stdout


@dataclass
class GitHub:
    """What the server has, and what it was asked."""

    comments: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    archive: bytes = b""
    is_read_only: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)
    storage_saw: list[str | None] = field(default_factory=list)
    """The header with the token in requests to the storage of artifacts."""
    port: int = 0


@pytest.fixture
def github() -> Iterator[GitHub]:
    state = GitHub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def respond(self, code: int, content: object, location: str | None = None) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(code)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            state.requests.append(("GET", path))
            if path == "/storage":
                state.storage_saw.append(self.headers["Authorization"])
                self.respond(200, state.archive)
                return
            assert self.headers["Authorization"] == f"Bearer {TOKEN}"
            if path == COMMENTS:
                page = int(query.rpartition("page=")[2])
                self.respond(200, state.comments[100 * (page - 1) : 100 * page])
            elif path == "/repos/me/nets/actions/artifacts":
                self.respond(200, {"artifacts": state.artifacts})
            elif path == "/repos/me/nets/actions/artifacts/3/zip":
                self.respond(302, b"", f"http://127.0.0.1:{state.port}/storage")
            else:
                self.respond(404, {})

        def change(self) -> None:
            state.requests.append((self.command, self.path))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]
            if state.is_read_only:
                self.respond(403, {"message": "Resource not accessible by integration"})
            elif self.command == "POST" and self.path == COMMENTS:
                state.comments.append({"id": 1000 + len(state.comments), "body": body})
                self.respond(201, {})
            else:
                id = int(self.path.rpartition("/")[2])
                (one,) = [one for one in state.comments if one["id"] == id]
                one["body"] = body
                self.respond(200, {})

        do_POST = do_PATCH = change  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clone whose model takes 1 ms at the tag v1, and 2 ms now; the clone lacks the tag."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    set_time(origin, 0.001)
    git(origin, "tag", "v1")
    set_time(origin, 0.002)
    subprocess.run(["git", "clone", "-q", "--no-tags", "--depth=1", origin.as_uri(), str(clone)], check=True)
    return clone


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def set_time(folder: Path, step_s: float) -> None:
    model = folder / "conf" / "model" / "mine.yaml"
    model.parent.mkdir(parents=True, exist_ok=True)
    model.write_text(f"fake: {{_target_: sweeprof.backends.fake.FakeModel, step_s: {step_s}}}\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", f"{step_s} s")


def run_gate(
    repository: Path, github: GitHub, baseline: str, event: str = "pull_request"
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the step of the action as a runner does; return the process and the summary of the job."""
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    step = action["runs"]["steps"][0]
    temporary = repository.parent / "temporary"
    shutil.rmtree(temporary, ignore_errors=True)  # as a runner does between jobs
    temporary.mkdir()
    payload: dict[str, Any] = {"repository": {"default_branch": "main"}}
    if event == "pull_request":
        payload["pull_request"] = {"number": 7}
    (temporary / "event.json").write_text(json.dumps(payload))
    locks = f"limits.locks={lock_folder(repository)}"
    given = {
        "sweep": "\n".join((*SWEEP, *QUICKLY, locks)),
        "baseline": baseline,
        "python": sys.executable,
        "token": TOKEN,
    }
    variables = {"GATE_SCRIPT": str(ACTION / "gate.py")}
    for name, expression in step["env"].items():
        key = re.search(r"inputs\.([\w-]+)", expression)
        if key is not None:
            variables[name] = given.get(key[1], action["inputs"][key[1]].get("default", ""))
    variables |= {
        "GITHUB_API_URL": f"http://127.0.0.1:{github.port}",
        "GITHUB_EVENT_PATH": str(temporary / "event.json"),
        "GITHUB_OUTPUT": str(temporary / "output"),
        "GITHUB_REF_NAME": "main" if event == "push" else "7/merge",
        "GITHUB_REPOSITORY": "me/nets",
        "GITHUB_STEP_SUMMARY": str(temporary / "summary.md"),
        "RUNNER_TEMP": str(temporary),
    }
    script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(
        script,
        cwd=repository,
        env={**environment(repository), **variables},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    summary = temporary / "summary.md"
    return done, summary.read_text(encoding="utf-8") if summary.exists() else done.stdout + done.stderr


@pytest.mark.slow
def test_a_change_since_a_tag_of_git_is_one_comment_that_is_kept_up_to_date(repository: Path, github: GitHub) -> None:
    github.comments += [{"id": n, "body": "looks good"} for n in range(100)]  # the gate's is on a further page
    done, summary = run_gate(repository, github, "git:v1")
    assert done.returncode == 3, done.stdout + done.stderr
    assert summary.startswith("### FAILED (exit 3): ")
    assert "latency" in summary.splitlines()[0]
    assert "100%" in summary.splitlines()[0]
    comment = github.comments[-1]
    assert comment["body"].startswith("<!-- sweeprof gate: sweeprof-gate -->\n### FAILED")
    set_time(repository, 0.001)
    done, summary = run_gate(repository, github, "git:v1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary.startswith("### PASSED: no change worse or missing.")
    assert comment["body"].endswith(summary.rstrip() + "\n")
    assert len(github.comments) == 101


@pytest.mark.thorough
def test_what_did_not_change_is_not_commented_and_a_read_only_token_is_a_warning(
    repository: Path, github: GitHub
) -> None:
    done, _ = run_gate(repository, github, "git:HEAD")
    assert done.returncode == 0, done.stdout + done.stderr
    assert github.comments == []
    github.is_read_only = True
    done, summary = run_gate(repository, github, "git:v1")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "::warning::no comment was written: GitHub answered 403" in done.stdout
    assert summary.startswith("### FAILED")


@pytest.mark.thorough
def test_the_last_sweep_of_the_default_branch_is_the_baseline(repository: Path, github: GitHub) -> None:
    done, summary = run_gate(repository, github, "artifact", "push")
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary == "No baseline yet: no run on `main` has left the artifact `sweeprof-gate`.\n"
    output = (repository.parent / "temporary" / "output").read_text()
    folder = Path(output.removeprefix("folder=").strip())
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:  # as actions/upload-artifact packs the file
        file.write(folder / "comparison.json", "comparison.json")
    github.archive = archive.getvalue()
    own = {"head_branch": "main", "repository_id": 1, "head_repository_id": 1}
    github.artifacts = [
        {"id": 1, "expired": False, "workflow_run": {**own, "head_repository_id": 2}},  # of a fork
        {"id": 2, "expired": True, "workflow_run": own},
        {"id": 4, "expired": False, "workflow_run": {**own, "head_branch": "feature"}},
        {"id": 3, "expired": False, "workflow_run": own},
    ]
    set_time(repository, 0.003)
    done, summary = run_gate(repository, github, "artifact")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "50%" in summary.splitlines()[0]
    assert github.storage_saw == [None]
    assert len(github.comments) == 1
    done, summary = run_gate(repository, github, "artifact", "push")  # what was merged is the next baseline
    assert done.returncode == 0
    assert summary.startswith("### FAILED")


@pytest.mark.slow
def test_a_mistake_of_the_sweep_fails_with_exit_code_1(repository: Path, github: GitHub) -> None:
    (repository / "conf" / "model" / "mine.yaml").write_text("fake: {_target_: sweeprof.backends.fake.FakeModl}\n")
    done, _ = run_gate(repository, github, "git:v1")
    assert done.returncode == 1
    assert "::error::the sweep in " in done.stdout
    assert github.requests == []
