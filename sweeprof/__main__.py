"""``python -m sweeprof``, and the command ``sweeprof``."""

import gc
import sys


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
        find_own_modules()
    except FileNotFoundError:
        sys.exit("error: the working directory was removed; change to one that exists")
    end_process(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
