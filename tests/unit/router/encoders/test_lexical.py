"""What is counted in a question, against counts by hand."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbandit.router.encoders.features import CUES, LEXICAL_COUNTS, lexical_counts
from tests.support.examples import steady


def counted(text):
    """Name -> count of one question."""
    return dict(zip(LEXICAL_COUNTS, lexical_counts([text])[0].tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "by_hand", "cues"),
    [
        (
            "Who directed the film that Anna Lee's brother saw, \"Heat\" or 'Ali'?",
            {
                "log words": math.log(13),
                "log characters": math.log(68),
                "capitalised words": math.log(3),  # Anna and Lee's; the others begin with a quotation mark
                "share capitalised": 2 / 12,
                "digits": 0.0,
                "question mark": 1.0,
                "capital first": 1.0,
                "commas": math.log(2),
                "apostrophes": math.log(4),
                "quotes": math.log(3),
                "letters per word": 56 / 12,
            },
            {"who", "film", "that", "or"},
        ),
        (
            "when was apollo 11 first of the missions",
            {
                "log words": math.log(9),
                "log characters": math.log(41),
                "digits": 1.0,
                "letters per word": 33 / 8,
            },
            {"when", "was", "first", "of the"},
        ),
        (
            "IS Tom\u2019s \u201cBorn Older\u201d  More? ",
            {
                "log words": math.log(6),
                "log characters": math.log(30),
                "capitalised words": math.log(4),  # of Tom's, "Born, Older", More
                "share capitalised": 3 / 5,
                "question mark": 1.0,
                "capital first": 1.0,
                "apostrophes": math.log(2),
                "quotes": math.log(3),
                "letters per word": 23 / 5,
            },
            {"is", "born", "older", "more"},
        ),
        ("", {}, set()),
        ("?", {"log words": math.log(2), "log characters": math.log(2), "question mark": 1, "letters per word": 1}, ()),
    ],
    ids=["long", "search", "curly", "empty", "mark"],
)
def test_counts_are_those_by_hand(text, by_hand, cues):
    """Every feature of these questions has the value that was counted by hand; what is not named is 0."""
    wanted = dict.fromkeys(LEXICAL_COUNTS, 0.0) | by_hand | {f"says {cue}": 1.0 for cue in cues}
    assert counted(text) == pytest.approx(wanted, abs=1e-12)


def test_every_feature_has_one_name():
    """There are as many names as numbers, each once, the cues among them."""
    assert len(set(LEXICAL_COUNTS)) == len(LEXICAL_COUNTS) == lexical_counts(["who?"]).shape[1] == 11 + len(CUES)
    assert lexical_counts(["who?"]).dtype == np.float64


def test_cue_is_a_whole_word_in_any_case():
    """It counts once alone, in capitals, between signs and twice over; not inside another word."""
    for cue in CUES:
        for text in (cue, cue.upper(), f"x ({cue})?", f"{cue} and {cue}"):
            assert counted(text)[f"says {cue}"] == 1.0, text
        for text in (f"x{cue}", f"{cue}x", f"{cue}_", f"9{cue}"):
            assert counted(text)[f"says {cue}"] == 0.0, text


def test_no_questions_are_no_rows():
    """An empty list gives shape (0, features)."""
    assert lexical_counts([]).shape == (0, len(LEXICAL_COUNTS))


any_text = st.text(alphabet=st.characters(), max_size=60) | st.lists(
    st.sampled_from(["\ud800", "\x00", "\u0130", "\u00df", " ", "\n", "?", "who", "\U0001f600", "\u8fd9", "'"]),
    max_size=12,
).map("".join)


@steady
@given(texts=st.lists(any_text, max_size=5))
def test_any_text_has_finite_counts(texts):
    """Whatever the signs, broken ones too, every count is finite and at least 0, and a batch is each alone."""
    rows = lexical_counts(texts)
    assert rows.shape == (len(texts), len(LEXICAL_COUNTS))
    assert np.isfinite(rows).all()
    assert (rows >= 0.0).all()
    for text, row in zip(texts, rows, strict=True):
        assert np.array_equal(lexical_counts([text])[0], row)


# --- against the counts as they were first written: one regular expression per cue, one question at a time -----------

_CUE_PATTERNS = tuple(re.compile(rf"\b{re.escape(cue)}\b") for cue in CUES)


def counted_one_by_one(text):
    words = text.split()
    capitalised = sum(word[0].isupper() for word in words[1:])
    lower = text.lower()
    return [
        float(np.log1p(len(words))),
        float(np.log1p(len(text))),
        float(np.log1p(capitalised)),
        capitalised / max(1, len(words)),
        float(any(letter.isdigit() for letter in text)),
        float(text.rstrip().endswith("?")),
        float(text[:1].isupper()),
        float(np.log1p(text.count(","))),
        float(np.log1p(text.count("'") + text.count("\u2019"))),
        float(np.log1p(sum(text.count(mark) for mark in '"\u201c\u201d'))),
        sum(map(len, words)) / max(1, len(words)),
        *(float(pattern.search(lower) is not None) for pattern in _CUE_PATTERNS),
    ]


#: what stands beside a cue decides whether it is a word: apostrophes, digits, underscores, marks without a width,
#: letters whose small form has other letters, digits that are no decimals
_BESIDE = [
    "'",
    "\u2019",
    "_",
    "7",
    "\u00b2",
    "\u0661",
    "-",
    ".",
    " ",
    "\u00a0",
    "\n",
    "\u0301",
    "\u0130",
    "\u00e9",
    "K",
]

near_cues = st.lists(
    st.sampled_from([*CUES, *map(str.upper, CUES), *map(str.title, CUES), "of", "the", "Of  The", *_BESIDE]),
    max_size=14,
).map("".join)


@settings(steady, max_examples=150)
@given(texts=st.lists(near_cues, max_size=4) | st.lists(any_text, max_size=4))
def test_counts_are_the_very_numbers_of_one_pattern_per_cue(texts):
    """One scan over the words gives, bit for bit, what a regular expression for every cue gave."""
    wanted = np.array([counted_one_by_one(text) for text in texts], dtype=np.float64).reshape(-1, len(LEXICAL_COUNTS))
    assert np.array_equal(lexical_counts(texts), wanted)
