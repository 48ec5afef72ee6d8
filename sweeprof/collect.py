"""``python -m sweeprof.collect``, the same as ``sweeprof collect``; see :mod:`sweeprof.cli.collect`."""

import sys

from sweeprof.cli.run import run_command

if __name__ == "__main__":
    sys.exit(run_command(["collect", *sys.argv[1:]]))
