"""Formats for people: numbers, shares, times, and texts from outside."""

import math
import re
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

#: text that is shown if there is no value
NOTHING: Final = "\u2013"


def number_or_name(text: str) -> float | str:
    """Parse a cost weight, which is a number or a name in the setting `cost_weights`."""
    try:
        return float(text)
    except ValueError:
        return text


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """A question, "did you mean NAME?", with the known name most similar to `given`; "" if no name is similar."""
    from difflib import get_close_matches  # imported here, since only errors need it

    if not isinstance(given, str):
        return ""
    similar = get_close_matches(given, known, n=1)
    return f"did you mean {similar[0]}? " if similar else ""


def known_choices(known: Iterable[str], *, given: object) -> str:
    """A remedy for an unknown name: the most similar known name, then all known names."""
    names = list(known)
    return f"{did_you_mean(given, names)}known: {', '.join(names) or 'none'}"


def printable(text: object) -> str:
    """Replace characters that control a terminal, hide text or change its direction by their codes.

    Line breaks and tabs stay. The text is not escaped for HTML or markup.
    """
    plain = str(text)
    if re.fullmatch(r"[\x20-\x7e\n\t]*", plain):
        return plain
    return "".join(map(_visible, plain))


def one_line(text: object) -> str:
    """Like `printable`, with spaces instead of line breaks and tabs."""
    return printable(text).replace("\n", " ").replace("\t", " ")


def _visible(sign: str) -> str:
    # Controls, formats, surrogates, separators of lines and paragraphs, and two code points that XML refuses.
    is_unsafe = unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") or sign in "\ufffe\uffff"
    if sign in "\n\t" or not is_unsafe:
        return sign
    return f"\\u{ord(sign):04x}" if ord(sign) <= 0xFFFF else f"\\U{ord(sign):08x}"


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits: `0.0412`. Whole numbers have all digits: `1,234`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    if "e+" in text:  # the number was rounded up to a power of ten
        return f"{float(text):,.0f}"
    if "e" in text:  # zeros are easier to read than an exponent
        text = f"{value:.{digits - 1 - math.floor(math.log10(abs(value)))}f}".rstrip("0")
    return text


def decimal(value: float | None, digits: int = 3, *, sign: str = "") -> str:
    """A number with `digits` decimals, for columns of a table. sign: "+" to show the sign of positive numbers."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{round(value, digits) + 0.0:{sign},.{digits}f}"  # no "-0.000"


def percent(share: float | None) -> str:
    """A share as a percentage with three significant digits: `12 %`, `0.0412 %`."""
    return NOTHING if share is None or not math.isfinite(share) else f"{number(100.0 * share)} %"


def counted(count: float, noun: str) -> str:
    """A count with its noun: `1 question`, `1,234 questions`."""
    return f"{count:,.0f} {noun}{'' if round(count) == 1 else 's'}"


def rough_count(count: float, noun: str = "") -> str:
    """A rough count: one significant digit up to 10,000, then the order of magnitude: `about 300`, `millions`.

    noun: the counted thing, in the singular: `about 300 questions`, `millions of questions`
    """
    rounded = max(float(f"{max(count, 1.0):.0e}"), 1.0)
    if rounded < 1e4:
        return f"about {counted(rounded, noun) if noun else f'{rounded:,.0f}'}"
    names = ("tens of thousands", "hundreds of thousands", "millions")
    return names[min(int(math.log10(rounded)) - 4, 2)] + (f" of {noun}s" if noun else "")


def duration(seconds: float | None) -> str:
    """A time span in a suitable unit: `12.5 ms`, `90 s`, `2.5 h`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if 0 < seconds < 1:
        return f"{number(1000 * seconds)} ms"
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{number(seconds / size)} {unit}"
    return f"{seconds:.3g} s"


#: unit -> its singular
_ONE: Final = {"steps": "step", "right answers": "right answer", "units of cost": "unit of cost"}


def money(value: float | None, unit: str) -> str:
    """An amount with its unit: `$310`, `-$1.25`, `5,310 steps`, `1 step`, `2.5 h`."""
    if value is None:
        return number(None)
    minus, size = "-" if value < 0 else "", abs(value)
    if unit == "seconds":
        return minus + duration(size)
    if unit != "dollars":
        text = number(size)
        return f"{minus}{text} {_ONE.get(unit, unit) if text == '1' else unit}"
    return f"{minus}${size:,.0f}" if size >= 100 else f"{minus}${size:.2f}" if size >= 1 else f"{minus}${number(size)}"


def worth(amount: float, term: str) -> str:
    """The value of a right answer in a cost term: `5 cents`, `$2.00`, `20 steps`, `2.5 h`."""
    if term == "dollars" and amount < 1.0:
        cents = number(100.0 * amount)
        return f"{cents} {'cent' if cents == '1' else 'cents'}"
    return money(amount, term.removesuffix("_total"))


def moment(seconds: float | None) -> str:
    """A time in seconds since 1970 as `2026-11-20 14:00:00 UTC`; a dash if it is out of range."""
    text = iso_time(seconds)
    return NOTHING if text is None else f"{text[:10]} {text[11:19]} UTC"


def iso_time(seconds: float | None) -> str | None:
    """A time in seconds since 1970 as ISO 8601 with milliseconds; None if it is out of range."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError):
        return None


def seconds_of(text: str) -> float:
    """Parse a date or time in ISO 8601 (UTC by default) to seconds since 1970. Raises ValueError."""
    at = datetime.fromisoformat(text.strip())
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
