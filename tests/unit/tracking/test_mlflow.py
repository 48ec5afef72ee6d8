"""What is in the store after a sweep, read back through MLflow's own client."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock, Timeout

from support.layered import write_layers
from support.plans import fake_plan, sweep_folder
from support.records import read_records
from support.samples import comparison, records
from sweeprof.report.answer import answer
from sweeprof.report.markdown import markdown
from sweeprof.results.compared_rows import Cell, Comparison
from sweeprof.results.measurement import Measurement, MetricInfo
from sweeprof.results.record import Record
from sweeprof.run import locks, reports
from sweeprof.run.comparison import comparison_of
from sweeprof.run.reports import write_reports
from sweeprof.run.shard import run_shard
from sweeprof.run.tracker_process import _done
from sweeprof.tracking import SweepInfo, SweepOutcome
from sweeprof.tracking.mlflow import MlflowTracker, TrackingError
from sweeprof.tracking.views import KEPT_SWEEPS, runs_address

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

CRASHED = "c000000000005"
FIRST = "c000000000000"


def info(of: Comparison) -> SweepInfo:
    return SweepInfo(of.sweep_id, of.name, of.command, of.created, of.axes, len(of.rows))


def track(
    output: Path,
    of: Comparison,
    found: list[Record] | None = None,
    ending: SweepOutcome = "finished",
    tracker: Any = None,
) -> None:
    found = records(of) if found is None else found
    folder = output / of.sweep_id
    folder.mkdir(parents=True, exist_ok=True)
    for record in found:
        record.write(folder / "records")
    (folder / "comparison.md").write_text(markdown(of), encoding="utf-8")
    (folder / "comparison.json").write_text("{}", encoding="utf-8")
    (folder / "report.html").write_text("<p>report</p>", encoding="utf-8")
    tracker = tracker or MlflowTracker(None, output)
    tracker.open(info(of))
    tracker.close(of, found, folder, ending)


def small(**changes: Any) -> Comparison:
    """Two rows are enough for most questions."""
    whole = comparison()
    return dataclasses.replace(whole, **{"rows": (whole.rows[0], whole.rows[5]), **changes})


def runs(client: MlflowClient, name: str = "quickstart") -> tuple[Run, dict[str, Run]]:
    """The sweep's run, and the others by combination id."""
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], max_results=1000)
    (parent,) = (run for run in found if run.data.tags["sweeprof.kind"] == "sweep")
    children = [run for run in found if run.data.tags["sweeprof.kind"] == "combination"]
    by_id = {run.data.tags["sweeprof.combination_id"]: run for run in children}
    assert len(by_id) == len(children), "a combination has two runs"
    return parent, by_id


def artifacts(client: MlflowClient, run: Run, folder: str | None = None) -> set[str]:
    return {file.path for file in client.list_artifacts(run.info.run_id, folder)}


def test_a_sweep_leaves_a_run_per_combination(output: Path, client: MlflowClient) -> None:
    track(output, comparison())
    parent, children = runs(client)
    assert len(children) == 18
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {parent.info.run_id}
    assert (parent.info.run_name, parent.info.status) == ("quickstart 2026-11-21 00:30", "FINISHED")
    assert parent.data.metrics == {"combinations_ok": 16, "combinations_total": 18}
    assert parent.data.tags["mlflow.source.name"] == "python -m sweeprof +sweep=quickstart"
    assert parent.data.tags["mlflow.source.git.commit"] == "abc1234"
    assert parent.data.tags["mlflow.user"]
    assert parent.data.tags["mlflow.note.content"].startswith("**torch is faster than tensorflow in all 7 cases")
    words = answer(comparison())
    assert parent.data.tags["answer"] == str(words)
    assert parent.data.tags["mlflow.note.content"].startswith(f"**{words.finding}** {words.rest}")
    assert (parent.data.tags["confidence"], parent.data.tags["sweeprof.baseline"]) == ("low", "torch")
    assert artifacts(client, parent) == {"comparison.json", "comparison.md", "report.html", "tables"}
    assert (output / "mlflow-artifacts").is_dir()


