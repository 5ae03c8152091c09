"""Tokens: what a generator told of them, and the words they make, over which attention and entropy are measured."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.base import Completion, Need
from ragbandit.strategies.run import Run

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
        remedy="use a generator that fills details as ragbandit.strategies.generators.token_details says",
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
