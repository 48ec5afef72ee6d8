"""A ``tf.data.Dataset`` of the user, or a dataset of TensorFlow Datasets that is on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from sweeprof.datasets import SplitName
from sweeprof.datasets.collate import Sample
from sweeprof.datasets.images import PictureSource, PictureSourceOptions, array_of
from sweeprof.datasets.source import Layout, layout_problems, made, node_problems, package
from sweeprof.datasets.torch_dataset import rows_of, sample_of
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
            found.append(
                Problem("dataset.path", self._path, "cannot be combined with dataset.source; remove one of the two.")
            )
        if not (user_path(self._path) / "dataset_info.json").is_file():
            reason = "is not the folder of a prepared dataset, DIR/NAME/VERSION with dataset_info.json."
            found.append(Problem("dataset.path", self._path, reason))
        return found

    def files(self, name: SplitName) -> Iterable[Path]:
        """Return the files of TensorFlow Datasets."""
        return [] if self._path is None else sorted(self.path_of(self._path, name).iterdir())

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
        if self._path is not None:
            data = self._stored(name)
        else:
            is_train = name == "train" and self._train_source is not None
            node = self._train_source if is_train else self._source
            data = made(node, "dataset.train_source" if is_train else "dataset.source")
        if not isinstance(data, tensorflow.data.Dataset):
            raise DatasetError(f"dataset.source is a {type(data).__name__}, not a tf.data.Dataset")
        if self._batched:
            data = data.unbatch()
        limit = self.options.get("limit")
        if int(data.cardinality()) == -1 and (limit is None or self.options.get("shuffle")):  # INFINITE_CARDINALITY
            raise DatasetError(
                "dataset.source never ends (repeat()): give it an end with take(n), or set dataset.limit"
            )
        return data

    def _stored(self, name: SplitName) -> Any:
        datasets = package("tensorflow_datasets", "tensorflow_datasets")
        builder = datasets.builder_from_directory(str(self.path_of(str(self._path), name)))
        wanted = self.part(name) or name
        if wanted.partition("[")[0] not in builder.info.splits:
            known = ", ".join(builder.info.splits)
            if self.part(name) is not None or len(builder.info.splits) > 1:
                raise DatasetError(
                    f"{self._path} has no split {wanted!r}, but {known}: set dataset.split or dataset.train_split"
                )
            wanted = known
        return builder.as_dataset(
            split=wanted, shuffle_files=False, read_config=datasets.ReadConfig(interleave_cycle_length=1)
        )

    def batch_sizes(self, name: SplitName, batch_size: int) -> Iterator[int]:
        """Load the pipeline of a split in batches; yields the number of samples of each batch when it is there."""
        data, limit = self._data(name), self.options.get("limit")
        for batch in (data if limit is None else data.take(limit)).batch(batch_size):
            yield rows_of(batch)

    def decoded(self, record: tuple[int, Any]) -> Sample:
        """Return the sample of an element."""
        index, element = record
        sample = sample_of(element, self._targets, f"sample {index} of {self._path or 'dataset.source'}").as_arrays()
        inputs = sample.inputs
        if self._path is not None and getattr(inputs, "dtype", None) == np.uint8 and inputs.ndim == 3:
            image = package("PIL.Image", "images")
            picture = image.fromarray(inputs[..., 0] if inputs.shape[-1] == 1 else inputs)
            return Sample(array_of(picture, self._spec, sample.place), sample.targets, sample.place, 1)
        return sample.with_layout(self._layout)
