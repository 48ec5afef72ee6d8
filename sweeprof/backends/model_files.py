"""Makes a model's file in a child process, keeps it, and runs it: what the backends of ONNX Runtime, OpenVINO and LiteRT share.

The measured process is to have nothing in memory but the run-time that loads the file.

The child gets a request and answers it in JSON over a socket (:mod:`sweeprof.processes`): ``{"error": null}``, or the stage that
failed, the class of the error and what it says. What the builder raised is raised again here.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import random
import shutil
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, ClassVar, Generic, Literal, NoReturn, Self, TypeVar

import numpy as np
from filelock import FileLock

from sweeprof.backends import (
    AnyArray,
    Backend,
    Build,
    Gap,
    HostOutputs,
    LoadedModel,
    Precision,
    PrecisionMethod,
    Shape,
    arrays,
    batch_of,
    by_name,
    checked_method,
    from_json,
    outputs_on_host,
    shapes_of,
    signature_of,
    to_json,
    varying,
)
from sweeprof.counting.file_graph import WeightRole
from sweeprof.counting.formulas import Formulas
from sweeprof.errors import (
    Unsupported,
    UserError,
    WorkerError,
    formatted,
    located_at,
    location_of,
    message_of,
    original,
)
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import Work
from sweeprof.nested import named_leaves
from sweeprof.paths import cache_folder, user_path
from sweeprof.processes import call
from sweeprof.results.files import read_json, write_json
from sweeprof.results.layers import LayerTable
from sweeprof.results.measurement import Artifact
from sweeprof.targets import instantiate, source_file

LOCK_S = 600.0
"""How long to wait for another process that makes the same file."""
LONGEST = 400
"""Characters of an error's first line."""
NO_MEMORY = "can't allocate memory"
"""What torch's allocator says, in a plain RuntimeError."""
ChildRequest = Mapping[str, Any]
Samples = Mapping[str, AnyArray]
"""``(n, ...)`` of each input, by its name or its position."""


class BuildFailed(RuntimeError):
    """The builder raised, in the process that makes the file, an error whose class this process does not have."""


@dataclass(frozen=True, slots=True)
class ChildFailure:
    """An error that was raised in the child process."""

    stage: str
    """``build``, or what the child calls the other one."""
    kind: str
    """The class of the error."""
    message: str
    """Its first line."""
    location: str | None = None
    """Where in the user's code it was raised."""
    traceback: str = ""

    @classmethod
    def of(cls, stage: str, error: BaseException) -> ChildFailure:
        """Return the description of an error, without Hydra's wrapping."""
        cause = original(error)
        message = message_of(cause)[:LONGEST]
        return cls(stage, type(cause).__name__, message, location_of(cause), formatted(error))

    def raise_as(self, refusal: str) -> NoReturn:
        """Raise what the builder raised; for a failure of another stage, Unsupported with ``refusal`` before the message.

        An error of the builder's is a :class:`BuildFailed` where its class is not known here.
        """
        known = getattr(builtins, self.kind, None)
        error: Exception = BuildFailed(f"{self.kind}: {self.message}")
        if self.kind == "MemoryError" or NO_MEMORY in self.message:
            error = MemoryError(self.message)
        elif self.kind == "Unsupported":
            raise Unsupported(self.message)
        elif self.stage != "build":
            raise Unsupported(f"{refusal}: {self.kind}: {self.message}")
        elif isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, _STRUCTURED):
            error = known(self.message)
        located_at(error, self.location)
        if self.traceback:
            error.add_note(f"in the process that makes the model's file:\n{self.traceback}")
        raise error


_STRUCTURED = (UnicodeError, BaseExceptionGroup)
"""Errors that are not made from a message alone."""


Channels = Literal["first", "last"]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model as a file."""

    path: str
    channels: Channels = "first"
    """Where the model wants the channels of an image; datasets give them first."""

    def channel_axis(self, axis: int | None) -> int | None:
        """Return the axis of the dataset's channels if the model wants them last."""
        return axis if self.channels == "last" else None


