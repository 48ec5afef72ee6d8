"""Every config key, defined once: type, default, unit, constraint, help text and role.

The tree of dataclasses mirrors the config; :data:`KEYS` has all keys by their dotted names. Validation, the sets of keys that
planning uses, the main config, ``--help`` and ``docs/config.md`` are derived from it. To add a key, add a field here and, for a key
of a config group, its default to the files of the group.
"""

# ruff: noqa: RUF009  # `_key` and `_part` return dataclass fields

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, get_args

from sweeprof.backends import CompileMode, Compiler, MatmulPrecision, Precision, PrecisionMethod
from sweeprof.config import constraints as c
from sweeprof.config.constraints import LARGEST_SIZE, Constraint
from sweeprof.config.override_syntax import TOO_MANY_DIGITS, spelled
from sweeprof.credentials import redacted_address
from sweeprof.errors import Problem, nearest, target_advice
from sweeprof.measuring.training_config import LOSSES, OPTIMIZERS
from sweeprof.model_sources import NEW_TOKENS
from sweeprof.results.files import LARGEST
from sweeprof.results.layer_times import Mode
from sweeprof.results.record import LONGEST_S, MOST_ROUNDS, MOST_STEPS, STATUSES, Protocol

MOST_TOKENS, MOST_JOBS, MOST_COMBINATIONS = 10_000_000, 100_000, 100_000
LARGEST_SEED = 2**32 - 1
"""Of NumPy, and so of every framework."""


class Role(StrEnum):
    """The kind of decision that a top-level key, with all keys below it, makes."""

    IDENTITY = "identity"
    """Part of a combination's identity: it changes what is measured, and can be an axis."""
    SHAPE = "shape"
    """The combinations of a sweep."""
    COMPARISON = "comparison"
    """The baseline of the comparison, and how combinations are compared."""
    TRIAL = "trial"
    """The way trials are run; stored in the plan, and a resumed sweep may change it."""
    RUN = "run"
    """Other properties of the run: where it executes, where its results go."""


@dataclass(frozen=True, slots=True)
class Key:
    """One config key."""

    name: str
    """Dotted, as on the command line."""
    type: str
    default: object
    role: Role
    help: str
    constraint: Constraint | None = None
    unit: str | None = None
    is_part: bool = False
    """True if it is a mapping whose keys are also defined here."""
    is_group: bool = False
    """True if its value is chosen from a config group."""
    is_open: bool = False
    """True if the command line may add any key below it, as the arguments of a model."""
    has_target: bool = False
    """True if it is a mapping that names a class (``_target_``) with its arguments, so that it may have further keys."""
    is_column: bool = False
    """True if every table of a comparison has it as a column, even with a single value."""
    is_repeated: bool = False
    """True if the command that measures one combination again repeats it."""

    @property
    def is_mapping(self) -> bool:
        """True if its value is a mapping as a whole, with keys that the user chooses."""
        return self.type.startswith("dict[") and not self.is_group


def _key(default: object, help: str, constraint: Constraint | None = None, **options: Any) -> Any:
    """Return the field of a key; ``options`` are fields of :class:`Key`, and keys below a part have the role of the part."""
    metadata = {"help": help, "constraint": constraint, **options}
    if isinstance(default, dict | list):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _part(part: type, help: str, **options: Any) -> Any:
    """Return the field of a mapping whose keys are the fields of ``part``."""
    return dataclasses.field(default_factory=part, metadata={"help": help, "part": part, **options})


@dataclass
class ModelSettings:
    """A model: for each framework the class or function that builds it, with its arguments."""


@dataclass
class DatasetSettings:
    """A dataset: the class that reads or makes it, with its arguments."""


