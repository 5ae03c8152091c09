"""Scorers of answers: the judge and the check, each with its queue and its active scores."""

import threading
import time
from collections.abc import Mapping
from typing import Final

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs.scores import CHECK_ATTEMPTS, CHECK_EXPIRE_S
from ragbandit.router.storage.judgements import ScoreQueue
from ragbandit.router.telemetry.routines import StoreOutage
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.model_servers.outbound import back_off
from ragbandit.shared.texts.redaction import without_secrets
from ragbandit.shared.types import FeedbackSource, Json, Outcome
from ragbandit.strategies.base import Account, Passage, Retriever
from ragbandit.strategies.retrievers.without_index import NoRetriever
from ragbandit.workers.judge.judge import Judge, JudgeFailed, Verdict, shown_passages
from ragbandit.workers.judge.reward_check import CheckProcess
from ragbandit.workers.running.runs import ActiveRuns

LONGEST_RATER: Final = 64


class QueueScorer:
    """Scores the answers of a queue."""

    def __init__(
        self, queue: ScoreQueue, *, source: FeedbackSource, rater: str, rule: str, facts: Mapping[str, Json]
    ) -> None:
        """rule: hash of the judge's rubric, or path of the check. facts: stored with every score."""
        self.queue = queue
        self.source = source
        self.rater = rater[:LONGEST_RATER]
        self.rule = rule
        self.facts = facts
        self.active = ActiveRuns()

    @property
    def name(self) -> str:
        return self.queue.kind

    @property
    def paused(self) -> bool:
        return False

    async def close(self) -> None:
        """Close all connections. A check has none."""


class Checking(QueueScorer):
    def __init__(self, settings: RewardSettings, *, store: DecisionStore) -> None:
        check = str(settings.check)
        queue = ScoreQueue(store, kind="check", attempts=CHECK_ATTEMPTS, expire_s=CHECK_EXPIRE_S)
        super().__init__(queue, source="code", rater=check[-LONGEST_RATER:], rule=check, facts={"check": check})
        self.process = CheckProcess(settings)


class Judging(QueueScorer):
    def __init__(self, judge: Judge, *, queue: ScoreQueue, model: str, retriever: Retriever) -> None:
        """model: name of the judge's model in the settings. retriever: finds passages for answers that have none."""
        stored: dict[str, Json] = {"model": model, "rubric": judge.rubric}
        super().__init__(queue, source="judge", rater=model, rule=judge.rubric, facts=stored)
        self.judge = judge
        self._retriever = retriever
        #: time limit of one judgement, seconds; `judge.seconds` limits only the call of the judge's model
        self.longest_s = judge.settings.seconds + 5.0
        self._lock = threading.Lock()
        self._failures = 0
        #: time.monotonic() at which judging resumes after a failure; 0.0 without a failure
        self._paused_until = 0.0
        self._outage = StoreOutage(
            action="judge",
            failing="the judge's model or its passages fail; answers wait and are judged later. See judge.generator",
            restored="the judge's model works again",
        )

    async def close(self) -> None:
        await self._retriever.close()
        await self.judge.close()

    async def verdict(
        self, question: str, *, outcome: Outcome, attempt: int, bill: Account
    ) -> tuple[Verdict, str | None]:
        """Judge an answer. Returns (verdict, origin of the passages shown to the judge). Errors: see `Judge.score`.

        The origin is "arm", "search", or None without passages. attempt: from 1.
        bill: gets the cost, also if the call is cancelled
        """
        passages, origin = shown_passages(outcome), "arm"
        if not passages:
            passages, origin = await self._search_passages(question), "search"
        answer, again = outcome.answer or "", attempt > 1
        verdict = await self.judge.score(question, answer=answer, sources=passages, bill=bill, is_retry=again)
        return verdict, origin if verdict.passages else None

    async def _search_passages(self, question: str) -> tuple[Passage, ...]:
        """Passages for the judge; empty if the settings want no search. Raises JudgeFailed."""
        settings = self.judge.settings
        if not settings.passages or not settings.search or isinstance(self._retriever, NoRetriever):
            return ()
        try:
            hits = await self._retriever.search(question, k=settings.passages)
        except ArmFailed as error:
            raise JudgeFailed(without_secrets(str(error))) from error
        return tuple(hit.passage for hit in hits)

    @property
    def paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def note_failure(self, error: Exception) -> None:
        with self._lock:
            self._failures += 1
            pause = back_off(self._failures, base_s=min(5.0, self.judge.settings.retry_s), longest_s=60.0)
            self._paused_until = time.monotonic() + pause
        self._outage.note_failure(error)

    def note_success(self) -> None:
        with self._lock:
            self._failures, self._paused_until = 0, 0.0
        self._outage.note_success()
