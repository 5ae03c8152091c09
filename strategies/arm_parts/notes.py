"""Notes: what the arms share that answer from notes in place of passages."""

from collections.abc import Mapping, Sequence
from typing import Literal

from ragbandit.strategies.arm_parts.steps import settled_in
from ragbandit.strategies.base import OutOfBudget, Passage
from ragbandit.strategies.prompting.passages import PassagePool, extract_answer
from ragbandit.strategies.prompting.prompts import Template, ask
from ragbandit.strategies.run import Run

#: "short" asks for a few words, "long" for a paragraph
AnswerStyle = Literal["short", "long"]


async def answer_from(
    run: Run,
    *,
    template: Template,
    fields: Mapping[str, str],
    style: AnswerStyle,
    max_tokens: int,
    pool: PassagePool | None = None,
    passages: Sequence[Passage] | None = None,
    passage_words: int = 350,
) -> str:
    """The final answer, "" if the model said nothing; it becomes the draft, as does one that the deadline cut short.

    A "short" answer is the first line without markup (`extract_answer`), a "long" one the whole text.
    """
    try:
        done = await ask(
            run,
            template=template,
            purpose="read",
            fields=fields,
            max_tokens=max_tokens,
            pool=pool,
            passages=passages,
            passage_words=passage_words,
            stop=("\n",) if style == "short" else (),
            conversation=True,
            final=settled_in(style),
        )
    except OutOfBudget:
        run.draft = _final(run.partial, style=style) or run.draft
        raise
    answer = _final(done.text, style=style)
    run.draft = answer or run.draft
    return answer


def _final(text: str, *, style: AnswerStyle) -> str:
    return extract_answer(text) if style == "short" else text.strip()


def one_line(text: str) -> str:
    """The text with every run of white space as one space: line breaks part words, they do not join them."""
    return " ".join(text.split())