@dataclass(frozen=True, slots=True)
class MadeFile(ModelFile):
    """A file that a converter makes in a folder of its own, where another file has what the first does not tell."""

    NAME: ClassVar[str]
    """Of the file in its folder."""
    FORMAT: ClassVar[str]
    outputs: Sequence[str] = ()
    """Names of the outputs, in the order of the file; empty: as the file has them."""

    def parts(self) -> list[Path]:
        """Return the paths of all files that the run-time loads; one need not exist."""
        return [Path(self.path)]

    def artifact(self) -> Artifact:
        """Return the length of what the run-time loads, and neither of a Python object nor of what it takes in memory."""
        return Artifact(sum(part.stat().st_size for part in self.parts() if part.exists()), self.FORMAT)

    def write_facts(self) -> None:
        """Write every field but the path beside the file. From then on the folder is complete."""
        facts = asdict(self)
        del facts["path"]
        write_json(Path(self.path).with_name(FACTS), facts)

    @classmethod
    def within(cls, folder: Path) -> Self:
        """Return the file in a folder.

        Raises:
            FileNotFoundError: there is none.
        """
        facts: Any = read_json(folder / FACTS)
        for name, value in facts.items():
            if isinstance(value, list):
                facts[name] = tuple(value)
        return cls(path=str(folder / cls.NAME), **facts)


@dataclass(frozen=True, slots=True)
class GraphFile(MadeFile):
    """A file whose graph keeps the modules of the model."""

    batch: int | None = None
    """The only batch size that the graph takes; None: any."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Class name by module path, of all modules; empty for a user's file."""
    weights: Mapping[str, WeightRole] = field(default_factory=dict)
    """Role by the name of a weight; one that is the same tensor as another has none."""


def existing(path: str, kind: str = "file") -> str:
    """Return the full path of a user's file.

    Raises:
        FileNotFoundError: there is none.
    """
    found = user_path(path).absolute()
    if not found.is_file():
        raise FileNotFoundError(f"there is no {kind} {path}")
    return str(found)


FACTS = "facts.json"
REFUSED = "refused.txt"
"""The file that replaces one for any batch size if there is one for a single size only: the reason."""
SAMPLE = "input "
"""What the names of stored samples begin with."""
SAMPLES = 128
"""Of the data, for ranges."""
SEEDED_BY = {"torch": ("torch", "manual_seed"), "tensorflow": ("keras.utils", "set_random_seed")}
"""Module and function that seed a framework's generators."""
File = TypeVar("File", bound=MadeFile)


class HeldFolder:
    """A new folder that is removed when this object is collected, or the process ends.

    ``TemporaryDirectory`` would warn about that if the object is part of a reference cycle.
    """

    def __init__(self, prefix: str) -> None:
        self.path = Path(mkdtemp(prefix=prefix))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class KeptFiles:
    """The folder with the files of a caller's model, for passes that follow each other while the caller cannot change it."""

    def __init__(self) -> None:
        self._model: object = None
        self._held: HeldFolder | None = None

    def folder_of(self, model: object, prefix: str) -> HeldFolder:
        """Return the folder of a model; another model's is removed once nothing refers to it."""
        if self._held is None or self._model is not model:
            self._model, self._held = model, HeldFolder(prefix)
        return self._held


def batches_of(slots: Sequence[str], samples: Samples, size: int) -> Iterator[dict[str, AnyArray]]:
    """Yield every sample, by the names of a graph's inputs, in batches of one size, the last filled up with the first samples."""
    positional, named = [], {}
    for name, array in samples.items():
        if name.isdigit():
            positional.append(array)
        else:
            named[name] = array
    given = by_name(slots, positional, named)
    number = len(next(iter(given.values())))
    for begin in range(0, number, size):
        chosen = np.arange(begin, begin + size) % number
        yield {name: array[chosen] for name, array in given.items()}


def described(build: Build) -> Mapping[str, object] | None:
    """Return the config node that ``build`` makes the model from; None for a caller's own model."""
    if isinstance(build, partial) and build.func is instantiate and len(build.args) == 1:
        node: Mapping[str, object] = build.args[0]
        return node
    return None


