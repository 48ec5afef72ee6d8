"""The graph of a forward of torch models: its operators, the tensors between them, costs, memory and times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import pytest
import torch
from torch import fx, nn
from torch.nn import functional

import sweeprof
from support.torch_modules import Applied, Functional
from sweeprof.errors import Damaged
from sweeprof.results.graph import FRAME_COLUMNS, Graph
from sweeprof.zoo import lenet5


class WithinModules(fx.Tracer):
    """Traces the functions that modules call, instead of the calls of modules."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


def residual_forward(module: Any, x: torch.Tensor) -> Any:
    y = torch.relu(module.norm(module.conv(x)))
    z = y + module.norm(y)
    first, second = z.chunk(2, 1)
    z = torch.cat([second, first], 1) * 2
    return module.head(z.mean((2, 3))) @ module.head.weight


def residual() -> nn.Module:
    layers = {"conv": nn.Conv2d(3, 4, 3, padding=1), "norm": nn.BatchNorm2d(4), "head": nn.Linear(4, 5)}
    return Applied(residual_forward, **layers)


def sparse_products(x: torch.Tensor) -> torch.Tensor:
    """By sparse matrices that it makes, one after the other."""
    for _ in range(4):
        places = torch.tensor([[0, 1], [1, 2]])
        edges = torch.sparse_coo_tensor(places, torch.ones(2), (5, 5))
        x = torch.sparse.mm(edges * 2, x)
    return x