@dataclass
class BackendSettings:
    """A backend: its class, with the arguments that its constructor accepts."""

    threads: int = _key(1, "Threads that the framework computes with.", c.integer("number of threads", 4096))
    precision: str | None = _key(
        "fp32",
        "Numeric type of weights and computation; null: as the model is.",
        c.optional(c.choice("precision", get_args(Precision))),
    )
    precision_method: str | None = _key(
        None,
        "How a model gets its precision: convert (weights, computation and inputs), autocast (the computation alone), dynamic (8 "
        "bits, ranges of activations from each batch), static (ranges from training data), torchao (the package that "
        "quantizes); null: the backend's default.",
        c.optional(c.choice("method of a precision", get_args(PrecisionMethod))),
    )
    channels_last: bool = _key(False, "true: store images with the channels as the last dimension.", c.BOOLEAN)
    compile: bool | str = _key(
        False,
        "true: compile the model by torch.compile with inductor, or the name of another of its compilers, such as openvino.",
        c.boolean_or("compiler", get_args(Compiler)),
    )
    compile_mode: str | None = _key(
        None,
        "Mode of torch.compile with inductor: reduce-overhead launches CUDA graphs, max-autotune tries several kernels; null: the "
        "default.",
        c.optional(c.choice("mode of torch.compile", get_args(CompileMode))),
    )
    compile_dynamic: bool | None = _key(
        None,
        "true: torch.compile makes kernels for any shape; false: for each shape; null: for a shape until another one comes.",
        c.optional(c.BOOLEAN),
    )
    compile_fullgraph: bool = _key(
        False, "true: a forward that torch.compile cannot capture as one graph is unsupported.", c.BOOLEAN
    )
    matmul_precision: str | None = _key(
        None,
        "Precision of products of float32 matrices: highest (float32), high (TF32, or three times bfloat16), medium (bfloat16); "
        "null: as torch has it.",
        c.optional(c.choice("precision of matrix products", get_args(MatmulPrecision))),
    )


@dataclass
class DeviceSettings:
    """The device that runs the model."""

    type: str = _key(
        "cpu",
        "cpu, cuda (the first GPU that no other sweep uses), a specific GPU such as cuda:1, or PyTorch's xpu or mps.",
    )


@dataclass
class TrainingSettings:
    """A training step, for mode=training."""

    optimizer: object = _key(
        "sgd",
        "A name, or a mapping with _target_ (torch.optim.RMSprop) and its arguments (lr); not one that needs a closure.",
        c.choice("optimizer", sorted(OPTIMIZERS), or_mapping=True),
        is_open=True,
    )
    loss: object = _key(
        "mean",
        "mean (of all outputs), cross_entropy, mse, own (the loss that the model returns), or a mapping with the _target_ of a "
        "function of outputs and targets.",
        c.choice("loss", sorted(LOSSES), or_mapping=True),
        is_open=True,
    )


@dataclass
class GenerationSettings:
    """Text generation, for mode=generation; further keys are arguments of the model's ``generate``."""

    prompt_length: int | None = _key(
        None,
        "Tokens of the prompt, which dataset=auto generates; null: inputs.sequence_length, or the default of the model's source.",
        c.optional(c.integer("number of tokens", MOST_TOKENS)),
        unit="tokens",
    )
    new_tokens: int = _key(
        NEW_TOKENS,
        "Tokens that are generated for each sequence, exactly so many.",
        c.integer("number of tokens", MOST_TOKENS),
        unit="tokens",
    )
    function: str | None = _key(
        None,
        "Dotted name of a function of your own, function(model, inputs, new_tokens, on_token), that generates and calls on_token() "
        "after each token; null: the model's own generate.",
        c.optional(c.matching(r"\w+(\.\w+)+", "is not the dotted name of a function, such as my_package.generate.")),
    )


@dataclass
class MetricSettings:
    """A metric set."""

    select: list[object] = _key(
        [], "Names of metrics or of passes such as lines, or mappings whose _target_ is your own function.", c.METRICS
    )
    strict: str = _key(
        "warn",
        "Reaction to an operator without a formula: error, warn, or ignore (counts are then lower bounds).",
        c.choice("reaction to an operator without a formula", ("error", "warn", "ignore")),
    )
    mode: str = _key(
        "inference",
        "The mode of a sweep with this metric set, unless the key mode is set; only in its file.",
    )
    functions: list[str] = _key(
        [],
        "Dotted names of the functions that the line profiler measures; none: the model's own forward. Only with metric sets whose "
        "file has this key: lines, full.",
        c.texts("a list of dotted names such as [my_package.MyNet.forward]"),
    )


