"""Sources: datasets that read files or the user's code, once per host, and are then read from a cache.

A source is a class with two methods: ``records`` lists what there is in a split, and ``decoded`` makes a sample of one entry.
Limits, shuffling, checks, the cache and padding are done here. A process that measures never decodes, and never imports what
decoding needs: the samples are decoded before by another process (:func:`decode`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import numbers
import os
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, Self, TypedDict, Unpack, get_args

import numpy as np

from sweeprof.datasets import Collate, Dataset, ModelInputs, PassAs, Split, SplitName, samples_in
from sweeprof.datasets.cache import FORMAT, Cache, CachedSamples, Varies, rows
from sweeprof.datasets.collate import NOT_COUNTED, Pad, Sample, is_ids, stack
from sweeprof.errors import (
    DatasetError,
    Problem,
    UserError,
    choice_problem,
    definition_of,
    described,
    located_at,
    location_of,
    original,
)
from sweeprof.nested import named_leaves
from sweeprof.paths import user_path
from sweeprof.processes import call, child_environment
from sweeprof.results.record import Json, Warning
from sweeprof.targets import target_problems


def made(node: str | Mapping[str, Any] | None, key: str) -> Any:
    """Return the function that a dotted name stands for, or the object that a node with ``_target_`` makes; None for None.

    Raises:
        UserError: it cannot be found, or does not take these arguments.
        Exception: whatever the user's code raised.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import get_object, instantiate

    if node is None:
        return None
    if isinstance(node, str):
        problems = target_problems(key, node, [])
    else:
        problems = node_problems(key, node)
        if not problems:
            arguments = [name for name in node if not str(name).startswith("_")]
            is_complete = not {"_args_", "_partial_"} & set(node)
            problems = target_problems(f"{key}._target_", node["_target_"], arguments, is_complete)
    if problems:
        raise UserError(problems)
    try:
        if isinstance(node, str):
            return get_object(node)
        return instantiate(dict(node), _convert_="all")
    except InstantiationException as error:
        raise (error.__cause__ or error) from None


def node_problems(key: str, node: Mapping[str, Any] | None) -> list[Problem]:
    """Return the problem of a node that must have a ``_target_``."""
    if isinstance(node, Mapping) and isinstance(node.get("_target_"), str):
        return []
    return [Problem(f"{key}._target_", None, "is missing: it must name a class or function.")]


BOUNDS = {
    "cache_limit": ("number of bytes", 0, 2**63 - 1),
    "image_size": ("size in pixels", 1, 100_000),
    "length": ("length", 1, 1_000_000_000),
    "limit": ("number of samples", 1, 1_000_000_000),
    "max_length": ("number of tokens", 1, 10_000_000),
    "samples": ("number of samples", 1, 1_000_000_000),
    "sampling_rate": ("sampling rate in Hz", 1, 10_000_000),
    "seed": ("seed", 0, 2**32 - 1),
    "workers": ("number of processes", 0, 4096),
}
"""By argument: what it is, the smallest and the largest value."""


def integer_problems(arguments: Mapping[str, object]) -> list[Problem]:
    """Return the problems of arguments that are whole numbers, as the ones named here must be."""
    problems = []
    for name, (noun, least, most) in BOUNDS.items():
        value = arguments.get(name)
        if isinstance(value, int) and not least <= value <= most:
            reason = f"is not a {noun}: a whole number from {least} to {most:,}."
            problems.append(Problem(f"dataset.{name}", value, reason))
    return problems


# The base class of sources.


RUN = "SWEEPROF_DATA_RUN"
"""Environment variable that the processes of a run have in common: they see the same samples."""
NOT_DECODED = ("cache", "cache_limit", "workers")
"""Arguments that change nothing about the samples."""
CACHE_BYTES = 50 * 2**30
Layout = Literal["channels_first", "channels_last"]


class CommonOptions(TypedDict, total=False):
    """Options that every source has."""

    split: str | None
    train_split: str | None
    limit: int | None
    shuffle: bool
    seed: int
    collate: str | Mapping[str, Any] | None
    transform: str | Mapping[str, Any] | None
    cache: str | None
    cache_limit: int
    model_inputs: Mapping[str, Any] | None