def profile_of(model: nn.Module, inputs: Any = (2, 3, 8, 8), **settings: Any) -> sweeprof.Profile:
    metrics = ["compute/macs", "compute/flops", "memory/act_peak_live_bytes"]
    return sweeprof.profile(model, inputs, metrics, **settings)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (residual, (2, 3, 8, 8)),
    "lenet5": (lenet5.torch_model, (3, 1, 32, 32)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16)),
    "lstm": (lambda: nn.LSTM(8, 16, 2), (5, 2, 8)),
    "sparse": (lambda: Functional(sparse_products), (5, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_totals_are_those_of_the_layers(name: str) -> None:
    build, shape = MODELS[name]
    model = build()
    profile_of(model, shape)  # the first one in a process also imports parts of torch, whose frames hold tensors
    profile = profile_of(model, shape)
    graph, layers = profile.graph, profile.layers
    assert graph.macs == profile["compute/macs"].value
    assert graph.macs > 0
    assert graph.flops == profile["compute/flops"].value
    assert graph.peak is not None
    assert graph.peak.live_bytes == profile["memory/act_peak_live_bytes"].value
    assert layers.liveness is not None
    assert graph.peak.scope == layers.liveness.peak_at
    for row in layers.rows:
        nodes = [node for node in graph.nodes if (node.scope, node.call) == (row.path, row.call)]
        assert sum(node.macs or 0 for node in nodes) == row.macs
        assert {node.type for node in nodes} <= {row.type}


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.relu(self.wide(x)).chunk(2, 1)
        found: torch.Tensor = self.narrow(torch.cat([second, first], 1) * first.mean()) + x
        return found


@pytest.mark.parametrize(("build", "shape"), [(Branches, (2, 3, 8, 8)), MODELS["lenet5"]], ids=["branches", "lenet5"])
def test_nodes_and_edges_are_those_of_torch_fx(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model = build().eval()
    graph = profile_of(model, shape).graph
    traced = [node for node in WithinModules().trace(model).nodes if node.op != "get_attr"]
    # fx has a node for each element that is taken from a tuple.
    elements = [node for node in traced if getattr(node.target, "__name__", "") == "getitem"]
    steps = [node for node in traced if node not in elements]

    def sources(node: fx.Node) -> set[fx.Node]:
        found = [given.all_input_nodes[0] if given in elements else given for given in node.all_input_nodes]
        return {given for given in found if given.op != "get_attr"}

    expected = {(steps.index(source), place) for place, node in enumerate(steps) for source in sources(node)}
    assert len(graph.nodes) == len(steps)
    assert {(edge.source, edge.target) for edge in graph.edges} == expected


def test_a_node_has_scope_shapes_types_and_memory() -> None:
    graph = profile_of(residual()).graph
    node = next(node for node in graph.nodes if node.name == "batch_norm_1")
    assert (node.operator, node.scope, node.call, node.type) == ("batch_norm", "norm", 1, "BatchNorm2d")
    assert [tensor.weight for tensor in node.weights] == [
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
    ]
    assert [(tensor.shape, tensor.dtype) for tensor in node.inputs] == [((2, 4, 8, 8), "float32")]
    assert [tensor.shape for tensor in node.outputs] == [(2, 4, 8, 8)]
    # The result of relu, which is added afterwards, and its own.
    assert [graph.nodes[maker].name for maker in node.active] == ["relu", "batch_norm_1"]
    assert node.live_bytes == 2 * 4 * 2 * 4 * 8 * 8
    last = graph.nodes[-2]
    assert last.operator == "matmul"
    assert [tensor.weight for tensor in last.weights] == ["head.weight"]
    text = str(graph)
    assert "batch_norm_1" in text
    assert "float32" in text
    assert "<table" in graph._repr_html_()


def in_place(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    made = x * 2
    flat = made.view(-1)
    flat.add_(1)
    return made.sum(), torch.relu_(made)


def moving(module: Any, ids: torch.Tensor) -> torch.Tensor:
    """Each line is an operator; the comment has the elements read and written."""
    x = module.table(ids)  # 12 of the table, and 3 ids of 8 bytes; 12
    y = module.linear(x)  # 12 + 20 + 5; 15
    z = y.reshape(5, 3)  # a view
    z = z + z.mean(1, keepdim=True).expand(5, 3)  # 15; 5, a view, 15 + 5; 15
    z.mul_(2)  # 15; 15, in place
    z.zero_()  # 0; 15
    return torch.cat([z, z])  # 30; 30


def test_bytes_read_and_written_by_hand() -> None:
    model = Applied(moving, table=nn.Embedding(100, 4), linear=nn.Linear(4, 5))
    graph = profile_of(model, (torch.tensor([1, 2, 3]),)).graph
    found = {node.operator: (node.bytes_read, node.bytes_written) for node in graph.nodes if node.kind == "operator"}
    assert found["embedding"] == (4 * 12 + 3 * 8, 4 * 12)
    assert found["linear"] == (4 * 37, 4 * 15)
    assert found["mean"] == (4 * 15, 4 * 5)
    assert found["add"] == (4 * 20, 4 * 15)
    assert found["mul"] == (4 * 15, 4 * 15)
    assert found["zero"] == (0, 4 * 15)
    assert found["cat"] == (4 * 30, 4 * 30)
    views = [node for node in graph.nodes if node.operator in ("view", "reshape", "_unsafe_view", "expand")]
    assert views
    assert {(node.bytes_read, node.bytes_written) for node in views} == {(0, 0)}


def test_what_is_written_in_place_comes_from_the_last_writer() -> None:
    graph = profile_of(Functional(in_place), (2, 3)).graph
    names = [node.name for node in graph.nodes]
    edges = {(names[edge.source], names[edge.target]) for edge in graph.edges}
    assert edges == {("input", "mul"), ("mul", "view"), ("view", "add"), ("add", "sum"), ("add", "relu")} | {
        ("sum", "output"),
        ("relu", "output"),
    }
    assert [node.live_bytes for node in graph.nodes][1:-1] == [24, 24, 24, 28, 28]


def test_a_formula_of_a_module_replaces_the_costs_of_its_operators() -> None:
    def cost(module: Any, inputs: Any, outputs: Any) -> sweeprof.Cost:
        return sweeprof.Cost(macs=7)

    profile = profile_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), (2, 3), formulas={nn.Linear: cost})
    graph = profile.graph
    linear = graph.nodes[1]
    assert linear.macs is None
    assert linear.reason == "counted by the formula of Linear"
    assert graph.macs == profile["compute/macs"].value == 7
    assert graph.flops == profile["compute/flops"].value
    assert (graph.formulas[0].scope, graph.formulas[0].macs) == ("0", 7)


def test_an_operator_without_a_formula_has_a_reason() -> None:
    graph = profile_of(Functional(lambda x: torch.linalg.eigvals(x).abs()), (3, 3), strict="ignore").graph
    node = next(node for node in graph.nodes if node.operator == "linalg_eig")
    assert (node.macs, node.reason) == (None, "no formula for linalg_eig")


def by_value(module: Any, x: torch.Tensor) -> Any:
    return module.layer(x) if float(x.sum()) > 0 else x + 1


def test_a_forward_that_needs_values() -> None:
    model = Applied(by_value, layer=nn.Linear(3, 3))
    graph = profile_of(model, torch.ones(2, 3)).graph
    assert graph.method.startswith("real forward")
    assert [node.operator for node in graph.nodes if node.kind == "operator"][-1] == "linear"
    profiler = sweeprof.Profiler(model.to("meta"), inputs=torch.ones(2, 3, device="meta"))
    with pytest.raises(sweeprof.Unsupported, match="needs values"):
        _ = profiler.graph


def test_as_json_frame_and_networkx(tmp_path: Path) -> None:
    graph = profile_of(residual()).graph
    data = json.loads(graph.to_json(tmp_path / "graph.json", indent=1))
    assert json.loads((tmp_path / "graph.json").read_text(encoding="utf-8")) == data
    assert Graph.from_dict(data) == graph
    assert [(edge["source"], edge["target"]) for edge in data["edges"]] == [(e.source, e.target) for e in graph.edges]
    frame = graph.to_frame()
    assert list(frame.columns) == FRAME_COLUMNS
    assert frame["macs"].sum() == graph.macs
    assert frame.set_index("name").loc["chunk", "out_nodes"] == ["cat"]
    drawn = graph.to_networkx()
    assert networkx.is_directed_acyclic_graph(drawn)
    assert next(iter(drawn)) == "input"
    assert drawn.nodes["conv2d"]["macs"] == 2 * 4 * 64 * 27
    assert drawn.edges["chunk", "cat"]["shapes"] == [(2, 2, 8, 8)] or len(drawn.edges["chunk", "cat"]["shapes"]) == 2
    assert networkx.dag_longest_path(drawn)[-1] == "output"
    assert json.dumps(networkx.node_link_data(drawn, edges="edges"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda nodes: nodes[2]["arguments"][0].update(source=5), "an earlier node"),
        (lambda nodes: nodes[1].update(active=[9]), "up to this one"),
    ],
)
def test_damaged_data(change: Callable[[Any], None], message: str) -> None:
    data = json.loads(profile_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), (2, 3)).graph.to_json())
    change(data["nodes"])
    with pytest.raises(Damaged, match=message):
        Graph.from_dict(data)


