"""Canonical form of a text, for comparing answers and for searching. Texts that look the same have the same form.

The form is like Unicode's NFKC_Casefold (UAX 31), with dashes, apostrophes and digits of every script as ASCII. Words
are sequences of letters, digits and combining marks, or single characters of scripts without spaces. Numbers keep their
sign and decimal point (-5, 1.5) but lose their thousands separators; 1,5 is ambiguous and stays. `C++` and `C#` keep
their signs. Mathematical and currency signs outside ASCII are words, and so are < and > before a number.
"""

import re
import unicodedata
from functools import cache
from itertools import chain

#: scripts without spaces between words: Thai, Lao, Myanmar, Khmer, Tai, kana, Han, Bopomofo, Yi
SPACELESS = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u3005-\u312f\u31a0-\u31ff\u3400-\u4dbf"
    "\u4e00-\ua48f\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
#: invisible characters that are not in Unicode's category of format characters
_INVISIBLE = "\u034f\u0640\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef"
_ASCII: dict[int, str | None] = {
    **dict.fromkeys(map(ord, "\u2018\u2019\u201b\u2032\u02b9\u02bb\u02bc\u02bd\u00b4"), "'"),
    **dict.fromkeys(map(ord, "\u2014\u2015"), " - "),  # a dash between clauses
    **dict(zip(map(ord, "\u2122\u2120\u2212\u207b\u266f\u266d\u066b\u066c"), "  --#b.,", strict=True)),
}
#: a raised digit or a fraction after a digit. It gets a space before it: 10² is not 102, and 2½ is not 21/2
_RAISED = re.compile("[\u00b2\u00b3\u00b9\u2070-\u207b\u00bc-\u00be\u2150-\u215e](?<=[0-9].)")
_NARROW_SPACE = re.compile(r"[\u00a0\u2009\u202f](?<=\d.)(?=\d{3}(?!\d))")
_SEPARATED = re.compile(r"[,'](?<=\d[,'])\d")
_NUMBER = re.compile(r"(?<!\d)\d++(?:[.,']++\d++)+")
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:[,']\d{2,3})*[,']\d{3}(?:\.\d+)?")
_DECIMAL_COMMA = re.compile(r"(?:\d{1,3}|[1-9]\d{0,2}(?:\.\d{3})+),\d+")
_LEADING_POINT = re.compile(r"\.(?<![\w.]\.)(?=\d)")
_SIGN_BEFORE_CURRENCY = re.compile("-(?<!\\w-)([$\u00a2-\u00a5\u20a0-\u20cf])(?=[\\d.])")
#: the full stops in "U.S.A." and "Ph.D"
_INITIALS = re.compile(r"\.(?<=[^\W\d_]\.)(?=[^\W\d_](?![^\W_]))")
#: words after an "a" that is the name of an option, as in "a is right"
_OPTION = r"(?:is|was|and|or|because|since|as)\b"
#: an article; not the "a" of an option: in "A." and "(a)", and before a single letter or one of the words above
_ARTICLES = re.compile(rf"(?<![\w'.-])(?:(?:an|the)(?![\w'-])|a(?=[ \t]+[\"'(]*(?!{_OPTION})\w\w))")


@cache
def _rules() -> tuple[dict[int, str | None], re.Pattern[str], re.Pattern[str]]:
    """Returns (code point -> replacement or None, pattern of a word, pattern of ' _ and - inside a word)."""
    replaced: dict[int, str | None] = {}
    marks, symbols = [], []
    for character in map(chr, chain(range(0x80, 0x20000), range(0xE0000, 0xE0200))):
        match unicodedata.category(character):
            case "Cf" | "Me" | "Pd" as category:
                replaced[ord(character)] = "-" if category == "Pd" else None
            case "Nd":
                replaced[ord(character)] = str(unicodedata.decimal(character))
            case "Mn" | "Mc":
                marks.append(character)
            case "Sm" | "Sc" if character != "\u2044":  # a fraction slash separates words, as "/" does
                symbols.append(character)
    replaced |= dict.fromkeys(map(ord, re.findall(f"[{_INVISIBLE}]", "".join(marks) + _INVISIBLE))) | _ASCII
    mark, letter = "".join(marks), f"[^\\W_{SPACELESS}]"
    run = f"{letter}+(?:[{mark}]+{letter}*)*"
    run += rf"(?:[.,](?<=\d[.,])(?=\d){run})*"
    signs = r"(?<=[^\W\d_])(?:\+\+|[+#]+(?![\w+#]))|(?<=\b[a-z])-(?=[^\w-]*\Z)"
    # Most words end at a space, point or comma. `plain` matches these words three times as fast as `run`.
    plain = rf"{letter}++(?=[\s.,](?!\d))"
    word = rf"{plain}|{run}(?:{signs})?|-(?<![\w)\]%-]-)(?=\d){run}|[{SPACELESS}](?<=\w)[{mark}]*"
    word += rf"|[{''.join(symbols)}]|[<>](?<![-=<>].)(?==? ?-?\d)"
    return replaced, re.compile(word), re.compile(rf"['_-](?=\w)(?<=[\w{mark}].)(?!(?:(?<=\d-)|(?<=\de-))\d)")


def canonical_text(text: str) -> str:
    """The canonical form of a text, see the module."""
    if text.isascii():
        return text.lower()
    spaced = _NARROW_SPACE.sub(",", _RAISED.sub(r" \g<0>", text)).translate(_rules()[0])
    folded = unicodedata.normalize("NFKC", spaced).casefold()
    return unicodedata.normalize("NFKC", folded.replace("i\u0307", "i").replace("\u0131", "i"))


def is_blank(text: str | None) -> bool:
    """Whether the text is None, or contains only white space and invisible characters."""
    return text is None or not (canonical_text(text[:64]).strip() or canonical_text(text).strip())


def name_form(name: str) -> str:
    """The form in which a name is stored and compared: NFC, without format characters (Cf) and blanks at its ends."""
    if name.isascii():
        return name.strip()
    visible = "".join(sign for sign in name if unicodedata.category(sign) != "Cf")
    return unicodedata.normalize("NFC", visible).strip()


def words(text: str) -> list[str]:
    """The words of a text. Apostrophes, underscores and hyphens separate words."""
    return _words(canonical_text(text), joined=False)


def answer_words(text: str) -> list[str]:
    """The words of an answer without apostrophes, underscores, hyphens ("don't" is "dont") and English articles.

    Articles stay if the answer has no other words. A text without words is one word, so that "..." differs from "?".
    """
    form = canonical_text(text)
    return _words(_ARTICLES.sub(" ", form), joined=True) or _words(form, joined=True) or "".join(form.split()).split()


def _words(form: str, *, joined: bool) -> list[str]:
    """joined: whether apostrophes, underscores and hyphens inside a word are removed; otherwise they separate words."""
    _, word, joint = _rules()
    if _SEPARATED.search(form):
        form = _NUMBER.sub(_plain_number, form)
    form = _INITIALS.sub("", _SIGN_BEFORE_CURRENCY.sub(r"\1-", _LEADING_POINT.sub("0.", form)))
    return word.findall(joint.sub("", form) if joined else form)


def _plain_number(match: re.Match[str]) -> str:
    """Remove thousands separators from a number, or separate the numbers of a list by spaces."""
    number = match[0]
    if _GROUPED.fullmatch(number):
        return re.sub("[,']", "", number)
    return number if _DECIMAL_COMMA.fullmatch(number) else re.sub("[,']", " ", number)
