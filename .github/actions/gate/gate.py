"""Measure a sweep, compare it with a baseline, and show the changes on GitHub; action.yml runs it and sets GATE_*.

Exit codes: 0 passed, or on the default branch, which makes the baseline; 3 a change that GATE_FAIL_ON names; 1 anything else.
Needs Python's standard library only, and an interpreter with sweeprof (GATE_PYTHON).
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

CHANGED = 3
LONGEST_COMMENT = 65_000
"""Characters; GitHub takes 65,536."""
TIMEOUT_S = 60
SWEEPROF = [os.environ["GATE_PYTHON"], "-m", "sweeprof"]
NAME = os.environ["GATE_NAME"]
WORK = Path(os.environ["RUNNER_TEMP"]) / "sweeprof-gate" / NAME
REPOSITORY = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}"
MARKER = f"<!-- sweeprof gate: {NAME} -->"
"""Begins the comment, by which a later run finds it."""


def main() -> int:
    """Run the gate; return the exit code."""
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    pull_request = event.get("pull_request")
    default_branch = event["repository"]["default_branch"]
    folder = measured(Path.cwd(), "head")
    with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as outputs:
        outputs.write(f"folder={folder}\n")

    baseline = os.environ["GATE_BASELINE"]
    if baseline == "artifact":
        baseline = downloaded(default_branch)
    elif baseline.startswith("git:"):
        baseline = str(measured(checked_out(baseline.removeprefix("git:")), "base"))
    if not baseline:
        summarise(f"No baseline yet: no run on `{default_branch}` has left the artifact `{NAME}`.\n")
        return 0

    markdown, changes = WORK / "changes.md", WORK / "changes.json"
    command = [*SWEEPROF, "compare", baseline, str(folder), "--fail-on", os.environ["GATE_FAIL_ON"]]
    command += ["--markdown", str(markdown), "--json", str(changes), *lines("GATE_COMPARE")]
    code = subprocess.run(command, check=False).returncode
    if code not in (0, CHANGED):
        sys.exit(1)
    text = markdown.read_text(encoding="utf-8")
    summarise(text)
    if pull_request is not None and os.environ["GATE_COMMENT"] == "true":
        has_changes = bool(json.loads(changes.read_text(encoding="utf-8"))["changes"])
        comment(pull_request["number"], f"{MARKER}\n{text}"[:LONGEST_COMMENT], has_changes)
    if pull_request is None and os.environ["GITHUB_REF_NAME"] == default_branch:
        return 0  # what was merged is the next baseline
    return code


def lines(variable: str) -> list[str]:
    """Return the lines of a variable, without empty ones."""
    return [line.strip() for line in os.environ[variable].splitlines() if line.strip()]


def measured(place: Path, name: str) -> Path:
    """Measure the sweep in a folder, whose modules and configs it uses; return the folder of the sweep."""
    output = WORK / name
    command = [*SWEEPROF, *lines("GATE_SWEEP"), f"output={output}", "name=gate"]
    code = subprocess.run(command, cwd=place, check=False).returncode
    found = sorted((output / "gate").glob("*/comparison.json"))
    if code not in (0, 2) or not found:  # 2: some combinations failed, which the comparison lists
        print(f"::error::the sweep in {place} ended with exit code {code}")
        sys.exit(1)
    return found[-1].parent


def checked_out(ref: str) -> Path:
    """Return a work tree of a tag, branch or commit, which is fetched if the clone lacks it."""
    place = WORK / "tree"
    found = subprocess.run(
        ["git", "rev-parse", "--verify", f"{ref}^{{commit}}"], capture_output=True, text=True, check=False
    )
    commit = found.stdout.strip()
    if found.returncode:
        subprocess.run(["git", "fetch", "--depth=1", "origin", ref], check=True)
        commit = "FETCH_HEAD"
    subprocess.run(["git", "worktree", "add", "--force", "--detach", str(place), commit], check=True)
    return place


def downloaded(branch: str) -> str:
    """Return the comparison of the newest sweep of a branch, from its artifact; empty if there is none."""
    for artifact in requested("GET", f"/actions/artifacts?name={NAME}&per_page=100")["artifacts"]:
        run = artifact["workflow_run"]
        # A fork may have a branch of the same name.
        is_own = run["head_repository_id"] == run["repository_id"]
        if artifact["expired"] or run["head_branch"] != branch or not is_own:
            continue
        archive = zipfile.ZipFile(io.BytesIO(answer("GET", f"/actions/artifacts/{artifact['id']}/zip")))
        file = WORK / "baseline.json"
        file.write_bytes(archive.read("comparison.json"))
        return str(file)
    return ""


def comment(number: int, body: str, has_changes: bool) -> None:
    """Write the comment on a pull request if something changed, or bring the one that is there up to date."""
    try:
        page = 1
        while comments := requested("GET", f"/issues/{number}/comments?per_page=100&page={page}"):
            for one in comments:
                if one["body"].startswith(MARKER):
                    if one["body"].strip() != body.strip():
                        requested("PATCH", f"/issues/comments/{one['id']}", {"body": body})
                    return
            page += 1
        if has_changes:
            requested("POST", f"/issues/{number}/comments", {"body": body})
    except urllib.error.HTTPError as error:  # the token of a pull request from a fork may only read
        print(f"::warning::no comment was written: GitHub answered {error.code} {error.reason}")


def summarise(text: str) -> None:
    """Add a text to the summary of the job."""
    with Path(os.environ["GITHUB_STEP_SUMMARY"]).open("a", encoding="utf-8") as summary:
        summary.write(text)


def requested(method: str, path: str, data: object = None) -> Any:
    """Return the JSON that GitHub's API answers."""
    return json.loads(answer(method, path, data))


def answer(method: str, path: str, data: object = None) -> bytes:
    """Return what GitHub's API answers; ``path`` is below that of the repository."""
    body = None if data is None else json.dumps(data).encode()
    headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
    request = urllib.request.Request(f"{REPOSITORY}{path}", body, headers, method=method)
    # Not to the storage of artifacts, to which GitHub redirects.
    request.add_unredirected_header("Authorization", f"Bearer {os.environ['GATE_TOKEN']}")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        content: bytes = response.read()
    return content


if __name__ == "__main__":
    sys.exit(main())
