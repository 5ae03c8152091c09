"""The answers of a bought verdict (`report --decide --budget`), and the questions that its runs have begun.

Each answer and each score is stored at once, so that an interrupted run continues. The expected dollars of a question
are booked before it is asked, and replaced by its cost however the run ends.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ragbandit.router.reporting.compared_questions import ComparedQuestion, ComparedQuestions
from ragbandit.router.reporting.paired_comparison import Pairing
from ragbandit.router.storage.access.reservations import Reservation, reserve, settle
from ragbandit.router.storage.access.spending import Spender, Spent
from ragbandit.router.storage.begun_pairs import BegunPair, begun_pairs, settle_lost, store_begun
from ragbandit.router.storage.paired_answers import PairedAnswer, answer_dollars, store_answer
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import StoreError
from ragbandit.shared.types import ArmName, DecisionId, Outcome, Source
from ragbandit.strategies.base import Account

log = logging.getLogger("ragbandit.worker")


class BoughtAnswers:
    """Answers of both arms to stored questions, in the store. Only the holder of the lease `decide` changes them."""

    def __init__(
        self,
        questions: ComparedQuestions,
        *,
        database: Database,
        pairing: Pairing,
        stored: Sequence[PairedAnswer],
        payer: str,
        check: Callable[[Mapping[Spender, Spent]], None],
    ) -> None:
        """payer: name of the charged key or person. check: raises TooManyRequests if the payer's budget is spent"""
        self.pairing = pairing
        self._against, self._database, self._payer, self._check = questions.against, database, payer, check
        self._stored = stored
        self._answers = {(one.decision_id, one.arm): one for one in stored if pairing.covers(one)}
        #: answers that an earlier run paid, to ask or to score again: the arm failed, or the answer has no score
        self._unended = {key: one for key, one in self._answers.items() if not self.has(*key)}
        self._begun: dict[DecisionId, BegunPair] = {}

    def resume(self, ids: Collection[DecisionId]) -> None:
        """Settle the estimates of processes that died, and read the state of these questions. Raises StoreError."""
        settle_lost(self._database)
        self._begun = begun_pairs(self._database, ids=ids)

    def all(self) -> list[PairedAnswer]:
        """The answers of the pairing so far, also those without a score."""
        return list(self._answers.values())  # a copy, since threads add answers meanwhile

    def paid(self, arms: Collection[ArmName]) -> list[PairedAnswer]:
        """Answers that earlier runs paid, for any judge: of the present definitions of these arms, and not failed."""
        versions = {arm: self.pairing.versions[arm] for arm in arms}
        new = [one for one in self._stored if one.version == versions.get(one.arm) and not one.is_stored]
        return [one for one in new if one.status != "failed"]

    def score_dollars(self, arms: Collection[ArmName]) -> list[float]:
        """Dollars of the scores that this judge gave to answers of these arms."""
        return [
            max(0.0, answer.dollars - (0.0 if answer.is_stored else answer.cost.dollars))
            for answer in self._answers.values()
            if answer.arm in arms and self.pairing.is_settled(answer)
        ]

    def has(self, key: DecisionId, arm: ArmName) -> bool:
        """Whether the arm need not be asked or scored again; a person's label may be missing."""
        answer = self._answers.get((key, arm))
        return answer is not None and (self.pairing.is_settled(answer) or self.pairing.waits(answer))

    def has_both(self, question: ComparedQuestion) -> bool:
        return self.has(question.id, question.arm) and self.has(question.id, self._against)

    def deaths(self, key: DecisionId) -> int:
        """Number of processes that died while they asked the question."""
        return self._pair(key).deaths

    def answer_to_score(self, key: DecisionId, arm: ArmName) -> Outcome | None:
        """The answer that an earlier run paid and did not score, with the passages that the judge reads; else None."""
        answer, sources = self._unended.get((key, arm)), self._pair(key).sources
        if answer is None or answer.status == "failed" or arm not in sources:
            return None
        return Outcome(
            decision_id=key,
            status=answer.status,
            answer=answer.answer,
            error=answer.error,
            cost=answer.cost,
            steps=answer.steps,
            stop_reason=answer.stop_reason,
            trace=(),
            run_by="worker",
            made_by={},
            made_at=answer.made_at,
            sources=tuple(sources[arm]),
        )

    @contextlib.contextmanager
    def booking(self, question: ComparedQuestion, *, expected: float, call: float, bill: Account) -> Iterator[None]:
        """A block in which a question is asked: books its expected dollars, and at its end replaces them by the cost in
        `bill`. Raises TooManyRequests. call: expected dollars of the most expensive single call
        """
        key, spenders = question.id, [Spender("key", self._payer)]

        def note(connection: Connection, reservation: Reservation) -> None:
            paid_before = answer_dollars(connection, [key]).get(key, 0.0)
            begun = replace(self._pair(key), reservation=reservation, paid_before=paid_before, call=call)
            self._begun[key] = begun
            store_begun(connection, pair=begun)

        now = time.time()
        reservation = reserve(self._database, spenders, dollars=expected, now=now, check=self._check, note=note)
        try:
            yield
        finally:
            has_ended = self.has_both(question)  # if not, a later run asks the question again
            ended = BegunPair(decision_id=key) if has_ended else replace(self._begun[key], reservation=None)
            self._begun[key] = ended
            try:
                settle(self._database, reservation, dollars=bill.cost.dollars, note=partial(store_begun, pair=ended))
            except StoreError as error:
                extra = {"action": "decide", "dollars": bill.cost.dollars, "reason": str(error)}
                log.warning("the cost of a question cannot be booked; its estimate stays booked", extra=extra)

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
        """Store an answer. dollars: cost to this run. is_stored: whether the answer is the decision's own outcome"""
        key = outcome.decision_id
        if not (is_stored or self.pairing.by_people):
            waits_for_judge = quality is None and unjudged is None and outcome.status != "failed"
            self._keep_sources(key, arm=arm, sources=outcome.sources if waits_for_judge else None)
        lost = self._unended.get((key, arm))
        answer = PairedAnswer(
            decision_id=key,
            arm=arm,
            version=self.pairing.versions[arm],
            judge=self.pairing.judge,
            rater=self.pairing.rater,
            is_stored=is_stored,
            status=outcome.status,
            answer=None if is_stored else outcome.answer,
            error=None if is_stored else outcome.error,
            cost=outcome.cost,
            steps=outcome.steps,
            stop_reason=outcome.stop_reason,
            quality=quality,
            unjudged=unjudged,
            dollars=dollars + (0.0 if lost is None else lost.dollars),
            actor=self._payer,
            made_at=time.time(),
        )
        if store_answer(self._database, answer):
            self._answers[key, arm] = answer

    def count_failure(self, key: DecisionId, *, arm: ArmName) -> int:
        """Count a failure of the judge on an answer. Returns the number of these failures."""
        pair = self._pair(key)
        failures = pair.failures.get(arm, 0) + 1
        self._begun[key] = replace(pair, failures={**pair.failures, arm: failures})
        return failures

    def _pair(self, key: DecisionId) -> BegunPair:
        return self._begun.get(key) or BegunPair(decision_id=key)

    def _keep_sources(self, key: DecisionId, *, arm: ArmName, sources: Sequence[Source] | None) -> None:
        """Store the passages that the judge reads, before their answer: if the run ends in between, the next run needs
        both. sources: None once the answer has a score, which deletes them
        """
        pair = self._pair(key)
        if (sources is not None) == (arm in pair.sources):
            return
        kept = {name: of for name, of in pair.sources.items() if name != arm}
        self._begun[key] = replace(pair, sources=kept if sources is None else {**kept, arm: sources})
        if sources is not None:
            with self._database.write() as connection:
                store_begun(connection, pair=self._begun[key])
