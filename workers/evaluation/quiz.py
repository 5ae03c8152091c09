"""Answers of family "crud", judged by a model: from each it answers a quiz about the gold text (RAGQuestEval)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ragbandit.router.errors import ArmFailed
from ragbandit.workers.evaluation.answers import StoredAnswer
from ragbandit.workers.evaluation.judging import Answered, Judgement, Judgements, LabelledQuestion
from ragbandit.workers.evaluation.ragquesteval import Cut, Judge, Quiz, chinese_words, made_quiz, quizzed

__all__ = ["quizzed_answers"]

_MEASURES = ("answered", "word_precision", "word_recall", "word_f1")


async def quizzed_answers(
    asked: Sequence[LabelledQuestion], *, answered: Answered, judge: Judge, concurrency: int, done: Callable[[], None]
) -> Judgements:
    """The judge's scores, at most `concurrency` questions at a time; closes the judge's model.

    A question without a quiz gets one from its gold text. Where the judge fails the answer counts 0, with the error.
    Raises ConfigError where jieba is missing.
    """
    cut, limit = chinese_words(), asyncio.Semaphore(concurrency)

    async def judged(row: LabelledQuestion, *, kept: Mapping[str, StoredAnswer]) -> dict[str, Judgement]:
        async with limit:
            found = await _judged(row, kept=kept, judge=judge, cut=cut)
            done()
            return found

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(judged(row, kept={arm: kept[place] for arm, kept in answered.items()}))
                for place, row in enumerate(asked)
            ]
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
    finally:
        await judge.model.close()
    return {arm: [task.result()[arm] for task in tasks] for arm in answered}


async def _judged(
    row: LabelledQuestion, *, kept: Mapping[str, StoredAnswer], judge: Judge, cut: Cut
) -> dict[str, Judgement]:
    """By arm. One after the other: arms that answer alike share the reply in the judge's cache."""
    quiz = row.quiz
    if quiz is None:
        assert row.reference is not None
        try:
            quiz = await made_quiz(row.reference, judge=judge)
        except ArmFailed as error:
            return dict.fromkeys(kept, Judgement(measures=dict.fromkeys(_MEASURES, 0.0), error=str(error)))
    return {arm: await _scored(each, quiz=quiz, judge=judge, cut=cut) for arm, each in kept.items()}


async def _scored(kept: StoredAnswer, *, quiz: Quiz, judge: Judge, cut: Cut) -> Judgement:
    text = "" if kept.status == "failed" else kept.answer or ""
    score = await quizzed(text, quiz=quiz, judge=judge, cut=cut)
    return Judgement(measures={name: getattr(score, name) for name in _MEASURES}, error=score.error)
