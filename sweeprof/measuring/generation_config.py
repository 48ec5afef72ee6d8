"""The settings of a generation: how many tokens, and the arguments of the function that generates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeprof.errors import Problem, UserError
from sweeprof.model_sources.generate_arguments import NEW_TOKENS, OWN_KEYS, argument_problems


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """The number of new tokens, and what is passed to ``generate`` or to a function of the user's.

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
            from sweeprof.measuring.instantiate import located

            function = located(function)
        arguments = {key: value for key, value in node.items() if key not in OWN_KEYS}
        return cls(node.get("new_tokens", NEW_TOKENS), arguments, function)