class Source(ABC):
    """A dataset that is decoded once per host."""

    packages: ClassVar[tuple[str, ...]] = ()
    """Packages whose versions change what is decoded."""
    runs_user_code: ClassVar[bool] = False
    """True if the samples depend on more than the files that :meth:`files` lists: they are then decoded anew for every run."""
    _arguments: dict[str, Any]

    def __new__(cls, **arguments: Any) -> Self:
        """Keep the arguments, from which another process makes the same source."""
        source = super().__new__(cls)
        source._arguments = arguments
        return source

    def __init__(self, **options: Unpack[CommonOptions]) -> None:
        """Args:
        split: the part of the data that is the test split; a name that the source has, or what replaces ``{split}`` in a path.
        train_split: the part that is the training split.
        limit: number of samples; None: all.
        shuffle: True: take them in a random order, which is the same on every call.
        seed: of the order.
        collate: ``pad``, arguments of :class:`~sweeprof.datasets.collate.Pad`, the dotted name of a function that makes a batch of
            a list of samples, or a node with ``_target_`` of one; None: all samples have the same shape.
        transform: the dotted name of a function that is given the inputs of each sample, or a node with ``_target_`` of one.
        cache: folder for decoded samples; None: in the user's cache folder.
        cache_limit: bytes above which the samples that were used longest ago are removed from it.
        model_inputs: :class:`~sweeprof.datasets.ModelInputs` as plain data; planning takes it from the model's source.
        """
        problems = integer_problems(self._arguments)
        known = CommonOptions.__annotations__
        for name in options:
            if name not in known:
                problems.append(choice_problem("dataset", name, f"argument of {type(self).__name__}", known))
        if options.get("split") is not None and options.get("split") == options.get("train_split"):
            reason = "is both the test and the training split; name another part."
            problems.append(Problem("dataset.train_split", options.get("train_split"), reason))
        collate = options.get("collate")
        if isinstance(collate, str) and collate != "pad" and "." not in collate:
            problems.append(choice_problem("dataset.collate", collate, "way to collate", ["pad"]))
        problems += self.problems()
        if problems:
            raise UserError(problems)
        described = options.get("model_inputs")
        self.model = None if described is None else ModelInputs.from_dict(described)
        self.options = options

    # What a source implements.

    @abstractmethod
    def records(self, name: SplitName) -> Iterable[Any]:
        """Return an entry for each sample, in their order; a sequence, unless reading one needs those before."""

    @abstractmethod
    def decoded(self, record: Any) -> Sample:
        """Return the sample of an entry; raises :class:`DatasetError`, which names the file or row."""

    def problems(self) -> list[Problem]:
        """Return the problems of the arguments."""
        return []

    def files(self, name: SplitName) -> Iterable[Path]:
        """Return the files that are read; when one changes, the samples are decoded again."""
        return ()

    def numbering(self, name: SplitName) -> object:
        """Return what decides the numbers of classes beyond :meth:`files`; when it changes, the samples are decoded again."""
        return None

    def padding(self) -> Pad | None:
        """Return how samples of different lengths are padded if ``dataset.collate`` does not say it; None: they are an error."""
        return None

    # What every source has.

    def part(self, name: SplitName) -> str | None:
        """Return the name of the part of the data that is a split; None: there is no name for it."""
        return self.options.get("split") if name == "test" else self.options.get("train_split")

    def path_of(self, path: str, name: SplitName) -> Path:
        """Return a path in which ``{split}`` stands for the part that is a split, or for ``test`` and ``train``."""
        return user_path(path.replace("{split}", self.part(name) or name)).absolute()

    @property
    def channel_axis(self) -> int | None:
        """The axis of the channels of images within a batch."""
        return self._entry("test").channel_axis

    @property
    def unit(self) -> str | None:
        """The unit in which the workload is counted: tokens where there are ids with a mask; None: samples."""
        first = _first(self._entry("test").inputs)
        if not isinstance(first, Mapping) or "input_ids" not in first:
            return None
        return "tokens" if "attention_mask" in first or isinstance(self._collate(), Pad) else None

    @property
    def units_per_sample(self) -> float | None:
        """Units of every sample; None: they are counted in each batch."""
        return None

    def split(self, name: SplitName) -> Split:
        """Return samples that all processes of a host share; another process decodes them where that is still to be done."""
        entry = self._entry(name)
        inputs, targets = entry.inputs, entry.targets
        collate = self._collate()
        collate_targets: Collate | None = None
        if isinstance(collate, Pad):
            collate_targets = replace(collate, value=NOT_COUNTED, mask=None)
        if collate is not None and not isinstance(inputs, list):
            # They have one shape, and may still be padded to another; so may targets of which there is one per token.
            lengths = [leaf.shape[1] for leaf in named_leaves(inputs).values() if leaf.ndim > 1]
            if isinstance(collate, Pad) and getattr(targets, "ndim", 0) > 1 and targets.shape[1] in lengths:
                targets = rows(targets)
            inputs = rows(inputs)
        pass_as: PassAs = "auto"
        if self.model is not None and (self.model.pass_as != "keywords" or isinstance(_first(entry.inputs), Mapping)):
            pass_as = self.model.pass_as
        return Split(inputs, targets, collate, collate_targets, pass_as)

    def prepare(self, name: SplitName) -> None:
        """Decode the samples of a split in this process, unless they are in the cache."""
        cache = self._cache()
        key = self._key(name)
        if cache.read(key) is None:
            collate = self._collate()
            varies: Varies = "nothing"
            if collate is not None:
                varies = "length" if isinstance(collate, Pad) else "shape"
            with cache.locked(key):
                if cache.read(key) is None:
                    cache.write(key, self.samples(name), varies)
        cache.set_key_of_run(run_name(), self._config_key(name), key)

    def samples(self, name: SplitName) -> Iterator[Sample]:
        """Decode the samples of a split, one after the other."""
        for path in self.files(name):
            if path.exists() and not path.is_file() and not path.is_dir():  # reading a FIFO or a device might never end
                raise DatasetError(f"{path} is neither a file nor a folder")
        records = self.records(name)
        if self.options.get("shuffle"):
            known = records if isinstance(records, Sequence) else list(records)
            order = np.random.default_rng(self.options.get("seed", 0)).permutation(len(known))
            records = (known[index] for index in order)
        transform = made(self.options.get("transform"), "dataset.transform")
        for record in itertools.islice(records, self.options.get("limit")):
            sample = self.decoded(record)
            if transform is not None:
                sample = replace(sample, inputs=transform(sample.inputs))
            yield self._checked(sample.as_arrays())

    def batch_sizes(self, name: SplitName, batch_size: int) -> Iterator[int]:
        """Decode the samples of a split from the beginning, in this process and past the cache, and make batches of them.

        Yields the number of samples of each batch when it is there.
        """
        collate = self._collate() or stack
        samples = self.samples(name)
        while batch := list(itertools.islice(samples, batch_size)):
            collate([sample.inputs for sample in batch])
            yield len(batch)

    def _checked(self, sample: Sample) -> Sample:
        if self.model is None:
            return sample
        if self.model.vocabulary is not None:
            sample.check_ids(self.model.vocabulary)
        if self.model.targets is not None and self.model.targets.high is not None and sample.targets is not None:
            sample.check_labels(self.model.targets.high)
        names = list(self.model.inputs)
        if self.model.pass_as == "keywords" and len(names) == 1 and hasattr(sample.inputs, "shape"):
            return replace(sample, inputs={names[0]: sample.inputs})
        return sample

    def _collate(self) -> Collate | None:
        collate = self.options.get("collate")
        if collate is None:
            return self.padding()
        if isinstance(collate, Mapping) and "_target_" not in collate:
            return replace(self.padding() or Pad(), **collate)
        if collate == "pad":
            return self.padding() or Pad()
        function: Collate = made(collate, "dataset.collate")
        return function

    # The cache.

    def _cache(self) -> Cache:
        return Cache.at(self.options.get("cache"), self.options.get("cache_limit") or CACHE_BYTES)

    def _config_key(self, name: SplitName) -> str:
        """Return what identifies the arguments."""
        kind = type(self)
        content = {key: value for key, value in self._arguments.items() if key not in NOT_DECODED}
        folder = str(Path.cwd())  # of relative paths
        return _hashed([f"{kind.__module__}.{kind.__qualname__}", content, name, folder])

    def _key(self, name: SplitName) -> str:
        """Return what identifies the samples: the arguments, the files and the versions of what decodes them."""
        found: list[object] = [FORMAT, self._config_key(name), self.numbering(name)]
        for package in ("sweeprof", *self.packages):
            try:
                found.append(version(package))
            except PackageNotFoundError:
                found.append("")
        for path in self.files(name):
            status = path.stat()
            found.append([str(path), status.st_size, status.st_mtime_ns])
        is_own = type(self).__module__.startswith("sweeprof.")
        if self.runs_user_code or self.options.get("transform") is not None or not is_own:
            found.append(run_name())
        return _hashed(found)

    def _entry(self, name: SplitName) -> CachedSamples:
        cache = self._cache()
        entry = self._cached(cache, name)
        if entry is None:
            kind = type(self)
            question = {"target": f"{kind.__module__}.{kind.__qualname__}", "arguments": self._arguments, "split": name}
            answer = call("sweeprof.datasets.source:decode", question, child_environment({}))
            if answer["problems"]:
                raise DatasetError([Problem(**problem) for problem in answer["problems"]])
            if answer["error"] is not None:
                error = DatasetError(answer["error"])
                located_at(error, answer["location"])
                raise error
            entry = self._cached(cache, name)
        if entry is None:
            removed = f"the decoded samples were removed from {cache.folder} at once"
            raise DatasetError(f"{removed}: raise dataset.cache_limit")
        return entry

    def _cached(self, cache: Cache, name: SplitName) -> CachedSamples | None:
        key = cache.key_of_run(run_name(), self._config_key(name))
        return None if key is None else cache.read(key)


