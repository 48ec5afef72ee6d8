"""``python -m sweeprof.server``: an MLflow tracking server for a machine or a team, started the right way."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sweeprof.errors import UserError
from sweeprof.sweep.interrupts import terminable
from sweeprof.sweep.reading import Parser, told
from sweeprof.terminal import guard_output
from sweeprof.tracking.credentials import without_credentials
from sweeprof.tracking.server_process import ServerEnded, running_server
from sweeprof.tracking.server_settings import (
    artifacts_of,
    database_file,
    free_port,
    mistakes_of,
    obstacles_of,
    store_of,
)
from sweeprof.tracking.serving import LOCAL, PORT, STORE, Serving

EXIT_OK, EXIT_ENDED = 0, 2
EPILOG = f"""\
Stores: sqlite:///PATH for one machine, postgresql://USER:PASSWORD@HOST/NAME for a team (pip install 'sweeprof[postgresql]').
Everybody on a machine can read the words of a command: a password is better given by {STORE} than by --store.
S3 (pip install 'sweeprof[s3]') is reached by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; MLFLOW_S3_ENDPOINT_URL names another
store that speaks its language.

Exit codes: 0 ended by Ctrl-C, SIGTERM or SIGHUP, 1 a mistake in the command (nothing was started), 2 the server did not start,
or ended by itself.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    guard_output()
    try:
        given = _parser().parse_args(arguments)
        serving = _serving(given)
        problems = [*mistakes_of(serving)] or [*(() if given.dry_run else obstacles_of(serving))]
        if problems:
            raise UserError(problems)
    except UserError as error:
        return told(error, "")
    if given.dry_run:
        print(serving.shown())
        return EXIT_OK
    serving = dataclasses.replace(serving, port=serving.port or free_port(serving.host))
    try:
        with terminable():
            _serve(serving)
    except KeyboardInterrupt:
        return EXIT_OK
    except (ServerEnded, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
    return EXIT_ENDED


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m sweeprof.server",
        description="Start an MLflow tracking server with settings that fit: one worker, no job runners, no telemetry, artifacts "
        "through the server, the names that it may be called by.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="N", help=f"where to listen ({PORT}); 0: any that is free"
    )
    parser.add_argument("--host", default=LOCAL[0], help=f"{LOCAL[0]}: this machine alone; 0.0.0.0: all others, too")
    parser.add_argument("--store", metavar="URI", help=f"the database ({STORE}, else OUTPUT/mlflow.db)")
    parser.add_argument(
        "--artifacts", metavar="PLACE", help="PATH or s3://BUCKET/PREFIX (mlflow-artifacts beside the database)"
    )
    parser.add_argument(
        "--allowed-hosts",
        metavar="NAMES",
        help="by which clients may call it, with commas between them (on other hosts than local ones: this machine's own)",
    )
    parser.add_argument("--output", default="outputs", metavar="PATH", help="the folder of all sweeps (outputs)")
    parser.add_argument("--dry-run", action="store_true", help="print the command instead of running it")
    return parser


def _serving(given: argparse.Namespace) -> Serving:
    output = Path(given.output)
    store = store_of(given.store or os.environ.get(STORE), output)
    hosts = tuple(name.strip() for name in (given.allowed_hosts or "").split(",") if name.strip())
    return Serving(store, artifacts_of(given.artifacts, store, output), given.host, given.port, hosts)


def _serve(serving: Serving) -> None:
    """Serve until interrupted; raises :class:`ServerEnded` where it ends before."""
    with running_server(serving, database_file(serving.store), sys.stderr) as server:
        print(f"MLflow     {serving.address}")
        print(f"Store      {without_credentials(serving.store)}")
        print(f"Artifacts  {serving.artifacts}")
        print(f"Sweeps     python -m sweeprof … tracking.uri={serving.address}", flush=True)
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
