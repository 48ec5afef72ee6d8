"""The test split of the digits, written in every form that a dataset of sweeprof reads."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import numpy as np

from sweeprof.datasets.arrays import Digits

USER_CODE = dedent(
    '''
    """The digits as a Dataset of torch, map-style and iterable, and as a tf.data pipeline."""

    import numpy as np


    def arrays(path):
        with np.load(path) as file:
            return file["x_test"], file["y_test"]


    class Mapped:
        def __init__(self, path):
            import torch

            self.images, self.labels = map(torch.from_numpy, arrays(path))

        def __len__(self):
            return len(self.images)

        def __getitem__(self, index):
            return self.images[index], self.labels[index]


    class Streamed:
        def __init__(self, path):
            self.path = path

        def __iter__(self):
            yield from zip(*arrays(self.path))


    def pipeline(path, batch=None):
        import tensorflow as tf

        images, labels = arrays(path)
        data = tf.data.Dataset.from_tensor_slices((images.transpose(0, 2, 3, 1), labels))
        return data if batch is None else data.batch(batch)


    def flipped(image):
        return image[..., ::-1]


    def names_its_split():
        raise RuntimeError("the disk is on fire")
    '''
)


def write_digits(folder: Path, number: int = 360) -> dict[str, dict[str, object]]:
    """Write the data; return the settings of each form, by its name.

    All pixels are multiples of 1/16, which 8 bits do not hold; ink counts become the nearest of 256 greys in all forms.
    """
    import datasets
    import pandas
    from PIL import Image

    split = Digits().split("test")
    greys = np.rint(np.asarray(split.inputs[:number]) * 255).astype(np.uint8)
    images, labels = greys.astype(np.float32) / np.float32(255), np.asarray(split.targets[:number])
    for index, (grey, label) in enumerate(zip(greys, labels, strict=True)):
        path = folder / "pictures" / str(label) / f"{index:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(grey[0]).save(path)
    np.savez(folder / "digits.npz", x_test=images, y_test=labels)
    rows = pandas.DataFrame({"pixels": list(images.reshape(number, -1)), "digit": labels})
    rows.to_parquet(folder / "digits.parquet")
    columns = pandas.DataFrame(greys[:, 0, ::4, ::4].reshape(number, 64), columns=[f"p{at}" for at in range(64)])
    columns.assign(digit=labels).to_csv(folder / "small.csv", index=False)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    saved = datasets.Dataset.from_dict(
        {"image": [Image.fromarray(grey[0]) for grey in greys], "label": labels.tolist()}, features=features
    )
    saved.save_to_disk(str(folder / "saved"))
    (folder / "my_data.py").write_text(USER_CODE, encoding="utf-8")
    npz = str(folder / "digits.npz")
    return {
        "images": {"dataset": "images", "dataset.path": str(folder / "pictures"), "dataset.channels": 1},
        "npz": {"dataset": "npz", "dataset.path": npz, "dataset.layout": "channels_first"},
        "parquet": {
            "dataset": "table",
            "dataset.path": str(folder / "digits.parquet"),
            "dataset.targets": "digit",
            "dataset.shape": [1, 32, 32],
        },
        "torch": {"dataset": "torch", "dataset.source": {"_target_": "my_data.Mapped", "path": npz}},
        "tensorflow": {"dataset": "tensorflow", "dataset.source": {"_target_": "my_data.pipeline", "path": npz}},
        "huggingface": {"dataset": "huggingface", "dataset.path": str(folder / "saved"), "dataset.channels": 1},
    }
