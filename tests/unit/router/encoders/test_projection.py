"""From states to features: the reference file, the readings, the kernel and the sketch, against loops and refits.

The states here are made: words hashed and mixed. tests/integration/encoders/test_distilbert.py has those of the real
encoder.
"""

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ragbandit.router.encoders.features import (
    KINDS,
    LEAST,
    LENGTH,
    LENGTHS,
    Projection,
    _fit_labels,
    fit_projection,
    lexical_features,
    references,
)
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.testing.policies import made_text

SIZE = 1200
ALLOWED = {
    "hops": {1, 2, 3},
    "form": {"open", "yes_no", "choice"},
    "familiar": {0, 1},
    "described": {0, 1},
    "obscure": {0, 1, 2},
    "wording": {"plain", "search", "quiz", "passage"},
}
NEW = [made_text(seed) for seed in range(40)] + ["", "who?", "\ud800", "x" * 3000]


MIX = np.random.default_rng(3).standard_normal((256, SIZE)) / 16.0
SCALE = np.exp(np.random.default_rng(4).standard_normal(SIZE))  # entries of all sizes, as a model has them


def states_of(texts):
    """Hashed words, mixed and moved: near where words are shared, of no use otherwise; (n, SIZE), float32."""
    return ((HashingEncoder(256).encode(texts) @ MIX + 2.0) * SCALE).astype(np.float32)


def features_of(projection, states, *, counts, dimension):
    matrix, offset = projection.linear_map(dimension)
    return projection.features(states @ matrix + offset, counts=counts, dimension=dimension)


@pytest.fixture(scope="module")
def known():
    return references()


@pytest.fixture(scope="module")
def states(known):
    return states_of(known.questions)


@pytest.fixture(scope="module")
def fit(known, states):
    """Dimension -> the projection, fitted once."""
    return cache(lambda dimension: fit_projection(states, reference=known, dimension=dimension, seed=0))


@pytest.fixture(scope="module", params=[LEAST, 64, 1000])
def made(request, fit):
    """(projection, dimension)"""
    return fit(request.param), request.param