def run_name() -> str:
    """Return the name that the processes of this run have in common; those that are started from now on have it, too."""
    return os.environ.setdefault(RUN, secrets.token_hex(8))


def _hashed(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _first(values: Any) -> Any:
    if isinstance(values, list) and values:
        return values[0]
    return values


def path_problems(path: str | None, noun: str, suffixes: tuple[str, ...] = ()) -> list[Problem]:
    """Return the problems of ``dataset.path``, which must be there unless it depends on the split.

    Args:
        noun: what it must name.
        suffixes: of the files that can be read; none: any, and folders.
    """
    if suffixes:
        noun += f" ({', '.join(suffixes)})"
    if path is None:
        return [Problem("dataset.path", None, f"is missing: it must name {noun}.")]
    problems = []
    if "{split}" not in path:
        found = user_path(path)
        if not found.exists():
            problems.append(Problem("dataset.path", path, "does not exist."))
        elif not found.is_file() and not found.is_dir():
            problems.append(Problem("dataset.path", path, f"is neither a file nor a folder: it must name {noun}."))
    if suffixes and Path(path).suffix not in suffixes:
        problems.append(Problem("dataset.path", path, f"is not {noun}."))
    return problems


def layout_problems(layout: str | None) -> list[Problem]:
    """Return the problem of ``dataset.layout``."""
    if layout in (None, *get_args(Layout)):
        return []
    return [choice_problem("dataset.layout", layout, "layout", get_args(Layout))]


# Checks of what any dataset returns, so that data of another form are an error and not a measurement of something else.


SAMPLES_OR_INPUTS = (
    "several inputs of a model are a tuple or a mapping of arrays; a list is of samples, and needs Split(…, collate=…), such as "
    "sweeprof.datasets.collate.Pad()"
)
_NOT_NUMBERS = "OSUMm"
"""Kinds of dtypes: objects, bytes, text, dates and durations."""


def checked_split(dataset: Dataset, name: SplitName) -> Split:
    """Return the samples of a split.

    Raises:
        DatasetError: with everything that is wrong with them, and where the dataset's ``split`` is defined.
        Exception: whatever the dataset raised.
    """
    if not callable(getattr(dataset, "split", None)):
        raise DatasetError(f"dataset {_name(dataset)} has no method split(name)")
    split = dataset.split(name)
    problems = list(_split_problems(dataset, name, split))
    if not problems:
        return split
    method = getattr(type(dataset), "split", None)
    location = None if method is None else definition_of(method)
    place = "" if location is None else f" ({location})"
    error = DatasetError(f"dataset {_name(dataset)}{place}: {'; '.join(problems)}")
    located_at(error, location)
    raise error


def not_finite(name: SplitName, split: Split) -> list[Warning]:
    """Return a warning each for inputs and targets that have NaN or infinities."""
    warnings = []
    for part, values in (("inputs", split.inputs), ("targets", split.targets)):
        if values is None:
            continue
        if isinstance(values, list):
            bad = sum(not all(map(_is_finite, named_leaves(value).values())) for value in values)
        else:
            is_bad = np.zeros(samples_in(values), bool)
            for array in map(np.asarray, named_leaves(values).values()):
                if not _is_finite(array):
                    is_bad |= (~np.isfinite(array)).reshape(len(array), -1).any(axis=1)
            bad = int(is_bad.sum())
        if bad:
            text = f"{bad} of the {samples_in(values)} samples of split('{name}') have {part} that are NaN or infinite"
            advice = "clean the data: outputs, losses and qualities of them mean nothing"
            warnings.append(Warning(f"{part}_not_finite", text, advice))
    return warnings


def check_ids(dataset: Dataset, name: SplitName, split: Split, vocabulary: int) -> None:
    """Raise :class:`DatasetError` for the first token id of a split that is not in the vocabulary of the model."""
    is_list = isinstance(split.inputs, list)
    samples = split.inputs if is_list else [split.inputs]
    for place, value in enumerate(samples):
        for path, leaf in named_leaves(value).items():
            ids = np.asarray(leaf)
            if ids.dtype.kind not in "iu" or not is_ids(path) or not ids.size:
                continue
            if ids.min() >= 0 and ids.max() < vocabulary:
                continue
            wrong = np.argwhere((ids < 0) | (ids >= vocabulary))[0]
            sample = place if is_list else wrong[0]
            part = f"[{path!r}]" if path else ""
            raise DatasetError(
                f"dataset {_name(dataset)}: sample {sample} of split('{name}').inputs{part} has the id {ids[tuple(wrong)]}, and "
                f"the model's vocabulary has the ids 0 to {vocabulary - 1}"
            )


def _is_finite(values: object) -> bool:
    array = np.asarray(values)
    if array.dtype.kind not in "fc" or not array.size:
        return True
    # By the extremes, which NaN and infinities reach: needs no memory, unlike a mask.
    real, imaginary = array.real, array.imag
    return bool(np.isfinite([real.min(), real.max(), imaginary.min(), imaginary.max()]).all())


def _split_problems(dataset: Dataset, name: SplitName, split: object) -> Iterator[str]:
    if not hasattr(split, "inputs") or not hasattr(split, "targets"):
        yield f"split('{name}') returned {_described(split)}, not a sweeprof.datasets.Split(inputs, targets)"
        return
    inputs, targets = split.inputs, split.targets
    collate = getattr(split, "collate", None)
    problems = list(_part_problems(f"split('{name}').inputs", inputs, collate))
    if not problems and not samples_in(inputs):
        yield f"split('{name}') has no samples"
    elif not problems:
        yield from _declaration_problems(dataset, name, inputs)
    if isinstance(targets, list) and all(isinstance(target, numbers.Number) for target in targets):
        targets = np.asarray(targets)
    if targets is not None:
        collate_targets = getattr(split, "collate_targets", None) or collate
        problems += _part_problems(f"split('{name}').targets", targets, collate_targets)
    yield from problems
    if targets is not None and not problems and samples_in(inputs) != samples_in(targets):
        yield f"split('{name}') has {samples_in(inputs)} inputs and {samples_in(targets)} targets"


def _part_problems(place: str, values: Any, collate: object) -> Iterator[str]:
    """Yield why values are neither arrays of as many samples, ``(n, …)``, nor a list of samples that can be collated."""
    leaves = named_leaves(values)
    if not isinstance(values, list):
        yield from _array_problems(place, values)
        lengths = {path: len(leaf) for path, leaf in leaves.items() if np.ndim(leaf)}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{path!r} {length}" for path, length in lengths.items())
            yield f"{place} has arrays of different numbers of samples: {listed}"
    elif not any(hasattr(leaf, "shape") for leaf in leaves.values()):
        yield f"{place} is {_described(values)}; make it one array: np.asarray(…)"
    elif collate is None:
        yield f"{place} is {_described(values)}; {SAMPLES_OR_INPUTS}"
    elif values:
        yield from _array_problems(f"sample 0 of {place}", values[0])


def _array_problems(place: str, values: object) -> Iterator[str]:
    """Yield why values are not arrays of numbers, ``(n, …)``."""
    leaves = named_leaves(values)
    if not leaves:
        kind = "mapping" if isinstance(values, Mapping) else "tuple"
        yield f"{place} is an empty {kind}"
    for path, leaf in leaves.items():
        part = f"{place}[{path!r}]" if path else place
        try:
            dtype, shape = np.dtype(leaf.dtype), tuple(leaf.shape)
        except (AttributeError, TypeError):
            yield f"{part} is {_described(leaf)}; make it one NumPy array, as tensor.numpy() does"
            continue
        if dtype.kind in _NOT_NUMBERS or dtype.names is not None:
            kind = "records" if dtype.names is not None else dtype.name
            advice = "samples need one shape and a type of numbers; those of different lengths are a list with a collate function"
            yield f"{part} is an array of {kind}; {advice}"
        elif not shape:
            yield f"{part} is a single number, not an array (n, …)"


def _declaration_problems(dataset: Dataset, name: SplitName, inputs: Any) -> Iterator[str]:
    """Yield the differences between the samples and what the dataset declares."""
    axis: Any = getattr(dataset, "channel_axis", None)
    most_axes = max(len(array.shape) for array in named_leaves(inputs).values())
    if isinstance(inputs, list):
        most_axes += 1
    if axis is not None and not 0 < axis < most_axes:
        yield f"channel_axis is {axis!r}, and inputs have the axes 0 (samples) to {most_axes - 1}"
    if not hasattr(inputs, "shape"):
        return
    declared: Any = getattr(dataset, "sample_shape", None)
    shape = tuple(inputs.shape[1:])
    if declared is not None and shape != tuple(declared):
        yield f"split('{name}').inputs has samples of shape {shape}, and sample_shape is {tuple(declared)}"
    dtype: Any = getattr(dataset, "dtype", None)
    if dtype is None or str(dtype).removeprefix("torch.") in (inputs.dtype.name, str(inputs.dtype)):
        return
    with suppress(TypeError):  # not a type of NumPy
        if np.dtype(dtype) == inputs.dtype:
            return
    yield f"split('{name}').inputs is of type {inputs.dtype}, and dtype is {dtype}"


def _described(values: object) -> str:
    """Return e.g. ``a tuple of 2 arrays of shapes (64, 16), (64, 16)``."""
    if isinstance(values, Mapping):
        return f"a mapping of {', '.join(map(repr, values))}"[:200]
    if not isinstance(values, tuple | list):
        return f"a {_name(values)}"
    described = f"a {type(values).__name__} of {len(values)}"
    if not values or not all(hasattr(part, "shape") for part in values):
        return f"{described} items"
    shapes = [str(tuple(part.shape)) for part in values[:3]]
    if len(values) > 3:
        shapes.append("…")
    return f"{described} arrays of shapes {', '.join(shapes)}"


def _name(value: object) -> str:
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


# Optional packages, which an extra of sweeprof installs.


def package(name: str, extra: str, key: str = "dataset") -> ModuleType:
    """Return an imported package.

    Raises:
        UserError: it is not installed; names the config key that needs it, and the extra of sweeprof that installs it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        problem = Problem(key, extra, f"needs the package {missing}: pip install 'sweeprof[{extra}]'.")
        raise UserError([problem]) from None


def import_torchvision(key: str = "dataset", extra: str = "torchvision") -> ModuleType:
    """Return torchvision; where its compiled operators do not fit this torch, without them: images do not need them."""
    try:
        return package("torchvision", extra, key)
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in list(sys.modules):
            if name.partition(".")[0] == "torchvision":
                del sys.modules[name]
        sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
        return package("torchvision", extra, key)


def import_transformers(key: str = "dataset") -> ModuleType:
    """Return transformers, which imports torchvision where it is installed."""
    transformers = package("transformers", "transformers", key)
    if find_spec("torch") is not None and find_spec("torchvision") is not None:
        import_torchvision(key)
    return transformers


def from_local_files(kind: str, key: str, folder: str) -> Any:
    """Return an object of a class of transformers, such as ``AutoTokenizer``; raises :class:`UserError` if it cannot be loaded.

    Args:
        kind: name of the class.
        key: of the config that has the folder.
        folder: of the object's files.
    """
    transformers = import_transformers()
    try:
        return getattr(transformers, kind).from_pretrained(str(user_path(folder)), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError([Problem(key, folder, f"cannot be loaded: {reason}")]) from error


# The process that decodes the samples of a source, so that the processes that measure need not import what that takes.


def decode(question: Json) -> Json:
    """Decode a split; return what is wrong: problems, or an error with its location."""
    module, _, name = question["target"].rpartition(".")
    answer: dict[str, Any] = {"problems": [], "error": None, "location": None}
    try:
        source: Source = getattr(import_module(module), name)(**question["arguments"])
        source.prepare(question["split"])
    except Exception as error:  # the user's code may raise anything
        cause = original(error)
        if isinstance(cause, UserError):
            answer["problems"] = [dataclasses.asdict(problem) for problem in cause.problems]
        else:
            answer["location"] = location_of(error)
        if not answer["problems"]:
            answer["error"] = described(error)
    return answer
