"""Imports timm: ``preload`` of ``conf/model/timm.yaml``. It imports torch's compiler, too."""

from sweeprof.model_sources.timm import import_timm

import_timm()
