"""The folder of a host's locks, which every user of the host writes to: nothing in it is trusted.

No link is followed, only regular files with one name are opened, existing files are neither changed nor truncated, and another
user's folder is used only if it was made to be shared.
"""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path

from sweeprof.errors import Problem, UserError

SHARED_MODE = 0o1777
"""Every user may add files and remove only their own, as in ``/tmp``."""
MARK = "gate.lock"
"""The file by which a folder of another user is known to be a lock folder: made with it, by the same user."""
PERMISSION_S = 1.0
"""For another process to finish creating a lock file."""


def unusable(folder: Path, reason: str) -> UserError:
    """The error of a lock folder that cannot be used, and what to do about it."""
    advice = "name a folder that every user of this host may write, or one that does not exist yet."
    return UserError([Problem("limits.locks", str(folder), f"{reason}; {advice}")])


def opened_folder(folder: Path) -> int:
    """A descriptor of the lock folder, which is created if it does not exist.

    Raises:
        OSError: it cannot be created or opened.
        UserError: it is a link, or another user's and not a shared lock folder.
    """
    for _ in range(10):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            _create_folder(folder)
            continue
        except NotADirectoryError:
            kind = "a symbolic link" if folder.is_symlink() else "not a folder"
            raise unusable(folder, f"is {kind}, which a lock folder must not be") from None
        reason = _distrusted(descriptor)
        if reason is None:
            return descriptor
        os.close(descriptor)
        raise unusable(folder, reason)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def _create_folder(folder: Path) -> None:
    """Create the lock folder with its mark, under another name first: nobody sees it before everyone may use it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}-{secrets.token_hex(6)}")
    draft.mkdir(mode=0o700)
    descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.close(created(descriptor, MARK))
        os.fchmod(descriptor, SHARED_MODE)
        with suppress(OSError):  # another process was faster
            draft.rename(folder)
            return
        os.unlink(MARK, dir_fd=descriptor)
        draft.rmdir()
    finally:
        os.close(descriptor)


def _distrusted(directory: int) -> str | None:
    """The reason not to use an existing lock folder; None for one's own, for root's, and for one that sweeprof made to be shared.

    Its owner can remove and rename what others have in it, so that it must be a folder that is meant for this.
    """
    found = os.fstat(directory)
    if found.st_uid == os.geteuid():
        return None
    owner = user_of(found.st_uid)
    if stat.S_IMODE(found.st_mode) & SHARED_MODE != SHARED_MODE:
        return f"belongs to user {owner} and is not shared (mode 1777)"
    if found.st_uid == 0:
        return None
    try:
        mark = os.stat(MARK, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return f"belongs to user {owner} and was not made by sweeprof (it has no {MARK})"
    if not stat.S_ISREG(mark.st_mode) or mark.st_uid != found.st_uid:
        return f"belongs to user {owner}, and its {MARK} is not that user's file"
    return None


def user_of(uid: int) -> str:
    """The name of a user; in a container, or without the service that knows it, the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"with uid {uid}"


def opened(directory: int, name: str) -> int:
    """A descriptor of the lock file ``name``, created if it does not exist, which every user may lock.

    Raises:
        OSError: it cannot be opened; ELOOP for a link.
        UserError: it is not a regular file with one name.
    """
    # O_NONBLOCK: or opening a fifo would wait for its other end. O_CREAT only for a new file: in a folder like /tmp the
    # kernel may refuse it for another user's file, even though that exists.
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    deadline = time.monotonic() + PERMISSION_S
    while True:
        try:
            return checked(os.open(name, flags | os.O_RDWR, dir_fd=directory), name)
        except PermissionError:
            pass
        except FileNotFoundError:
            with suppress(FileExistsError):  # another process was faster
                return created(directory, name)
            continue
        try:  # the system also locks what may only be read
            return checked(os.open(name, flags, dir_fd=directory), name)
        except PermissionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)  # its creator may be about to open it to all


def created(directory: int, name: str) -> int:
    """A descriptor of a new file that every user may lock; raises ``FileExistsError`` for one that exists, be it a broken link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o666, dir_fd=directory)
    os.fchmod(descriptor, 0o666)
    return descriptor


def checked(descriptor: int, name: str) -> int:
    """``descriptor``, if it is of a regular file with one name; raises :class:`UserError` and closes it otherwise."""
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    kind = "has another name elsewhere (a hard link)" if stat.S_ISREG(found.st_mode) else "is not a regular file"
    raise UserError(
        [Problem("limits.locks", name, f"{kind}, which a lock must not be: remove it from the lock folder.")]
    )
