"""The policy mba_paper against the libraries that the paper used, on a DistilBERT of two layers."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.policies.base import apply_update
from ragbandit.router.policies.finetuned.network import dropout_seed, fresh_head, fresh_pre
from ragbandit.router.policies.finetuned.params import ReadingParams
from ragbandit.router.policies.finetuned.reading import load_reader
from ragbandit.shared.errors import SnapshotError
from ragbandit.testing.policies import ARMS, made_query, made_reward, made_updates, sha_of, taught
from tests.support.finetuned import READING, mba, output_of, row
from tests.support.tiny_models import WIDTH, tiny_encoder


def reference_net():
    """DistilBertForSequenceClassification as transformers makes it, with the weights that a fresh policy has."""
    import torch
    from transformers import AutoConfig, DistilBertForSequenceClassification

    config = AutoConfig.from_pretrained(tiny_encoder(), num_labels=3, attn_implementation="eager")
    net = DistilBertForSequenceClassification(config)
    body = load_reader(ReadingParams(**READING))
    pre, heads = fresh_pre(WIDTH, seed=0), np.stack([fresh_head(arm, width=WIDTH, seed=0) for arm in ARMS])
    state = {f"distilbert.{name}": view for name, view in body.module.named_parameters()}
    state |= {"pre_classifier.weight": torch.tensor(pre[:, :-1]), "pre_classifier.bias": torch.tensor(pre[:, -1])}
    state |= {"classifier.weight": torch.tensor(heads[:, :-1]), "classifier.bias": torch.tensor(heads[:, -1])}
    net.load_state_dict(state)
    return net, body


@pytest.mark.parametrize("loss", ["paper", "code"])
def test_learns_as_the_authors_loop_does(loss):
    """After 25 updates all outputs equal those of the authors' training loop, to 1e-5.

    The loop: transformers' net, torch's AdamW, the linear schedule, and the mean squared error to the net's outputs
    with the reward in place of the drawn arm's output.
    """
    import torch
    from transformers import get_scheduler

    updates = made_updates(25)
    policy = taught(lambda: mba(loss=loss, total=25, learning_rate=1e-3, warmup=0.2), updates)
    net, body = reference_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=5, num_training_steps=25)
    with body.lock_torch(seed=None):
        for step, update in enumerate(updates, start=1):
            net.train()
            with torch.random.fork_rng():
                torch.manual_seed(dropout_seed(0, step=step))
                logits = net(input_ids=torch.tensor([body.tokens.tokenizer.encode(update.query.text).ids])).logits[0]
            target = logits.detach().clone()
            target[ARMS.index(update.arm)] = update.reward.value
            mean = torch.nn.MSELoss()(logits, target)
            optimizer.zero_grad()
            (mean if loss == "code" else 3 * mean).backward()
            optimizer.step()
            schedule.step()
    net.eval()
    for seed in range(5):
        text = made_query(seed).text
        with torch.no_grad():
            wanted = net(input_ids=torch.tensor([body.tokens.tokenizer.encode(text).ids])).logits[0].numpy()
        assert np.abs(output_of(policy, text).scores - wanted).max() < 1e-5
    assert np.abs(output_of(policy, text).scores - np.array(output_of(mba(), text).scores)).max() > 1e-3


@pytest.mark.parametrize("step", [1, 2, 10, 1292])
def test_epsilon_is_the_papers(step):
    """At step e epsilon is 1/ln(e), clipped to 1 (notes/strategies.md, section 8)."""
    policy = mba()
    policy.seen = policy._steps = {"x": step - 1} if step > 1 else {}
    wanted = {1: 1.0, 2: 1.0, 10: 0.434, 1292: 0.140}[step]
    assert policy.epsilon == pytest.approx(wanted, abs=5e-4)
    output = output_of(policy)
    assert min(output.pmf) == pytest.approx(policy.epsilon / 3, abs=1e-12)
    assert output.facts == {"epsilon": policy.epsilon, "learning_rate": policy.rate}


def test_rate_stays_at_the_floor():
    """The rate falls no lower than the floor, and stays there after the last step of the schedule."""
    policy = mba(learning_rate=0.01, total=10, floor=0.002)
    rates = []
    for done in range(15):
        policy.seen = policy._steps = {"x": done}
        rates.append(policy.rate)
    assert rates[:8] == pytest.approx([0.01, 0.009, 0.008, 0.007, 0.006, 0.005, 0.004, 0.003])
    assert rates[8:] == [0.002] * 7


@pytest.mark.parametrize(
    ("reward", "failure", "arm", "quality", "steps", "target"),
    [
        ("ledger", "paper", 1, 1.0, 3.0, 0.7),
        ("ledger", "code", 1, 0.0, 3.0, -0.3),
        ("single", "paper", 2, 1.0, 4.0, 0.6),
        ("single", "paper", 2, 0.4, 4.0, -1.0),
        ("single", "code", 2, 0.4, 4.0, 0.0),
        ("multi_paper", "paper", 0, 0.5, 0.0, 4.3),
        ("multi_paper", "paper", 1, 1.0, 1.0, 2.3),
        ("multi_paper", "paper", 2, 1.0, 7.0, 1.15),
        ("multi_code", "code", 0, 1.0, 0.0, 4.49),
        ("multi_code", "code", 2, 0.0, 7.0, 0.0),
        ("multi_code", "paper", 2, 0.0, 7.0, -1.0),
    ],
)
def test_reward_tables(reward, failure, arm, quality, steps, target):
    """The target of the drawn arm is the ledger's reward, or the table's for a right or a wrong answer."""
    update = replace(made_updates(1)[0], arm=ARMS[arm], reward=made_reward(quality, cost=steps))
    assert mba(reward=reward, failure=failure)._target(update) == pytest.approx(target)


@pytest.mark.parametrize(
    ("reward", "changes", "arm"),
    [
        ("ledger", {"value": math.nan}, 0),
        ("ledger", {"value": 1e300}, 0),
        ("single", {"preset": "reward"}, 0),
        ("single", {"preset": "default"}, 0),
        ("single", {"terms": {"llm_calls": 1.0}, "quality": 1.0}, 0),
        ("single", {"terms": {"steps": 0.5}, "quality": 1.0}, 0),
        ("multi_code", {"preset": "reward"}, 0),
        ("multi_paper", {"quality": 1.0}, None),
    ],
)
def test_row_that_does_not_tell_is_refused(reward, changes, arm):
    """A reward that is not finite, makes the loss overflow or does not fit the table is a PolicyFault, and neither
    the state nor the next lesson shows a trace of it.
    """
    policy = taught(lambda: mba(reward=reward), made_updates(6))
    update = made_updates(1, first=7)[0]
    name = "unknown" if arm is None else "newcomer" if reward == "ledger" else ARMS[arm]
    bad = replace(update, arm=name, reward=replace(update.reward, **changes))
    sha256 = sha_of(policy)
    assert not apply_update(policy, bad)
    assert sha_of(policy) == sha256
    policy.learn(update)
    assert sha_of(policy) == sha_of(taught(lambda: mba(reward=reward), [*made_updates(6), update]))


def test_leaves_torch_as_it_was():
    """Learning and deciding draw nothing from torch's own random numbers and put its thread count back."""
    import torch

    policy, state, threads = mba(), torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        policy.learn(made_updates(1)[0])
        output_of(policy)
        assert torch.get_num_threads() == 3
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("changes", [{"model": tiny_encoder(9)}, {"max_tokens": 8}])
def test_state_of_another_model_is_refused(changes):
    """A state made with other weights, or with a tokenizer that cuts elsewhere, is a SnapshotError."""
    arrays, facts = taught(mba, made_updates(3)).state()
    with pytest.raises(SnapshotError, match="another model"):
        mba(**changes).restore(arrays, facts)


@pytest.mark.parametrize(
    ("failure", "right", "value"),
    [("paper", (), -1.0), ("paper", ARMS[:1], 0.0), ("code", (), 0.0), ("paper", ARMS[1:2], 0.9)],
)
def test_the_reward_of_a_table(failure, right, value):
    """In a table -1 is the reward of a question that no arm answers right; another wrong answer has 0."""
    policy = mba(reward="single", failure=failure)
    reward = made_reward(0.0, cost=1.0)
    printed = policy.table_reward(row(1, "who ?", right), arm=ARMS[1], reward=reward)
    assert (printed.value, printed.has_parts) == (pytest.approx(value), True)
    assert mba().table_reward(row(1, "who ?", right), arm=ARMS[1], reward=reward) == reward


def test_model_that_changed_on_disk_is_read_anew(tmp_path):
    """A folder that was written again under the same name gives the new weights, not those loaded before."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_encoder(), folder)
    first = output_of(mba(model=str(folder)))
    assert first == output_of(mba())
    shutil.rmtree(folder)
    shutil.copytree(tiny_encoder(9), folder, copy_function=shutil.copyfile)
    assert output_of(mba(model=str(folder))) == output_of(mba(model=tiny_encoder(9))) != first
