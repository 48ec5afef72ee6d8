"""Decides which of the addresses and files that a sweep's folder names are used, for every kind and every command.

The rule: an address that a folder names is used if the user's own command line, environment or config names it, too, if nobody but
the user can write to the folder, or with ``--trust``. The user's logins are sent to it in the first and the last case only.
"""

from __future__ import annotations

from collections.abc import Iterable

from sweeprof.credentials import redacted_address
from sweeprof.errors import Problem, UserError
from sweeprof.storage.folder import Folder
from sweeprof.tracking.connection import same_address


def check_address(
    folder: Folder, key: str, address: str, named: Iterable[str | None], how: str, trust: bool = False
) -> bool:
    """Return whether the user's logins may be sent to an address, or a path, that a sweep's folder names.

    Args:
        key: by which the user would give the address.
        named: what the user's command line, environment and config name.
        how: the user can name it, as in ``"set RAY_ADDRESS"``.
        trust: whether the user trusts the author of the folder.

    Raises:
        UserError: the address may not be used at all.
    """
    if trust or any(one and same_address(one, address) for one in named):
        return True
    why = folder.foreign()
    if why is None:
        return False
    message = (
        f"is named by a folder that {why}, and by nothing of your own: {how}, or add --trust (resume: trust=true) "
        "if you trust its author."
    )
    raise UserError([Problem(key, redacted_address(address), message)])
