"""Datasets of torch (map-style or iterable) and of TensorFlow (``tf.data``, TensorFlow Datasets)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from sweeprof.datasets import SplitName
from sweeprof.datasets.collate import TARGETS, Sample
from sweeprof.datasets.images import PictureSource, PictureSourceOptions, array_of
from sweeprof.datasets.source import CommonOptions, Layout, Source, layout_problems, made, node_problems, package
from sweeprof.errors import DatasetError, Problem
from sweeprof.nested import named_leaves
from sweeprof.paths import user_path


def sample_of(item: Any, targets: str | None, place: str) -> Sample:
    """Return the sample of an item of a dataset: a pair of inputs and targets, a mapping with targets, or inputs alone.

    Args:
        item: of the dataset.
        targets: the key of the targets in a mapping; None: a usual one, if it is there.
        place: of the item, for error messages.

    Raises:
        DatasetError: a mapping does not have the key.
    """
    if isinstance(item, Mapping):
        if targets is not None and targets not in item:
            raise DatasetError(f"{place} has no {targets!r}, but {', '.join(map(str, item))}")
        key = targets or next((name for name in TARGETS if name in item), None)
        inputs = {name: value for name, value in item.items() if name != key}
        alone = next(iter(inputs.values())) if len(inputs) == 1 else inputs
        return Sample(alone, None if key is None else item[key], place)
    if not isinstance(item, tuple | list):
        return Sample(item, None, place)
    if len(item) == 1:
        return Sample(item[0], None, place)
    if len(item) == 2:
        first, target = item
        if isinstance(first, list) and _has_arrays(first):
            first = tuple(first)
        return Sample(first, target, place)
    if _has_arrays(item):
        raise DatasetError(f"{place} has {len(item)} parts; it must be inputs, or a pair (inputs, targets)")
    return Sample(item, None, place)


def _has_arrays(items: Sequence[object]) -> bool:
    return any(hasattr(item, "shape") for item in items)


def made_source(source: Mapping[str, Any] | None, train_source: Mapping[str, Any] | None, name: SplitName) -> Any:
    """Return the object that the config's node makes for a split: of ``train_source`` if there is one, else of ``source``."""
    if name == "train" and train_source is not None:
        return made(train_source, "dataset.train_source")
    return made(source, "dataset.source")


class TorchDataset(Source):
    """The samples of a ``torch.utils.data.Dataset``, or of anything with ``__getitem__`` and ``__len__``, or ``__iter__``."""

    packages = ("torch",)
    runs_user_code = True

    def __init__(
        self,
        *,
        source: Mapping[str, Any] | None = None,
        train_source: Mapping[str, Any] | None = None,
        targets: str | None = None,
        layout: Layout | None = "channels_first",
        workers: int = 0,
        **options: Unpack[CommonOptions],
    ) -> None:
        """Args:
        source: ``_target_`` of the dataset with its arguments; it is the test split.
        train_source: the same for the training split; None: as ``source``.
        targets: the key of the targets where samples are mappings; None: ``labels`` or another usual one.
        layout: of images, arrays of three axes per sample.
        workers: processes of the ``DataLoader`` that mode=loading measures.
        """
        self._source, self._train_source = source, train_source
        self._targets, self._layout = targets, layout
        self._made: Any = None
        self._workers = workers
        super().__init__(**options)

    def problems(self) -> list[Problem]:
        """Return the problems of the arguments."""
        return [*node_problems("dataset.source", self._source), *layout_problems(self._layout)]

    def records(self, name: SplitName) -> range | Iterator[tuple[int, Any]]:
        """Return the indices of a map-style dataset, or the samples of an iterable one.

        Raises:
            DatasetError: the object is neither.
        """
        self._made = made_source(self._source, self._train_source, name)
        if hasattr(self._made, "__getitem__") and hasattr(self._made, "__len__"):
            return range(len(self._made))
        if isinstance(self._made, Iterable):
            return enumerate(self._made)
        kind = type(self._made).__name__
        raise DatasetError(f"dataset.source is a {kind}, which has neither __len__ and __getitem__ nor __iter__")

    def decoded(self, record: int | tuple[int, Any]) -> Sample:
        """Return the sample at an index."""
        index, item = (record, self._made[record]) if isinstance(record, int) else record
        return sample_of(item, self._targets, f"sample {index} of dataset.source").as_arrays().with_layout(self._layout)

    def batch_sizes(self, name: SplitName, batch_size: int) -> Iterator[int]:
        """Load a split by a ``DataLoader`` with :attr:`workers` processes, as a training loop does.

        Yields the number of samples of each batch when it is there.
        """
        data = package("torch.utils.data", "torch")
        records, limit = self.records(name), self.options.get("limit")
        loaded, shuffle = self._made, False
        if isinstance(records, range):
            shuffle = bool(self.options.get("shuffle"))
            if limit is not None:
                loaded = data.Subset(loaded, records[:limit])
        collate = None if self._collate() is None else self._collated
        loader = data.DataLoader(loaded, batch_size, shuffle=shuffle, num_workers=self._workers, collate_fn=collate)
        seen = 0
        for batch in loader:
            size = rows_of(batch)
            seen += size
            yield size
            if limit is not None and seen >= limit:
                return

    def _collated(self, items: list[Any]) -> Any:
        samples = [sample_of(item, self._targets, "dataset.source").as_arrays() for item in items]
        collate = self._collate()
        assert collate is not None
        return collate([sample.inputs for sample in samples])


