"""A model that says which GPUs its process may see."""

from __future__ import annotations

import os

from sweeprof.backends.fake import FakeModel


def saying() -> FakeModel:
    """A fake model; the process's log has the variable's value."""
    print(f"visible: {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    return FakeModel()
