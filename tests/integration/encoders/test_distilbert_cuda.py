"""The encoder on a graphics card."""

import time

import numpy as np
import pytest

from ragbandit.router.encoders.distilbert import DistilBertEncoder
from tests.support.waiting import at_once

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.models,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
QUESTIONS = [
    f"{start} the {'very ' * (number % 17)}old ferry of route {number} reach the island?"
    for number, start in enumerate(["When did", "Why does", "Who said that", "How often will"] * 150)
]


@pytest.fixture(scope="module")
def card():
    return DistilBertEncoder(device="cuda", precision="float32", cache=None)


def test_features_are_those_of_a_processor(card):
    """In float32 600 questions at once have on the card the features that a processor gives, to a thousandth."""
    processor = DistilBertEncoder(device="cpu", precision="float32", threads=4)
    assert card.device == "cuda"
    assert card.hash == processor.hash
    np.testing.assert_allclose(card.encode(QUESTIONS[:200]), processor.encode(QUESTIONS[:200]), atol=1e-3)


def test_features_do_not_depend_on_the_batch(card):
    """A question has the same features in a single call and among 600 others, in their order."""
    together = card.encode(QUESTIONS)
    alone = np.concatenate([card.encode([question]) for question in QUESTIONS[:20]])
    np.testing.assert_allclose(together[:20], alone, atol=1e-3)
    np.testing.assert_allclose(card.encode(QUESTIONS[::-1])[::-1], together, atol=1e-3)


def test_half_precision_is_near(card):
    """In bfloat16, the default on a card, features have nearly the direction of those in float32."""
    half = DistilBertEncoder(device="cuda", precision="auto")
    assert half.precision == "bfloat16"
    one, two = half.encode(QUESTIONS[:64]), card.encode(QUESTIONS[:64])
    cosine = (one * two).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    assert cosine.min() > 0.95


def test_threads_get_their_own_rows(card):
    """Eight threads at once get what each gets alone."""
    wanted = card.encode(QUESTIONS[:160])
    found = {}
    at_once(*(lambda at=at: found.update({at: card.encode(QUESTIONS[at : at + 20])}) for at in range(0, 160, 20)))
    for at, rows in found.items():
        np.testing.assert_allclose(rows, wanted[at : at + 20], atol=1e-3)


def test_no_question_waits_for_a_kernel(card):
    """After the start no single question of any length takes 50 ms: the kernels of all lengths are loaded."""
    for count in range(120):
        began = time.perf_counter()
        card.encode(["why " * count])
        assert time.perf_counter() - began < 0.05, count