def run_child(request: ChildRequest, variables: Mapping[str, str]) -> ChildFailure | None:
    """Let a process of its own carry out a request, with these environment variables; return what failed.

    Raises:
        WorkerError: the process died.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, **variables, "PYTHONPATH": paths}
    try:
        error = call("sweeprof.backends.model_files:carried_out", request, environment)["error"]
    except WorkerError as gone:
        raise WorkerError(f"the process that makes the model's file failed: {gone}") from None
    return None if error is None else ChildFailure(**error)


def carried_out(request: ChildRequest) -> dict[str, Any]:
    """On the side of the process that makes a file: carry out the request by its converter; return what failed, or None."""
    module, _, name = request["converter"].partition(":")
    converter: Converter[Any] = getattr(import_module(module), name)(**request["settings"])
    model = None
    if "node" in request:
        try:
            model = converter.built(request["node"])
        except Exception as error:  # a builder may raise anything
            return {"error": asdict(ChildFailure.of("build", error))}
    folder, samples = Path(request["folder"]), {}
    if request["samples"] is not None:
        with np.load(request["samples"]) as stored:
            samples = {name.removeprefix(SAMPLE): stored[name] for name in stored.files}
    try:
        if "node" in request:
            signature = from_json(request["signature"])
            file = converter.convert(model, signature, request["channel_axis"], samples, folder)
        else:
            file = converter.lower(converter.KIND(**request["file"]), samples, folder)
        file.write_facts()
    except Exception as error:  # and so may a converter
        return {"error": asdict(converter.failed(error))}
    return {"error": None}


def is_keras(model: object) -> bool:
    """Return True for a Keras layer or model."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Layer)


def is_module(model: object) -> bool:
    """Return True for a module of torch; with Keras on torch a Keras layer is one too."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def saved_keras(model: Any, folder: Path) -> Mapping[str, object]:
    """Save a caller's Keras model; returns the config node that another process loads it by."""
    path = folder / "model.keras"
    if not path.exists():  # for an earlier pass
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras's own, about numpy
            model.save(path)
    return {"_target_": "keras.saving.load_model", "filepath": str(path)}


