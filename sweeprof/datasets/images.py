"""Pictures in one folder per class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, get_args

import numpy as np
import numpy.typing as npt

from sweeprof.datasets import SplitName
from sweeprof.datasets.auto import ImagePreprocessing, Interpolation, ModelInputs
from sweeprof.datasets.collate import Sample
from sweeprof.datasets.source import CommonOptions, Source, package
from sweeprof.errors import DatasetError, Problem, UserError, choice_problem
from sweeprof.paths import user_path

if TYPE_CHECKING:
    from PIL.Image import Image


# Pictures as arrays: resized, cut and normalised as a model's source specifies.


INTERPOLATIONS = get_args(Interpolation)


class PictureOptions(TypedDict, total=False):
    """Options of datasets of pictures; None: as the model's source specifies."""

    image_size: int | None
    channels: int | None
    crop: float | None
    interpolation: str | None
    mean: Sequence[float] | float | None
    std: Sequence[float] | float | None


class PictureSourceOptions(PictureOptions, CommonOptions, total=False):
    """Options that every source of pictures has."""


class PictureSource(Source):
    """A source of pictures, which are prepared as its options say, and otherwise as the model's source specifies."""

    def __init__(self, **options: Unpack[PictureSourceOptions]) -> None:
        """Keep the options of pictures, and pass on the others."""
        of_pictures: dict[str, object] = {}
        common: dict[str, object] = {}
        for name, value in options.items():
            part = of_pictures if name in PictureOptions.__annotations__ else common
            part[name] = value
        self._pictures = cast("PictureOptions", of_pictures)
        super().__init__(**cast("CommonOptions", common))
        self._spec = preprocessing(self._pictures, self.model)

    def problems(self) -> list[Problem]:
        """Return the problems of the options of pictures."""
        return picture_problems(self._pictures)


def picture_problems(options: PictureOptions) -> list[Problem]:
    """Return the problems of the values."""
    channels = options.get("channels")
    crop: object = options.get("crop")  # whatever a config has
    problems = []
    if channels not in (None, 1, 3):
        problems.append(Problem("dataset.channels", channels, "is not 1 (grey) or 3 (colours)."))
    if crop is not None and (not isinstance(crop, int | float) or not 0 < crop <= 1):
        problems.append(Problem("dataset.crop", crop, "is not a share of the picture: a number above 0, up to 1."))
    if options.get("interpolation") not in (None, *INTERPOLATIONS):
        problems.append(
            choice_problem("dataset.interpolation", options.get("interpolation"), "interpolation", INTERPOLATIONS)
        )
    for name in ("mean", "std"):
        value = options.get(name)
        listed = value if isinstance(value, list | tuple) else [] if value is None else [value]
        if not all(isinstance(one, int | float) for one in listed) or (name == "std" and 0 in listed):
            problems.append(Problem(f"dataset.{name}", value, "is not a number, or one number for each channel."))
    return problems


def preprocessing(options: PictureOptions, model: ModelInputs | None) -> ImagePreprocessing:
    """Return how pictures are prepared: as the options say, and otherwise as the model's source does.

    A height of 0 stands for the picture's own size.
    """
    specified = None if model is None else model.images
    if model is not None and model.no_images and (options.get("mean") is None or options.get("std") is None):
        reason = (
            f"is missing: {model.no_images}; set dataset.mean and dataset.std, and dataset.crop if pictures are cut."
        )
        raise UserError([Problem("dataset.mean", options.get("mean"), reason)])
    if specified is None:
        specified = _of_shape(model)
    size, crop = options.get("image_size"), options.get("crop")
    if size is not None:
        scaled = (
            None
            if specified.resize is None
            else round(specified.resize * size / min(specified.height, specified.width))
        )
        specified = replace(specified, height=size, width=size, resize=scaled)
    if crop is not None:
        specified = replace(specified, resize=int(min(specified.height, specified.width) / crop))
    changes: dict[str, Any] = {}
    for name in ("channels", "interpolation", "mean", "std"):
        value = options.get(name)
        if value is not None:
            is_per_channel = name in ("mean", "std")
            changes[name] = tuple(value if isinstance(value, list | tuple) else [value]) if is_per_channel else value
    changed = replace(specified, **changes)
    if crop is not None and not changed.height:
        raise UserError([Problem("dataset.crop", crop, "needs dataset.image_size.")])
    for name in ("mean", "std"):
        values = getattr(changed, name)
        if len(values) not in (1, changed.channels):
            allowed = f"has {len(values)} numbers, and the images {changed.channels} channels (dataset.channels)."
            raise UserError([Problem(f"dataset.{name}", list(values), allowed)])
    return changed


def _of_shape(model: ModelInputs | None) -> ImagePreprocessing:
    """Return the size that a model takes, where its source tells no more."""
    shapes = [] if model is None else [spec.shape for spec in model.inputs.values() if len(spec.shape) == 3]
    if len(shapes) != 1:
        return ImagePreprocessing(0, 0)
    channels, height, width = shapes[0]
    return ImagePreprocessing(height, width, channels)


def array_of(picture: Image, spec: ImagePreprocessing, place: str) -> npt.NDArray[np.float32]:
    """Return ``(channels, height, width)``.

    Raises:
        DatasetError: the picture is smaller than what is cut out of it.
    """
    image = package("PIL.Image", "images")
    picture = picture.convert("L" if spec.channels == 1 else "RGB")
    width, height = picture.size
    wanted = (spec.width or width, spec.height or height)
    method = getattr(image.Resampling, spec.interpolation.upper())
    if spec.resize is not None:
        # As torchvision does: the longer side is rounded down, and the position of the crop to an even number.
        long = int(spec.resize * max(width, height) / min(width, height))
        size = (spec.resize, long) if width <= height else (long, spec.resize)
        picture = picture if size == picture.size else picture.resize(size, method)
        left, top = (round((side - part) / 2.0) for side, part in zip(picture.size, wanted, strict=True))
        if left < 0 or top < 0:
            raise DatasetError(f"{place} is resized to {picture.size}, which is smaller than the crop {wanted}")
        picture = picture.crop((left, top, left + wanted[0], top + wanted[1]))
    elif picture.size != wanted:
        picture = picture.resize(wanted, method)
    values = np.asarray(picture, np.float32).reshape(wanted[1], wanted[0], spec.channels).transpose(2, 0, 1)
    if spec.order == "bgr":
        values = values[::-1]
    # Divided by 255, not multiplied with its inverse, as all frameworks do: the results differ in the last bit.
    scaled = values / np.float32(255) if spec.scale == 1 / 255 else values * np.float32(spec.scale)
    mean, std = (np.asarray(one, np.float32).reshape(-1, 1, 1) for one in (spec.mean, spec.std))
    return np.ascontiguousarray((scaled - mean) / std)


# Pictures in one folder per class.


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
