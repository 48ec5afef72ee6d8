"""What is in the store after a sweep, read back through MLflow's own client."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import sweeprof
from support.layered import write_layers
from support.samples import comparison, records
from support.store import Store
from sweeprof.errors import UserError
from sweeprof.report.answer import answer
from sweeprof.results.compared_rows import Comparison, Progress, Row, comparison_from
from sweeprof.results.differences import Cell
from sweeprof.results.measurement import Measurement, MetricInfo
from sweeprof.run.reports import SweepLocations, located, read_sweep
from sweeprof.tracking import runs as sweep_runs
from sweeprof.tracking.mlflow import TrackingError
from sweeprof.tracking.runs import sweep_info
from sweeprof.tracking.views import KEPT_SWEEPS, runs_address

CRASHED = "c000000000005"
FIRST = "c000000000000"
LATENCY = "latency/forward_ms"
NOTE = "mlflow.note.content"


def small(**changes: Any) -> Comparison:
    """Two rows are enough for most questions."""
    whole = comparison()
    return dataclasses.replace(whole, **{"rows": (whole.rows[0], whole.rows[5]), **changes})


def first_row(**changes: Any) -> Comparison:
    """The first row, or another in its place, beside the crashed one."""
    of = small()
    return dataclasses.replace(of, rows=(dataclasses.replace(of.rows[0], **changes), of.rows[1]))


def measured(value: float | None, **changes: Any) -> dict[str, Cell]:
    """The cells of the first row with another latency."""
    cells = small().rows[0].cells
    changed = dataclasses.replace(cells["latency/forward"].measurement, value=value, **changes)
    return {**cells, "latency/forward": Cell(changed)}


def night(number: int) -> Comparison:
    return small(sweep_id=f"s{number}", created=f"2026-11-{number:02}T00:30:00+00:00")


@pytest.mark.slow
def test_a_sweep_leaves_a_run_with_links_and_one_per_combination(store: Store) -> None:
    store.send(comparison(), history=True)
    parent, children = store.sweep(), store.combinations()
    assert len(children) == 18
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {parent.info.run_id}
    assert (parent.info.run_name, parent.info.status) == ("quickstart 2026-11-21 00:30", "FINISHED")
    counts = {"combinations_ok": 16, "combinations_total": 18}
    assert counts.items() <= parent.data.metrics.items()
    latencies = [run.data.metrics[LATENCY] for run in children.values() if LATENCY in run.data.metrics]
    assert parent.data.metrics[f"best/{LATENCY}"] == min(latencies)
    tags, words = parent.data.tags, answer(comparison())
    assert tags["mlflow.source.name"] == "python -m sweeprof +sweep=quickstart"
    assert tags["mlflow.source.git.commit"] == "abc1234"
    assert (tags["confidence"], tags["sweeprof.baseline"]) == ("low", "torch")
    assert tags["answer"] == str(words)
    assert tags[NOTE].startswith(f"**{words.finding}** {words.rest}")
    for word in ("table", "charts", "report", "history"):
        assert f"[{word}](#/experiments/" in tags[NOTE].split("\n\n")[0]
    assert store.artifacts(parent) == {"comparison.json", "comparison.md", "report.html", "tables"}
    sweep = f"#/experiments/{parent.info.experiment_id}/runs/{parent.info.run_id}"
    slower = children["c000000000003"].data.tags[NOTE]
    assert slower.startswith(f"**ok** · [sweep]({sweep}?workflowType=machine_learning) · [report](")
    assert f"[report]({sweep}/artifacts/report.html?workflowType=machine_learning)" in slower.splitlines()[0]
    assert "- latency: **244 µs [239–251]**, ×1.90" in slower
    assert "the baseline of others" in children[FIRST].data.tags[NOTE].splitlines()[0]


@pytest.mark.slow
def test_a_sweep_below_an_existing_run_is_in_its_experiment(store: Store) -> None:
    """MLflow shows no runs of other experiments below a run; the description of somebody else's experiment stays."""
    experiment = store.client.create_experiment("training", (store.output / "artifacts").as_uri())
    store.client.set_experiment_tag(experiment, NOTE, "Our trainings")
    run = store.client.create_run(experiment)
    for _ in range(2):  # sending again changes nothing
        store.send(small(), parent_run=run.info.run_id)
    sweep = store.sweep("training")
    assert sweep.data.tags["mlflow.parentRunId"] == run.info.run_id
    children = store.combinations("training").values()
    assert {child.data.tags["mlflow.parentRunId"] for child in children} == {sweep.info.run_id}
    tags = store.experiment("training").tags
    assert tags[NOTE] == "Our trainings"
    assert "mlflow.experiment.primaryMetric.name" not in tags
    assert store.client.get_experiment_by_name("quickstart") is None


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_run_that_does_not_exist_takes_no_sweep(store: Store, is_deleted: bool) -> None:
    id, message = "0" * 32, "is not in the store sqlite:///"
    if is_deleted:
        id, message = store.client.create_run("0").info.run_id, "was deleted"
        store.client.delete_run(id)
    with pytest.raises(TrackingError, match=rf"the run {id} \(tracking.parent_run, or MLFLOW_RUN_ID\) {message}"):
        store.send(small(), parent_run=id)


