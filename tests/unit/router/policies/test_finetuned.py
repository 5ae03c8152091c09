"""The fine-tuned policies against the libraries that the papers used, on a DistilBERT of two layers."""

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ragbandit.router.encoders.forward import load_transformer
from ragbandit.router.errors import ConfigError, InvalidInput, PolicyFault, SnapshotError
from ragbandit.router.policies import make_policy
from ragbandit.router.policies import testing as checks
from ragbandit.router.policies.base import apply, pmf_of_one
from ragbandit.router.policies.finetuned.adaptive_rag import AdaptiveRag
from ragbandit.router.policies.finetuned.body import load_body
from ragbandit.router.policies.finetuned.mba_paper import MbaPaper
from ragbandit.router.policies.finetuned.multi_label import MultiLabel
from ragbandit.router.policies.finetuned.optimizer import dropout_seed, fresh_head, fresh_pre
from ragbandit.router.policies.testing import ARMS, POLICY_CHECKS, made_query, made_reward, made_updates, sha_of, taught
from ragbandit.router.types import Query, TableRow
from tests.support.tiny_models import COSTS, WIDTH, tiny_encoder, tiny_trained

READING = {"model": tiny_encoder(), "max_tokens": 16, "device": "cpu", "threads": 1}


def mba(**params):
    return MbaPaper(**READING | params)


def adaptive(**params):
    return AdaptiveRag(**READING | {"epochs": 2, "batch": 4, "learning_rate": 1e-3} | params)


def multi(**params):
    return MultiLabel(**READING | {"epochs": 2, "batch": 4, "learning_rate": 1e-3} | params)


def output_of(policy, text="who wrote dracula ?", arms=ARMS):
    return pmf_of_one(policy, Query(text=text), features=None, arms=arms)


def row(number, question, right, *, hops=None, steps=(0.0, 1.0, 4.5)):
    """A table's row; right: the arms that answered right."""
    return TableRow(
        id=str(number),
        question=question,
        correct={arm: float(arm in right) for arm in ARMS},
        steps=dict(zip(ARMS, steps, strict=True)),
        hops=hops,
    )


def rows_by_word(count=40):
    """Questions where "who" needs no retrieval and "when" needs many steps; the rest is chance."""
    random = np.random.default_rng(5)
    found = []
    for number in range(count):
        rest = " ".join(random.choice(["dracula", "born", "city", "river", "film"], size=3))
        easy = number % 2 == 0
        found.append(row(number, f"{'who' if easy else 'when'} {rest} ?", ARMS if easy else ARMS[2:]))
    return found


# ---------------------------------------------------------------------------------------------- mba_paper


def reference_net():
    """DistilBertForSequenceClassification as transformers makes it, with the weights that a fresh policy has."""
    import torch
    from transformers import AutoConfig, DistilBertForSequenceClassification

    config = AutoConfig.from_pretrained(tiny_encoder(), num_labels=3, attn_implementation="eager")
    net = DistilBertForSequenceClassification(config)
    body = load_body(**READING, precision="float32")
    pre, heads = fresh_pre(WIDTH, seed=0), np.stack([fresh_head(arm, width=WIDTH, seed=0) for arm in ARMS])
    state = {f"distilbert.{name}": view for name, view in body.views(body.initial).items()}
    state |= {"pre_classifier.weight": torch.tensor(pre[:, :-1]), "pre_classifier.bias": torch.tensor(pre[:, -1])}
    state |= {"classifier.weight": torch.tensor(heads[:, :-1]), "classifier.bias": torch.tensor(heads[:, -1])}
    net.load_state_dict(state)
    return net, body


@pytest.mark.parametrize("loss", ["paper", "code"])
def test_learns_as_the_authors_loop_does(loss):
    """After 25 updates all outputs equal, to 1e-5, those of the authors' loop: transformers' net, torch's AdamW, the
    linear schedule, and the mean squared error against the net's own outputs with the drawn arm's reward put in.
    """
    import torch
    from transformers import get_scheduler

    updates = made_updates(25)
    policy = taught(lambda: mba(loss=loss, total=25, learning_rate=1e-3, warmup=0.2), updates)
    net, body = reference_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=5, num_training_steps=25)
    with body.fixed_threads():
        for step, update in enumerate(updates, start=1):
            net.train()
            with torch.random.fork_rng():
                torch.manual_seed(dropout_seed(0, step=step))
                logits = net(input_ids=torch.tensor([body.tokenizer.encode(update.query.text).ids])).logits[0]
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
            wanted = net(input_ids=torch.tensor([body.tokenizer.encode(text).ids])).logits[0].numpy()
        assert np.abs(output_of(policy, text).scores - wanted).max() < 1e-5
    assert np.abs(output_of(policy, text).scores - np.array(output_of(mba(), text).scores)).max() > 1e-3


