"""Parse a model's replies: items, labels, yes or no; sentences and words with content."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ragbandit.strategies.prompting.passages import sentence_spans

_NEGATION = re.compile(r"(?:\b(?:not|never|neither|nor|cannot)|n['\u2019]t)\s+(?:\w+\s+)?$", re.IGNORECASE)
#: text between two labels if the model repeats its options instead of choosing one
_EITHER = re.compile(r"[\s\"'`*]*+(?:/|\||,?\s*+\bor\b)[\s\"'`*]*+", re.IGNORECASE)

#: bullet before an item of a list: "- ", "2) ", "Question 1: "
_BULLET = re.compile(
    r"[\s\-*\u2022>]{0,8}(?:(?:question|query|q)?\s{0,2}\(?\d{1,2}\s{0,2}[.):]+(?!\d))?[\s*]{0,4}", re.IGNORECASE
)

#: number before an item: "1. ", "Passage [2]: ", "- 3) " or '"4": '. `_is_heading` checks numbers inside a line
_ITEM_NUMBER = re.compile(
    r"(?:^|(?P<inline>[.,;{])\s?)[^\w\n]{0,8}(?P<noun>(?:passage|document|text|number)\b)?[^\w\n]{0,8}(?P<number>\d{1,3})"
    r"(?P<mark>[\"'*)\]]{0,4}\s{0,4}[.:)\]=\-\u2013](?!\d))?(?![\w.])",
    re.IGNORECASE | re.MULTILINE,
)


def parse_items(text: str, *, most: int) -> tuple[str, ...]:
    """The first `most` items of a list with one item per line, without bullets, numbers and quotes.

    Repeated items are left out, and lines that end with a colon, because they announce the list.
    """
    items: dict[str, str] = {}
    for line in text.splitlines():
        item = _BULLET.sub("", line, count=1).strip()
        if item[:1] in ('"', "'", "`") and item[:1] == item[-1:]:
            item = item[1:-1].strip()
        if item and not item.endswith(":"):
            items.setdefault(item.casefold(), item)
    return tuple(items.values())[: max(0, most)]


def parse_label(text: str, *, labels: Sequence[str]) -> str | None:
    """The first label in the text, spelled as in `labels`; None if the text has no label.

    Labels must be whole words; case is ignored. The longest of overlapping labels is taken ("partly supported", not
    "supported"). Negated labels ("isn't very useful") and options ("useful or useless", "useful/useless") are ignored.
    """
    mentions = _find_mentions(text, labels=labels)
    for position, (mention, label) in enumerate(mentions):
        before = text[max(0, mention.start() - 40) : mention.start()]  # a negation begins at most 40 characters before
        if not _NEGATION.search(before) and not _repeats_options(text, mentions=mentions, position=position):
            return label
    return None


def _find_mentions(text: str, *, labels: Sequence[str]) -> list[tuple[re.Match[str], str]]:
    longest_first = sorted((label for label in labels if label.strip()), key=len, reverse=True)
    if not longest_first:
        return []
    pattern = "|".join("(" + r"\s+".join(map(re.escape, label.split())) + ")" for label in longest_first)
    matches = re.finditer(rf"(?<!\w)(?:{pattern})(?!\w)", text, re.IGNORECASE)
    return [(match, longest_first[(match.lastindex or 1) - 1]) for match in matches]


def _repeats_options(text: str, *, mentions: Sequence[tuple[re.Match[str], str]], position: int) -> bool:
    """Whether only "or" or a slash stands between this mention and the previous or next mention."""
    neighbours = [mention for mention, _ in mentions[max(0, position - 1) : position + 2]]
    return any(_EITHER.fullmatch(text[first.end() : second.start()]) for first, second in pairwise(neighbours))


def parse_yes_no(text: str) -> bool | None:
    """True if `parse_label` finds yes or true, False if it finds no or false, else None."""
    label = parse_label(text, labels=("yes", "true", "no", "false"))
    return None if label is None else label in ("yes", "true")


def parse_numbered_labels(text: str, *, labels: Sequence[str], count: int) -> Mapping[int, str]:
    """Parse the labels of the items 1 to `count` ("1. useful", "Passage [2]: useless ..."). Returns number -> label.

    The label of an item is the first label in the text up to the next number.
    """
    headings = [match for match in _ITEM_NUMBER.finditer(text) if _is_heading(match)]
    ends = [*(match.start() for match in headings), len(text)][1:]
    by_number: dict[int, str] = {}
    for heading, end in zip(headings, ends, strict=True):
        number = int(heading["number"])
        label = parse_label(text[heading.end() : end], labels=labels)
        if label is not None and 1 <= number <= count:
            by_number.setdefault(number, label)
    return by_number


def _is_heading(match: re.Match[str]) -> bool:
    if match["inline"] is None or match["noun"]:
        return True
    # "vol. 3) a" and "2 towns, 3 rivers" are not headings: inside a line, a number without a noun needs a mark.
    return match["inline"] != "." and match["mark"] is not None


def sentences_in(text: str) -> list[str]:
    return [text[begin:end] for begin, end in sentence_spans(text)]


#: stop words: articles, pronouns, prepositions, conjunctions, auxiliaries, plain adverbs
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
_LETTER = re.compile(r"\w")


def is_content(word: str) -> bool:
    """Whether a word has content: it is not a stop word, and it is a digit or has at least two characters.

    DRAGIN's paper uses a part-of-speech tagger; this rule needs no model. Punctuation around the word is ignored. One
    letter has content if it is not ASCII, because some scripts have words of one letter.
    """
    bare = word.strip(" \t\n.,;:!?\"'()[]{}<>*_`").lower().removesuffix("'s")
    if not _LETTER.search(bare) or bare in _STOP_WORDS:
        return False
    return len(bare) > 1 or bare.isdigit() or not bare.isascii()
