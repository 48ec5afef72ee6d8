"""``python -m sweeprof.sync``, the same as ``sweeprof sync``; see :mod:`sweeprof.cli.sync`."""

import sys

from sweeprof.cli.run import run_command

if __name__ == "__main__":
    sys.exit(run_command(["sync", *sys.argv[1:]]))
