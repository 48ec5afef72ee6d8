"""The message of an exception and the line of the user's code that raised it, even if a framework wrapped it."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from sweeprof.errors import UserError

LENGTH = 500
"""Characters of a message in a reason; the traceback has all of it."""
SHORT = 200
"""Characters of an error's first line in a reason that is one of several."""
LIBRARIES = (
    *("torch", "keras", "tensorflow", "tf_keras", "jax", "jaxlib", "flax", "numpy", "onnx", "onnxruntime"),
    *("ai_edge_litert", "openvino", "nncf", "hydra", "omegaconf"),
)
"""Packages that the user's code calls. A frame in another installed package is shown where there is none in the user's files."""
_OWN = Path(__file__).resolve().parent
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]([^\\/.]+)")
_GENERATED = "__autograph_generated_file"
"""Part of the name of the files that TensorFlow's AutoGraph writes; their lines are not the user's."""
_KERAS = re.compile(
    r"Exception encountered when calling [^\n]*\n\s*\n(.*?)(?:\n\s*\nArguments received by .*)?", re.DOTALL
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LOCATION = "_sweeprof_location"

Frame = tuple[str, int, str | None]
"""File, line, and function; None where it is not in a function, as a syntax error."""


def described(error: BaseException) -> str:
    """Type, message and location of an error in one line, e.g. ``ValueError: no width (nets.py:7 in forward)``.

    What could not be imported comes with the search path; a mistake that sweeprof itself reports is its message alone.
    """
    error = original(error)
    message = message_of(error)[:LENGTH]
    if isinstance(error, UserError):
        return message
    kind, location = type(error).__name__, location_of(error)
    text = f"{kind}: {message}" if message else kind
    if location is not None:
        text = f"{text} ({location})"
    return f"{text}; sys.path: {', '.join(_search_path())}" if isinstance(error, ImportError) else text


def original(error: BaseException) -> BaseException:
    """The error itself, without the errors that Hydra wraps around it."""
    while error.__cause__ is not None and _is_hydras(error):
        error = error.__cause__
    return error


def message_of(error: BaseException) -> str:
    """Return the first line of an error's message, without the text that Keras and AutoGraph add."""
    try:
        metadata = getattr(error, "ag_error_metadata", None)
        if metadata is not None and str(error).startswith("in user code:"):
            text = str(metadata.cause_message).partition(": ")[2]
        else:
            text = str(error)
    except Exception as broken:  # __str__ of a user's class may raise anything
        return f"(its message raised {type(broken).__name__})"
    text = _ANSI.sub("", text).strip()
    inner = _KERAS.fullmatch(text)
    lines = [line.strip() for line in (inner[1] if inner else text).splitlines() if line.strip()]
    message = lines[0] if lines else ""
    for line in lines[1:]:  # e.g. "Error(s) in loading state_dict for Net:"
        if not message.endswith(":"):
            break
        message = f"{message} {line}"
    return message


def first_line(error: BaseException) -> str:
    """Type and first line of an error, for a reason that is shown beside others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kind = type(error).__name__
    return f"{kind}: {lines[0]}"[:SHORT] if lines else kind


def location_of(error: BaseException) -> str | None:
    """``file:line in function`` of the deepest frame in the user's code.

    Errors that the error was raised from are searched after the error itself. Where none has a frame in the user's code, it is
    the deepest frame in an installed package that is not one of :data:`LIBRARIES`, then the deepest frame of all.
    None if that only imports or calls what a config names, as for a module that does not exist.
    """
    chain = list(_chain(original(error)))
    for one in chain:
        known: str | None = getattr(one, _LOCATION, None)
        if known is not None:
            return known
    for is_wanted in (_is_users, _is_in_another_package):
        for one in chain:
            found = next((frame for frame in reversed(_frames(one)) if is_wanted(frame[0])), None)
            if found is not None:
                return _shown(*found)
    deepest = next((frame for frame in reversed(_frames(chain[0])) if not frame[0].startswith("<")), None)
    if deepest is None or _package(deepest[0]) == "hydra" or Path(deepest[0]).parent.name == "importlib":
        return None
    return _shown(*deepest)


def located_at(error: BaseException, location: str | None) -> None:
    """Let :func:`location_of` return ``location`` for an error whose frames are in another process, or say too little."""
    if location is not None:
        setattr(error, _LOCATION, location)


def definition_of(function: Callable[..., Any]) -> str | None:
    """Return ``file:line in function`` of a function's first line; None for a function of sweeprof, or without Python source."""
    code = getattr(function, "__code__", None)
    return (
        None
        if code is None or not _is_users(code.co_filename)
        else _shown(code.co_filename, code.co_firstlineno, function.__qualname__)
    )


def formatted(error: BaseException) -> str:
    """The traceback as Python prints it."""
    return "".join(traceback.format_exception(error))


def _is_hydras(error: BaseException) -> bool:
    """True if Hydra raised the error; for a target that it cannot import it raises ``ImportError``."""
    if type(error).__module__.startswith("hydra."):
        return True
    frames = _frames(error)
    return isinstance(error, ImportError) and bool(frames) and _package(frames[-1][0]) == "hydra"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it was raised from, the outermost first."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


def _frames(error: BaseException) -> list[Frame]:
    """The frames of an error, the deepest last, as positions in source that a person wrote."""
    found: list[Frame] = [
        (frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    # AutoGraph runs a translation of the user's code, and torch.compile reads it without running it.
    translated = getattr(getattr(error, "ag_error_metadata", None), "translated_stack", None)
    if translated:
        found += [(frame.filename, frame.lineno, frame.function_name) for frame in reversed(translated)]
    found += [(frame.filename, frame.lineno or 0, frame.name) for frame in getattr(error, "real_stack", None) or ()]
    if isinstance(error, SyntaxError) and error.filename is not None:
        found.append((error.filename, error.lineno or 0, None))
    return found


def _is_users(file: str) -> bool:
    return _is_source(file) and _package(file) is None and not _is_standard(file)


def _is_in_another_package(file: str) -> bool:
    package = _package(file)
    return package is not None and package not in LIBRARIES and package != _OWN.name


def _is_source(file: str) -> bool:
    if file.startswith("<"):
        return file.startswith(("<stdin>", "<ipython-"))
    return _GENERATED not in file


@cache
def _package(file: str) -> str | None:
    """The installed package that a file belongs to; None for a file of the user's, or of Python's own."""
    if Path(file).is_relative_to(_OWN) or Path(file).is_relative_to(_OWN.parent / "hydra_plugins"):
        return _OWN.name
    found = _INSTALLED.search(file)
    return found[1] if found else None


@cache
def _is_standard(file: str) -> bool:
    return any(Path(file).is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def _shown(file: str, line: int, function: str | None) -> str:
    place = f"{_relative(file)}:{line}"
    return place if function is None else f"{place} in {function}"


def _relative(file: str) -> str:
    """The path from the working directory where the file is below that."""
    try:
        path = Path(file)
        return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
    except OSError:  # the working directory is gone
        return file


def _search_path() -> list[str]:
    """The folders of ``sys.path`` that may hold modules of the user's, or installed ones."""
    standard = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    folders = dict.fromkeys(entry or os.curdir for entry in sys.path)
    return [
        folder
        for folder in folders
        if Path(folder).is_dir()
        and os.path.realpath(folder) not in standard
        and not folder.endswith(f"{os.sep}lib-dynload")
    ]
