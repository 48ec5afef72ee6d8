"""The settings of training steps and of generations, and the step that is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from sweeprof.counting.formulas import EVERYTHING, ModuleSelection
from sweeprof.errors import Problem, UserError, choice_problem
from sweeprof.measuring.inputs import Inputs
from sweeprof.model_sources import NEW_TOKENS, OWN_KEYS, argument_problems
from sweeprof.results.layer_times import Mode


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """The number of new tokens, and what is passed to ``generate`` or to a user-defined function.

    Raises:
        UserError: a number is not a whole number above 0, or an argument is one that a measurement sets itself.
    """

    new_tokens: int = NEW_TOKENS
    """Number of tokens that are generated for each sequence."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``generate``, such as ``cache_implementation``, or of :attr:`function`."""
    function: Callable[..., object] | None = None
    """``function(model, inputs, new_tokens, on_token, **arguments)`` generates and calls ``on_token()`` after each token of the
    batch; None: the model's own ``generate``."""

    def __post_init__(self) -> None:
        problems = []
        given: object = self.new_tokens
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            allowed = "is not a number of new tokens: a whole number, at least 1."
            problems.append(Problem("generation.new_tokens", given, allowed))
        problems += argument_problems(self.arguments, is_own=self.function is not None)
        if problems:
            raise UserError(problems)

    @classmethod
    def from_config(cls, node: Mapping[str, Any]) -> GenerationConfig:
        """Return the settings of the config's ``generation``.

        Raises:
            Exception: the function cannot be imported.
        """
        function = node.get("function")
        if function is not None:
            from sweeprof.targets import located

            function = located(function)
        arguments = {key: value for key, value in node.items() if key not in OWN_KEYS}
        return cls(node.get("new_tokens", NEW_TOKENS), arguments, function)


OPTIMIZER_STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "none": 0}
"""States of a parameter's size that an optimizer keeps for each parameter."""
OPTIMIZERS = tuple(OPTIMIZER_STATES)
"""Names that every backend which trains knows; ``none`` leaves the parameters as they are."""
LOSSES = ("mean", "cross_entropy", "mse", "own")
"""``mean`` of all outputs needs no targets; ``own`` is the loss that the model returns itself."""
RATE = 1e-8
"""Learning rate of the named optimizers: an update costs the same at any, and at this one thousands of timed steps, which
pull at the same batch again and again, leave the weights finite."""
EPSILON = 1e-4
"""Of Adam's denominator: not zero in half precision, where the frameworks' defaults of 1e-8 and 1e-7 are."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Optimizer and loss, by a name that the backend knows or as the framework's own.

    Raises:
        UserError: there is no optimizer or loss of that name.
        Exception: any error of a class that was given as the loss.
    """

    optimizer: str | Callable[..., Any] = "sgd"
    """A name, or a function from the parameters to an optimizer of the framework."""
    loss: str | Callable[..., Any] = "mean"
    """A name, a function of outputs and targets, or a class such as ``torch.nn.CrossEntropyLoss``, of which one is made."""

    def __post_init__(self) -> None:
        loss = self.loss
        kind = loss.func if isinstance(loss, partial) else loss  # a class may have keywords
        if isinstance(kind, type):
            object.__setattr__(self, "loss", cast("Callable[[], Callable[..., Any]]", loss)())
        problems = []
        for key, known in (("optimizer", OPTIMIZERS), ("loss", LOSSES)):
            value = getattr(self, key)
            if not callable(value) and value not in known:
                problems.append(choice_problem(key, value, key, known))
        if problems:
            raise UserError(problems)

    @property
    def optimizer_states(self) -> int | None:
        """States of a parameter's size that the optimizer keeps for each parameter; None if it is user-defined."""
        return OPTIMIZER_STATES[self.optimizer] if isinstance(self.optimizer, str) else None

    @classmethod
    def from_config(cls, node: Mapping[str, object]) -> TrainingConfig:
        """Each key is a name or a node with ``_target_``.

        An optimizer's target is called with the parameters; a loss's with outputs and targets, or, where it is a class, what
        it makes is. The other keys of a node are keywords.

        Raises:
            UserError: there is no optimizer or loss of that name.
            Exception: a target cannot be imported, or raised.
        """
        return cls(_named(node["optimizer"]), _named(node["loss"]))


def _named(node: object) -> Any:
    if not isinstance(node, Mapping):
        return node
    from sweeprof.targets import located

    keywords = {key: value for key, value in node.items() if key != "_target_"}
    return partial(located(node["_target_"]), **keywords)


@dataclass(frozen=True, slots=True)
class Work:
    """The step that is repeated: a forward, or with a config of its own a whole training step, or a whole generation."""

    batch: Any
    """As :meth:`LoadedModel.put` gave it."""
    targets: Any = None
    training: TrainingConfig | None = None
    """None: no training."""
    generation: GenerationConfig | None = None
    """None: no generation."""
    selection: ModuleSelection = EVERYTHING
    """The modules that are timed, if layers are."""
    given: Inputs | None = None
    """The caller's own arguments, of which :attr:`batch` is a copy; None: nobody else has them."""

    @property
    def mode(self) -> Mode:
        """The kind of step."""
        if self.generation is not None:
            return "generation"
        return "inference" if self.training is None else "training"
