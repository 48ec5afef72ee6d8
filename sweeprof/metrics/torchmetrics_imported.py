"""Imports torchmetrics, with the torchvision that it imports where that is installed, once for all trials of a sweep."""

from contextlib import suppress
from importlib import import_module

from sweeprof.errors import UserError
from sweeprof.model_sources.torchvision import import_torchvision

with suppress(UserError):  # it is not installed
    import_torchvision()
import_module("torchmetrics")
