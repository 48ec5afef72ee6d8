"""What a measuring trial writes down of everything else that ran on its host and on its GPU."""

from __future__ import annotations

import os
import time
from typing import Any

from sweeprof.results import others
from sweeprof.results.gpus import gpu_processes, gpu_warnings
from sweeprof.results.record import Json, Record, Warning
from sweeprof.sweep.plan import MEASURING


class Company:
    """Looks once before and once after the trial, and not in between."""

    def __init__(self, blank: Record, family: int) -> None:
        self._environment, self._family = blank.environment, family or os.getpid()
        self._began = time.time()
        self._before = others.look() if blank.pass_name in MEASURING else None

    def seen(self) -> tuple[Json, list[Warning]]:
        """What the record's environment has of it, and the warnings that it deserves.

        ``ran``: from when to when, in seconds since the epoch; ``others``: only of what measures.
        """
        ran = [self._began, time.time()]
        if self._before is None:
            return {"ran": ran}, []
        seen: dict[str, Any] = others.between(self._before, others.look(), self._family)
        warnings = [*others.warnings_of(seen), *others.governor_warnings()]
        seen["trials"] = self._environment.get("others", {}).get("trials", [])
        gpu = self._environment.get("gpu")
        if gpu is not None:
            seen["gpu"] = gpu_processes(gpu["uuid"])
            warnings += gpu_warnings(seen["gpu"])
        return {"ran": ran, "others": seen}, warnings
