"""What the fork servers of PyTorch import ahead: no trial imports torch's compiler itself, which takes a second."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from support.planning import planned

PROGRAM = """
    import importlib, json, os, sys
    from sweeprof.plan.plan import preload
    from sweeprof.profiling.profiler import Profiler
    import sweeprof.backends.torch.adapter

    for config, name in json.loads(sys.argv[1]):
        child = os.fork()
        if child == 0:
            for entry in preload(config, name):
                importlib.import_module(entry.partition(":")[0])
            is_ahead = "torch._dynamo" in sys.modules
            Profiler.from_config(config).run(name)
            print(config["mode"], name, is_ahead, "torch._dynamo" in sys.modules, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
"""


@pytest.mark.slow
def test_the_compiler_is_imported_ahead_of_trials_that_need_it() -> None:
    cases = []
    for mode, name in (
        ("inference", "timing"),
        ("inference", "operators"),
        ("training", "timing"),
    ):
        words = ["model=mlp", "backend=torch", f"mode={mode}", "metrics=latency", "protocol=quick", "tracking=none"]
        (combination,) = planned(words).combinations
        cases.append((combination.config, name))
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.endswith(("True", "False"))] == [
        "inference timing False False",
        "inference operators True True",
        "training timing True True",
    ]
