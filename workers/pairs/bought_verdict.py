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
from ragbandit.router.reporting.paired_comparison import paired_comparison, paired_sample
from ragbandit.router.reporting.paired_difference import expected_half_width
from ragbandit.router.reporting.paired_questions import ComparedQuestions
from ragbandit.router.reporting.reading import PairedComparison
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.label_queue import MOST_QUESTIONS, withdraw_items
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.texts.formats import counted, money
from ragbandit.shared.types import Json
from ragbandit.workers.asking.question_run import QuestionRun, close_parts
from ragbandit.workers.asking.scoring import Scorer
from ragbandit.workers.asking.stop import Stop
from ragbandit.workers.pairs.stored_questions import StoredQuestion, StoredQuestions

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

    compared: ComparedQuestions
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
        return len(self.compared.askable) - self.asked

    @property
    def sentences(self) -> list[str]:
        compared, differing = self.compared, len(self.compared.differing)
        of, same = f"{counted(compared.questions, 'routed question')} of the period", compared.questions - differing
        lines = [f"{of}: {same:,} went to {compared.against} anyway, {differing:,} to other arms"]
        if compared.obstacles:
            why = "; ".join(f"{count:,}: {reason}" for reason, count in sorted(compared.obstacles.items()))
            lines.append(f"cannot be asked again, so that their difference is only bounded: {why}")
        lines.append(f"{self.asked:,} of {len(compared.askable):,} that can be asked have been asked")
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
class BoughtVerdict:
    """A comparison of both answers to stored questions: its plan, and its run."""

    settings: Settings
    ledger: Ledger
    questions: StoredQuestions
    #: questions that the verdict counts, as in reports: also those of an arm that only an earlier run could ask
    counted: ComparedQuestions
    #: None if people label the answers
    scorer: Scorer | None
    #: who asks, for the audit log
    actor: str
    #: number of questions that may be asked now, since people label the answers; None without a limit
    room: int | None = None
    #: whether the policy decided most questions, see `paired_comparison`
    is_steady: bool = True
    _is_closed: bool = False
    _asked_before: int | None = None

    @property
    def asked(self) -> int:
        """Number of questions that this run has asked."""
        return 0 if self._asked_before is None else self.questions.asked - self._asked_before

    def result(self) -> PairedComparison:
        return paired_comparison(
            self.counted,
            self.questions.answers.pairing,
            self.questions.answers.all(),
            setting=self.settings.reward,
            is_steady=self.is_steady,
        )

    def plan(self, *, budget: float | None) -> AskingPlan:
        """budget: dollars; None if there is no budget."""
        compared, open_ones = self.questions.compared, self.questions.open_ones()
        askable = len(compared.askable)
        priced = [
            math.fsum(work.expected() for work in works if not work.is_done)
            for works in (one.works() for one in open_ones[:_PRICED])
            if works
        ]
        each = statistics.fmean(priced) if priced else 0.0
        room = None if self.room is None else max(0, self.room - self.asked)
        payable = None
        if budget is not None:
            payable = int(min(len(open_ones), budget / each)) if each else len(open_ones)
            payable = payable if room is None else min(payable, room)
        answers = self.questions.answers
        sample = paired_sample(compared, answers.pairing.pairs(answers.all()), setting=self.settings.reward)
        asked = askable - len(open_ones)

        def width(count: int) -> float:
            return expected_half_width(count, sample=sample)

        return AskingPlan(
            compared=compared,
            asked=asked,
            room=room,
            dollars_each=each,
            assumed=self.questions.prices.assumed,
            payable=payable,
            half_width=None if payable is None else width(asked + payable),
            least_half_width=width(askable),
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
                stop.end(STOPPED)

        questions, database = self.questions, self.ledger.database
        questions.resume()
        open_ones, self._asked_before = questions.open_ones(), questions.asked
        chosen = open_ones if self.room is None else self._to_label(open_ones, room=self.room)
        looks = range(_LOOK_EVERY, len(chosen), _LOOK_EVERY)
        stop = Stop(budget=budget, is_known=self._is_known, looks=looks, most_failures=_MOST_FAILURES)
        run = QuestionRun(
            questions=chosen,
            arms=questions.arms,
            cost=self.settings.reward.cost,
            stop=stop,
            scorer=self.scorer,
            source_chars=self.settings.log.source_chars,
            progress=progress,
            warn=warn,
            on_paid=paid,
        )
        pairing = questions.answers.pairing
        pairing.keep(database, label=self.ledger.label, now=time.time())
        if self._is_known():
            stop.end("the verdict was known before")
        self._is_closed = True  # the run closes what it used
        run.finish(concurrency=min(_AT_ONCE, *(arm.most_runs for arm in questions.arms.values())))
        facts: dict[str, Json] = {"asked": self.asked, "dollars": run.spent, "failed": sum(run.failures.values())}
        facts |= {"ended": stop.reason or self._end(was_cut=len(chosen) < len(open_ones))}
        with database.write() as connection:
            recorded: dict[str, Json] = {"against": str(questions.compared.against), "judge": pairing.rater, **facts}
            record(connection, actor=self.actor, action="report.decide", target="paired_answers", facts=recorded)
        return facts

    def _to_label(self, open_ones: Sequence[StoredQuestion], *, room: int) -> list[StoredQuestion]:
        """`room` of these questions, and those of which one answer waits for a label already: they need no room."""
        answers = self.questions.answers
        withdraw_items(self.ledger.database, versions=answers.pairing.versions)
        waiting = {one.decision_id for one in answers.all() if answers.pairing.waits(one)}
        new = {one.id for one in [one for one in open_ones if one.id not in waiting][:room]}
        return [one for one in open_ones if one.id in waiting or one.id in new]

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
        asyncio.run(close_parts(self.questions.arms, scorer=self.scorer))

    def _is_known(self) -> bool:
        """Whether more answers would hardly change the verdict: better, worse, or as good in both directions."""
        comparison = self.result().comparison
        high = comparison.reward.high
        is_close = high is not None and high < MARGIN
        return comparison.verdict in ("better", "worse") or (comparison.verdict == "as good" and is_close)
