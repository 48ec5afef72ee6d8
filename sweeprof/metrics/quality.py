"""The quality of a model: built-in metrics, the agreement of the outputs of two backends, and metrics that a config names."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sweeprof.errors import Problem, UserError, choice_problem, nearest, target_advice
from sweeprof.metrics.evaluate import checked, raised
from sweeprof.metrics.metric import Estimate, Metric, Missing, Result, Selected, builtin_metrics, metric
from sweeprof.model_sources.torchvision import import_torchvision
from sweeprof.model_sources.transformers import import_transformers
from sweeprof.nested import array_of, mapped, named_leaves
from sweeprof.passes.quality import (
    Array,
    NumberSums,
    Quality,
    compared_outputs,
    first_target,
    in_shape_of,
    incomparable,
    main_name,
    pairs_of_outputs,
)
from sweeprof.paths import user_path
from sweeprof.results.measurement import Better, Measurement, MetricInfo
from sweeprof.results.record import Failure, Json, Record
from sweeprof.targets import instantiate

NO_LABELS = "the dataset has no labels"
MOST_NATS = 700
"""e to the power of more is too large for a floating-point number."""


@metric(name="quality/accuracy", unit="ratio", better="higher")
def accuracy(quality: Quality) -> Result:
    """Share of the test split whose most likely class is the true one, over all samples."""
    return _top(quality, 1)


@metric(name="quality/error", unit="ratio", better="lower")
def error(quality: Quality) -> Result:
    """Share of the test split whose most likely class is not the true one, over all samples."""
    share = _top(quality, 1)
    if isinstance(share, Missing):
        return share
    return 1 - share


@metric(name="quality/top5", unit="ratio", better="higher")
def top5(quality: Quality) -> Result:
    """Share of the test split whose true class is among the five most likely, over all samples."""
    return _top(quality, 5)


@metric(name="quality/topk", unit="ratio", better="higher")
def topk(quality: Quality, k: int = 1) -> Result:
    """Share of the test split whose true class is among the k most likely, over all samples."""
    return _top(quality, k)


@metric(name="quality/loss", unit="nat", better="lower")
def loss(quality: Quality) -> Missing | float:
    """Cross-entropy of the outputs taken as logits: its mean over all samples, tokens or pixels of the test split."""
    counts = _rank_counts(quality)
    if isinstance(counts, Missing):
        return counts
    rows = sum(counts.values())
    if quality.loss_sum is None or not rows:
        return Missing("outputs are not finite")
    return quality.loss_sum / rows


@metric(name="quality/perplexity", unit="ratio", better="lower")
def perplexity(quality: Quality) -> Result:
    """E to the power of the mean cross-entropy per token."""
    nats: Missing | float = loss.function(quality)
    if isinstance(nats, Missing):
        return nats
    if nats >= MOST_NATS:
        return Missing(f"the loss of {nats:.0f} nats is too large for a power of e")
    return math.exp(nats)


@metric(name="quality/miou", unit="ratio", better="higher")
def miou(quality: Quality) -> Result:
    """Intersection over union of predicted and true pixels or tokens, its mean over the classes that occur in either."""
    if quality.confusion is None:
        counts = _rank_counts(quality)
        if isinstance(counts, Missing):
            return counts
        return Missing("the targets are not one class per pixel or token")
    right, predicted, true = np.array(quality.confusion, np.float64)
    union = predicted + true - right
    if not union.any():
        return Missing("there are no samples")
    return float((right[union > 0] / union[union > 0]).mean())


@metric(name="quality/mse", unit="abs", better="lower")
def mse(quality: Quality) -> Result:
    """Mean squared error of outputs that are numbers."""
    sums = _numbers(quality)
    if isinstance(sums, Missing):
        return sums
    return float(np.mean(sums.squared_errors) / sums.samples)


@metric(name="quality/mae", unit="abs", better="lower")
def mae(quality: Quality) -> Result:
    """Mean absolute error of outputs that are numbers."""
    sums = _numbers(quality)
    if isinstance(sums, Missing):
        return sums
    return float(np.mean(sums.absolute_errors) / sums.samples)


@metric(name="quality/r2", unit="ratio", better="higher")
def r2(quality: Quality) -> Result:
    """1 - (squared errors) / (squared deviations of the targets from their mean); the mean over several outputs."""
    sums = _numbers(quality)
    if isinstance(sums, Missing):
        return sums
    deviations = np.array(sums.squared_deviations)
    rounding = 1e-12 * np.array(sums.mean_targets)
    if (deviations <= sums.samples * rounding**2).any():
        return Missing("an output has the same target for every sample")
    return float((1 - np.array(sums.squared_errors) / deviations).mean())


def _numbers(quality: Quality) -> NumberSums | Missing:
    sums = quality.numbers
    if sums is None:
        return Missing("the targets are not numbers of the outputs' shape" if quality.is_labelled else NO_LABELS)
    if not all(map(math.isfinite, sums.squared_errors)):
        return Missing("outputs or targets are not finite")
    return sums


def _top(quality: Quality, k: int) -> Missing | float:
    counts = _rank_counts(quality)
    if isinstance(counts, Missing):
        return counts
    rows = sum(counts.values())
    if not rows:
        return Missing("there are no samples")
    return sum(count for rank, count in counts.items() if rank < k) / rows


def _rank_counts(quality: Quality) -> Mapping[int, int] | Missing:
    """Return how many samples, tokens or pixels have each rank of the true class."""
    if quality.ranks is not None:
        return Counter(quality.ranks)
    if quality.rank_counts is not None:
        return {int(rank): count for rank, count in quality.rank_counts.items()}
    if not quality.is_labelled:
        reason = NO_LABELS
    elif quality.unknown_class is not None:
        reason = quality.unknown_class
    elif quality.predictions is None and (quality.numbers is None or quality.outputs.ndim < 2):
        reason = "the outputs are not one row of class scores per sample"
    else:
        reason = "the targets are not one class per sample, token or pixel"
        if quality.numbers is not None:
            reason += "; of numbers there are quality/mse, quality/mae and quality/r2"
    return Missing(reason)


@metric(name="quality/agreement", unit="abs", better="lower")
def agreement(quality: Quality, baseline_quality: Quality) -> Result:
    """Largest absolute difference of the outputs to the baseline's on the same inputs."""
    problem = incomparable(quality, baseline_quality)
    if problem is not None:
        return Missing(f"outputs cannot be compared: {problem}")
    difference = largest = 0.0
    for _, own, base in pairs_of_outputs(quality, baseline_quality):
        if not np.isfinite(own).all() or not np.isfinite(base).all():
            return Missing("outputs are not finite")
        difference = max(difference, float(np.abs(own.astype(np.float64) - base.astype(np.float64)).max(initial=0)))
        largest = max(largest, float(np.abs(base).max(initial=0)))
    return Estimate(difference, "exact", detail={"largest output": largest})


