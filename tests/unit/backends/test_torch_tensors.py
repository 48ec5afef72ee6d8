"""Live tensors against sums by hand; every storage once, by all of its names."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

from sweeprof.backends.torch import memory as module
from sweeprof.backends.torch.memory import live_tensors, storages
from sweeprof.errors import UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.observations import TensorRow, bytes_by_kind, tensor_difference


def by_name(rows: tuple[TensorRow, ...]) -> dict[str, TensorRow]:
    return {name: row for row in rows for name in row.names}


def test_sizes_are_those_of_storages() -> None:
    """What pytorch_memlab reports as 16,777,216 bytes."""
    model = nn.Linear(1024, 1024)
    found = by_name(live_tensors(model))
    assert found["weight"] == TensorRow(("weight",), "parameter", (1024, 1024), "float32", "cpu", 4_194_304)
    assert found["bias"].bytes == 4_096


def test_tied_parameters_are_one_row_with_both_names() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    model(torch.ones(1, 8)).sum().backward()
    rows = live_tensors(model)
    assert by_name(rows)["0.weight"].names == ("0.weight", "1.weight")
    assert bytes_by_kind(rows)["parameter"] == 4 * 64
    assert by_name(rows)["0.weight.grad"].kind == "gradient"
    assert "1.weight.grad" not in by_name(rows)


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (torch.optim.Adam, {"exp_avg", "exp_avg_sq", "step"}),
        (lambda p: torch.optim.SGD(p, lr=0.1), set()),
        (lambda p: torch.optim.LBFGS(p, max_iter=4), {"d", "old_dirs[0]", "old_stps[0]", "prev_flat_grad"}),
    ],
)
def test_what_an_optimizer_holds(make: Any, keys: set[str]) -> None:
    model = nn.Linear(8, 8, bias=False)
    optimizer = make(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (model(torch.ones(1, 8)) - 3).pow(4).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)
    found = by_name(live_tensors(model, optimizer))
    names = {name.removeprefix("optimizer.weight.") for name, row in found.items() if row.kind == "optimizer"}
    assert names == keys or (len(keys) == 4 and keys < names)


def test_an_optimizer_that_knows_more_parameters_than_the_model() -> None:
    model, alone = nn.Linear(2, 2, bias=False), nn.Parameter(torch.ones(5))
    rate = torch.tensor(0.1)
    groups: list[dict[str, Any]] = [{"params": model.parameters()}, {"params": [alone]}]
    optimizer = torch.optim.Adam(groups, lr=rate)
    alone.grad = torch.ones(5)
    optimizer.step()
    found = by_name(live_tensors(model, optimizer))
    assert (found["optimizer.group1[0]"].kind, found["optimizer.group1[0]"].bytes) == ("parameter", 20)
    assert found["optimizer.group1[0].exp_avg"].bytes == 20
    assert found["optimizer.lr"].kind == "optimizer"


def test_buffers_inputs_and_attributes() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4))
    model[0].register_buffer("hidden", torch.ones(3), persistent=False)
    model[0].mask = torch.ones(7)
    given = {"x": torch.ones(2, 4), "more": [torch.ones(9)]}
    found = by_name(live_tensors(model, inputs=Inputs((given,))))
    kinds = {name: row.kind for name, row in found.items()}
    assert kinds == {
        **dict.fromkeys(("0.weight", "0.bias"), "parameter"),
        **dict.fromkeys(("0.running_mean", "0.running_var", "0.num_batches_tracked", "0.hidden"), "buffer"),
        "0.mask": "other",
        "input[0]": "input",
        "input[1]": "input",
    }
    assert (found["0.num_batches_tracked"].bytes, found["input[1]"].bytes) == (8, 36)


def test_views_share_the_row_of_their_storage() -> None:
    base = torch.zeros(12_345, dtype=torch.float64)
    gc.collect()  # which tells of younger objects first, here of the views
    views = [base[1000:], base.view(-1), base[:3].detach()]
    (row,) = [row for row in live_tensors(nn.Identity()) if row.bytes == 8 * 12_345]
    assert row == TensorRow((), "other", (12_345,), "float64", "cpu", 8 * 12_345)
    del views


def test_meta_tensors_have_a_size_and_take_nothing() -> None:
    with torch.device("meta"):
        model = nn.Linear(1000, 1000, bias=False)
    rows = live_tensors(model)
    (row,) = [row for row in rows if row.names]
    assert (row.bytes, row.device) == (4_000_000, "meta")
    assert "parameter" not in bytes_by_kind(rows)


def test_a_compiled_model_has_the_names_of_its_original() -> None:
    model: Any = torch.compile(nn.Linear(4, 4), backend="eager")
    assert {"weight", "bias"} <= set(by_name(live_tensors(model)))


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # which torch prints once in a process
def test_sparse_tensors_are_their_parts() -> None:
    model = nn.Embedding(100, 8, sparse=True)
    model(torch.tensor([1, 2, 3])).sum().backward()
    model.csr = torch.sparse_csr_tensor(torch.arange(11), torch.arange(10), torch.ones(10))
    rows = [row for row in live_tensors(model) if row.names]
    gradient = sorted((row.dtype, row.bytes) for row in rows if row.kind == "gradient")
    assert gradient == [("float32", 3 * 8 * 4), ("int64", 3 * 8)]
    assert sum(row.bytes for row in rows if "csr" in row.names) == 11 * 8 + 10 * 8 + 10 * 4


def test_a_wrapper_is_the_tensors_within_it() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    model = nn.Module()
    model.weight = nn.Parameter(TwoTensor(torch.ones(50), torch.ones(50)))  # type: ignore[no-untyped-call]
    assert [row.bytes for row in live_tensors(model) if row.names == ("weight",)] == [200, 200]


class _Stubborn(torch.Tensor):
    """A subclass that lets nothing be done with it."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not with me")


