import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.arm_parts.prompted import Count, PassageParams, PromptedArm
from ragbandit.strategies.arm_parts.steps import keep_partial, make_answer
from ragbandit.strategies.base import Completion, Hit, Need, Passage
from ragbandit.strategies.generators.parts import Token
from ragbandit.strategies.prompting.passages import PassagePool, Sifted, extract_answer, first_sentence, has_answer
from ragbandit.strategies.run import Answer, Run

Floats = npt.NDArray[np.float64]

_WORD = re.compile(r"\S+")


def detail_of(done: Completion, *, need: Need, run: Run) -> Any:
    """Returns `done.details[need]`, or () if the text is empty. Raises ArmFailed if a text has no such detail."""
    detail = done.details.get(need)
    if detail is not None and detail != ():
        return detail
    if not done.text:
        return ()
    message = f"{run.generator.name} was asked for {need} and returned none"
    remedy = "use a generator that fills details as ragbandit.strategies.generators.parts describes"
    raise ArmFailed(message, field=f"details.{need}", remedy=remedy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    text: str
    tokens: tuple[int, ...]  #: positions of the word's tokens, in order
    begin: int  #: position of the word's first character in the text


def merge_words(tokens: Sequence[str]) -> list[Word]:
    """Join tokens, and split the text into words at white space. A token with parts of two words belongs to both."""
    token_at = [number for number, token in enumerate(tokens) for _ in token]  # position of each character's token
    return [
        Word(text=match[0], tokens=tuple(dict.fromkeys(token_at[slice(*match.span())])), begin=match.start())
        for match in _WORD.finditer("".join(tokens))
    ]


class LatestPool(PassagePool):
    """A pool that has only the passages of the latest search.

    The budget's cap on passages applies to all searches together. If a search adds no passage, the pool is unchanged.
    """

    def __init__(self, run: Run, *, cap: int) -> None:
        super().__init__(cap=run.passage_cap(cap))
        self._run = run

    def clear(self) -> None:
        self._passages = []

    def add(self, hits: Iterable[Hit]) -> Sifted:
        previous, self._passages = self._passages, []
        sifted = super().add(hits)
        if not sifted.added:
            self._passages = previous
        return sifted

    def _refusal(self, passage: Passage) -> str | None:
        reason, cap = super()._refusal(passage), self._run.budget.passages
        if reason is not None or cap is None:
            return reason
        shown = self._run.shown.keys() | {in_pool.id for in_pool in self._passages} | {passage.id}
        return None if len(shown) <= cap else f"the budget allows {cap} passages"


def first_sentence_tokens(done: Completion, *, run: Run) -> tuple[Token, ...]:
    """The tokens of the text's first sentence, with log-probabilities. Raises ArmFailed if the model returned none."""
    tokens: tuple[Token, ...] = detail_of(done, need="logprobs", run=run)
    if not "".join(token.text for token in tokens).startswith(done.text):
        run.note_branch("parse_failed", "the tokens do not spell the text")
    begin = len(done.text) - len(done.text.lstrip())
    return tokens_between(tokens, begin=begin, end=begin + len(first_sentence(done.text)))


def tokens_between(tokens: Sequence[Token], *, begin: int, end: int) -> tuple[Token, ...]:
    """The tokens that have a character between positions `begin` and `end` of the joined text."""
    token_at = [number for number, token in enumerate(tokens) for _ in token.text]
    return tuple(tokens[number] for number in dict.fromkeys(token_at[begin:end]))


@dataclass(frozen=True, kw_only=True, slots=True)
class LookaheadParams(PassageParams):
    sentences: Count = 3  #: maximum number of sentences of the text (the papers limit its tokens instead)
    rounds: Count = 2
    passages: Count = 2  #: passages per search. Each search replaces the passages of the previous search
    max_tokens: Count = 24  #: maximum number of tokens of the further call for an answer, if the text has no answer


Ahead = TypeVar("Ahead", bound=LookaheadParams)


class LookaheadArm(PromptedArm[Ahead]):
    """Base of the arms that write a text sentence by sentence until it contains "answer is"."""

    package = __package__
    prompts: ClassVar = {"write": "think_reasoned", "conclude": "conclude"}
    capped_by: ClassVar[str]  #: name of the param that limits the tokens of a call
    nothing_new: ClassVar[str]  #: stop reason if the model adds nothing to the text

    async def answer(self, question: str, *, run: Run) -> Answer:
        pool = LatestPool(run, cap=self._params.passages)
        sentences: list[str] = []
        stop_reason = ""
        while not stop_reason and len(sentences) < self._params.sentences:
            new, at_end = await self._continue_text(question, sentences=sentences, run=run, pool=pool)
            sentences += new[: self._params.sentences - len(sentences)]
            run.draft = (extract_answer(sentences[-1]) if new else "") or run.draft
            if has_answer(" ".join(sentences)):
                stop_reason = "answer_found"
            elif not new:
                stop_reason = self.nothing_new
            elif at_end:
                stop_reason = "model_ended"
        stop_reason = stop_reason or "max_sentences"
        run.note_branch("text_ended", stop_reason)
        return make_answer(
            await self._conclude(question, thoughts=" ".join(sentences), run=run, pool=pool), stop_reason
        )

    @abstractmethod
    async def _continue_text(
        self, question: str, *, sentences: Sequence[str], run: Run, pool: PassagePool
    ) -> tuple[list[str], bool]:
        """Continue the text. Returns (new sentences, whether the model ended the text after them)."""

    def _begin_search(self, run: Run) -> bool:
        """Begin a round. If no round is left, returns False, and the trace records "search_skipped"."""
        may_search = not run.rounds_over and run.begin_round(cap=self._params.rounds)
        if not may_search:
            run.note_branch("search_skipped", "no round is left")
        return may_search

    async def _write(
        self, question: str, *, sentences: Sequence[str], run: Run, purpose: str, pool: PassagePool | None = None
    ) -> Completion:
        """Continue the text to the end of the line. Only the purpose "look_ahead" requests details, such as entropy."""
        fields = {"question": question, "thoughts": " ".join(sentences)}
        with keep_partial(run, style="reasoned"):
            return await self._ask(
                "write",
                fields,
                run=run,
                purpose=purpose,
                max_tokens=cast(int, self.params[self.capped_by]),
                pool=pool,
                stop=("\n",),
                want=self.needs - PromptedArm.needs if purpose == "look_ahead" else frozenset(),
                conversation=True,
            )

    async def _conclude(self, question: str, *, thoughts: str, run: Run, pool: PassagePool) -> str:
        """Take the answer from the thoughts, or let the model continue "So the answer is". Sets the draft."""
        answer = extract_answer(thoughts) if has_answer(thoughts) else ""
        if not answer:
            fields = {"question": question, "thoughts": thoughts}
            # The evaluations of DRAGIN and SeaKR also ask like this if a text has no answer.
            return await self._read(question, run=run, use="conclude", fields=fields, pool=pool)
        run.draft = answer
        return answer
