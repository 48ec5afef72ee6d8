"""The command: every run is a sweep, one without axes is a sweep of one combination."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sweeprof import __version__, completion
from sweeprof.configs import conf_folder
from sweeprof.errors import Problem, UserError, choice_problem
from sweeprof.sweep.spelling import CONFIG_DIR, SWEEP_GROUP, redacted
from sweeprof.terminal import guard_output

if TYPE_CHECKING:
    from omegaconf import DictConfig

HYDRA_MODES = {
    "--run",
    "-r",
    "--multirun",
    "-m",
    "--cfg",
    "-c",
    "--info",
    "-i",
    "--hydra-help",
    "--shell-completion",
    "-sc",
}
"""Flags that tell Hydra what to do; without one of them it is told to sweep."""

VALUED_FLAGS = {"--config-dir", "-cd", "--config-name", "-cn", "--cfg", "-c", "--info", "-i", "--package", "-p"}
"""Flags that are followed by a value."""
FLAGS = sorted(HYDRA_MODES | VALUED_FLAGS | {"--help", "-h", "--version", "--resolve", "--config-path", "-cp"})

OPEN_KEYS = (
    r"(model|dataset|backend|axes|variants)\.[\w.\-]+$|(axes|variants)$|cluster\.(options|environment)(\.[\w\-]+)?$"
    r"|compare\.(baseline|thresholds)$|hydra\.launcher\.ray\.(init|remote)\.\w+$"
)
"""Keys that the config need not have; a mapping that is given for one is merged."""
_CALL = re.compile(r"(?<=[\[,: ])(?:range|choice|glob)\([^()'\"]*\)")
_HASH = re.compile(r"(?<![\w.'\"\\/-])\d+[eE]\d+(?![\w.'\"/-])")

HELP = """\
sweeprof {version}: sweeps that profile machine-learning models

  python -m sweeprof                                  measure one combination: the defaults
  python -m sweeprof model=mlp batch_size=8           another one
  python -m sweeprof model=mlp,lenet5 batch_size=1,8  a sweep: every key may have several values
  python -m sweeprof +sweep=quickstart                a sweep from a file
  python -m sweeprof +sweep=quickstart dry_run=true   its plan, measuring nothing
  python -m sweeprof +sweep=quickstart cluster=slurm  as jobs on Slurm
  python -m sweeprof resume=last                      go on with what is missing or failed
  python -m sweeprof model.torch._target_=my_package.MyNet model.torch.width=64
                                                      your own model, with its arguments

Choices
{choices}

Keys (with what they default to: --cfg job)
  name output dry_run batch_size axes zip variants include exclude grids alone resume retry fail_fast jobs
  compare.* protocol.* backend.* limits.* isolation shards seed.* tracking.uri cluster.* wait metrics.select hydra/launcher

Flags
  --cfg job           print the composed config        --config-dir DIR   a folder with configs of your own
  --hydra-help        Hydra's own flags                --version          the version
  -sc install=bash    print the script that completes this command in bash (or zsh):
                      eval "$(python -m sweeprof -sc install=bash)"

Other commands, each with --help: python -m sweeprof.NAME
  collect compare doctor prune report server sync ui

Exit codes: 0 all measured, 1 a mistake in the command or a config, 2 some combinations failed, 130 interrupted
"""


def main() -> None:
    """Run the command line and exit."""
    guard_output()
    arguments = sys.argv[1:]
    if any(flag in arguments for flag in ("--help", "-h")):
        print(_help(), end="")
        sys.exit(0)
    if "--version" in arguments:
        print(f"sweeprof {__version__}")
        sys.exit(0)
    try:
        if any(flag in arguments for flag in completion.FLAGS):
            completion.complete(arguments, _run_plain_hydra)
            return
        check_arguments(arguments)
        _run_hydra(hydra_arguments(arguments))
    except UserError as error:
        _exit_with(error)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC) or error.filename is None:
            raise
        _exit_with(UserError(f"{error.filename}: cannot be read or written: {error.strerror}"))
    except KeyboardInterrupt:
        sys.exit(130)


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise a :class:`UserError` for words that are neither flags nor overrides."""
    problems = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        flag = argument.partition("=")[0]
        if argument.startswith("-") and flag not in FLAGS:
            problems.append(choice_problem("command line", flag, "flag", FLAGS))
        elif not argument.startswith(("-", "~")) and "=" not in argument and before not in VALUED_FLAGS:
            problems.append(Problem("command line", argument, "is no override: KEY=VALUE."))
    if problems:
        raise UserError(problems)


def hydra_arguments(arguments: Sequence[str]) -> list[str]:
    """The command line as Hydra wants it: a multirun unless a flag says otherwise, and flags before overrides."""
    flags: list[str] = [] if HYDRA_MODES & set(arguments) else ["--multirun"]
    overrides: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        is_flag = argument.startswith("-") or (before in VALUED_FLAGS and "=" not in argument)
        (flags if is_flag else overrides).append(argument)
    known = _known_keys(flags)
    return [*flags, *(_for_hydra(argument, known) for argument in overrides)]


