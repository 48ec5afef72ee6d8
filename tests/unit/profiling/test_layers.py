"""Layers of a profile: modules chosen before anything is measured, figures of other profilers, functional operators, formulas."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

import sweeprof
from support.peer_models import LeNet5, ResNet18C100
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.backends.torch.layer_times import ModuleProbes
from sweeprof.counting.formulas import Cost, Formula, Formulas, ModulePattern, ModuleSelection, outermost
from sweeprof.errors import UserError
from sweeprof.measuring.timing import WallClock
from sweeprof.metrics.metric import builtin_metrics
from sweeprof.profiling.layers import Layers
from sweeprof.results.layer_times import OUTSIDE, ROOT, CallTime, LayerTimes, PhaseTimes
from sweeprof.zoo import lenet5

QUICK = sweeprof.Protocol(min_s=0.02, warmup_s=0.0, min_samples=5)
MODULES: dict[str, type | str] = {
    ROOT: nn.Sequential,
    "stem": nn.Conv2d,
    "body": nn.Sequential,
    "body.0": nn.Conv2d,
    "body.1": nn.BatchNorm2d,
    "head": nn.Linear,
}


@pytest.mark.parametrize(
    ("include", "exclude", "kept"),
    [
        ((), "stem", [ROOT, "body", "body.0", "body.1", "head"]),
        ((), "body", [ROOT, "stem", "head"]),
        ((), "body.*", [ROOT, "stem", "body", "head"]),
        ((), nn.Conv2d, [ROOT, "body", "body.1", "head"]),
        ((), "*Norm*", [ROOT, "stem", "body", "body.0", "head"]),
        ("body", (), ["body", "body.0", "body.1"]),
        (["body", nn.Linear], nn.BatchNorm2d, ["body", "body.0", "head"]),
        ((), (), list(MODULES)),
    ],
)
def test_names_globs_and_types(include: Any, exclude: Any, kept: list[str]) -> None:
    excluded = ModuleSelection.of(include, exclude).excluded(MODULES)
    assert [path for path in MODULES if path not in excluded] == kept
    assert (OUTSIDE in excluded) == bool(include)


def test_a_class_is_known_by_its_name_where_there_are_only_names() -> None:
    names: dict[str, type | str] = {path: kind.__name__ for path, kind in MODULES.items() if isinstance(kind, type)}
    assert ModuleSelection.of((), nn.Conv2d).excluded(names) == {"stem", "body.0"}


def test_paths_without_those_inside_them() -> None:
    assert outermost({"body", "body.0", "body.1", OUTSIDE}) == ("body",)
    assert outermost({ROOT, "stem", "body.1"}) == (ROOT, "body.1")


@pytest.mark.parametrize(
    ("include", "exclude", "message"),
    [
        ((), "haed", "exclude: 'haed' matches no module of the model. Did you mean 'head'?"),
        ("Conv3d", (), "include: 'Conv3d' matches no module of the model. Did you mean 'Conv2d'?"),
        ((), nn.LSTM, "exclude: 'LSTM' matches no module of the model."),
        ((), "*", "exclude: '*' leaves no module to measure."),
        (3, (), "include: 3 must be a path, a glob, a class or its name, or several of these."),
    ],
)
def test_mistakes(include: Any, exclude: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        ModuleSelection.of(include, exclude).excluded(MODULES)
    assert str(caught.value).startswith(message)


def lenet(**settings: Any) -> sweeprof.Profile:
    names = ["compute/macs", "compute/flops", "params/total", "compute/coverage"]
    return sweeprof.profile(lenet5.torch_model(), (2, 1, 32, 32), names, **settings)


def test_the_ignored_modules_of_flops_profiler() -> None:
    """Its ``ignore_list=[nn.Conv2d]`` counts them all the same, in the module around them."""
    whole, without = lenet(), lenet(exclude=[nn.Conv2d])
    convolutions = whole.layers.where(lambda row: row.type == "Conv2d")
    assert without["compute/macs"].value == 2 * (120 * 84 + 84 * 10)
    for name, figure in (("compute/macs", "macs"), ("compute/flops", "flops"), ("params/total", "params")):
        assert without[name].value == whole[name].value - getattr(convolutions, figure)
    assert without.layers.excluded == ("conv1", "conv2", "conv3")
    assert without.layers.inclusive().rows[0].macs == without.layers.macs
    assert "Excluded, and not counted: conv1, conv2, conv3." in str(without.layers)


@pytest.mark.parametrize("chosen", [{"include": "Conv2d"}, {"exclude": ["tanh*", "pool?", "Flatten", nn.Linear]}])
def test_the_same_as_leaving_rows_out_afterwards(chosen: dict[str, Iterable[ModulePattern]]) -> None:
    before, after = lenet(**chosen).layers, lenet().layers
    kept = {row.path for row in before.rows}
    expected = after.where(lambda row: row.path in kept)
    assert before.rows == expected.rows
    assert (before.macs, before.flops, before.params) == (expected.macs, expected.flops, expected.params)
    assert before.inclusive().rows == expected.inclusive().rows


def test_training_steps_and_graphs() -> None:
    profiler = sweeprof.Profiler(lenet5.torch_model(), inputs=(2, 1, 32, 32), include=nn.Conv2d)
    step: Any = profiler.seen("training")
    first, second, third = 2 * 117_600, 2 * 240_000, 2 * 48_000
    assert step.forward_macs == first + second + third
    assert step.backward_macs == first + 2 * second + 2 * third  # no gradient of the inputs
    graph = profiler.graph
    assert graph.macs == step.forward_macs
    reasons = {node.reason for node in graph.nodes if node.operator == "linear"}
    assert reasons == {"the module is excluded"}


def test_shared_weights_count_with_the_first_module_that_is_counted() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    profile = sweeprof.profile(model, (1, 4), ["params/total"], exclude="0")
    assert [row.params for row in profile.layers.rows] == [0, 16]


class Strange(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.linalg.eigvals(x).abs()


def test_an_excluded_module_needs_no_formula() -> None:
    def failing(module: Any, inputs: Any, outputs: Any) -> sweeprof.Cost:
        raise ValueError("not this one")

    model = nn.Sequential(Strange(), nn.Linear(3, 3))
    profile = sweeprof.profile(
        model,
        (3, 3),
        ["compute/macs", "compute/coverage"],
        strict="error",
        exclude=Strange,
        formulas={Strange: failing},
    )
    assert (profile["compute/macs"].value, profile["compute/coverage"].value) == (9, 1.0)


# Times


def test_an_excluded_module_has_no_probe() -> None:
    model = lenet5.torch_model()
    selection = ModuleSelection.of((), ["tanh*", "Conv2d"])
    modules = ModuleProbes(model, WallClock(), False, selection).modules
    assert len(modules) == len(list(model.modules())) - 7
    assert not any(isinstance(module, nn.Tanh | nn.Conv2d) for module in modules)


def test_the_time_of_excluded_modules_stays_in_the_calls_around_them() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.Sequential(nn.Linear(256, 256), nn.ReLU()))
    profiler = sweeprof.Profiler(model, inputs=(64, 256), protocol=QUICK, exclude="1.*")
    times: Any = profiler.seen("layer_times")
    assert [call.path for call in times.calls] == [OUTSIDE, ROOT, "0", "1"]
    layers = profiler.layers
    assert [row.path for row in layers.rows] == [ROOT, "0", "1"]
    assert (layers.rows[2].forward_self_s or 0) > 0
    frame: Any = layers.to_frame().set_index("path")
    assert frame.loc["0", "flops_per_s"] > 0
    assert frame.loc["1", "flops_per_s"] is None  # counts and time are not of the same operators
    assert "Excluded, and not counted: 1.0, 1.1; their time is part of that of the calls around them." in layers.tree()


def call(path: str, parent: int | None, forward: float, backward: float | None = None) -> CallTime:
    backwards = () if backward is None else (backward, 2 * backward)
    return CallTime(path, "M", 0, parent, (forward, 2 * forward), backwards)


TIMES = LayerTimes(
    mode="training",
    calls=(
        call(OUTSIDE, None, 1, 1),
        call(ROOT, None, 2, 2),
        call("a", 1, 4),
        call("a.b", 2, 8, 8),
        call("a.b.c", 3, 16, 16),
    ),
    warmup=0,
    forward=PhaseTimes((31, 62), (31, 62)),
    backward=PhaseTimes((27, 54), (27, 54)),
)


def test_times_of_other_backends_are_put_into_the_calls_around() -> None:
    without = TIMES.without({"a", "a.b"})
    assert [(one.path, one.parent, one.forward, one.backward) for one in without.calls] == [
        (OUTSIDE, None, (1, 2), (1, 2)),
        (ROOT, None, (14, 28), (10, 20)),
        ("a.b.c", 1, (16, 32), (16, 32)),
    ]
    assert without.forward_covered == TIMES.forward_covered == 1
    only = TIMES.without({ROOT, "a", "a.b", OUTSIDE})
    assert [(one.path, one.parent, one.forward) for one in only.calls] == [
        (OUTSIDE, None, (15, 30)),
        ("a.b.c", None, (16, 32)),
    ]


class WithoutSelection(TorchBackend):
    """Counts and times every module, as other backends do."""

    selects_modules = False

    def analyze(self, build: Any, inputs: Any, channel_axis: Any, formulas: Any) -> Any:
        return TorchBackend().analyze(build, inputs, channel_axis, sweeprof.Formulas())

    def layer_times(self, model: Any, work: Any, protocol: Any) -> Any:
        return TorchBackend().layer_times(model, dataclasses.replace(work, selection=ModuleSelection()), protocol)


def test_backends_that_count_every_module_have_the_same_results() -> None:
    chosen: dict[str, Any] = {"inputs": (2, 1, 32, 32), "protocol": QUICK, "exclude": ["Tanh", "conv?"]}
    mine = sweeprof.Profiler(lenet5.torch_model(), **chosen)
    other = sweeprof.Profiler(lenet5.torch_model(), backend=WithoutSelection(), **chosen)
    assert other.layers.rows == mine.layers.rows
    assert other.layers.excluded == mine.layers.excluded
    times: Any = [profiler.seen("layer_times") for profiler in (mine, other)]
    assert [call.path for call in times[0].calls] == [call.path for call in times[1].calls]
    mistaken = sweeprof.Profiler(lenet5.torch_model(), backend=WithoutSelection(), inputs=(2, 1, 32, 32), exclude="x")
    with pytest.raises(UserError, match="'x' matches no module"):
        mistaken.seen("layer_times")


def test_loops_of_your_own() -> None:
    """As nnprofiler's ``attach_backward_hook(name)`` chooses layers."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with sweeprof.session(model, include="2") as watched:
        model(torch.ones(3, 4)).sum().backward()
    assert [row.path for row in watched.layers.rows] == ["2"]
    assert {call.path for call in watched.times.calls} == {OUTSIDE, "2"}
    assert watched.layers.rows[0].backward_s is not None
    profiler = sweeprof.TrainingProfiler(model, profile_step=0, exclude=nn.ReLU)
    with profiler.step():
        model(torch.ones(3, 4)).sum().backward()
    assert [row.path for row in profiler.layers.rows] == [ROOT, "0", "2"]