# Texts: the decoding of logits, for metrics of texts.


def greedy_ctc(scores: npt.NDArray[Any], blank: int) -> list[list[int]]:
    """Return the ids of each sequence by greedy decoding of connectionist temporal classification.

    The best id of each frame is taken; repeats of an id in successive frames become one, then blanks are dropped.

    Args:
        scores: ``(batch, frames, ids)``.
        blank: the id of "no character", which separates repeats.
    """
    decoded = []
    for best in scores.argmax(axis=-1):
        is_first = np.append(True, best[1:] != best[:-1])
        decoded.append(best[is_first & (best != blank)].tolist())
    return decoded


def decoded(outputs: npt.NDArray[Any], targets: npt.NDArray[Any], folder: str) -> tuple[list[str], list[str]]:
    """Return the texts that the tokenizer of a folder reads in logits and in target ids.

    A tokenizer for connectionist temporal classification (of Wav2Vec2 and the like) decodes greedily, with the padding as blank;
    any other takes the best id of every position. Negative targets and padding are dropped.

    Args:
        outputs: ``(batch, positions, ids)``.
        targets: ``(batch, length)``.
        folder: of a tokenizer or processor that transformers has saved.

    Raises:
        UserError: it is not such a folder, or the outputs are not logits.
    """
    path = user_path(folder)
    if not path.is_dir():
        raise UserError([Problem("decode", folder, "is not a folder of a tokenizer or processor.")])
    try:
        tokenizer = import_transformers().AutoTokenizer.from_pretrained(str(path))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError([Problem("decode", folder, f"is not a folder of a tokenizer or processor: {reason}")]) from None
    if outputs.ndim != 3 or targets.ndim != 2:
        shapes = f"outputs {outputs.shape} and targets {targets.shape}"
        needed = f"decodes outputs (batch, positions, ids) and targets (batch, length), not {shapes}."
        raise UserError([Problem("decode", folder, needed)])
    pad = -1 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
    labels = [row[(row >= 0) & (row != pad)].astype(int).tolist() for row in targets]
    if "CTC" in type(tokenizer).__name__:
        ids = greedy_ctc(outputs, pad)
        decode = partial(tokenizer.decode, group_tokens=False)
    else:
        ids = outputs.argmax(axis=-1).tolist()
        decode = partial(tokenizer.decode, skip_special_tokens=True)
    return list(map(decode, ids)), list(map(decode, labels))


