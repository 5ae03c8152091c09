"""Search queries, passages, sentences and answers: the texts of prompts and replies.

Functions from text to text, without a model. The rules follow IRCoT (Trivedi et al. 2023) as run by Adaptive-RAG
(Jeong et al. 2024); docstrings describe the differences.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from ragbandit.shared.errors import required_module
from ragbandit.strategies.base import Hit, Passage

_QUESTION_WORDS = frozenset({"who", "what", "when", "where", "why", "which", "how", "does", "is"})

# A model in a loop writes a hundred thousand digits, dots or "Mr. "s, so every pattern here takes linear time. Hence
# the possessive quantifiers, the look-behinds, and the searches in short tails only.
_NUMBER = r"\d[\d,]*+(?<!,)(?:\.\d++)?"
_REASONING_START = re.compile(r"\s*(?:thus|so|that is|therefore|hence)\b", re.IGNORECASE)
_ARITHMETIC = re.compile(rf"\d\s*+[+\-\u2212]\s*+{_NUMBER}\s*+=\s*+\d")

_MARKER = re.compile(r"\banswer\s+is\b(?:\s*:)?", re.IGNORECASE)
_LABEL = re.compile(r"\s*answer\s*:", re.IGNORECASE)
_WRAPPERS = (('"', '"'), ("'", "'"), ("“", "”"), ("\u2018", "\u2019"), ("«", "»"), ("`", "`"), ("**", "**"))
#: abbreviations that keep their full stop at the end of a text
_DOTTED_END = re.compile(r"(?:\b(?:[A-Za-z]\.){2,}|\b(?:Jr|Sr|Inc|Ltd|Co|Corp|Bros|etc|St|Mt)\.)$")

#: marks that may end a sentence: Western ones before a space or the end, East Asian ones anywhere, a line break
_SENTENCE_MARK = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”\u2019»)\]*]*+(?=\s|$)|[\u3002\uff01\uff1f]+[”\u2019\u300d\u300f\uff09]*|\n"
)
#: abbreviations that never end a sentence: a name or a number follows
_TITLE_BEFORE = re.compile(
    r"(?:^|[\s(\"'“\u2018])(?:Mr|Mrs|Ms|Messrs|Dr|Prof|St|Mt|Ft|Gen|Col|Maj|Capt|Cmdr|Lt|Sgt|Rev|Hon|Sen|Rep|Gov|Pres"
    r"|Fr|vs|v|cf|ca|e\.g|i\.e|viz|approx|Fig|Figs|Vol|pp|Nos)\.$"
)
#: initials, acronyms, company forms, months: they end a sentence only if the next word commonly begins one
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
#: characters before a full stop that are searched for an abbreviation: longer than any above
_TAIL = 16
#: characters that count as one word in a run without white space: scripts without spaces, addresses, data
_RUN = 20
_WORD = re.compile(rf"\S{{1,{_RUN}}}")


def clean_query(text: str) -> str:
    """The text without question words, for a keyword search (IRCoT, `remove_wh_words`).

    The text is split at white space. A token is dropped if it equals, ignoring case, one of who what when where
    why which how does is. Punctuation is part of a token, so "who" and "Who" are dropped while "who's", "Who?" and
    "is," stay. The other tokens are joined by single spaces; the result may be empty. Difference to the paper's code:
    it splits at single spaces only and keeps runs of them.
    """
    return " ".join(token for token in text.split() if token.lower() not in _QUESTION_WORDS)


def cut_words(text: str, *, words: int) -> tuple[str, int]:
    """Returns (first `words` words joined by single spaces, number of words). A shorter text is returned unchanged.

    Every 20 characters of a run without white space count as a word, and the run may be cut inside: a passage in
    Chinese, or one with data, is more than one word.
    """
    count = _count_words(text)
    if count <= words:  # the common case, without a match object for every word
        return text, count
    last = next(islice(_WORD.finditer(text), words - 1, None))
    return " ".join(text[: last.end()].split()), count


def _count_words(text: str) -> int:
    """Number of matches of _WORD, computed much faster."""
    runs = text.split()
    return len(runs) + sum([(len(run) - 1) // _RUN for run in runs if len(run) > _RUN])


def last_query(question: str, *, sentences: Sequence[str]) -> str:
    """The next search query: the last sentence of the chain that is not reasoning, else the question (IRCoT).

    A sentence is reasoning if it starts with thus, so, that is, therefore or hence, or contains arithmetic such as
    "1990 - 1950 = 40". Empty sentences are skipped. The query is not cleaned.
    """
    for sentence in reversed(sentences):
        if sentence.strip() and not (_REASONING_START.match(sentence) or _ARITHMETIC.search(sentence)):
            return sentence
    return question


def first_sentence(text: str) -> str:
    """The first sentence of a text, without leading white space; "" for an empty text.

    A line break always ends a sentence. A full stop does not if it belongs to a title ("Mr."), an initial
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
    """(begin, end) of every sentence of a text, in order, without the white space between them."""
    spans: list[tuple[int, int]] = []
    offset = 0
    while sentence := first_sentence(text[offset:]):
        begin = text.index(sentence, offset)
        offset = begin + len(sentence)
        spans.append((begin, offset))
    return spans


