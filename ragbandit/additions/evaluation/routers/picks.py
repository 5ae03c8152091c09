"""Picks of a language model for the questions of a table, for the policy `llm`. Each question is asked once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ragbandit.additions.evaluation.booked_model import BookedModel
from ragbandit.additions.evaluation.kept_replies import ReplyCache
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.policies.needs import ModelToAsk, need_source
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.texts.formats import counted
from ragbandit.shared.types import ArmName, Json
from ragbandit.strategies.base import Generator, Prompt
from ragbandit.workers.asking.question_run import in_parallel

#: calls of the model at the same time
CONCURRENCY: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class TablePicks:
    #: question -> its pick
    by_question: Mapping[str, Mapping[str, Json]]
    seconds: float  #: mean seconds of a call
    note: str  #: model, number and cost of the calls, as a sentence
    #: number of questions for which the model named no arm, so that the fallback arm answers
    failed: int

    @property
    def remark(self) -> str | None:
        """Note that the model did not pick an arm for every question; None if it did."""
        if self.failed == 0:
            return None
        if self.failed == len(self.by_question):
            return "no pick: the fallback arm"
        return f"no pick for {self.failed} of {counted(len(self.by_question), 'question')}"


async def ask_for_picks(
    questions: Sequence[str],
    *,
    arms: Sequence[ArmName],
    descriptions: Mapping[str, str],
    limits: ModelToAsk,
    generator: Generator,
    file: Path | None,
    progress: Progress,
) -> TablePicks:
    """Ask the generator, and close it at the end. A failure of the model is a failed pick.

    descriptions: arm -> what it does. file: file of the replies; None to store them only in memory.
    """
    model = BookedModel(
        generator=generator,
        seconds=limits.seconds,
        max_tokens=limits.max_tokens,
        remedy="raise policy.pick.seconds or policy.pick.max_tokens",
    )
    found: dict[str, dict[str, Json]] = {}

    with ReplyCache(model, file=file) as replies:

        async def ask(instructions: str, material: str) -> str:
            return await replies.ask(Prompt(instructions=instructions, body=material))

        async def ask_one(question: str) -> None:
            try:
                found[question] = await need_source("pick").of_question(
                    question, arms=arms, descriptions=descriptions, ask=ask
                )
            except ArmFailed as error:
                found[question] = {"failed": str(error)}
            progress(f"arms picked ({model.dollars:.4g} dollars)", len(found), len(questions))

        try:
            await in_parallel(questions, ask_one, concurrency=CONCURRENCY)
        finally:
            await model.generator.close()
    failed = sum("failed" in one for one in found.values())
    picked = f"llm: {model.generator.name} picked the arms: {model.summary}"
    note = f"{picked}; no usable pick for {counted(failed, 'question')}"
    return TablePicks(by_question=found, seconds=replies.seconds / max(1, len(questions)), note=note, failed=failed)