# Metrics of quality that a config names: ``quality.f1._target_=torchmetrics.classification.MulticlassF1Score``.


SETTINGS = ("output", "target", "argmax", "decode", "better")
"""Keys of a metric that sweeprof reads itself; the others are arguments of the class or function."""
ALL = "all"
"""As the output or the target: all of them."""
MOST_NUMBERS = 64
"""Numbers that one metric may compute."""
SCORE = "quality/score"
"""The target of such a metric in a plan, which has its ``name``."""
_NAME = re.compile(r"[A-Za-z]\w{0,59}")


def problems_of(nodes: object) -> list[Problem]:
    """Return the problems of the metrics under ``quality`` in a config, or of those that a caller gives; imports nothing.

    A caller may give an object or a function as ``_target_``. :data:`sweeprof.config.schema.KEYS` has what a mapping in a config is
    checked for.
    """
    problems = []
    for name, node in nodes.items() if isinstance(nodes, Mapping) else ():
        key = f"quality.{name}"
        if not _NAME.fullmatch(str(name)):
            allowed = "is not a name: up to 60 letters, digits and '_', a letter first."
            problems.append(Problem("quality", name, allowed))
        elif f"quality/{name}" in builtin_metrics():
            problems.append(Problem(key, name, "is the name of a metric of sweeprof: choose another one."))
        elif isinstance(node, Mapping) and node.get("_target_") is not None:
            problems += _problems_of_node(key, node)
        else:
            advice = target_advice(key, node)
            if advice is None:
                problems.append(Problem(f"{key}._target_", None, "is missing: it must name a class or function."))
            else:
                problems.append(Problem(key, node, f"is not a mapping; {advice}"))
    return problems


def _problems_of_node(key: str, node: Mapping[str, Any]) -> list[Problem]:
    if "better" in node and node["better"] not in ("lower", "higher", None):
        return [choice_problem(f"{key}.better", node["better"], "direction", ("lower", "higher", "null"))]
    argmax = node.get("argmax", False)
    if not isinstance(argmax, bool):
        return [Problem(f"{key}.argmax", argmax, "is not true or false.")]
    if argmax and ALL in (node.get("output"), node.get("target")):
        return [Problem(f"{key}.argmax", True, "needs one output and one target, not all of them.")]
    target = node["_target_"]
    if isinstance(target, str):
        return []
    unknown = [setting for setting in node if setting not in ("_target_", *SETTINGS)]
    problems = [choice_problem(key, setting, "setting", SETTINGS) for setting in unknown]
    if isinstance(target, type) or not (_is_accumulating(target) or callable(target)):
        allowed = "is neither an object with update and compute, nor a function of outputs and targets, nor a mapping."
        problems.append(Problem(key, target, allowed))
    return problems


def _is_accumulating(metric: object) -> bool:
    """Return True for an object with the methods update and compute."""
    return callable(getattr(metric, "update", None)) and callable(getattr(metric, "compute", None))


