"""Questions that a run asks, and the work of each arm that answers one."""

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
    #: whether the answer is stored, with the score that it needs
    is_done: bool
    #: an outcome that was paid before and has no score; None if the arm has to be asked
    outcome: Outcome | None = None
    #: whether `outcome` is the decision's own, which no run has paid
    is_stored: bool = False
    #: expected dollars of the answer and its score
    expected: float = 0.0


class AskedQuestion(ABC):
    """A question of a run."""

    @property
    def is_alone(self) -> bool:
        """Whether no other question may be asked at the same time."""
        return False

    @abstractmethod
    def works(self) -> Sequence[Work]:
        """The work of the question's arms, in the order in which they are asked; empty if the question was erased."""

    @abstractmethod
    def keep(
        self, work: Work, outcome: Outcome, *, dollars: float, score: Score | None = None, score_dollars: float = 0.0
    ) -> bool:
        """Store an answer: when it arrives, and again with its score, since the process may die in between.

        dollars, score_dollars: cost to this run of the answer and of its score. Returns True if the judge failed and
        the run must end, so that a later run scores the answer again
        """

    def booking(self, *, expected: float, bill: Account) -> AbstractContextManager[None]:  # noqa: ARG002 - for others
        """A block in which the question is asked, and its dollars are booked. Raises TooManyRequests."""
        return nullcontext()

    def enter(self) -> None:
        """Called when all answers to the question are stored, with the scores that they need."""
        return
