"""Pictures and sounds in one folder per class, and how pictures become arrays: resized, cut and normalised for a model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, get_args

import numpy as np
import numpy.typing as npt

from sweeprof.datasets import ImagePreprocessing, Interpolation, ModelInputs, SplitName
from sweeprof.datasets.collate import Sample
from sweeprof.datasets.source import CommonOptions, Source, from_local_files, package
from sweeprof.errors import DatasetError, Problem, UserError, choice_problem
from sweeprof.paths import user_path

if TYPE_CHECKING:
    from PIL.Image import Image


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
        common: dict[str, Any] = dict(options)
        pictures = {name: common.pop(name) for name in PictureOptions.__annotations__ if name in common}
        self._pictures = cast("PictureOptions", pictures)
        super().__init__(**common)
        self._spec = preprocessing(self._pictures, self.model)

    def problems(self) -> list[Problem]:
        """Return the problems of the options of pictures."""
        channels, interpolation = self._pictures.get("channels"), self._pictures.get("interpolation")
        crop: object = self._pictures.get("crop")  # whatever a config has
        problems = []
        if channels not in (None, 1, 3):
            problems.append(Problem("dataset.channels", channels, "is not 1 (grey) or 3 (colours)."))
        if crop is not None and (not isinstance(crop, int | float) or not 0 < crop <= 1):
            problems.append(Problem("dataset.crop", crop, "is not a share of the picture: a number above 0, up to 1."))
        if interpolation not in (None, *INTERPOLATIONS):
            problems.append(choice_problem("dataset.interpolation", interpolation, "interpolation", INTERPOLATIONS))
        for name in ("mean", "std"):
            value = self._pictures.get(name)
            values = _per_channel(value)
            if not all(isinstance(one, int | float) for one in values) or (name == "std" and 0 in values):
                problems.append(Problem(f"dataset.{name}", value, "is not a number, or one number for each channel."))
        return problems


def _per_channel(value: object) -> tuple[Any, ...]:
    if isinstance(value, list | tuple):
        return tuple(value)
    return () if value is None else (value,)


def preprocessing(options: PictureOptions, model: ModelInputs | None) -> ImagePreprocessing:
    """Return how pictures are prepared: as the options say, and otherwise as the model's source does.

    A height of 0 stands for the picture's own size.
    """
    spec = ImagePreprocessing(0, 0)
    if model is not None:
        if model.no_images and (options.get("mean") is None or options.get("std") is None):
            advice = "set dataset.mean and dataset.std, and dataset.crop if pictures are cut."
            raise UserError([Problem("dataset.mean", options.get("mean"), f"is missing: {model.no_images}; {advice}")])
        shapes = [array.shape for array in model.inputs.values() if len(array.shape) == 3]
        if model.images is not None:
            spec = model.images
        elif len(shapes) == 1:  # the size that a model takes, where its source tells no more
            channels, height, width = shapes[0]
            spec = ImagePreprocessing(height, width, channels)
    size, crop = options.get("image_size"), options.get("crop")
    if size is not None:
        if spec.resize is not None:
            spec = replace(spec, resize=round(spec.resize * size / min(spec.height, spec.width)))
        spec = replace(spec, height=size, width=size)
    if crop is not None:
        spec = replace(spec, resize=int(min(spec.height, spec.width) / crop))
    changes: dict[str, Any] = {}
    for name in ("channels", "interpolation", "mean", "std"):
        value = options.get(name)
        if value is not None:
            changes[name] = _per_channel(value) if name in ("mean", "std") else value
    spec = replace(spec, **changes)
    if crop is not None and not spec.height:
        raise UserError([Problem("dataset.crop", crop, "needs dataset.image_size.")])
    for name in ("mean", "std"):
        values = getattr(spec, name)
        if len(values) not in (1, spec.channels):
            allowed = f"has {len(values)} numbers, and the images {spec.channels} channels (dataset.channels)."
            raise UserError([Problem(f"dataset.{name}", list(values), allowed)])
    return spec


def array_of(picture: Image, spec: ImagePreprocessing, place: str) -> npt.NDArray[np.float32]:
    """Return ``(channels, height, width)``.

    Raises:
        DatasetError: the picture is smaller than what is cut out of it, or the range of its values is unknown.
    """
    image = package("PIL.Image", "images")
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format == "PPM"):
        # Grey values of 16 bits, which Pillow would clip to 255: they stay floating-point numbers, so that none is rounded.
        picture = image.fromarray(np.asarray(picture, np.float32) / np.float32(65535 / 255))
    elif picture.mode in ("I", "F"):
        kind = "32-bit integers" if picture.mode == "I" else "floating-point numbers"
        raise DatasetError(f"{place} is a picture of {kind}, whose range is unknown: convert it to 8 or 16 bits")
    else:
        picture = picture.convert("L" if spec.channels == 1 else "RGB")
    width, height = picture.size
    wanted = (spec.width or width, spec.height or height)
    size = wanted
    if spec.resize is not None:
        # As torchvision does: the longer side is rounded down, and the position of the crop to an even number.
        long = int(spec.resize * max(width, height) / min(width, height))
        size = (spec.resize, long) if width <= height else (long, spec.resize)
    if picture.size != size:
        picture = picture.resize(size, getattr(image.Resampling, spec.interpolation.upper()))
    if spec.resize is not None:
        left, top = round((size[0] - wanted[0]) / 2.0), round((size[1] - wanted[1]) / 2.0)
        if left < 0 or top < 0:
            raise DatasetError(f"{place} is resized to {size}, which is smaller than the crop {wanted}")
        picture = picture.crop((left, top, left + wanted[0], top + wanted[1]))
    # Bicubic interpolation of floating-point numbers can overshoot, and pictures of 16 bits have one channel.
    pixels = np.asarray(picture, np.float32).clip(0, 255).reshape(wanted[1], wanted[0], -1)
    values = np.broadcast_to(pixels, (*pixels.shape[:2], spec.channels)).transpose(2, 0, 1)
    if spec.order == "bgr":
        values = values[::-1]
    # Divided by 255, not multiplied with its inverse, as all frameworks do: the results differ in the last bit.
    scaled = values / np.float32(255) if spec.scale == 1 / 255 else values * np.float32(spec.scale)
    mean, std = np.asarray(spec.mean, np.float32), np.asarray(spec.std, np.float32)
    return np.ascontiguousarray((scaled - mean.reshape(-1, 1, 1)) / std.reshape(-1, 1, 1))


# Pictures in one folder per class.


PARTS: dict[SplitName, tuple[str, ...]] = {"test": ("test", "val", "valid", "validation"), "train": ("train",)}
"""Names of folders that are splits and not classes."""


class Images(PictureSource):
    """Pictures in one folder per class: ``DIR/cat/1.jpg``; classes are numbered by the names of the folders in their order.

    A folder of folders such as ``train`` and ``val``, which have the classes, has splits.
    """

    packages = ("pillow",)
    unit = "images"
    units_per_sample = 1

    def __init__(self, *, path: str | None = None, **options: Unpack[PictureSourceOptions]) -> None:
        """Args:
        path: of the folder; ``{split}`` in it stands for the split.
        """
        self._path = path
        super().__init__(**options)
        self._shape: tuple[int, ...] | None = None

    def problems(self) -> list[Problem]:
        """Return the problems of the arguments."""
        return [*folder_problems(self._path), *super().problems()]

    def files(self, name: SplitName) -> Iterable[Path]:
        """Return the pictures."""
        return [path for path, _ in self.records(name)]

    def numbering(self, name: SplitName) -> object:
        """Return the names of the classes, those of other parts among them."""
        return classes_of(self, str(self._path), name)

    def records(self, name: SplitName) -> list[tuple[Path, int]]:
        """Return the pictures of a split with the numbers of their classes, by class and name.

        Raises:
            DatasetError: there are no folders of classes, or one has no pictures.
        """
        image = package("PIL.Image", "images")
        suffixes = set()
        for suffix, kind in image.registered_extensions().items():
            if image.MIME.get(kind, "").startswith("image/"):  # not what Pillow knows of videos and documents
                suffixes.add(suffix)
        return labelled_files(self, str(self._path), name, suffixes, "picture")

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
            sizes = f"{array.shape[2]} × {array.shape[1]} and {self._shape[2]} × {self._shape[1]}"
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
    source: Source, path: str, name: SplitName, suffixes: Collection[str], noun: str
) -> list[tuple[Path, int]]:
    """Return the files in one folder per class with the numbers of their classes, by class and name.

    Raises:
        DatasetError: there are no folders of classes, or one has no such files.
    """
    numbers = {label: number for number, label in enumerate(classes_of(source, path, name))}
    root = _part(source, source.path_of(path, name), name)
    found = []
    for folder in _folders(root):
        usable, others = [], set()
        for file in sorted(folder.rglob("*")):
            # Hidden is what programs leave beside the data: `.ipynb_checkpoints/1-checkpoint.png`, `._1.png` of macOS.
            is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
            if is_hidden or not file.is_file():
                continue
            if file.suffix.lower() in suffixes:
                usable.append((file, numbers[folder.name]))
            else:
                others.add(file.suffix or file.name)
        if not usable:
            has = f"only {', '.join(sorted(others)[:8])}" if others else "no files"
            raise DatasetError(f"{folder} is the folder of a class and has no {noun}: it has {has}")
        found += usable
    return found


def classes_of(source: Source, path: str, name: SplitName) -> list[str]:
    """Return the names of the classes in the order of their numbers.

    Raises:
        DatasetError: there are no folders of classes.
    """
    whole = source.path_of(path, name)
    root = _part(source, whole, name)
    if not root.is_dir():
        raise DatasetError(f"{root} is not a folder, and was to be the split {name!r}")
    classes = {folder.name for folder in _folders(root)}
    # Numbers must not depend on the part: all parts have the same classes.
    parts = _folders(whole) if root != whole else []
    other = source.path_of(path, "train" if name == "test" else "test")
    if other != whole and other.is_dir():
        parts.append(other)
    for part in parts:
        classes |= {folder.name for folder in _folders(part)}
    if not _folders(root):
        raise DatasetError(f"{root} has no folders: one is needed for each class")
    return sorted(classes)


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def _part(source: Source, root: Path, name: SplitName) -> Path:
    """Return the folder of a split within ``root``, or ``root`` where its folders are classes."""
    wanted = source.part(name)
    if wanted is not None and (root / wanted).is_dir():
        return root / wanted
    if not root.is_dir():
        return root
    folders = [folder.name for folder in _folders(root)]
    if folders and set(folders) <= {*PARTS["test"], *PARTS["train"]}:
        return root / next((part for part in PARTS[name] if part in folders), folders[0])
    if wanted is not None and root.name != wanted:
        raise DatasetError(f"{root} has no folder {wanted!r}, which was to be the split {name!r}")
    return root


# Sound files in one folder per class.


AUDIO_SUFFIXES = (".aif", ".aifc", ".aiff", ".au", ".caf", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".w64", ".wav")


class Audio(Source):
    """Sound files in one folder per class, as waveforms ``(samples,)`` of one rate, or as the features of a processor."""

    packages = ("soundfile", "scipy", "transformers")

    def __init__(
        self,
        *,
        path: str | None = None,
        sampling_rate: int | None = None,
        length: int | None = None,
        normalize: bool = False,
        processor: str | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        """Args:
        path: of the folder; ``{split}`` in it stands for the split.
        sampling_rate: in Hz, to which files are resampled; None: as the model's source specifies, otherwise the files' own.
        length: samples to which recordings are cut or filled up with silence; None: ``inputs.audio_samples`` of the model,
            otherwise they stay as long as they are.
        normalize: True: each recording has the mean 0 and the variance 1, before it is filled up.
        processor: the folder of a feature extractor of transformers, whose features are the inputs; None: waveforms.
        """
        self._path, self._rate, self._length = path, sampling_rate, length
        self._normalize, self._processor = normalize, processor
        self._extract: Any = None
        super().__init__(**options)
        if self.model is not None:
            self._rate = sampling_rate or self.model.sampling_rate
            self._length = length or self.model.sizes.get("audio_samples")

    @property
    def unit(self) -> str | None:
        """Seconds of audio, where all recordings have one length."""
        return None if self.units_per_sample is None else "seconds of audio"

    @property
    def units_per_sample(self) -> float | None:
        """Seconds of a recording; None where they differ."""
        if self._length is None or self._rate is None:
            return None
        return self._length / self._rate

    def problems(self) -> list[Problem]:
        """Return the problems of the arguments."""
        found = folder_problems(self._path)
        if self._processor is not None and not (user_path(self._processor) / "preprocessor_config.json").is_file():
            reason = "is not a folder with a feature extractor (preprocessor_config.json)."
            found.append(Problem("dataset.processor", self._processor, reason))
        return found

    def files(self, name: SplitName) -> Iterable[Path]:
        """Return the sound files, and that of the processor."""
        found = [path for path, _ in self.records(name)]
        if self._processor is not None:
            found.append(user_path(self._processor) / "preprocessor_config.json")
        return found

    def numbering(self, name: SplitName) -> object:
        """Return the names of the classes, those of other parts among them."""
        return classes_of(self, str(self._path), name)

    def records(self, name: SplitName) -> list[tuple[Path, int]]:
        """Return the files of a split with the numbers of their classes; raises :class:`DatasetError` if there are none."""
        return labelled_files(self, str(self._path), name, AUDIO_SUFFIXES, "sound file")

    def decoded(self, record: tuple[Path, int]) -> Sample:
        """Return a recording; raises :class:`DatasetError` if it cannot be read."""
        path, label = record
        soundfile = package("soundfile", "audio")
        try:
            wave, rate = soundfile.read(path, dtype="float32", always_2d=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise DatasetError(f"{path} cannot be read as a sound file: {error}") from error
        mono = resampled(wave.mean(axis=1), rate, self._rate or rate)
        if not len(mono):
            raise DatasetError(f"{path} has no samples")
        mono = mono[: self._length]
        if self._normalize:
            mono = (mono - mono.mean()) / np.sqrt(mono.var() + 1e-7)
        if self._length is not None:
            mono = np.pad(mono, (0, self._length - len(mono)))
        inputs: Any = mono.astype(np.float32)
        if self._processor is not None:
            if self._extract is None:
                self._extract = from_local_files("AutoFeatureExtractor", "dataset.processor", self._processor)
            found = self._extract(inputs, sampling_rate=self._rate or rate, return_tensors="np")
            taken = found if self.model is None else self.model.inputs
            inputs = {name: values[0] for name, values in found.items() if name in taken}
        return Sample(inputs, label, str(path))


def resampled(wave: npt.NDArray[Any], rate: int, wanted: int) -> npt.NDArray[Any]:
    """Return a waveform at another rate, by a polyphase filter."""
    if rate == wanted:
        return wave
    from scipy.signal import resample_poly

    divisor = math.gcd(rate, wanted)
    made: npt.NDArray[Any] = resample_poly(wave, wanted // divisor, rate // divisor)
    return made
