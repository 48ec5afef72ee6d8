"""The library's objects at the prompt and in notebooks: their HTML has the numbers that the objects have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest
import torch
from torch import nn

import sweeprof
from support.samples import comparison as sample
from sweeprof.report.answer import answer
from sweeprof.report.view import MOST_ROWS
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.measurement import Measurement

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"


class Lenet(nn.Module):
    """Two convolutions, of which one is called twice."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 5, padding=2)
        self.again = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.again(self.again(self.first(x)).relu())
        result: torch.Tensor = self.head(y.mean((2, 3)))
        return result


@dataclass
class Cell:
    text: str
    value: float | None
    span: int
    title: str


@dataclass
class Table:
    headings: list[str]
    rows: list[list[Cell]]

    def column(self, heading: str) -> list[Cell]:
        place = self.headings.index(heading)
        return [row[place] for row in self.rows]


def text_of(element: Element) -> str:
    return "".join(element.itertext())


class Parsed:
    """The tables and paragraphs of a fragment, which is XML, and its elements."""

    def __init__(self, html: str) -> None:
        root = fromstring(html)
        self.elements = {element.tag for element in root.iter()}
        self.paragraphs = [text_of(paragraph) for paragraph in root.iter("p")]
        self.tables: list[Table] = []
        for found in root.iter("table"):
            table = Table([text_of(heading) for heading in found.iter("th")], [])
            self.tables.append(table)
            for row in found.findall("tbody/tr"):
                table.rows.append([])
                for cell in row:
                    value = cell.get("data-value")
                    number = None if value is None else float(value)
                    span, title = int(cell.get("colspan", "1")), cell.get("title", "")
                    table.rows[-1].append(Cell(text_of(cell), number, span, title))

    @property
    def text(self) -> str:
        cells = [cell.text for table in self.tables for row in table.rows for cell in row]
        return "\n".join([*self.paragraphs, *cells])


def html_of(thing: Any) -> Parsed:
    html: str = thing._repr_html_()
    assert "\x1b" not in html
    return Parsed(html)


@pytest.fixture(scope="module")
def profiled() -> sweeprof.Profile:
    return sweeprof.profile(Lenet(), (2, 1, 12, 12))


def test_a_profile_is_a_table_of_its_values(profiled: sweeprof.Profile) -> None:
    (table,) = html_of(profiled).tables
    assert [cell.text for cell in table.column("metric")] == list(profiled)
    assert [cell.value for cell in table.column("value")] == [one.value for one in profiled.values()]
    assert table.column("value")[list(profiled).index("size/params_bytes")].text == "2.15 KiB"
    title, conditions = html_of(profiled).paragraphs
    assert title == "Lenet: 17 metrics"
    assert conditions.endswith("float32 parameters · inputs float32[2, 1, 12, 12]")


def test_measurements_keep_their_unit_and_the_reason_why_there_is_none() -> None:
    profiler = sweeprof.Profiler(Lenet(), inputs=(2, 1, 12, 12))
    found = profiler.compute_all(["size/params_bits", "quality/accuracy"])
    assert repr(found["size/params_bits"]) == "size/params_bits: 17,600 bit (17,600 bit, exact)"
    reason = found["quality/accuracy"].reason
    assert reason is not None
    assert repr(found["quality/accuracy"]) == f"quality/accuracy: – ({reason})"
    (bits,) = html_of(found).tables[0].rows
    assert (bits[1].text, bits[1].value) == ("17,600 bit", 17_600)
    assert f"No quality/accuracy: {reason}" in html_of(found).paragraphs
    assert html_of(profiler.status).tables == html_of(found).tables
    assert reason in profiler.to_text(width=300)
    assert "Lenet" in html_of(profiler).paragraphs[0]


def test_layers_are_called_as_torch_prints_them(profiled: sweeprof.Profile) -> None:
    layers, model = profiled.layers, Lenet()
    (table,) = html_of(layers).tables
    names = [cell.text for cell in table.column("layer")]
    assert [line.strip() for line in repr(model).splitlines()][1:-1] == [names[1], names[2], names[4]]
    assert names[3] == f"{names[2]} (recursive)"
    lines = layers.to_text(width=300).splitlines()
    assert all(any(name in line for line in lines) for name in names)
    inclusive = layers.inclusive()
    assert [cell.value for cell in table.column("MACs")] == [row.macs for row in inclusive.rows]
    assert table.column("MACs")[0].value == profiled["compute/macs"].value
    total = sum(parameter.numel() for parameter in model.parameters())
    assert [cell.value for cell in table.column("params")] == [total, 156, 324, None, 70]
    assert [cell.title for cell in table.column("layer")] == [row.path for row in layers.rows]