@dataclass(frozen=True, slots=True)
class Converter(Generic[File]):
    """Converts models to files: once, by other processes, and keeps the files.

    A measured process has nothing in memory but the run-time, and a forked one may not run some frameworks. So a model that a
    config describes is built and converted by a child, which gets the description and the converter's settings as JSON. The file is
    kept under what it was made from. A caller's own model has no description, and is converted in its process, where its
    framework is loaded already. The module of a converter calls :func:`answer` when it runs as a program.
    """

    NAME: ClassVar[str]
    """Of the cache's folder."""
    KIND: ClassVar[type[Any]]
    PACKAGES: ClassVar[tuple[str, ...]]
    """What makes the files."""
    LOWERED_BY: ClassVar[tuple[str, ...]] = ()
    """What makes files with fewer bits of them."""
    ACCEPTED: ClassVar[str]
    """What is converted, for the message of an error."""
    VERSION: ClassVar[int]
    """Of the files. If it changes, every model is converted again."""
    ANY_BATCH: ClassVar[bool] = True
    """True: a file is for any batch size, where the graph takes any; false: there is one for each."""
    seed: int = 0
    cache: str | None = None
    """The folder of the files; None: that of the user."""
    samples: Callable[[int], Inputs | None] | None = None
    """Returns a batch of at most so many samples, channels first as datasets have them, for the ranges of what is quantized; None
    if there are none."""
    kept: KeptFiles | None = field(default=None, kw_only=True, compare=False)
    """Where the files of a caller's own model stay; None: each is made for one use."""

    # What a format tells

    def refusal(self) -> str:
        """Return the beginning of the message of an error that is not the builder's."""
        raise NotImplementedError

    def variables(self) -> Mapping[str, str]:
        """Return variables of the child's environment."""
        return {}

    def plain(self) -> Self:
        """Return the converter of the file that this one's is made of, with more bits; itself if it is made of the model."""
        return self

    def for_further(self, inputs: Inputs, first: Inputs) -> Self:
        """Return the converter of a further file of a model, for inputs of other shapes than its first."""
        return self

    def takes_samples(self) -> bool:
        """Return True if ranges come from samples."""
        return False

    def signature(self, inputs: Inputs, axis: int | None) -> Inputs:
        """Return the call that a model is converted for."""
        return signature_of(inputs)

    def given(self, model: object) -> File | None:
        """Return a user's file that runs as it is; None for any other model."""
        raise NotImplementedError

    def node_of(self, model: Any, folder: Path) -> Mapping[str, object] | None:
        """Return the config node by which a child gets a caller's model, saved in a folder; None if this process converts it."""
        return None

    def accepts(self, model: Any) -> bool:
        """Return True if the model is one of :attr:`ACCEPTED`."""
        raise NotImplementedError

    def copied(self, model: Any) -> Any:
        """Return what is converted of a caller's model: a copy where converting would change it."""
        return model

    def convert(self, model: Any, signature: Inputs, axis: int | None, samples: Samples, folder: Path) -> File:
        """Write the file of a model into a folder; raises whatever the framework raised."""
        raise NotImplementedError

    def lower(self, file: File, samples: Samples, folder: Path) -> File:
        """Write the file that is made of the one with more bits into a folder; raises whatever the run-time raised."""
        raise NotImplementedError

    def failed(self, error: Exception) -> ChildFailure:
        """Describe an error of converting."""
        return ChildFailure.of("convert", error)

    # What all formats have in common

    @contextmanager
    def converted(self, build: Build, inputs: Inputs, channel_axis: int | None) -> Iterator[File]:
        """Yield the file of what ``build`` makes, for such inputs; it exists within the context.

        Raises:
            Unsupported: the model cannot be converted; the reason is the converter's.
            TypeError: the builder made no model that can be.
            Exception: whatever the builder raised.
        """
        node, plain = described(build), self.plain()
        is_file = node is not None and str(node.get("_target_")).startswith("sweeprof.backends.")
        model = build() if node is None or is_file else None  # a file is described without a framework
        prefix = f"sweeprof-{self.NAME}-"
        # A loaded model holds this context and never leaves it: the folder lives as long as this frame refers to it.
        held = HeldFolder(prefix) if self.kept is None or node is not None else self.kept.folder_of(model, prefix)
        file = self.given(model)
        if file is None and node is None:
            saved = plain.node_of(model, held.path)
            file = plain._made(model, saved, inputs, channel_axis, lambda about: held.path / key_of({}, (), *about))
        elif file is None and node is not None:
            cache = cache_folder(self.NAME, self.cache) or held.path
            makers = self.PACKAGES
            file = plain._made(None, node, inputs, channel_axis, lambda about: cache / key_of(node, makers, *about))
        assert file is not None
        if plain != self:
            file = self._lowered(file, channel_axis, held.path)
        yield file

    def _made(
        self,
        model: Any,
        node: Mapping[str, object] | None,
        inputs: Inputs,
        axis: int | None,
        entry_of: Callable[[tuple[object, ...]], Path],
    ) -> File:
        """Return the file for any batch size if the model has one, else that for inputs of this size; make it if there is none.

        The batch is taken to be the first axis of each input. The state of a recurrent network has it second: a converter then
        refuses to make a file for any batch size. A note keeps that, once there is a file for the single size.

        Args:
            model: a caller's own; None: ``node`` describes it.
            node: from which a child process builds the model; None: it is converted in this process.
            inputs: of the model.
            axis: of the channels in the inputs.
            entry_of: returns the folder of a file, given what the file depends on apart from the model.
        """
        signature, samples = self.signature(inputs, axis), self.ranges(axis)

        def made(wanted: Inputs) -> Any:
            entry = folder_of(wanted)
            if node is not None:
                request = {"node": dict(node), "signature": to_json(wanted), "channel_axis": axis}
                return self._by_child(request, samples, entry)
            if not (entry / FACTS).exists():
                entry.mkdir(exist_ok=True)
                try:
                    self.convert(self.copied(model), wanted, axis, samples, entry).write_facts()
                except Exception as error:  # a converter may raise anything
                    self.failed(error).raise_as(self.refusal())
            return self.KIND.within(entry)

        def folder_of(wanted: Inputs) -> Path:
            return entry_of((self.VERSION, to_json(wanted), axis, self.settings(), digest_of(samples)))

        if node is None:
            self.checked(model)
        example, refusal = varying(signature), None
        note = folder_of(example) / REFUSED
        if self.ANY_BATCH and not note.exists():
            try:
                file = made(example)
                if file.batch in (None, batch_of(signature)):
                    return file  # type: ignore[no-any-return]
            except Unsupported as error:
                if example == signature:
                    raise
                refusal = error
        file = made(signature)
        if refusal is not None:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(str(refusal), encoding="utf-8")
        return file  # type: ignore[no-any-return]

    def _lowered(self, file: File, axis: int | None, temporary: Path) -> File:
        """Return a file with fewer bits; it is kept beside the one that it is made of, a user's in ``temporary``."""
        samples = self.ranges(file.channel_axis(axis))
        makers = [_version(name) for name in self.LOWERED_BY]
        known = json.dumps([self.VERSION, self.settings(), makers, digest_of(samples)])
        above = Path(file.path).parent
        folder = above if (above / FACTS).exists() else temporary
        folder /= "lowered-" + hashlib.sha256(known.encode()).hexdigest()[:24]
        return self._by_child({"file": asdict(file)}, samples, folder)

    def _by_child(self, request: ChildRequest, samples: Samples, folder: Path) -> File:
        """Return the file in a folder; where there is none, a child makes it, while other processes that want it wait."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            FileLock(folder.with_suffix(".lock"), timeout=LOCK_S),
            TemporaryDirectory(prefix="sweeprof-samples-") as kept,
        ):
            if not (folder / FACTS).exists():
                folder.mkdir(exist_ok=True)
                path = None
                if samples:
                    path = str(Path(kept) / "samples.npz")
                    np.savez(path, **{SAMPLE + name: array for name, array in samples.items()})  # type: ignore[arg-type]
                kind = type(self)
                whole = {
                    **request,
                    "converter": f"{kind.__module__}:{kind.__name__}",
                    "settings": self.settings(),
                    "folder": str(folder),
                    "samples": path,
                }
                failure = run_child(whole, self.variables())
                if failure is not None:
                    failure.raise_as(self.refusal())
            file: File = self.KIND.within(folder)
            return file

    def settings(self) -> dict[str, Any]:
        """Return what a file depends on beside the model and its inputs."""
        names = [field.name for field in fields(self) if field.name not in ("cache", "samples", "kept")]
        return {name: getattr(self, name) for name in names}

    def built(self, node: Mapping[str, object]) -> Any:
        """Return what a config node describes, built with the seed, as the backend of its framework builds it."""
        random.seed(self.seed)
        np.random.seed(self.seed)
        framework = str(node.get("framework"))
        if framework in SEEDED_BY:
            module, function = SEEDED_BY[framework]
            getattr(import_module(module), function)(self.seed)
        return self.checked(instantiate(node))

    def checked(self, model: Any) -> Any:
        """Return the model; raise TypeError for one that cannot be converted."""
        if not self.accepts(model):
            raise TypeError(f"the model's builder returned a {type(model).__name__}, not {self.ACCEPTED}")
        return model

    def ranges(self, axis: int | None) -> dict[str, AnyArray]:
        """Return the samples for ranges by their names, positional ones by their positions; none if they are not needed.

        Raises:
            Unsupported: there are none.
        """
        if not self.takes_samples():
            return {}
        samples = None if self.samples is None else self.samples(SAMPLES)
        if samples is None:
            raise Unsupported("precision_method=static takes its ranges from samples, and there are none")
        positional, named = arrays(samples, axis)
        return {str(index): array for index, array in enumerate(positional)} | named


def digest_of(samples: Samples) -> str:
    """Return a hash of samples."""
    digest = hashlib.sha256()
    for name, array in samples.items():
        digest.update(f"{name} {array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


INGREDIENTS = {".py", ".safetensors", ".pt", ".pth", ".bin", ".npz", ".npy", ".h5", ".keras", ".json", ".yaml"}
"""Files beside a builder that it may read."""


def key_of(node: Mapping[str, object], makers: Sequence[str], *more: object) -> str:
    """Return the cache key of a file: a hash of the description, its sources and weights, the packages that make it, and ``more``.

    Sources are known by path, size and time of their last change: what lies beside the builder's module or one folder below it,
    and every file that the description names. What a builder reads elsewhere is not known: remove the cache after changing it.
    """
    versions = {name: _version(name) for name in makers}
    known = [node, versions, sys.version, sorted(_ingredients(node)), *more]
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _ingredients(node: object) -> Iterator[tuple[str, int, int]]:
    """Yield the path, the size and the time of the last change of every file that a description depends on."""
    for text in named_leaves(node).values():
        if not isinstance(text, str):
            continue
        paths = _files_of(text)
        source = source_file(text) if "." in text else None
        if source is not None:
            beside = (*source.parent.glob("*"), *source.parent.glob("*/*"))
            paths += [path for path in beside if path.suffix in INGREDIENTS]
        for path in paths:
            try:
                status = path.stat()
            except OSError:
                continue
            if path.is_file():
                yield str(path), status.st_size, status.st_mtime_ns


def _files_of(text: str) -> list[Path]:
    """Return the file that a text names, or all files below a folder that it names; none for any other text."""
    if not text:  # which would be the present folder
        return []
    try:
        named = user_path(text).absolute()
        if named.is_dir():
            return sorted(named.rglob("*"))
        return [named] if named.is_file() else []
    except (OSError, UserError, ValueError):
        # It is too long for a path, has a NUL, or names the home of an unknown user.
        return []


# ---------------------------------------------------------------------------------------------------------------
# What all backends that run files have in common: their settings, and a loaded model
# ---------------------------------------------------------------------------------------------------------------

GENERATION = Gap("not implemented", "a forward is converted, and not the loop over the tokens with its cache")


def gaps_of(runtime: str) -> dict[str, Gap]:
    """Return the gaps that every run-time of files has.

    Args:
        runtime: its name.
    """
    inference = Gap("not applicable", f"{runtime} runs models, and trains none")
    return {
        "analyze_training": inference,
        "training": inference,
        "generating": GENERATION,
        "analyze_generation": GENERATION,
        "graph": Gap(
            "not implemented",
            "the operators of the file are counted by module; open the file in a viewer to see its graph",
        ),
        "own_counts": Gap("not supported upstream", f"{runtime} counts no operations"),
        "watch": Gap("not applicable", "a loop of the user's own calls the model and not its converted file"),
        "lines": Gap("not applicable", "a file has no source lines"),
        "peaks": Gap(
            "not implemented",
            f"there is no benchmark of the machine in {runtime}; backend=torch measures the same hardware",
        ),
    }


@dataclass(frozen=True, slots=True)
class Feed:
    """A batch as a run-time takes it."""

    values: Any
    """The tensors: in the order of the graph's inputs, or by their names."""
    rows: int | None = None
    """The samples that count, of a batch that was filled up for a file that takes no smaller one; None: all."""
    model: FileModel | None = None
    """What runs it, where that is another file of the same model; None: the one that made it."""


