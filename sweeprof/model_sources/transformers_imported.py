"""Imports transformers with the modules that all its models need: ``preload`` of ``conf/model/transformers.yaml``."""

from importlib import import_module

from sweeprof.model_sources.transformers import import_transformers

import_transformers()
import_module("transformers.modeling_utils")
