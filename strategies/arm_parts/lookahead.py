"""Lookahead: parts of the arms that write a sentence ahead and search when the model is unsure."""

import math
import re
from collections.abc import Iterable
from typing import cast

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.arm_parts.steps import partial_kept
from ragbandit.strategies.base import Completion, Hit
from ragbandit.strategies.generators.token_details import Token
from ragbandit.strategies.prompting.passages import (
    PassagePool,
    Sifted,
    clean_query,
    extract_answer,
    first_sentence,
    has_answer,
)
from ragbandit.strategies.prompting.prompts import Template, ask
from ragbandit.strategies.run import Run

_WORD = re.compile(r"\w")


class LatestPool(PassagePool):
    """A pool that holds the passages of the latest search only; those shown before still count as shown.

    `distinct` caps the distinct passages shown over all searches (None: no cap). A search that brings nothing
    admissible leaves the passages held before.
    """

    def __init__(self, *, cap: int, distinct: int | None = None) -> None:
        super().__init__(cap=cap if distinct is None else min(cap, distinct), most_shown=distinct)

    def clear(self) -> None:
        """Hold nothing; what was shown stays counted."""
        self._held = []

    def add(self, hits: Iterable[Hit]) -> Sifted:
        """Hold these instead; says which came in, which did not and why."""
        before, self._held = self._held, []
        sifted = super().add(hits)
        if not sifted.added:
            self._held = before
        return sifted


def sentence_tokens(done: Completion, *, run: Run) -> tuple[Token, ...]:
    """Those of the first sentence of the text."""
    begin = len(done.text) - len(done.text.lstrip())
    tokens = written_tokens(done, run=run)
    return tokens_between(tokens, begin=begin, end=begin + len(first_sentence(done.text)))


def masked_query(tokens: Iterable[Token], *, beta: float) -> str:
    """The text of the tokens likelier than `beta`, without question words; "" if no letter or digit is left."""
    text = "".join(token.text if math.exp(token.logprob) > beta else " " for token in tokens)
    query = clean_query(text)
    return query if _WORD.search(query) else ""


def written_tokens(done: Completion, *, run: Run) -> tuple[Token, ...]:
    """The tokens of a completion that wanted "logprobs"; a text they do not spell is noted in the trace.

    Raises ArmFailed if the generator told nothing, although something was written.
    """
    tokens = cast(tuple[Token, ...], done.details.get("logprobs", ()))
    if not tokens and done.text:
        raise ArmFailed(
            f"{run.generator.name} was asked for log-probabilities and told none",
            field="details.logprobs",
            remedy="use a generator that fills details as ragbandit.strategies.generators.token_details says",
        )
    if not "".join(token.text for token in tokens).startswith(done.text):
        run.note_branch("parse_failed", "the tokens do not spell the text")
    return tokens


def tokens_between(tokens: Iterable[Token], *, begin: int, end: int) -> tuple[Token, ...]:
    """The tokens that hold a character of the joined text from `begin` up to `end`."""
    inside: list[Token] = []
    place = 0
    for token in tokens:
        if token.text[max(0, begin - place) : max(0, end - place)]:
            inside.append(token)
        place += len(token.text)
    return tuple(inside)


async def conclude(
    run: Run,
    *,
    question: str,
    thoughts: str,
    template: Template,
    max_tokens: int,
    pool: PassagePool,
    passage_words: int,
) -> str:
    """The answer that the thoughts announce, else what the model says after "So the answer is"; "" if nothing.

    It becomes the draft, as does one that the deadline cut short. The second way is how DRAGIN's and SeaKR's
    evaluations treat a text without an answer.
    """
    answer = extract_answer(thoughts) if has_answer(thoughts) else ""
    if not answer:
        with partial_kept(run, style="direct"):
            done = await ask(
                run,
                template=template,
                purpose="conclude",
                fields={"question": question, "thoughts": thoughts},
                pool=pool,
                max_tokens=max_tokens,
                passage_words=passage_words,
                stop=("\n",),
                conversation=True,
            )
        answer = extract_answer(done.text)
    run.draft = answer or run.draft
    return answer
