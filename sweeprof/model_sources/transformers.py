"""Models of transformers: from a configuration, with random weights, or from a folder or the hub.

``model=transformers model.architecture=bert model.task=text-classification model.config.num_hidden_layers=4`` or
``model=transformers model.path=FOLDER``.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeprof.datasets import ArraySpec, ImagePreprocessing, Interpolation, ModelInputs, source
from sweeprof.errors import Problem, Unsupported, UserError, choice_problem, key_problem, nearest
from sweeprof.model_sources import (
    NEW_TOKENS,
    OWN_KEYS,
    check_arguments,
    check_generate,
    check_names_of_arguments,
    check_sizes,
    known_name,
    package,
    size,
)
from sweeprof.paths import expanded, user_path

if TYPE_CHECKING:
    import torch

TASKS: dict[str, tuple[str, ...]] = {
    "feature-extraction": ("AutoModel",),
    "text-classification": ("AutoModelForSequenceClassification",),
    "sentiment-analysis": ("AutoModelForSequenceClassification",),
    "zero-shot-classification": ("AutoModelForSequenceClassification",),
    "token-classification": ("AutoModelForTokenClassification",),
    "ner": ("AutoModelForTokenClassification",),
    "question-answering": ("AutoModelForQuestionAnswering",),
    "table-question-answering": ("AutoModelForTableQuestionAnswering",),
    "document-question-answering": ("AutoModelForDocumentQuestionAnswering",),
    "visual-question-answering": ("AutoModelForVisualQuestionAnswering", "AutoModelForImageTextToText"),
    "fill-mask": ("AutoModelForMaskedLM",),
    "text-generation": ("AutoModelForCausalLM",),
    "text2text-generation": ("AutoModelForSeq2SeqLM",),
    "summarization": ("AutoModelForSeq2SeqLM",),
    "translation": ("AutoModelForSeq2SeqLM",),
    "image-classification": ("AutoModelForImageClassification",),
    "zero-shot-image-classification": ("AutoModelForZeroShotImageClassification",),
    "image-feature-extraction": ("AutoModel",),
    "image-segmentation": ("AutoModelForImageSegmentation", "AutoModelForSemanticSegmentation"),
    "semantic-segmentation": ("AutoModelForSemanticSegmentation",),
    "object-detection": ("AutoModelForObjectDetection",),
    "zero-shot-object-detection": ("AutoModelForZeroShotObjectDetection",),
    "depth-estimation": ("AutoModelForDepthEstimation",),
    "keypoint-matching": ("AutoModelForKeypointMatching",),
    "mask-generation": ("AutoModelForMaskGeneration",),
    "image-to-image": ("AutoModelForImageToImage",),
    "video-classification": ("AutoModelForVideoClassification",),
    "image-to-text": ("AutoModelForImageTextToText",),
    "image-text-to-text": ("AutoModelForImageTextToText",),
    "any-to-any": ("AutoModelForMultimodalLM",),
    "decision": ("AutoModelForDecision", "AutoModelForImageTextToText", "AutoModelForCausalLM"),
    "audio-classification": ("AutoModelForAudioClassification",),
    "zero-shot-audio-classification": ("AutoModel",),
    "automatic-speech-recognition": ("AutoModelForCTC", "AutoModelForTDT", "AutoModelForSpeechSeq2Seq"),
    "speech-to-text": ("AutoModelForSpeechSeq2Seq",),
    "speech-to-characters": ("AutoModelForCTC",),
    "text-to-audio": ("AutoModelForTextToWaveform", "AutoModelForTextToSpectrogram"),
    "text-to-speech": ("AutoModelForTextToWaveform", "AutoModelForTextToSpectrogram"),
}
"""The classes that load the model for a task, of which the first that has the architecture does: all names of transformers'
pipelines, also former ones, and two that tell apart how speech is written."""
DTYPES = ("float32", "float16", "bfloat16", "float64", "auto")
"""Data types of weights; ``auto``: as saved."""
SEQUENCE_LENGTH = 128
DECODER_LENGTH = 32
IMAGE_SIZE = 224
"""Defaults where the configuration of a model does not tell."""
INTERPOLATIONS: tuple[Interpolation, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""By the numbers that Pillow gives them."""


def import_transformers() -> Any:
    """Return transformers, which imports torchvision where it is installed."""
    return source.import_transformers("model")