def test_a_search_over_sweeps_finds_settings_that_are_no_axis(store: Store) -> None:
    common = {
        "backend.threads": 2,
        "backend.precision": "bf16",
        "backend._target_": "x.Y",
        "training.optimizer": "adam",
    }
    store.send(small(settings=common))
    found = store.search("combination", "params.`backend.threads` = '2' and params.`backend.precision` = 'bf16'")
    assert len(found) == 2
    assert "backend._target_" not in found[0].data.params
    assert "training.optimizer" not in found[0].data.params  # of inference


def test_a_run_says_what_was_measured_and_when_or_why_not(store: Store) -> None:
    store.send(small())
    run = store.combinations()[FIRST]
    assert (run.info.run_name, run.info.status) == ("torch/b1", "FINISHED")
    assert run.info.end_time - run.info.start_time == 3200
    assert [run.data.params[name] for name in ("model", "backend", "batch_size")] == ["lenet5", "torch", "1"]
    expected = {
        LATENCY: 0.12833,
        "latency/forward_low_ms": 0.12576,
        "latency/forward_high_ms": 0.13218,
        "memory/rss_peak_mib": 295.64,
        "compute/macs_m": 0.41652,
        "params/total_k": 61.706,
    }
    assert expected.items() <= run.data.metrics.items()
    ratios = {key: value for key, value in run.data.metrics.items() if key.startswith("vs_baseline/")}
    assert set(ratios.values()) == {1.0}
    assert len(run.data.metrics) - len(ratios) == 15
    (point,) = store.client.get_metric_history(run.info.run_id, LATENCY)
    assert (point.step, point.timestamp) == (0, run.info.end_time)
    assert "sweeprof.missing" not in run.data.tags
    assert run.data.tags["mlflow.runColor"].startswith("#")
    assert store.artifacts(run) == {"records", "config.json"}
    assert store.artifacts(run, "records") == {"records/timing-r0.json"}
    run = store.combinations()[CRASHED]
    assert (run.info.status, run.data.metrics) == ("FAILED", {})
    assert run.data.tags["sweeprof.status"] == "crashed"
    assert run.data.tags["sweeprof.reason"] == "timing: killed by SIGKILL (signal 9)"
    assert "latency/forward: timing: killed by SIGKILL (signal 9)" in run.data.tags["sweeprof.missing"].splitlines()
    assert run.data.tags[NOTE].startswith("**crashed**: `timing: killed by SIGKILL")


def test_layers_and_operators_are_files_and_tables_and_the_structure_a_tag(store: Store) -> None:
    of = small()
    write_layers(store.folder(of), of)
    (store.folder(of) / "layers" / f"{FIRST}.html").write_text("<p>layers</p>", encoding="utf-8")
    store.send(of)
    own, crashed = store.combinations()[FIRST], store.combinations()[CRASHED]
    assert store.artifacts(own) >= {"records", "config.json", "layers.csv", "layers.html", "model.txt"}
    tables = ["tables/layers.json", "tables/operators.json"]
    assert store.artifacts(own, "tables") == set(tables)
    assert [table["path"] for table in json.loads(own.data.tags["mlflow.loggedArtifacts"])] == tables
    assert len(own.data.tags["model.structure"]) == 12
    assert not store.artifacts(crashed) & {"layers.csv", "layers.html"}
    assert not {"mlflow.loggedArtifacts", "model.structure"} & crashed.data.tags.keys()
    assert "tables/comparison.json" in store.sweep().data.tags["mlflow.loggedArtifacts"]