class FileModel(LoadedModel):
    """A file in its run-time; it is converted when the model meets its first inputs, whose shapes a converter needs.

    Inputs of other shapes than the file takes, such as texts of another length, run in a further file of the same model.
    """

    def __init__(
        self,
        conversion: Callable[[Inputs, Inputs | None], AbstractContextManager[Any]],
        settings: Any,
        channel_axis: int | None,
        device: str = "cpu",
        first: Inputs | None = None,
    ) -> None:
        """Args:
        conversion: makes the file for such inputs; it exists within the context. It is also given ``first``.
        settings: of the run-time.
        channel_axis: where the dataset has its channels.
        device: as the backend calls it.
        first: inputs of the model that another file is for; None: this is its first file.
        """
        self._conversion, self.settings, self._axis, self.device = conversion, settings, channel_axis, device
        self._first, self._others = first, list[FileModel]()
        self.converting_s = 0.0
        """Seconds that further files took, since the model met its first inputs."""
        self._held: AbstractContextManager[MadeFile] | None = None
        self._file: Any = None
        self.native: Any = None
        """What the run-time made of the file; None before the first inputs."""

    @property
    def file(self) -> Any:
        """The file that runs.

        Raises:
            Unsupported: the model has met no inputs yet.
        """
        if self._file is None:
            raise Unsupported("the model is converted for its inputs, and has met none yet")
        return self._file

    def meet(self, inputs: Inputs) -> None:
        """Convert the model for such inputs and open its file, where that has not been done.

        Raises:
            Unsupported: it cannot be converted, or takes no such inputs.
            Exception: whatever the builder raised, or the run-time.
        """
        if self._file is None:
            # A temporary file is there as long as this object.
            self._held = self._conversion(inputs, self._first)
            self._file = self._held.__enter__()
            self.open(inputs)
            self._first = inputs

    def open(self, inputs: Inputs) -> None:
        """Open the file for such inputs."""
        raise NotImplementedError

    def arrays(self, inputs: Inputs) -> tuple[list[AnyArray], dict[str, AnyArray]]:
        """Return positional and named tensors in the layout that the file wants."""
        return arrays(inputs, self.file.channel_axis(self._axis))

    def put(self, inputs: Inputs) -> Feed:
        self.meet(inputs)
        model = self._that_takes(inputs)
        return replace(model.feed(inputs), model=model)

    def _that_takes(self, inputs: Inputs) -> FileModel:
        """Return this file, or another one of the same model that takes such inputs; it is made where there is none."""
        for model in (self, *self._others):
            if model.fits(inputs):
                return model
        begin = time.perf_counter()
        made = type(self)(self._conversion, self.settings, self._axis, self.device, self._first)
        made.meet(inputs)
        self._others.append(made)
        self.converting_s += time.perf_counter() - begin
        return made

    def shapes(self, inputs: Inputs) -> tuple[list[Shape], dict[str, Shape]]:
        """Return the shapes of :meth:`arrays`."""
        return shapes_of(inputs, self.file.channel_axis(self._axis))

    def fits(self, inputs: Inputs) -> bool:
        """Return whether the opened file takes inputs of these shapes, those of a smaller batch among them."""
        raise NotImplementedError

    def feed(self, inputs: Inputs) -> Feed:
        """Return the inputs of a model that has met some, as the file takes them."""
        raise NotImplementedError

    @contextmanager
    def stepping(self, batch: Feed) -> Iterator[Callable[[], object]]:
        yield (batch.model or self).step_of(batch)

    def step_of(self, batch: Feed) -> Callable[[], object]:
        """Return a function that runs one forward; it returns the rows that count (None: all) and the complete outputs."""
        raise NotImplementedError

    def host_outputs(self, outputs: Any) -> HostOutputs:
        rows, values = outputs
        found = {}
        for name, array in self.named_outputs(values).items():
            kept = array[:rows] if array.ndim else array
            found[name] = kept.astype(
                np.float32 if kept.dtype.kind == "f" else kept.dtype
            )  # a copy: the next step writes there
        if len(found) == 1:  # the name may be one that the export has made
            return found.popitem()[1]
        return outputs_on_host(values, found, lambda array: array)

    def named_outputs(self, values: Any) -> dict[str, AnyArray]:
        """Return the outputs of a step by their names, in the order of the model."""
        raise NotImplementedError


