from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Unpack, cast

from ragbandit.strategies.base import Completion, Passage, Result, run_concurrently
from ragbandit.strategies.failures import OutOfBudget
from ragbandit.strategies.generators.parts import Token
from ragbandit.strategies.prompting.passages import PassagePool, clean_query, extract_answer, has_answer
from ragbandit.strategies.prompting.prompts import PromptOptions, Template, ask
from ragbandit.strategies.run import Answer, Run

#: form of a text with an answer. "direct": only the answer, on one line; "reasoned": a line of reasoning that ends with
#: "the answer is ..."; "long": a paragraph, which is the answer; "news": a paragraph, asked for in Chinese (CRUD-RAG)
Style = Literal["direct", "reasoned", "long", "news"]
#: form of an answer from notes. "short": a few words on one line; "long" and "news": a paragraph, see `Style`
AnswerStyle = Literal["short", "long", "news"]


def is_paragraph(style: Style | AnswerStyle) -> bool:
    return style in ("long", "news")


def stops_of(style: Style | AnswerStyle) -> tuple[str, ...]:
    return () if is_paragraph(style) else ("\n",)


def answer_in(text: str, *, style: Style | AnswerStyle) -> str:
    return text.strip() if is_paragraph(style) else extract_answer(text)


async def gather(run: Run, *, query: str, pool: PassagePool, k: int, clean: bool = True) -> tuple[Passage, ...]:
    """Search with the query, and add the hits to the pool. The trace records why passages are skipped.

    clean: whether to search without question words. Returns the passages among the hits that are now in the pool, best
    first.
    """
    cleaned = clean_query(query) if clean else query.strip()
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
    in_pool = {passage.id: passage for passage in pool.passages}
    return tuple(in_pool[hit.passage.id] for hit in hits if hit.passage.id in in_pool)


async def gather_once(run: Run, *, query: str, pool: PassagePool, k: int, cap: int = 1, clean: bool = True) -> None:
    """If a round is left, begin it and call `gather`. cap: the arm's own limit on rounds."""
    if not run.rounds_over and run.begin_round(cap=cap):
        await gather(run, query=query, pool=pool, k=k, clean=clean)
    else:
        run.note_branch("search_skipped", "the budget has no round")


async def run_calls(
    calls: Sequence[Callable[[], Awaitable[Result]]], *, run: Run, caps: Sequence[str] = ("tokens", "dollars")
) -> list[Result]:
    """Run the calls concurrently, or in sequence if the budget has a cap of `caps`, so that each call is checked."""
    if any(getattr(run.budget, cap) is not None for cap in caps):
        return [await call() for call in calls]
    return await run_concurrently(calls)


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
    **showing: Unpack[PromptOptions],
) -> str:
    """Ask the model for the answer, which also becomes the run's draft. Returns "" if the text has no answer.

    fields: values of the template's fields, by default only the question.
    final: whether this call writes the arm's answer. If so, a paragraph is streamed. Answers of other styles are not
    streamed, because they can change until the text ends.
    showing: see `PromptOptions`; `conversation` is True by default. Raises as `ask`.
    """
    showing.setdefault("conversation", True)
    with keep_partial(run, style=style):
        done = await ask(
            run,
            template=template,
            purpose=purpose,
            fields={"question": question} if fields is None else fields,
            max_tokens=max_tokens,
            stop=stops_of(style),
            final=str.strip if final and is_paragraph(style) else None,
            **showing,
        )
    answer = answer_in(done.text, style=style)
    run.draft = answer or run.draft
    return answer


@contextmanager
def keep_partial(run: Run, *, style: Style | AnswerStyle) -> Iterator[None]:
    """If the deadline ends a call in the block, make the answer in the partial text the draft.

    A partial text of the style "reasoned" has an answer only if it contains "answer is".
    """
    try:
        yield
    except OutOfBudget:
        if style != "reasoned" or has_answer(run.partial):
            run.draft = answer_in(run.partial, style=style) or run.draft
        raise


def make_answer(answer: str, reason: str) -> Answer:
    return Answer(text=answer, stop_reason=reason if answer else "empty_answer")


def mean_logprob(done: Completion) -> float:
    """Mean log-probability of the text's tokens, without tokens after a stop string; -inf without tokens."""
    values: list[float] = []
    written = 0
    for token in cast(tuple[Token, ...], done.details.get("logprobs", ())):
        if written >= len(done.text):
            break
        values.append(token.logprob)
        written += len(token.text)
    return sum(values) / len(values) if values else float("-inf")
