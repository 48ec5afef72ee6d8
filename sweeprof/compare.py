"""``python -m sweeprof.compare``, the same as ``sweeprof compare``; see :mod:`sweeprof.cli.compare`.

An import gives the function :func:`sweeprof.compare` instead: the import system binds a submodule to its package by its name,
and that name is the function's.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from sweeprof.cli.run import run_command

    sys.exit(run_command(["compare", *sys.argv[1:]]))

from sweeprof.profiling.profiler import compare

sys.modules[__name__] = compare  # type: ignore[assignment]