def is_fitting(shape: Shape, wanted: Shape) -> bool:
    """Return whether :func:`fitting` can fill up an array of this shape."""
    return shape == wanted or (len(shape) == len(wanted) > 0 and shape[1:] == wanted[1:] and shape[0] <= wanted[0])


def fitting(array: AnyArray, shape: tuple[int, ...], taker: str) -> AnyArray:
    """Return an array, filled up with its last sample to the batch of a shape.

    Raises:
        Unsupported: it does not fit; the message begins with ``taker``.
    """
    if array.shape == shape:
        return array
    if not is_fitting(array.shape, shape):
        raise Unsupported(f"{taker} a {shape}, not a {array.shape}")
    return array[np.minimum(np.arange(shape[0]), len(array) - 1)]


@dataclass(slots=True)
class FileBackend(Backend):
    """Runs files of one format; a model of a framework is converted once, and its file is kept."""

    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]]
    precision_gaps: ClassVar[Mapping[str, str]] = {}
    MODEL: ClassVar[type[FileModel]]
    out_of_memory: ClassVar[tuple[str, ...]]
    """What the run-time says when memory runs out."""
    threads: int = 1
    """Threads within an operator."""
    precision: Precision | None = None
    precision_method: PrecisionMethod | None = None
    cache: str | None = None
    """Folder of converted models; None: one in the user's cache."""
    seed: int = field(default=0, init=False)
    expected: Inputs | None = field(default=None, init=False)
    samples: Callable[[int], Inputs | None] | None = field(default=None, init=False)
    kept: KeptFiles | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.method()

    def method(self) -> str | None:
        """Return the method by which models get their precision."""
        return checked_method(type(self), self.precision, self.precision_method)

    def configure(self, seed: int) -> None:
        self.seed = seed  # of the process that builds and converts; threads are a setting of each model

    def expect(self, inputs: Inputs) -> None:
        self.expected = inputs

    def ranges_from(self, samples: Callable[[int], Inputs | None]) -> None:
        self.samples = samples

    @contextmanager
    def keeping_files(self) -> Iterator[None]:
        self.kept = KeptFiles()
        try:
            yield
        finally:
            self.kept = None

    def converter(self) -> Converter[Any]:
        """Return what makes the files, with the settings of this backend."""
        raise NotImplementedError

    def session_settings(self, device: str) -> Any:
        """Return the run-time's settings for a device.

        Raises:
            Unsupported: it cannot run there, or not with the settings of this backend.
        """
        raise NotImplementedError

    def counted(self, file: Any, stored: Any, inputs: Inputs, axis: int | None, formulas: Formulas) -> LayerTable:
        """Return the layers of a file.

        Args:
            file: whose operators are counted: of a quantized one the file that it was made of, which computes the same.
            stored: whose bytes are counted.
            inputs: of one step.
            axis: where the file has the channels last, their axis in the inputs.
            formulas: of the session.
        """
        raise NotImplementedError

    def load(self, build: Build, device: str, channel_axis: int | None) -> Any:
        converter, settings = self.converter(), self.session_settings(device)  # before anything is converted for it

        def conversion(inputs: Inputs, first: Inputs | None) -> AbstractContextManager[Any]:
            chosen = converter if first is None else converter.for_further(inputs, first)
            return chosen.converted(build, inputs, channel_axis)

        model = self.MODEL(conversion, settings, channel_axis, device)
        if self.expected is not None:
            model.meet(self.expected)
        return model

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        converter = self.converter()
        plain = converter.plain() if self.precision == "int8" else converter
        with ExitStack() as stack:
            stored = file = stack.enter_context(converter.converted(build, inputs, channel_axis))
            if plain != converter:
                file = stack.enter_context(plain.converted(build, inputs, channel_axis))
            return self.counted(file, stored, inputs, file.channel_axis(channel_axis), formulas)

    def artifact(self, build: Build, channel_axis: int | None) -> Artifact:
        if self.expected is None:
            raise Unsupported("the model is converted for its inputs, and they are not known")
        with self.converter().converted(build, self.expected, channel_axis) as file:
            return file.artifact()  # type: ignore[no-any-return]

    def settings_in_effect(self, model: FileModel | None = None) -> Mapping[str, Any]:
        # They belong to each loaded model; its builder has no influence on them.
        if model is None or model.native is None:
            return {}
        settings, method = self.settings_of(model.native), self.method()
        if method is not None:
            settings["precision method"] = method
        return settings

    def settings_of(self, native: Any) -> dict[str, Any]:
        """Return the settings of what the run-time made of a file."""
        return {}

    def is_out_of_memory(self, error: BaseException) -> bool:
        return Backend.is_out_of_memory(self, error) or any(text in str(error).lower() for text in self.out_of_memory)

    def check_inference(self, work: Work) -> None:
        """Raise if the work is training."""
        if work.training is not None:
            raise self.lacking("training")
