"""Throughput in the workload's own unit: every number is counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from support.planning import fake_config
from support.plans import fake_plan, sweep_folder
from sweeprof.datasets import ArraySpec, Auto, ModelInputs, Split
from sweeprof.datasets.collate import Pad
from sweeprof.errors import DatasetError
from sweeprof.measuring.inputs import Inputs, Workload, workload_of
from sweeprof.measuring.timing import Timing
from sweeprof.metrics import latency
from sweeprof.metrics.compute import by_unit, in_units
from sweeprof.metrics.metric import Estimate, builtin_metrics
from sweeprof.plan.plan import ComparisonSettings
from sweeprof.profiling.profiler import Profiler, profile
from sweeprof.report.columns import shown_metrics
from sweeprof.report.csv import csv_text
from sweeprof.report.explore import page_data
from sweeprof.report.terminal import text as terminal_text
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import Record
from sweeprof.run.comparison import comparison_of
from sweeprof.tracking.runs import tracked_keys


class Texts:
    """Texts of three, one and two tokens."""

    unit = "tokens"

    def split(self, name: str) -> Split:
        texts = [{"input_ids": np.array(ids)} for ids in ([5, 6, 7], [8], [9, 4])]
        return Split(texts, None, collate=Pad())


class Fixed(Texts):
    """The same texts, padded to eight tokens."""

    units_per_sample = 8

    def split(self, name: str) -> Split:
        return Split(super().split(name).inputs, None, collate=Pad(length=8))


class Clips:
    """Audio of 100 and 50 values, 200 a second."""

    unit = "seconds of audio"

    def split(self, name: str) -> Split:
        return Split([np.ones(100, np.float32), np.ones(50, np.float32)], None, collate=Pad())

    def units_in(self, inputs: Any) -> float:
        return float(np.count_nonzero(inputs)) / 200


class Images:
    unit = "pixels"
    units_per_sample = 16 * 16

    def split(self, name: str) -> Split:
        return Split(np.zeros((2, 3, 16, 16), np.float32), None)


def counted(dataset: Any, size: int) -> Workload:
    split = dataset.split("test")
    batch, _ = split.batch(np.arange(size) % len(split))
    return workload_of(dataset, Inputs.from_batch(batch, split.pass_as), size)


def test_padding_is_no_work() -> None:
    assert counted(Texts(), 1) == Workload("tokens", 3)
    assert counted(Texts(), 3) == Workload("tokens", 3 + 1 + 2)  # of a batch of 3 x 3
    assert counted(Texts(), 4) == Workload("tokens", 3 + 1 + 2 + 3)  # begins again
    assert counted(Fixed(), 3) == Workload("tokens", 3 + 1 + 2)  # of a batch of 3 x 8
    assert counted(Clips(), 2) == Workload("seconds of audio", 100 / 200 + 50 / 200)  # of a batch of 2 x 100


def test_fixed_sizes() -> None:
    assert counted(Images(), 2) == Workload("pixels", 512)
    described = ModelInputs({"x": ArraySpec((3, 8, 8))}, "positional", unit="images")
    assert counted(Auto(described.to_dict()), 5) == Workload("images", 5)
    ids = ArraySpec((12,), "int64", high=9)
    masked = {"input_ids": ids, "attention_mask": ArraySpec((12,), "int64", low=1), "decoder_input_ids": ids}
    both = ModelInputs(
        masked, unit="tokens", units_per_sample=24
    )  # 12 of the encoder, 12 of the decoder, which has no mask
    assert counted(Auto(both.to_dict()), 2) == Workload("tokens", 48)
    assert counted(type("Plain", (), {"split": Images.split})(), 2) == Workload("samples", 2)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"unit": 3}, "unit 3 must be a noun in the plural of up to 40 characters, such as 'tokens'"),
        ({"unit": "a\nb"}, r"unit 'a\\nb' must be a noun"),
        ({"units_per_sample": 2}, "unit None must be a noun"),
        ({"unit": "frames"}, "unit 'frames' needs a number of units in a batch: units_per_sample, a method units_in"),
        ({"unit": "tokens"}, "unit 'tokens' needs a number of units"),
        ({"unit": "frames", "units_per_sample": 0}, "units_per_sample is 0, which is not a number above 0"),
        ({"unit": "frames", "units_per_sample": "2"}, "units_per_sample is '2', which is not"),
        ({"unit": "frames", "units_in": 3}, r"units_in 3 is not a method units_in\(inputs\)"),
        ({"unit": "frames", "units_in": lambda self, inputs: float("nan")}, r"units_in\(inputs\) returned nan"),
    ],
)
def test_attributes_of_another_form(attributes: dict[str, Any], message: str) -> None:
    dataset = type("Odd", (), {"split": Images.split, **attributes})()
    with pytest.raises(DatasetError, match=f"dataset .*Odd: {message}"):
        counted(dataset, 2)


def test_a_batch_of_padding_alone() -> None:
    nothing = type("Empty", (), {"unit": "tokens"})()
    with pytest.raises(DatasetError, match="the number of tokens by the attention_mask is 0"):
        workload_of(nothing, Inputs(kwargs={"attention_mask": np.zeros((2, 3))}), 2)


def estimate(timing: Timing) -> Estimate:
    found = latency.units_per_s({"timing": (timing,)})
    return cast("Estimate", found)


def test_the_metric_is_work_over_the_time_of_a_step() -> None:
    timing = Timing(1.0, 0, 1, (0.25, 0.5, 1.0), workload=Workload("tokens", 6))
    assert (estimate(timing).value, estimate(timing).unit) == (12.0, "tokens/s")
    trained = Timing(1.0, 0, 1, (2.0,), phases={"forward": (0.5,)}, workload=Workload("tokens", 6))
    assert estimate(trained).value == pytest.approx(3.0)  # of the whole step
    earlier = latency.units_per_s({"timing": (Timing(1.0, 0, 1, (1.0,)),)})
    assert "it is not known how much work a step does" in earlier.reason


def test_a_profiler_of_a_config_counts_the_batch() -> None:
    config = fake_config("dataset=auto", "batch_size=3", "protocol=quick", "metrics=latency")
    config["dataset"]["inputs"] = ModelInputs(
        {"x": ArraySpec((2, 3))}, "positional", unit="frames", units_per_sample=2
    ).to_dict()
    timing = Profiler.from_config(config).run("timing")
    assert isinstance(timing, Timing)
    assert timing.workload == Workload("frames", 6)


METRICS = ("latency/forward", "throughput/samples_per_s", "throughput/units_per_s")


def compared(
    path: Path, work: dict[str, tuple[float, Workload | None]], metrics: tuple[str, ...] = METRICS, **fields: Any
) -> Comparison:
    plan = fake_plan({name: {} for name in work}, ["timing"], metrics=metrics)
    folder = sweep_folder(path, replace(plan, **fields))
    for name, (seconds, workload) in work.items():
        timing = Timing(1.0, 0, 1, (seconds,), workload=workload).to_dict()
        Record("s1", f"c{name}", "timing", "ok", observations=timing).write(folder.records)
    return comparison_of(folder)


def value(comparison: Comparison, row: int, metric: str) -> Measurement:
    return comparison.rows[row].cells[metric].measurement


def test_each_unit_is_a_metric(tmp_path: Path) -> None:
    tokens, images = Workload("tokens", 6), Workload("images", 1)
    found = compared(tmp_path, {"bert": (0.5, tokens), "gpt": (0.25, tokens), "vit": (0.125, images)})
    names = ["latency/forward", "throughput/samples_per_s", "throughput/tokens_per_s", "throughput/images_per_s"]
    assert [info.name for info in found.metrics] == names
    assert [info.unit for info in found.metrics][2:] == ["tokens/s", "images/s"]
    assert [value(found, row, names[2]).value for row in range(2)] == pytest.approx([12.0, 24.0])
    assert value(found, 2, names[2]).reason == "the work of this combination is counted in images"
    assert [value(found, row, names[3]).value for row in range(2)] == [None, None]
    assert value(found, 2, names[3]).value == pytest.approx(8.0)
    cells = [row.cells for row in found.rows]
    assert cells[1][names[2]].ratio == pytest.approx(2.0)
    assert cells[2][names[2]].ratio is cells[2][names[3]].ratio is None  # nothing is compared across units
    assert csv_text(found).splitlines()[0].split(",")[-4:] == names
    assert tracked_keys(found)[names[2]] == "throughput/tokens_per_s"


def test_tables_show_the_unit(tmp_path: Path) -> None:
    found = compared(tmp_path / "a", {"bert": (0.5, Workload("tokens", 6000)), "gpt": (0.25, Workload("tokens", 6000))})
    text = terminal_text(found, 140)
    assert "throughput (tokens/s)" in text
    assert "12.0 k/s" in text
    assert [m["unit"] for m in page_data(found)["metrics"]][-1] == "tokens/s"
    same = compared(tmp_path / "b", {"vit": (0.5, Workload("images", 1)), "resnet": (0.25, Workload("images", 1))})
    assert [info.name for info in shown_metrics(same)][1:] == ["throughput/images_per_s"]  # the same numbers once


def test_samples_are_shown_as_before(tmp_path: Path) -> None:
    samples = Workload("samples", 1)
    found = compared(tmp_path / "a", {"a": (0.5, samples), "b": (0.25, samples)})
    assert [info.name for info in found.metrics] == list(METRICS[:2])
    alone = compared(tmp_path / "b", {"a": (0.5, samples)}, METRICS[2:])
    assert [info.name for info in alone.metrics] == ["throughput/samples_per_s"]
    assert value(alone, 0, "throughput/samples_per_s").value == 2.0
    unknown = compared(tmp_path / "c", {"a": (0.5, None)}, METRICS[2:])
    assert "it is not known how much work a step does" in (value(unknown, 0, "throughput/units_per_s").reason or "")


def test_a_constraint_may_name_a_unit_that_no_combination_has(tmp_path: Path) -> None:
    compare = ComparisonSettings(constraints=["tokens_per_s > 10", "throughput/images_per_s > 1"])
    found = compared(tmp_path, {"a": (0.5, Workload("tokens", 6)), "b": (1.0, Workload("tokens", 6))}, compare=compare)
    assert [info.name for info in found.metrics][2:] == ["throughput/tokens_per_s", "throughput/images_per_s"]
    assert [len(row.misses) for row in found.rows] == [1, 2]
    assert "counted in tokens" in found.rows[0].misses[0]


def test_of_metrics_without_a_unit_of_the_workload_nothing_changes() -> None:
    infos = [builtin_metrics()[name].info for name in METRICS[:2]]
    own = {info.name: Measurement(info.name, info.unit, info.better, 1.0) for info in infos}
    assert by_unit(infos, {"a": own}) == (tuple(infos), {"a": own})
    assert in_units(infos, ["tokens"]) == infos


def test_a_profile_names_the_unit() -> None:
    torch = pytest.importorskip("torch")
    found = profile(torch.nn.Linear(3, 2), torch.zeros(5, 3), ["throughput/samples_per_s", "throughput/units_per_s"])
    assert found["throughput/units_per_s"].unit == "samples/s"
    assert found["throughput/units_per_s"].value == found["throughput/samples_per_s"].value
    lines = {line.split()[0]: line for line in str(found).splitlines() if line.startswith("throughput/")}
    assert " samples/s [" in lines["throughput/units_per_s"]
