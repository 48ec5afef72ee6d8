"""Sweeps of a real MLflow as baselines."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from support.samples import comparison, records
from sweeprof.errors import UserError
from sweeprof.results.compared_rows import Comparison, comparison_from
from sweeprof.results.files import write_json
from sweeprof.run.reports import SweepLocations, located, read_sweep, set_tag
from sweeprof.tracking import runs as sweep_runs
from sweeprof.tracking.mlflow import MlflowTracker
from sweeprof.tracking.runs import sweep_info

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


def tracked(output: Path, sweep_id: str, created: str) -> Comparison:
    """A sweep of two combinations that is in MLflow."""
    full = comparison(models=("mlp",), broken=False)
    made = dataclasses.replace(full, sweep_id=sweep_id, created=created, rows=full.rows[:2])
    folder = output / "quickstart" / sweep_id
    write_json(folder / "comparison.json", made.to_dict())
    write_json(folder / "plan.json", {"sweep_id": sweep_id})
    tracker = MlflowTracker(None, output)
    tracker.open(sweep_info(made))
    tracker.close(made, records(made), folder, "finished")
    return made


def test_a_tag_stands_for_one_sweep_here_and_in_mlflow(output: Path, client: MlflowClient, tmp_path: Path) -> None:
    old = tracked(output, "s1", "2026-11-20T00:30:00+00:00")
    new = tracked(output, "s2", "2026-11-21T00:30:00+00:00")
    target = tmp_path / "found.json"
    for made in (new, old):  # the tag moves
        sweep_runs.set_tag(client, "nightly", made.sweep_id)
        sweep_runs.fetch(client, "tag:nightly", target)
        assert comparison_from(json.loads(target.read_text())) == made
    notes = {
        run.data.tags["sweeprof.sweep_id"]: run.data.tags["mlflow.note.content"]
        for run in client.search_runs(["1"], "tags.`sweeprof.kind` = 'sweep'")
    }
    assert "\n\nBaseline **nightly**" in notes["s1"]
    assert "Baseline" not in notes["s2"]
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    of_new = {
        run.data.tags["sweeprof.kind"]: run.info.run_id
        for run in runs
        if run.data.tags.get("sweeprof.sweep_id") == "s2"
    }
    for id in of_new.values():  # that of the sweep, and that of one of its combinations
        sweep_runs.fetch(client, id, target)
        assert comparison_from(json.loads(target.read_text())) == new
    with pytest.raises(LookupError, match=r"no run has the tag baseline\.absent"):
        sweep_runs.fetch(client, "tag:absent", target)
    with pytest.raises(LookupError, match="there is no run of the sweep s9"):
        sweep_runs.set_tag(client, "nightly", "s9")


class Downloading:
    """A client with one run that has a comparison."""

    def get_run(self, run_id: str) -> Any:
        return SimpleNamespace(data=SimpleNamespace(tags={}), info=SimpleNamespace(run_id=run_id))

    def list_artifacts(self, _: str) -> list[Any]:
        return [SimpleNamespace(path=sweep_runs.FILE)]

    def download_artifacts(self, _: str, path: str, folder: str) -> str:
        target = Path(folder) / path
        target.write_text("{}")
        return str(target)


def test_temporary_files_may_be_on_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system")
    monkeypatch.setattr(tempfile, "tempdir", str(memory))
    sweep_runs.fetch(cast("MlflowClient", Downloading()), "1234", tmp_path / "found.json")
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]


@pytest.mark.slow
def test_another_process_asks_mlflow_where_there_is_no_folder(output: Path, client: MlflowClient) -> None:
    made = tracked(output, "s1", "2026-11-20T00:30:00+00:00")
    place = SweepLocations(output)
    assert set_tag("nightly", output / "quickstart" / "s1", "s1", place) is None
    assert located("tag:nightly", place, "BASE") == output / "quickstart" / "s1"
    (place.tags / "nightly").unlink()
    assert read_sweep(located("tag:nightly", place, "BASE"), "tag:nightly", "BASE") == made
    with pytest.raises(UserError, match=r"BASE: 'mlflow:abc' cannot be downloaded: .*abc"):
        located("mlflow:abc", place, "BASE")