def test_constructor_arguments_are_stored_and_absent_in_earlier_records(profiled: sweeprof.Profile) -> None:
    data = json.loads(json.dumps(profiled.layers.to_dict()))
    assert data["rows"][1]["arguments"] == "1, 6, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2)"
    assert sweeprof.LayerTable.from_dict(data).rows == profiled.layers.rows
    for row in data["rows"]:
        del row["arguments"]
    earlier = sweeprof.LayerTable.from_dict(data)
    assert "├─(first): Conv2d  " in earlier.to_text(width=300)


def test_a_module_whose_own_code_for_printing_fails_is_profiled() -> None:
    class Odd(nn.Linear):
        def extra_repr(self) -> str:
            raise RuntimeError("no")

    class Long(nn.Linear):
        def extra_repr(self) -> str:
            return "x" * 10_000 + HOSTILE

    layers = sweeprof.profile(nn.Sequential(Odd(2, 2), Long(2, 2)), (1, 2)).layers
    assert layers.rows[1].arguments == ""
    assert len(layers.rows[2].arguments) < 300


def test_a_large_model_is_shown_down_to_the_level_that_fits() -> None:
    model = nn.Sequential(*(nn.Sequential(*(nn.Linear(2, 2) for _ in range(30))) for _ in range(10)))
    layers = sweeprof.profile(model, (1, 2)).layers
    parsed = html_of(layers)
    assert [row[0].text for row in parsed.tables[0].rows] == [
        "Sequential",
        *(f"({place}): Sequential" for place in range(10)),
    ]
    assert parsed.tables[0].column("params")[3].value == 30 * 6
    assert "and 300 more rows" in parsed.text
    assert len(str(layers).splitlines()) > 311  # the text is complete


def test_a_comparison_of_two_models_begins_with_the_answer() -> None:
    teacher, student = (sweeprof.profile(Lenet(width), (2, 1, 12, 12)) for width in (6, 2))
    found = sweeprof.compare(teacher, student)
    parsed = html_of(found)
    (table,) = parsed.tables
    assert [cell.text for cell in table.column("metric")] == [one.name for one in found] == list(teacher)
    for name in ("baseline", "candidate", "ratio"):
        assert [cell.value for cell in table.column(name)] == [getattr(one, name) for one in found]
    assert [cell.text for cell in table.column("verdict")] == [one.verdict or "" for one in found]
    ratio = next(one.improvement or 0 for one in found if one.name == "compute/macs")
    assert parsed.paragraphs[0] == f"By MACs/sample, candidate is {ratio:.1f}× lower than baseline."
    assert str(found).startswith(parsed.paragraphs[0])
    assert list(found.to_frame()["ratio"].dropna()) == [one.ratio for one in found if one.ratio is not None]


def test_a_comparison_of_a_sweep_is_its_report() -> None:
    comparison = sample()
    parsed = html_of(comparison)
    told = answer(comparison)
    assert parsed.paragraphs[:2] == [told.finding, told.rest]
    assert str(comparison).startswith(told.finding[:60])
    best, *tables = parsed.tables
    assert told.best is not None
    assert len(best.rows) == len(told.best.lines)
    shown = [cell.value for table in tables for cell in table.column("latency ↓") if cell.span == 1]
    measured = [row.cells["latency/forward"].measurement.value for row in comparison.rows if row.has_values]
    assert {value for value in shown if value is not None} == {value for value in measured if value is not None}
    texts = {cell.text for table in tables for row in table.rows for cell in row}
    failed = {f"{row.status}: {row.reason}" for row in comparison.rows if not row.has_values}
    assert failed
    assert failed <= texts


def test_a_sweep_without_any_result_shows_the_reasons() -> None:
    comparison = sample()
    failed = tuple(row for row in comparison.rows if not row.has_values)
    for alone in (failed, failed[:1]):
        (table,) = html_of(replace(comparison, rows=alone)).tables
        assert [row[-1].text for row in table.rows] == [f"{row.status}: {row.reason}" for row in alone]


