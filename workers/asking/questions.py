"""What a run asks: questions, with the work of each arm that answers one. `evaluation` and `pairs` implement them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from ragbandit.shared.types import ArmName, Budget, Outcome, Query
from ragbandit.strategies.base import Account
from ragbandit.workers.asking.scoring import Score


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The request to one arm for a question."""

    arm: ArmName
    query: Query
    limits: Budget
    #: whether the run's scorer scores the answer
    needs_score: bool
    #: whether the answer is kept, with the score that it needs
    is_done: bool
    #: an outcome that was paid before and has no score; None if the arm has to be asked
    outcome: Outcome | None = None
    #: whether `outcome` is the one of the decision itself, which nobody has asked again
    is_stored: bool = False
    #: about how many dollars the answer and its score will cost
    expected: float = 0.0


class AskedQuestion(ABC):
    """A question of a run."""

    @property
    def is_alone(self) -> bool:
        """Whether no other question is asked with this one."""
        return False

    @abstractmethod
    def works(self) -> Sequence[Work]:
        """The work of its arms, in their order; nothing if it was erased."""

    @abstractmethod
    def keep(
        self, work: Work, outcome: Outcome, *, dollars: float, score: Score | None = None, score_dollars: float = 0.0
    ) -> bool:
        """Keep an answer: once when it arrives, and again with its score, since the process may die in between.

        dollars, score_dollars: cost to this run of the answer and its score. Returns whether the run ends, so that a
        later run scores the answer again
        """

    def booked(self, *, expected: float, bill: Account) -> AbstractContextManager[None]:  # noqa: ARG002 - for others
        """A block in which it is asked. Raises TooManyRequests. bill: has its cost at the end"""
        return nullcontext()

    def enter(self) -> None:
        """Called when all its answers are kept, with the scores that they need."""
        return
