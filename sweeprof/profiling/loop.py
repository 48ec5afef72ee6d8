"""Profiling within a loop of the user's own: whatever calls the model, and however often."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sweeprof.backends import Analyzes, Borrows, Watches
from sweeprof.backends.gaps import lacking
from sweeprof.backends.lookup import backend_of
from sweeprof.profiling.formulas import DEFAULTS, Formula, Formulas
from sweeprof.results.iteration import Iteration
from sweeprof.results.layer_times import LayerTimes

if TYPE_CHECKING:
    from sweeprof.profiling.layers import Layers


class LoopSession:
    """Watches a model while it is used; the getters are valid at any time, and after :meth:`stop`.

    The model is changed by nothing but the probes, which are gone after :meth:`stop`, also after an exception within ``with``.
    """

    def __init__(self, model: Any, formulas: Mapping[Any, Formula] | None = None) -> None:
        """See :func:`session`."""
        backend = backend_of(model)
        if not isinstance(backend, Watches):
            raise lacking(backend, Watches)
        self._backend, self._model = backend, model
        self._formulas = Formulas(formulas, DEFAULTS)
        self._watch = backend.watch(model)
        self._is_running = False

    def __enter__(self) -> LoopSession:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to watch, or go on; a session that watches already goes on."""
        if not self._is_running:
            self._watch.start()
            self._is_running = True

    def stop(self) -> None:
        """Take the probes off the model; what was seen is kept."""
        if self._is_running:
            self._is_running = False
            self._watch.stop()

    def reset(self) -> None:
        """Forget what was seen."""
        self._watch.reset()

    @property
    def times(self) -> LayerTimes:
        """What every call of every layer took: a repeat for each call of the model; where there were any, those with a backward.

        Raises:
            Unsupported: the model has not been called.
        """
        return self._watch.layer_times()

    @property
    def layers(self) -> Layers:
        """The layers with their counts, for what the model was called with first, and their times.

        Raises:
            Unsupported: the model has not been called.
        """
        from sweeprof.profiling.layers import Layers  # with the report's templates

        times = self.times
        backend, inputs = self._backend, self._watch.inputs
        if inputs is None or not isinstance(backend, Analyzes) or not isinstance(backend, Borrows):
            raise lacking(self._backend, Analyzes)
        with self._watch.paused(), backend.borrowed(self._model):
            table = backend.analyze(lambda: self._model, inputs, None, self._formulas)
        return Layers.of(table.with_times(times))

    def iteration(self) -> Iteration:
        """Everything since :meth:`start`, or since this was last called, as one step of the loop."""
        return self._watch.iteration()


def session(model: Any, formulas: Mapping[Any, Formula] | None = None) -> LoopSession:
    """Watch ``model`` in a loop of your own.

    Args:
        model: a model of a framework that sweeprof knows.
        formulas: by module type or operator, for this model alone.

    Raises:
        Unsupported: models of its framework cannot be watched.
        UserError: its framework is not known.

    Example:
        >>> with sweeprof.session(model) as s:
        ...     loss = criterion(model(x), y)
        ...     loss.backward()
        >>> print(s.layers)
    """
    return LoopSession(model, formulas)
