"""What a backend does, observed in forked processes: ``python -m support.conforming ANSWERS`` reads tasks from standard input.

A framework takes its thread settings once per process, so every task has a process of its own, as in a sweep.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.forked import Sources

TASKS: dict[str, Callable[[Mapping[str, Any]], Any]] = {}


def task(function: Callable[[Mapping[str, Any]], Any]) -> Callable[[Mapping[str, Any]], Any]:
    TASKS[function.__name__] = function
    return function


@task
def run_pass(question: Mapping[str, Any]) -> Any:
    from dataclasses import asdict

    from sweeprof.plan.plan import environment
    from sweeprof.profiling.profiler import Profiler

    os.environ.update(environment(question["config"], question["pass"]))  # a sweep has a fork server for each
    seen: Any = Profiler.from_config(question["config"]).run(question["pass"])
    data = seen.to_dict() if hasattr(seen, "to_dict") else asdict(seen)
    return {"type": type(seen).__name__, "data": data}


@task
def facts(question: Mapping[str, Any]) -> Any:
    """Everything that needs the backend but no model."""
    from sweeprof.backends import CAPABILITIES
    from sweeprof.targets import instantiate

    backend = instantiate(question["config"]["backend"])
    backend.configure(0)
    return {
        "devices": backend.devices(),
        "capabilities": [method for method in CAPABILITIES if backend.has(method)],
        "gaps": {name: [gap.kind, gap.reason] for name, gap in backend.gaps.items()},
        "threads": eval(question["threads"]) if question["threads"] else None,
        "ordinary_is_out_of_memory": backend.is_out_of_memory(ValueError("no luck")),
    }


@task
def exhaust(question: Mapping[str, Any]) -> Any:
    """Really run out of memory, and ask the backend what that was.

    TensorFlow waits ten seconds, idle, for others to free memory: further questions are answered meanwhile.
    """
    from sweeprof.targets import instantiate

    backend = instantiate(question["config"]["backend"])
    try:
        eval(question["exhaust"])
    except Exception as error:
        return {"recognised": backend.is_out_of_memory(error), "error": f"{type(error).__name__}: {error}"}
    return {"recognised": None}


def answered(question: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"answer": TASKS[question["task"]](question)}
    except Exception as error:
        original = error.__cause__ if type(error).__module__.startswith("hydra.") and error.__cause__ else error
        return {"error": type(original).__name__, "message": str(original), "trace": traceback.format_exc()}


def main() -> None:
    questions = json.loads(sys.stdin.read())
    folder = Path(sys.argv[1])
    for entry in (*questions["preload"], "hydra.utils", "sweeprof.profiling.profiler"):
        name, _, function = entry.partition(":")
        module = importlib.import_module(name)
        if function:
            getattr(module, function)()
    if "sweeprof.backends.model_files" in sys.modules:
        model_files: Any = importlib.import_module("sweeprof.backends.model_files")
        model_files.subprocess = Sources(Path(questions["forks"]), os.getppid())
    waiting = []
    for name, question in questions["tasks"].items():
        child = os.fork()
        if child == 0:
            atexit._clear()
            try:
                (folder / f"{name}.json").write_text(json.dumps(answered(question)))
            finally:
                atexit._run_exitfuncs()  # AutoGraph removes its files so
                os._exit(0)
        if question["task"] == "exhaust":
            waiting.append(child)
        else:
            os.waitpid(child, 0)
    for child in waiting:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