def test_the_datasets_are_inputs(store: Store) -> None:
    of = small()
    dataset = {"_target_": "sweeprof.datasets.arrays.Digits", "seed": 0}
    store.send(of, [dataclasses.replace(record, config={"dataset": dataset}) for record in records(of)])
    for run in (store.sweep(), store.combinations()[FIRST]):
        assert run.inputs is not None
        (found,) = run.inputs.dataset_inputs
        assert (found.dataset.name, len(found.dataset.digest)) == ("Digits", 12)
        assert [(tag.key, tag.value) for tag in found.tags] == [("mlflow.data.context", "inference")]
    experiment = store.experiment().experiment_id
    assert len(store.client.search_runs([experiment], "datasets.name = 'Digits'")) == 3


def test_the_description_of_a_sweep_without_views_leads_to_its_runs(store: Store) -> None:
    """MLflow shows its pages for language models at the address of a view that does not exist."""
    experiment = store.client.create_experiment("quickstart", (store.output / "mlflow-artifacts").as_uri())
    for number in range(KEPT_SWEEPS):
        newer = json.dumps({"createdAt": 4_000_000_000_000 + number})
        store.client.set_experiment_tag(experiment, f"mlflow.sharedViewState.sweeprof-n{number}-table", newer)
    store.send(small(), history=True)
    assert not [key for key in store.experiment().tags if f"sweeprof-{small().sweep_id}" in key]
    head = store.sweep().data.tags[NOTE].split("\n\n")[0]
    for kind in ("table", "charts"):
        assert f"[{kind}]({runs_address('', experiment, store.sweep().info.run_id, kind)})" in head
    assert "viewStateShareKey=sweeprof-history-trend" in head


def test_the_experiment_says_what_it_holds_unless_somebody_else_did(store: Store) -> None:
    for of in (night(22), small()):  # the older one is sent later
        store.send(of)
    tags = store.experiment().tags
    assert "the newest is [quickstart 2026-11-22 00:30](#/experiments/" in tags[NOTE]
    assert tags["mlflow.experiment.primaryMetric.name"] == LATENCY
    store.client.set_experiment_tag(store.experiment().experiment_id, NOTE, "Ours.")
    store.send(night(23))
    assert store.experiment().tags[NOTE] == "Ours."


def test_of_many_metrics_a_run_has_those_of_the_tables_and_a_few(store: Store) -> None:
    of = small()
    more = tuple(MetricInfo(f"memory/more_{i}", "s", None, "More.") for i in range(40))
    cells = {info.name: Cell(Measurement(info.name, "s", None, 0.5)) for info in more}
    rows = tuple(dataclasses.replace(row, cells={**cells, **row.cells}) for row in of.rows)
    store.send(dataclasses.replace(of, metrics=(*more, *of.metrics), rows=rows))
    found = {key for key in store.combinations()[FIRST].data.metrics if not key.startswith("vs_baseline/")}
    assert len(found) == 15
    assert {LATENCY, "throughput/samples_per_s", "quality/accuracy", "compute/macs_per_sample_m"} <= found


def test_a_combination_that_succeeds_on_resuming_keeps_its_run(store: Store) -> None:
    store.send(small(), ending="interrupted")
    crashed = store.combinations()[CRASHED]
    assert store.sweep().info.status == "KILLED"
    store.send(small(rows=(small().rows[0], comparison(broken=False).rows[5])))
    run = store.combinations()[CRASHED]
    assert (run.info.run_id, run.info.status) == (crashed.info.run_id, "FINISHED")
    assert run.data.metrics[LATENCY] > 0
    assert not {"sweeprof.reason", "sweeprof.missing"} & run.data.tags.keys()
    assert store.sweep().info.status == "FINISHED"
    assert store.sweep().data.metrics["combinations_ok"] == 2


