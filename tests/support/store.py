"""MLflow's store of sweeps that were sent, read back through MLflow's own client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support.samples import records
from sweeprof.report.changes import comparison_markdown
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.files import write_json
from sweeprof.results.record import Record
from sweeprof.tracking import SweepOutcome
from sweeprof.tracking.mlflow import MlflowTracker
from sweeprof.tracking.runs import sweep_info

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.tracking import MlflowClient


class Store:
    """The folder of all sweeps, with MLflow's database."""

    def __init__(self, output: Path) -> None:
        from mlflow.tracking import MlflowClient

        self.output = output
        self.client: MlflowClient = MlflowClient(tracking_uri=f"sqlite:///{output / 'mlflow.db'}")

    def tracker(self, history: bool = False, parent_run: str | None = None) -> MlflowTracker:
        return MlflowTracker(None, self.output, history, parent_run)

    def folder(self, of: Comparison) -> Path:
        return self.output / of.name / of.sweep_id

    def send(
        self,
        of: Comparison,
        found: list[Record] | None = None,
        ending: SweepOutcome = "finished",
        history: bool = False,
        parent_run: str | None = None,
    ) -> None:
        """Send a sweep as the driver does, with the files that it has left."""
        found = records(of) if found is None else found
        folder = self.folder(of)
        folder.mkdir(parents=True, exist_ok=True)
        for record in found:
            record.write(folder / "records")
        write_json(folder / "comparison.json", of.to_dict())
        (folder / "comparison.md").write_text(comparison_markdown(of), encoding="utf-8")
        (folder / "report.html").write_text("<p>report</p>", encoding="utf-8")
        tracker = self.tracker(history, parent_run)
        tracker.open(sweep_info(of))
        tracker.close(of, found, folder, ending)

    def experiment(self, name: str = "quickstart") -> Experiment:
        found = self.client.get_experiment_by_name(name)
        assert found is not None
        return found

    def search(
        self, kind: str, condition: str = "", order: str = "tags.`sweeprof.place`", name: str = "quickstart"
    ) -> list[Run]:
        """The runs of a kind for which a condition in MLflow's language holds."""
        whole = " and ".join(filter(None, [f"tags.`sweeprof.kind` = '{kind}'", condition]))
        return [*self.client.search_runs([self.experiment(name).experiment_id], whole, order_by=[order])]

    def sweep(self, name: str = "quickstart") -> Run:
        """The only sweep's run."""
        (found,) = self.search("sweep", name=name)
        return found

    def combinations(self, name: str = "quickstart", kind: str = "combination") -> dict[str, Run]:
        """The runs of combinations, or their histories, by id; each has one."""
        found = self.search(kind, name=name)
        by_id = {run.data.tags["sweeprof.combination_id"]: run for run in found}
        assert len(by_id) == len(found), "a combination has two runs"
        return by_id

    def artifacts(self, run: Run, folder: str | None = None) -> set[str]:
        return {file.path for file in self.client.list_artifacts(run.info.run_id, folder)}
