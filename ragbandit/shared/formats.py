"""Numbers, shares, times and texts of others as people read them, on pages, in reports and on a terminal."""

import math
import re
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

#: what stands where there is no value
NOTHING: Final = "\u2013"
#: Unicode's categories of what is not seen but does something: controls, formats, halves of pairs, line separators
_STEERING: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: no character, which XML refuses
_NONCHARACTERS: Final = frozenset("\ufffe\uffff")
_HARMLESS: Final = re.compile(r"[\x20-\x7e\n\t]*")


def number_or_name(text: str) -> float | str:
    """A price as text has it: the number that it says, else the name that it is."""
    try:
        return float(text)
    except ValueError:
        return text


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """A question after the most similar known name; empty if nothing is similar or `given` is not text."""
    from difflib import get_close_matches  # for errors alone

    alike = get_close_matches(given, known, n=1) if isinstance(given, str) else []
    return f"did you mean {alike[0]}? " if alike else ""


def known_choices(known: Iterable[str], *, given: object) -> str:
    """A remedy for a name that is not known: the one that was most likely meant, then all that are."""
    names = list(known)
    return f"{did_you_mean(given, names)}known: {', '.join(names) or 'none'}"


def printable(text: object) -> str:
    """The text with its code in place of each character that would steer a terminal, hide text or turn its direction.

    Line breaks and tabs stay. The text is not escaped for HTML or markup.
    """
    plain = str(text)
    if _HARMLESS.fullmatch(plain):
        return plain
    return "".join(_code(sign) if _steers(sign) else sign for sign in plain)


def one_line(text: object) -> str:
    """As `printable`, with spaces for line breaks and tabs."""
    return printable(text).replace("\n", " ").replace("\t", " ")


def _steers(sign: str) -> bool:
    return sign not in "\n\t" and (unicodedata.category(sign) in _STEERING or sign in _NONCHARACTERS)


def _code(sign: str) -> str:
    return f"\\u{ord(sign):04x}" if ord(sign) <= 0xFFFF else f"\\U{ord(sign):08x}"


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits, whole numbers whole: `0.0412`, `1,234`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    if "e+" in text:  # rounded up to the next power of ten
        return f"{float(text):,.0f}"
    if "e" in text:  # many zeros are read more easily than an exponent
        text = f"{value:.{digits - 1 - math.floor(math.log10(abs(value)))}f}".rstrip("0")
    return text


def decimal(value: float | None, digits: int = 3, *, sign: str = "") -> str:
    """A number with `digits` decimals, as columns of a table need it; sign "+": with its sign."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{round(value, digits) + 0.0:{sign},.{digits}f}"  # no "-0.000"


def percent(share: float | None) -> str:
    """A share as a percentage in three digits: `12 %`, `0.0412 %`."""
    return NOTHING if share is None or not math.isfinite(share) else f"{number(100.0 * share)} %"


def counted(count: float, noun: str) -> str:
    """A count with its noun: `1 question`, `1,234 questions`."""
    return f"{count:,.0f} {noun}{'' if round(count) == 1 else 's'}"


def roughly(count: float) -> str:
    """A forecast of a count: one digit below 10,000, then its order of magnitude: `about 300`, `tens of thousands`."""
    rounded = max(float(f"{max(count, 1.0):.0e}"), 1.0)
    if rounded < 1e4:
        return f"about {rounded:,.0f}"
    names = ("tens of thousands", "hundreds of thousands", "millions")
    return names[min(int(math.log10(rounded)) - 4, 2)]


def duration(seconds: float | None) -> str:
    """A time span in its own unit: `12.5 ms`, `90 s`, `2.5 h`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if 0 < seconds < 1:
        return f"{number(1000 * seconds)} ms"
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{number(seconds / size)} {unit}"
    return f"{seconds:.3g} s"


def moment(seconds: float | None) -> str:
    """A time in seconds since 1970 as `2026-11-20 14:00:00 UTC`; a dash for one that no calendar has."""
    text = iso_time(seconds)
    return NOTHING if text is None else f"{text[:10]} {text[11:19]} UTC"


def iso_time(seconds: float | None) -> str | None:
    """A time in seconds since 1970 as ISO 8601 in milliseconds; None if no calendar has it."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError):
        return None


def seconds_of(text: str) -> float:
    """A date or time in ISO 8601, UTC unless it says otherwise, in seconds since 1970. Raises ValueError."""
    at = datetime.fromisoformat(text.strip())
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