class _Pretender:
    """Says that it is a tensor, and raises whatever is asked of it."""

    @property  # type: ignore[misc]  # that is what makes it odd
    def __class__(self) -> type:
        raise RuntimeError("nobody's class")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_odd_objects_in_the_process() -> None:
    odd = [torch.ones(77).as_subclass(_Stubborn), _Pretender(), torch.ones(3, 3).to_mkldnn()]
    sizes = [row.bytes for row in live_tensors(nn.Identity())]
    assert 77 * 4 in sizes
    assert 36 in sizes
    assert torch.func.vmap(lambda x: (x * len(live_tensors(nn.Identity()))).sum())(torch.ones(2, 3)).shape == (2,)
    del odd


def test_many_small_tensors_share_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [torch.ones(1000 + i) for i in range(20)]
    gc.collect()  # what other tests left in cycles must not go between the two
    monkeypatch.setattr(module, "OTHERS", 10**9)
    everything = live_tensors(nn.Identity())
    monkeypatch.setattr(module, "OTHERS", 5)
    bounded = live_tensors(nn.Identity())
    assert bytes_by_kind(bounded) == bytes_by_kind(everything)
    assert len([row for row in bounded if not row.names]) == 5
    small = [row for row in bounded if row.names]
    assert len({row.device for row in small}) == len(small)  # one on each: other tests may keep tensors on meta
    assert sum(int(row.names[0].removesuffix(" small ones")) for row in small) == len(everything) - 5
    del held


def test_what_was_there_before_is_left_out_unless_it_has_a_name() -> None:
    held, model = torch.ones(1234), nn.Linear(8, 8, bias=False)
    before = storages()
    made = torch.ones(2345)
    found = {row.shape for row in live_tensors(model, besides=before)}
    assert (2345,) in found
    assert (1234,) not in found
    assert (8, 8) in found
    del held
    again = [torch.ones(1234) for _ in range(100)]  # none of which may be taken for the first
    assert len([row for row in live_tensors(model, besides=before) if row.shape == (1234,)]) == 100
    del made, again


def test_only_a_module_has_live_tensors() -> None:
    with pytest.raises(UserError, match=r"model: 'str' is not a torch.nn.Module"):
        live_tensors("model")  # type: ignore[arg-type]


def test_a_step_makes_a_difference() -> None:
    model = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    before = live_tensors(model, optimizer)
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    changed = tensor_difference(before, live_tensors(model, optimizer))
    # Other tests may keep so many tensors that the small ones share a row, which has a name.
    assert [(row.names, row.bytes) for row in changed.added if row.kind != "other"] == [
        (("weight.grad",), 256),
        (("optimizer.weight.momentum_buffer",), 256),
    ]
    assert [row for row in changed.removed if row.kind != "other"] == []
    assert tensor_difference(before, before).added == ()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what the compiler imports
def test_what_a_compiler_leaves_in_the_process_is_no_tensor() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    stand_in = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(5, 3), static_shapes=False)
    assert stand_in._has_symbolic_sizes_strides
    model = nn.Linear(8, 8)
    rows = live_tensors(model)
    assert all(type(size) is int for row in rows for size in row.shape)
    assert tensor_difference(rows, live_tensors(model)).removed == ()


def test_the_readme_example_of_pytorch_memlab() -> None:
    linear, inputs = nn.Linear(1024, 1024), torch.ones(512, 1024)
    linear(inputs).mean().backward()
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    text = live_tensors(linear, optimizer, inputs).to_text(width=200)
    title, _, _, *rows = text.splitlines()
    assert "tensors, in total" in title
    assert "parameter 4.00 MiB, gradient 4.00 MiB, optimizer 4.00 MiB, input 2.00 MiB" in title
    names = [row.split("  ")[0] for row in rows]
    assert {"weight", "weight.grad", "optimizer.weight.momentum_buffer", "input[0]"} <= set(names)
    tied = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    tied[1].weight = tied[0].weight
    assert "0.weight = 1.weight" in str(live_tensors(tied))
