"""The command ``python -m sweeprof.compare BASE NEW``; see :mod:`sweeprof.comparing.command`.

An import gives the function :func:`sweeprof.compare` instead: the import system binds a submodule to its package by its name,
and that name is the function's.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from sweeprof.comparing.command import main

    sys.exit(main())

from sweeprof.profiling.profile import compare

sys.modules[__name__] = compare  # type: ignore[assignment]
