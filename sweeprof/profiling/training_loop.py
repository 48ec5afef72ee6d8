"""TrainingProfiler: profiles one step of a training loop and leaves the others alone."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sweeprof.backends import backend_of
from sweeprof.counting.formulas import DEFAULTS, Formula, Formulas, ModulePatterns, ModuleSelection
from sweeprof.display import Displayed
from sweeprof.errors import Problem, Unsupported, UserError, choice_problem
from sweeprof.numbers import rounded as measured
from sweeprof.numbers import scaled
from sweeprof.report.view import View, counted, fields_table
from sweeprof.results.environment import host_columns
from sweeprof.results.layer_times import Iteration, LayerTimes

if TYPE_CHECKING:
    from sweeprof.profiling.layers import Layers


class LoopSession(Displayed):
    """Times the layers of a model while it is used; results are available at any time, also after :meth:`stop`.

    Only probes are added to the model; :meth:`stop` removes them, also after an exception within ``with``.
    """

    def __init__(
        self,
        model: object,
        formulas: Mapping[Any, Formula] | None = None,
        include: ModulePatterns = (),
        exclude: ModulePatterns = (),
    ) -> None:
        """See :func:`session`."""
        backend = backend_of(model)
        self._backend, self._model = backend, model
        self._formulas = Formulas(formulas, DEFAULTS, ModuleSelection.of(include, exclude))
        self._watch = backend.watch(model, self._formulas.selection)
        self.is_running = False

    def __view__(self) -> View:
        state = "is watched" if self.is_running else "is not watched now"
        hint = "layers, times and iteration() have what was seen."
        return View(f"LoopSession: {type(self._model).__name__} {state}", (hint,))

    def __enter__(self) -> LoopSession:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start or continue; has no effect on a session that runs already."""
        if not self.is_running:
            self._watch.start()
            self.is_running = True

    def stop(self) -> None:
        """Remove the probes from the model; results are kept."""
        if self.is_running:
            self.is_running = False
            self._watch.stop()

    def reset(self) -> None:
        """Discard the results."""
        self._watch.reset()

    @property
    def times(self) -> LayerTimes:
        """Return the times of every layer, one repeat per call of the model; only calls with a backward if there were any.

        Between the forward and the backward of the first step, these are the times of the forward.

        Raises:
            Unsupported: the model has not been called.
        """
        return replace(self._watch.layer_times(), host=host_columns(self._backend.settings_in_effect()))

    @property
    def layers(self) -> Layers:
        """The layers with their counts, for the inputs of the first call, and their times.

        Raises:
            Unsupported: the model has not been called.
        """
        from sweeprof.profiling.layers import Layers  # with the report's templates

        times = self.times
        backend, inputs = self._backend, self._watch.inputs
        assert inputs is not None  # there are times
        with self._watch.paused(), backend.borrowed(self._model):
            table = backend.analyze(lambda: self._model, inputs, None, self._formulas)
        return Layers.of(table.with_times(times), times.host)

    def iteration(self) -> Iteration:
        """Return the times since :meth:`start`, or since the last call of this method, as one step of the loop."""
        return self._watch.iteration()


def session(
    model: object,
    formulas: Mapping[Any, Formula] | None = None,
    *,
    include: ModulePatterns = (),
    exclude: ModulePatterns = (),
) -> LoopSession:
    """Time the layers of ``model`` in a loop of your own.

    Args:
        model: a model of a framework that sweeprof knows.
        formulas: by module type or operator, for this model alone.
        include: count and time only these modules and what is inside them: paths, globs, class names or classes.
        exclude: neither count nor time these modules and what is inside them, likewise.

    Raises:
        Unsupported: its framework does not support this.
        UserError: its framework is unknown.

    Example:
        >>> with sweeprof.session(model) as s:
        ...     loss = criterion(model(x), y)
        ...     loss.backward()
        >>> print(s.layers)
    """
    return LoopSession(model, formulas, include, exclude)


