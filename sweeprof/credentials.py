"""Removes users, passwords and tokens of addresses from everything that is shown, stored or sent.

A parser and a reader disagree on what belongs to a password that is not percent-encoded. So there are three functions:
:func:`redacted_address` for a text that is one address, :func:`without_credentials` for files with any content, of which nothing
else may change, and :func:`redacted_message` for messages, of which rather too much is hidden. The last two also know the secrets
of the addresses that :func:`remember` was given; those of the command line and the environment it is given when this module is
imported.
"""

from __future__ import annotations

import html
import json
import os
import re
import sys
import urllib.parse
from collections.abc import Iterator

_SCHEME = r"(?<![\w+.-])(?!(?:sqlite|file)\b)[A-Za-z][\w+.-]*://"
"""The beginning of an address that may have a user; a file has none, but its path may have an @."""
_WHOLE = re.compile(rf"({_SCHEME})(.*)@", re.DOTALL)
"""All up to the last @, whatever a parser makes of it."""
_REMEMBERED = re.compile(rf"""(?:[\w.+@/-]+=)?["'\s]*({_SCHEME})(.*)@""", re.DOTALL)
_QUOTED = re.compile(rf"""(?<=(["'`]))({_SCHEME})((?:(?!\1).)*)@""")
_ADDRESS = re.compile(r"://[^\s\"'<>`]+")
_USER = re.compile(
    r"""://
    (?:[^/?#@:\[]*:(?!\d*[/?#])[^@\\]*@   # user:password@, whatever is in a password: unless it is a port
    |[^/?#\\]*@                           # user@
    )+""",
    re.VERBOSE,
)
_QUERY = re.compile(
    r"([?&](?:[\w.-]*password|passwd|pwd|[\w.-]*token|[\w.-]*secret|api_?key)=)([^&#\\]+)", re.IGNORECASE
)
_LEAST_PART = 3
"""Characters of a part of a password that is hidden, also within a word: errors of parsers quote parts, in any escapes."""
_LEAST_TOKEN = 8
"""Characters of a user without a password that is taken for a token."""

_users: set[str] = set()
"""What stands before the @ of an address."""
_secrets: set[str] = set()
"""Passwords, and parts of them."""


def remember(*words: str) -> None:
    """Let messages and files be free of the secrets of these words that are an address, or ``KEY=`` with an address."""
    for word in words:
        found = _REMEMBERED.match(word)
        if found is not None:
            user, colon, password = found[2].partition(":")
            _users.update(_forms(found[2]))
            if colon or len(user) >= _LEAST_TOKEN:
                _secrets.update(_forms(password if colon else user))
            parts = re.split(r"[^A-Za-z0-9]+", password)
            _secrets.update(part for part in parts if len(part) >= _LEAST_PART)
        if "://" in word:
            for _, secret in _QUERY.findall(word):
                _secrets.update(_forms(secret))


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret in the forms in which libraries, shells and file formats write it."""
    for plain in (secret, urllib.parse.unquote(secret), " ".join(secret.split())):
        if not plain:
            continue
        yield plain
        yield plain.replace("\\", "\\\\")
        yield plain.replace("'", "\\'")
        yield plain.replace("'", "''")
        yield plain.replace("'", "'\"'\"'")
        yield json.dumps(plain)[1:-1]
        yield json.dumps(plain, ensure_ascii=False)[1:-1]
        yield repr(plain)[1:-1]
        yield html.escape(plain)
        yield html.escape(plain, quote=False)
        for safe in ("", "/", " +", ":", ":/"):
            yield urllib.parse.quote(plain, safe=safe, errors="replace")


def redacted_address(text: str, instead: str = "***@") -> str:
    """Return an address, also one after ``KEY=``, without what stands between its ``//`` and its last ``@``.

    Args:
        instead: what stands where a user was.
    """
    return _QUERY.sub(r"\1***", _WHOLE.sub(rf"\1{instead}", text))


def without_credentials(text: str, instead: str = "") -> str:
    """Return ``text`` without the user and password of every address, nor what its query calls a password, token or secret.

    Args:
        text: anything that may hold addresses.
        instead: what stands where a user was, e.g. ``***@``.
    """

    def shown(address: re.Match[str]) -> str:
        return _QUERY.sub(r"\1***", _USER.sub(f"://{instead}", address[0]))

    for user in sorted(_users, key=len, reverse=True):
        text = text.replace(f"//{user}@", f"//{instead}")
    return _ADDRESS.sub(shown, text)


def redacted_message(text: str, instead: str = "") -> str:
    """Return a message without any secret that :func:`without_credentials` finds, and without the known ones by themselves."""
    text = without_credentials(_QUOTED.sub(rf"\2{instead}", text), instead)
    for secret in sorted(_secrets, key=len, reverse=True):
        if secret not in text:
            continue
        if len(secret) >= _LEAST_PART:
            text = text.replace(secret, "***")
        else:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return text


remember(*sys.argv, *(value for value in os.environ.values() if not re.search(r"\s", value)))