def sentences_in(text: str) -> list[str]:
    """The sentences of a text."""
    return [text[begin:end] for begin, end in sentence_spans(text)]


#: words without content: articles, pronouns, prepositions, conjunctions, auxiliaries, plain adverbs
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
    """Whether a word has content: it is not a stop word, and is a digit or has at least two characters.

    The paper uses a part-of-speech tagger (nouns, verbs, adjectives, names, numbers); this rule needs no model.
    Punctuation around the word is ignored; words of scripts without spaces count as content.
    """
    bare = word.strip(" \t\n.,;:!?\"'()[]{}<>*_`").lower().removesuffix("'s")
    if not _LETTER.search(bare) or bare in _STOP_WORDS:
        return False
    return len(bare) > 1 or bare.isdigit() or not bare.isascii()


def has_answer(sentence: str) -> bool:
    """Whether the sentence announces the answer: it contains "answer is", in any case."""
    return _MARKER.search(sentence) is not None


def extract_answer(text: str) -> str:
    """The answer in a model's text: the text after the last "answer is", else the whole text; then tidied.

    Tidying removes a leading "Answer:" label, white space, wrapping quotes and one trailing full stop. The rule is the
    papers' regex ("(.* answer is:? )(.*)", greedy, one line), with these differences:

    * the marker may begin the text ("Answer is: x" gives "x"; the papers keep it whole);
    * the marker may be on any line, and the answer ends with its line; if the rest of the line is empty, the next line
      with text is the answer; a last marker without text after it is ignored; a text with only such markers has no
      answer ("");
    * an announced answer ends with its sentence: further sentences on the line are not the answer;
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
    """Result of adding hits to a pool."""

    #: ids of the added passages, in order
    added: tuple[str, ...]
    #: (id, reason) of the skipped passages, in order
    skipped: tuple[tuple[str, str], ...]


#: most words of a passage (from IRCoT)
_MOST_WORDS = 600
#: similarity from which two passages count as duplicates (from IRCoT)
_ALIKE = 90.0


class PassagePool:
    """The first `cap` distinct passages that an arm has gathered for a question, in order of arrival.

    A hit is skipped if the pool has its id, if its text or title has more than 600 words (see `cut_words`), if both
    title and text resemble a passage of the pool by at least 90 (rapidfuzz ratio, 0..100), or if the pool is full.
    """

    def __init__(self, *, cap: int) -> None:
        self.cap = cap
        self._ratio = required_module("rapidfuzz.fuzz", extra="service").ratio
        self._held: list[Passage] = []

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The passages in the pool, oldest first."""
        return tuple(self._held)

    def add(self, hits: Iterable[Hit]) -> Sifted:
        """Add hits in order. Returns the added ones, and the skipped ones with reasons."""
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
        """Reason to skip a passage; None if the pool accepts it."""
        if any(held.id == passage.id for held in self._held):
            return "held already"
        long = [part for part in (passage.title, passage.text) if len(part) >= 2 * _MOST_WORDS]  # others are shorter
        words = max(map(_count_words, long), default=0)
        if words > _MOST_WORDS:
            return f"{words} words, more than {_MOST_WORDS}"
        twin = next((held.id for held in self._held if self._alike(held, passage)), None)
        if twin is not None:
            return f"near duplicate of {twin}"
        return f"pool full at {self.cap}" if len(self._held) >= self.cap else None

    def _alike(self, held: Passage, passage: Passage) -> bool:
        # The title first: it is short, and most pairs differ in it.
        return all(
            self._ratio(left, right, score_cutoff=_ALIKE) >= _ALIKE
            for left, right in ((held.title, passage.title), (held.text, passage.text))
        )