SECTIONS = ("flops_profiler", "pytorch_profiler")
"""Where a DeepSpeed config has the settings; the second is the older name."""
OPTIONS = {
    "profile_step": "profile_step",
    "profile_depth": "depth",
    "module_depth": "depth",
    "profile_top_num": "top",
    "top_modules": "top",
    "detailed": "detailed",
    "output_file": "output_file",
}
"""The parameter of :class:`TrainingProfiler` for each setting; of two for one parameter the later one counts."""
IGNORED = ("recompute_fwd_factor",)
"""Settings without a counterpart: forwards that are recomputed in the backward are measured."""


class TrainingProfiler(Displayed):
    """Profiles step ``profile_step`` of a training loop; the others run without probes.

    Example:
        >>> profiler = sweeprof.TrainingProfiler(model, profile_step=5)
        >>> for x, y in loader:
        ...     with profiler.step():
        ...         criterion(model(x), y).backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> print(profiler.summary())
    """

    def __init__(  # noqa: PLR0913  # the settings of a DeepSpeed config, by their names there
        self,
        model: object,
        profile_step: int = 5,
        depth: int = -1,
        top: int = 3,
        *,
        detailed: bool = True,
        output_file: str | Path | None = None,
        on_result: Callable[[Layers], object] | None = None,
        include: ModulePatterns = (),
        exclude: ModulePatterns = (),
        replicas: int = 1,
        model_parallel_size: int = 1,
    ) -> None:
        """Set up a profiler of a training loop.

        Args:
            model: the model that the loop trains.
            profile_step: which step is profiled; the first one is 0, as DeepSpeed counts. It should not be among the first ones,
                which are slower than the others.
            depth: how deep the summary shows modules; -1: all of them.
            top: how many modules its lists of the largest have.
            detailed: whether the summary has the module tree.
            output_file: where the summary is written after the step; None: nowhere.
            include: count and time only these modules and what is inside them: paths, globs, class names or classes.
            exclude: neither count nor time these modules and what is inside them, likewise.
            on_result: called with the layers after the step, e.g. :func:`sweeprof.log_layers`.
            replicas: how many processes train on a batch each (data parallelism): for samples per second.
            model_parallel_size: over how many devices the model is split: for the totals of the whole model.

        Raises:
            UserError: a setting is invalid.
        """
        problems = []
        for name, value, least in (
            ("profile_step", profile_step, 0),
            ("depth", depth, -1),
            ("top", top, 1),
            ("replicas", replicas, 1),
            ("model_parallel_size", model_parallel_size, 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:  # type: ignore[redundant-expr]
                problems.append(Problem(name, value, f"is not a whole number of at least {least}."))
        if problems:
            raise UserError(problems)
        self._session = LoopSession(model, include=include, exclude=exclude)
        self.profile_step, self.depth, self.top, self.detailed = profile_step, depth, top, detailed
        self.replicas, self.model_parallel_size = replicas, model_parallel_size
        self.steps = 0
        """Number of completed steps."""
        self._output = None if output_file is None else Path(output_file)
        self._on_result = on_result
        self._layers: Layers | None = None
        self._iteration: Iteration | None = None

    @classmethod
    def from_deepspeed(
        cls, model: object, config: str | Path | Mapping[str, Any], **settings: Any
    ) -> TrainingProfiler | None:
        """Return the profiler that ``flops_profiler`` of a DeepSpeed config describes; None if it is not enabled.

        Read are ``enabled``, ``profile_step``, ``module_depth`` (or ``profile_depth``), ``top_modules`` (or ``profile_top_num``),
        ``detailed`` and ``output_file``. In the older form ``"pytorch_profiler": true`` the settings stand beside it, at the top.

        Args:
            model: the model that the loop trains.
            config: the config, or the path of its JSON file.
            settings: by the names of the constructor, instead of the config's or beside them.

        Raises:
            UserError: the file cannot be read, or a setting is invalid.
        """
        if not isinstance(config, Mapping):
            try:
                config = json.loads(Path(config).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise UserError([Problem("config", str(config), f"cannot be read: {error}.")]) from None
        if not isinstance(config, Mapping):
            raise UserError([Problem("config", type(config).__name__, "is not the mapping of a DeepSpeed config.")])
        name = next((name for name in SECTIONS if name in config), SECTIONS[0])
        section: object = config.get(name, False)
        if isinstance(section, bool):
            section = {"enabled": section} | {key: config[key] for key in config if key.startswith("profile_")}
        if not isinstance(section, Mapping):
            raise UserError([Problem(name, section, "is neither a mapping of settings nor true or false.")])
        known, noun = ("enabled", *OPTIONS, *IGNORED), "setting of DeepSpeed's profiler"
        unknown = [key for key in section if key not in known]
        if unknown:
            raise UserError([choice_problem(name, key, noun, known) for key in unknown])
        if not section.get("enabled", False):
            return None
        arguments = {name: section[key] for key, name in OPTIONS.items() if section.get(key) is not None}
        try:
            return cls(model, **{**arguments, **settings})
        except UserError as error:  # which names the parameters of the constructor
            keys = {name: key for key, name in OPTIONS.items() if key in section and name not in settings}
            raise UserError([replace(one, key=keys.get(one.key, one.key)) for one in error.problems]) from None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return a context manager for one step of the loop."""
        if self.steps != self.profile_step:
            yield
            self.steps += 1
            return
        self._session.reset()
        try:
            with self._session:
                yield
                self._iteration = self._session.iteration()
        finally:
            self.steps += 1
        # Whatever goes wrong with the report is no reason to end a training.
        try:
            if self._output is not None:
                self._output.write_text(self.summary() + "\n", encoding="utf-8")
            if self._on_result is not None:
                self._on_result(self.layers)
        except Exception as error:
            text = f"the profile of step {self.profile_step} is not reported: {type(error).__name__}: {error}"
            warnings.warn(text, stacklevel=3)

    def __view__(self) -> View:
        model = type(self._session._model).__name__
        if self._iteration is None:
            made = counted(self.steps, "step")
            return View(f"TrainingProfiler of {model}: step {self.profile_step} is not made yet, {made} so far")
        parts = (fields_table(self._iteration), "layers and summary() have more.")
        return View(f"TrainingProfiler of {model}: step {self.profile_step}", parts)

    @property
    def is_done(self) -> bool:
        """True if the step has been profiled."""
        return self._iteration is not None

    @property
    def layers(self) -> Layers:
        """The layers with their counts and times; within the step, what has been seen of it so far.

        Raises:
            Unsupported: the step has not run yet, or did not call the model.
            Exception: any error of the model's forward.
        """
        if self._session.is_running:
            return self._session.layers
        if self._iteration is None:
            raise Unsupported(f"step {self.profile_step} has not been made yet; {self.steps} steps have")
        if self._layers is None:
            self._layers = self._session.layers
        return self._layers

    @property
    def iteration(self) -> Iteration:
        """Return the times of the step and its phases; raise as :attr:`layers`."""
        if self._iteration is None:
            raise Unsupported(f"step {self.profile_step} has not been made yet; {self.steps} steps have")
        return self._iteration

    def summary(self) -> str:
        """Return the step as text: its phases, the totals, the largest modules, and the module tree."""
        step = self.iteration
        lines = [f"step {self.profile_step}"]
        for name in ("forward", "backward", "update", "iteration"):
            seconds = getattr(step, f"{name}_s")
            if seconds is not None:
                lines.append(f"{name:<10}{measured(seconds, 's')}")
        samples = step.samples_per_s(self.replicas)
        if samples is not None:
            lines.append(f"{'samples/s':<10}{samples:.4g}")
        size = self.model_parallel_size
        if size > 1:  # the sum over the parts of a model that is split over devices, each like this one
            lines.append(f"{'params':<10}{scaled(self.layers.params * size, 'params')} on {size} devices")
            if self.layers.uncounted is None:
                lines.append(f"{'MACs':<10}{scaled(self.layers.macs * size, 'MAC')} on {size} devices")
        depth = None if self.depth < 0 else self.depth
        return "\n".join([*lines, "", self.layers.summary(depth=depth, top=self.top, detailed=self.detailed)])