def test_times_are_those_of_the_traced_operators() -> None:
    profiler = sweeprof.Profiler(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU()), inputs=(2, 3))
    assert {node.seconds for node in profiler.graph.nodes} == {None}
    operators: Any = profiler.seen("operators")
    nodes = [node for node in profiler.graph.nodes if node.kind == "operator"]
    rows = {(row.path, row.operator): row for row in operators.rows}
    assert [node.scope for node in nodes] == ["0", "1", "2", "3"]
    for node in nodes:
        row = rows[node.scope, f"aten::{node.operator}"]
        assert node.seconds == pytest.approx(row.total_s / row.calls)
    assert "  seconds  " in str(profiler.graph)
    fewer = profiler.graph.with_times(sweeprof.Operators("inference", (), 1, 1.0))
    assert "ran it 0 times in this module, the graph 1 times" in str(fewer.nodes[1].seconds_reason)


def test_custom_metrics_read_the_graph() -> None:
    @sweeprof.metric(name="mine/widest", unit="tensors", better=None)
    def widest(graph: Graph) -> int:
        """Most tensors alive at once."""
        return max(len(node.active) for node in graph.nodes)

    profiler = sweeprof.Profiler(residual(), inputs=(2, 3, 8, 8))
    profiler.register(widest)
    assert profiler.compute("mine/widest").value == 5


class MyModule(nn.Module):
    """The example of the page on torch.fx, which the tutorial on profiling links to."""

    def __init__(self) -> None:
        super().__init__()
        self.param = nn.Parameter(torch.rand(3, 4))
        self.linear = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(torch.sum(self.linear(x + self.linear.weight).relu(), dim=-1), 3)  # type: ignore[return-value]


def test_the_example_of_torch_fx() -> None:
    graph = profile_of(MyModule(), (5, 4)).graph
    assert [node.operator for node in graph.nodes if node.kind == "operator"] == [
        "add",
        "linear",
        "relu",
        "sum",
        "topk",
    ]
    assert [tensor.weight for tensor in graph.nodes[1].arguments] == [None, "linear.weight"]
    assert functional.linear.__name__ == graph.nodes[2].operator