def _known_keys(flags: Sequence[str]) -> set[str]:
    """The keys at the top of the config, and the config groups."""
    pairs = zip(["", *flags], flags, strict=False)
    given = [
        word.partition("=")[2] or word for before, word in pairs if {*CONFIG_DIR} & {before, word.partition("=")[0]}
    ]
    folders = [
        child.name for folder in (conf_folder(), *map(Path, given)) if folder.is_dir() for child in folder.iterdir()
    ]
    keys = re.findall(r"^(\w+):", (conf_folder() / "config.yaml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {*folders, *keys}


def _for_hydra(argument: str, known: Collection[str]) -> str:
    key, _, value = argument.partition("=")
    value = _HASH.sub(_quoted_if_endless, value)
    if key == "compare.baseline":
        value = _quoted_baseline(value)
    if value.startswith(("[", "{")):
        value = _CALL.sub(r"'\g<0>'", value)  # within a list, Hydra would make an object of its own of it
    if re.match(OPEN_KEYS, key):
        return f"++{key}={value}"
    if re.fullmatch(r"[A-Za-z_]\w*", key) and key not in known and not _is_sweep(value):
        return (
            f"++axes.{key}={value}"  # the name of an axis that a sweep file makes, or a slip, which the sweeper tells
        )
    if key == "name" and re.fullmatch(r"[\w.\-]+", value) and value != "null":
        value = f"'{value}'"  # 20240101 and 1e5 are names, too
    # A sweep file speaks of the whole config. Hydra would take that from its first line, which is the command that runs it.
    key = re.sub(r"^\+?sweep$", f"+{SWEEP_GROUP}", key)
    return f"{key}={value}" if "=" in argument else key


def _is_sweep(value: str) -> bool:
    return "," in value or "(" in value


def _quoted_if_endless(found: re.Match[str]) -> str:
    """A hash such as 9e51464034, which would be read as a number beyond all bounds, as text."""
    return f"'{found[0]}'" if float(found[0]) == float("inf") else found[0]


def _quoted_baseline(value: str) -> str:
    """A baseline that is a path or ``last~1`` in the quotes that Hydra needs for it."""
    return value if value[:1] in ("{", "'", '"', "") or value == "null" else f"'{value}'"


def _run_plain_hydra(arguments: list[str]) -> None:
    """Run Hydra with a command line, without explaining its errors."""
    import hydra

    from sweeprof.sweep.groups import VERSION_BASE

    sys.argv[1:] = arguments
    # Hydra then raises instead of printing its own version of an error and exiting.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    hydra.main(config_path=str(conf_folder()), config_name="config", **VERSION_BASE)(task)()


def _run_hydra(arguments: list[str]) -> None:
    import yaml
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        _run_plain_hydra(arguments)
    except yaml.YAMLError as error:
        from sweeprof.sweep.locate import yaml_message

        raise UserError(yaml_message(error)) from None
    except (HydraException, OmegaConfBaseException) as error:
        from sweeprof.sweep.diagnose import diagnosed

        raise diagnosed(error, sys.argv[1:]) from None
    except UserError:
        raise
    except ValueError as error:
        if problems := _unreadable_configs(error):
            raise UserError(problems) from None
        if not _raised_by_hydra(error):
            raise
        from sweeprof.sweep.diagnose import diagnosed

        raise diagnosed(error, sys.argv[1:]) from None


def _unreadable_configs(error: ValueError) -> list[Problem]:
    """The config files that are not UTF-8, if that is what the error is about."""
    if not isinstance(error, UnicodeDecodeError):
        return []
    from sweeprof.sweep.diagnose import config_dir
    from sweeprof.sweep.locate import encoding_problem

    folders = [folder for folder in (config_dir(sys.argv[1:]), conf_folder()) if folder]
    files = [file for folder in folders for file in sorted(folder.rglob("*.yaml"))]
    return [problem for file in files if (problem := encoding_problem(file))]


def _raised_by_hydra(error: BaseException) -> bool:
    """Whether the innermost function that raised is one of Hydra's, as for `model=null`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("hydra.")


def task(config: DictConfig) -> None:
    """One job of a launcher: a shard of the plan that the sweeper wrote."""
    from sweeprof.sweep.folder import Folder
    from sweeprof.sweep.launchers import uncover_gpus
    from sweeprof.sweep.shard import run_shard

    if config.job.folder is None:
        raise UserError("sweeprof always runs as a sweep: leave out --run and hydra.mode=RUN")
    uncover_gpus(Path(config.job.folder))
    run_shard(Folder(Path(config.job.folder)), int(config.job.shard))


def _exit_with(error: UserError) -> NoReturn:
    problems = error.problems or (error,)
    for problem in problems:
        print(f"error: {redacted(str(problem))}", file=sys.stderr)
    sys.exit(1)


def _help() -> str:
    conf = conf_folder()
    groups = ("model", "dataset", "backend", "device", "metrics", "protocol", "tracking", "cluster", "sweep")
    lines = [
        f"  {group:<9} {' '.join(sorted(path.stem for path in (conf / group).glob('*.yaml')))}" for group in groups
    ]
    return HELP.format(version=__version__, choices="\n".join(lines))
