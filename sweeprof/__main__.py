"""``python -m sweeprof``, and the command ``sweeprof``."""

import gc
import sys
from pathlib import Path

READERS = [[name] for name in ("report", "compare", "collect", "prune", "sync", "ui")]
"""Subcommands that import no modules of the user."""


def main() -> None:
    """Run the command line and end this process."""
    # Imports set off full collections, which take a tenth of the start and free little.
    gc.disable()
    try:
        from sweeprof.cli.run import run_command
        from sweeprof.processes import end_process, find_own_modules
    except KeyboardInterrupt:
        sys.exit(130)  # as for every later one: ExitCode.INTERRUPTED, which may not be imported yet

    try:
        Path.cwd()
        # The others only read folders, which may be somebody else's, also as the working directory.
        if sys.argv[1:2] not in READERS:
            find_own_modules()
    except FileNotFoundError:
        sys.exit("error: the working directory was removed; change to one that exists")
    end_process(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
