"""Steps: whole, and done when their own device is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sweeprof.backends.torch.training import Steps


def test_a_whole_step_waits_for_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device=None: waited.append(device))
    second = torch.device("cuda:1")
    Steps(second, lambda: waited.append("forward")).whole()
    Steps(torch.device("cpu"), lambda: waited.append("on the host")).whole()
    assert waited == ["forward", second, "on the host"]
