"""What whole recurrent networks return on meta, against the real networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from sweeprof.backends.torch.counting import count_layers
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layers import LayerTable

KINDS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}


class Viewed(nn.Module):
    """A network whose output is taken apart by ``view``, which only the right strides allow."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, given: torch.Tensor) -> Any:
        output, state = self.inner(given)
        return output.view(*output.shape, 1), state


def counted(module: nn.Module, *args: Any) -> LayerTable:
    table = count_layers(module.eval(), Inputs(args))
    assert (table.method, table.uncovered) == ("shapes", {})
    return table


def shapes(tree: Any) -> list[tuple[int, ...]]:
    if isinstance(tree, torch.Tensor):
        return [tuple(tree.shape)]
    return [shape for part in tree if part is not None for shape in shapes(part)]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_network_returns_what_the_real_one_does(kind: str, data: st.DataObject) -> None:
    inputs, hidden, layers, steps, samples = (data.draw(st.integers(1, 4)) for _ in range(5))
    options: dict[str, Any] = {name: data.draw(st.booleans()) for name in ("bias", "batch_first", "bidirectional")}
    if kind == "LSTM" and hidden > 1 and data.draw(st.booleans()):
        options["proj_size"] = hidden - 1
    network = KINDS[kind](inputs, hidden, layers, **options).eval()
    lead = (steps,) if data.draw(st.booleans()) else (samples, steps) if options["batch_first"] else (steps, samples)
    given = torch.randn(*lead, inputs)
    table = counted(Viewed(network), given)
    with torch.inference_mode():
        assert list(table.rows[1].output_shapes) == shapes(network(given))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_packed_sequence_takes_its_own_length(kind: str, bidirectional: bool) -> None:
    network = KINDS[kind](3, 4, 2, bidirectional=bidirectional).eval()
    packed = pack_padded_sequence(torch.randn(5, 3, 3), [5, 3, 2])
    table = counted(network, packed)
    with torch.inference_mode():
        output, state = network(packed)
    assert isinstance(output, PackedSequence)
    assert list(table.rows[0].output_shapes) == [
        *shapes([output.data, output.batch_sizes]),
        *shapes([state]),
    ]
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    directions = 2 if bidirectional else 1
    first, second = 4 * (3 + 4), 4 * (4 * directions + 4)
    assert table.macs == 10 * gates * directions * (first + second)  # 5 + 3 + 2 steps


def test_a_long_sequence_takes_no_longer_than_a_short_one() -> None:
    """Counted, not timed: one operator, however many time steps."""
    calls = [counted(nn.LSTM(4, 4), torch.empty(steps, 1, 4, device="meta")).operator_calls for steps in (1, 5000)]
    assert calls[0] == calls[1]
