"""Details of a small random model, compared with transformers' own forward pass, and its sampling."""

import asyncio
import math

import numpy as np
import pytest

from ragbandit.additions.local_models.generator import LocalGenerator
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Prompt, Request, Sampling
from ragbandit.strategies.generators.parts import Attention
from tests.support.tiny_models import tiny_writer

pytestmark = pytest.mark.models

WORDS = Prompt(instructions="", body="w3 w14 w15")
ALL = frozenset({"logprobs", "entropy", "attention", "hidden_states"})


@pytest.fixture(scope="module")
def tiny():
    """A small random model and its prompt: what is drawn and returned is our code's affair, not the model's."""
    return LocalGenerator(
        tiny_writer("llama"), device="cpu", precision="float32", threads=1, trained_tokens=["</s>", "w7"]
    )


@pytest.fixture(scope="module")
def completion(tiny):
    return complete(tiny, max_tokens=6, want=ALL)


def complete(generator, *, max_tokens=12, **options):
    return asyncio.run(generator.complete(Request(prompt=WORDS, max_tokens=max_tokens, **options)))


@pytest.fixture(scope="module")
def forward(tiny, completion):
    """Transformers' logits, attention and states over the same tokens; the number of those read."""
    import torch

    tokenizer, ids = tiny._tokenizer, tiny._ids(WORDS)
    written = tokenizer("".join(token.text for token in completion.details["logprobs"]), add_special_tokens=False)[
        "input_ids"
    ]
    tiny._model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            output = tiny._model(
                input_ids=torch.tensor([[*ids, *written]]), output_attentions=True, output_hidden_states=True
            )
    finally:
        tiny._model.set_attn_implementation("sdpa")
    return output, len(ids), written


def test_asking_changes_nothing(tiny, completion):
    """Requested details do not change the text or its tokens, and only requested details are returned."""
    plain = complete(tiny, max_tokens=6)
    assert (plain.text, plain.completion_tokens, plain.details) == (completion.text, completion.completion_tokens, {})
    assert set(completion.details) == ALL


def test_log_probabilities(completion, forward):
    """Every token's log-probability is that of the model's distribution at its place."""
    import torch

    output, read, written = forward
    rows = torch.log_softmax(output.logits[0, read - 1 : -1].float(), dim=-1)
    tokens = completion.details["logprobs"]
    assert "".join(token.text for token in tokens).startswith(completion.text)
    assert [token.logprob for token in tokens] == pytest.approx(
        [float(row[place]) for row, place in zip(rows, written, strict=True)], abs=1e-3
    )


def test_entropy(completion, forward):
    """The entropy of the whole distribution, in nats, between 0 and that of the even one."""
    import torch

    output, read, _ = forward
    rows = torch.log_softmax(output.logits[0, read - 1 : -1].float(), dim=-1)
    theirs = [-float((row.exp() * row).sum()) for row in rows]
    assert list(completion.details["entropy"]) == pytest.approx(theirs, abs=1e-3)
    assert all(0.0 <= each <= math.log(rows.shape[1]) for each in completion.details["entropy"])


def test_attention(completion, forward):
    """The last layer's attention of every token written over all before it, rows that sum to 1."""
    output, read, written = forward
    attention = completion.details["attention"]
    assert isinstance(attention, Attention)
    theirs = output.attentions[-1][0, :, read:].numpy()
    assert attention.weights.shape == theirs.shape == (theirs.shape[0], len(written), len(attention.keys))
    assert np.allclose(attention.weights, theirs, atol=1e-4)
    assert np.allclose(attention.weights.sum(axis=-1), 1.0, atol=1e-4)
    assert "".join(attention.keys[read:]).startswith(completion.text)


def test_hidden_states(completion, forward):
    """The states of the last token written, one row per layer, the embedding first."""
    output, _, _ = forward
    theirs = np.stack([state[0, -1].numpy() for state in output.hidden_states])
    assert completion.details["hidden_states"].shape == theirs.shape
    assert np.allclose(completion.details["hidden_states"], theirs, atol=1e-3)


def test_sampling_follows_the_seed(tiny):
    """The same seed gives the same text; a temperature near 0, or top_k=1, is greedy."""

    def text(**how):
        return complete(tiny, max_tokens=16, sampling=Sampling(**how)).text

    assert text(temperature=1.2, seed=3) == text(temperature=1.2, seed=3)
    assert len({text(temperature=1.5, seed=seed) for seed in range(4)}) > 1
    greedy = complete(tiny, max_tokens=16).text
    assert text(temperature=1e-3, seed=1) == greedy
    assert text(temperature=1.5, seed=1, top_k=1) == greedy
    assert text(temperature=1.5, seed=1, top_p=1e-6) == greedy


def test_trained_tokens(tiny):
    """The log-probabilities of named tokens are returned at every place; an unknown token is refused."""
    assert "trained_tokens" in tiny.capabilities
    completion = complete(tiny, want=frozenset({"trained_tokens", "logprobs"}))
    assert 1 <= len(completion.details["trained_tokens"]) == len(completion.details["logprobs"])
    assert all(
        set(each) == {"</s>", "w7"} and max(each.values()) <= 0.0 for each in completion.details["trained_tokens"]
    )
    with pytest.raises(ConfigError, match="has no token"):
        LocalGenerator(tiny_writer("llama"), device="cpu", threads=1, trained_tokens=["[Retrieval]"])
