"""`no_retrieval`: the model answers from memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ragbandit.router.types import ArmName, Json
from ragbandit.strategies.arm_parts.params import ArmParams, public_params, read_params
from ragbandit.strategies.arm_parts.steps import Style, read, stop_reason
from ragbandit.strategies.base import Need
from ragbandit.strategies.prompting.prompts import load_templates
from ragbandit.strategies.run import Answer, Run

__all__ = ["NoRetrieval", "NoRetrievalParams"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NoRetrievalParams(ArmParams):
    """Settings of no_retrieval."""

    #: "small" is for local models of a few hundred million parameters; "flan" and "gpt" are Adaptive-RAG's numbers;
    #: "chat" is for large chat models
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    style: Style = "direct"
    #: tokens of the answer
    max_tokens: Annotated[int, Field(ge=1)] = 32
    #: own prompts: template name -> text, or path of a file
    templates: dict[str, str] = field(default_factory=dict)

    presets: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "flan": {"style": "direct", "max_tokens": 200},
        "gpt": {"style": "reasoned", "max_tokens": 300},
        "chat": {"style": "long", "max_tokens": 512},
    }


class NoRetrieval:
    """Answer from the model's own knowledge: one call, no search, no step (Adaptive-RAG's "A")."""

    needs: frozenset[Need] = frozenset({"completion", "stop"})
    retrieves: ClassVar[bool] = False
    presets: ClassVar = NoRetrievalParams.presets

    def __init__(self, *, name: str = "no_retrieval", **params: object) -> None:
        self.name = ArmName(name)
        self._params = read_params(NoRetrievalParams, given=params, arm=self.name)
        self.params = public_params(self._params)
        template = f"recall_{self._params.style}"
        self._template = load_templates([template], overrides=self._params.templates, field=f"arms.{name}.templates")[
            template
        ]

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Ask once; stops with "answered", or "empty_answer" if the model said nothing usable."""
        answer = await read(
            run,
            question=question,
            template=self._template,
            purpose="answer",
            style=self._params.style,
            max_tokens=self._params.max_tokens,
            final=True,
        )
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise="answered"))
