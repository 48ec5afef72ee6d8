"""Taking turns: who else takes samples meanwhile, and when it is this process's turn.

Times taken one after the other differ by whatever happened to the machine in between. In a duel the processes that are compared
exist at the same time and take single samples in turn (MEASUREMENT.md B6), so that each sample has its partner beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sweeprof.results.validation import validated

State = Literal["going", "met", "spent"]
"""What a sample leaves: the protocol asks for more, asks for no more, or allows no more."""


@dataclass(frozen=True, slots=True)
class Duel:
    """Whom a timing was taken in turns with."""

    id: str
    """The same for all that took part; another one each time."""
    partners: tuple[str, ...]
    """Ids of the other combinations, also of those that failed on the way."""
    turns: tuple[int, ...] = ()
    """The turn that each sample was taken in; what pairs are formed by."""
    processors: tuple[int, ...] = ()
    """Where it was kept, the same for all with as many threads: processors of one machine may differ in what else they bear."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Duel:
        """The duel in the observations of a record."""
        return validated(cls, data)


class Turns(Protocol):
    """Says when to take a sample; between the calls the process may have to wait."""

    @property
    def duel(self) -> Duel | None:
        """With whom; None for a process that is alone."""

    def ready(self, sample_s: float) -> float:
        """Everything before the samples is done, and one of them lasts ``sample_s``; returns how long one had better last."""

    def take(self) -> int | None:
        """Wait for the next turn; its number, or None when no more samples are wanted."""

    def leave(self, state: State) -> None:
        """The sample of this turn has been taken."""


class Alone:
    """Nobody to wait for: samples follow each other until the protocol is fulfilled."""

    duel: Duel | None = None

    def __init__(self) -> None:
        self._turn, self._state = -1, "going"

    def ready(self, sample_s: float) -> float:
        return sample_s

    def take(self) -> int | None:
        self._turn += 1
        return self._turn if self._state == "going" else None

    def leave(self, state: State) -> None:
        self._state = state
