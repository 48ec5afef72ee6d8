"""``python -m sweeprof.ui``, the same as ``sweeprof ui``; see :mod:`sweeprof.cli.ui`."""

import sys

from sweeprof.cli.run import run_command

if __name__ == "__main__":
    sys.exit(run_command(["ui", *sys.argv[1:]]))
