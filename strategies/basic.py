"""The two arms without a loop: answer from what the model knows, and search once, then read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from router.types import ArmName, Json
from strategies.base import Answer, Need, Run
from strategies.params import ArmParams, public_params, read_params
from strategies.passages import PassagePool, clean_query, extract_answer
from strategies.prompts import ask, load_templates

__all__ = ["NoRetrieval", "NoRetrievalParams", "SingleStep", "SingleStepParams", "Style", "gather", "stop_reason"]

#: "direct" asks for the answer alone; "reasoned" asks for a line of reasoning that ends in "the answer is ..."
Style = Literal["direct", "reasoned"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NoRetrievalParams(ArmParams):
    """Settings of no_retrieval."""

    #: "small" is for local models of a few hundred million parameters; "flan" and "gpt" are Adaptive-RAG's numbers
    preset: Literal["small", "flan", "gpt"] = "small"
    style: Style = "direct"
    #: tokens of the answer
    max_tokens: Annotated[int, Field(ge=1)] = 32
    #: own prompts: template name -> text, or path of a .txt file
    templates: dict[str, str] = field(default_factory=dict)

    presets: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "flan": {"style": "direct", "max_tokens": 200},
        "gpt": {"style": "reasoned", "max_tokens": 300},
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleStepParams(ArmParams):
    """Settings of single_step."""

    #: "small" is for local models of a few hundred million parameters; "flan" and "gpt" are Adaptive-RAG's numbers
    preset: Literal["small", "flan", "gpt"] = "small"
    style: Style = "direct"
    #: passages searched for and shown
    passages: Annotated[int, Field(ge=1)] = 3
    #: words of one passage in a prompt
    passage_words: Annotated[int, Field(ge=1)] = 350
    #: tokens of the answer
    max_tokens: Annotated[int, Field(ge=1)] = 32
    #: own prompts: template name -> text, or path of a .txt file
    templates: dict[str, str] = field(default_factory=dict)

    presets: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "flan": {"style": "direct", "passages": 15, "max_tokens": 200},
        "gpt": {"style": "reasoned", "passages": 6, "max_tokens": 300},
    }


class NoRetrieval:
    """Answer from the model's own knowledge: one call, no search, no step (Adaptive-RAG's "A")."""

    needs: frozenset[Need] = frozenset({"completion"})

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
        text = await ask(
            run,
            template=self._template,
            purpose="answer",
            fields={"question": question},
            max_tokens=self._params.max_tokens,
            stop=("\n",),
        )
        run.draft = extract_answer(text) or None
        return Answer(text=run.draft or "", stop_reason=stop_reason(run.draft, otherwise="answered"))


class SingleStep:
    """Search once with the cleaned question, then read: one step (Adaptive-RAG's "B", IRCoT's OneR).

    If the budget allows no round or no passage, or the question consists of question words only, the search is
    skipped, which the trace says, and the model answers without passages.
    """

    needs: frozenset[Need] = frozenset({"completion"})

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
        if run.begin_round(cap=1):
            await gather(run, query=question, pool=pool, k=self._params.passages)
        else:
            run.decide("search_skipped", "the budget has no round")
        text = await ask(
            run,
            template=self._template,
            purpose="read",
            fields={"question": question},
            pool=pool,
            max_tokens=self._params.max_tokens,
            passage_words=self._params.passage_words,
            stop=("\n",),
        )
        run.draft = extract_answer(text) or None
        return Answer(text=run.draft or "", stop_reason=stop_reason(run.draft, otherwise="answered"))


async def gather(run: Run, *, query: str, pool: PassagePool, k: int) -> None:
    """Search with the cleaned query and put the hits into the pool; what is skipped, and why, goes into the trace."""
    cleaned = clean_query(query)
    if not cleaned:
        run.decide("search_skipped", "the query is empty after cleaning")
        return
    if pool.cap < 1:
        run.decide("search_skipped", "the budget has no passage")
        return
    sifted = pool.add(await run.search(cleaned, k=k))
    for passage_id, reason in sifted.skipped:
        run.decide("passage_skipped", f"{passage_id}: {reason}")
    for passage_id in sifted.evicted:
        run.decide("passage_evicted", passage_id)


def stop_reason(answer: str | None, *, otherwise: str) -> str:
    """The given reason, or "empty_answer" if there is no answer."""
    return otherwise if answer else "empty_answer"
