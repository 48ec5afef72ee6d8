"""The command `sweeprof`: overrides describe a sweep, which Hydra composes; a first word that names a subcommand runs that.

Every run is a sweep: one without axes is a sweep of one combination. The first part is the completion of commands in a shell.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sweeprof import __version__
from sweeprof.cli import common
from sweeprof.cli.common import COMMANDS, exit_codes, print_error, run_subcommand
from sweeprof.config.constraints import BOOLEAN
from sweeprof.config.override_syntax import CONFIG_DIR, SWEEP_GROUP, TOO_MANY_DIGITS, doubled, long_number, with_quotes
from sweeprof.config.schema import GROUPS, INTERNAL, KEYS, PARTS, TOP_LEVEL, constraint_problems, is_merged, keys_below
from sweeprof.credentials import remember
from sweeprof.errors import ExitCode, Problem, SweeprofError, UserError, choice_problem, nearest
from sweeprof.paths import conf_folder, expanded
from sweeprof.text import guard_output

if TYPE_CHECKING:
    from omegaconf import DictConfig


COMPLETION_FLAGS = ("--shell-completion", "-sc")
SHELLS = ("bash", "zsh", "fish")
COMPLETION_COMMANDS = ("install", "uninstall", "query")

INSTALL = """\
_sweeprof_complete()
{
    local line="${COMP_LINE:0:$COMP_POINT}" program="$1" word prefix reply
    case "$program" in
        *python*)
            case "$line" in
                *" -m sweeprof "*) program="$program -m sweeprof" ;;
                *) return ;;
            esac ;;
    esac
    word="${line##* }"
    prefix="${word%"$2"}"  # bash replaces only what follows a "=", zsh the whole word
    COMPREPLY=()
    for reply in $(COMP_LINE="$line" $program -sc query=bash 2>/dev/null); do
        case "$reply" in
            "$word"*) COMPREPLY+=("${reply#"$prefix"}") ;;
        esac
    done
}
if [ -n "$ZSH_VERSION" ]; then
    autoload -Uz compinit bashcompinit
    whence compdef >/dev/null || compinit -i
    bashcompinit