def test_a_run_says_what_was_measured_and_when(output: Path, client: MlflowClient) -> None:
    track(output, small())
    run = runs(client)[1][FIRST]
    assert (run.info.run_name, run.info.status) == ("torch/b1", "FINISHED")
    assert run.info.end_time - run.info.start_time == 3200
    assert run.data.params == {"model": "lenet5", "backend": "torch", "device": "cpu", "batch_size": "1"}
    assert run.data.metrics["latency/forward_ms"] == 0.12833
    assert run.data.metrics["latency/forward_low_ms"] == 0.12576
    assert run.data.metrics["latency/forward_high_ms"] == 0.13218
    assert run.data.metrics["memory/rss_peak_mib"] == 295.64
    assert run.data.metrics["compute/macs_m"] == 0.41652
    assert run.data.metrics["params/total_k"] == 61.706
    ratios = {key: value for key, value in run.data.metrics.items() if key.startswith("vs_baseline/")}
    assert set(ratios.values()) == {1.0}
    assert len(run.data.metrics) - len(ratios) == 15
    (point,) = client.get_metric_history(run.info.run_id, "latency/forward_ms")
    assert (point.step, point.timestamp) == (0, run.info.end_time)
    assert "sweeprof.missing" not in run.data.tags
    assert run.data.tags["sweeprof.status"] == "ok"
    assert run.data.tags["mlflow.runColor"].startswith("#")
    assert "batch_size=1" in run.data.tags["mlflow.note.content"]
    assert artifacts(client, run) == {"records", "config.json"}
    assert artifacts(client, run, "records") == {"records/timing-r0.json"}


def test_a_combination_has_its_layers_beside_its_records(output: Path, client: MlflowClient) -> None:
    of = small()
    layers = output / of.sweep_id / "layers"
    layers.mkdir(parents=True)
    (layers / f"{FIRST}.csv").write_text("path\n__root__\n", encoding="utf-8")
    (layers / f"{FIRST}.html").write_text("<p>layers</p>", encoding="utf-8")
    track(output, of)
    own = runs(client)[1]
    assert artifacts(client, own[FIRST]) >= {"records", "config.json", "layers.csv", "layers.html"}
    assert not artifacts(client, own[CRASHED]) & {"layers.csv", "layers.html"}


def test_layers_and_operators_are_tables_and_the_structure_a_tag(output: Path, client: MlflowClient) -> None:
    of = small()
    write_layers(output / of.sweep_id, of)
    track(output, of)
    parent, own = runs(client)
    assert artifacts(client, own[FIRST], "tables") == {"tables/layers.json", "tables/operators.json"}
    logged = json.loads(own[FIRST].data.tags["mlflow.loggedArtifacts"])
    assert [table["path"] for table in logged] == ["tables/layers.json", "tables/operators.json"]
    assert "model.txt" in artifacts(client, own[FIRST])
    assert len(own[FIRST].data.tags["model.structure"]) == 12
    assert not {"mlflow.loggedArtifacts", "model.structure"} & own[CRASHED].data.tags.keys()
    assert "tables/comparison.json" in parent.data.tags["mlflow.loggedArtifacts"]


def test_the_datasets_are_inputs(output: Path, client: MlflowClient) -> None:
    of = small()
    dataset = {"_target_": "sweeprof.datasets.arrays.Digits", "seed": 0}
    track(output, of, [dataclasses.replace(record, config={"dataset": dataset}) for record in records(of)])
    parent, own = runs(client)
    for run in (parent, own[FIRST]):
        assert run.inputs is not None
        (found,) = run.inputs.dataset_inputs
        assert (found.dataset.name, len(found.dataset.digest)) == ("Digits", 12)
        assert [(tag.key, tag.value) for tag in found.tags] == [("mlflow.data.context", "inference")]
    experiment = parent.info.experiment_id
    assert len(client.search_runs([experiment], "datasets.name = 'Digits'")) == 3


def test_descriptions_have_figures_and_lead_back_to_the_sweep(output: Path, client: MlflowClient) -> None:
    track(output, comparison(), tracker=MlflowTracker(None, output, history=True))
    parent, own = runs(client)
    sweep = f"#/experiments/{parent.info.experiment_id}/runs/{parent.info.run_id}"
    slower = own["c000000000003"].data.tags["mlflow.note.content"]
    assert slower.startswith(f"**ok** · [sweep]({sweep}?workflowType=machine_learning) · [report](")
    assert f"[report]({sweep}/artifacts/report.html?workflowType=machine_learning)" in slower.splitlines()[0]
    assert "- latency: **244 µs [239–251]**, ×1.90" in slower
    assert "the baseline of others" in own[FIRST].data.tags["mlflow.note.content"].splitlines()[0]
    head = parent.data.tags["mlflow.note.content"].split("\n\n")[0]
    for word in ("table", "charts", "report", "history"):
        assert f"[{word}](#/experiments/" in head