@dataclass(frozen=True, slots=True)
class _Model:
    """A configuration and the class of its model."""

    config: Any
    kind: type[torch.nn.Module]
    auto: Any


def _model(architecture: str | None, path: str | None, task: str | None, config: Mapping[str, Any]) -> _Model:
    transformers = import_transformers()
    if task is not None:
        if re.fullmatch(r"translation_\w+_to_\w+", task):  # with its languages, as pipelines take it
            task = "translation"
        known_name("model.task", task, TASKS, "task")
    if path is not None:
        try:
            made = transformers.AutoConfig.from_pretrained(expanded(path), **config)
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise UserError([Problem("model.path", path, f"is not a saved model: {reason}")]) from None
    elif architecture is not None:
        known_name("model.architecture", architecture, transformers.CONFIG_MAPPING, "architecture of transformers")
        made = transformers.AutoConfig.for_model(architecture, **config)
    else:
        missing = "is missing: name an architecture, or a folder by model.path."
        raise UserError([Problem("model.architecture", None, missing)])
    # Checked here: a configuration takes any setting, and keeps one that it does not know.
    settings = {*type(made)().to_dict(), *made.attribute_map, "use_cache", "num_labels", "dtype"}
    unknown = [name for name in config if name not in settings]
    if unknown:
        known = [f"model.config.{name}" for name in settings]
        raise UserError([key_problem(f"model.config.{name}", config[name], known) for name in unknown])
    if task is None and made.architectures and hasattr(transformers, made.architectures[0]):
        kind = getattr(transformers, made.architectures[0])
        return _Model(made, kind, kind)
    auto = _class_for(task or "feature-extraction", made)
    if auto is None:
        able = [name for name in TASKS if _class_for(name, made) is not None]
        allowed = f"is not a task of {made.model_type}, which has {', '.join(able)}."
        raise UserError([Problem("model.task", task, allowed, nearest(str(task), able))])
    kind = auto._model_mapping[type(made)]
    # Of several classes, `from_config` takes the first only if the configuration names one.
    if isinstance(kind, tuple):
        return _Model(made, kind[0], kind[0])
    return _Model(made, kind, auto)


def _class_for(task: str, config: Any) -> Any:
    """Return the class that loads the model with a configuration for a task; None if there is none for this task."""
    transformers = import_transformers()
    for name in TASKS[task]:
        auto = getattr(transformers, name, None)  # which another version of transformers may not have
        if auto is not None and type(config) in auto._model_mapping:
            return auto
    return None


