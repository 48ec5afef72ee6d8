"""Sources: datasets that read files or the user's code, once per host, and are then read from a cache.

A source is a class with two methods: ``records`` lists what there is in a split, and ``decoded`` makes a sample of one entry.
Limits, shuffling, checks, the cache and padding are done here. A process that measures never decodes, and never imports what
decoding needs: the samples are decoded before by another process (:mod:`sweeprof.datasets.decode_process`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal, Self, TypedDict, Unpack, get_args

import numpy as np

from sweeprof.datasets import Collate, Split, SplitName
from sweeprof.datasets.auto import ModelInputs
from sweeprof.datasets.cache import FORMAT, Cache, CachedSamples, Varies, rows
from sweeprof.datasets.collate import Pad, stack
from sweeprof.datasets.integers import integer_problems
from sweeprof.datasets.sample import NOT_COUNTED, Sample
from sweeprof.datasets.user_code import made
from sweeprof.errors import DatasetError, Problem, UserError, choice_problem
from sweeprof.nested import named_leaves
from sweeprof.paths import user_path
from sweeprof.processes import Child, child_environment
from sweeprof.tracebacks import located_at

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
        model_inputs: :class:`~sweeprof.datasets.auto.ModelInputs` as plain data; planning takes it from the model's source.
        """
        problems = [
            choice_problem("dataset", name, f"argument of {type(self).__name__}", CommonOptions.__annotations__)
            for name in options
            if name not in CommonOptions.__annotations__
        ]
        problems += integer_problems(self._arguments)
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
        has_ids = isinstance(first, Mapping) and "input_ids" in first
        return "tokens" if has_ids and ("attention_mask" in first or isinstance(self._collate(), Pad)) else None

    @property
    def units_per_sample(self) -> float | None:
        """Units of every sample; None: they are counted in each batch."""
        return None

    def split(self, name: SplitName) -> Split:
        """Return samples that all processes of a host share; another process decodes them where that is still to be done."""
        entry = self._entry(name)
        pad = self._collate()
        of_targets: Collate | None = None
        inputs, targets = entry.inputs, entry.targets
        if isinstance(pad, Pad):
            of_targets = replace(pad, value=NOT_COUNTED, mask=None)
        if pad is not None and not isinstance(inputs, list):  # they have one shape, and may still be padded to another
            if isinstance(pad, Pad) and _is_per_token(targets, inputs):
                targets = rows(targets)
            inputs = rows(inputs)
        pass_as = "auto" if self.model is None else self.model.pass_as
        if pass_as == "keywords" and not isinstance(_first(entry.inputs), Mapping):
            pass_as = "auto"
        return Split(inputs, targets, pad, of_targets, pass_as)

    def prepare(self, name: SplitName) -> None:
        """Decode the samples of a split in this process, unless they are in the cache."""
        cache = self._cache()
        key = self._key(name)
        if cache.read(key) is None:
            with cache.locked(key):
                if cache.read(key) is None:
                    cache.write(key, self.samples(name), self._varies())
        cache.set_key_of_run(run_name(), self._config_key(name), key)

    def samples(self, name: SplitName) -> Iterator[Sample]:
        """Decode the samples of a split, one after the other."""
        for path in self.files(name):
            if path.exists() and not path.is_file() and not path.is_dir():  # reading a FIFO or a device might never end
                raise DatasetError(f"{path} is neither a file nor a folder")
        records, limit = self.records(name), self.options.get("limit")
        if self.options.get("shuffle"):
            known = records if isinstance(records, Sequence) else list(records)
            order = np.random.default_rng(self.options.get("seed", 0)).permutation(len(known))
            records = (known[index] for index in order)
        transform = made(self.options.get("transform"), "dataset.transform")
        for record in itertools.islice(records, limit):
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

    def _varies(self) -> Varies:
        collate = self._collate()
        if collate is None:
            return "nothing"
        return "length" if isinstance(collate, Pad) else "shape"

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
        found: list[object] = [FORMAT, self._config_key(name), *map(_installed, ("sweeprof", *self.packages))]
        for path in self.files(name):
            status = path.stat()
            found.append([str(path), status.st_size, status.st_mtime_ns])
        if self._is_of_this_run():
            found.append(run_name())
        return _hashed(found)

    def _is_of_this_run(self) -> bool:
        is_own = type(self).__module__.startswith("sweeprof.")
        return self.runs_user_code or self.options.get("transform") is not None or not is_own

    def _entry(self, name: SplitName) -> CachedSamples:
        cache = self._cache()
        key = cache.key_of_run(run_name(), self._config_key(name))
        entry = None if key is None else cache.read(key)
        if entry is None:
            self._decode_elsewhere(name)
            key = cache.key_of_run(run_name(), self._config_key(name))
            entry = None if key is None else cache.read(key)
        if entry is None:
            raise DatasetError(
                f"the decoded samples were removed from {cache.folder} at once: raise dataset.cache_limit"
            )
        return entry

    def _decode_elsewhere(self, name: SplitName) -> None:
        run_name()  # so that the process has it, too
        kind = type(self)
        question = {"target": f"{kind.__module__}.{kind.__qualname__}", "arguments": self._arguments, "split": name}
        with TemporaryDirectory() as folder:
            child = Child("sweeprof.datasets.decode_process", [], child_environment({}), Path(folder) / "decode.log")
            try:
                answer = child.ask(question)
            finally:
                child.close()
        if answer["problems"]:
            raise DatasetError([Problem(**problem) for problem in answer["problems"]])
        if answer["error"] is not None:
            error = DatasetError(answer["error"])
            located_at(error, answer["location"])
            raise error


def run_name() -> str:
    """Return the name that the processes of this run have in common."""
    return os.environ.setdefault(RUN, secrets.token_hex(8))


def _hashed(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, list) and values else values


def _is_per_token(targets: Any, inputs: Any) -> bool:
    """Return whether targets are one array whose second axis is as long as that of an array of the inputs."""
    lengths = {leaf.shape[1] for leaf in named_leaves(inputs).values() if leaf.ndim > 1}
    return getattr(targets, "ndim", 0) > 1 and targets.shape[1] in lengths


def path_problems(path: str | None, noun: str) -> list[Problem]:
    """Return the problem of ``dataset.path``, which must be there unless it depends on the split."""
    if path is None:
        return [Problem("dataset.path", None, f"is missing: it must name {noun}.")]
    if "{split}" in path:
        return []
    found = user_path(path)
    if not found.exists():
        return [Problem("dataset.path", path, "does not exist.")]
    if not found.is_file() and not found.is_dir():
        return [Problem("dataset.path", path, f"is neither a file nor a folder: it must name {noun}.")]
    return []


def layout_problems(layout: str | None) -> list[Problem]:
    """Return the problem of ``dataset.layout``."""
    if layout in (None, *get_args(Layout)):
        return []
    return [choice_problem("dataset.layout", layout, "layout", get_args(Layout))]