def import_torchmetrics() -> None:
    """Import torchmetrics after the torchvision that it imports where that is installed, and which may not fit this torch."""
    with suppress(UserError):  # it is not installed
        import_torchvision()
    import_module("torchmetrics")


def import_target(key: str, target: str) -> object:
    """Return the class or function of a dotted name.

    Raises:
        UserError: its module has no such name, or torchmetrics is not installed.
    """
    if target.partition(".")[0] == "torchmetrics":
        if find_spec("torchmetrics") is None:
            needed = "needs the package torchmetrics: pip install 'sweeprof[torchmetrics]'."
            raise UserError([Problem(key, target, needed)])
        import_torchmetrics()
    module_name, _, name = target.rpartition(".")
    module = import_module(module_name)
    if not hasattr(module, name):
        known = [known for known in dir(module) if not known.startswith("_")]
        missing = f"cannot be imported: {module_name} has no '{name}'."
        raise UserError([Problem(key, target, missing, nearest(name, known))])
    return getattr(module, name)


@dataclass(slots=True)
class QualityScore:
    """One metric of quality, while batches are added."""

    name: str
    metric: Any
    """An object with ``update`` and ``compute``, or a function of all outputs and targets."""
    output: str | None = None
    """Name of the output that is scored, or ``all``; None: the one called ``logits``, otherwise the first."""
    target: str | None = None
    """Name of the target that it is compared with, or ``all``; None: the first."""
    argmax: bool = False
    """True: the metric gets the most likely class instead of the scores of all classes."""
    decode: Callable[..., Any] | None = None
    """Returns what the metric is updated with, from outputs and targets of a batch."""
    better: Better = None
    unit: Literal["ratio", "abs"] = "abs"
    _batches: list[tuple[Any, Any]] = field(default_factory=list)
    """What a function will be called with."""
    _problem: Missing | None = None

    def add(self, outputs: Mapping[str, Array], targets: Any) -> None:
        """Add the outputs and targets of a batch; after an error there is no value, and the reason is in the results."""
        if self._problem is not None:
            return
        is_function = not hasattr(self.metric, "update")
        if targets is None and not is_function:
            self._problem = Missing(NO_LABELS)
            return
        try:
            chosen, given = self._chosen(outputs, targets)
            if is_function:
                self._batches.append((chosen, given))
            elif _is_torchmetrics(self.metric):
                self.metric.update(mapped(chosen, _tensor), mapped(given, _tensor))
            else:
                self.metric.update(chosen, given)
        except Exception as error:  # a user's metric must not take the others with it
            self._problem = raised(error)

    def _chosen(self, outputs: Mapping[str, Array], targets: Any) -> tuple[Any, Any]:
        """Return the selected outputs and targets of a batch in the form that the metric takes."""
        chosen: Any
        name = self.output or ""
        if self.output == ALL:
            chosen = _all_of(outputs)
        elif self.output is None or "" in outputs:  # the only output may have no name
            compared = compared_outputs(outputs)
            name = main_name(compared)
            chosen = compared[name]
        elif self.output in outputs:
            chosen = outputs[self.output]
        else:
            known = (*outputs, ALL)
            raise UserError([choice_problem(f"quality.{self.name}.output", self.output, "output of the model", known)])
        given = targets
        if targets is not None and self.target is None:
            given = first_target(targets, name)
        elif targets is not None and self.target != ALL:
            named = named_leaves(targets)
            if self.target not in named:
                key, known = f"quality.{self.name}.target", (*filter(None, named), ALL)
                raise UserError([choice_problem(key, self.target, "target of the dataset", known)])
            given = named[self.target]
        if self.decode is not None:
            chosen, given = self.decode(chosen, given)
        elif isinstance(chosen, np.ndarray) and isinstance(given, np.ndarray):
            chosen, given = _fitting(chosen, given, self.metric, self.argmax)
        elif isinstance(chosen, np.ndarray) and self.argmax:
            chosen = chosen.argmax(axis=-1)
        return chosen, given

    def results(self) -> Mapping[str, Json]:
        """Return the value, or the reason why there is none, of each number that the metric computes."""
        found: Mapping[str, object] = {self.name: self._problem}
        if self._problem is None:
            try:
                found = _named_numbers(self.name, self._computed())
            except Exception as error:  # as of a batch
                found = {self.name: raised(error)}
        stored: dict[str, Json] = {}
        for name, number in found.items():
            result = checked(number)
            stored[name] = {"value": None, "better": self.better, "unit": self.unit}
            if isinstance(result, Estimate):
                stored[name]["value"] = float(result.value)
            else:
                failure = None if result.failure is None else dataclasses.asdict(result.failure)
                stored[name].update(reason=result.reason, failure=failure)
        return stored

    def _computed(self) -> object:
        if hasattr(self.metric, "update"):
            return self.metric.compute()
        outputs, targets = zip(*self._batches, strict=True)
        return self.metric(_joined(outputs), _joined(targets))


