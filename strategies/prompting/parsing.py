"""Parsing of replies that were asked for in a form: a JSON object, a label, yes or no.

Models wrap, repeat, quote and cut off what they were asked for. Everything here takes any text at all, never
raises, and gives None (or leaves a number out) where the form is not there. What to do then is the arm's
business: it counts the failure with `run.note_branch("parse_failed", ...)`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ragbandit.shared.types import Json

#: opening braces that are tried at most, so that a text of braces cannot cost minutes
_BRACES_TRIED = 50
_DECODER = json.JSONDecoder(strict=False)
#: what a model writes for JSON when it thinks in Python; strings are matched so that nothing inside them is changed.
#: One that is not closed goes to the end, once: to try at every quote anew would take the square of the length
_LOOSE = re.compile(
    r"""(?P<double>"(?:[^"\\]|\\.?)*+"?)|'(?P<single>(?:[^'\\]|\\.?)*+)'?|\b(?P<word>True|False|None)\b"""
    r"""|(?P<comma>,)(?=\s*[}\]])""",
    re.DOTALL,
)
#: the quotes of a single-quoted string, as they stand in a double-quoted one; other escapes are alike
_QUOTE = re.compile(r"""\\.|\"""", re.DOTALL)
_QUOTES = {"\\'": "'", '"': '\\"'}
_WORDS = {"True": "true", "False": "false", "None": "null"}

_NEGATION = re.compile(r"(?:\b(?:not|never|neither|nor|cannot)|n['\u2019]t)\s+(?:\w+\s+)?$", re.IGNORECASE)
#: characters before a label in which a negation is looked for
_NEGATION_REACH = 40
#: what stands between two labels when a model repeats the choice instead of making it
_EITHER = re.compile(r"[\s\"'`*]*+(?:/|\||,?\s*+\bor\b)[\s\"'`*]*+", re.IGNORECASE)

#: what may stand before an item of a list: "- ", "2) ", "Question 1: "
_BULLET = re.compile(
    r"[\s\-*\u2022>]{0,8}(?:(?:question|query|q)?\s{0,2}\d{1,2}\s{0,2}[.):]+(?!\d))?[\s*]{0,4}", re.IGNORECASE
)

_YES = ("yes", "true")
_NO = ("no", "false")

#: "1. ", "Passage [2]: ", "- 3) " and '"4": ' at the start of a line; inside one only as `_is_heading` says
_NUMBER = re.compile(
    r"(?:^|(?P<inline>[.,;{])\s?)[^\w\n]{0,8}(?P<noun>(?:passage|document|text|number)\b)?[^\w\n]{0,8}(?P<number>\d{1,3})"
    r"(?P<mark>[\"'*)\]]{0,4}\s{0,4}[.:)\]=\-\u2013](?!\d))?(?![\w.])",
    re.IGNORECASE | re.MULTILINE,
)


def parsed_json(text: str) -> dict[str, Json] | None:
    """The first JSON object in the text, wherever it stands: after prose, in a code fence, before more prose.

    Forgiven: single quotes, True, False and None, a comma before a closing bracket, line breaks inside a string.
    Braces that begin no object are passed over, which means that of an object that was cut off an inner one may be
    what is found: look for the keys you need. At most 50 braces are tried.
    """
    for number, brace in enumerate(re.finditer(r"\{", text)):
        if number >= _BRACES_TRIED:
            break
        rest = text[brace.start() :]
        value = _object(rest)
        if value is None:
            value = _object(_LOOSE.sub(_strict, rest))
        if value is not None:
            return value
    return None


def _object(text: str) -> dict[str, Json] | None:
    try:
        value, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):  # RecursionError: thousands of brackets; ValueError: a number too long, too
        return None
    return value if isinstance(value, dict) else None


def _strict(match: re.Match[str]) -> str:
    if match["double"] is not None:
        return match["double"]
    if match["single"] is not None:
        return '"' + _QUOTE.sub(lambda quote: _QUOTES.get(quote.group(), quote.group()), match["single"]) + '"'
    return "" if match["comma"] else _WORDS[match["word"]]


def parsed_items(text: str, *, most: int) -> tuple[str, ...]:
    """The first `most` items of a list with one item a line, without their bullets and numbers; () for a blank text.

    An item that says the same as one before it, ignoring case, is left out, and so is a line that ends with a colon:
    it announces the list.
    """
    items: dict[str, str] = {}
    for line in text.splitlines():
        item = _BULLET.sub("", line, count=1).strip()
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
    headings = [match for match in _NUMBER.finditer(text) if _is_heading(match)]
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