def rows_of(batch: Any) -> int:
    """Return the number of samples of a batch: the length of its first array."""
    return next(len(leaf) for leaf in named_leaves(batch).values() if getattr(leaf, "ndim", 0))


# A ``tf.data.Dataset`` of the user, or a dataset of TensorFlow Datasets that is on disk.


class TensorflowDataset(PictureSource):
    """The elements of a ``tf.data.Dataset``: pairs of inputs and targets, mappings with targets, or inputs alone."""

    packages = ("tensorflow", "tensorflow-datasets")

    def __init__(
        self,
        *,
        source: Mapping[str, Any] | None = None,
        train_source: Mapping[str, Any] | None = None,
        path: str | None = None,
        targets: str | None = None,
        batched: bool = False,
        layout: Layout | None = "channels_last",
        **options: Unpack[PictureSourceOptions],
    ) -> None:
        """Args:
        source: ``_target_`` of a function that returns a ``tf.data.Dataset``, with its arguments; it is the test split.
        train_source: the same for the training split; None: as ``source``.
        path: in the place of ``source``, the folder of a prepared dataset of TensorFlow Datasets, ``DIR/NAME/VERSION``.
        targets: the key of the targets where elements are mappings; None: ``label`` or another usual one.
        batched: True if the elements are batches.
        layout: of images, arrays of three axes per sample.
        """
        self._source, self._train_source, self._path = source, train_source, path
        self._targets, self._batched, self._layout = targets, batched, layout
        super().__init__(**options)
        self.runs_user_code = source is not None  # type: ignore[misc]

    def problems(self) -> list[Problem]:
        """Return the problems of the arguments."""
        found = [*layout_problems(self._layout), *super().problems()]
        if self._path is None:
            return [*found, *node_problems("dataset.source", self._source)]
        if self._source is not None:
            reason = "cannot be combined with dataset.source; remove one of the two."
            found.append(Problem("dataset.path", self._path, reason))
        if not (user_path(self._path) / "dataset_info.json").is_file():
            reason = "is not the folder of a prepared dataset, DIR/NAME/VERSION with dataset_info.json."
            found.append(Problem("dataset.path", self._path, reason))
        return found

    def files(self, name: SplitName) -> Iterable[Path]:
        """Return the files of TensorFlow Datasets."""
        if self._path is None:
            return []
        return sorted(self.path_of(self._path, name).iterdir())

    def records(self, name: SplitName) -> Iterator[tuple[int, Any]]:
        """Yield the elements, those of batches one by one.

        Raises:
            DatasetError: the object is not a ``tf.data.Dataset``, never ends, or there is no such split.
        """
        return enumerate(self._data(name).as_numpy_iterator())

    def _data(self, name: SplitName) -> Any:
        """Return the elements, not in batches."""
        tensorflow = package("tensorflow", "tensorflow")
        tensorflow.config.set_visible_devices([], "GPU")  # decoding needs none, and trials do
        data = self._stored(self._path, name) if self._path else made_source(self._source, self._train_source, name)
        if not isinstance(data, tensorflow.data.Dataset):
            raise DatasetError(f"dataset.source is a {type(data).__name__}, not a tf.data.Dataset")
        if self._batched:
            data = data.unbatch()
        needs_end = self.options.get("limit") is None or self.options.get("shuffle")
        if needs_end and int(data.cardinality()) == -1:  # INFINITE_CARDINALITY
            advice = "give it an end with take(n), or set dataset.limit"
            raise DatasetError(f"dataset.source never ends (repeat()): {advice}")
        return data

    def _stored(self, path: str, name: SplitName) -> Any:
        datasets = package("tensorflow_datasets", "tensorflow_datasets")
        builder = datasets.builder_from_directory(str(self.path_of(path, name)))
        splits, part = list(builder.info.splits), self.part(name)
        wanted = part or name
        if wanted.partition("[")[0] not in splits:
            if part is not None or len(splits) > 1:
                known = f"{', '.join(splits)}: set dataset.split or dataset.train_split"
                raise DatasetError(f"{path} has no split {wanted!r}, but {known}")
            wanted = splits[0]
        in_order = datasets.ReadConfig(interleave_cycle_length=1)
        return builder.as_dataset(split=wanted, shuffle_files=False, read_config=in_order)

    def batch_sizes(self, name: SplitName, batch_size: int) -> Iterator[int]:
        """Load the pipeline of a split in batches; yields the number of samples of each batch when it is there."""
        data, limit = self._data(name), self.options.get("limit")
        if limit is not None:
            data = data.take(limit)
        for batch in data.batch(batch_size):
            yield rows_of(batch)

    def decoded(self, record: tuple[int, Any]) -> Sample:
        """Return the sample of an element."""
        index, element = record
        sample = sample_of(element, self._targets, f"sample {index} of {self._path or 'dataset.source'}").as_arrays()
        inputs = sample.inputs
        if self._path is None or getattr(inputs, "dtype", None) != np.uint8 or inputs.ndim != 3:
            return sample.with_layout(self._layout)
        if inputs.shape[-1] == 1:
            inputs = inputs[..., 0]
        picture = package("PIL.Image", "images").fromarray(inputs)
        return Sample(array_of(picture, self._spec, sample.place), sample.targets, sample.place, 1)