def test_a_clone_has_the_same_selection() -> None:
    profiler = sweeprof.Profiler(lenet5.torch_model(), inputs=(2, 1, 32, 32), include=nn.Linear)
    clone = profiler.clone(model=lenet5.torch_model())
    assert {row.type for row in clone.layers.rows} == {"Linear"}


def test_printed_results_are_written_to_a_file(tmp_path: Any) -> None:
    layers = lenet(exclude=nn.Tanh).layers
    path = tmp_path / "layers.txt"
    assert layers.to_text(path) == str(layers)
    assert path.read_text(encoding="utf-8") == f"{layers}\n"
    assert "\ncompute/macs" in lenet().to_text()


# Figures of other profilers by layer and by type, and the rows of what modules do outside their submodules


CONVENTIONS = sorted(
    name.removeprefix("compat/")
    for name, metric in builtin_metrics().items()
    if name.startswith("compat/") and "layers" in metric.reads
)


def test_the_published_figures_of_lenet5() -> None:
    figures = sweeprof.profile(LeNet5(), (1, 1, 32, 32)).layers.compat("f1")
    assert [value for _, value in figures.rows if value] == [122_304, 4_704, 241_600, 1_600, 48_120, 10_080, 840]
    assert list(figures.by_type().items())[:3] == [("Conv2d", 412_024), ("Linear", 10_920), ("AvgPool2d", 6_304)]
    assert round(100 * figures.within("feature_extractor") / figures.total, 3) == 97.456
    assert "122 kMAC" in str(figures)
    frame = figures.to_frame()
    assert frame["compat/f1"].sum() == 429_248
    assert frame["share"].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (ResNet18C100(), (2, 3, 32, 32)),
        (nn.TransformerEncoderLayer(32, 4, batch_first=True), (2, 5, 32)),
        (nn.LSTM(8, 8), (5, 2, 8)),
    ],
)
def test_figures_by_layer_add_up_to_the_metric(model: nn.Module, shape: tuple[int, ...]) -> None:
    profile = sweeprof.profile(model.eval(), shape, [f"compat/{name}" for name in CONVENTIONS])
    for name in CONVENTIONS:
        figures = profile.layers.compat(name)
        assert sum(value for _, value in figures.rows) + figures.rest == pytest.approx(figures.total, rel=1e-12)
        assert figures.total == profile[f"compat/{name}"].value


