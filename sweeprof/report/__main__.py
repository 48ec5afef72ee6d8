"""``python -m sweeprof.report``, the same as ``sweeprof report``; see :mod:`sweeprof.cli.report`."""

import sys

from sweeprof.cli.run import run_command

if __name__ == "__main__":
    sys.exit(run_command(["report", *sys.argv[1:]]))