fi
complete -o nospace -o default -F _sweeprof_complete sweeprof python python3
"""
UNINSTALL = """\
complete -r sweeprof python python3
unset -f _sweeprof_complete
"""


def complete(arguments: Sequence[str], run_hydra: Callable[[list[str]], None]) -> None:
    """Print the result of ``-sc COMMAND=SHELL``; ``run_hydra`` runs Hydra with a command line.

    Raises:
        UserError: the command or the shell is unknown.
    """
    words = [word for word in arguments if word not in COMPLETION_FLAGS]
    command, _, shell = words[0].partition("=") if len(words) == 1 else ("", "", "")
    flag = COMPLETION_FLAGS[1]
    if not command:
        raise UserError([Problem(flag, " ".join(words), "takes install=SHELL or uninstall=SHELL.")])
    if command not in COMPLETION_COMMANDS:
        raise UserError([choice_problem(flag, command, "command of shell completion", COMPLETION_COMMANDS)])
    if shell not in SHELLS:
        raise UserError([choice_problem(flag, shell, "shell with completion", SHELLS)])
    if command == "query":
        _query(shell, run_hydra)
    elif shell == "fish":
        run_hydra([flag, words[0]])
    elif command == "install":
        print(INSTALL, end="")
    else:
        print(UNINSTALL, end="")


def _query(shell: str, run_hydra: Callable[[list[str]], None]) -> None:
    from sweeprof.config.errors import config_dir

    # Hydra removes the first word, the program; of `python -m sweeprof` it would leave two.
    line = re.sub(r"^.*?(?:^|[\s/])sweeprof\s", "sweeprof ", os.environ.get("COMP_LINE", "")) or "sweeprof "
    before, word = line.split()[1:], ""
    if not line.endswith(" "):
        word = before.pop()
    if before and before[0] in common.COMMANDS:
        options = common.command_parser(before[0])._option_string_actions
        print("\n".join(option for option in options if option.startswith(word or "--")))
        return
    if word.startswith("-"):
        print("\n".join(flag for flag in FLAGS if flag.startswith(word)))
        return
    folder = config_dir(line.split())
    given = ["--config-dir", str(folder)] if folder and folder.is_dir() else []
    key, equals, value = word.partition("=")
    values = _values(key.lstrip("+"), [conf_folder(), *map(Path, given[1:])]) if equals else []
    if values:
        chosen, comma, last = value.rpartition(",")
        for name in values:
            if name.startswith(last) and name not in chosen.split(","):
                print(f"{key}={chosen}{comma}{name}")
        return
    if not before:
        print("\n".join(name for name in common.COMMANDS if name.startswith(word)))
    os.environ["COMP_LINE"] = line
    try:
        run_hydra([COMPLETION_FLAGS[1], f"query={shell}", *given])
    except Exception:  # an unfinished line may be invalid
        print()


def _values(key: str, folders: Sequence[Path]) -> list[str]:
    """Return the values of a key if they can be listed: configs of a group in these folders, fixed choices, sweeps to resume."""
    if key in (*GROUPS, "sweep"):
        names = set()
        for folder in folders:
            for file in (folder / key).rglob("*.yaml"):
                names.add(str(file.relative_to(folder / key).with_suffix("")))
        return sorted(names)
    if key == "resume":
        sweeps = {plan.parents[1].name for plan in Path("outputs").glob("*/*/plan.json")}
        return ["last", *(f"{name}/last" for name in sorted(sweeps) if " " not in name)]
    constraint = KEYS[key].constraint if key in KEYS else None
    if constraint is BOOLEAN:
        return ["false", "true"]
    return list(constraint.choices) if constraint else []


# ----------------------------------------------------------------------------------------------------------------------
# The command

HYDRA_MODES = {"--run", "-r", "--multirun", "-m", "--cfg", "-c", "--info", "-i", "--hydra-help", *COMPLETION_FLAGS}
"""Flags that select Hydra's mode; without one of them the mode is multirun."""

VALUED_FLAGS = {"--config-dir", "-cd", "--config-name", "-cn", "--cfg", "-c", "--info", "-i", "--package", "-p"}
"""Flags that are followed by a value."""
ALIKE = 0.8
"""Minimum similarity of a word to a subcommand that it may misspell: `run` is not like `prune`."""
FLAGS = sorted(HYDRA_MODES | VALUED_FLAGS | {"--help", "-h", "--version", "--resolve", "--config-path", "-cp"})

DISK_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EIO, errno.ESTALE, errno.ENOTCONN}
"""Errors of files and disks, which need no traceback."""
_CALL = re.compile(r"(?<=[\[,: ])(?:range|choice|glob)\([^()'\"]*\)")
_HASH = re.compile(r"(?<![\w.'\"\\/-])\d+[eE]\d+(?![\w.'\"/-])")

HELP = """\
sweeprof {version}: sweeps that profile machine-learning models

  sweeprof KEY=VALUE ...            measure a sweep; also: python -m sweeprof
  sweeprof SUBCOMMAND ...           report, compare, send or remove measured sweeps; check this machine

Sweeps
  sweeprof                                  measure one combination: the defaults
  sweeprof model=mlp batch_size=8           another combination
  sweeprof model=mlp,lenet5 batch_size=1,8  a sweep: every key may have several values
  sweeprof +sweep=quickstart                a sweep from a file
  sweeprof +sweep=quickstart dry_run=true   its plan, measuring nothing
  sweeprof +sweep=quickstart cluster=slurm  as jobs on Slurm (or ray)
  sweeprof resume=last                      resume what is missing or failed
  sweeprof model.torch._target_=my_package.MyNet model.torch.width=64
                                            your own model, with its arguments

Subcommands (sweeprof SUBCOMMAND --help describes each)
{commands}

Choices
{choices}

Keys (docs/config.md describes each; --cfg job prints the defaults)
{keys}

Flags
  --cfg job           print the composed config        --config-dir DIR   a folder with your own configs
  --hydra-help        Hydra's own flags                --version          the version
  -sc install=bash    print the script that completes this command in bash (or zsh):
                      eval "$(sweeprof -sc install=bash)"

Exit codes
{exit_codes}
"""


