"""The local generator on a graphics card."""

import asyncio

import pytest

from ragbandit.additions.local_models.generator import LocalGenerator
from ragbandit.strategies.base import Prompt, Request, Sampling

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.models,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
ALL = frozenset({"logprobs", "entropy", "attention", "hidden_states"})
NAMES = ["France", "Japan", "Norway", "Peru", "the United Kingdom of Great Britain and Northern Ireland", "Chad"]


def requests(count, **options):
    return [
        Request(
            prompt=Prompt(
                instructions="You answer with a short phrase." + " Be brief." * (number % 7),
                body=f"What is the capital of {NAMES[number % len(NAMES)]}?",
            ),
            max_tokens=4 + number % 13,
            **options,
        )
        for number in range(count)
    ]


def together(generator, asked):
    async def all_of_them():
        return await asyncio.gather(*(generator.complete(request) for request in asked))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("sampling", [None, Sampling(temperature=1.0, seed=3, top_p=0.9)])
def test_texts_are_the_same_written_together(folder, sampling):
    """In float32 a hundred calls at once give the texts that each gives alone on the processor."""
    asked = requests(100, sampling=sampling)
    card = LocalGenerator(folder, device="cuda", precision="float32")
    alone = LocalGenerator(folder, device="cpu", precision="float32", max_batch=1)
    assert card.max_batch == 64
    assert together(card, asked) == [together(alone, [request])[0] for request in asked]


def test_what_is_told_is_what_the_processor_tells(folder):
    """Log-probabilities of tokens written on the card are those of the processor."""
    asked = requests(8, want=ALL)
    card = together(LocalGenerator(folder, device="cuda", precision="float32"), asked)
    plain = together(LocalGenerator(folder, device="cpu", precision="float32"), asked)
    for one, other in zip(card, plain, strict=True):
        assert set(one.details) == ALL
        assert one.details["entropy"] == pytest.approx(other.details["entropy"], abs=1e-3)
        assert one.details["attention"].weights == pytest.approx(other.details["attention"].weights, abs=1e-3)


def test_bfloat16_knows_the_capital(folder):
    """The card chooses bfloat16 by itself, and the model still answers."""
    generator = LocalGenerator(folder, device="cuda")
    assert generator._model.dtype == torch.bfloat16
    answers = together(generator, requests(64))
    assert sum("Paris" in answer.text for answer in answers[:: len(NAMES)]) > 5
