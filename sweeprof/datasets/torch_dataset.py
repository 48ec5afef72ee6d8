"""A ``Dataset`` of torch: map-style or iterable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Unpack

from sweeprof.datasets import SplitName
from sweeprof.datasets.collate import TARGETS, Sample
from sweeprof.datasets.source import CommonOptions, Layout, Source, layout_problems, made, node_problems, package
from sweeprof.errors import DatasetError, Problem
from sweeprof.nested import named_leaves


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
