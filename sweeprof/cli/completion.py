"""Shell completion: the script that ``-sc install=bash`` prints, and the completions that it requests while a user types.

Hydra's own script does not complete ``python -m sweeprof``, and changes `COMP_WORDBREAKS` for all commands to complete what follows
a ``=``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from sweeprof.cli import common
from sweeprof.errors import Problem, UserError, choice_problem

FLAGS = ("--shell-completion", "-sc")
SHELLS = ("bash", "zsh", "fish")
COMMANDS = ("install", "uninstall", "query")
USAGE = "takes install=SHELL or uninstall=SHELL."

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
    words = [word for word in arguments if word not in FLAGS]
    command, _, shell = words[0].partition("=") if len(words) == 1 else ("", "", "")
    if not command:
        raise UserError([Problem(FLAGS[1], " ".join(words), USAGE)])
    if command not in COMMANDS:
        raise UserError([choice_problem(FLAGS[1], command, "command of shell completion", COMMANDS)])
    if shell not in SHELLS:
        raise UserError([choice_problem(FLAGS[1], shell, "shell with completion", SHELLS)])
    if command == "query":
        _query(shell, run_hydra)
    elif shell == "fish":
        run_hydra([FLAGS[1], words[0]])
    else:
        print(INSTALL if command == "install" else UNINSTALL, end="")


def _query(shell: str, run_hydra: Callable[[list[str]], None]) -> None:
    from sweeprof.config.errors import config_dir

    # Hydra removes the first word, the program; of `python -m sweeprof` it would leave two.
    line = re.sub(r"^.*?(?:^|[\s/])sweeprof\s", "sweeprof ", os.environ.get("COMP_LINE", "")) or "sweeprof "
    typed = line.split()[1:]
    before, word = (typed, "") if line.endswith(" ") else (typed[:-1], typed[-1])
    if before and before[0] in common.COMMANDS:
        options = common.command_parser(before[0])._option_string_actions
        print("\n".join(option for option in options if option.startswith(word or "--")))
        return
    if not before:
        print("\n".join(name for name in common.COMMANDS if name.startswith(word)))
    os.environ["COMP_LINE"] = line
    folder = config_dir(line.split())
    given = ["--config-dir", str(folder)] if folder and folder.is_dir() else []
    try:
        run_hydra([FLAGS[1], f"query={shell}", *given])
    except Exception:  # an unfinished line may be invalid
        print()
