"""``python -m sweeprof``."""

import sys

from sweeprof.cli.run import run_command
from sweeprof.processes import end_process

if __name__ == "__main__":
    end_process(run_command(sys.argv[1:]))