def test_a_value_that_changed_is_the_one_shown_and_one_that_is_gone_is_not(store: Store) -> None:
    # At one and the same time MLflow prefers the larger value, whatever came last.
    store.send(small())
    store.send(first_row(cells=measured(1e-5)))
    assert store.combinations()[FIRST].data.metrics[LATENCY] == 0.01
    gone = {
        name: Cell(dataclasses.replace(cell.measurement, value=None, interval=None, reason="oom"))
        for name, cell in small().rows[0].cells.items()
    }
    store.send(first_row(status="oom", reason="oom", cells=gone))
    run = store.combinations()[FIRST]
    assert (run.info.status, run.data.metrics) == ("FAILED", {})


def test_what_others_add_to_a_run_stays_and_keeps_it(store: Store) -> None:
    store.send(small())
    before = [store.sweep(), store.combinations()[FIRST]]
    for run in before:
        store.client.log_metric(run.info.run_id, "mine", 7.0)
        store.client.log_param(run.info.run_id, "ticket", "1234")
        store.client.set_tag(run.info.run_id, "baseline.nightly", "true")
    store.send(first_row(cells=measured(1.0)))
    after = [store.sweep(), store.combinations()[FIRST]]
    assert [run.info.run_id for run in after] == [run.info.run_id for run in before]
    for run in after:
        assert (run.data.metrics["mine"], run.data.params["ticket"]) == (7.0, "1234")
        assert run.data.tags["baseline.nightly"] == "true"
    assert after[1].data.metrics[LATENCY] == 1000.0
    sent = store.client.get_metric_history(after[0].info.run_id, "combinations_ok")
    assert [point.value for point in sent] == [1.0]


def test_what_an_interruption_left_out_is_killed_not_failed_and_begins_when_it_is_measured(store: Store) -> None:
    of = small()
    skipped = first_row(status="skipped", reason="the sweep was interrupted", cells={})
    store.send(skipped, records(of)[1:], "interrupted")
    children = store.combinations()
    assert store.sweep().info.status == "KILLED"
    assert {id: run.info.status for id, run in children.items()} == {FIRST: "KILLED", CRASHED: "FAILED"}
    assert store.artifacts(children[FIRST]) == set()
    later = dataclasses.replace(records(of)[0], started="2026-11-22T08:00:00+00:00")
    store.send(of, [later, records(of)[1]])
    run = store.combinations()[FIRST]
    assert (run.info.status, run.info.end_time - run.info.start_time) == ("FINISHED", 3200)


def test_a_run_that_is_not_planned_or_made_twice_by_a_lost_reply_is_removed(store: Store) -> None:
    store.send(small())
    first = store.combinations()[FIRST]
    store.client.create_run(first.info.experiment_id, first.info.start_time + 1000, dict(first.data.tags))
    store.send(small())
    assert store.combinations()[FIRST].info.run_id == first.info.run_id
    store.send(small(rows=small().rows[:1]))
    assert list(store.combinations()) == [FIRST]


def test_a_run_is_renamed_when_another_axis_varies(store: Store) -> None:
    for rows, name in ((2, "b1"), (4, "torch/b1")):
        store.send(small(rows=comparison().rows[:rows]))
        assert store.combinations()[FIRST].info.run_name == name


def test_whatever_is_longer_than_the_limits_is_shortened(store: Store) -> None:
    of, model = small(), "m" * 149 + "|" + "n" * 150
    odd = [MetricInfo(f"ops/{name} [50%]//x", "s", "lower", "Odd.") for name in ("(µs)", "{µs}")]
    cells = {info.name: Cell(Measurement(info.name, "s", "lower", 0.5)) for info in odd}
    cells["nan"] = Cell(Measurement("nan", "", None, float("nan")))

    def long(row: Row) -> Row:
        axes = {**row.axes, "model": model + row.combination_id, "long": ["x" * 7000]}
        return dataclasses.replace(row, axes=axes, cells=cells, reason="r" * 10_000, command="c" * 9000)

    metrics = (*odd, MetricInfo("nan", "", None, "Not a number."))
    of = small(rows=tuple(map(long, of.rows)), metrics=metrics, axes=(*of.axes, "long"))
    store.tracker().close(of, records(of), store.folder(of), "finished")
    run = store.combinations()[CRASHED]
    assert run.data.metrics == {"ops/_µs_ _50__/x_ms": 500.0, "ops/_µs_ _50__/x_ms_2": 500.0}
    assert run.data.params["model"] == model + CRASHED
    assert len(run.data.params["long"]) == 6000
    assert run.data.tags["sweeprof.missing"] == "nan: not a finite number: nan"
    assert len(run.data.tags["sweeprof.reason"]) == 8000
    assert len(run.data.tags[NOTE]) <= 8000
    assert run.data.tags[NOTE].endswith("c `")
    assert run.info.run_name.endswith("/tensorflow/b64")
    assert len(run.info.run_name) <= 250


