"""How the library's objects print: as text at the prompt, as tables in a notebook; sweeprof/report makes both when asked."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, overload

if TYPE_CHECKING:
    from sweeprof.report.view import View

T = TypeVar("T")
Content = TypeVar("Content", str, bytes)
FilePath = str | PathLike[str]


def written(content: Content, path: FilePath | None) -> Content:
    """Return the content of a file; with a ``path`` also write it there, text as UTF-8."""
    if path is not None and isinstance(content, str):
        Path(path).write_bytes(content.encode())
    elif path is not None:
        Path(path).write_bytes(content)
    return content


class Displayed:
    """An object with a table or a few lines as its text, and the same as HTML."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__repr__" not in vars(cls):  # a dataclass would make its own, which prints every field in full
            cls.__repr__ = Displayed.__repr__  # type: ignore[method-assign]

    def __str__(self) -> str:
        from sweeprof.report.display import text_of

        return text_of(self, None)

    def __repr__(self) -> str:
        return str(self)

    def to_text(self, path: FilePath | None = None, *, width: int | None = None) -> str:
        """Return the text that ``print`` shows; with a ``path`` also write it to a file.

        Args:
            path: of the file.
            width: characters of a line; None: those of the terminal, 80 without one. What does not fit is left out, and named.
        """
        from sweeprof.report.display import text_of

        text = text_of(self, width)
        written(f"{text}\n", path)
        return text

    def to_html(self, path: FilePath | None = None) -> str:
        """Return what notebooks show as an HTML fragment; with a ``path`` also write it to a file."""
        return written(self._repr_html_(), path)

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show."""
        from sweeprof.report.view import as_html

        return as_html(self.__view__())

    def __view__(self) -> View:
        """Return the content of both."""
        from sweeprof.report.display import view_of

        return view_of(self)


def listing_of(lines: Any) -> str:
    """Return the source lines of functions with their times, then with their memory, as text."""
    from sweeprof.report.display import listing

    return listing(lines)


def frame_of(comparison: Any) -> Any:
    """Return the measurements of a sweep's comparison as a pandas data frame."""
    from sweeprof.report.display import measurements_frame

    return measurements_frame(comparison)


def answer_of(comparison: Any) -> str:
    """Return the answer of a sweep's comparison in words."""
    from sweeprof.report.answer import answer

    return str(answer(comparison))


class Rows(Displayed, tuple[T, ...]):
    """A tuple of rows, printed as one table."""

    __slots__ = ()

    @overload
    def __getitem__(self, place: SupportsIndex) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> Rows[T]: ...

    def __getitem__(self, place: SupportsIndex | slice) -> T | Rows[T]:
        if isinstance(place, slice):
            return Rows(super().__getitem__(place))
        return super().__getitem__(place)