PROTOCOL = Protocol()
"""The protocol of the library, whose defaults are the config's."""


@dataclass
class ProtocolSettings:
    """How latency is measured."""

    rounds: int = _key(
        PROTOCOL.rounds, "Repetitions, each in a fresh process.", c.integer("number of rounds", MOST_ROUNDS)
    )
    threshold: float | None = _key(
        PROTOCOL.threshold,
        "Relative difference above which a metric is better or worse; null: no verdicts.",
        c.optional(c.fraction("threshold")),
    )
    warmup_steps: int = _key(
        PROTOCOL.warmup_steps, "Minimum number of warm-up steps.", c.integer("number of steps", MOST_STEPS, 0)
    )
    warmup_s: float = _key(PROTOCOL.warmup_s, "Minimum duration of the warm-up.", c.DURATION, unit="s")
    sample_s: float = _key(
        PROTOCOL.sample_s, "Minimum duration of a sample, which repeats the step if necessary.", c.DURATION, unit="s"
    )
    min_samples: int = _key(
        PROTOCOL.min_samples, "Minimum number of samples per round.", c.integer("number of samples", MOST_STEPS)
    )
    min_s: float = _key(PROTOCOL.min_s, "Minimum duration of the samples of a round.", c.DURATION, unit="s")
    max_s: float = _key(PROTOCOL.max_s, "Maximum duration of the samples of a round.", c.DURATION, unit="s")
    target_spread: float | None = _key(
        PROTOCOL.target_spread,
        "Take samples until the interquartile range divided by the median is below this; null: take only the minimum.",
        c.optional(c.fraction("spread")),
    )
    interleave: str = _key(
        PROTOCOL.interleave,
        "How compared combinations alternate: after each round (rounds), or after each sample, in processes that run at the same "
        "time (samples).",
        c.choice("way to interleave", ("rounds", "samples")),
    )
    decide: str | None = _key(
        PROTOCOL.decide,
        "baseline: stop the rounds of a combination as soon as the comparison of its time with its baseline is decided, from three "
        "rounds on. protocol.rounds is then the largest number, at most 50, and intervals allow for the repeated tests. null: "
        "measure all rounds.",
        c.optional(c.choice("comparison", ("baseline",))),
    )


@dataclass
class SeedSettings:
    """Seeds of random numbers."""

    weights: int = _key(
        0, "Seed of the weights and of the framework's random numbers.", c.integer("seed", LARGEST_SEED, 0)
    )


@dataclass
class CompareSettings:
    """The baseline of the comparison, and how combinations are compared."""

    baseline: dict[str, object] | str | None = _key(
        None,
        "The axis values of the combination that others are compared with, the id of a combination, or another sweep. null: those "
        "of {backend: torch, backend.precision: fp32, backend.precision_method: convert, backend.channels_last: false} whose axes "
        "the sweep varies and have this value; of several backends without torch the first; {backend: torch} if there are none.",
    )
    thresholds: dict[str, float] = _key(
        {},
        "{metric: relative difference above which it is better or worse}, also of metrics that are compared exactly or measured "
        "once; other metrics have the protocol's threshold if they are measured in rounds.",
        c.THRESHOLDS,
    )
    tolerance: float | None = _key(
        0.01,
        "Maximum difference of the outputs of one model on two frameworks, as a fraction of the baseline's largest output; beyond "
        "it the status is failed. A sweep over frameworks that measures time always checks it. null: no check.",
        c.optional(c.fraction("share of the largest output")),
    )
    pareto: list[str] = _key(
        ["latency/forward", "quality/accuracy"],
        "Two or more metrics of the Pareto front: the combinations that no other one beats in all of them.",
        c.LIST_OF_METRICS,
    )
    constraints: list[str] = _key(
        [],
        'Conditions that a combination must fulfil to qualify, as "latency/forward < 5 ms" or "quality/accuracy >= 0.97".',
        c.texts("a list of conditions such as ['latency < 5 ms']"),
    )