def test_a_very_long_comparison_is_cut() -> None:
    comparison = sample(models=("mlp",))
    with pytest.raises(sweeprof.UserError, match="has no folder"):
        _ = comparison.folder
    rows = comparison.rows * (MOST_ROWS // len(comparison.rows) + 2)
    many = Comparison(**{**vars(comparison), "rows": rows})
    _, table = html_of(many).tables
    assert len(table.rows) == MOST_ROWS
    assert f"and {len(rows) - MOST_ROWS} more rows" in str(many)


def test_hostile_names_have_no_meaning() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(HOSTILE.replace(".", ""), nn.Linear(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = next(self.children())(x)
            return result

        def extra_repr(self) -> str:
            return HOSTILE

    found = sweeprof.profile(Model(), (1, 2))
    for thing in (found, found.layers, sweeprof.side_by_side(found.layers, found.layers)):
        parsed = html_of(thing)
        assert "script" not in parsed.elements
        assert not {"\x1b", "\u202e"} & set(parsed.text)
        assert "\x1b" not in repr(thing)


def test_the_html_leaves_colours_to_the_page(profiled: sweeprof.Profile) -> None:
    """A dark notebook has light text: nothing may set a colour of text or background of its own."""
    style = profiled._repr_html_().partition("<style>")[2].partition("</style>")[0]
    rules = [rule.strip() for block in style.split("{")[1:] for rule in block.partition("}")[0].split(";")]
    colours = {rule.partition(":")[2].strip() for rule in rules if rule.partition(":")[0] in ("color", "background")}
    assert colours == {"inherit", "none"}


@pytest.fixture(scope="module")
def profiler() -> sweeprof.Profiler:
    protocol = sweeprof.Protocol(min_s=0.01, warmup_s=0.01, min_samples=3)
    return sweeprof.Profiler(Lenet(), inputs=(2, 1, 12, 12), protocol=protocol, progress=False)


@pytest.mark.slow
def test_passes_print_as_tables(profiler: sweeprof.Profiler) -> None:
    def seen(name: str) -> tuple[Any, list[Table]]:
        result = profiler.seen(name)
        return result, html_of(result).tables

    times, (table, *_) = seen("layer_times")
    assert {row[0].text: row[1].text for row in table.rows}["mode"] == times.mode
    (layers,) = html_of(profiler.layers).tables
    assert layers.column("forward")[0].value == profiler.layers.inclusive().rows[0].forward_s
    operators, (by_name, table) = seen("operators")
    assert [cell.value for cell in by_name.column("total")] == [total.total_s for total in operators.totals()[:20]]
    top = operators.top(20)
    assert [cell.value for cell in table.column("self time")] == [row.self_s for row in top]
    assert html_of(top[:2]).tables[0].rows == table.rows[:2]
    allocations, (_, by_layer, tensors) = seen("allocations")
    assert [cell.value for cell in by_layer.column("most alive")] == [row.peak_bytes for row in allocations.by_layer]
    assert [cell.value for cell in tensors.column("bytes")] == [row.bytes for row in allocations.tensors]
    lines, (table,) = seen("lines")
    assert [cell.text for cell in table.column("source")] == [line.source for line in lines.functions[0].lines]
    for name, field in (("timing", "first_step_s"), ("training", "backward_macs")):
        result, (table,) = seen(name)
        assert {row[0].text: row[1].value for row in table.rows}[field] == getattr(result, field)


@pytest.mark.slow
def test_what_is_printed_keeps_to_the_width_and_names_what_it_leaves_out(profiler: sweeprof.Profiler) -> None:
    layers = profiler.layers
    things: list[Any] = [
        profiler.compute_all(["latency/forward", "latency/backward", "memory/rss_peak_bytes", "compute/macs"]),
        *(profiler.seen("operators"), profiler.seen("allocations")),
        *(profiler.seen("lines"), profiler.seen("layer_times")),
        *(profiler.graph, layers, layers.rows, layers.top("macs"), profiler.metrics),
        sweeprof.compare(profiler, profiler.clone(model=Lenet(2)), names=("wide", "narrow")),
        sweeprof.side_by_side(layers, layers),
        sweeprof.live_tensors(Lenet()),
        *(sample(), sample().rows),
    ]
    for width in (40, 80, 120):
        for thing in things:
            for line in thing.to_text(width=width).splitlines():
                # A word that is longer than the line, such as the path of a file, is not broken.
                assert len(line) <= width or " " not in line.strip(), (type(thing), line)
        needed = re.search(r"to_text\(width=(\d+)\)", " ".join(layers.to_text(width=width).split()))
        assert needed is not None
        complete = layers.to_text(width=int(needed[1]))
        assert "Not shown" not in complete
        assert layers.to_text(width=1000).splitlines()[:8] == complete.splitlines()[:8]


def test_notes_that_do_not_fit_stand_below_the_table() -> None:
    left: Mapping[str, Measurement] = sweeprof.profile(Lenet(), (2, 1, 12, 12), ["compute/macs", "params/total"])
    found = sweeprof.compare(dict(left), {"compute/macs": left["compute/macs"]})
    assert "params/total: the candidate has no such metric" in found.to_text(width=60).splitlines()
    assert found.to_text(width=100).splitlines()[-1].endswith("the candidate has no such metric")


def test_lists_of_rows_print_as_tables(profiled: sweeprof.Profile) -> None:
    layers = profiled.layers
    (table,) = html_of(layers.rows).tables
    assert [cell.value for cell in table.column("macs")] == [row.macs for row in layers.rows]
    (table,) = html_of(layers.rows[1]).tables
    assert {row[0].text: row[1].value for row in table.rows}["params"] == 156
    top = layers.top("macs", 2)
    assert [cell.value for cell in html_of(top).tables[0].column("share")] == [share for _, _, share in top]
    tensors = sweeprof.live_tensors(Lenet())
    (table,) = html_of(tensors).tables
    assert [cell.value for cell in table.column("bytes")] == [row.bytes for row in tensors[:MOST_ROWS]]
    kept = Lenet()
    assert "added" in str(sweeprof.tensor_difference(tensors, sweeprof.live_tensors(kept)))
    rows = sweeprof.side_by_side(layers, sweeprof.profile(Lenet(2), (2, 1, 12, 12)).layers, ("wide", "narrow"))
    table = html_of(rows).tables[0]
    assert [cell.value for cell in table.column("MACs narrow")] == [row.figures["macs"].right for row in rows]
    assert html_of(sweeprof.side_by_side(layers, layers)).paragraphs[0] == "0 of 5 layers differ"
    comparison = sample()
    (table,) = html_of(comparison.rows).tables
    assert [cell.text for cell in table.column("status")] == [row.status for row in comparison.rows]
    cells = comparison.rows[0].cells.values()
    (table,) = html_of(comparison.rows[0]).tables
    assert [cell.value for cell in table.column("value")] == [cell.measurement.value for cell in cells]
    record = sweeprof.Record("s1", "c1", "timing", "failed", "no luck", axes={"batch_size": 8}, wall_s=1.5)
    assert str(record).startswith("Record\n")


def test_what_watches_a_loop_says_how_far_it_is() -> None:
    model = Lenet()
    profiler = sweeprof.TrainingProfiler(model, profile_step=1)
    assert repr(profiler) == "TrainingProfiler of Lenet: step 1 is not made yet, 0 steps so far"
    for _ in range(2):
        with profiler.step():
            model(torch.zeros(2, 1, 12, 12)).sum().backward()
    cells = {row[0].text: row[1].value for row in html_of(profiler).tables[0].rows}
    assert cells["backward_s"] == profiler.iteration.backward_s
    assert html_of(profiler.iteration).tables == html_of(profiler).tables
    with sweeprof.session(model) as watched:
        assert "Lenet is watched" in repr(watched)
    assert "Lenet is not watched now" in html_of(watched).text


def test_inputs_are_described_without_their_elements() -> None:
    batch = torch.zeros(8, 3, dtype=torch.int64)
    inputs = sweeprof.Inputs((batch, [batch] * 20), {"mask": None, "size": {"width": 3}})
    inner = ", ".join(["int64[8, 3]"] * 8)
    assert repr(inputs) == f"<Inputs(int64[8, 3], [{inner}, and 12 more], mask=None, size={{width: 3}})>"
    formulas = sweeprof.Formulas({nn.Linear: lambda *_: sweeprof.Cost(macs=1)})
    assert repr(formulas) == "<Formulas of Linear>"


def test_metrics_are_a_table_of_what_they_are() -> None:
    profiler = sweeprof.Profiler(Lenet(), inputs=(2, 1, 12, 12))
    (table,) = html_of(profiler.metrics).tables
    assert [cell.text for cell in table.column("name")] == list(profiler.metrics)
    known = profiler.metrics["latency/forward"].info
    place = list(profiler.metrics).index("latency/forward")
    assert [cell.text for cell in table.rows[place]] == [known.name, "s", "lower", known.definition]
