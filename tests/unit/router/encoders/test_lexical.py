"""What is counted in a question, against counts by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ragbandit.router.encoders.features import CUES, LEXICAL_COUNTS, lexical_features
from tests.support.examples import steady


def counted(text):
    """Name -> count of one question."""
    return dict(zip(LEXICAL_COUNTS, lexical_features([text])[0].tolist(), strict=True))


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
            {"log words": math.log(9), "log characters": math.log(41), "digits": 1.0, "letters per word": 33 / 8},
            {"when", "was", "first", "of the"},
        ),
        (
            "IS Tom\u2019s \u201cBorn Older\u201d  More? ",
            {
                "log words": math.log(6),
                "log characters": math.log(30),
                "capitalised words": math.log(4),  # Tom's, "Born, Older", More
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


def test_cue_is_a_whole_word_in_any_case():
    """It counts once alone, in capitals, between signs and twice over; not inside another word."""
    for cue in CUES:
        for text in (cue, cue.upper(), f"x ({cue})?", f"{cue} and {cue}"):
            assert counted(text)[f"says {cue}"] == 1.0, text
        for text in (f"x{cue}", f"{cue}x", f"{cue}_", f"9{cue}"):
            assert counted(text)[f"says {cue}"] == 0.0, text


any_text = st.text(alphabet=st.characters(), max_size=60) | st.lists(
    st.sampled_from(["\ud800", "\x00", "\u0130", "\u00df", " ", "\n", "?", "who", "\U0001f600", "\u8fd9", "'"]),
    max_size=12,
).map("".join)


@steady
@given(texts=st.lists(any_text, max_size=5))
def test_any_text_has_finite_counts(texts):
    """Whatever the signs, broken ones too, every count is finite and at least 0, and a batch is each alone."""
    rows = lexical_features(texts)
    assert rows.shape == (len(texts), len(LEXICAL_COUNTS))
    assert np.isfinite(rows).all()
    assert (rows >= 0.0).all()
    for text, row in zip(texts, rows, strict=True):
        assert np.array_equal(lexical_features([text])[0], row)