def _all_of(outputs: Mapping[str, Array]) -> Any:
    """Return all outputs by name, or a list of mappings where the model returned one for each sample; an only output is alone."""
    if "" in outputs:
        return outputs[""]
    samples: dict[str, dict[str, Array]] = {}
    for path, array in outputs.items():
        number, _, name = path.partition(".")
        if not number.isdigit() or not name or name[0].isdigit():
            return dict(outputs)
        samples.setdefault(number, {})[name] = array
    return list(samples.values())


def _joined(batches: Sequence[Any]) -> Any:
    """Return the batches as one; raise ValueError if their shapes or names differ."""
    first = batches[0]
    if first is None:
        return None
    if isinstance(first, list):  # of samples
        return list(itertools.chain.from_iterable(batches))
    reason = "the batches have different {}: use a class with update(outputs, targets) and compute()"
    if isinstance(first, Mapping):
        if any(batch.keys() != first.keys() for batch in batches):
            raise ValueError(reason.format("names"))
        return {name: _joined([batch[name] for batch in batches]) for name in first}
    if isinstance(first, tuple):
        return tuple(map(_joined, zip(*batches, strict=True)))
    if len({batch.shape[1:] for batch in batches}) > 1:
        raise ValueError(reason.format("shapes"))
    return np.concatenate(batches) if first.ndim else np.stack(batches)


def _fitting(outputs: Array, targets: Array, metric: object, argmax: bool) -> tuple[Array, Array]:
    """Return outputs and targets in the form that metrics of classes or numbers take them in.

    Outputs get the shape of the targets where :func:`in_shape_of` can give it; class indices ``(n, 1)`` become ``(n,)``. Of class
    scores with the classes last, ``argmax`` takes the best; metrics of ``torchmetrics.classification`` take the classes as second
    axis.
    """
    if targets.shape == (len(outputs), 1) and targets.dtype.kind in "iub" and outputs.ndim == 2:
        targets = targets[:, 0]
    if argmax and outputs.shape == targets.shape and outputs.ndim > 1:  # one-hot targets
        return outputs.argmax(axis=-1), targets.argmax(axis=-1)
    fitted = in_shape_of(outputs, targets)
    if fitted is not None:
        if argmax:
            fitted = fitted > 0
        return fitted, targets
    is_last = targets.shape == outputs.shape[:-1]
    if argmax:
        outputs = outputs.argmax(axis=-1 if is_last else 1)
    elif is_last and type(metric).__module__.startswith("torchmetrics.classification"):
        outputs = np.moveaxis(outputs, -1, 1)
    return outputs, targets


def _is_torchmetrics(metric: object) -> bool:
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(metric, torchmetrics.Metric | torchmetrics.MetricCollection)


def _tensor(values: Any) -> Any:
    """Return an array as a tensor of torch, whole numbers as int64; texts as they are."""
    if not isinstance(values, np.ndarray):
        return values
    torch: Any = sys.modules["torch"]  # which torchmetrics has imported
    if values.dtype.kind in "iu":
        values = values.astype(np.int64)
    return torch.from_numpy(np.array(values))


