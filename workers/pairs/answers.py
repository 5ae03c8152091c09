"""The answers of a bought verdict: those that are compared, those that wait for a person, and those to ask or score
again.

Each answer and each score is stored at once, so that an interrupted run continues.
"""

import time
from collections.abc import Sequence
from typing import Final

from ragbandit.router.reporting.paired_comparison import Pairing
from ragbandit.router.reporting.paired_questions import ComparedQuestion, ComparedQuestions
from ragbandit.router.storage.paired_answers import PairedAnswer, keep_answer
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.types import ArmName, DecisionId, Outcome

#: fields that an outcome and a stored answer share
SHARED: Final = ("status", "cost", "steps", "stop_reason")


class BoughtAnswers:
    """Answers of both arms to stored questions, in the store."""

    def __init__(
        self,
        questions: ComparedQuestions,
        *,
        database: Database,
        pairing: Pairing,
        stored: Sequence[PairedAnswer],
        payer: str,
    ) -> None:
        """payer: who is charged"""
        self.pairing = pairing
        self._against, self._database, self._payer = questions.against, database, payer
        self._answers = {(one.decision_id, one.arm): one for one in stored if pairing.contains(one)}
        self._unended = {key: one for key, one in self._answers.items() if not self.has(*key)}

    def all(self) -> list[PairedAnswer]:
        """The answers of the pairing so far, also those that have not ended."""
        return list(self._answers.values())  # a copy, since others are added meanwhile

    def has(self, key: DecisionId, arm: ArmName) -> bool:
        """Whether the arm has answered; a person's score may be missing."""
        answer = self._answers.get((key, arm))
        return answer is not None and (self.pairing.has_ended(answer) or self.pairing.waits(answer))

    def has_both(self, question: ComparedQuestion) -> bool:
        return self.has(question.id, question.arm) and self.has(question.id, self._against)

    def unended(self, key: DecisionId, arm: ArmName) -> PairedAnswer | None:
        """An answer that an earlier run paid and that does not count: it failed, or was not scored."""
        return self._unended.get((key, arm))

    def keep(
        self,
        outcome: Outcome,
        *,
        arm: ArmName,
        dollars: float,
        quality: float | None = None,
        unjudged: str | None = None,
        is_stored: bool = False,
    ) -> None:
        """Store an answer, and count it.

        dollars: what it cost this run. is_stored: whether it is the decision's own outcome
        """
        lost = self.unended(outcome.decision_id, arm)
        answer = PairedAnswer(
            decision_id=outcome.decision_id,
            arm=arm,
            version=self.pairing.versions[arm],
            judge=self.pairing.judge,
            rater=self.pairing.rater,
            is_stored=is_stored,
            answer=None if is_stored else outcome.answer,
            error=None if is_stored else outcome.error,
            **{name: getattr(outcome, name) for name in SHARED},
            quality=quality,
            unjudged=unjudged,
            dollars=dollars + (0.0 if lost is None else lost.dollars),
            actor=self._payer,
            made_at=time.time(),
        )
        if keep_answer(self._database, answer):
            self._answers[answer.decision_id, arm] = answer
