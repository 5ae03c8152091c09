"""The trained classifiers, adaptive_rag and multi_label: labels, training, choices, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest

from ragbandit.additions.classifiers.policies import MultiLabel
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import TableRow
from ragbandit.testing.policies import ARMS, made_query
from tests.additions.classifiers.examples import adaptive, multi, rows_by_word
from tests.support.finetuned import READING, output_of, row
from tests.support.tiny_models import tiny_trained


@pytest.mark.parametrize("make", [adaptive, multi], ids=["adaptive_rag", "multi_label"])
def test_untrained_classifier_says_so(make):
    """Without training all arms are alike, and the log says why."""
    output = output_of(make())
    assert output.pmf == pytest.approx((1 / 3,) * 3)
    assert output.facts == {"untrained": True}
    assert make().report is None


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
    target = adaptive()._target(row(1, "who ?", right, hops=hops, steps=steps), arms=ARMS)
    assert target == (None if label is None else tuple(float(arm == label) for arm in ARMS))


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
        states.append(policy._network.arrays(rows=1))
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


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


@pytest.mark.parametrize(
    ("params", "arms", "pmf"),
    [
        ({"tau": 0.2}, ARMS, (1.0, 0.0, 0.0)),
        ({"tau": 0.5}, ARMS, (0.0, 1.0, 0.0)),
        ({"tau": 0.7}, ARMS, (0.0, 0.0, 1.0)),
        ({"tau": 0.9}, ARMS, (0.0, 0.0, 1.0)),
        ({"tau": 0.9}, ARMS[:2], (0.0, 1.0)),
        ({"tau": 0.0}, ["new", *ARMS[1:]], (0.0, 1.0, 0.0)),
        ({"choice": "net", "weight": 0.0}, ARMS, (0.0, 0.0, 1.0)),
        ({"choice": "net", "weight": 0.1}, ARMS, (0.0, 1.0, 0.0)),
        ({"choice": "net", "weight": 0.4}, ARMS, (1.0, 0.0, 0.0)),
        ({"choice": "net", "weight": 0.4}, ["new", "multi_step"], (0.0, 1.0)),
        ({"choice": "likeliest"}, ARMS, (0.0, 0.0, 1.0)),
        ({"choice": "likeliest"}, ARMS[:2], (0.0, 1.0)),
        ({"choice": "likeliest", "tau": 0.2, "weight": 0.4}, ["new", *ARMS[:1]], (0.0, 1.0)),
    ],
)
def test_multi_label_chooses_by_cost(params, arms, pmf):
    """The cheapest arm that is likely enough, the best of p - weight * cost, or only the likeliest; an unknown arm is
    never preferred.
    """
    import torch

    policy = multi(**params)
    policy.trained_arms, policy._costs = ARMS, (0.0, 1.0, 4.5)
    assert policy._choice(torch.logit(torch.tensor([0.3, 0.6, 0.8])), arms=arms).pmf == pmf


def test_the_papers_rule_is_the_default():
    """Without `choice` the most likely label is drawn, as in the paper, whatever it costs: as `net` with weight 0."""
    params = READING | {"trained": tiny_trained("multi_label")}
    default, net = MultiLabel(**params), MultiLabel(**params, choice="net", weight=0.0)
    assert default.settings.choice == "likeliest"
    texts = [made_query(seed).text for seed in range(12)]
    outputs = [output_of(default, text) for text in texts]
    assert [output.pmf for output in outputs] == [output_of(net, text).pmf for text in texts]
    for output in outputs:
        likely = output.facts["probability"]
        assert output.pmf[likely.index(max(likely))] == 1.0


def test_costs_are_the_mean_steps():
    """What an arm costs is its mean number of steps in the training rows."""
    rows = [row(i, "who ?", ARMS, steps=(0.0, 1.0, float(i))) for i in range(5)]
    policy = multi(choice="net")
    policy.fit(rows)
    assert output_of(policy).facts["cost"] == [0.0, 1.0, 2.0]


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
