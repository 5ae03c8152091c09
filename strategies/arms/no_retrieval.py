"""`no_retrieval`: the model answers from memory."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ragbandit.strategies.arm_parts.params import PromptParams, preset_table
from ragbandit.strategies.arm_parts.prompted import PromptedArm
from ragbandit.strategies.arm_parts.steps import Style, stop_reason
from ragbandit.strategies.run import Answer, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class NoRetrievalParams(PromptParams):
    """Settings of no_retrieval."""

    #: "small" is for local models of a few hundred million parameters; "flan" and "gpt" are Adaptive-RAG's numbers;
    #: "chat" is for large chat models
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    style: Style = "direct"

    presets: ClassVar = preset_table(
        "max_tokens style",
        flan=(200, "direct"),
        gpt=(300, "reasoned"),
        chat=(512, "long"),
    )


class NoRetrieval(PromptedArm[NoRetrievalParams]):
    """Answer from the model's own knowledge: one call, no search, no step (Adaptive-RAG's "A")."""

    retrieves: ClassVar[bool] = False
    kind = NoRetrievalParams
    prompts: ClassVar = {"answer": "recall_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Ask once; stops with "answered", or "empty_answer" if the model said nothing usable."""
        answer = await self._read(question, run=run, style=self._params.style, use="answer")
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise="answered"))