def test_the_description_of_a_sweep_without_views_leads_to_its_runs(output: Path, client: MlflowClient) -> None:
    """MLflow shows its pages for language models at the address of a view that does not exist."""
    experiment = client.create_experiment("quickstart", (output / "mlflow-artifacts").as_uri())
    for number in range(KEPT_SWEEPS):
        newer = json.dumps({"createdAt": 4_000_000_000_000 + number})
        client.set_experiment_tag(experiment, f"mlflow.sharedViewState.sweeprof-n{number}-table", newer)
    track(output, small(), tracker=MlflowTracker(None, output, history=True))
    parent, _ = runs(client)
    assert not [key for key in client.get_experiment(experiment).tags if f"sweeprof-{small().sweep_id}" in key]
    head = parent.data.tags["mlflow.note.content"].split("\n\n")[0]
    for kind in ("table", "charts"):
        assert f"[{kind}]({runs_address('', experiment, parent.info.run_id, kind)})" in head
    assert "viewStateShareKey=sweeprof-history-trend" in head


def test_the_experiment_says_what_it_holds_unless_somebody_else_did(output: Path, client: MlflowClient) -> None:
    newest = small(created="2026-11-22T00:30:00+00:00", sweep_id="s2")
    track(output, newest)
    track(output, small())  # an older one, sent later
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment is not None
    assert "the newest is [quickstart 2026-11-22 00:30](#/experiments/" in experiment.tags["mlflow.note.content"]
    assert experiment.tags["mlflow.experiment.primaryMetric.name"] == "latency/forward_ms"
    client.set_experiment_tag(experiment.experiment_id, "mlflow.note.content", "Ours.")
    track(output, small(created="2026-11-23T00:30:00+00:00", sweep_id="s3"))
    assert client.get_experiment(experiment.experiment_id).tags["mlflow.note.content"] == "Ours."


def test_of_many_metrics_a_run_has_those_of_the_tables_and_a_few(output: Path, client: MlflowClient) -> None:
    of = small()
    more = tuple(MetricInfo(f"memory/more_{i}", "s", None, "More.") for i in range(40))
    cells = {info.name: Cell(Measurement(info.name, "s", None, 0.5)) for info in more}
    rows = tuple(dataclasses.replace(row, cells={**cells, **row.cells}) for row in of.rows)
    track(output, dataclasses.replace(of, metrics=(*more, *of.metrics), rows=rows))
    found = runs(client)[1][FIRST].data.metrics
    assert len([key for key in found if not key.startswith("vs_baseline/")]) == 15
    assert {"latency/forward_ms", "throughput/samples_per_s", "quality/accuracy", "compute/macs_per_sample_m"} <= set(
        found
    )


def test_a_crashed_combination_has_a_reason_and_no_numbers(output: Path, client: MlflowClient) -> None:
    track(output, small())
    run = runs(client)[1][CRASHED]
    assert run.info.status == "FAILED"
    assert run.data.metrics == {}
    assert run.data.params["batch_size"] == "64"
    assert run.data.tags["sweeprof.status"] == "crashed"
    assert run.data.tags["sweeprof.reason"] == "timing: killed by SIGKILL (signal 9)"
    assert "latency/forward: timing: killed by SIGKILL (signal 9)" in run.data.tags["sweeprof.missing"].splitlines()
    assert run.data.tags["mlflow.note.content"].startswith("**crashed**: `timing: killed by SIGKILL")


def test_tracking_twice_changes_nothing(output: Path, client: MlflowClient) -> None:
    track(output, small())
    before = runs(client)
    track(output, small())
    after = runs(client)
    assert after[0].to_dictionary() == before[0].to_dictionary()
    assert {id: run.to_dictionary() for id, run in after[1].items()} == {
        id: run.to_dictionary() for id, run in before[1].items()
    }
    history = client.get_metric_history(after[1][FIRST].info.run_id, "latency/forward_ms")
    assert len(history) == 1


