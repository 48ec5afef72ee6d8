"""``python -m sweeprof.doctor``, the same as ``sweeprof doctor``; see :mod:`sweeprof.cli.doctor`."""

import sys

from sweeprof.cli.run import run_command

if __name__ == "__main__":
    sys.exit(run_command(["doctor", *sys.argv[1:]]))
