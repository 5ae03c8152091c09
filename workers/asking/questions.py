"""What a run asks: questions, with the work of each arm that answers one. `evaluation` and `pairs` implement them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from ragbandit.shared.types import ArmName, Budget, Outcome, Query
from ragbandit.strategies.base import Account
from ragbandit.workers.asking.scoring import Score


class Work(Protocol):
    """What one arm is asked about a question, and where its answer is kept."""

    arm: ArmName
    query: Query
    limits: Budget
    #: whether the run's scorer scores the answer
    needs_score: bool
    #: an outcome that was paid before and has no score; None if the arm has to be asked
    outcome: Outcome | None = None

    @property
    def is_done(self) -> bool:
        """Whether the answer is kept, with the score that it needs."""

    def expected(self) -> float:
        """About how many dollars the answer and its score will cost."""
        return 0.0

    def add(self, outcome: Outcome, *, dollars: float) -> None:
        """Keep an answer. dollars: what this run paid for it"""

    def add_score(self, outcome: Outcome, score: Score, *, dollars: float) -> bool:
        """Keep the score of an answer. Returns whether the run ends, so that a later one scores the answer again."""


class AskedQuestion(Protocol):
    """A question of a run."""

    @property
    def is_alone(self) -> bool:
        """Whether no other question is asked with this one."""
        return False

    def works(self) -> Sequence[Work]:
        """The work of its arms, in their order; nothing if it was erased."""

    def booked(self, *, expected: float, bill: Account) -> AbstractContextManager[None]:  # noqa: ARG002 - for others
        """A block in which it is asked. Raises TooManyRequests. bill: has its cost at the end"""
        return nullcontext()

    def enter(self) -> None:
        """Called when all its answers are kept, with the scores that they need."""
        return