def test_a_combination_that_succeeds_on_resuming_keeps_its_run(output: Path, client: MlflowClient) -> None:
    before = small()
    track(output, before, ending="interrupted")
    crashed = runs(client)[1][CRASHED]
    assert runs(client)[0].info.status == "KILLED"
    whole = dataclasses.replace(before, rows=(before.rows[0], comparison(broken=False).rows[5]))
    track(output, whole)
    parent, children = runs(client)
    run = children[CRASHED]
    assert (run.info.run_id, run.info.status) == (crashed.info.run_id, "FINISHED")
    assert run.data.metrics["latency/forward_ms"] > 0
    assert not {"sweeprof.reason", "sweeprof.missing"} & run.data.tags.keys()
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["combinations_ok"] == 2


def test_a_combination_that_is_no_longer_planned_has_no_run(output: Path, client: MlflowClient) -> None:
    track(output, small())
    track(output, small(rows=small().rows[:1]))
    assert list(runs(client)[1]) == [FIRST]


def test_a_value_that_changed_is_the_one_shown(output: Path, client: MlflowClient) -> None:
    # At one and the same time MLflow prefers the larger value, whatever came last.
    before = small()
    track(output, before)
    row = before.rows[0]
    lower = dataclasses.replace(row.cells["latency/forward"].measurement, value=1e-5)
    faster = dataclasses.replace(row, cells={**row.cells, "latency/forward": Cell(lower)})
    track(output, dataclasses.replace(before, rows=(faster, before.rows[1])))
    assert runs(client)[1][FIRST].data.metrics["latency/forward_ms"] == 0.01


def test_a_value_that_is_gone_is_not_shown(output: Path, client: MlflowClient) -> None:
    before = small()
    track(output, before)
    cells = {
        name: Cell(dataclasses.replace(cell.measurement, value=None, interval=None, reason="oom"))
        for name, cell in before.rows[0].cells.items()
    }
    failed = dataclasses.replace(before.rows[0], status="oom", reason="oom", cells=cells)
    track(output, dataclasses.replace(before, rows=(failed, before.rows[1])))
    run = runs(client)[1][FIRST]
    assert (run.info.status, run.data.metrics) == ("FAILED", {})


def test_what_others_add_to_a_run_stays_and_keeps_it(output: Path, client: MlflowClient) -> None:
    of = small()
    track(output, of)
    parent, children = runs(client)
    for run in (parent, children[FIRST]):
        client.log_metric(run.info.run_id, "mine", 7.0)
        client.log_param(run.info.run_id, "ticket", "1234")
        client.set_tag(run.info.run_id, "baseline.nightly", "true")
    row = of.rows[0]
    slower = Cell(dataclasses.replace(row.cells["latency/forward"].measurement, value=1.0))
    changed = dataclasses.replace(row, cells={**row.cells, "latency/forward": slower})
    track(output, dataclasses.replace(of, rows=(changed, of.rows[1])))
    again, afterwards = runs(client)
    for before, after in ((parent, again), (children[FIRST], afterwards[FIRST])):
        assert after.info.run_id == before.info.run_id
        assert (after.data.metrics["mine"], after.data.params["ticket"]) == (7.0, "1234")
        assert after.data.tags["baseline.nightly"] == "true"
    assert afterwards[FIRST].data.metrics["latency/forward_ms"] == 1000.0
    sent = client.get_metric_history(again.info.run_id, "combinations_ok")
    assert [point.value for point in sent] == [1.0]


def test_a_combination_measured_after_an_interruption_begins_when_it_was_measured(
    output: Path, client: MlflowClient
) -> None:
    of = small()
    skipped = dataclasses.replace(of.rows[0], status="skipped", reason="the sweep was interrupted", cells={})
    track(output, dataclasses.replace(of, rows=(skipped, of.rows[1])), records(of)[1:], "interrupted")
    later = dataclasses.replace(records(of)[0], started="2026-11-22T08:00:00+00:00")
    track(output, of, [later, records(of)[1]])
    run = runs(client)[1][FIRST]
    assert (run.info.status, run.info.end_time - run.info.start_time) == ("FINISHED", 3200)


