"""Lookahead: parts of the arms that write a sentence ahead and search when the model is unsure."""

import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.arms.prompted import Count, PassageParams, PromptedArm
from ragbandit.strategies.arms.steps import finished, partial_kept
from ragbandit.strategies.base import Completion, Hit, Need, Passage
from ragbandit.strategies.generators.text_feed import Token
from ragbandit.strategies.prompting.passages import (
    PassagePool,
    Sifted,
    clean_query,
    extract_answer,
    first_sentence,
    has_answer,
)
from ragbandit.strategies.run import Answer, Run

#: words without content of their own: articles, pronouns, prepositions, conjunctions, auxiliaries, plain adverbs
_LITTLE_WORDS = (
    "a an the this that these those i me my mine we us our ours you your yours he him his she her hers it its they "
    "them their theirs who whom whose which what where when why how myself yourself himself herself itself "
    "themselves of in on at by for from to into onto over under with without within about above below between "
    "through during before after against among across around as per via than like off out up down and or nor but "
    "if then else so because while until although though since whether both either neither not no yes is am are "
    "was were be been being do does did done doing have has had having can could may might must shall should will "
    "would there here also too very just only even ever never always again already still yet thus hence therefore "
    "however all any each every few more most other others some such own same both much many"
)

_STOP_WORDS = frozenset(_LITTLE_WORDS.split())

_PIECE = re.compile(r"\s+|\S+")
_LETTER = re.compile(r"\w")


def detail_of(done: Completion, *, need: Need, run: Run) -> Any:
    """The detail of a completion that wanted it; () where nothing was written.

    Raises ArmFailed if the generator told nothing, although something was written.
    """
    detail = done.details.get(need)
    if detail is not None and detail != ():
        return detail
    if not done.text:
        return ()
    raise ArmFailed(
        f"{run.generator.name} was asked for {need} and told none",
        field=f"details.{need}",
        remedy="use a generator that fills details as ragbandit.strategies.generators.text_feed says",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """A word of a text that came in tokens."""

    #: without white space around it
    text: str
    #: positions of its tokens, in order
    tokens: tuple[int, ...]
    #: where it begins in the joined text, white space passed over
    begin: int


def merge_words(tokens: Sequence[str]) -> list[Word]:
    """Words, between white space, out of tokens; a token that holds parts of two words belongs to both."""
    words: list[Word] = []
    positions: list[int] = []
    text, begin, offset = "", 0, 0
    for number, token in enumerate(tokens):
        for piece in _PIECE.findall(token):
            if piece.isspace():
                if text:
                    words.append(Word(text=text, tokens=tuple(positions), begin=begin))
                text, positions = "", []
            else:
                begin = begin if text else offset
                text += piece
                positions.append(number)
            offset += len(piece)
    return [*words, Word(text=text, tokens=tuple(positions), begin=begin)] if text else words


def is_content(word: str) -> bool:
    """True for a word that says something: no stop word, with a digit, or at least two letters.

    The paper asks a part-of-speech tagger (nouns, verbs, adjectives, names, numbers); this rule needs no model.
    Punctuation around the word is passed over; words of scripts without spaces count as content.
    """
    bare = word.strip(" \t\n.,;:!?\"'()[]{}<>*_`").lower().removesuffix("'s")
    if not _LETTER.search(bare) or bare in _STOP_WORDS:
        return False
    return len(bare) > 1 or bare.isdigit() or not bare.isascii()


_WORD = re.compile(r"\w")


class LatestPool(PassagePool):
    """A pool that holds the passages of the latest search only.

    The run's budget of passages caps those that it has shown over all searches; any that are held may be shown. A
    search that brings nothing admissible leaves the passages held before.
    """

    def __init__(self, run: Run, *, cap: int) -> None:
        super().__init__(cap=run.passage_cap(cap))
        self._run = run

    def clear(self) -> None:
        """Hold nothing."""
        self._held = []

    def add(self, hits: Iterable[Hit]) -> Sifted:
        """Hold these instead; says which came in, which did not and why."""
        before, self._held = self._held, []
        sifted = super().add(hits)
        if not sifted.added:
            self._held = before
        return sifted

    def _refusal(self, passage: Passage) -> str | None:
        reason, most = super()._refusal(passage), self._run.budget.passages
        if reason is not None or most is None:
            return reason
        shown = self._run.shown.keys() | {held.id for held in self._held} | {passage.id}
        return None if len(shown) <= most else f"the budget allows {most} passages"


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
    #: the param with the tokens that are written at a time
    capped_by: ClassVar[str]

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Write, then take the announced answer or ask for it."""
        pool = LatestPool(run, cap=self._params.passages)
        sentences, ended = await self._write_all(question, run=run, pool=pool)
        run.note_branch("text_ended", ended)
        answer = await self._conclude(question, thoughts=" ".join(sentences), run=run, pool=pool)
        return finished(answer, ended)

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
        pool: PassagePool | None = None,
    ) -> Completion:
        """What the model writes after these sentences, up to the end of the line; a look-ahead tells how sure it is."""
        fields = {"question": question, "thoughts": " ".join(sentences)}
        with partial_kept(run, style="reasoned"):
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
        """The answer that the thoughts announce, else what the model says after "So the answer is"; "" if nothing.

        It becomes the draft, as does one that the deadline cut short. The second way is how DRAGIN's and SeaKR's
        evaluations treat a text without an answer.
        """
        answer = extract_answer(thoughts) if has_answer(thoughts) else ""
        if not answer:
            fields = {"question": question, "thoughts": thoughts}
            return await self._read(question, run=run, use="conclude", fields=fields, pool=pool)
        run.draft = answer
        return answer
