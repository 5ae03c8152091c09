"""`mba_paper` and the encoder of features on T5's encoder: a random T5, against transformers' encoder."""

from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.encoders.distilbert import DistilBertEncoder
from ragbandit.router.policies.base import apply_update
from ragbandit.router.policies.finetuned.network import dropout_seed, fresh_head, fresh_pre
from ragbandit.router.policies.finetuned.params import ReadingParams
from ragbandit.router.policies.finetuned.reading import load_reader
from ragbandit.shared.errors import ConfigError
from ragbandit.testing.policies import (
    ARMS,
    check_batch_is_each_alone,
    check_learns_on_after_restore,
    check_snapshot_round_trip,
    made_query,
    made_updates,
    taught,
)
from tests.support.finetuned import READING, mba, output_of
from tests.support.policies import maker
from tests.support.tiny_models import tiny_t5, tiny_writer

WIDTH = 32
TEXTS = ["who wrote dracula ?", "when", "which film director born before the river city of paris ?", ""]


def reference():
    """Returns (a function from a text to outputs, its parameters): transformers' T5EncoderModel, the mean of its
    states, the square layer and a head per arm, with the weights of a fresh policy.
    """
    import torch
    from transformers import AutoTokenizer, T5EncoderModel

    encoder, tokenizer = T5EncoderModel.from_pretrained(tiny_t5()).eval(), AutoTokenizer.from_pretrained(tiny_t5())
    pre = torch.tensor(fresh_pre(WIDTH, seed=0)).requires_grad_()
    heads = torch.tensor(np.stack([fresh_head(arm, width=WIDTH, seed=0) for arm in ARMS])).requires_grad_()

    def outputs(text, *, train=False):
        read = tokenizer(text, truncation=True, max_length=16, return_tensors="pt", return_token_type_ids=False)
        pooled = encoder.train(train)(**read).last_hidden_state[0].mean(0)
        hidden = torch.dropout(torch.relu(pre[:, :-1] @ pooled + pre[:, -1]), 0.1, train)
        return heads[:, :-1] @ hidden + heads[:, -1]

    return outputs, [*encoder.parameters(), pre, heads]


def test_a_text_is_the_mean_of_its_tokens_states():
    """Texts of many lengths, together and one by one, get the outputs of transformers' encoder and a plain mean."""
    import torch

    outputs, _ = reference()
    with torch.no_grad():
        wanted = np.stack([outputs(text).numpy() for text in TEXTS])
    network = load_reader(ReadingParams(**READING | {"model": tiny_t5()})).network(seed=0)
    together = network.outputs(TEXTS, arms=ARMS).numpy()
    assert np.abs(together - wanted).max() < 1e-5
    policy = mba(model=tiny_t5())
    assert np.abs([output_of(policy, text).scores for text in TEXTS] - wanted).max() < 1e-5
    assert np.abs(wanted - wanted[0]).max() > 1e-3


def test_learns_as_a_plain_loop_does():
    """After 25 updates the outputs are those of a loop of torch's AdamW over all of the encoder, to 1e-4."""
    import torch

    updates = made_updates(25)
    policy = taught(lambda: mba(model=tiny_t5(), total=25, learning_rate=1e-3), updates)
    outputs, parameters = reference()
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)
    for step, update in enumerate(updates, start=1):
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 - (step - 1) / 25)
        with torch.random.fork_rng():
            torch.manual_seed(dropout_seed(0, step=step))
            output = outputs(update.query.text, train=True)[ARMS.index(update.arm)]
        optimizer.zero_grad()
        ((output - update.reward.value) ** 2).backward()
        optimizer.step()
    for seed in range(5):
        text = made_query(seed).text
        with torch.no_grad():
            wanted = outputs(text).numpy()
        assert np.abs(output_of(policy, text).scores - wanted).max() < 1e-4
    assert np.abs(output_of(policy, text).scores - np.array(output_of(mba(model=tiny_t5()), text).scores)).max() > 1e-2


@pytest.mark.parametrize("check", [check_snapshot_round_trip, check_learns_on_after_restore, check_batch_is_each_alone])
def test_contract(check):
    """`mba_paper` on T5's encoder keeps the contract where weights matter: snapshots, learning after them, batches."""
    check(maker("mba_paper", model=tiny_t5()))


def test_bfloat16_stays_finite():
    """In bfloat16 the policy learns without NaN, and its outputs are those of float32 to the rounding of 8 bits."""
    large = [replace(update, query=replace(update.query, text=TEXTS[2])) for update in made_updates(6)]
    policies = [mba(model=tiny_t5(), precision=precision) for precision in ("bfloat16", "float32")]
    assert all(apply_update(policy, update) for policy in policies for update in large)
    half, full = (np.array([output_of(policy, text).scores for text in TEXTS]) for policy in policies)
    assert np.isfinite(half).all()
    # Two layers with six roundings of relative size 2^-9 each, in a network whose states are of the order of 1.
    assert np.abs(half - full).max() < 12 * 2**-8 * max(1.0, np.abs(full).max())


def test_other_models_with_a_decoder_are_refused():
    """BART is a ConfigError of `model`, for a policy as for the encoder of features, with a remedy."""
    for field, make in (("policy.params.model", mba), ("encoder.model", DistilBertEncoder)):
        with pytest.raises(ConfigError, match="decoder") as caught:
            make(model=tiny_writer("bart"))
        assert caught.value.field == field
        assert "T5" in caught.value.remedy


def test_features_of_t5(tmp_path):
    """The encoder of features reads a T5 too: finite features, which do not depend on other texts."""
    encoder = DistilBertEncoder(tiny_t5(), dimension=16, precision="float32", device="cpu", threads=1, cache=tmp_path)
    features = encoder.encode(TEXTS[:3])
    assert np.isfinite(features).all()
    assert np.abs(encoder.encode(TEXTS[:1]) - features[:1]).max() < 1e-5
    assert np.abs(features[0] - features[1]).max() > 1e-2
