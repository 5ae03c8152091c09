"""Lookahead: parts of the arms that write a sentence ahead and search when the model is unsure."""

import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from ragbandit.strategies.arm_parts.params import Count, PassageParams
from ragbandit.strategies.arm_parts.prompted import PromptedArm
from ragbandit.strategies.arm_parts.steps import partial_kept, stop_reason
from ragbandit.strategies.arm_parts.tokens import detail_of
from ragbandit.strategies.base import Completion, Hit, Need
from ragbandit.strategies.generators.token_details import Token
from ragbandit.strategies.prompting.passages import (
    PassagePool,
    Sifted,
    clean_query,
    extract_answer,
    first_sentence,
    has_answer,
)
from ragbandit.strategies.run import Answer, Run

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
    tokens: tuple[Token, ...] = detail_of(done, need="logprobs", run=run)
    if not "".join(token.text for token in tokens).startswith(done.text):
        run.note_branch("parse_failed", "the tokens do not spell the text")
    return tokens


def tokens_between(tokens: Iterable[Token], *, begin: int, end: int) -> tuple[Token, ...]:
    """The tokens that hold a character of the joined text from `begin` up to `end`."""
    inside: list[Token] = []
    offset = 0
    for token in tokens:
        if token.text[max(0, begin - offset) : max(0, end - offset)]:
            inside.append(token)
        offset += len(token.text)
    return tuple(inside)


@dataclass(frozen=True, kw_only=True, slots=True)
class LookaheadParams(PassageParams):
    """Of the arms that write ahead."""

    #: sentences of the text; the papers cap its tokens
    sentences: Count = 3
    #: passages searched for; each search replaces those of the one before
    passages: Count = 2
    #: tokens of the answer, where the text does not announce one
    max_tokens: Count = 24


Ahead = TypeVar("Ahead", bound=LookaheadParams)


class LookaheadArm(PromptedArm[Ahead]):
    """Base of the arms that write a text sentence by sentence, and conclude with the answer that it announces."""

    prompts: ClassVar = {"write": "think_reasoned", "conclude": "conclude"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Write, then take the announced answer or ask for it."""
        pool = LatestPool(cap=self._params.passages, distinct=run.budget.passages)
        sentences, ended = await self._write_all(question, run=run, pool=pool)
        run.note_branch("text_ended", ended)
        answer = await self._conclude(question, thoughts=" ".join(sentences), run=run, pool=pool)
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise=ended))

    @abstractmethod
    async def _write_all(self, question: str, *, run: Run, pool: PassagePool) -> tuple[list[str], str]:
        """(the sentences, the rule that ended them)."""

    async def _write(
        self,
        question: str,
        *,
        sentences: Sequence[str],
        run: Run,
        purpose: str,
        max_tokens: int,
        want: frozenset[Need],
        pool: PassagePool | None = None,
    ) -> Completion:
        """What the model writes after these sentences, up to the end of the line."""
        fields = {"question": question, "thoughts": " ".join(sentences)}
        with partial_kept(run, style="reasoned"):
            return await self._ask(
                "write",
                fields,
                run=run,
                purpose=purpose,
                max_tokens=max_tokens,
                pool=pool,
                stop=("\n",),
                want=want,
                conversation=True,
            )

    async def _conclude(self, question: str, *, thoughts: str, run: Run, pool: PassagePool) -> str:
        """The answer that the thoughts announce, else what the model says after "So the answer is"; "" if nothing.

        It becomes the draft, as does one that the deadline cut short. The second way is how DRAGIN's and SeaKR's
        evaluations treat a text without an answer.
        """
        answer = extract_answer(thoughts) if has_answer(thoughts) else ""
        if not answer:
            fields = {"question": question, "thoughts": thoughts}
            return await self._read(question, run=run, style="direct", use="conclude", fields=fields, pool=pool)
        run.draft = answer
        return answer
