"""Imports torchvision with its models: ``preload`` of ``conf/model/torchvision.yaml``. It imports torch's compiler, too."""

from importlib import import_module

from sweeprof.model_sources.torchvision import import_torchvision

import_torchvision()
import_module("torchvision.models")
