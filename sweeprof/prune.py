"""``python -m sweeprof.prune``, the same as ``sweeprof prune``; see :mod:`sweeprof.cli.prune`."""

import sys

from sweeprof.cli.run import run_command

if __name__ == "__main__":
    sys.exit(run_command(["prune", *sys.argv[1:]]))
