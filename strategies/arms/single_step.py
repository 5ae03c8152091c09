"""The two arms without a loop: answer from what the model knows, and search once, then read."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field

from ragbandit.router.types import ArmName, Json, Retrieved
from ragbandit.strategies.arm_parts.params import ArmParams, public_params, read_params
from ragbandit.strategies.base import Need, OutOfBudget, Passage
from ragbandit.strategies.prompting.passages import PassagePool, clean_query, extract_answer, has_answer
from ragbandit.strategies.prompting.prompts import Template, ask, load_templates
from ragbandit.strategies.run import Answer, Run

__all__ = [
    "NoRetrieval",
    "NoRetrievalParams",
    "SingleStep",
    "SingleStepParams",
    "Style",
    "find",
    "gather",
    "gather_once",
    "partial_kept",
    "read",
    "stop_reason",
    "together",
]

Result = TypeVar("Result")

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
    #: own prompts: template name -> text, or path of a file
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
    #: own prompts: template name -> text, or path of a file
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
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
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


async def gather_once(run: Run, *, query: str, pool: PassagePool, k: int, cap: int = 1) -> None:
    """`gather` in a round of its own, the last of `cap`; a budget without that round is told to the trace."""
    if not run.rounds_over and run.begin_round(cap=cap):
        await gather(run, query=query, pool=pool, k=k)
    else:
        run.note_branch("search_skipped", "the budget has no round")


async def find(run: Run, *, query: str, pool: PassagePool, k: int) -> tuple[Passage, ...]:
    """What `gather` found and the pool holds, best first."""
    before = len(run.trace)
    await gather(run, query=query, pool=pool, k=k)
    held = {passage.id: passage for passage in pool.passages}
    ids = [each for event in run.trace[before:] if isinstance(event, Retrieved) for each in event.ids]
    return tuple(held[each] for each in ids if each in held)


async def together(calls: Sequence[Callable[[], Awaitable[Result]]], *, run: Run) -> list[Result]:
    """What the calls give, in their order; made at the same time.

    One after the other where the budget caps tokens or dollars: each call is held against what those before it
    have spent. The first call that fails ends the others, and its error is raised.
    """
    if run.budget.tokens is not None or run.budget.dollars is not None:
        return [await call() for call in calls]

    async def made(call: Callable[[], Awaitable[Result]]) -> Result:
        return await call()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(made(call)) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


async def read(
    run: Run,
    *,
    question: str,
    template: Template,
    style: Style,
    max_tokens: int,
    purpose: str = "read",
    pool: PassagePool | None = None,
    passages: Sequence[Passage] | None = None,
    passage_words: int = 350,
) -> str:
    """The final answer, "" if the model said nothing usable; it becomes the run's draft, too.

    If the deadline cuts the text short, what stands there becomes the draft where it is usable: any answer of a
    "direct" reader, of a "reasoned" one only an announced answer ("... answer is X"), since half a line of
    reasoning is none. An earlier draft stays otherwise. Raises what `ask` raises.
    """
    with partial_kept(run, style=style):
        done = await ask(
            run,
            template=template,
            purpose=purpose,
            fields={"question": question},
            pool=pool,
            passages=passages,
            max_tokens=max_tokens,
            passage_words=passage_words,
            stop=("\n",),
        )
    answer = extract_answer(done.text)
    run.draft = answer or run.draft
    return answer


@contextmanager
def partial_kept(run: Run, *, style: Style) -> Iterator[None]:
    """Make what the deadline leaves of the text written in the block the draft, where it is an answer; see `read`."""
    try:
        yield
    except OutOfBudget:
        if style == "direct" or has_answer(run.partial):
            run.draft = extract_answer(run.partial) or run.draft
        raise


def stop_reason(answer: str, *, otherwise: str) -> str:
    """The given reason, or "empty_answer" if there is no answer."""
    return otherwise if answer else "empty_answer"
