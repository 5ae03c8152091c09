"""The two arms without a loop: answer from what the model knows, and search once, then read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from router.types import ArmName, Json
from strategies.base import Answer, Need, OutOfBudget, Run
from strategies.params import ArmParams, public_params, read_params
from strategies.passages import PassagePool, clean_query, extract_answer, has_answer
from strategies.prompts import Template, ask, load_templates

__all__ = [
    "NoRetrieval",
    "NoRetrievalParams",
    "SingleStep",
    "SingleStepParams",
    "Style",
    "gather",
    "read",
    "stop_reason",
]

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

    needs: frozenset[Need] = frozenset({"completion", "stop"})

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
        )
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise="answered"))


class SingleStep:
    """Search once with the cleaned question, then read: one step (Adaptive-RAG's "B", IRCoT's OneR).

    If the budget allows no round or no passage, or the question consists of question words only, the search is
    skipped, which the trace says, and the model answers without passages.
    """

    needs: frozenset[Need] = frozenset({"completion", "stop"})

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
            run.note_branch("search_skipped", "the budget has no round")
        answer = await read(
            run,
            question=question,
            template=self._template,
            style=self._params.style,
            max_tokens=self._params.max_tokens,
            pool=pool,
            passage_words=self._params.passage_words,
        )
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise="answered"))


async def gather(run: Run, *, query: str, pool: PassagePool, k: int) -> None:
    """Search with the cleaned query and put the hits into the pool; what is skipped, and why, goes into the trace."""
    cleaned = clean_query(query)
    if not cleaned:
        run.note_branch("search_skipped", "the query is empty after cleaning")
        return
    if pool.cap < 1:
        run.note_branch("search_skipped", "the budget has no passage")
        return
    sifted = pool.add(await run.search(cleaned, k=k))
    for passage_id, reason in sifted.skipped:
        run.note_branch("passage_skipped", f"{passage_id}: {reason}")
    for passage_id in sifted.evicted:
        run.note_branch("passage_evicted", passage_id)


async def read(
    run: Run,
    *,
    question: str,
    template: Template,
    style: Style,
    max_tokens: int,
    purpose: str = "read",
    pool: PassagePool | None = None,
    passage_words: int = 350,
) -> str:
    """The final answer, "" if the model said nothing usable; it becomes the run's draft, too.

    If the deadline cuts the text short, what stands there becomes the draft where it is usable: any answer of a
    "direct" reader, of a "reasoned" one only an announced answer ("... answer is X"), since half a line of
    reasoning is none. An earlier draft stays otherwise. Raises what `ask` raises.
    """
    try:
        done = await ask(
            run,
            template=template,
            purpose=purpose,
            fields={"question": question},
            pool=pool,
            max_tokens=max_tokens,
            passage_words=passage_words,
            stop=("\n",),
        )
    except OutOfBudget:
        if style == "direct" or has_answer(run.partial):
            run.draft = extract_answer(run.partial) or run.draft
        raise
    answer = extract_answer(done.text)
    run.draft = answer or run.draft
    return answer


def stop_reason(answer: str, *, otherwise: str) -> str:
    """The given reason, or "empty_answer" if there is no answer."""
    return otherwise if answer else "empty_answer"
