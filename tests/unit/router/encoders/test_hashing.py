"""The encoder without a model: style and hashed words, on every machine alike."""

import numpy as np
import pytest

from ragbandit.router.encoders.features import (
    KINDS,
    LENGTH,
    LEXICAL_COUNTS,
    WORD_GROUPS,
    lexical_features,
    references,
    style_features,
)
from ragbandit.router.encoders.hashing import LEAST, HashingEncoder
from ragbandit.shared.errors import ConfigError, InvalidInput
from tests.support.cases import every_case

ODD = [
    *("", " ", "?", "\ud800", "\x00", "\U0001f600 \u8fd9", "\u0130stanbul \u00df", "film " * 9000, "x" * 30_000),
    *("\n" * 3000, "9" * 3000, "\u0301", "Who? " * 2000, '"' * 5000, "de \u00e9t\u00e9", "WHO WROTE IT"),
]
QUESTIONS = [*references().questions[::40], *ODD]


def test_a_question_is_encoded_alike_alone_and_among_others():
    """Whatever the text and the dimension, a row is finite, below 256, and the same to the bit in any batch."""
    with every_case() as case:
        for dimension in (LEAST, 17, 256, 4096):
            with case(dimension):
                texts = QUESTIONS if dimension < 4096 else QUESTIONS[::5]
                encoder = HashingEncoder(dimension)
                rows = encoder.encode(texts)
                assert (rows.shape, rows.dtype) == ((len(texts), dimension), np.float32)
                assert np.isfinite(rows).all()
                assert np.abs(rows).max() < 256
                alone = [encoder.encode([text])[0] for text in texts]
                assert np.array_equal(rows, alone)
                assert np.array_equal(rows[::-1], encoder.encode(texts[::-1]))
    assert HashingEncoder(16).encode([]).shape == (0, 16)


def test_squared_lengths_are_the_shares():
    """Words have the share 1 - KINDS of the length d, kinds at most KINDS, the two lengths LENGTH; case is ignored."""
    encoder, known = HashingEncoder(256), references().questions
    squares = encoder.encode(known).astype(np.float64) ** 2 / 256
    kinds, words, lengths = (part.sum(axis=1) for part in np.split(squares, [160, 254], axis=1))
    assert words == pytest.approx(np.full(len(known), 1.0 - KINDS), rel=1e-5)
    assert kinds.max() < KINDS * 1.0001
    assert kinds.mean() > 0.5 * KINDS
    assert lengths.mean() == pytest.approx(LENGTH, rel=0.05)  # except lengths that are clipped at three deviations
    nothing, some, other = (row[160:254] for row in encoder.encode(["?!", "a red Boat", "Boat, A RED"]))
    assert not nothing.any()
    assert np.array_equal(some, other)


def test_labels_are_read_off_the_style():
    """On reference questions that had no part in the fit style tells several facts from one: area above .9."""
    known = references()
    place = HashingEncoder(256)._projection.anchors[:, known.labels.index("hops >= 2")]  # held-out readings
    label = known.columns[: len(place), known.labels.index("hops >= 2")]
    above = place[label > 0][:, None] > place[label == 0][None, :]
    assert above.mean() > 0.9


def test_style_features_are_those_by_hand():
    """The lexical counts, then the logarithm of one and the words of each group, whatever their case."""
    text = "Which FILM by the director's father won? Father, film!"
    row = style_features([text])[0]
    counted = dict(zip((*LEXICAL_COUNTS, *WORD_GROUPS), row.tolist(), strict=True))
    wanted = dict.fromkeys(WORD_GROUPS, 0) | {"films": 3, "kin": 2, "sport": 1}
    for group, count in wanted.items():
        assert counted[group] == pytest.approx(np.log1p(count)), group
    assert np.array_equal(row[: len(LEXICAL_COUNTS)], lexical_features([text])[0])
    assert style_features([]).shape == (0, len(LEXICAL_COUNTS) + len(WORD_GROUPS))


def test_what_cannot_be_encoded_is_refused():
    """A string where a list is wanted, and fewer features than the projection has parts, are errors with a remedy."""
    with pytest.raises(InvalidInput):
        HashingEncoder().encode("what?")
    with pytest.raises(ConfigError, match="at least 8, not 7") as caught:
        HashingEncoder(7)
    assert caught.value.field == "encoder.dimension"
