"""What a server is started with, without starting one."""

from __future__ import annotations

import fnmatch
import socket
from pathlib import Path

import pytest

from sweeprof.tracking.server_settings import artifacts_of, free_port, mistakes_of, obstacles_of, store_of
from sweeprof.tracking.serving import Serving

SECRET = "pa55word"
POSTGRESQL = f"postgresql://ann:{SECRET}@db.example/sweeps"


def option(serving: Serving, name: str) -> list[str]:
    """The values of an option of the command; none where it is not given."""
    words = serving.command()
    return words[words.index(name) + 1].split(",") if name in words else []


def accepts(serving: Serving, header: str) -> bool:
    """As MLflow decides (mlflow/server/security_utils.py)."""
    return any(
        fnmatch.fnmatch(header, one) if "*" in one else header == one for one in option(serving, "--allowed-hosts")
    )


def serving(**changes: object) -> Serving:
    return Serving(**{"store": "sqlite:////data/mlflow.db", "artifacts": "/data/artifacts", **changes})  # type: ignore[arg-type]


def test_the_password_of_the_store_is_in_the_environment_and_nowhere_else() -> None:
    of = serving(store=POSTGRESQL)
    assert of.environment({"HOME": "/home/ann"})["MLFLOW_BACKEND_STORE_URI"] == POSTGRESQL
    assert of.environment({"HOME": "/home/ann"})["HOME"] == "/home/ann"
    assert SECRET not in " ".join(of.command())
    assert SECRET not in of.shown()
    assert "MLFLOW_BACKEND_STORE_URI=postgresql://db.example/sweeps " in of.shown()


def test_a_server_is_lean_and_takes_all_artifacts_itself() -> None:
    of = serving()
    assert option(of, "--workers") == ["1"]
    assert option(of, "--artifacts-destination") == ["/data/artifacts"]
    assert option(of, "--default-artifact-root") == ["mlflow-artifacts:/"]
    assert "--serve-artifacts" in of.command()
    assert of.environment({})["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert of.environment({})["MLFLOW_DISABLE_TELEMETRY"] == "true"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_of_a_local_server_mlflows_own_list_of_names_holds(host: str) -> None:
    assert option(serving(host=host), "--allowed-hosts") == []


def test_a_server_for_others_may_be_called_by_the_names_of_its_machine() -> None:
    of = serving(host="0.0.0.0", port=5001)
    name = socket.gethostname()
    assert of.address == f"http://{name}:5001"
    assert of.own_address == "http://127.0.0.1:5001"
    assert all(accepts(of, header) for header in (name, f"{name}:5001", "localhost:5001", "127.0.0.1:5001"))
    assert not accepts(of, f"{name}:5002")
    assert not accepts(of, "evil.example:5001")
    assert f"http://{name}:5001" in option(of, "--cors-allowed-origins")


def test_names_that_are_given_count_with_any_port_as_something_in_between_may_map_it() -> None:
    of = serving(host="0.0.0.0", allowed_hosts=("mlflow.example", "lab.example:8080"))
    assert all(
        accepts(of, header) for header in ("mlflow.example", "mlflow.example:443", "lab.example:8080", "localhost:5000")
    )
    assert not accepts(of, "lab.example:8081")
    assert not accepts(of, f"{socket.gethostname()}:5000")
    assert "https://mlflow.example" in option(of, "--cors-allowed-origins")
    assert option(serving(allowed_hosts=("*",)), "--allowed-hosts") == ["*"]


def test_an_ipv6_address_stands_in_brackets_where_it_has_a_port() -> None:
    assert serving(host="::1").own_address == "http://[::1]:5000"
    assert serving(host="::").own_address == "http://[::1]:5000"
    assert accepts(serving(host="fd00::7"), "[fd00::7]:5000")


def test_places_are_absolute_and_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = Path("outputs")
    assert store_of(None, output) == f"sqlite:///{tmp_path}/outputs/mlflow.db"
    assert store_of("sqlite:///team/runs.db?timeout=5", output) == f"sqlite:///{tmp_path}/team/runs.db?timeout=5"
    assert store_of(POSTGRESQL, output) == POSTGRESQL
    assert artifacts_of(None, f"sqlite:///{tmp_path}/team/runs.db", output) == f"{tmp_path}/team/mlflow-artifacts"
    assert artifacts_of(None, POSTGRESQL, output) == f"{tmp_path}/outputs/mlflow-artifacts"
    assert artifacts_of("files", POSTGRESQL, output) == f"{tmp_path}/files"
    assert artifacts_of("s3://bucket/sweeps", POSTGRESQL, output) == "s3://bucket/sweeps"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"store": "runs.db"}, "--store: 'runs.db' is no database's address: sqlite:///PATH, postgresql://"),
        ({"store": f"http://ann:{SECRET}@h:5000"}, "--store: 'http://h:5000' is no database's address"),
        ({"artifacts": "gs://bucket"}, "--artifacts: 'gs://bucket' is neither a folder nor s3://BUCKET/PREFIX."),
    ],
)
def test_a_mistake_is_told_before_anything_is_started(changes: dict[str, object], said: str) -> None:
    (problem,) = mistakes_of(serving(**changes))
    assert str(problem).startswith(said)
    assert SECRET not in str(problem)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"port": 70000}, "--port: 70000 is not a port that you may take"),
        ({"host": "no.such.host.invalid"}, "--host: 'no.such.host.invalid' is no name or address of this machine"),
        (
            {"store": f"postgresql://ann:{SECRET}@127.0.0.1:1/sweeps"},
            "--store: 'postgresql://127.0.0.1:1/sweeps' does not let this machine in: connection failed: ",
        ),
    ],
)
def test_an_obstacle_is_told_before_anything_is_started(changes: dict[str, object], said: str) -> None:
    (problem,) = obstacles_of(serving(**{"port": free_port("127.0.0.1"), **changes}))
    assert str(problem).startswith(said)
    assert SECRET not in str(problem)


@pytest.mark.parametrize(
    ("changes", "package", "said"),
    [
        ({"store": POSTGRESQL}, "psycopg", "--store: 'postgresql://db.example/sweeps' needs psycopg, which is not installed: "
         "pip install 'sweeprof[postgresql]'."),
        ({"artifacts": "s3://bucket"}, "boto3", "--artifacts: 's3://bucket' needs boto3, which is not installed: "
         "pip install 'sweeprof[s3]'."),
        ({}, "mlflow", "--store: 'sqlite:////data/mlflow.db' needs mlflow, which is not installed: "
         "pip install 'sweeprof[mlflow]'."),
    ],
)  # fmt: skip
def test_a_package_that_is_missing_is_named_with_what_installs_it(
    changes: dict[str, object], package: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {"psycopg", "boto3", "mlflow"} - {package}
    monkeypatch.setattr("sweeprof.tracking.server_settings.find_spec", lambda name: object() if name in here else None)
    (problem,) = mistakes_of(serving(**changes))
    assert str(problem) == said


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (problem,) = obstacles_of(serving(port=port))
    assert str(problem) == f"--port: {port} is taken: another program listens there, on 127.0.0.1; choose another port."