def test_a_module_that_is_called_twice_counts_as_its_profiler_counts_it() -> None:
    layer = nn.Linear(8, 8)
    layers = sweeprof.profile(nn.Sequential(layer, layer, nn.Linear(8, 8)), (1, 8)).layers
    assert [value for _, value in layers.compat("f1").rows] == [0, 0, 64, 64]  # the last call of each module
    assert [value for _, value in layers.compat("f2").rows] == [0, 64, 64, 64]


def test_a_convention_that_does_not_exist_is_an_error() -> None:
    layers = sweeprof.profile(LeNet5(), (1, 1, 32, 32)).layers
    with pytest.raises(sweeprof.UserError, match="ptflops"):
        layers.compat("ptflop")
    with pytest.raises(sweeprof.UserError, match="feature_extractor"):
        layers.compat("f1").within("feature_extracter")


def test_what_a_module_does_outside_its_submodules() -> None:
    layers = sweeprof.profile(ResNet18C100().eval(), (2, 3, 32, 32)).layers
    split = Layers.of(layers.with_functional())
    for name in ("macs", "flops", "ops", "params", "act_bytes", "buffers"):
        assert getattr(split, name) == getattr(layers, name)
    block = next(row for row in split.rows if row.path == "layer1.0.(functional)")
    assert {operator.name for operator in block.operators} == {"add", "relu"}
    assert block.flops == 2 * 3 * 64 * 32 * 32  # an addition and two activations
    assert next(row for row in split.rows if row.path == "layer1.0").flops == 0
    whole = {row.path: row for row in split.inclusive().rows if row.type != "(functional)"}
    assert {path: row.flops for path, row in whole.items()} == {row.path: row.flops for row in layers.inclusive().rows}
    assert "├─(functional)" in split.tree(depth=1)
    assert next(flops for kind, flops, _ in split.by_type(column="flops") if kind == "(functional)")


