"""Sound files in one folder per class."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from sweeprof.datasets import SplitName
from sweeprof.datasets.collate import Sample
from sweeprof.datasets.images import folder_problems, labelled_files
from sweeprof.datasets.source import CommonOptions, Source, from_local_files, package
from sweeprof.errors import DatasetError, Problem
from sweeprof.paths import user_path

SUFFIXES = (".aif", ".aiff", ".flac", ".mp3", ".ogg", ".wav")


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
        normalize: True: each recording has the mean 0 and the variance 1.
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

    def records(self, name: SplitName) -> list[tuple[Path, int]]:
        """Return the files of a split with the numbers of their classes; raises :class:`DatasetError` if there are none."""
        return labelled_files(self, str(self._path), name, SUFFIXES, "sound file")

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
        if self._length is not None:
            mono = np.pad(mono[: self._length], (0, max(0, self._length - len(mono))))
        if self._normalize:
            mono = (mono - mono.mean()) / np.sqrt(mono.var() + 1e-7)
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
