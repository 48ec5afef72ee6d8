"""Pictures in one folder per class."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Unpack

from sweeprof.datasets import SplitName
from sweeprof.datasets.packages import package
from sweeprof.datasets.pictures import PictureSource, PictureSourceOptions, array_of
from sweeprof.datasets.sample import Sample
from sweeprof.datasets.source import Source
from sweeprof.errors import DatasetError, Problem
from sweeprof.paths import user_path

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
PARTS: dict[SplitName, tuple[str, ...]] = {"test": ("test", "val", "valid", "validation"), "train": ("train",)}
"""Names of folders that are splits and not classes."""


class Images(PictureSource):
    """Pictures in one folder per class: ``DIR/cat/1.jpg``; classes are numbered by the names of the folders in their order.

    A folder of folders such as ``train`` and ``val``, which have the classes, has splits.
    """

    packages = ("pillow",)

    def __init__(self, *, path: str | None = None, **options: Unpack[PictureSourceOptions]) -> None:
        """Args:
        path: of the folder; ``{split}`` in it stands for the split.
        """
        self._path = path
        super().__init__(**options)
        self._shape: tuple[int, ...] | None = None

    @property
    def unit(self) -> str:
        """Images."""
        return "images"

    @property
    def units_per_sample(self) -> float:
        """One image."""
        return 1

    def problems(self) -> list[Problem]:
        """Return the problems of the arguments."""
        return [*folder_problems(self._path), *super().problems()]

    def files(self, name: SplitName) -> Iterable[Path]:
        """Return the pictures."""
        return [path for path, _ in self.records(name)]

    def records(self, name: SplitName) -> list[tuple[Path, int]]:
        """Return the pictures of a split with the numbers of their classes, by class and name.

        Raises:
            DatasetError: there are no folders of classes, or no pictures.
        """
        return labelled_files(self, str(self._path), name, SUFFIXES, "picture")

    def decoded(self, record: tuple[Path, int]) -> Sample:
        """Return the picture as a sample; raises :class:`DatasetError` if it cannot be read."""
        path, label = record
        image = package("PIL.Image", "images")
        try:
            with image.open(path) as picture:
                picture.load()
                array = array_of(picture, self._spec, str(path))
        except DatasetError:
            raise
        except (OSError, ValueError, SyntaxError) as error:  # of files that are cut or something else
            raise DatasetError(f"{path} cannot be read as a picture: {error}") from error
        self._shape = self._shape or array.shape
        if array.shape != self._shape:
            sizes = " and ".join(f"{width} × {height}" for _, height, width in (array.shape, self._shape))
            raise DatasetError(f"{path} and those before differ in size ({sizes}): set dataset.image_size")
        return Sample(array, label, str(path), 1)


def folder_problems(path: str | None) -> list[Problem]:
    """Return the problem of ``dataset.path``, which must be a folder."""
    if path is None:
        return [Problem("dataset.path", None, "is missing: it must name a folder.")]
    if "{split}" not in path and not user_path(path).is_dir():
        return [Problem("dataset.path", path, "is not a folder.")]
    return []


def labelled_files(
    source: Source, path: str, name: SplitName, suffixes: tuple[str, ...], noun: str
) -> list[tuple[Path, int]]:
    """Return the files in one folder per class with the numbers of their classes, by class and name.

    Raises:
        DatasetError: there are no folders of classes, or no files in them.
    """
    whole = source.path_of(path, name)
    root = _part(source, whole, name)
    if not root.is_dir():
        raise DatasetError(f"{root} is not a folder, and was to be the split {name!r}")
    classes = {folder.name for folder in _folders(root)}
    if root != whole:  # numbers must not depend on the part: all parts have the same classes
        classes |= {folder.name for part in _folders(whole) for folder in _folders(part)}
    if not classes:
        raise DatasetError(f"{root} has no folders: one is needed for each class")
    numbers = {label: number for number, label in enumerate(sorted(classes))}
    found = [
        (file, numbers[folder.name])
        for folder in _folders(root)
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in suffixes and file.is_file() and not _is_hidden(file.relative_to(folder))
    ]
    if not found:
        raise DatasetError(f"{root} has no {noun} in the folders of its classes ({', '.join(suffixes)})")
    return found


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def _is_hidden(path: Path) -> bool:
    """True for what programs leave beside the data, such as ``.ipynb_checkpoints/1-checkpoint.png`` and ``._1.png`` of macOS."""
    return any(part.startswith(".") for part in path.parts)


def _part(source: Source, root: Path, name: SplitName) -> Path:
    """Return the folder of a split within ``root``, or ``root`` where its folders are classes."""
    wanted = source.part(name)
    if wanted is not None and (root / wanted).is_dir():
        return root / wanted
    if not root.is_dir():
        return root
    folders = [folder.name for folder in _folders(root)]
    known = {part for parts in PARTS.values() for part in parts}
    if not folders or not set(folders) <= known:
        if wanted is not None and root.name != wanted:
            raise DatasetError(f"{root} has no folder {wanted!r}, which was to be the split {name!r}")
        return root
    found = [part for part in PARTS[name] if part in folders] or folders
    return root / found[0]