def test_a_long_report_is_cut_at_a_line(store: Store) -> None:
    of = small(rows=())
    store.folder(of).mkdir(parents=True)
    report = "**headline.**\n\n" + "| a row of a table |\n" * 1000
    (store.folder(of) / "comparison.md").write_text(report, encoding="utf-8")
    store.tracker().close(of, [], store.folder(of), "finished")
    note = store.sweep().data.tags[NOTE]
    assert len(note) <= 8000
    assert note.startswith("**headline.** Compare as [table](#/experiments/")
    assert note.endswith("| a row of a table |\n\n… the rest is in the artifact comparison.md")


def test_a_long_command_is_wrapped_by_the_page(store: Store) -> None:
    command = "python -m sweeprof 'a=`b`' " + "x=1 " * 50
    store.send(dataclasses.replace(first_row(command=command), command=command))
    for run in (store.sweep(), store.combinations()[FIRST]):
        assert "```" not in run.data.tags[NOTE]
        assert f"`` {command.strip()} ``" in run.data.tags[NOTE]


def test_a_deleted_experiment_is_restored(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.send(small())
    store.client.delete_experiment(store.experiment().experiment_id)
    store.send(small(sweep_id="s2"))
    assert "was deleted; it is restored" in caplog.text
    assert store.experiment().lifecycle_stage == "active"


def test_two_sweeps_may_make_one_experiment_at_once(store: Store) -> None:
    barrier = threading.Barrier(4)

    def one(number: int) -> None:
        tracker = store.tracker()
        barrier.wait()
        tracker.open(sweep_info(small(sweep_id=f"s{number}")))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    assert [e.name for e in store.client.search_experiments()].count("quickstart") == 1


def test_a_refused_view_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
    from mlflow.tracking import MlflowClient

    def refuse(*_: Any) -> None:
        raise MlflowException("no such thing as a view", error_code=INVALID_PARAMETER_VALUE)

    monkeypatch.setattr(MlflowClient, "set_experiment_tag", refuse)
    store.send(small())
    assert len(store.combinations()) == 2
    assert "took no saved view" in caplog.text


@pytest.mark.parametrize(("code", "told"), [("PERMISSION_DENIED", False), ("TEMPORARILY_UNAVAILABLE", True)])
def test_a_history_refused_costs_itself(store: Store, monkeypatch: pytest.MonkeyPatch, code: str, told: bool) -> None:
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
        store.send(small(), history=True)
    assert (store.sweep().info.status, len(store.combinations())) == ("FINISHED", 2)
    assert "[report]" in store.sweep().data.tags[NOTE]
    assert "[history]" not in store.sweep().data.tags[NOTE]


def test_views_of_every_sweep_are_written_and_old_ones_dropped(store: Store) -> None:
    for number in range(1, 13):
        links = store.tracker().open(sweep_info(night(number)))
    assert links.needs_viewer
    assert links.comparison.startswith(
        "http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey=sweeprof-s12-table"
    )
    views = {key for key in store.experiment().tags if key.startswith("mlflow.sharedViewState.")}
    kinds = ("table", "charts")
    assert views == {f"mlflow.sharedViewState.sweeprof-s{n}-{kind}" for n in range(3, 13) for kind in kinds}


def test_passwords_are_neither_shown_nor_sent(store: Store) -> None:
    of = small(command="python -m sweeprof tracking.uri=https://me:secret@mlflow.example.com")
    config = {"tracking": {"uri": "https://me:secret@host"}}
    store.send(of, [dataclasses.replace(record, config=config) for record in records(of)])
    stored = "".join(path.read_text(errors="replace") for path in (store.output / "mlflow-artifacts").rglob("*.*"))
    assert "https://host" in stored
    assert "secret" not in stored
    assert "secret" not in json.dumps([run.to_dictionary() for run in store.client.search_runs(["1"])])


def test_the_environment_of_the_process_is_left_alone(store: Store) -> None:
    before = dict(os.environ)
    store.send(small())
    assert {name: value for name, value in os.environ.items() if before.get(name) != value} == {}


def test_what_was_shown_is_sent_again_only_if_it_changed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    of, tracker, ids = small(), store.tracker(), [FIRST]
    found, folder = records(of), store.folder(of)
    folder.mkdir(parents=True)
    sent = list[str]()
    log = MlflowClient.log_batch

    def noted(self: MlflowClient, run_id: str, *words: Any, **named: Any) -> None:
        sent.append(self.get_run(run_id).data.tags["sweeprof.kind"])
        log(self, run_id, *words, **named)

    tracker.open(sweep_info(of))
    monkeypatch.setattr(MlflowClient, "log_batch", noted)
    for done in (2, 3):
        tracker.show(dataclasses.replace(of, running=Progress(done, 6)), found, folder, ids)
    assert sent == ["combination", "sweep", "sweep"]
    assert "running: 3 of 6 trials have ended" in store.sweep().data.tags[NOTE]
    shown = store.combinations()
    assert (store.sweep().info.status, list(shown), shown[FIRST].info.status) == ("RUNNING", ids, "FINISHED")
    sent.clear()
    tracker.close(of, found, folder, "finished")
    assert Counter(sent) == {"combination": 2, "sweep": 1}
    assert store.combinations()[FIRST].info.run_id == shown[FIRST].info.run_id
    assert "running:" not in store.sweep().data.tags[NOTE]


def test_layers_logged_from_a_loop_are_artifacts_of_its_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store.output / 'mlflow.db'}")
    layers = sweeprof.profile(nn.Linear(8, 32), (1, 8)).layers
    experiment = store.client.create_experiment("loop", artifact_location=(store.output / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=experiment) as run:
        sweeprof.log_layers(layers)
    sweeprof.log_layers(layers, name="later", run_id=run.info.run_id)
    assert store.artifacts(run) == {"layers.csv", "layers.html", "later.csv", "later.html"}
    assert mlflow.artifacts.load_text(f"{run.info.artifact_uri}/layers.csv") == layers.to_csv()


def test_a_tag_stands_for_one_sweep_here_and_in_mlflow(store: Store, tmp_path: Path) -> None:
    old, new = night(20), night(21)
    target = tmp_path / "found.json"

    def fetched(reference: str) -> Comparison:
        sweep_runs.fetch(store.client, reference, target)
        return comparison_from(json.loads(target.read_text()))

    for of in (old, new):
        store.send(of)
    for of in (new, old):  # the tag moves
        sweep_runs.set_tag(store.client, "nightly", of.sweep_id)
        assert fetched("tag:nightly") == of
    notes = {run.data.tags["sweeprof.sweep_id"]: run.data.tags[NOTE] for run in store.search("sweep")}
    assert "\n\nBaseline **nightly**" in notes["s20"]
    assert "Baseline" not in notes["s21"]
    of_new = "tags.`sweeprof.sweep_id` = 's21'"
    for run in (store.search("sweep", of_new)[0], store.search("combination", of_new)[0]):
        assert fetched(run.info.run_id) == new
    with pytest.raises(LookupError, match=r"no run has the tag baseline\.absent"):
        fetched("tag:absent")
    with pytest.raises(LookupError, match="there is no run of the sweep s9"):
        sweep_runs.set_tag(store.client, "nightly", "s9")


def test_temporary_files_may_be_on_another_file_system(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system")
    store.send(night(20))
    target = tmp_path / "fetched"
    target.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(memory))
    sweep_runs.fetch(store.client, store.sweep().info.run_id, target / "found.json")
    assert [path.name for path in target.iterdir()] == ["found.json"]


@pytest.mark.thorough
def test_another_process_asks_mlflow_where_there_is_no_folder(store: Store) -> None:
    of = night(20)
    store.send(of)
    write_plan = store.folder(of) / "plan.json"
    write_plan.write_text(json.dumps({"sweep_id": of.sweep_id}))
    place = SweepLocations(store.output)
    sweep_runs.set_tag(store.client, "nightly", of.sweep_id)
    assert read_sweep(located("tag:nightly", place, "BASE"), "tag:nightly", "BASE") == of
    with pytest.raises(UserError, match=r"BASE: 'mlflow:abc' cannot be downloaded: .*abc"):
        located("mlflow:abc", place, "BASE")