def rows_of_the_file():
    text = files("ragbandit.router.encoders").joinpath("reference_questions.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def auc(scores, labels):
    """P(a positive row has the higher score), by pairs; ties count half."""
    positive, negative = scores[labels > 0], scores[labels == 0]
    above = (positive[:, None] > negative[None, :]).mean() + 0.5 * (positive[:, None] == negative[None, :]).mean()
    return float(above)


# --- the reference questions -----------------------------------------------------------------------------------------


def test_every_line_of_the_file_is_labelled():
    """Every line is an object with a question and the six labels, each of an allowed value; all values occur."""
    rows = rows_of_the_file()
    assert len(rows) >= 500
    for row in rows:
        assert row.keys() == {"question", *ALLOWED}
        assert isinstance(row["question"], str)
        assert row["question"] == row["question"].strip() != ""
        assert all(type(row[key]) in (int, str) for key in ALLOWED)  # True is no number here
    for key, allowed in ALLOWED.items():
        assert {row[key] for row in rows} == allowed


def test_labels_are_read_as_documented(known):
    """A number is read as "at least that much" for all but the least, a word as "that one", in columns of 0 and 1."""
    rows = rows_of_the_file()
    wanted = {}
    for key, allowed in ALLOWED.items():
        for value in allowed:
            if isinstance(value, str):
                wanted[f"{key} = {value}"] = [row[key] == value for row in rows]
            elif value != min(allowed):
                wanted[f"{key} >= {value}"] = [row[key] >= value for row in rows]
    assert known.questions == tuple(row["question"] for row in rows)
    assert known.labels == tuple(sorted(wanted))
    assert known.columns.shape == (len(rows), len(wanted))
    for label, column in zip(known.labels, known.columns.T, strict=True):
        assert column.tolist() == [float(one) for one in wanted[label]], label
        assert 0.05 < column.mean() < 0.95, f"{label} tells hardly anything apart"


# --- readings --------------------------------------------------------------------------------------------------------


def test_held_out_readings_do_not_know_their_own_label():
    """Held-out readings of random states do not predict the labels, while readings of the fit itself do."""
    rng = np.random.default_rng(1)
    z = rng.standard_normal((400, 800)) / np.sqrt(800)
    columns = (rng.random((400, 3)) < 0.4).astype(float)
    directions, _, held_out = _fit_labels(z, columns=columns)
    for held, own, label in zip(held_out.T, (z @ directions).T, columns.T, strict=True):
        assert auc(held, label) < 0.6
        assert auc(own, label) > 0.95


def test_what_the_states_show_is_read(known, states, fit):
    """Hashed words alone tell questions for a choice and for yes or no from others, and several facts from one."""
    place = fit(64)
    z = (states - place.mean) * place.inverse / np.sqrt(SIZE)
    _, _, held_out = _fit_labels(z.astype(np.float64), columns=known.columns)
    found = {label: auc(held_out[:, i], known.columns[:, i]) for i, label in enumerate(known.labels)}
    assert min(found["form = choice"], found["form = yes_no"]) > 0.9
    assert found["hops >= 2"] > 0.8


def test_new_questions_are_read_like_the_old_ones(known):
    """On questions that had no part in the fit readings have deviation near 1, and mean near 0."""
    half = replace(known, questions=known.questions[::2], columns=known.columns[::2])
    projection = fit_projection(states_of(half.questions), reference=half, dimension=64, seed=0)
    new = known.questions[1::2]
    readings = projection.predictions(states_of(new))
    assert readings.std(axis=0) == pytest.approx(np.ones(len(known.labels)), abs=0.25)
    assert readings.mean(axis=0) == pytest.approx(np.zeros(len(known.labels)), abs=0.5)


# --- features --------------------------------------------------------------------------------------------------------


def by_hand(projection, state, *, text, dimension):
    """One question's features in float64, by loops over the arrays as their comments describe them."""
    p = {name: array.astype(np.float64) for name, array in projection.arrays().items()}
    counts = (lexical_features([text])[0] - p["surface_mean"]) * p["surface_scale"]
    place = np.concatenate([state @ p["directions"] + p["offset"], np.clip(counts, -1.5, 1.5)])
    near = np.array([np.exp(-p["narrow"] * ((place - anchor) ** 2).sum()) for anchor in p["anchors"]])
    found = np.zeros(dimension)
    found[: len(near)] = (p["whiten"] @ near) * np.sqrt(KINDS * dimension)
    count = dimension - len(near) - LENGTHS
    for at, entry in enumerate(projection.order):
        found[len(near) + at % count] += p["signs"][at] * (state[entry] - p["mean"][entry]) * p["inverse"][entry]
    # The first two counts, words and characters, in standard deviations; the weight of a count is a half.
    found[-LENGTHS:] = np.clip(counts, -1.5, 1.5)[:LENGTHS] / 0.5 * np.sqrt(LENGTH * dimension / LENGTHS)
    return found


def test_features_are_those_by_loops(made):
    """Readings, kernel at the anchors, whitening and sketch equal those of a loop in float64, to .005."""
    projection, dimension = made
    states = states_of(NEW[:12])
    rows = features_of(projection, states, counts=lexical_features(NEW[:12]), dimension=dimension)
    for row, state, text in list(zip(rows, states, NEW, strict=False))[:: 3 if dimension == 1000 else 1]:
        wanted = by_hand(projection, state.astype(np.float64), text=text, dimension=dimension)
        assert row == pytest.approx(wanted, abs=5e-3 * np.sqrt(dimension / 16))


def test_dimension_is_kept(made):
    """Any n questions give shape (n, d), float32 and finite, whatever the text; five eighths are kinds."""
    projection, dimension = made
    rows = features_of(projection, states_of(NEW), counts=lexical_features(NEW), dimension=dimension)
    assert (rows.shape, rows.dtype) == ((len(NEW), dimension), np.float32)
    assert np.isfinite(rows).all()
    assert len(projection.anchors) == round(0.625 * dimension)


def shares(projection, states, *, texts, dimension):
    """Squared lengths of kinds and of sketch, per question, in units of the dimension."""
    squares = (
        features_of(projection, states, counts=lexical_features(texts), dimension=dimension).astype(np.float64) ** 2
    )
    kinds = len(projection.anchors)
    return squares[:, :kinds].sum(axis=1) / dimension, squares[:, kinds:-LENGTHS].sum(axis=1) / dimension


def test_lengths_are_the_shares(made, known, states):
    """The sketch has 1 - KINDS of d on average, no question's kinds more than KINDS; with many anchors nearly that.

    What the anchors do not span is missing: of these wide-spread states most at 16 features, a tenth at 1,000.
    """
    projection, dimension = made
    kinds, sketch = shares(projection, states, texts=known.questions, dimension=dimension)
    assert sketch.mean() == pytest.approx(1.0 - KINDS, rel=0.25 if dimension == 16 else 0.15)  # at least 4 numbers
    assert kinds.max() < KINDS * 1.01
    least = {16: 0.2, 64: 0.4, 1000: 0.7}[dimension]
    assert least < kinds.mean() < KINDS


# --- as arrays -------------------------------------------------------------------------------------------------------


def test_comes_back_from_its_arrays(made, tmp_path):
    """Through a safetensors file every array keeps type, shape and bits, and gives the same features."""
    projection, dimension = made
    save_file(projection.arrays(), tmp_path / "p.safetensors")
    back = Projection.of(load_file(tmp_path / "p.safetensors"))
    for name, array in projection.arrays().items():
        kept = getattr(back, name)
        assert (kept.dtype, kept.shape) == (array.dtype, array.shape)
        assert np.array_equal(kept, array)
    rows = [
        features_of(one, states_of(NEW), counts=lexical_features(NEW), dimension=dimension)
        for one in (projection, back)
    ]
    assert np.array_equal(*rows)
