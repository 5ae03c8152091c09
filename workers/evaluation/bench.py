"""Bench: runs arms on labelled questions and keeps every answer as it comes."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ragbandit.router.types import Budget, DecisionId, Query
from ragbandit.strategies.base import Generator, Retriever
from ragbandit.strategies.run import Strategy
from ragbandit.strategies.runner import made_by, run_strategy
from ragbandit.workers.evaluation.answers import Answers, StoredAnswer, key_of
from ragbandit.workers.evaluation.judging import LabelledQuestion

__all__ = ["Bench", "Work"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One arm on one question."""

    key: str
    arm: str
    question: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Resources that the arms are run with."""

    arms: Mapping[str, Strategy]
    retriever: Retriever
    generator: Generator
    #: of the generator, see ragbandit.workers.wiring.generators.generator_version
    version: str
    #: caps on every answer
    budget: Budget

    def work(self, asked: Sequence[LabelledQuestion]) -> list[Work]:
        """Every arm on every question, question by question: what is cut short has whole questions, but for one."""
        parts = {"budget": self.budget, "retriever": self.retriever, "generator": self.generator}
        making = {name: made_by(arm, **parts) for name, arm in self.arms.items()}  # type: ignore[arg-type]
        return [
            Work(
                key=key_of(row.question, arm=name, made_by=making[name], version=self.version),
                arm=name,
                question=row.question,
            )
            for row in asked
            for name in self.arms
        ]

    async def answer(
        self, work: Iterable[Work], *, answers: Answers, concurrency: int, done: Callable[[StoredAnswer], None]
    ) -> None:
        """Do the work, at most `concurrency` at a time, and keep each answer as it comes. A failing arm is an answer.

        What is under way when this is cancelled is lost, and nothing else. Closes generator and retriever.
        """
        left = iter(work)

        async def take() -> None:
            for each in left:
                query = Query(id=DecisionId(each.key), text=each.question)
                outcome = await run_strategy(
                    self.arms[each.arm],
                    query=query,
                    budget=self.budget,
                    retriever=self.retriever,
                    generator=self.generator,
                )
                answers.add(outcome, key=each.key, arm=each.arm, question=each.question)
                done(answers[each.key])

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(take())
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        finally:
            await self.generator.close()
            await self.retriever.close()