_NEGATION = re.compile(r"(?:\b(?:not|never|neither|nor|cannot)|n['\u2019]t)\s+(?:\w+\s+)?$", re.IGNORECASE)
#: characters before a label that are searched for a negation
_NEGATION_REACH = 40
#: text between two labels if a model repeats the choice instead of making it
_EITHER = re.compile(r"[\s\"'`*]*+(?:/|\||,?\s*+\bor\b)[\s\"'`*]*+", re.IGNORECASE)

_QUOTES = frozenset("\"'`")
#: bullet before an item of a list: "- ", "2) ", "Question 1: "
_BULLET = re.compile(
    r"[\s\-*\u2022>]{0,8}(?:(?:question|query|q)?\s{0,2}\(?\d{1,2}\s{0,2}[.):]+(?!\d))?[\s*]{0,4}", re.IGNORECASE
)

_YES = ("yes", "true")
_NO = ("no", "false")

#: "1. ", "Passage [2]: ", "- 3) " and '"4": ' at the start of a line; inside a line see `_is_heading`
_PARSING_LIST_NUMBER = re.compile(
    r"(?:^|(?P<inline>[.,;{])\s?)[^\w\n]{0,8}(?P<noun>(?:passage|document|text|number)\b)?[^\w\n]{0,8}(?P<number>\d{1,3})"
    r"(?P<mark>[\"'*)\]]{0,4}\s{0,4}[.:)\]=\-\u2013](?!\d))?(?![\w.])",
    re.IGNORECASE | re.MULTILINE,
)


def parsed_items(text: str, *, most: int) -> tuple[str, ...]:
    """The first `most` items of a list with one item per line, without bullets, numbers and quotes.

    Repeated items (ignoring case) are left out, and lines that end with a colon, which announce the list.
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
    """The first label in the text, spelled as in `labels`; None without one.

    Labels must be whole words, ignoring case; of overlapping labels the longer one counts ("partly supported", not
    "supported"). Negated labels ("not useful", "isn't very useful") and labels offered as a choice ("useful or
    useless", "useful/useless") do not count.
    """
    mentions = _mentions(text, labels=labels)
    for position, (mention, label) in enumerate(mentions):
        before = text[max(0, mention.start() - _NEGATION_REACH) : mention.start()]
        if not _NEGATION.search(before) and not _is_choice(text, mentions=mentions, position=position):
            return label
    return None


def _mentions(text: str, *, labels: Sequence[str]) -> list[tuple[re.Match[str], str]]:
    longest_first = sorted((label for label in labels if label.strip()), key=len, reverse=True)
    if not longest_first:
        return []
    patterns = (r"\s+".join(re.escape(word) for word in label.split()) for label in longest_first)
    pattern = "|".join(f"({label_pattern})" for label_pattern in patterns)
    matches = re.finditer(rf"(?<!\w)(?:{pattern})(?!\w)", text, re.IGNORECASE)
    return [(match, longest_first[(match.lastindex or 1) - 1]) for match in matches]


def _is_choice(text: str, *, mentions: Sequence[tuple[re.Match[str], str]], position: int) -> bool:
    """Whether only "or" or a slash is between this mention and the previous or next one."""
    around = [mention for mention, _ in mentions[max(0, position - 1) : position + 2]]
    return any(_EITHER.fullmatch(text[left.end() : right.start()]) for left, right in pairwise(around))


def parsed_yes_no(text: str) -> bool | None:
    """True if `parsed_label` finds yes or true, False if it finds no or false, else None."""
    label = parsed_label(text, labels=(*_YES, *_NO))
    return None if label is None else label in _YES


def parsed_numbered_labels(text: str, *, labels: Sequence[str], count: int) -> Mapping[int, str]:
    """Number, from 1 to `count`, -> its label in the text ("1. useful", "Passage [2]: useless ...").

    `parsed_label` reads the text from a number to the next one; the first label of a number counts.
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
    # "vol. 3) a" and "2 towns, 3 rivers" are prose: inside a line a number without a noun needs a mark.
    return match["inline"] != "." and match["mark"] is not None
