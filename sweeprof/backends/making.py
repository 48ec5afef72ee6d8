"""Makes a model's file in a process of its own: a measured process is to have nothing in memory but the run-time that loads it.

The child gets a request in JSON on standard input, and answers in JSON in the last line of its output: ``{"error": null}``, or the
stage that failed, the class of the error and what it says. What the builder raised is raised again here.
"""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from sweeprof.backends import Build
from sweeprof.profiling.build import instantiate
from sweeprof.tracebacks import formatted, located_at, location_of, message_of, original

LOCK_S = 600.0
"""How long to wait for another process that makes the same file."""
LONGEST = 400
"""Characters of an error's first line."""
Request = Mapping[str, Any]


class BuildFailed(RuntimeError):
    """The builder raised, in the process that makes the file, an error whose class this process does not have."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in the child."""

    stage: str
    """``build``, or what the child calls the other one."""
    kind: str
    """The class of the error."""
    message: str
    """Its first line."""
    location: str | None = None
    """Where in the user's code it was raised."""
    traceback: str = ""

    @classmethod
    def of(cls, stage: str, error: BaseException) -> Failure:
        """Of an error, out of Hydra's wrapping."""
        cause = original(error)
        message = message_of(cause)[:LONGEST]
        return cls(stage, type(cause).__name__, message, location_of(cause), formatted(error))

    def reraise(self) -> None:
        """Raise it as what it was; as :class:`BuildFailed` where its class is not known here."""
        known = getattr(builtins, self.kind, None)
        if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, _STRUCTURED):
            raise self._as_raised(known(self.message))
        raise self._as_raised(BuildFailed(f"{self.kind}: {self.message}"))

    def _as_raised(self, error: Exception) -> Exception:
        located_at(error, self.location)
        if self.traceback:
            error.add_note(f"in the process that makes the model's file:\n{self.traceback}")
        return error


_STRUCTURED = (UnicodeError, BaseExceptionGroup)
"""Errors that are not made from a message alone."""


def described(build: Build) -> Mapping[str, Any] | None:
    """The config node that ``build`` makes the model from; None where a caller has the model in hands."""
    if isinstance(build, partial) and build.func is instantiate and len(build.args) == 1:
        node: Mapping[str, Any] = build.args[0]
        return node
    return None


def asked(module: str, request: Request, variables: Mapping[str, str]) -> Failure | None:
    """Let ``module`` carry out the request in a process of its own with these variables; what failed.

    Raises:
        RuntimeError: the process died.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(request),
        env={**os.environ, **variables, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        raise RuntimeError(f"the process that makes the model's file ended with code {done.returncode}: {last}")
    error = json.loads(done.stdout.rpartition("\n")[2])["error"]
    return None if error is None else Failure(**error)


def answer(carry_out: Callable[[Request], Failure | None]) -> None:
    """The child's side: read the request, carry it out, tell how that went."""
    failure = carry_out(json.load(sys.stdin))
    error = None if failure is None else asdict(failure)
    sys.stdout.write(f"\n{json.dumps({'error': error})}")