def build(  # noqa: PLR0913, PLR0917  # one argument for each setting of conf/model/transformers.yaml
    architecture: str | None,
    path: str | None,
    task: str | None,
    config: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    attn_implementation: str | None = None,
    peft: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Return the model.

    Args:
        architecture: a model type of transformers, such as ``bert``; the weights are random.
        path: a folder that ``save_pretrained`` has written, or a name on the hub; its weights are loaded.
        task: one of :data:`TASKS`; None: the class that was saved, or the model without a head.
        config: settings of the configuration, such as ``num_hidden_layers``.
        arguments: further arguments of ``from_config`` or ``from_pretrained``.
        dtype: of the weights, such as ``bfloat16``; None: as saved, or float32.
        attn_implementation: ``eager``, ``sdpa``, ``flash_attention_2``; None: transformers chooses.
        peft: the node of a configuration of peft, with the ``_target_`` ``peft.LoraConfig``, by which adapters are added.

    Raises:
        Unsupported: the model does not have this implementation of attention, or its package is not installed.
    """
    settings = dict(config or {})
    if path is None:
        settings.setdefault("use_cache", False)
    found = _model(architecture, path, task, settings)
    given = dict(arguments or {})
    if dtype is not None:
        given["dtype"] = dtype
    if attn_implementation is not None:
        given["attn_implementation"] = attn_implementation
    with _as_unsupported(attn_implementation):
        if path is None:
            model = _from_config(found, given)
        else:
            model = found.kind.from_pretrained(expanded(path), config=found.config, **given)  # type: ignore[attr-defined]
    return model if peft is None else _with_adapters(model, peft)


def _from_config(found: _Model, given: Mapping[str, Any]) -> Any:
    """Return the model with random weights."""
    if found.auto is found.kind:
        return found.kind._from_config(found.config, **given)
    return found.auto.from_config(found.config, **given)


@contextmanager
def _as_unsupported(attn_implementation: str | None) -> Iterator[None]:
    """Raise :class:`Unsupported` where a model does not have an implementation of attention."""
    try:
        yield
    except (ValueError, ImportError) as error:
        text = str(error)
        if attn_implementation is None or "attention" not in text.lower():
            raise
        reason = text.strip().partition("\n")[0].partition(". ")[0]
        raise Unsupported(f"model.attn_implementation={attn_implementation}: {reason}") from None


def _with_adapters(model: torch.nn.Module, node: Mapping[str, Any]) -> torch.nn.Module:
    """Return the model with the adapters of peft; imports peft, after the packages that it imports itself."""
    peft = package("peft", "peft")
    arguments = dict(node)
    target = str(arguments.pop("_target_", None))
    module_name, _, name = target.rpartition(".")
    try:
        made = getattr(import_module(module_name), name)
    except (ImportError, ValueError, AttributeError):
        configs = [f"peft.{one}" for one in vars(peft) if one.endswith("Config") and one != "PeftConfig"]
        raise UserError([choice_problem("model.peft._target_", target, "configuration of peft", configs)]) from None
    check_names_of_arguments("model.peft", arguments, made, target)
    try:
        adapted: torch.nn.Module = peft.get_peft_model(model, made(**arguments))
    except (TypeError, ValueError) as error:
        reason = f"does not fit {type(model).__name__}: {str(error).rstrip('.')}."
        raise UserError([Problem("model.peft", target, reason)]) from None
    return adapted


def inputs(  # noqa: PLR0913, PLR0917  # one argument for each setting of conf/model/transformers.yaml
    architecture: str | None,
    path: str | None,
    task: str | None,
    sizes: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    attn_implementation: str | None = None,
    peft: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
) -> ModelInputs:
    """Return the description of the model's inputs, as its configuration and the signature of its forward tell them.

    Args:
        architecture, path, task, config, arguments, dtype, attn_implementation, peft: as of :func:`build`; they are checked, for
            which the model may be built on the meta device.
        sizes: the config's ``inputs``.
        generation: the config's ``generation`` in mode=generation; its prompt is the text that the model, or its encoder, is given.

    Raises:
        UserError: a size, an argument of the generation or another setting is not one of this model.
        Unsupported: the model does not have this implementation of attention, or its package is not installed.
    """
    found = _model(architecture, path, task, dict(config or {}))
    if dtype is not None:
        known_name("model.dtype", dtype, DTYPES, "data type of weights")
    given: dict[str, Any] = {}
    if attn_implementation is not None:
        attentions = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS.valid_keys()
        if "/" not in attn_implementation:  # a kernel of the hub
            known_name("model.attn_implementation", attn_implementation, {"eager", *attentions}, "kind of attention")
        given["attn_implementation"] = attn_implementation
    if arguments and path is None:
        check_arguments(arguments, lambda: _from_config(found, arguments), found.kind.__module__)
    if given or peft is not None:
        with _as_unsupported(attn_implementation), import_module("torch").device("meta"):
            model = _from_config(found, given)
            if peft is not None:
                _with_adapters(model, peft)
    length = None if generation is None else generation.get("prompt_length")
    if length is not None:
        if sizes.get("sequence_length", length) != length:
            allowed = f"differs from generation.prompt_length={length}: give only one of the two."
            raise UserError([Problem("inputs.sequence_length", sizes["sequence_length"], allowed)])
        sizes = {**sizes, "sequence_length": length}
    description = _Description(found, sizes)
    described = description.inputs(is_prompt=generation is not None)
    if generation is not None:
        description.check_generation(generation)
    saved = {} if path is None else _saved_processor(user_path(path))
    if isinstance(saved.get("sampling_rate"), int):
        described = replace(described, sampling_rate=saved["sampling_rate"])
    images = _preprocessing(saved, described)
    if images is None and ("image_mean" in saved or "do_resize" in saved):
        return replace(described, no_images="the saved processor is not described here")
    return replace(described, images=images)


def _saved_processor(folder: Path) -> Mapping[str, Any]:
    """Return the settings of the processor of images or audio that is saved with a model; an empty mapping if there is none."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        with suppress(OSError, ValueError):
            settings = json.loads((folder / name).read_text(encoding="utf-8"))
            for part in ("image_processor", "feature_extractor"):
                settings = settings.get(part, settings)
            if isinstance(settings, dict):
                return settings
    return {}


def _preprocessing(settings: Mapping[str, Any], described: ModelInputs) -> ImagePreprocessing | None:
    """Return how a saved processor prepares pictures; None if it does something that is not described here."""
    shape = described.inputs["pixel_values"].shape if "pixel_values" in described.inputs else ()
    size = settings.get("size")
    if len(shape) != 3 or not isinstance(size, dict) or settings.get("do_pad") or not settings.get("do_resize", True):
        return None
    channels, height, width = shape
    shorter = None
    if settings.get("do_center_crop") and "shortest_edge" in size:
        cropped = (settings.get("crop_size") or {}).get("height")
        if cropped:
            shorter = round(size["shortest_edge"] * height / cropped)
    elif not {"height", "width"} <= set(size):
        return None
    scale, mean, std = 1.0, (0.0,), (1.0,)
    if settings.get("do_rescale", True):
        scale = float(settings.get("rescale_factor", 1 / 255))
    if settings.get("do_normalize", True) and settings.get("image_mean") is not None:
        mean, std = tuple(settings["image_mean"]), tuple(settings["image_std"])
    interpolation = INTERPOLATIONS[settings.get("resample", 2)]
    return ImagePreprocessing(height, width, channels, shorter, interpolation, scale, mean, std)


class _Description:
    """Collects the inputs of a model, one kind after the other."""

    def __init__(self, model: _Model, sizes: Mapping[str, Any]) -> None:
        self._config, self._kind, self._sizes = model.config, model.kind, sizes
        self._arguments = inspect.signature(model.kind.forward).parameters
        self._text = getattr(model.config, "text_config", None) or model.config.get_text_config(decoder=False)
        self._specs: dict[str, ArraySpec] = {}
        self._used: dict[str, int] = {}
        self._longest: int | None = None
        self._unit, self._units = "samples", 1.0

    def inputs(self, is_prompt: bool = False) -> ModelInputs:
        """Return the description.

        Args:
            is_prompt: whether ``sequence_length`` may have been given as the length of a prompt.

        Raises:
            UserError: a size is not one of this model, or the model takes something else than text, images and audio.
        """
        main = str(getattr(self._kind, "main_input_name", "input_ids"))
        if "pixel_values" in self._arguments:
            self._add_images()
        if main in ("input_features", "input_values"):
            self._add_audio(main)
        elif "input_ids" in self._arguments and main != "pixel_values_videos":
            self._add_text()
        if self._config.is_encoder_decoder and "decoder_input_ids" in self._arguments:
            length = self._size("decoder_length", DECODER_LENGTH)
            self._specs["decoder_input_ids"] = self._ids(length)
            if self._unit == "tokens":
                self._units += length
        if is_prompt and "sequence_length" in self._sizes and "sequence_length" not in self._used:
            sizes = ", ".join(f"inputs.{name}" for name in self._used)
            allowed = f"has no effect: the prompt of {self._kind.__name__} is {main}. Set its sizes: {sizes}."
            raise UserError([Problem("generation.prompt_length", self._sizes["sequence_length"], allowed)])
        check_sizes(self._sizes, self._used)
        if not self._specs:
            noun = f"the inputs of {self._kind.__name__}, which begin with {main}"
            raise UserError([Problem("dataset", "auto", f"has no description of {noun}: name a dataset.")])
        axis = vocabulary = rate = None
        if "pixel_values" in self._specs:
            axis = len(self._specs["pixel_values"].shape) - 2
        if any(name.endswith("input_ids") for name in self._specs):
            vocabulary = self._vocabulary()
        if self._unit == "seconds of audio":
            rate = _first(self._config, "sampling_rate") or 16000
        return ModelInputs(
            self._specs,
            "keywords",
            self._targets(),
            axis,
            self._unit,
            self._units,
            self._used,
            targets_argument="labels" if "labels" in self._arguments else None,
            vocabulary=vocabulary,
            sampling_rate=rate,
        )

    def _vocabulary(self) -> int | None:
        return _first(self._text, "vocab_size") or _first(self._config, "vocab_size")

    def check_generation(self, generation: Mapping[str, Any]) -> None:
        """Raise :class:`UserError` for a model without ``generate``, for unknown arguments, and for too many tokens."""
        if generation.get("function") is not None:
            return
        check_generate(self._kind, {name: value for name, value in generation.items() if name not in OWN_KEYS})
        is_decoder = not self._config.is_encoder_decoder and "input_ids" in self._specs
        if not is_decoder or self._longest is None:
            return
        new_tokens, prompt = generation.get("new_tokens", NEW_TOKENS), self._used["sequence_length"]
        if prompt + new_tokens - 1 > self._longest:  # the last token is not read
            limit = (
                f"and a prompt of {prompt} are above the longest sequence of this model: "
                f"model.config.max_position_embeddings={self._longest}."
            )
            raise UserError([Problem("generation.new_tokens", new_tokens, limit)])

    def _size(self, name: str, default: int) -> int:
        self._used[name] = size(self._sizes, name, default)
        return self._used[name]

    def _add_text(self) -> None:
        longest = _first(self._text, "max_position_embeddings", "n_positions", "max_length_positions")
        length = self._size("sequence_length", min(SEQUENCE_LENGTH, longest or SEQUENCE_LENGTH))
        is_relative = any(hasattr(self._text, name) for name in ("rope_parameters", "rope_theta", "rope_scaling"))
        if not is_relative:
            self._longest = longest
            if longest is not None and length > longest:
                limit = f"is above the longest sequence of this model: model.config.max_position_embeddings={longest}."
                raise UserError([Problem("inputs.sequence_length", length, limit)])
        self._specs = {"input_ids": self._ids(length), **self._specs}
        if "attention_mask" in self._arguments:
            self._specs["attention_mask"] = ArraySpec((length,), "int64", low=1)
        if "bbox" in self._arguments:
            self._specs["bbox"] = ArraySpec((length, 4), "int64", low=1)
        if "pixel_values" not in self._specs:
            self._unit, self._units = "tokens", length

    def _ids(self, length: int) -> ArraySpec:
        return ArraySpec((length,), "int64", high=self._vocabulary())

    def _add_images(self) -> None:
        vision = getattr(self._config, "vision_config", None) or self._config
        side = _first(vision, "image_size") or _first(self._config, "image_size") or IMAGE_SIZE
        image_size = self._size("image_size", side)
        channels = _first(vision, "num_channels", "in_channels") or 3
        frames = _first(vision, "num_frames")
        shape: tuple[int, ...] = (channels, image_size, image_size)
        if frames is not None:
            shape = (self._size("frames", frames), *shape)
        self._specs["pixel_values"] = ArraySpec(shape)
        self._unit, self._units = "images", 1

    def _add_audio(self, name: str) -> None:
        encoder = getattr(self._config, "audio_config", None) or self._config
        bins = _first(encoder, "num_mel_bins")
        self._unit = "seconds of audio"
        if name == "input_values" and (bins is None or hasattr(encoder, "conv_stride")):
            rate = _first(self._config, "sampling_rate") or 16000
            samples = self._size("audio_samples", rate)
            self._specs[name] = ArraySpec((samples,))
            self._units = samples / rate
            return
        longest = _first(encoder, "max_source_positions", "max_length")
        default = longest or 1024
        if name == "input_features":
            default = 2 * (longest or 1500)
        frames = self._size("audio_frames", default)
        if self._config.model_type == "whisper" and longest is not None and frames != 2 * longest:
            fixed = f"is not the length that this model takes: 2 · model.config.max_source_positions = {2 * longest}."
            raise UserError([Problem("inputs.audio_frames", frames, fixed)])
        mels = bins or _first(encoder, "input_feat_per_channel", "feature_size") or 80
        is_frames_last = name == "input_features" and not hasattr(encoder, "input_feat_per_channel")
        self._specs[name] = ArraySpec((mels, frames) if is_frames_last else (frames, mels))
        self._units = frames / 100

    def _targets(self) -> ArraySpec | None:
        head = self._kind.__name__.partition("For")[2]
        labels = int(getattr(self._config, "num_labels", 2) or 2)
        if head in ("SequenceClassification", "ImageClassification", "AudioClassification", "VideoClassification"):
            return ArraySpec((), "int64", high=labels)
        if head == "TokenClassification":
            return ArraySpec(self._specs["input_ids"].shape, "int64", high=labels)
        if head in ("MaskedLM", "CausalLM") or self._kind.__name__.endswith("LMHeadModel"):
            return self._specs.get("input_ids")
        if "decoder_input_ids" in self._specs and head:
            return self._specs["decoder_input_ids"]
        return None


def _first(config: Any, *names: str) -> int | None:
    """Return the first of some settings that a configuration has; of a pair, such as height and width, the larger."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, list | tuple) and value and all(isinstance(one, int) for one in value):
            return int(max(value))
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