def test_what_an_interruption_left_out_is_killed_not_failed(output: Path, client: MlflowClient) -> None:
    of = small()
    row = dataclasses.replace(of.rows[1], status="skipped", reason="the sweep was interrupted")
    of = dataclasses.replace(of, rows=(of.rows[0], row))
    track(output, of, [record for record in records(of) if record.combination_id == FIRST], "interrupted")
    parent, children = runs(client)
    assert parent.info.status == "KILLED"
    assert {id: run.info.status for id, run in children.items()} == {FIRST: "FINISHED", CRASHED: "KILLED"}
    assert artifacts(client, children[CRASHED]) == set()


def test_a_run_made_twice_by_a_lost_reply_is_removed(output: Path, client: MlflowClient) -> None:
    of = small()
    track(output, of)
    first = runs(client)[1][FIRST]
    client.create_run(first.info.experiment_id, first.info.start_time + 1000, dict(first.data.tags))
    track(output, of)
    assert runs(client)[1][FIRST].info.run_id == first.info.run_id


def test_a_run_is_renamed_when_another_axis_varies(output: Path, client: MlflowClient) -> None:
    whole = comparison()
    track(output, dataclasses.replace(whole, rows=whole.rows[:2]))
    assert runs(client)[1][FIRST].info.run_name == "b1"
    track(output, dataclasses.replace(whole, rows=whole.rows[:4]))
    assert runs(client)[1][FIRST].info.run_name == "torch/b1"


def test_whatever_is_longer_than_the_limits_is_shortened(output: Path, client: MlflowClient) -> None:
    of = small()
    model, reason = "m" * 149 + "|" + "n" * 150, "r" * 10_000
    odd = MetricInfo("ops/(µs) [50%]//x", "s", "lower", "Odd.")
    twin = MetricInfo("ops/{µs} [50%]//x", "s", "lower", "Odd too.")
    rows = []
    for row in of.rows:
        cells = {info.name: Cell(Measurement(info.name, "s", "lower", 0.5)) for info in (odd, twin)}
        cells["nan"] = Cell(Measurement("nan", "", None, float("nan")))
        axes = {**row.axes, "model": model + row.combination_id, "long": ["x" * 7000]}
        rows.append(dataclasses.replace(row, axes=axes, cells=cells, reason=reason, command="c" * 9000))
    metrics = (odd, twin, MetricInfo("nan", "", None, "Not a number."))
    track(output, dataclasses.replace(of, rows=tuple(rows), metrics=metrics, axes=(*of.axes, "long")))
    run = runs(client)[1][CRASHED]
    assert run.data.metrics == {"ops/_µs_ _50__/x_ms": 500.0, "ops/_µs_ _50__/x_ms_2": 500.0}
    assert run.data.params["model"] == model + CRASHED
    assert len(run.data.params["long"]) == 6000
    assert run.data.tags["sweeprof.missing"] == "nan: not a finite number: nan"
    assert len(run.data.tags["sweeprof.reason"]) == 8000
    assert len(run.data.tags["mlflow.note.content"]) <= 8000
    assert run.data.tags["mlflow.note.content"].endswith("c `")
    assert run.info.run_name.endswith("/tensorflow/b64")
    assert len(run.info.run_name) <= 250


def test_a_long_report_is_cut_at_a_line(output: Path, client: MlflowClient) -> None:
    of = small()
    tracker = MlflowTracker(None, output)
    tracker.open(info(of))
    folder = output / "long"
    folder.mkdir()
    (folder / "comparison.md").write_text("**headline.**\n\n" + "| a row of a table |\n" * 1000, encoding="utf-8")
    tracker.close(dataclasses.replace(of, rows=()), [], folder, "finished")
    note = runs(client)[0].data.tags["mlflow.note.content"]
    assert len(note) <= 8000
    assert note.startswith("**headline.** Compare as [table](#/experiments/")
    assert note.endswith("| a row of a table |\n\n… the rest is in the artifact comparison.md")


def test_a_long_command_is_wrapped_by_the_page(output: Path, client: MlflowClient) -> None:
    command = "python -m sweeprof 'a=`b`' " + "x=1 " * 50
    whole = small(command=command)
    track(output, dataclasses.replace(whole, rows=(dataclasses.replace(whole.rows[0], command=command),)))
    parent, (child,) = runs(client)[0], runs(client)[1].values()
    for run in (parent, child):
        note = run.data.tags["mlflow.note.content"]
        assert "```" not in note
        assert f"`` {command.strip()} ``" in note


