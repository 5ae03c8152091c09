"""Steps: the searches and the reading that most arms are made of."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Unpack, cast

from ragbandit.strategies.base import Completion, OutOfBudget, Passage, Result, at_once
from ragbandit.strategies.generators.text_feed import Token
from ragbandit.strategies.prompting.passages import PassagePool, clean_query, extract_answer, has_answer
from ragbandit.strategies.prompting.prompts import Showing, Template, ask
from ragbandit.strategies.run import Answer, Run

#: how a reader answers. "direct": the answer alone, on one line; "reasoned": a line of reasoning that ends in "the
#: answer is ...", of which the answer is taken; "long": a paragraph, taken whole
Style = Literal["direct", "reasoned", "long"]
#: how a reader of notes answers: "short", a few words on one line, or "long", a paragraph
AnswerStyle = Literal["short", "long"]


def stops_of(style: Style | AnswerStyle) -> tuple[str, ...]:
    """The strings at which a reader's text ends; a "long" one has several lines."""
    return () if style == "long" else ("\n",)


def answer_in(text: str, *, style: Style | AnswerStyle) -> str:
    """The answer in a reader's text: a "long" one is the whole text, of others see `extract_answer`."""
    return text.strip() if style == "long" else extract_answer(text)


async def gather(run: Run, *, query: str, pool: PassagePool, k: int) -> tuple[Passage, ...]:
    """Search with the cleaned query and put the hits into the pool; what is skipped, and why, goes into the trace.

    Returns the passages found that the pool holds, best first.
    """
    cleaned = clean_query(query)
    if not cleaned:
        run.note_branch("search_skipped", "the query is empty after cleaning")
        return ()
    if pool.cap < 1:
        run.note_branch("search_skipped", "the budget has no passage")
        return ()
    hits = await run.search(cleaned, k=k)
    sifted = pool.add(hits)
    for passage_id, reason in sifted.skipped:
        run.note_branch("passage_skipped", f"{passage_id}: {reason}")
    held = {passage.id: passage for passage in pool.passages}
    return tuple(held[hit.passage.id] for hit in hits if hit.passage.id in held)


async def gather_once(run: Run, *, query: str, pool: PassagePool, k: int, cap: int = 1) -> None:
    """`gather` in a round of its own, the last of `cap`; a budget without that round is told to the trace."""
    if not run.rounds_over and run.begin_round(cap=cap):
        await gather(run, query=query, pool=pool, k=k)
    else:
        run.note_branch("search_skipped", "the budget has no round")


async def together(
    calls: Sequence[Callable[[], Awaitable[Result]]], *, run: Run, caps: Sequence[str] = ("tokens", "dollars")
) -> list[Result]:
    """The results of the calls, in their order; made at the same time.

    One after the other where the budget has any of the caps: each call is held against what those before it have
    spent. The first call that fails ends the others, and its error is raised.
    """
    if any(getattr(run.budget, cap) is not None for cap in caps):
        return [await call() for call in calls]
    return await at_once(calls)


async def read(
    run: Run,
    *,
    question: str,
    template: Template,
    style: Style | AnswerStyle,
    max_tokens: int,
    purpose: str = "read",
    fields: Mapping[str, str] | None = None,
    final: bool = False,
    **showing: Unpack[Showing],
) -> str:
    """The final answer, "" if the model said nothing usable; it becomes the run's draft, too.

    fields: what the template is filled with, by default the question alone. final: nothing follows that could change
    the answer, so that a "long" one is given to whoever reads along while it is written; of the other styles no part is
    sure before the end. If the deadline cuts the text short, the text so far becomes the draft where it is usable: of a
    "reasoned" reader only an announced answer ("... answer is X"), since half a line of reasoning is no answer. An
    earlier draft stays otherwise.
    Raises what `ask` raises.
    """
    showing.setdefault("conversation", True)
    with partial_kept(run, style=style):
        done = await ask(
            run,
            template=template,
            purpose=purpose,
            fields={"question": question} if fields is None else fields,
            max_tokens=max_tokens,
            stop=stops_of(style),
            final=str.strip if final and style == "long" else None,
            **showing,
        )
    answer = answer_in(done.text, style=style)
    run.draft = answer or run.draft
    return answer


@contextmanager
def partial_kept(run: Run, *, style: Style | AnswerStyle) -> Iterator[None]:
    """Make what the deadline leaves of the text written in the block the draft, where it is an answer; see `read`."""
    try:
        yield
    except OutOfBudget:
        if style != "reasoned" or has_answer(run.partial):
            run.draft = answer_in(run.partial, style=style) or run.draft
        raise


def finished(answer: str, reason: str) -> Answer:
    """The answer of an arm that ended by this rule; its stop reason is "empty_answer" if there is none."""
    return Answer(text=answer, stop_reason=reason if answer else "empty_answer")


def mean_logprob(done: Completion) -> float:
    """Mean log-probability of the tokens of the text (<= 0), its perplexity being exp(-mean); -inf if none is told.

    Tokens that a stop string cut off do not count.
    """
    values: list[float] = []
    written = 0
    for token in cast(tuple[Token, ...], done.details.get("logprobs", ())):
        if written >= len(done.text):
            break
        values.append(token.logprob)
        written += len(token.text)
    return sum(values) / len(values) if values else float("-inf")
