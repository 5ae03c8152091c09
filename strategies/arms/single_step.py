"""`single_step`: search once, then read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ragbandit.router.types import ArmName, Json
from ragbandit.strategies.arm_parts.params import ArmParams, public_params, read_params
from ragbandit.strategies.arm_parts.steps import Style, gather_once, read, stop_reason
from ragbandit.strategies.base import Need
from ragbandit.strategies.prompting.passages import PassagePool
from ragbandit.strategies.prompting.prompts import load_templates
from ragbandit.strategies.run import Answer, Run

__all__ = ["SingleStep", "SingleStepParams"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleStepParams(ArmParams):
    """Settings of single_step."""

    #: "small" is for local models of a few hundred million parameters; "flan" and "gpt" are Adaptive-RAG's numbers;
    #: "chat" is for large chat models
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    style: Style = "direct"
    #: passages searched for and shown
    passages: Annotated[int, Field(ge=1)] = 3
    #: words of one passage in a prompt
    passage_words: Annotated[int, Field(ge=1)] = 350
    #: tokens of the answer
    max_tokens: Annotated[int, Field(ge=1)] = 32
    #: own prompts: template name -> text, or path of a file
    templates: dict[str, str] = field(default_factory=dict)

    presets: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "flan": {"style": "direct", "passages": 15, "max_tokens": 200},
        "gpt": {"style": "reasoned", "passages": 6, "max_tokens": 300},
        "chat": {"style": "long", "passages": 5, "max_tokens": 512},
    }


class SingleStep:
    """Search once with the cleaned question, then read: one step (Adaptive-RAG's "B", IRCoT's OneR).

    If the budget allows no round or no passage, or the question consists of question words only, the search is
    skipped, which the trace says, and the model answers without passages.
    """

    needs: frozenset[Need] = frozenset({"completion", "stop"})
    presets: ClassVar = SingleStepParams.presets

    def __init__(self, *, name: str = "single_step", **params: object) -> None:
        self.name = ArmName(name)
        self._params = read_params(SingleStepParams, given=params, arm=self.name)
        self.params = public_params(self._params)
        template = f"read_{self._params.style}"
        self._template = load_templates([template], overrides=self._params.templates, field=f"arms.{name}.templates")[
            template
        ]

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Search, read, answer; stops with "answered" or "empty_answer"."""
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        answer = await read(
            run,
            question=question,
            template=self._template,
            style=self._params.style,
            max_tokens=self._params.max_tokens,
            pool=pool,
            passage_words=self._params.passage_words,
            final=True,
        )
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise="answered"))
