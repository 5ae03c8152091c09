"""How numbers, times and texts of others are written."""

import re
import unicodedata
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from ragbandit.shared.texts.formats import (
    NOTHING,
    decimal,
    duration,
    iso_time,
    moment,
    number,
    one_line,
    percent,
    printable,
    rough_count,
    seconds_of,
)

ROOT = Path(__file__).parents[3]


def test_printable_text():
    """Letters of any script and line breaks stay; what steers a terminal or turns text stands as its code."""
    assert printable("Grüße,\n\t世界 🙂") == "Grüße,\n\t世界 🙂"
    assert printable("a\u200bb\u2028c\x9b31m\ud800") == "a\\u200bb\\u2028c\\u009b31m\\ud800"
    assert printable("\U000e0041") == "\\U000e0041"


@given(st.text())
def test_one_line_is_harmless_for_terminals_and_xml(text):
    """No control, no turn of direction, no line break; text that is harmless stays, twice is as once."""
    line = one_line(text)
    assert not {unicodedata.category(sign) for sign in line} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert one_line(line) == line
    kept = ET.fromstring(f"<a>{line.replace('&', '').replace('<', '')}</a>").text or ""
    assert kept == line.replace("&", "").replace("<", "")


@pytest.mark.parametrize(
    ("share", "text"), [(0.95, "95 %"), (0.999, "99.9 %"), (0.0012345, "0.123 %"), (0.0, "0 %"), (None, NOTHING)]
)
def test_shares_are_percentages_of_three_digits(share, text):
    """A share that is not 0 is not shown as 0."""
    assert percent(share) == text


@pytest.mark.parametrize(("value", "text"), [(-0.0, "0"), (0.04124, "0.0412"), (-1234.4, "-1,234")])
def test_numbers(value, text):
    """Three significant digits, all digits of whole numbers, and no minus zero."""
    assert number(value) == text


@pytest.mark.parametrize(("value", "text"), [(-1e-14, "+0.0"), (-0.04, "+0.0"), (-0.06, "-0.1"), (1234.56, "+1,234.6")])
def test_decimals(value, text):
    """A number that is rounded to zero has no minus."""
    assert decimal(value, 1, sign="+") == text


def test_signed_numbers_are_written_by_one_function():
    """Every number that is shown with its sign is written by `decimal`, since a format as `:+.1f` writes "-0.0"."""
    signed = re.compile(r":\+[,.\d]*[efg%]\}")
    places = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for folder in (
            "router",
            "workers",
            "strategies",
            "ragbandit/shared",
            "ragbandit/additions",
            "examples",
            "benchmarks",
            "docs",
        )
        for path in (ROOT / folder).rglob("*.py")
        for match in signed.finditer(path.read_text(encoding="utf-8"))
    ]
    assert places == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0125, "12.5 ms"), (90.0, "90 s"), (9000.0, "2.5 h"), (0.0, "0 s"), (None, NOTHING)]
)
def test_durations(seconds, text):
    """A span in the unit that suits it."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "about 1 question"),
        (320, "about 300 questions"),
        (17_000, "tens of thousands of questions"),
        (3e7, "millions of questions"),
    ],
)
def test_rough_counts_with_their_noun(count, text):
    """A rough count with its noun reads as a phrase at every size."""
    assert rough_count(count, "question") == text


def test_times():
    """UTC, to the second for people and to the millisecond for programs; a time in no calendar is none."""
    assert moment(1.5) == "1970-01-01 00:00:01 UTC"
    assert iso_time(1.5) == "1970-01-01T00:00:01.500Z"
    assert (moment(1e30), iso_time(1e30), moment(None)) == (NOTHING, None, NOTHING)
    assert seconds_of("1970-01-01T01:00:01+01:00") == seconds_of(" 1970-01-01T00:00:01 ") == 1.0
    with pytest.raises(ValueError, match="yesterday"):
        seconds_of("yesterday")