def _named_numbers(name: str, computed: object) -> dict[str, object]:
    """Return the computed numbers by name: one, or a mapping or vector of several; raise ValueError for anything else."""
    if isinstance(computed, Estimate | Missing):
        return {name: computed}
    found: dict[str, object] = {}
    if isinstance(computed, Mapping):
        for key, value in computed.items():
            part = re.sub(r"[^A-Za-z0-9_.-]", "_", str(key))
            found |= _named_numbers(f"{name}.{part}", value)
    else:
        array = array_of(computed)
        if array.ndim > 1 and array.size > 1:
            raise ValueError(f"the metric computes numbers of shape {array.shape}, not one, a vector or a mapping")
        if array.dtype.kind not in "iufb":
            raise TypeError(f"the metric computes {computed!r}, which is not a number")
        if array.size == 1:
            return {name: array.item()}
        for place, value in enumerate(array.reshape(-1).tolist()):
            found[f"{name}.{place}"] = value
    if len(found) > MOST_NUMBERS:
        raise ValueError(f"the metric computes {len(found)} numbers: at most {MOST_NUMBERS} are kept")
    return found


def check_named(metrics: Mapping[str, object]) -> None:
    """Raise :class:`UserError` for metrics of quality that a caller gives in a wrong form, or by the name of another metric."""
    problems = problems_of({name: _node_of(metric) for name, metric in metrics.items()})
    if problems:
        raise UserError(problems)


def _node_of(metric: object) -> Mapping[str, Any]:
    """Return a metric of quality in the form that a config has, in which ``_target_`` may also be an object or a function."""
    return metric if isinstance(metric, Mapping) else {"_target_": metric}


def output_scores(metrics: Mapping[str, object], device: str, dataset: object) -> list[QualityScore]:
    """Return the metrics of quality that a config names or a caller gives, ready for a first batch; a caller's objects are copied.

    Args:
        metrics: those that :func:`problems_of` or :func:`check_named` have checked.
        device: passed to functions that have a parameter ``device``.
        dataset: its attribute ``transform`` is passed to functions that have a parameter of this name.

    Raises:
        UserError: one of them cannot be made; names its key.
    """
    scores = []
    for name, given in metrics.items():
        key, node = f"quality.{name}", _node_of(given)
        metric = node["_target_"]
        if isinstance(metric, str):
            settings = {setting: value for setting, value in node.items() if setting not in SETTINGS}
            metric = _made(key, settings, device, dataset)
        elif hasattr(metric, "update"):
            metric = copy.deepcopy(metric)
        decode = node.get("decode")
        if isinstance(decode, str):
            decode = partial(decoded, folder=decode)
        elif decode is not None:
            if not isinstance(decode, Mapping) or not isinstance(decode.get("_target_"), str):
                needed = "is neither the folder of a tokenizer nor the _target_ of a function of outputs and targets."
                raise UserError([Problem(f"{key}.decode", decode, needed)])
            decode = _made(f"{key}.decode", decode, device, dataset)
        score = QualityScore(name, metric, argmax=node.get("argmax", False), decode=decode)
        if node.get("output") is not None:
            score.output = str(node["output"])
        if node.get("target") is not None:
            score.target = str(node["target"])
        # Without a direction in the node, torchmetrics may know it; it also knows the bounds of a ratio.
        if "better" in node:
            score.better = node["better"]
        elif getattr(metric, "higher_is_better", None) in (True, False):  # also those of numpy
            score.better = "higher" if metric.higher_is_better else "lower"
        if (getattr(metric, "plot_lower_bound", None), getattr(metric, "plot_upper_bound", None)) == (0.0, 1.0):
            score.unit = "ratio"
        scores.append(score)
    return scores