def test_a_deleted_experiment_is_restored(output: Path, client: MlflowClient, caplog: pytest.LogCaptureFixture) -> None:
    track(output, small())
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    track(output, small(sweep_id="s2"))
    assert "was deleted; it is restored" in caplog.text
    restored = client.get_experiment(experiment.experiment_id)
    assert restored.lifecycle_stage == "active"


def test_an_empty_database_is_made_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # MLflow migrates the schema when its client is constructed, and two migrations at once break each other.
    class Opened(Exception):
        pass

    def construct(tracking_uri: str) -> None:
        assert tracking_uri == f"sqlite:///{tmp_path}/new/mlflow.db.new"
        with pytest.raises(Timeout):
            FileLock(tmp_path / "new" / "mlflow.db.lock").acquire(timeout=0)
        raise Opened

    monkeypatch.setattr("mlflow.tracking.MlflowClient", construct)
    with pytest.raises(Opened):
        MlflowTracker(None, tmp_path / "new").open(info(small()))


def test_two_sweeps_may_make_one_experiment_at_once(output: Path, client: MlflowClient) -> None:
    barrier, failures = threading.Barrier(4), []

    def one(number: int) -> None:
        tracker = MlflowTracker(None, output)
        barrier.wait()
        try:
            tracker.open(info(small(sweep_id=f"s{number}")))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [e.name for e in client.search_experiments()].count("quickstart") == 1