@dataclass
class SearchSettings:
    """A search for the best combinations; it measures some of them, and which is chosen by a sampler of Optuna."""

    maximize: list[str] | str | None = _key(
        None,
        "The metric whose largest value is searched for, such as throughput, or several. Several goals, also together with "
        "minimize, have a Pareto front. null: no search, if minimize is null, too.",
        c.GOALS,
    )
    minimize: list[str] | str | None = _key(
        None, "The metric whose smallest value is searched for, such as latency, or several.", c.GOALS
    )
    subject_to: list[str] = _key(
        [],
        'Conditions that the best combination must fulfil, as "latency < 5 ms"; they are added to compare.constraints.',
        c.texts("a list of conditions such as ['latency < 5 ms']"),
    )
    trials: int | None = _key(
        None,
        "Maximum number of combinations to measure; null: a sixth of all, but at least 20.",
        c.optional(c.integer("number of combinations", MOST_COMBINATIONS)),
    )
    sampler: str | None = _key(
        None,
        "The sampler of Optuna that chooses the combinations, by its name: GPSampler, TPESampler, NSGAIISampler, RandomSampler …; "
        "null: GPSampler, or TPESampler where PyTorch is not installed.",
        c.optional(c.matching(r"\w", "is not the name of a sampler of Optuna, such as TPESampler.")),
    )
    seed: int = _key(0, "Seed of the sampler.", c.integer("seed", LARGEST_SEED, 0))


@dataclass
class LimitSettings:
    """Limits of time and memory."""

    timeout_s: float | None = _key(
        300,
        "Maximum duration of a trial; a longer trial gets the status timeout. null: no limit. If the process that started a trial "
        "is itself stopped (SIGSTOP) or killed, the trial is run once more after at most 8 s.",
        c.optional(c.number("time limit", "seconds", LONGEST_S, 0.001)),
        unit="s",
    )
    memory: int | str | None = _key(
        None,
        "Memory that a trial and the processes that it starts may use after its start, such as 2GiB; beyond it the status is oom. "
        "All memory of a program's server counts, too. "
        "Shared memory counts once; memory of a device, mapped files and files in /dev/shm that no process maps do not count. "
        "null: no limit.",
        c.optional(c.SIZE),
        unit="B",
    )
    locks: str | None = _key(
        None,
        "Full path of the folder with the locks that prevent sweeps on one host from measuring at the same time; null: "
        "/tmp/sweeprof-locks. Containers on one host must share it.",
        c.optional(c.FOLDER),
    )


@dataclass
class TrackingSettings:
    """A tracker: its class, with its arguments."""

    uri: str | None = _key(
        None,
        "Address of MLflow, such as http://host:5000; null: a database below `output`.",
        c.optional(c.TRACKING_URI),
    )
    parent_run: str | None = _key(
        None,
        "Id of an existing run of MLflow, below which the sweep is put, in that run's experiment; by default the one in "
        "MLFLOW_RUN_ID. null: none.",
        c.optional(c.RUN_ID),
    )
    history: bool = _key(
        False,
        'true: also plot the main metrics of all sweeps of one name over time, in the experiment "NAME history" (nightly.sh does).',
    )


@dataclass
class ResourceSettings:
    """Resources of a task of a cluster."""

    partition: str | None = _key(None, "Partition; null: Slurm's default.", c.NAME_OR_NULL)
    time: str | None = _key(None, "Time limit of a task: 30min, 2h, 1d; null: the partition's.", c.optional(c.JOB_TIME))
    memory: int | str | None = _key(
        None,
        "Memory of a task, such as 4GiB; null: the partition's default, but at least what the frameworks need for small "
        "models.",
        c.optional(c.JOB_MEMORY),
        unit="B",
    )
    cpus: int | None = _key(
        None,
        "Processors of a task; null: as many as backend.threads.",
        c.optional(c.integer("number of processors", MOST_JOBS)),
    )
    gpus: int | str | None = _key(
        None,
        "GPUs of a task: a number, or type:number such as a100:1; null: 1 if device is a GPU, otherwise none.",
        c.optional(c.GPUS),
    )
    options: dict[str, object] = _key(
        {},
        "Other options of sbatch: {account: lab, qos: low, exclusive: true}; of Ray's actors: {resources: {fast_disk: 1}, "
        "label_selector: {zone: a}}.",
        c.mapping("{option of sbatch: value}"),
        is_open=True,
    )


