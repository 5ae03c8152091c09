"""`report --decide`: asks both ways the same stored questions until the verdict is known, the budget is spent, or no
question is left. Before it asks, it says how many questions it can ask, for how much, and how sure the result will be.
"""

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ragbandit.router.comparison import MARGIN
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.reporting.paired_comparison import (
    Pairing,
    keep_pairing,
    paired_comparison,
    paired_sample,
)
from ragbandit.router.reporting.paired_difference import expected_half_width
from ragbandit.router.reporting.paired_questions import PairedQuestions
from ragbandit.router.reporting.reading import PairedComparison
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.paired_labels import MOST_QUESTIONS, withdraw_items
from ragbandit.shared.texts.formats import counted, money
from ragbandit.shared.types import ArmName, Json
from ragbandit.workers.evaluation.paired import PairedRun
from ragbandit.workers.evaluation.scoring import Scorer
from ragbandit.workers.pairs.asking import StoredQuestions
from ragbandit.workers.pairs.prices import AnswerPrices
from ragbandit.workers.setup.loading import LoadedArm, parts_of

#: why a run ended that the next process continues
STOPPED: Final = "the process ended"
#: number of new pairs between two looks at the verdict. The interval holds at every look
_LOOK_EVERY: Final = 5
#: a run ends if an arm fails so often in a row: its server is probably down
_MOST_FAILURES: Final = 3
#: maximum number of questions that are asked at the same time
_AT_ONCE: Final = 8
#: number of questions whose expected dollars make the mean of a plan
_PRICED: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class AskingPlan:
    """What a run would do, before anything is asked."""

    against: str
    questions: int
    same: int
    differing: int
    askable: int
    #: reason -> number of questions that cannot be asked
    not_askable: Mapping[str, int]
    #: questions that both have answered in earlier runs
    asked: int
    #: number of questions that may be asked now; None without a limit
    room: int | None
    #: expected dollars of one question, both answers and both scores
    dollars_each: float
    #: what is assumed of arms or a judge that have not been asked here, in words
    assumed: Sequence[str]
    #: questions that the budget pays; None without a budget
    payable: int | None
    #: about half the width of the interval after these questions, and after all askable questions
    half_width: float | None
    least_half_width: float

    @property
    def left(self) -> int:
        return self.askable - self.asked

    @property
    def sentences(self) -> list[str]:
        of = f"{counted(self.questions, 'routed question')} of the period"
        lines = [f"{of}: {self.same:,} went to {self.against} anyway, {self.differing:,} to other arms"]
        if self.not_askable:
            why = "; ".join(f"{count:,}: {reason}" for reason, count in sorted(self.not_askable.items()))
            lines.append(f"cannot be asked again, so that their difference is only bounded: {why}")
        lines.append(f"{self.asked:,} of {self.askable:,} that can be asked have been asked")
        each = f"about {_rounded(self.dollars_each)} each" if self.dollars_each else "which cost no dollars"
        if self.left:
            whole = f"all {self.left:,} others, {each} (new answers and scores; stored ones are used again)"
            price = f" for about {_rounded(self.dollars_each * self.left)}" if self.dollars_each else ""
            lines.append(f"{whole}{price}, would give the difference to within about ±{self.least_half_width:.2g}")
        if self.left and self.assumed:
            lines.append(f"some dollars are assumed, since none are known yet: {'; '.join(self.assumed)}")
        if self.room is not None and self.left:
            most = f"at most {counted(MOST_QUESTIONS, 'question')} wait at a time, {self.room:,} more may be asked now"
            lines.append(f"people label both answers on the page Labels, blind, within 7 days; {most}")
        if self.payable is not None and self.half_width is not None and self.payable < self.left:
            pays = f"the budget pays about {counted(self.payable, 'question')}"
            lines.append(f"{pays}: then the difference is known to about ±{self.half_width:.2g}")
        return lines


def _rounded(dollars: float) -> str:
    return money(float(f"{dollars:.2g}"), "dollars")