def test_a_view_that_is_refused_costs_nothing_else(
    output: Path, client: MlflowClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
    from mlflow.tracking import MlflowClient

    def refuse(*_: Any) -> None:
        raise MlflowException("no such thing as a view", error_code=INVALID_PARAMETER_VALUE)

    monkeypatch.setattr(MlflowClient, "set_experiment_tag", refuse)
    track(output, small())
    assert len(runs(client)[1]) == 2
    assert "took no saved view" in caplog.text


@pytest.mark.parametrize(("code", "told"), [("PERMISSION_DENIED", False), ("TEMPORARILY_UNAVAILABLE", True)])
def test_a_history_that_is_not_taken_costs_nothing_else(
    output: Path, client: MlflowClient, monkeypatch: pytest.MonkeyPatch, code: str, told: bool
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos import databricks_pb2
    from mlflow.tracking import MlflowClient

    create = MlflowClient.create_experiment

    def refuse(self: MlflowClient, name: str, **named: Any) -> str:
        if name.endswith(" history"):
            raise MlflowException("no history here", getattr(databricks_pb2, code))
        return create(self, name, **named)

    monkeypatch.setattr(MlflowClient, "create_experiment", refuse)
    # What may pass is told, to be sent later; what is refused stays refused.
    with pytest.raises(TrackingError, match="no history here") if told else contextlib.nullcontext():
        track(output, small(), tracker=MlflowTracker(None, output, history=True))
    parent, children = runs(client)
    assert (parent.info.status, len(children)) == ("FINISHED", 2)
    assert "[report]" in parent.data.tags["mlflow.note.content"]
    assert "[history]" not in parent.data.tags["mlflow.note.content"]


def test_views_of_every_sweep_are_written_and_old_ones_dropped(output: Path, client: MlflowClient) -> None:
    for number in range(12):
        created = f"2026-11-{number + 1:02}T00:30:00+00:00"
        MlflowTracker(None, output).open(info(small(sweep_id=f"s{number}", created=created)))
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment is not None
    views = {key for key in experiment.tags if key.startswith("mlflow.sharedViewState.")}
    assert views == {
        f"mlflow.sharedViewState.sweeprof-s{n}-{kind}" for n in range(2, 12) for kind in ("table", "charts")
    }


def test_passwords_are_neither_shown_nor_sent(output: Path, client: MlflowClient) -> None:
    of = small(command="python -m sweeprof tracking.uri=https://me:secret@mlflow.example.com")
    found = [dataclasses.replace(r, config={"tracking": {"uri": "https://me:secret@host"}}) for r in records(of)]
    track(output, of, found)
    stored = "".join(path.read_text(errors="replace") for path in (output / "mlflow-artifacts").rglob("*.*"))
    assert "https://host" in stored
    assert "secret" not in stored
    assert "secret" not in json.dumps([run.to_dictionary() for run in client.search_runs(["1"])])


def test_a_server_that_is_down_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    tracker = MlflowTracker("http://me:secret@127.0.0.1:9", tmp_path)
    with pytest.raises(TrackingError, match=r"^MLflow at http://127\.0\.0\.1:9: ") as raised:
        tracker.open(info(small()))
    assert "secret" not in str(raised.value)
    assert not any(tmp_path.iterdir())


def test_links(output: Path) -> None:
    links = MlflowTracker(None, output).open(info(small()))
    assert links.needs_viewer
    assert links.comparison.startswith(
        "http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey=sweeprof-s0123456789ab-table"
    )


def test_the_environment_of_the_process_is_left_alone(output: Path) -> None:
    before = dict(os.environ)
    track(output, small())
    assert {name: value for name, value in os.environ.items() if before.get(name) != value} == {}


def test_a_combination_that_was_shown_is_sent_again_only_if_it_changed(
    output: Path, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    of, tracker = small(), MlflowTracker(None, output)
    found, ids, folder = records(of), [FIRST], output / of.sweep_id
    folder.mkdir(parents=True)
    sent = list[str]()
    log = MlflowClient.log_batch

    def noted(self: MlflowClient, run_id: str, *words: Any, **named: Any) -> None:
        sent.append(self.get_run(run_id).data.tags["sweeprof.kind"])
        log(self, run_id, *words, **named)

    tracker.open(info(of))
    monkeypatch.setattr(MlflowClient, "log_batch", noted)
    for _ in range(2):
        tracker.show(of, found, folder, ids)
    assert sent == ["combination", "sweep", "sweep"]
    parent, shown = runs(client)
    assert (parent.info.status, list(shown), shown[FIRST].info.status) == ("RUNNING", ids, "FINISHED")
    sent.clear()
    tracker.close(of, found, folder, "finished")
    assert Counter(sent) == {"combination": 2, "sweep": 1}
    assert runs(client)[1][FIRST].info.run_id == shown[FIRST].info.run_id


def test_the_run_of_a_sweep_shows_what_has_been_measured_while_it_runs(
    output: Path, client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fake models in two rounds; the shard writes the reports and sends the state after every trial."""
    monkeypatch.setattr(locks, "FOLDER", tmp_path / "locks")
    monkeypatch.setattr(reports, "SHARE", 1e9)
    monkeypatch.setattr(reports, "EVERY_S", 0.0)
    plan = fake_plan({name: {} for name in "ab"}, rounds=2)
    folder = sweep_folder(output / plan.name / "sweep", plan)
    tracker = MlflowTracker(None, output)
    tracker.open(SweepInfo(plan.sweep_id, plan.name, plan.command, plan.created, tuple(plan.axes), plan.size))
    states = []

    def show(sent: Comparison) -> None:
        message = {"show": [row.combination_id for row in sent.rows if row.has_values]}
        _done(tracker, message, folder)
        parent, children = runs(client, plan.name)
        assert sent.running is not None
        table = [line for line in (folder.path / "comparison.md").read_text().splitlines() if line.startswith("| ")]
        states.append((sent.running.done, table, parent, children))

    with reports.sent_to(show):
        run_shard(folder, 0)
    assert len(states) > 2
    for done, table, parent, children in states:
        note = parent.data.tags["mlflow.note.content"]
        assert f"running: {done} of 6 trials have ended" in note
        assert table
        assert set(table) <= set(note.splitlines())
        assert parent.data.tags["answer"] in note.replace("**", "")
        assert parent.info.status == "RUNNING"
        assert set(children) <= {"ca", "cb"}
    assert set(states[-1][3]) == {"ca", "cb"}
    last = states[-1][2]
    assert artifacts(client, last) >= {"comparison.json", "comparison.md", "report.html", "tables"}
    whole = comparison_of(folder)
    write_reports(folder, whole)
    tracker.close(whole, list(read_records(folder.records)), folder.path, "finished")
    parent, _ = runs(client, plan.name)
    assert parent.info.run_id == last.info.run_id
    assert parent.info.status == "FINISHED"
    assert "running:" not in parent.data.tags["mlflow.note.content"]
