"""A ``tf.data.Dataset`` of the user, or a dataset of TensorFlow Datasets that is on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from sweeprof.datasets import SplitName
from sweeprof.datasets.collate import Sample
from sweeprof.datasets.images import PictureSource, PictureSourceOptions, array_of
from sweeprof.datasets.source import Layout, layout_problems, node_problems, package
from sweeprof.datasets.torch_dataset import made_source, rows_of, sample_of
from sweeprof.errors import DatasetError, Problem
from sweeprof.paths import user_path


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
        yield from map(rows_of, data.batch(batch_size))

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
