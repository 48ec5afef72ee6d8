"""The manifests for Kubernetes: valid by its schema, and their pods run the entry point of tasks of Slurm."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pandas as pd
import pytest
import yaml

from support.command import run_command
from support.planning import planned
from sweeprof.cluster.kubernetes import manifest
from sweeprof.storage.jobs import Jobs

RECIPES = Path(__file__).parents[3] / "docs" / "recipes"
FAKE = ("model=fake", "backend=fake", "dataset=synthetic", "tracking=none", "cluster=kubernetes")


def validate(data: Any) -> None:
    kubernetes_validate.validate(data, "1.37", strict=True)


def made(folder: Path, *arguments: str) -> dict[str, Any]:
    cluster = planned([*FAKE, *arguments]).cluster
    jobs = Jobs(folder)
    data = manifest(jobs.new("night", [0, 1], cluster["resources"][0]), jobs)
    validate(data)
    return data


def container(data: dict[str, Any]) -> dict[str, Any]:
    (found,) = data["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_a_job_is_indexed_and_its_pods_share_a_volume(tmp_path: Path) -> None:
    data = made(tmp_path)
    spec = data["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,62}", data["metadata"]["name"])
    assert spec["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "sweeprof"
    assert container(data)["volumeMounts"] == [{"name": "sweeps", "mountPath": "/sweeps"}]
    assert "podAntiAffinity" in spec["template"]["spec"]["affinity"]


def test_resources(tmp_path: Path) -> None:
    assert container(made(tmp_path))["resources"] == {"requests": {"cpu": "1", "memory": "320Mi"}}
    words = (
        "device=cuda",
        "backend.threads=4",
        "cluster.memory=4GiB",
        "cluster.options={share_nodes: true, node_selector: {gpu: a100}}",
    )
    data = made(tmp_path, *words)
    assert container(data)["resources"] == {
        "requests": {"cpu": "4", "memory": "4096Mi"},
        "limits": {"memory": "4096Mi", "nvidia.com/gpu": "1"},
    }
    assert data["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "a100"}
    assert "affinity" not in data["spec"]["template"]["spec"]


def test_an_invalid_manifest_is_found(tmp_path: Path) -> None:
    data = made(tmp_path)
    data["spec"]["completion"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(data)


def test_the_recipe_is_valid() -> None:
    claim, driver = yaml.safe_load_all((RECIPES / "kubernetes.yaml").read_text())
    validate(claim)
    validate(driver)
    words = driver["spec"]["containers"][0]["command"]
    assert words[:3] == ["python", "-m", "sweeprof"]
    assert planned(words[3:]).scheduler == "kubernetes"


@pytest.mark.slow
def test_the_pods_of_a_manifest_measure_the_sweep(tmp_path: Path) -> None:
    """Each pod's command, with what Kubernetes sets in its environment, runs here."""
    mount = f"++cluster.options.mount={tmp_path}"
    words = (*FAKE, mount, "batch_size=1,2", "metrics=static", "shards=2", "wait_for_jobs=false", "compare.baseline={}")
    ran = run_command(tmp_path, *words)
    assert ran.code == 0, ran.out + ran.err
    folder = ran.folder("adhoc")
    (path,) = (folder / "jobs").glob("*.yaml")
    assert f"2 pending (kubectl apply -f {path})" in ran.out
    data = yaml.safe_load(path.read_text())
    validate(data)
    for index in range(data["spec"]["completions"]):
        variables = {
            "JOB_COMPLETION_INDEX": str(index),
            "SWEEPROF_SCHEDULER": "kubernetes",
            "SWEEPROF_NODE": f"node-{index}",
        }
        # A pod is in no session of the driver's.
        command, environment = container(data)["command"], {**os.environ, **variables}
        done = subprocess.run(command, env=environment, timeout=120, check=False, start_new_session=True)
        assert done.returncode == 0
    collected = run_command(tmp_path, f"resume={folder}")
    assert collected.code == 0, collected.out + collected.err
    table = pd.read_csv(folder / "comparison.csv")
    assert list(table["status"]) == ["ok", "ok"]
    records = [yaml.safe_load(record.read_text()) for record in folder.glob("records/*/*.json")]
    assert {record["environment"]["scheduler"]["node"] for record in records} == {"node-0", "node-1"}


@pytest.mark.slow
def test_a_sweep_outside_of_the_volume(tmp_path: Path) -> None:
    ran = run_command(tmp_path, *FAKE, "wait_for_jobs=false")
    assert ran.code == 2
    assert "is not below /sweeps, where pods mount the volume (cluster.options.mount)" in ran.err
