"""Search queries, passages, sentences and answers: the texts that go into prompts and come out of replies.

Everything here is text in, text out, without a model. The rules follow IRCoT (Trivedi et al. 2023) as
Adaptive-RAG (Jeong et al. 2024) ran it; where its code had a trap, the docstring says what differs here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from ragbandit.shared.errors import required_module
from ragbandit.strategies.base import Hit, Passage

_QUESTION_WORDS = frozenset({"who", "what", "when", "where", "why", "which", "how", "does", "is"})

# Models write a hundred thousand digits, dots or "Mr. "s when they run wild: every pattern here takes time in
# proportion to its text. Hence the possessive quantifiers, the look-behinds, and the tails that are looked at alone.
_NUMBER = r"\d[\d,]*+(?<!,)(?:\.\d++)?"
_REASONING_START = re.compile(r"\s*(?:thus|so|that is|therefore|hence)\b", re.IGNORECASE)
_ARITHMETIC = re.compile(rf"\d\s*+[+\-\u2212]\s*+{_NUMBER}\s*+=\s*+\d")

_MARKER = re.compile(r"\banswer\s+is\b(?:\s*:)?", re.IGNORECASE)
_LABEL = re.compile(r"\s*answer\s*:", re.IGNORECASE)
_WRAPPERS = (('"', '"'), ("'", "'"), ("“", "”"), ("\u2018", "\u2019"), ("«", "»"), ("`", "`"), ("**", "**"))
#: words whose full stop belongs to them even at the end of a text
_DOTTED_END = re.compile(r"(?:\b(?:[A-Za-z]\.){2,}|\b(?:Jr|Sr|Inc|Ltd|Co|Corp|Bros|etc|St|Mt)\.)$")

#: a mark that may end a sentence: Western ones before a space or the end, East Asian ones anywhere, a line break
_SENTENCE_MARK = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”\u2019»)\]*]*+(?=\s|$)|[\u3002\uff01\uff1f]+[”\u2019\u300d\u300f\uff09]*|\n"
)
#: never the end of a sentence: a name or a number follows
_TITLE_BEFORE = re.compile(
    r"(?:^|[\s(\"'“\u2018])(?:Mr|Mrs|Ms|Messrs|Dr|Prof|St|Mt|Ft|Gen|Col|Maj|Capt|Cmdr|Lt|Sgt|Rev|Hon|Sen|Rep|Gov|Pres"
    r"|Fr|vs|v|cf|ca|e\.g|i\.e|viz|approx|Fig|Figs|Vol|pp|Nos)\.$"
)
#: the end only if a word follows that commonly begins a sentence: initials, acronyms, company forms, months
_MAYBE_BEFORE = re.compile(
    r"(?:^|[\s(\"'“\u2018.\-])(?:[A-Z]|(?:[A-Za-z]\.)+[A-Za-z]|Jr|Sr|Inc|Ltd|Co|Corp|Bros|etc|al|No|Op|Dept|Univ|Ave|Blvd|Rd"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec|Ph\.D|am|pm)\.$"
)
_STARTER_WORDS = (
    "the a an it its he his she her they their we our i this that these those there here in on at by for from after "
    "before when while as with since so thus therefore hence however but and or if both each one what who which "
    "where why how is was are were"
)
_STARTERS = frozenset(_STARTER_WORDS.split())
_LIST_NUMBER = re.compile(r"\(?\d{1,3}[.)]+$")
_NEXT_WORD = re.compile(r"\s++[\"'“\u2018(]*+(\w[\w']{0,15})")
#: characters before a full stop that tell whether it ends a sentence: longer than any abbreviation above
_TAIL = 16
#: a word, or as much of a run without white space as counts as one: scripts without spaces, addresses, data
_RUN = 20
_WORD = re.compile(rf"\S{{1,{_RUN}}}")


def clean_query(text: str) -> str:
    """The text without question words, for a keyword search (IRCoT, `remove_wh_words`).

    The text is split at white space. A token is dropped if it equals, ignoring case, one of who what when where
    why which how does is; punctuation is part of a token, so "who" and "Who" go while "who's", "Who?" and
    "is," stay. What is left is joined by single spaces, so the result may be empty, and cleaning twice
    changes nothing. Difference to the paper's code: it splits at single spaces only and keeps runs of them.
    """
    return " ".join(token for token in text.split() if token.lower() not in _QUESTION_WORDS)


def cut_words(text: str, *, words: int) -> tuple[str, int]:
    """(the text's first words with single spaces between, or the text as it is where it has no more; its words).

    A run without white space counts as a word for every 20 characters begun, and is cut inside: a passage in Chinese,
    or one of data, is no single word.
    """
    count = _count_words(text)
    if count <= words:  # nearly always: no match object for every word then
        return text, count
    last = next(islice(_WORD.finditer(text), words - 1, None))
    return " ".join(text[: last.end()].split()), count


def _count_words(text: str) -> int:
    """How often _WORD matches, far faster where the text is long."""
    runs = text.split()
    return len(runs) + sum([(len(run) - 1) // _RUN for run in runs if len(run) > _RUN])


def last_query(question: str, *, sentences: Sequence[str]) -> str:
    """The next search query: the last sentence of the chain that states something, else the question (IRCoT).

    A sentence is reasoning, and not searched, if it starts with thus, so, that is, therefore or hence, or
    contains arithmetic such as "1990 - 1950 = 40". Empty sentences are passed over. Not yet cleaned.
    """
    for sentence in reversed(sentences):
        if sentence.strip() and not (_REASONING_START.match(sentence) or _ARITHMETIC.search(sentence)):
            return sentence
    return question


def first_sentence(text: str) -> str:
    """The first sentence of a text, a prefix of the text without its leading white space; "" if there is none.

    A line break always ends a sentence. A full stop does not where it belongs to a title ("Mr."), an initial
    ("J. R. R. Tolkien"), an acronym ("U.S. Army"), a number ("3.5", "No. 7") or a list number ("1. The film").
    After initials, acronyms and forms like "Inc." it does if the next word commonly begins a sentence ("The").
    "!" and "?" before a lower-case word do not end it ("Yahoo! was").
    """
    text = text.lstrip()
    for mark in _SENTENCE_MARK.finditer(text):
        if mark.group() == "\n":
            return text[: mark.start()].rstrip()
        if _ends_sentence(text, end=mark.end(), mark=mark.group()):
            return text[: mark.end()]
    return text.rstrip()


def _ends_sentence(text: str, *, end: int, mark: str) -> bool:
    following = _NEXT_WORD.match(text, end)
    if following is None:
        return True
    word = following.group(1)
    if mark[0] in "!?…" or mark.startswith(".."):
        return not word[0].islower()
    if mark[0] != ".":
        return True
    before = text[max(0, end - _TAIL) : end]
    if _TITLE_BEFORE.search(before) or _LIST_NUMBER.fullmatch(text, 0, end):
        return False
    if _MAYBE_BEFORE.search(before):
        return word[0].isupper() and word.lower() in _STARTERS
    return True


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """(begin, end) of every sentence of a text, in order, white space between them left out."""
    spans: list[tuple[int, int]] = []
    offset = 0
    while sentence := first_sentence(text[offset:]):
        begin = text.index(sentence, offset)
        offset = begin + len(sentence)
        spans.append((begin, offset))
    return spans


def sentences_in(text: str) -> list[str]:
    """Every sentence of a text, in order."""
    return [text[begin:end] for begin, end in sentence_spans(text)]


def has_answer(sentence: str) -> bool:
    """True if the sentence announces the answer: it contains "answer is", in any case."""
    return _MARKER.search(sentence) is not None


def extract_answer(text: str) -> str:
    """The answer in a model's text: what follows the last "answer is", else the whole text; then tidied.

    Tidied: a leading "Answer:" label, white space, wrapping quotes and one trailing full stop are removed.
    The rule is that of the papers' regex ("(.* answer is:? )(.*)", greedy, one line), with these differences:

    * the marker may begin the text ("Answer is: x" gives "x"; the papers keep it whole);
    * line breaks before the marker do not hide it, and the answer ends with its line; if the rest of that
      line is empty, the next line with text is the answer; a last marker that nothing follows is ignored, and
      a text with only such markers has no answer ("");
    * an announced answer ends with its sentence: what a talkative model adds on the line is not the answer;
    * the full stop of an abbreviation stays ("Washington, D.C.", "John Smith Jr.").
    """
    markers = list(_MARKER.finditer(text))
    for marker in reversed(markers):
        rest = text[marker.end() :].strip()
        if rest.strip(".:"):
            return _tidy(first_sentence(rest))
        text = text[: marker.start()]
    if markers:
        return ""
    label = _LABEL.match(text)
    return _tidy(text[label.end() :] if label else text)


def _tidy(text: str) -> str:
    text = text.strip()
    dotted = False
    while text:
        before = text
        abbreviated = _DOTTED_END.search(text, max(0, len(text) - _TAIL)) is not None
        if text.endswith(".") and not dotted and not text.endswith("..") and not abbreviated:
            text, dotted = text[:-1].rstrip(), True
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : -len(closing)]
            wrapped = text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing)
            if wrapped and opening not in inner and closing not in inner:
                text = inner.strip()
        if text == before:
            break
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class Sifted:
    """The fate of hits offered to a pool."""

    #: ids that came in, in order
    added: tuple[str, ...]
    #: (id, reason) of those that did not, in order
    skipped: tuple[tuple[str, str], ...]


#: IRCoT's: words of a passage at most, and how alike two are that count as one
_MOST_WORDS, _ALIKE = 600, 90.0


class PassagePool:
    """The distinct passages an arm has gathered for one question, in order of arrival: the first `cap` of them.

    A hit is skipped if its id is held already, if its text or title has more than 600 words (see `cut_words`), if both
    its title and its text resemble a held passage by at least 90 (rapidfuzz ratio, 0..100), or if the pool is full.
    Caps and numbers are IRCoT's.
    """

    def __init__(self, *, cap: int) -> None:
        self.cap = cap
        self._ratio = required_module("rapidfuzz.fuzz", extra="service").ratio
        self._held: list[Passage] = []

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The passages held now, oldest first."""
        return tuple(self._held)

    def add(self, hits: Iterable[Hit]) -> Sifted:
        """Offer hits in order; says which came in, which did not and why."""
        added: list[str] = []
        skipped: list[tuple[str, str]] = []
        for passage in (hit.passage for hit in hits):
            reason = self._refusal(passage)
            if reason is None:
                self._held.append(passage)
                added.append(passage.id)
            else:
                skipped.append((passage.id, reason))
        return Sifted(added=tuple(added), skipped=tuple(skipped))

    def _refusal(self, passage: Passage) -> str | None:
        if any(held.id == passage.id for held in self._held):
            return "held already"
        long = [part for part in (passage.title, passage.text) if len(part) >= 2 * _MOST_WORDS]  # for others no count
        words = max(map(_count_words, long), default=0)
        if words > _MOST_WORDS:
            return f"{words} words, more than {_MOST_WORDS}"
        twin = next((held.id for held in self._held if self._alike(held, passage)), None)
        if twin is not None:
            return f"near duplicate of {twin}"
        return f"pool full at {self.cap}" if len(self._held) >= self.cap else None

    def _alike(self, one: Passage, other: Passage) -> bool:
        # The title first: it is short, and most pairs end there.
        return all(
            self._ratio(left, right, score_cutoff=_ALIKE) >= _ALIKE
            for left, right in ((one.title, other.title), (one.text, other.text))
        )


_NEGATION = re.compile(r"(?:\b(?:not|never|neither|nor|cannot)|n['\u2019]t)\s+(?:\w+\s+)?$", re.IGNORECASE)
#: characters before a label in which a negation is looked for
_NEGATION_REACH = 40
#: what stands between two labels when a model repeats the choice instead of making it
_EITHER = re.compile(r"[\s\"'`*]*+(?:/|\||,?\s*+\bor\b)[\s\"'`*]*+", re.IGNORECASE)

_QUOTES = frozenset("\"'`")
#: what may stand before an item of a list: "- ", "2) ", "Question 1: "
_BULLET = re.compile(
    r"[\s\-*\u2022>]{0,8}(?:(?:question|query|q)?\s{0,2}\(?\d{1,2}\s{0,2}[.):]+(?!\d))?[\s*]{0,4}", re.IGNORECASE
)

_YES = ("yes", "true")
_NO = ("no", "false")

#: "1. ", "Passage [2]: ", "- 3) " and '"4": ' at the start of a line; inside one only as `_is_heading` says
_PARSING_LIST_NUMBER = re.compile(
    r"(?:^|(?P<inline>[.,;{])\s?)[^\w\n]{0,8}(?P<noun>(?:passage|document|text|number)\b)?[^\w\n]{0,8}(?P<number>\d{1,3})"
    r"(?P<mark>[\"'*)\]]{0,4}\s{0,4}[.:)\]=\-\u2013](?!\d))?(?![\w.])",
    re.IGNORECASE | re.MULTILINE,
)


def parsed_items(text: str, *, most: int) -> tuple[str, ...]:
    """The first `most` items of a list with one item a line, without their bullets and numbers; () for a blank text.

    Quotes around an item go. One that says the same as one before it, ignoring case, is left out, and so is a line that
    ends with a colon: it announces the list.
    """
    items: dict[str, str] = {}
    for line in text.splitlines():
        item = _BULLET.sub("", line, count=1).strip()
        if item[:1] in _QUOTES and item[:1] == item[-1:]:
            item = item[1:-1].strip()
        if item and not item.endswith(":"):
            items.setdefault(item.casefold(), item)
    return tuple(items.values())[: max(0, most)]


def parsed_label(text: str, *, labels: Sequence[str]) -> str | None:
    """The label that the text gives, spelled as in `labels`; None if it gives none.

    It is the first one named as whole words, ignoring case; where labels overlap the longer is meant ("partly
    supported", not "supported"). A denied label ("not useful", "isn't very useful") is not given, nor are labels
    offered as a choice ("useful or useless", "useful/useless").
    """
    named = _mentions(text, labels=labels)
    for position, (mention, label) in enumerate(named):
        before = text[max(0, mention.start() - _NEGATION_REACH) : mention.start()]
        if not _NEGATION.search(before) and not _is_choice(text, named=named, position=position):
            return label
    return None


def _mentions(text: str, *, labels: Sequence[str]) -> list[tuple[re.Match[str], str]]:
    longest_first = sorted((label for label in labels if label.strip()), key=len, reverse=True)
    if not longest_first:
        return []
    patterns = (r"\s+".join(re.escape(word) for word in label.split()) for label in longest_first)
    pattern = "|".join(f"({each})" for each in patterns)
    matches = re.finditer(rf"(?<!\w)(?:{pattern})(?!\w)", text, re.IGNORECASE)
    return [(match, longest_first[(match.lastindex or 1) - 1]) for match in matches]


def _is_choice(text: str, *, named: Sequence[tuple[re.Match[str], str]], position: int) -> bool:
    """True if nothing but "or" or a slash stands between this label and the one before or after it."""
    around = named[max(0, position - 1) : position + 2]
    return any(_EITHER.fullmatch(text[one.end() : other.start()]) for (one, _), (other, _) in pairwise(around))


def parsed_yes_no(text: str) -> bool | None:
    """True for yes or true, False for no or false, whichever `parsed_label` finds; None for neither."""
    label = parsed_label(text, labels=(*_YES, *_NO))
    return None if label is None else label in _YES


def parsed_numbered_labels(text: str, *, labels: Sequence[str], count: int) -> Mapping[int, str]:
    """Number -> label for the numbers from 1 to `count` that the text labels ("1. useful", "Passage [2]: useless ...").

    What follows a number, up to the next, is read by `parsed_label`; the first label for a number counts.
    """
    headings = [match for match in _PARSING_LIST_NUMBER.finditer(text) if _is_heading(match)]
    ends = [*(match.start() for match in headings), len(text)][1:]
    by_number: dict[int, str] = {}
    for heading, end in zip(headings, ends, strict=True):
        number = int(heading["number"])
        label = parsed_label(text[heading.end() : end], labels=labels)
        if label is not None and 1 <= number <= count:
            by_number.setdefault(number, label)
    return by_number


def _is_heading(match: re.Match[str]) -> bool:
    if match["inline"] is None or match["noun"]:
        return True
    # "vol. 3) a" is prose, and so is "2 towns, 3 rivers": inside a line a bare number needs a mark.
    return match["inline"] != "." and match["mark"] is not None
