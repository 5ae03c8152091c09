"""The questions of a file in a run. Every arm gets only the text of a question. The answers are stored in a file, and
their records are a log for a verdict or a warm start.
"""

from collections.abc import Mapping, Sequence

from ragbandit.additions.evaluation.kept_answers import AnswerFile, StoredAnswer, stored_answer_key
from ragbandit.additions.evaluation.labelled_questions import LabelledQuestion
from ragbandit.additions.evaluation.qualities import labelled_quality, log_record, measured_quality
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.settings import BudgetSettings
from ragbandit.router.serving.checks.questions import cap_budget
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import ArmName, Budget, DecisionId, Json, Outcome, Query
from ragbandit.workers.asking.questions import AskedQuestion, Work
from ragbandit.workers.asking.scoring import Score
from ragbandit.workers.setup.loading import LoadedArm


class FileQuestions:
    """The distinct questions of a file, and records of the answers to questions that all arms have answered."""

    def __init__(
        self,
        rows: Sequence[LabelledQuestion],
        *,
        arms: Mapping[ArmName, LoadedArm],
        answers: AnswerFile,
        reward: RewardSettings,
        limits: BudgetSettings,
        family: str = "ours",
        by_judge: bool = False,
        learns_failures: bool = True,
    ) -> None:
        """by_judge: whether a judge scores answers to questions without right answers. learns_failures: whether failed
        answers have records, of quality 0.
        """
        self.answers, self.needs_scores, self._reward = answers, by_judge, reward
        self._family, self._learns_failures = family, learns_failures
        self.limits = cap_budget(Budget(), limits=limits)
        origins = {name: arm.made_by(self.limits) for name, arm in arms.items()}

        def keys(row: LabelledQuestion) -> dict[ArmName, str]:
            return {
                name: stored_answer_key(row.question, arm=name, made_by=origins[name], version=arm.version)
                for name, arm in arms.items()
            }

        self.all = [FileQuestion(self, row=row, keys=keys(row)) for row in rows]
        #: a logged decision for each arm and each answered question
        self.records: list[dict[str, Json]] = []

    @property
    def paid(self) -> float:
        """Dollars of all answers so far, including failed answers that were asked again."""
        return sum(self.answers.dollars[key] for one in self.all for key in one.keys.values())

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
    def __init__(self, questions: FileQuestions, *, row: LabelledQuestion, keys: Mapping[ArmName, str]) -> None:
        """keys: arm -> key of its answer, see `stored_answer_key`."""
        self.row, self.keys, self._questions = row, keys, questions

    def works(self) -> Sequence[Work]:
        return [self._work(arm, key=key) for arm, key in self.keys.items()]

    def _work(self, arm: ArmName, *, key: str) -> Work:
        known = self._questions.answers.by_key.get(key)
        needs_score = self._questions.needs_scores and not self.row.answers
        return Work(
            arm=arm,
            query=Query(id=DecisionId(key), text=self.row.question),
            limits=self._questions.limits,
            needs_score=needs_score,
            is_done=known is not None and (not needs_score or known.score is not None or is_blank(known.answer)),
        )

    def keep(
        self,
        work: Work,
        outcome: Outcome,
        *,
        dollars: float,  # noqa: ARG002 - the outcome has them
        score: Score | None = None,
        score_dollars: float = 0.0,  # noqa: ARG002 - not stored
    ) -> bool:
        quality, key = None if score is None else score.quality, self.keys[work.arm]
        self._questions.answers.add(outcome, key=key, arm=work.arm, question=self.row.question, score=quality)
        return False

    @property
    def stored_answers(self) -> list[StoredAnswer]:
        """The stored answers of all arms, in the order of the arms."""
        return [self._questions.answers.by_key[key] for key in self.keys.values()]

    def enter(self) -> None:
        for answer in self.stored_answers:
            self._questions.record(self.row, answer, arms=tuple(self.keys))