@dataclass(kw_only=True)
class PairedDecision:
    """A paired comparison of stored questions: its plan, and its run."""

    settings: Settings
    ledger: Ledger
    questions: PairedQuestions
    arms: Mapping[ArmName, LoadedArm]
    scorer: Scorer
    pairing: Pairing
    asking: StoredQuestions
    prices: AnswerPrices
    actor: str
    #: number of questions that may be asked now, since people label the answers; None without a limit
    room: int | None = None
    _is_closed: bool = False
    _asked_before: int | None = None

    @property
    def asked(self) -> int:
        """Number of questions that this run has asked."""
        return 0 if self._asked_before is None else self._count_asked() - self._asked_before

    def _count_asked(self) -> int:
        return sum(map(self.asking.is_asked, self.questions.askable))

    def result(self) -> PairedComparison:
        return paired_comparison(
            self.questions,
            self.asking.pairs,
            setting=self.settings.reward,
            rater=self.scorer.name,
            waiting=sum(map(len, self.asking.waiting.values())),
        )

    def plan(self, *, budget: float | None) -> AskingPlan:
        """budget: dollars; None without one."""
        questions, rows = self.questions, self.asking.rows()
        askable = questions.askable
        priced = [
            math.fsum(self.asking.expected(work) for work in works if work.key not in self.asking.found)
            for works in map(self.asking.work, rows[:_PRICED])
            if works
        ]
        each = statistics.fmean(priced) if priced else 0.0
        room = None if self.room is None else max(0, self.room - self.asked)
        payable = None
        if budget is not None:
            payable = int(min(len(rows), budget / each)) if each else len(rows)
            payable = payable if room is None else min(payable, room)
        sample = paired_sample(questions, self.asking.pairs, setting=self.settings.reward)
        asked = len(askable) - len(rows)

        def width(count: int) -> float:
            return expected_half_width(count, sample=sample)

        return AskingPlan(
            against=questions.against,
            questions=questions.questions,
            same=questions.questions - len(questions.differing),
            differing=len(questions.differing),
            askable=len(askable),
            not_askable=questions.obstacles,
            asked=asked,
            room=room,
            dollars_each=each,
            assumed=self.prices.assumed,
            payable=payable,
            half_width=None if payable is None else width(asked + payable),
            least_half_width=width(len(askable)),
        )

    def run(
        self,
        *,
        budget: float,
        progress: Progress,
        warn: Callable[[str], None],
        on_paid: Callable[[float], None] = lambda _dollars: None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> Mapping[str, Any]:
        """Ask until the verdict is known or `budget` dollars are spent. Returns facts about the run. Ctrl-C ends it.

        on_paid: called after each answer with the dollars of this run. is_stopping: whether this process ends
        """

        def paid(dollars: float) -> None:
            on_paid(dollars)
            if is_stopping():
                run.ended = run.ended or STOPPED

        self.asking.resume()
        rows = self.asking.rows()
        chosen, self._asked_before = rows, self._count_asked()
        if self.room is not None:
            withdraw_items(self.ledger.database, versions=self.pairing.versions)
            chosen = self.asking.rows_to_label(rows, room=self.room)
        run = PairedRun(
            rows=chosen,
            arms=self.arms,
            answers=self.asking,
            settings=self.settings,
            family="ours",
            progress=progress,
            judge=None if self.room is not None else self.scorer,
            budget=budget,
            is_known=lambda _records: self._is_known(),
            warn=warn,
            asked=self.asking,
            on_paid=paid,
            look_every=_LOOK_EVERY,
            needs_judge=True,
            most_failures=_MOST_FAILURES,
            source_chars=self.settings.log.source_chars,
        )
        keep_pairing(
            self.ledger.database, self.pairing, label=self.ledger.label, rater=self.scorer.name, now=time.time()
        )
        if self._is_known():
            run.ended = "the verdict was known before"
        self._is_closed = True  # the run closes what it used
        run.finish(concurrency=min(_AT_ONCE, *(arm.most_runs for arm in self.arms.values())))
        facts: dict[str, Json] = {"asked": self.asked, "dollars": run.spent, "failed": sum(run.failures.values())}
        facts |= {"ended": run.ended or self._end(was_cut=len(chosen) < len(rows))}
        with self.ledger.database.write() as connection:
            told: dict[str, Json] = {"against": str(self.questions.against), "judge": self.scorer.name, **facts}
            record(connection, actor=self.actor, action="report.decide", target="paired_answers", facts=told)
        return facts

    @staticmethod
    def _end(*, was_cut: bool) -> str:
        if was_cut:
            return f"{MOST_QUESTIONS} questions wait for labels: label them on the page Labels, then run this again"
        return "every question that can be asked was asked"

    def close(self) -> None:
        """Close models, retrievers and the scorer, unless a run has."""
        if self._is_closed:
            return
        self._is_closed = True

        async def close() -> None:
            for part in (*parts_of(self.arms.values()), self.scorer):
                await part.close()

        asyncio.run(close())

    def _is_known(self) -> bool:
        """Whether more answers would hardly change the verdict: better, worse, or as good in both directions."""
        reward = self.result().comparison.reward
        is_close = reward.high is not None and reward.high < MARGIN
        return reward.verdict() in ("better", "worse") or (reward.verdict() == "as good" and is_close)