def run_command(
    arguments: Sequence[str], report_error: Callable[[SweeprofError | OSError], ExitCode] = print_error
) -> int:
    """Run ``sweeprof ARGUMENTS``; return the exit code, or that of ``report_error`` for a mistake of the user."""
    guard_output()
    remember(*arguments)
    is_subcommand = bool(arguments) and arguments[0] in COMMANDS
    try:
        if is_subcommand:
            return run_subcommand(arguments[0], arguments[1:])
        return _run_sweep(arguments)
    except (SweeprofError, OSError) as error:
        is_expected = isinstance(error, UserError)
        if isinstance(error, OSError):
            is_expected = error.errno in DISK_ERRORS and error.filename is not None
        if not is_subcommand and not is_expected:
            raise  # the traceback shows where sweeprof failed
        return report_error(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _run_sweep(arguments: Sequence[str]) -> ExitCode:
    if any(flag in arguments for flag in ("--help", "-h")):
        print(help_text(), end="")
    elif "--version" in arguments:
        print(f"sweeprof {__version__}")
    elif any(flag in arguments for flag in COMPLETION_FLAGS):
        complete(arguments, _run_plain_hydra)
    else:
        check_arguments(arguments)
        _run_hydra(hydra_arguments(arguments))
    return ExitCode.OK


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise a :class:`UserError` for arguments that are neither flags nor overrides."""
    problems = []
    in_advice = False
    """True if the problem of the argument before names this one as its value."""
    for before, argument, after in zip(["", *arguments], arguments, [*arguments[1:], ""], strict=False):
        key, _, value = argument.partition("=")
        if key.lstrip("+") == "tracking.uri" and "@" in value:  # before Hydra, whose errors quote parts of a value
            problems += constraint_problems({"tracking": {"uri": value.strip("'\" ")}})
        if long_number(value):
            problems.append(Problem(key, value, TOO_MANY_DIGITS))
        if before in VALUED_FLAGS or in_advice:
            in_advice = False
            continue
        following = "" if is_override(after) else after
        problem = _separated_value(argument, following)
        if problem is not None:
            in_advice = following != ""
        elif not is_override(argument):
            problem = _unknown_word(argument, is_first=argument == arguments[0])
        elif argument.startswith("-") and key not in FLAGS:
            problem = choice_problem("command line", key, "flag", FLAGS)
        if problem is not None:
            problems.append(problem)
    if problems:
        raise UserError(problems)


def _separated_value(argument: str, following: str) -> Problem | None:
    """Return the problem of a key with dashes, without a value, or with a comma before a space; None if it is none of them.

    Args:
        following: the next argument, if it may be the value.
    """
    name, equals, value = argument.partition("=")
    key = name.lstrip("-").replace("-", "_")
    if equals and value.endswith(","):
        advice = f"write values without spaces between them: {name}={value}{following or 'VALUE'}."
        return Problem(name, value, f"ends with a comma; {advice}")
    if key not in (*KEYS, "sweep") or name in FLAGS:
        return None
    if name.startswith("-"):
        return Problem("command line", argument, f"is not a flag: write {key}={value or following or 'VALUE'}.")
    if not equals:
        return Problem("command line", argument, f"has no value: write {key}={following or 'VALUE'}.")
    return None


def _unknown_word(word: str, is_first: bool) -> Problem:
    """Return the problem of a word that is neither a flag nor an override; the first one may be meant as a subcommand."""
    if not is_first:
        return Problem("command line", word, "is not an override (expected KEY=VALUE).")
    expected = (
        "is not an override (expected KEY=VALUE) or a subcommand. A sweep is started by overrides alone, such as "
        f"sweeprof +sweep=NAME. Subcommands: {', '.join(COMMANDS)}."
    )
    close = nearest(word, list(COMMANDS), ALIKE)
    if (conf_folder() / "sweep" / f"{word}.yaml").is_file():
        close = f"+sweep={word}"
    return Problem("command line", word, expected, close)


def is_override(argument: str) -> bool:
    """True if an argument looks like a flag or an override."""
    return argument.startswith(("-", "~")) or "=" in argument[1:]


def hydra_arguments(arguments: Sequence[str]) -> list[str]:
    """The command line as Hydra wants it: a multirun unless a flag says otherwise, and flags before overrides."""
    flags: list[str] = [] if HYDRA_MODES & set(arguments) else ["--multirun"]
    overrides: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if argument.startswith("-"):
            flag, equals, value = argument.partition("=")
            if equals and flag in CONFIG_DIR:
                flags.append(f"{flag}={expanded(value, flag)}")
            else:
                flags.append(argument)
        elif before in CONFIG_DIR:
            flags.append(expanded(argument, before))
        elif before in VALUED_FLAGS and "=" not in argument:
            flags.append(argument)
        else:
            overrides.append(argument)
    # The keys at the top of the config, and the config groups.
    known = {*TOP_LEVEL, "defaults"}
    folders = [conf_folder()]
    for before, word in zip(["", *flags], flags, strict=False):
        flag, _, value = word.partition("=")
        if before in CONFIG_DIR or flag in CONFIG_DIR:
            folders.append(Path(value or word))
    for folder in folders:
        if folder.is_dir():
            known.update(child.name for child in folder.iterdir())
    return [*flags, *(_for_hydra(argument, known) for argument in overrides)]


def _for_hydra(argument: str, known: Collection[str]) -> str:
    key, _, value = argument.partition("=")
    try:
        numbers = doubled(value)  # of doubling(1,8), which Hydra does not know
    except ValueError as error:
        raise UserError([Problem(key, value, str(error))]) from None
    if numbers is not None:
        value = ",".join(map(str, numbers))
    value = _HASH.sub(_quoted_if_endless, with_quotes(value))
    if key == "compare.baseline" and value[:1] not in ("{", "'", '"', "") and value != "null":
        value = f"'{value}'"  # a path or ``last~1``
    if value.startswith(("[", "{")):
        value = _CALL.sub(r"'\g<0>'", value)  # within a list, Hydra would make an object of its own of it
    if is_merged(key) or re.match(r"hydra\.launcher\.ray\.(init|remote)\.\w+$", key):
        return f"++{key}={value}"
    is_sweep = "," in value or "(" in value
    if re.fullmatch(r"[A-Za-z_]\w*", key) and key not in known and not is_sweep:
        # An axis that a sweep file defines, or a misspelt key, which the sweeper reports.
        return f"++axes.{key}={value}"
    if key == "name" and re.fullmatch(r"[\w.\-]+", value) and value != "null":
        value = f"'{value}'"  # 20240101 and 1e5 are names, too
    # A sweep file sets keys of the whole config. Hydra would read that from its first line, which is the command that runs it.
    key = re.sub(r"^\+?sweep$", f"+{SWEEP_GROUP}", key)
    return f"{key}={value}" if "=" in argument else key


def _quoted_if_endless(found: re.Match[str]) -> str:
    """Return a hash such as 9e51464034, which would be read as an infinite number, as text."""
    return f"'{found[0]}'" if float(found[0]) == float("inf") else found[0]


def _run_plain_hydra(arguments: list[str]) -> None:
    """Run Hydra with a command line; its errors are not explained."""
    import hydra

    from sweeprof.config.overrides import VERSION_BASE

    sys.argv[1:] = arguments
    # Hydra then raises instead of printing its own version of an error and exiting.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    # For a sweep Hydra composes the config and calls `sweeprof.run.sweeper.sweep` (hydra_plugins/sweeprof_plugins/sweeper.py); its
    # launcher then calls `task` once per shard.
    hydra.main(config_path=str(conf_folder()), config_name="config", **VERSION_BASE)(task)()


def _run_hydra(arguments: list[str]) -> None:
    import yaml
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        _run_plain_hydra(arguments)
    except yaml.YAMLError as error:
        from sweeprof.config.errors import yaml_message

        raise UserError(yaml_message(error)) from None
    except (HydraException, OmegaConfBaseException) as error:
        from sweeprof.config.errors import diagnosed

        raise diagnosed(error, sys.argv[1:]) from None
    except UserError:
        raise
    except ValueError as error:
        if problems := _unreadable_configs(error):
            raise UserError(problems) from None
        if not _raised_by_hydra(error):
            raise
        from sweeprof.config.errors import diagnosed

        raise diagnosed(error, sys.argv[1:]) from None


def _unreadable_configs(error: ValueError) -> list[Problem]:
    """Return the problems of config files that are not UTF-8 or have an endless number, if the error is about that."""
    from sweeprof.config.errors import config_dir, digits_problem, encoding_problem

    if isinstance(error, UnicodeDecodeError):
        problem_of = encoding_problem
    elif "integer string conversion" in str(error):
        problem_of = digits_problem
    else:
        return []

    problems: list[Problem | None] = []
    for folder in filter(None, (config_dir(sys.argv[1:]), conf_folder())):
        problems += map(problem_of, sorted(folder.rglob("*.yaml")))
    return [problem for problem in problems if problem]


def _raised_by_hydra(error: BaseException) -> bool:
    """True if the innermost function that raised is one of Hydra's, as for `model=null`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("hydra.")


def task(config: DictConfig) -> None:
    """One job of a launcher: a shard of the plan that the sweeper wrote."""
    from sweeprof.run.launchers import restore_gpus
    from sweeprof.run.locks import end_with_driver
    from sweeprof.run.shard import run_shard
    from sweeprof.storage import Folder

    if config.job.folder is None:
        raise UserError("sweeprof always runs as a sweep: remove --run and hydra.mode=RUN")
    folder = Path(config.job.folder)
    restore_gpus(folder)
    end_with_driver(folder)
    run_shard(Folder(folder), int(config.job.shard))


def help_lines(width: int = 110) -> Iterator[str]:
    """Return the keys as ``--help`` lists them: those of a part in one entry, with the first sentence of other keys."""
    for name in TOP_LEVEL:
        if name == INTERNAL:
            continue
        if name in PARTS:
            start, text = f"{name}.", " ".join(keys_below(name))
            if not text:
                text = KEYS[name].help.rstrip(".")
            elif KEYS[name].has_target:
                text += " …"
        else:
            start, text = name, KEYS[name].help.partition(". ")[0].partition("; ")[0].rstrip(".")
        yield from textwrap.wrap(text, width, initial_indent=f"  {start:<11} ", subsequent_indent=" " * 14)


def help_text() -> str:
    """Return the text of ``sweeprof --help``."""
    conf = conf_folder()
    lines = []
    for group in (*GROUPS, "sweep"):
        choices = sorted(path.stem for path in (conf / group).glob("*.yaml"))
        lines.append(f"  {group:<9} {' '.join(choices)}")
    commands = "\n".join(f"  {name:<9} {text}" for name, text in COMMANDS.items())
    return HELP.format(
        version=__version__,
        choices="\n".join(lines),
        keys="\n".join(help_lines()),
        commands=commands,
        exit_codes=exit_codes(),
    )