@pytest.mark.parametrize("step", [1, 2, 10, 100, 500, 1292])
def test_epsilon_is_the_papers(step):
    """At step e epsilon is 1/ln(e), clipped to 1 (notes/strategies.md, section 8)."""
    policy = mba()
    policy.seen = {"x": step - 1} if step > 1 else {}
    wanted = {1: 1.0, 2: 1.0, 10: 0.434, 100: 0.217, 500: 0.161, 1292: 0.140}[step]
    assert policy.epsilon == pytest.approx(wanted, abs=5e-4)
    output = output_of(policy)
    assert min(output.pmf) == pytest.approx(policy.epsilon / 3, abs=1e-12)
    assert output.facts == {"epsilon": policy.epsilon, "learning_rate": policy.rate}


def test_epsilon_means_what_the_notes_counted():
    """Over the authors' 1,292 steps epsilon is .170 on average."""
    policy, total = mba(), 0.0
    for done in range(1292):
        policy.seen = {"x": done}
        total += policy.epsilon
    assert total / 1292 == pytest.approx(0.170, abs=5e-4)


@pytest.mark.parametrize("warmup", [0.0, 0.05, 1.0])
def test_rate_is_the_linear_schedule(warmup):
    """The learning rate of every update is that of transformers' linear schedule, whatever the warm-up."""
    import torch
    from transformers import get_scheduler

    policy = mba(learning_rate=0.01, total=60, warmup=warmup)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
    schedule = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=int(60 * warmup), num_training_steps=60)
    for done in range(70):
        policy.seen = {"x": done}
        assert policy.rate == pytest.approx(schedule.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        schedule.step()


def test_rate_stays_at_the_floor():
    """The rate falls no lower than the floor, and stays there after the last step of the schedule."""
    policy = mba(learning_rate=0.01, total=10, floor=0.002)
    rates = []
    for done in range(15):
        policy.seen = {"x": done}
        rates.append(policy.rate)
    assert rates[:8] == pytest.approx([0.01, 0.009, 0.008, 0.007, 0.006, 0.005, 0.004, 0.003])
    assert rates[8:] == [0.002] * 7


@pytest.mark.parametrize(("floor", "moves"), [(0.0, False), (1e-4, True)])
def test_after_the_schedule_only_a_floor_learns(floor, moves):
    """After `total` updates the weights stay with a floor of 0 and move with one above; both count on."""
    updates = made_updates(12)
    policy = taught(lambda: mba(total=8, floor=floor), updates[:9])
    before = {name: array.copy() for name, array in policy.state()[0].items()}
    for update in updates[9:]:
        policy.learn(replace(update, arm=updates[8].arm))
    after, facts = policy.state()
    assert facts["updates"] == 12
    assert any(not np.array_equal(after[name], before[name]) for name in before) == moves


@pytest.mark.parametrize(
    ("reward", "failure", "arm", "quality", "steps", "target"),
    [
        ("ledger", "paper", 1, 1.0, 3.0, 0.7),
        ("ledger", "code", 1, 0.0, 3.0, -0.3),
        ("single", "paper", 0, 1.0, 0.0, 1.0),
        ("single", "paper", 1, 1.0, 1.0, 0.9),
        ("single", "paper", 2, 1.0, 4.0, 0.6),
        ("single", "paper", 2, 0.4, 4.0, -1.0),
        ("single", "code", 2, 0.4, 4.0, 0.0),
        ("multi_paper", "paper", 0, 0.5, 0.0, 4.3),
        ("multi_paper", "paper", 1, 1.0, 1.0, 2.3),
        ("multi_paper", "paper", 2, 1.0, 7.0, 1.15),
        ("multi_code", "code", 0, 1.0, 0.0, 4.49),
        ("multi_code", "code", 1, 1.0, 1.0, 2.3),
        ("multi_code", "code", 2, 1.0, 7.0, 2.1),
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
@pytest.mark.parametrize("before", [0, 6])
def test_row_that_does_not_tell_is_refused(reward, changes, arm, before):
    """A reward that is not finite, makes the loss overflow or does not fit the table is a PolicyFault, and neither
    the state nor the next lesson shows a trace of it.
    """
    policy = taught(lambda: mba(reward=reward), made_updates(before))
    update = made_updates(1, first=before + 1)[0]
    name = "unknown" if arm is None else "newcomer" if reward == "ledger" else ARMS[arm]
    bad = replace(update, arm=name, reward=replace(update.reward, **changes))
    sha256 = sha_of(policy)
    assert not apply(policy, bad)
    assert sha_of(policy) == sha256
    policy.learn(update)
    assert sha_of(policy) == sha_of(taught(lambda: mba(reward=reward), [*made_updates(before), update]))


def test_scale_of_the_loss_hardly_matters():
    """A third of the loss moves the weights as far: AdamW divides by the size of the gradient."""
    fresh = load_body(**READING, precision="float32").initial.numpy()
    moved = [
        taught(lambda loss=loss: mba(loss=loss), made_updates(10)).state()[0]["encoder"][0] - fresh
        for loss in ("paper", "code")
    ]
    seen = np.abs(moved[0]) > 1e-4
    assert seen.mean() > 0.5
    assert np.median(np.abs(moved[1][seen] / moved[0][seen] - 1.0)) < 1e-3


def test_all_weights_are_trained():
    """One lesson moves every tensor of the encoder that the question touches, and the layer before the heads."""
    import torch

    body = load_body(**READING, precision="float32")
    policy = taught(lambda: mba(weight_decay=0.0), made_updates(1))
    arrays = policy.state()[0]
    before, after = body.views(body.initial), body.views(torch.tensor(arrays["encoder"][0]))
    # The key's bias drops out of the softmax: its gradient is zero but for rounding.
    still = [name for name in before if torch.equal(before[name], after[name]) and not name.endswith("k_lin.bias")]
    assert still == []
    assert not np.array_equal(arrays["pre"][0], fresh_pre(WIDTH, seed=0))


def test_dropout_is_of_the_step_and_the_seed():
    """The same lesson at another step, or with another seed, leaves out other units."""
    update = made_updates(1)[0]
    body = load_body(**READING, precision="float32")
    encoder = body.views(body.initial)
    pre = body.tensor(fresh_pre(WIDTH, seed=0))
    seeds = [dropout_seed(0, step=1), dropout_seed(0, step=2), dropout_seed(1, step=1), None]
    found = [body.hidden([update.query.text], encoder=encoder, pre=pre, dropout=seed).numpy() for seed in seeds]
    again = body.hidden([update.query.text], encoder=encoder, pre=pre, dropout=seeds[0]).numpy()
    assert np.array_equal(found[0], again)
    assert all(not np.array_equal(found[i], found[j]) for i in range(4) for j in range(i))


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


def test_a_fresh_policy_keeps_no_weights():
    """Before its first lesson a policy's state is its counts and the model's name: no copy of the encoder."""
    arrays, facts = mba().state()
    assert arrays == {}
    assert set(facts) == {"updates", "seen", "model"}


def test_heads_begin_by_name():
    """A new head is the same whenever its arm joins, differs by name and by seed, and has no bias."""
    head = fresh_head("a", width=WIDTH, seed=0)
    assert np.array_equal(head, fresh_head("a", width=WIDTH, seed=0))
    assert not np.array_equal(head, fresh_head("b", width=WIDTH, seed=0))
    assert not np.array_equal(head, fresh_head("a", width=WIDTH, seed=1))
    assert head[-1] == 0.0
    assert fresh_head("a", width=4000, seed=0)[:-1].std() == pytest.approx(0.02, rel=0.1)


def test_other_encoders_can_stand_in(tmp_path):
    """A BERT with a pooler that nobody uses learns too: its other weights move, the pooler's stay."""
    import torch
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=40, max_position_embeddings=20, **sizes)).save_pretrained(tmp_path)
    shutil.copy(Path(tiny_encoder()) / "tokenizer.json", tmp_path)
    policy = taught(lambda: mba(model=str(tmp_path)), made_updates(4))
    body = policy._body
    before, after = body.views(body.initial), body.views(torch.tensor(policy.state()[0]["encoder"][0]))
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert {name for name in before if name.startswith("pooler")} <= still
    assert "encoder.layer.0.output.dense.weight" not in still


@pytest.mark.parametrize("changes", [{"model": tiny_encoder(9)}, {"max_tokens": 8}])
def test_state_of_another_model_is_refused(changes):
    """A state made with other weights, or with a tokenizer that cuts elsewhere, is a SnapshotError."""
    arrays, facts = taught(mba, made_updates(3)).state()
    with pytest.raises(SnapshotError, match="another model"):
        mba(**changes).restore(arrays, facts)


def test_reads_no_more_than_max_tokens():
    """What stands after max_tokens tokens changes nothing, and text that has no UTF-8 is read all the same."""
    policy = mba(max_tokens=6)
    assert output_of(policy, "who wrote the film dracula ?") == output_of(policy, "who wrote the film born in paris")
    assert output_of(policy, "who wrote \ud800 ?").scores == output_of(policy, "who wrote ? ?").scores


@pytest.mark.parametrize(
    "check",
    [
        checks.check_same_updates_same_policy,
        checks.check_learns_on_after_restore,
        checks.check_batch_is_each_alone,
        checks.check_number_of_arms_does_not_matter,
        checks.check_refuses_broken_arrays,
    ],
    ids=lambda check: check.__name__,
)
def test_contract_at_the_defaults(check):
    """In float32, with the paper's loss and the ledger's reward, mba_paper keeps the contract too."""
    check(mba)


# ---------------------------------------------------------------------------------------------- the classifiers


@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("make", [adaptive, multi], ids=["adaptive_rag", "multi_label"])
def test_untrained_classifier_keeps_the_contract(make, check):
    """A classifier that was never trained is a policy like any other."""
    check(make)


@pytest.mark.parametrize("make", [adaptive, multi], ids=["adaptive_rag", "multi_label"])
def test_untrained_classifier_says_so(make):
    """Without training all arms are alike, and the log says why."""
    output = output_of(make())
    assert output.pmf == pytest.approx((1 / 3,) * 3)
    assert output.facts == {"untrained": True}
    assert make().report is None


@pytest.fixture(scope="module")
def fitted():
    """Makers of classifiers that were fitted in this process, by restoring one such state."""
    made = {}
    for make in (adaptive, multi):
        policy = make()
        policy.fit(rows_by_word(12))
        made[policy.algorithm] = make, policy.state()

    def maker(name):
        make, state = made[name]

        def restored():
            policy = make()
            policy.restore(*state)
            return policy

        return restored

    return maker


@pytest.mark.parametrize("name", ["adaptive_rag", "multi_label"])
@pytest.mark.parametrize(
    "check",
    [
        checks.check_pmf_changes_nothing,
        checks.check_pmf_follows_the_order,
        checks.check_batch_is_each_alone,
        checks.check_snapshot_round_trip,
        checks.check_restored_policies_share_nothing,
        checks.check_facts_are_json,
        checks.check_refuses_broken_arrays,
        checks.check_refuses_broken_facts,
    ],
    ids=lambda check: check.__name__,
)
def test_fitted_classifier_keeps_the_contract(fitted, name, check):
    """A classifier whose weights lie in its state keeps the contract."""
    check(fitted(name))


@pytest.mark.parametrize(
    ("right", "hops", "steps", "label"),
    [
        (ARMS, None, (0.0, 1.0, 4.5), "no_retrieval"),
        (ARMS[1:], None, (0.0, 1.0, 4.5), "single_step"),
        (ARMS[2:], None, (0.0, 1.0, 4.5), "multi_step"),
        (ARMS[1:], None, (0.0, 5.0, 4.5), "multi_step"),
        (ARMS, None, (2.0, 2.0, 2.0), "no_retrieval"),
        (ARMS[1:], 2, (0.0, 1.0, 4.5), "single_step"),
        ((), 1, (0.0, 1.0, 4.5), "single_step"),
        ((), 2, (0.0, 1.0, 4.5), "multi_step"),
        ((), 4, (0.0, 1.0, 4.5), "multi_step"),
        ((), 0, (0.0, 1.0, 4.5), None),
        ((), None, (0.0, 1.0, 4.5), None),
    ],
)
def test_silver_and_inductive_labels(right, hops, steps, label):
    """The label is the cheapest right arm by steps, the first of equals; with none right, by hops or left out."""
    examples = adaptive()._examples([row(1, "who ?", right, hops=hops, steps=steps)], arms=ARMS)
    assert [dict(zip(ARMS, e.target, strict=True)) for e in examples] == (
        [] if label is None else [{arm: float(arm == label) for arm in ARMS}]
    )
    assert [e.inductive for e in examples] == ([] if label is None else [not right])


def test_report_counts_the_rows():
    """The report tells rows given, used, dropped, labelled by hops and held out, and the labels of every arm."""
    rows = [
        *rows_by_word(8),
        row(90, "who ?", (), hops=1),
        row(91, "when ?", (), hops=3),
        row(92, "where ?", ()),
        TableRow(id="q", question="which ?", correct={}, steps={}, hops=1),
        TableRow(id="r", question="what ?", correct={}, steps={}, hops=0),
    ]
    report = adaptive(validation=0.25).fit(rows)
    assert {key: report[key] for key in ("rows", "used", "dropped", "inductive", "validation_rows")} == {
        "rows": 13,
        "used": 11,
        "dropped": 2,
        "inductive": 3,
        "validation_rows": 3,
    }
    assert report["labels"] == {"no_retrieval": 4, "single_step": 2, "multi_step": 5}
    report = multi(validation=0.25).fit(rows)
    assert {key: report[key] for key in ("used", "dropped", "inductive")} == {"used": 11, "dropped": 2, "inductive": 0}
    assert report["labels"] == {"no_retrieval": 4, "single_step": 4, "multi_step": 8}


@pytest.mark.parametrize("make", [adaptive, multi], ids=["adaptive_rag", "multi_label"])
def test_fit_learns_what_the_word_tells(make):
    """Trained on questions whose first word decides, it routes questions that it never saw by that word."""
    policy = make(epochs=8, learning_rate=3e-3)
    report = policy.fit(rows_by_word())
    for rest in ("city river film ?", "born born dracula ?"):
        for word, place in (("who", 0), ("when", 2)):
            pmf = output_of(policy, f"{word} {rest}").pmf
            assert pmf[place] == 1.0
            assert sum(pmf) == 1.0
    assert report["epochs"][report["best_epoch"] - 1]["accuracy"] == 1.0


@pytest.mark.parametrize("make", [adaptive, multi], ids=["adaptive_rag", "multi_label"])
def test_best_epoch_is_kept(make):
    """Where later epochs spoil it, the policy is that of the best held-out epoch: the loss on these rows, from the
    probabilities it logs, is the one in the report.
    """
    random = np.random.default_rng(8)
    rows = [replace(r, correct=dict(zip(ARMS, random.permutation([1, 0, 0]), strict=True))) for r in rows_by_word(30)]
    policy = make(epochs=8, learning_rate=1e-2, validation=0.3, seed=1)
    report = policy.fit(rows)
    losses = [line["validation_loss"] for line in report["epochs"]]
    merits = losses if make is multi else [(-e["accuracy"], e["validation_loss"]) for e in report["epochs"]]
    assert report["best_epoch"] == merits.index(min(merits)) + 1
    assert losses[report["best_epoch"] - 1] != losses[-1]
    held = [rows[i] for i in np.random.default_rng([1, 2]).permutation(30)[:9]]
    found = np.array([output_of(policy, r.question).facts["probability"] for r in held])
    right = np.array([[r.correct[arm] for arm in ARMS] for r in held])
    if make is multi:
        mean = -(right * np.log(found) + (1 - right) * np.log(1 - found)).mean()
    else:
        mean = -np.log(found[np.arange(9), right.argmax(1)]).mean()
    assert mean == pytest.approx(losses[report["best_epoch"] - 1], abs=1e-5)


def test_held_out_rows_teach_nothing():
    """Other labels on the held-out rows leave the weights of the first epoch as they were, bit for bit."""
    rows = rows_by_word(20)
    held = set(np.random.default_rng([0, 2]).permutation(20)[:6])
    other = [replace(r, correct=dict.fromkeys(ARMS, 1.0)) if i in held else r for i, r in enumerate(rows)]
    states = []
    for given in (rows, other):
        policy = adaptive(epochs=1, validation=0.3)
        policy.fit(given)
        states.append(policy.state()[0])
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("make", [adaptive, multi], ids=["adaptive_rag", "multi_label"])
def test_fit_repeats_itself(make):
    """The same rows give the same weights, bit for bit; another seed gives others."""
    shas = []
    for seed in (0, 0, 1):
        policy = make(seed=seed)
        policy.fit(rows_by_word(10))
        shas.append(sha_of(policy))
    assert shas[0] == shas[1] != shas[2]


def test_fit_begins_anew():
    """Fitting twice is fitting once: training starts from the model, not from what was trained before."""
    once, twice = adaptive(), adaptive()
    twice.fit(rows_by_word(12)[::-1])
    for policy in (once, twice):
        policy.fit(rows_by_word(10))
    assert sha_of(once) == sha_of(twice)


def test_without_held_out_rows_the_last_epoch_is_kept():
    """With validation 0 it trains on everything and keeps the last epoch."""
    report = adaptive(validation=0.0, epochs=3).fit(rows_by_word(10))
    assert (report["validation_rows"], report["best_epoch"]) == (0, 3)
    assert [set(line) for line in report["epochs"]] == [{"loss"}] * 3


def test_progress_counts_batches():
    """Training tells how many batches are done, up to all of all epochs."""
    seen = []
    adaptive(epochs=2, batch=4, validation=0.0).fit(rows_by_word(10), progress=lambda *both: seen.append(both))
    assert seen == [(n, 6) for n in range(1, 7)]


def test_losses_are_torchs():
    """adaptive_rag's loss is torch's cross-entropy; multi_label's is its binary one, over the entries that are known.

    What both say of held-out rows is the same loss.
    """
    import torch

    random = np.random.default_rng(0)
    outputs = random.normal(0, 2, (6, 3)).astype(np.float32)
    classes = random.integers(3, size=6)
    onehot = np.eye(3, dtype=np.float32)[classes]
    wanted = float(torch.nn.functional.cross_entropy(torch.tensor(outputs), torch.tensor(classes)))
    assert float(adaptive()._loss(torch.tensor(outputs), torch.tensor(onehot))) == pytest.approx(wanted, abs=1e-6)
    accuracy, loss = adaptive()._judged(outputs.astype(np.float64), onehot.astype(np.float64))
    assert (accuracy, loss) == pytest.approx(((outputs.argmax(1) == classes).mean(), wanted), abs=1e-6)
    labels = random.integers(2, size=(6, 3)).astype(np.float32)
    wanted = float(torch.nn.BCEWithLogitsLoss()(torch.tensor(outputs[:, :2]), torch.tensor(labels[:, :2])))
    labels[:, 2] = np.nan
    assert float(multi()._loss(torch.tensor(outputs), torch.tensor(labels))) == pytest.approx(wanted, abs=1e-6)
    accuracy, loss = multi()._judged(outputs.astype(np.float64), labels.astype(np.float64))
    share = ((outputs[:, :2] > 0) == (labels[:, :2] > 0.5)).mean()
    assert (accuracy, loss) == pytest.approx((share, wanted), abs=1e-6)


def test_classifier_picks_among_what_is_offered():
    """The likeliest of the offered arms is drawn; where none of them was trained, all are alike."""
    policy = adaptive(trained=tiny_trained("adaptive_rag"))
    likely = output_of(policy).facts["probability"]
    assert sum(likely) == pytest.approx(1.0)
    best = int(np.argmax(likely))
    rest = [arm for i, arm in enumerate(ARMS) if i != best]
    assert output_of(policy).pmf[best] == 1.0
    assert output_of(policy, arms=[*rest, "new"]).pmf[int(np.argmax([likely[ARMS.index(a)] for a in rest]))] == 1.0
    assert output_of(policy, arms=["new", "newer"]).pmf == (0.5, 0.5)


KNOWN = dict(zip(ARMS, [(0.3, 0.0), (0.6, 1.0), (0.8, 4.5)], strict=True))


@pytest.mark.parametrize(
    ("params", "arms", "pmf"),
    [
        ({"tau": 0.2}, ARMS, (1.0, 0.0, 0.0)),
        ({"tau": 0.5}, ARMS, (0.0, 1.0, 0.0)),
        ({"tau": 0.8}, ARMS, (0.0, 0.0, 1.0)),
        ({"tau": 0.9}, ARMS, (0.0, 0.0, 1.0)),
        ({"tau": 0.9}, ARMS[:2], (0.0, 1.0)),
        ({"tau": 0.0}, ["new", *ARMS[1:]], (0.0, 1.0, 0.0)),
        ({"choice": "net", "weight": 0.0}, ARMS, (0.0, 0.0, 1.0)),
        ({"choice": "net", "weight": 0.1}, ARMS, (0.0, 1.0, 0.0)),
        ({"choice": "net", "weight": 0.4}, ARMS, (1.0, 0.0, 0.0)),
        ({"choice": "net", "weight": 0.4}, ["new", "multi_step"], (0.0, 1.0)),
    ],
)
def test_multi_label_chooses_by_cost(params, arms, pmf):
    """The cheapest arm that is likely enough, or the best of p - weight * cost; an unknown arm is never preferred."""
    assert multi(**params)._word(KNOWN, arms=arms).pmf == pmf


def test_multi_label_logs_its_heads():
    """With choice "net" quality, cost and weight are logged, and the scores are quality - weight * cost."""
    policy = multi(choice="net", weight=0.2, trained=tiny_trained("multi_label"))
    output = output_of(policy)
    assert output.facts["cost"] == COSTS
    assert output.facts["weight"] == 0.2
    made = [q - 0.2 * c for q, c in zip(output.facts["quality"], COSTS, strict=True)]
    assert output.scores == pytest.approx(made)
    assert output.pmf[int(np.argmax(made))] == 1.0


def test_costs_are_the_mean_steps():
    """What an arm costs is its mean number of steps in the training rows."""
    rows = [row(i, "who ?", ARMS, steps=(0.0, 1.0, float(i))) for i in range(5)]
    policy = multi(choice="net")
    policy.fit(rows)
    assert output_of(policy).facts["cost"] == [0.0, 1.0, 2.0]


# ---------------------------------------------------------------------------------------------- the trained folder


def test_trained_arms_are_the_tables():
    """A classifier says which arms it can choose: none before it is trained, then those of its table."""
    assert adaptive().trained_arms == ()
    assert adaptive(trained=tiny_trained("adaptive_rag")).trained_arms == ARMS
    policy = multi()
    policy.fit([row(number, "who ?", ARMS[:1]) for number in range(4)])
    assert policy.trained_arms == ARMS


@pytest.mark.parametrize("make", [adaptive, multi], ids=["adaptive_rag", "multi_label"])
def test_trained_folder_decides_as_the_fitted_policy(make, tmp_path):
    """The policy that reads a saved folder says, bit for bit, what the one said that was fitted; its state names the
    folder and holds no weights.
    """
    policy = make()
    report = policy.fit(rows_by_word(10))
    policy.save(tmp_path / "out")
    again = make(trained=str(tmp_path / "out"))
    for seed in range(5):
        assert output_of(again, made_query(seed).text) == output_of(policy, made_query(seed).text)
    assert again.report == report
    arrays, facts = again.state()
    assert arrays == {}
    assert set(facts) == {"updates", "seen", "trained"}


def test_trained_folder_is_a_model_of_transformers(tmp_path):
    """AutoModel loads the saved folder, and its first token's state is what the policy's layers get."""
    import torch
    from transformers import AutoModel

    policy = adaptive()
    policy.fit(rows_by_word(10))
    policy.save(tmp_path / "out")
    model = AutoModel.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    trained = policy._trained
    ids = torch.tensor([trained.body.tokenizer.encode("who wrote dracula ?").ids])
    with torch.no_grad():
        first = model(input_ids=ids).last_hidden_state[:, 0]
        wanted = torch.relu(torch.nn.functional.linear(first, trained.pre[:, :-1], trained.pre[:, -1]))
        views = trained.body.views(trained.encoder)
        found = trained.body.hidden(["who wrote dracula ?"], encoder=views, pre=trained.pre, dropout=None)
    assert torch.allclose(found, wanted, atol=1e-6)
    assert not torch.allclose(trained.encoder, trained.body.initial, atol=1e-4)


def test_state_of_another_folder_is_refused():
    """A snapshot made with another trained folder, or with none, is a SnapshotError."""
    ours, other = tiny_trained("adaptive_rag"), tiny_trained("adaptive_rag", seed=2)
    policy = adaptive(trained=ours)
    for made in (adaptive(trained=other), adaptive()):
        with pytest.raises(SnapshotError, match="another trained folder"):
            policy.restore(*made.state())
    with pytest.raises(SnapshotError, match="another trained folder"):
        adaptive().restore(*policy.state())


def test_fit_replaces_the_folder():
    """A policy with a trained folder that is fitted again carries its own weights, as `simulate` needs."""
    policy, plain = adaptive(trained=tiny_trained("adaptive_rag")), adaptive()
    for one in (policy, plain):
        one.fit(rows_by_word(10))
    assert all(np.array_equal(a, plain.state()[0][name]) for name, a in policy.state()[0].items())
    back = adaptive(trained=tiny_trained("adaptive_rag"))
    back.restore(*policy.state())
    assert output_of(back) == output_of(plain)


def _damage(folder, what):
    if what == "no facts":
        (folder / "ragbandit.json").unlink()
    elif what == "no weights":
        (folder / "model.safetensors").unlink()
    elif what.endswith((".safetensors", "config.json", "tokenizer.json")):
        content = (folder / what).read_bytes()
        (folder / what).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        facts = json.loads((folder / "ragbandit.json").read_text())
        facts |= {"format": {"format": 2}, "list": [], "arms": {"arms": 3}, "one arm": {"arms": ["a"]}}[what] or {}
        (folder / "ragbandit.json").write_text("[]" if what == "list" else json.dumps(facts))


@pytest.mark.parametrize(
    "what",
    [
        "no facts",
        "no weights",
        "model.safetensors",
        "layers.safetensors",
        "config.json",
        "tokenizer.json",
        "format",
        "list",
        "arms",
        "one arm",
    ],
)
def test_damaged_folder_is_refused(tmp_path, what):
    """A folder that lacks a file, or whose file was changed by one bit, is a ConfigError of `trained` with a remedy."""
    folder = tmp_path / "out"
    shutil.copytree(tiny_trained("adaptive_rag"), folder)
    _damage(folder, what)
    with pytest.raises(ConfigError) as caught:
        adaptive(trained=str(folder))
    assert caught.value.field == "policy.params.trained"
    assert "ragbandit train" in caught.value.remedy


def test_folder_in_use_is_left_alone(tmp_path):
    """Saving where something is already is a ConfigError, and what is there stays; an empty folder is filled."""
    policy = adaptive()
    policy.fit(rows_by_word(10))
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("used", "file"):
        with pytest.raises(ConfigError, match="there already"):
            policy.save(tmp_path / name)
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["mine"]
    policy.save(tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "used"]
    assert adaptive(trained=str(tmp_path / "empty")).report is not None
    plain = tmp_path / "plain"
    plain.touch()
    assert {path.stat().st_mode for path in (tmp_path / "empty").iterdir()} == {plain.stat().st_mode}


def test_untrained_policy_is_not_saved(tmp_path):
    """Saving before fitting is an InvalidInput, and no folder appears."""
    with pytest.raises(InvalidInput, match="not trained"):
        adaptive().save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", [[], [row(1, "who ?", ())] * 5, [row(1, "who ?", ARMS)]])
def test_rows_without_labels_are_refused(rows):
    """Fewer than two rows with a label are an InvalidInput that counts them."""
    with pytest.raises(InvalidInput, match=f"of {len(rows)} rows") as caught:
        adaptive().fit(rows)
    assert caught.value.remedy


def test_arm_of_the_bias_must_be_in_the_table():
    """A row that needs an inductive label of an arm that the table lacks is a ConfigError naming the param."""
    rows = [*rows_by_word(4), row(9, "who ?", (), hops=1)]
    with pytest.raises(ConfigError, match="not among the table's arms") as caught:
        adaptive(single="one").fit(rows)
    assert caught.value.field == "policy.params.single"


@pytest.mark.parametrize(
    ("name", "params", "field"),
    [
        ("mba_paper", {"loss": "huber"}, "loss"),
        ("mba_paper", {"reward": "none"}, "reward"),
        ("mba_paper", {"reward": ["single"]}, "reward"),
        ("mba_paper", {"failure": 0}, "failure"),
        ("mba_paper", {"learning_rate": -1.0}, "learning_rate"),
        ("mba_paper", {"learning_rate": math.inf}, "learning_rate"),
        ("mba_paper", {"learning_rate": 10**400}, "learning_rate"),
        ("mba_paper", {"weight_decay": math.nan}, "weight_decay"),
        ("mba_paper", {"floor": -0.1}, "floor"),
        ("mba_paper", {"warmup": 1.5}, "warmup"),
        ("mba_paper", {"total": 0}, "total"),
        ("mba_paper", {"total": 2.5}, "total"),
        ("mba_paper", {"seed": -1}, "seed"),
        ("mba_paper", {"seed": True}, "seed"),
        ("mba_paper", {"max_tokens": 2}, "max_tokens"),
        ("mba_paper", {"max_tokens": 41}, "max_tokens"),
        ("mba_paper", {"device": "tpu"}, "device"),
        ("mba_paper", {"device": ["cpu"]}, "device"),
        ("mba_paper", {"precision": "int8"}, "precision"),
        ("mba_paper", {"threads": 0}, "threads"),
        ("mba_paper", {"model": "./nowhere"}, "model"),
        ("mba_paper", {"model": 3}, "model"),
        ("adaptive_rag", {"single": ""}, "single"),
        ("adaptive_rag", {"multi": 3}, "multi"),
        ("adaptive_rag", {"learning_rate": -1.0}, "learning_rate"),
        ("adaptive_rag", {"batch": 0}, "batch"),
        ("adaptive_rag", {"epochs": 0}, "epochs"),
        ("adaptive_rag", {"epochs": 1.5}, "epochs"),
        ("adaptive_rag", {"validation": 1.0}, "validation"),
        ("adaptive_rag", {"seed": None}, "seed"),
        ("adaptive_rag", {"device": "tpu"}, "device"),
        ("adaptive_rag", {"model": ""}, "model"),
        ("adaptive_rag", {"trained": 3}, "trained"),
        ("adaptive_rag", {"trained": "nowhere"}, "trained"),
        ("adaptive_rag", {"trained": tiny_encoder()}, "trained"),
        ("adaptive_rag", {"trained": tiny_trained("multi_label")}, "trained"),
        ("multi_label", {"choice": "dearest"}, "choice"),
        ("multi_label", {"tau": 1.5}, "tau"),
        ("multi_label", {"weight": -0.1}, "weight"),
        ("multi_label", {"weight": math.inf}, "weight"),
        ("multi_label", {"precision": "int8"}, "precision"),
    ],
)
def test_wrong_params_are_refused(name, params, field):
    """A param that is unknown, of another type or out of range is a ConfigError with field and remedy."""
    with pytest.raises(ConfigError) as caught:
        make_policy(name, params=READING | params)
    assert caught.value.field == f"policy.params.{field}"
    assert caught.value.remedy


def test_modules_import_no_torch():
    """The three policies and their shared files are imported without torch or transformers."""
    import subprocess
    import sys

    code = (
        "import sys\n"
        "from ragbandit.router.policies.finetuned import adaptive_rag, mba_paper, multi_label\n"
        "print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"
    assert Path(tiny_encoder()).is_dir()


def test_diverged_weights_are_said():
    """Weights that have grown until the loss overflows are a PolicyFault that says so, and keep their state."""
    policy = taught(mba, made_updates(2))
    arrays, facts = policy.state()
    arrays["pre"][0] = 1e25
    with pytest.raises(PolicyFault, match="diverged"):
        policy.learn(made_updates(1, first=3)[0])
    assert policy.state()[1] == facts
    assert (policy.state()[0]["pre"][0] == np.float32(1e25)).all()


@pytest.mark.parametrize(
    ("arm", "unit", "head"),
    [(ARMS[0], 1e-37, 1e37), (ARMS[0], 1e-20, 1e20), ("newcomer", 1e18, 1.0)],
    ids=["infinite", "infinite when squared", "of a new head"],
)
def test_gradient_that_would_spoil_the_weights_is_refused(arm, unit, head):
    """Where the loss is finite and a gradient is not, or its square is not, the row is a PolicyFault and the state
    stays as it was, also where the row's arm is new.
    """
    arrays, facts = taught(mba, made_updates(12)).state()
    arrays = {name: array.copy() for name, array in arrays.items()}
    arrays["pre"][0, :, :-1], arrays["pre"][0, :, -1] = 0.0, unit  # what every unit of the layer gives
    for name in facts["seen"]:
        arrays[f"head/{name}"][0, :-1], arrays[f"head/{name}"][0, -1] = head, 0.0
    policy = mba()
    policy.restore(arrays, facts)
    update = replace(made_updates(1, first=13)[0], arm=arm)
    before = sha_of(policy)
    assert all(math.isfinite(score) for score in output_of(policy, update.query.text).scores)
    assert not apply(policy, update)
    assert sha_of(policy) == before


@pytest.mark.parametrize("package", ["torch", "transformers"])
@pytest.mark.parametrize("name", ["mba_paper", "adaptive_rag"])
def test_missing_package_names_the_field(monkeypatch, package, name, tmp_path):
    """Without torch or transformers a policy that needs them is a ConfigError of `model` that says what to install."""
    shutil.copytree(tiny_trained("adaptive_rag"), tmp_path / "model")
    params = READING | ({"model": str(tmp_path / "model")} if name == "mba_paper" else {})
    params |= {"trained": str(tmp_path / "model")} if name == "adaptive_rag" else {}
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"the package {package} is missing") as caught:
        make_policy(name, params=params)
    assert caught.value.field == "policy.params.model"
    assert "ragbandit[models]" in caught.value.remedy


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_encoder_without_a_package_names_the_field(monkeypatch, package, tmp_path):
    """Without torch, or for another model than DistilBERT without transformers, the encoder's error names `model`."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"the package {package} is missing") as caught:
        load_transformer(tmp_path, precision="float32", device="cpu", threads=None)
    assert caught.value.field == "encoder.model"
    assert "ragbandit[models]" in caught.value.remedy


def test_model_that_changed_on_disk_is_read_anew(tmp_path):
    """A folder that was written again under the same name gives the new weights, not those loaded before."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_encoder(), folder)
    first = output_of(mba(model=str(folder)))
    assert first == output_of(mba())
    shutil.rmtree(folder)
    shutil.copytree(tiny_encoder(9), folder, copy_function=shutil.copyfile)
    assert output_of(mba(model=str(folder))) == output_of(mba(model=tiny_encoder(9))) != first
