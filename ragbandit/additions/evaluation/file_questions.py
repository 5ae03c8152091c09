"""The questions of a file in a run: every arm gets the text of each and nothing else. Their answers are kept in a file,
and their records are a log for a verdict or a warm start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ragbandit.additions.evaluation.kept_answers import Answers, StoredAnswer, key_of
from ragbandit.additions.evaluation.labelled_questions import LabelledQuestion
from ragbandit.additions.evaluation.qualities import labelled_quality, log_record, measured_quality
from ragbandit.router.config.settings import BudgetSettings, RewardSettings
from ragbandit.router.serving.checks.questions import capped
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import ArmName, Budget, DecisionId, Json, Outcome, Query
from ragbandit.workers.asking.questions import AskedQuestion, Work
from ragbandit.workers.asking.scoring import Score
from ragbandit.workers.setup.loading import LoadedArm


@dataclass(kw_only=True)
class FileWork(Work):
    key: str
    arm: ArmName
    query: Query
    limits: Budget
    needs_score: bool
    answers: Answers

    @property
    def is_done(self) -> bool:
        known = self.answers.found.get(self.key)
        return known is not None and (not self.needs_score or known.score is not None or is_blank(known.answer))

    def add(self, outcome: Outcome, *, dollars: float) -> None:  # noqa: ARG002 - the outcome has them
        self._add(outcome)

    def add_score(self, outcome: Outcome, score: Score, *, dollars: float) -> bool:  # noqa: ARG002 - not stored
        self._add(outcome, score=score.quality)
        return False

    def _add(self, outcome: Outcome, *, score: float | None = None) -> None:
        self.answers.add(outcome, key=self.key, arm=self.arm, question=self.query.text, score=score)


class FileQuestions:
    """The distinct questions of a file, and the records of those that all arms have answered."""

    def __init__(
        self,
        rows: Sequence[LabelledQuestion],
        *,
        arms: Mapping[ArmName, LoadedArm],
        answers: Answers,
        reward: RewardSettings,
        limits: BudgetSettings,
        family: str = "ours",
        by_judge: bool = False,
        learns_failures: bool = True,
    ) -> None:
        """by_judge: whether a judge scores answers to questions without right answers. learns_failures: whether failed
        answers have records, of quality 0.
        """
        self.answers, self._reward = answers, reward
        self._family, self._learns_failures = family, learns_failures
        budget = capped(Budget(), limits=limits)
        origins = {name: arm.made_by(budget) for name, arm in arms.items()}

        def work(row: LabelledQuestion, name: ArmName) -> FileWork:
            key = key_of(row.question, arm=name, made_by=origins[name], version=arms[name].version)
            query, needs_score = Query(id=DecisionId(key), text=row.question), by_judge and not row.answers
            return FileWork(key=key, arm=name, query=query, limits=budget, needs_score=needs_score, answers=answers)

        self.all = [FileQuestion(self, row=row, works=[work(row, name) for name in arms]) for row in rows]
        #: a logged decision for each arm and each answered question
        self.records: list[dict[str, Json]] = []

    @property
    def paid(self) -> float:
        """Dollars of the answers so far, also of those that failed and were asked again."""
        return sum(self.answers.dollars[work.key] for one in self.all for work in one.works())

    def record(self, row: LabelledQuestion, stored: StoredAnswer, *, arms: Sequence[ArmName]) -> None:
        if self._learns_failures or not stored.failed:
            quality = self._quality(row, stored)
            self.records.append(log_record(row.question, stored, quality=quality, arms=arms, reward=self._reward))

    def _quality(self, row: LabelledQuestion, stored: StoredAnswer) -> float:
        if row.answers:
            return measured_quality(labelled_quality(row, stored, family=self._family), reward=self._reward)
        if stored.failed or is_blank(stored.answer):
            return 0.0
        assert stored.score is not None, "a question without a score is not entered"
        return stored.score


class FileQuestion(AskedQuestion):
    def __init__(self, questions: FileQuestions, *, row: LabelledQuestion, works: Sequence[FileWork]) -> None:
        self.row, self._works, self._questions = row, works, questions

    def works(self) -> Sequence[FileWork]:
        return self._works

    @property
    def kept(self) -> list[StoredAnswer]:
        """The kept answers of all arms, in their order."""
        return [self._questions.answers.found[work.key] for work in self._works]

    def enter(self) -> None:
        for answer in self.kept:
            self._questions.record(self.row, answer, arms=tuple(work.arm for work in self._works))