@dataclass
class ClusterSettings(ResourceSettings):
    """Slurm and Ray."""

    scheduler: str | None = _key(
        None,
        "slurm: submit the shards as tasks of job arrays; ray: as actors of a Ray cluster; null: hydra/launcher decides.",
    )
    address: str | None = _key(
        None,
        "Address of the Ray cluster, HOST:PORT; null: RAY_ADDRESS, or the one that runs on this host.",
        c.NAME_OR_NULL,
    )
    minutes: float = _key(
        10,
        "Minutes of work per task; combinations that a baseline pairs stay in one task, and so on one host.",
        c.number("duration", "minutes", LONGEST_S // 60, 0.01),
        unit="min",
    )
    parallel: int | None = _key(
        None,
        "Tasks that may run at once; null: as many as Slurm allows.",
        c.optional(c.integer("number of tasks", MOST_JOBS)),
    )
    setup: list[str] = _key(
        [],
        "Lines of shell that a task runs first, such as [module load cuda, export NAME=value].",
        c.texts("a list of lines of shell"),
    )
    poll_s: float = _key(
        5,
        "Seconds between two queries of the scheduler.",
        c.number("duration", "seconds", LONGEST_S, 0.1),
        unit="s",
    )


@dataclass
class JobSettings:
    """Keys that the sweeper sets for each job of a launcher."""

    folder: str | None = _key(None, "The folder of the sweep.")
    shard: int = _key(0, "The number of the shard.")


@dataclass
class Config:
    """The whole config."""

    model: ModelSettings = _part(
        ModelSettings,
        "The model, and its arguments per framework.",
        role=Role.IDENTITY,
        is_group=True,
        has_target=True,
        is_column=True,
    )
    dataset: DatasetSettings = _part(
        DatasetSettings, "The dataset, and its arguments.", role=Role.IDENTITY, is_group=True, has_target=True
    )
    backend: BackendSettings = _part(
        BackendSettings,
        "The framework, and its settings.",
        role=Role.IDENTITY,
        is_group=True,
        has_target=True,
        is_column=True,
    )
    device: DeviceSettings = _part(DeviceSettings, "The device.", role=Role.IDENTITY, is_group=True, is_column=True)
    batch_size: int = _key(
        1, "Samples in one forward.", c.integer("batch size", LARGEST_SIZE), role=Role.IDENTITY, is_column=True
    )
    mode: str = _key(
        "${oc.select:metrics.mode,inference}",
        "The kind of step: inference (a forward), training (forward, backward and the optimizer's step), generation (of text, "
        "token by token), loading (one batch of the data loader, for metrics=loading) or command (a run of a program, for "
        "backend=command). Default: the metric set's mode.",
        c.choice("kind of step", get_args(Mode)),
        role=Role.IDENTITY,
    )
    inputs: dict[str, int] = _key(
        {},
        "Sizes of generated inputs (dataset=auto), or of data that fit the model, as its source names them: inputs.image_size=384, "
        "inputs.sequence_length=128.",
        c.SIZES,
        role=Role.IDENTITY,
        is_open=True,
    )
    args: dict[str, object] = _key(
        {},
        "Arguments of the programs of backend=command by name, each of which can be an axis: args.threads=1,2. In "
        "backend.command {args.threads} stands for the value (docs/programs.md).",
        c.mapping("a mapping of names to values"),
        role=Role.IDENTITY,
        is_open=True,
    )
    training: TrainingSettings = _part(
        TrainingSettings, "The optimizer and the loss of a training step.", role=Role.IDENTITY
    )
    generation: GenerationSettings = _part(
        GenerationSettings,
        "The prompt and the new tokens of mode=generation. Other keys are passed to the model's generate: "
        "generation.cache_implementation=static, generation.num_beams=4.",
        role=Role.IDENTITY,
        is_open=True,
    )
    metrics: MetricSettings = _part(MetricSettings, "The metric set.", role=Role.IDENTITY, is_group=True)
    quality: dict[str, object] = _key(
        {},
        "Further metrics of quality by name: {f1: {_target_: torchmetrics.classification.MulticlassF1Score, num_classes: 10}}, "
        "see docs/data.md.",
        c.mapping("a mapping of names to metrics"),
        role=Role.IDENTITY,
        is_open=True,
    )
    protocol: ProtocolSettings = _part(ProtocolSettings, "How latency is measured.", role=Role.IDENTITY, is_group=True)
    seed: SeedSettings = _part(SeedSettings, "Seeds of random numbers.", role=Role.IDENTITY)

    axes: dict[str, object] = _key(
        {},
        "Every combination of the axes: {key: [values]}. A value may be a string that expands to several: range(1,5), "
        "doubling(1,256), choice(a,b), glob(*).",
        role=Role.SHAPE,
        is_open=True,
    )
    zip: list[object] = _key(
        [],
        "Tied axes: a list of {axis: [values]}; the axes of an entry take their first values together, then their second …",
        role=Role.SHAPE,
    )
    variants: dict[str, object] = _key(
        {},
        "Axes whose values set several keys: {axis: {name: {key: value}}}, such as {size: {small: {model.torch.width: 16, "
        "batch_size: 8}}}.",
        role=Role.SHAPE,
        is_open=True,
    )
    include: list[object] = _key(
        [],
        "Combinations in addition to the product; `exclude` does not apply to them: a list of {key: value}.",
        role=Role.SHAPE,
    )
    exclude: list[object] = _key(
        [],
        "Combinations to exclude: a list of {axis: value or [values]}, of which all must match, or of conditions over the axes "
        'such as "batch_size * model.torch.width > 4096".',
        role=Role.SHAPE,
    )
    grids: list[object] = _key(
        [],
        "Several products in one sweep: a list of {axes, zip, include, exclude}; keys beside `grids` apply to all of them.",
        role=Role.SHAPE,
    )
    single_combination: bool = _key(
        False,
        "true: measure only the combination of the command line, with the settings of a sweep file but without its shape.",
        c.BOOLEAN,
        role=Role.SHAPE,
    )

    compare: CompareSettings = _part(
        CompareSettings, "The baseline of the comparison, and how combinations are compared.", role=Role.COMPARISON
    )

    limits: LimitSettings = _part(LimitSettings, "Limits of time and memory.", role=Role.TRIAL, is_repeated=True)
    isolation: str = _key(
        "fork",
        "How trials are isolated. fork: each trial runs in a process forked from one that has imported the framework; inline: in "
        "the sweep's own process (for debugging: nothing is isolated, and no limit applies).",
        c.choice("isolation", ("fork", "inline")),
        role=Role.TRIAL,
        is_repeated=True,
    )
    fail_fast: bool = _key(False, "true: the first trial that fails ends the sweep.", c.BOOLEAN, role=Role.TRIAL)
    budget: str | None = _key(
        None,
        "Duration of the whole sweep, such as 10min or 2h: everything is measured once, and the rest of the time is spent on "
        "comparisons that are not decided (protocol.decide, by default with the baseline, in up to 50 rounds); on a cluster the "
        "node time of all tasks together. No trial begins that would be likely to end later, with the start of its server. "
        "null: no limit.",
        c.optional(c.TIME),
        role=Role.TRIAL,
        is_repeated=True,
    )
    search: SearchSettings = _part(
        SearchSettings,
        "A search for the best combinations: only some of them are measured (docs/search.md).",
        role=Role.TRIAL,
    )

    name: str | None = _key(
        None,
        'Folder below `output` and MLflow experiment; null: the name of the sweep file, or "adhoc" without one.',
        c.optional(c.FOLDER_NAME),
    )
    output: str = _key(
        "outputs",
        "The folder of all results, relative to the working directory. In this and all other paths, ~ is the home folder and "
        "$NAME an environment variable.",
    )
    dry_run: bool = _key(False, "true: print the plan and measure nothing.", c.BOOLEAN)
    resume: str | None = _key(
        None,
        "A sweep to resume: its folder, `last` for the newest (of this name, if the command names or describes a sweep), or "
        "`NAME/last`. Missing and failed trials are measured.",
        c.optional(c.matching("(?s).", "is not a sweep to resume: a folder of a sweep, last.")),
    )
    retry_statuses: list[str] = _key(
        [],
        "When a sweep is resumed: measure again only trials with one of these statuses, and missing ones; []: every status except "
        "ok and unsupported.",
        c.list_of_choices("statuses", STATUSES),
    )
    trust: bool = _key(
        False,
        "true: resume a sweep whose folder another user may write, and send its results to an address that only the folder names; "
        "this runs code that the folder names.",
        c.BOOLEAN,
    )
    shards: int | None = _key(
        None,
        "Number of jobs of the launcher; null: as many as it runs at once, by its options or the number of processors; on a "
        "cluster by cluster.minutes.",
        c.optional(c.integer("number of shards", MOST_JOBS)),
    )
    tracking: TrackingSettings = _part(
        TrackingSettings, "The tracker that receives the results.", is_group=True, has_target=True
    )
    cluster: ClusterSettings = _part(ClusterSettings, "Resources of jobs on a cluster.", is_group=True)
    job: JobSettings = _part(JobSettings, "Set by the sweeper for each job; users must not set it.")


def _keys(part: type, parent: Key | None = None) -> Iterator[Key]:
    for spec in dataclasses.fields(part):
        options = dict(spec.metadata)
        below = options.pop("part", None)
        role = options.pop("role", Role.RUN)
        name, type_, default = spec.name, str(spec.type), spec.default
        if parent is not None:
            name, role = f"{parent.name}.{name}", parent.role
        elif role is Role.IDENTITY:
            options["is_repeated"] = True
            options["is_open"] = options.get("is_open", False) or options.get("has_target", False)
        if below is not None:
            type_, default = "mapping", None
        elif spec.default_factory is not dataclasses.MISSING:
            default = spec.default_factory()
        key = Key(name, type_, default, role, is_part=below is not None, **options)
        yield key
        if below is not None:
            yield from _keys(below, key)


KEYS: dict[str, Key] = {key.name: key for key in _keys(Config)}
"""All keys by name; a part stands before the keys below it."""


def _top_level(is_wanted: Callable[[Key], bool]) -> tuple[str, ...]:
    return tuple(key.name for key in KEYS.values() if "." not in key.name and is_wanted(key))


TOP_LEVEL = _top_level(lambda _: True)
"""The keys at the top of the config."""
IDENTITY = _top_level(lambda key: key.role is Role.IDENTITY)
"""The keys of a combination's identity; ``training`` and ``generation`` are ignored in other modes."""
SHAPE_KEYS = _top_level(lambda key: key.role is Role.SHAPE and key.type != "bool")
"""The keys that list or exclude combinations."""
TRIAL_KEYS = _top_level(lambda key: key.role is Role.TRIAL)
"""The keys of the plan that a resumed sweep may change."""
NOT_DECIDING = (*_top_level(lambda key: key.role in (Role.TRIAL, Role.RUN)), "hydra")
"""The keys that change neither the measurements nor the comparison."""
NOT_REPEATED = (*_top_level(lambda key: not key.is_repeated), "hydra")
"""The keys that are omitted from the command that measures one combination again."""
GROUPS = _top_level(lambda key: key.is_group)
"""The config groups that every config chooses from."""
COLUMNS = _top_level(lambda key: key.is_column)
"""Axes that every table has, even with a single value."""
PARTS = _top_level(lambda key: key.is_part)
"""The keys that are mappings."""
INTERNAL = "job"
"""The key of Hydra's own values, which no user sets."""
CLOSED_PARTS = _top_level(lambda key: key.is_part and not key.has_target and not key.is_open)
"""Parts that have no other keys than those defined here."""

RESOURCES = tuple(spec.name for spec in dataclasses.fields(ResourceSettings))
"""The keys under ``cluster`` that a single job gets."""


def default_config() -> dict[str, object]:
    """Return the keys that belong to no config group, with their defaults, as ``conf/config.yaml`` includes them."""
    found: dict[str, object] = {}
    for name in TOP_LEVEL:
        if name in GROUPS:
            continue
        found[name] = KEYS[name].default
        if name in PARTS:
            found[name] = {below: key.default for below, key in keys_below(name).items()}
    return found


def keys_below(part: str) -> dict[str, Key]:
    """Return the keys of a part, by their names within it."""
    return {name.removeprefix(f"{part}."): key for name, key in KEYS.items() if name.startswith(f"{part}.")}


def is_open(name: str) -> bool:
    """True if a key may be absent from the config: an argument of a model, a dataset, a backend or a loss, or a size of inputs."""
    return any(key.is_open and name.startswith(f"{key.name}.") for key in KEYS.values())


def is_merged(name: str) -> bool:
    """True if the command line may add a key to the config, or merge a mapping into it."""
    if name in KEYS and KEYS[name].is_mapping:
        return True
    return re.fullmatch(r"[\w.\-]*[\w\-]", name) is not None and is_open(name)


def value_at(config: Mapping[str, object], name: str) -> tuple[bool, object]:
    """Return whether a config has a key, and its value."""
    node: object = config
    for word in name.split("."):
        if not isinstance(node, Mapping) or word not in node:
            return False, None
        node = node[word]
    return True, node


def unstorable_values(key: str, value: object) -> Iterator[Problem]:
    """Yield the problems of values, of a key and of all below it, that no file of a sweep can hold, whatever the key means."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from unstorable_values(f"{key}.{name}", item)
    elif isinstance(value, list):
        for item in value:
            yield from unstorable_values(key, item)
        return
    message = None
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        message = TOO_MANY_DIGITS
    elif isinstance(value, str) and "\0" in value:
        message = "contains a NUL character, which no file name or command can have."
    if message is not None:
        if key in KEYS and (constraint := KEYS[key].constraint):
            message = constraint.message
        yield Problem(key, _shown(value), message)


def _shown(value: object) -> object:
    return redacted_address(value) if isinstance(value, str) else value


@cache
def _constrained(top: str) -> list[Key]:
    """Return the keys with a constraint, of a key at the top of the config and those below it."""
    return [key for key in KEYS.values() if key.constraint and key.name.partition(".")[0] == top]


def constraint_problems(config: Mapping[str, object]) -> list[Problem]:
    """Return the problems of all values, of a config or of some parts of one, that their keys do not accept."""
    problems: list[Problem] = []
    for name in config:
        problems += unstorable_values(name, config[name])
        for key in _constrained(name):
            constraint = key.constraint
            is_given, value = value_at(config, key.name)
            if constraint is None or not is_given or constraint.accepts(value):
                continue
            message = constraint.message
            close = nearest(str(value), constraint.choices) if constraint.choices else None
            advice = target_advice(key.name, value) if constraint.takes_target else None
            if advice is not None:
                message, _, known = message.partition(". Known: ")
                message, close = f"{message}; {advice} Known: {known}", None
            if key.role is Role.IDENTITY and isinstance(value, list) and value and all(map(constraint.accepts, value)):
                written = spelled(value)
                message += (
                    f" To measure each, write {key.name}={written[1:-1]}, or in a file axes: {{{key.name}: {written}}}."
                )
            problem = Problem(key.name, _shown(value), message, close)
            if problem not in problems:
                problems.append(problem)
    return problems