def _made(key: str, node: Mapping[str, Any], device: str, dataset: object) -> Any:
    """Return the object of a class, or a function with its options bound."""
    target = str(node["_target_"])
    try:
        found: Any = import_target(f"{key}._target_", target)
        if inspect.isclass(found):
            made = instantiate(node)
            if not _is_accumulating(made):
                raise TypeError("its objects have no methods update(outputs, targets) and compute()")
            return made
        parameters = inspect.signature(found).parameters
        options = {name: value for name, value in node.items() if name != "_target_"}
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
            unknown = [name for name in options if name not in parameters]
            if unknown:
                raise UserError([choice_problem(key, name, f"argument of {target}", [*parameters]) for name in unknown])
        if "device" in parameters:
            options.setdefault("device", device)
        if "transform" in parameters and "transform" not in options:
            if not hasattr(dataset, "transform"):
                raise AttributeError(
                    f"it asks for a transform, and {type(dataset).__name__} has no attribute of this name"
                )
            options["transform"] = dataset.transform
        return partial(found, **options)
    except UserError:
        raise
    except Exception as error:  # importing or making a user's metric may raise anything
        cause = error.__cause__ or error
        raise UserError([Problem(f"{key}._target_", target, f"cannot be made: {cause}".rstrip(".") + ".")]) from error


def entries_of(nodes: Iterable[str]) -> list[Json]:
    """Return the entries of a metric set for metrics of quality with these names."""
    return [{"_target_": SCORE, "name": name} for name in dict.fromkeys(nodes)]


def score_metric(name: str) -> Metric:
    """Return the metric that reads the score ``name`` from the result of the pass over the test split."""

    def scored(quality: Quality) -> Estimate | Missing:
        found = quality.scores.get(name)
        if found is None:
            parts = [f"quality/{part}" for part in quality.scores if part.startswith(f"{name}.")]
            if parts:
                return Missing(f"it has several values: {', '.join(parts)}")
            return Missing("it was not computed for this combination")
        if found.value is None:
            failure = None if found.failure is None else Failure(**found.failure)
            return Missing(found.reason or "no reason was given", failure)
        return Estimate(found.value, "exact", unit=found.unit, better=found.better)

    definition = f"quality.{name} of the config, over all samples of the test split."
    return Metric(MetricInfo(f"quality/{name}", "abs", None, definition), scored, ("quality",), ())


def parts_of(selected: Sequence[Selected], records: Iterable[Record]) -> list[Selected]:
    """Return the metrics for the single values of the selected metrics of quality, as far as a combination has several."""
    names = set()
    for entry in selected:
        if entry.metric.function.__qualname__.startswith("score_metric."):
            names.add(entry.metric.info.name.removeprefix("quality/"))
    parts = []
    for record in records:
        if record.pass_name == "quality" and record.status == "ok" and record.observations:
            for part in record.observations.get("scores", {}):
                whole, dot, _ = part.partition(".")
                if dot and whole in names:
                    parts.append(Selected(score_metric(part)))
    return parts


def with_parts(
    infos: Sequence[MetricInfo], measured: Mapping[str, dict[str, Measurement]], scores: Iterable[str]
) -> tuple[list[MetricInfo], dict[str, dict[str, Measurement]]]:
    """Return the metrics with those of single values in place of the metric that has them, and all measurements of each.

    The direction and unit of a metric of quality are those of its values.

    Args:
        scores: names of the metrics of quality that the config names.
    """
    wanted = list(scores)
    found: list[MetricInfo] = []
    values: dict[str, dict[str, Measurement]] = {id: {} for id in measured}
    for info in infos:
        names: dict[str, list[Measurement]] = {info.name: []}  # with the measurements that have a value
        for own in measured.values():
            for name, measurement in own.items():
                if name == info.name or (info.name in wanted and name.startswith(f"{info.name}.")):
                    names.setdefault(name, [])
                    if measurement.value is not None:
                        names[name].append(measurement)
        if len(names) > 1 and not names[info.name]:
            del names[info.name]
        for name, known in names.items():
            described = dataclasses.replace(info, name=name)
            if info.name in wanted and known:
                described = dataclasses.replace(described, better=known[0].better, unit=known[0].unit)
            found.append(described)
            for id, own in measured.items():
                if name in own:
                    values[id][name] = own[name]
                    continue
                whole = own[info.name]  # of a combination that has other parts or none
                reason = whole.reason if whole.value is None else f"this combination has one value: {whole.name}"
                values[id][name] = Measurement(name, described.unit, described.better, None, reason)
    return found, values
