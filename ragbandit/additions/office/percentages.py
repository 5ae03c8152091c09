"""Numbers in the number formats of Excel that show percentages.

A format has up to three sections for numbers: positive and zero, negative, zero; or two with conditions, as [>1]0%.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from operator import eq, ge, gt, le, lt, ne
from typing import Final

#: maximum length of a format in Excel, and of decimals
_MAX_FORMAT: Final = 255
_MAX_DECIMALS: Final = 30
#: digits enough for each float
_CONTEXT: Final = Context(prec=800, rounding=ROUND_HALF_UP)
_COMPARISONS: Final = {"<": lt, ">": gt, "<=": le, ">=": ge, "=": eq, "<>": ne}
_CONDITION: Final = re.compile(r"\[(<=|>=|<>|<|>|=)\s*(-?[\d.]+)\]")
#: parts of a section: a text in quotes, a sign after \\, a space as wide as a sign, a sign that fills, a mark, digits
_PART: Final = re.compile(r'"([^"]*)"?|\\(.)|(_.)|\*.|(\[[^\[\]]*\])|(General|[0#?][0#?,.]*|\.[0#?]+)|(.)', re.DOTALL)
#: signs, outside of quotes, of dates, texts, fractions and powers, which this module does not format
_OTHER: Final = re.compile(r"[dmyhs@/e]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Section:
    before: str
    digits: str  #: for example "#,##0.0#"
    after: str
    percents: int  #: number of multiplications by 100
    condition: tuple[str, float] | None


def as_percentage(value: float, *, code: str) -> str | None:
    """The number as this format shows it; None if the format does not show percentages."""
    sections = _sections(code)
    if not sections:
        return None
    section, signed = _choose_section(sections, value=value)
    try:
        digits = _format_digits(abs(Decimal(repr(value))), section=section)
    except InvalidOperation:  # infinite
        return None
    sign = "-" if signed and value < 0 and re.search("[1-9]", digits) else ""
    return " ".join(f"{sign}{section.before}{digits}{section.after}".split())


@lru_cache(maxsize=1024)
def _sections(code: str) -> Sequence[_Section]:
    """The sections for numbers; () unless a section has a percent sign and all sections can be read."""
    if "%" not in code or len(code) > _MAX_FORMAT:
        return ()
    parts = _split_sections(code)[:3]
    sections = [section for section in map(_parse_section, parts) if section is not None]
    is_known = len(sections) == len(parts)
    return sections if is_known and any("%" in f"{each.before}{each.after}" for each in sections) else ()


def _split_sections(code: str) -> list[str]:
    """Split a format at its semicolons, except semicolons in quotes and after escapes."""
    parts = [""]
    for each in _PART.finditer(code):
        if each.group() == ";":
            parts.append("")
        else:
            parts[-1] += each.group()
    return parts


def _parse_section(part: str) -> _Section | None:
    """Parse a section of a format; None if it has signs or several numbers that this module does not format."""
    before = after = digits = ""
    percents = 0
    condition = None
    for each in _PART.finditer(part):
        quoted, escaped, space, mark, placeholder, sign = each.groups()
        if mark and (compared := _CONDITION.fullmatch(mark)):
            condition = (compared[1], float(compared[2]))
        if placeholder and digits:
            return None
        if sign and _OTHER.match(sign):
            return None
        digits = placeholder or digits
        percents += sign == "%"
        literal = quoted or escaped or (" " if space else "") or sign or ""
        if digits:
            after += literal
        else:
            before += literal
    return _Section(before=before, digits=digits, after=after, percents=percents, condition=condition)


def _choose_section(sections: Sequence[_Section], *, value: float) -> tuple[_Section, bool]:
    """Returns (section for the value, whether a negative value gets a minus sign)."""
    first = sections[0]
    if any(each.condition for each in sections):
        for each in sections:
            if each.condition is None or _COMPARISONS[each.condition[0]](value, each.condition[1]):
                return each, True
        return first, True
    if value == 0 and len(sections) > 2:
        return _section_or_other(sections[2], other=first), False
    if value < 0 and len(sections) > 1:
        chosen = _section_or_other(sections[1], other=first)
        return chosen, chosen is first
    return first, True


def _section_or_other(section: _Section, *, other: _Section) -> _Section:
    """The section, or `other` if it is empty: an empty section would hide the value."""
    return section if section.digits or section.before.strip() else other


def _format_digits(number: Decimal, *, section: _Section) -> str:
    if not section.digits:
        return ""
    number = number.scaleb(2 * section.percents, _CONTEXT)
    if section.digits == "General":
        return format(number.normalize(_CONTEXT), "f")
    whole, _, decimals = section.digits.partition(".")
    places = sum(decimals.count(each) for each in "0#?")
    rounded = number.quantize(Decimal(1).scaleb(-min(places, _MAX_DECIMALS)), context=_CONTEXT)
    shown = format(rounded, ",f" if "," in whole else "f")
    least = decimals.rfind("0") + 1  # decimals after it are written only if they are not 0
    if places > least:
        head, _, tail = shown.partition(".")
        tail = tail[:least] + tail[least:].rstrip("0")
        shown = f"{head}.{tail}" if tail else head
    return shown