def test_a_table_without_functional_operators_stays_as_it_is() -> None:
    layers = sweeprof.profile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (1, 8)).layers
    assert layers.with_functional().rows == layers.rows
    with pytest.raises(ValueError, match="inclusive"):
        layers.inclusive().with_functional()


def test_operators_of_a_module_with_those_of_the_modules_within_it() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: torch.Tensor) -> Any:
            q, k, v = (block(x) for block in self.blocks)
            return (q @ k.transpose(-1, -2)).softmax(-1) @ v

    whole = {row.path: row for row in sweeprof.profile(Attention(), (2, 4, 8)).layers.inclusive().rows}
    calls = {operator.name: operator.calls for operator in whole["__root__"].operators}
    assert calls == {"matmul": 2, "softmax": 1, "linear": 3}
    macs = {operator.name: operator.macs for operator in whole["__root__"].operators}
    assert macs == {"matmul": 2 * 2 * 4 * 4 * 8, "softmax": 0, "linear": 3 * 2 * 4 * 8 * 8}
    assert [(operator.name, operator.calls) for operator in whole["blocks"].operators] == [("linear", 3)]


def test_figures_of_the_modules_that_are_counted() -> None:
    profile = sweeprof.profile(LeNet5(), (1, 1, 32, 32), ["compat/ptflops"], include=["feature_extractor.?", "Linear"])
    figures = profile.layers.compat("ptflops")
    assert figures.total == profile["compat/ptflops"].value == sum(value for _, value in figures.rows) + figures.rest
    assert profile.layers.with_functional().macs == profile.layers.macs


