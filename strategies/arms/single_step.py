"""`single_step`: search once, then read."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ragbandit.strategies.arm_parts.params import Count, ReaderParams, preset_table
from ragbandit.strategies.arm_parts.prompted import PromptedArm
from ragbandit.strategies.arm_parts.steps import gather_once, stop_reason
from ragbandit.strategies.prompting.passages import PassagePool
from ragbandit.strategies.run import Answer, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleStepParams(ReaderParams):
    """Settings of single_step."""

    #: "small" is for local models of a few hundred million parameters; "flan" and "gpt" are Adaptive-RAG's numbers;
    #: "chat" is for large chat models
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    #: passages searched for and shown
    passages: Count = 3

    presets: ClassVar = preset_table(
        "max_tokens style passages",
        flan=(200, "direct", 15),
        gpt=(300, "reasoned", 6),
        chat=(512, "long", 5),
    )


class SingleStep(PromptedArm[SingleStepParams]):
    """Search once with the cleaned question, then read: one step (Adaptive-RAG's "B", IRCoT's OneR).

    If the budget allows no round or no passage, or the question consists of question words only, the search is
    skipped, which the trace says, and the model answers without passages.
    """

    kind = SingleStepParams
    prompts: ClassVar = {"read": "read_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Search, read, answer; stops with "answered" or "empty_answer"."""
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        answer = await self._read(question, run=run, style=self._params.style, pool=pool)
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise="answered"))