# Which formula holds for a module or an operator, and what a module may declare itself


class Layer:
    """Any class serves as a module here."""


class Derived(Layer):
    pass


class Declares(Layer):
    def compute_module_complexity(self, inputs: Any, outputs: Any) -> Any:
        return {"flops": inputs + outputs, "param_size": {"weight": 0.25}}


class Below(Declares):
    pass


def giving(macs: int) -> Formula:
    return lambda module, inputs, outputs: Cost(macs=macs)


def macs_of(found: Formula | None) -> int | None:
    return None if found is None else found(None, None, None).macs


OUTER = Formulas({Layer: giving(1), "mylib::op": giving(2), "mylib::other": giving(3)})
INNER = Formulas({Layer: giving(10), "mylib::op": giving(20)}, OUTER)


@pytest.mark.parametrize(
    ("known", "of", "macs"),
    [
        (Formulas(), "mylib::op", None),
        (Formulas({Layer: giving(1)}), Derived(), 1),
        pytest.param(Formulas({Layer: giving(1), Derived: giving(2)}), Derived(), 2, id="the nearest type"),
        (Formulas({Layer: giving(1), Derived: giving(2)}), Layer(), 1),
        (Formulas({"mylib::op": giving(3)}), "mylib::other", None),
        pytest.param(INNER, Layer(), 10, id="an inner set is asked first"),
        (INNER, "mylib::op", 20),
        (INNER, "mylib::other", 3),
        pytest.param(OUTER, Layer(), 1, id="which leaves the outer alone"),
        pytest.param(
            *(Formulas({Layer: giving(1)}, Formulas({Derived: giving(2)})), Derived(), 2),
            id="a nearer type of the outer set comes before a farther one of the inner",
        ),
    ],
)
def test_of_a_type_and_of_its_subclasses(known: Formulas, of: Any, macs: int | None) -> None:
    assert macs_of(known.of_operator(of) if isinstance(of, str) else known.of_module(of)) == macs


@pytest.mark.parametrize("key", ["op", None, Layer()])
def test_what_no_formula_can_be_for(key: Any) -> None:
    with pytest.raises(TypeError, match="a formula is for a module type or an operator 'namespace::name'"):
        Formulas({key: giving(1)})


def test_the_nearest_of_formula_and_declaration_is_taken() -> None:
    assert macs_of(Formulas({Below: giving(1)}).of_module(Below())) == 1
    assert macs_of(Formulas({Declares: giving(1)}).of_module(Declares())) == 1
    above = Formulas({Layer: giving(1)}).of_module(Below())
    assert above is not None
    assert above(Below(), 3, 4) == Cost(flops=7, param_size={"weight": 0.25})


@pytest.mark.parametrize("said", [None, {"macs": 3}, {"flops": 1, "wings": 2}, Cost(flops=3)])
def test_declarations_that_say_nothing(said: Any) -> None:
    class Wrong:
        def compute_module_complexity(self, inputs: Any, outputs: Any) -> Any:
            return said

    found = Formulas().of_module(Wrong())
    assert found is not None
    with pytest.raises(
        TypeError, match=r"Wrong\.compute_module_complexity must return a mapping with 'flops' and any of macs"
    ):
        found(Wrong(), 1, 2)
