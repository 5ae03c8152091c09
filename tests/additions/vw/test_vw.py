"""The vw policy against Vowpal Wabbit itself: dsjson, its command line, its own explorers."""

import hashlib
import json
import math
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ragbandit.additions.vw.policy import VowpalWabbit
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import apply_update, pmf_of_one
from ragbandit.shared.errors import ConfigError, PolicyFault, SnapshotError
from ragbandit.shared.types import ArmName, Query
from ragbandit.testing.policies import ARMS, POLICY_CHECKS, made_features, made_reward, made_updates, sha_of, taught
from tests.support.cases import every_case

vw = pytest.importorskip("vowpal_wabbit_next", reason="no wheel for this Python")

QUERY = Query(text="who?")
SORTED = tuple(sorted(ARMS))
#: other than EXAMPLES of test_policy_contract.py
MORE = [{"explorer": "squarecb", "cb_type": "ips", "power_t": 0.5, "bits": 16}]


def maker(**params):
    return lambda: VowpalWabbit(**params)


def output_of(policy, features, arms=ARMS):
    return pmf_of_one(policy, QUERY, features=features, arms=arms)


def number_of(arm):
    """The name of an arm's one feature in dsjson: VW takes names of digits as indices."""
    return str(int.from_bytes(hashlib.blake2b(arm.encode(), digest_size=4).digest(), "big"))


def dsjson_of(update, arms, *, columns=()):
    """A row as the Decision Service logs it, the arm drawn labelled; columns: of the context."""
    scaled = (update.features.astype(np.float64) / math.sqrt(update.features.size)).astype(np.float32)
    drawn = arms.index(update.arm)
    return json.dumps(
        {
            "_label_cost": -update.reward.value,
            "_label_probability": update.propensity,
            "_label_Action": drawn + 1,
            "_labelIndex": drawn,
            "Timestamp": "2020-01-01T00:00:00Z",
            "Version": "1",
            "EventId": update.decision_id,
            "a": list(range(1, len(arms) + 1)),
            "c": {
                "q": [float(v) for v in scaled],
                **({"c": [float(np.float32(v)) for v in columns]} if len(columns) else {}),
                "_multi": [{"a": {number_of(arm): 1}} for arm in arms],
            },
            "p": [update.propensity] * len(arms),
            "VWState": {"m": "x"},
        }
    )


def arguments_of(cb_type, *, learning_rate, power_t=0.0):
    return (
        f"--cb_type {cb_type} -q qa --ignore_linear q --noconstant --adaptive --invariant -b 18 "
        f"--learning_rate {learning_rate} --power_t {power_t}"
    ).split()


def examples_of(update, arms, *, labelled):
    """The same row without text: index = hash of the namespace + place or number."""
    parser = vw.DSJsonFormatParser(vw.Workspace(["--cb_explore_adf", "-b", "18", "--quiet"]))
    examples = parser.parse_json(dsjson_of(update, arms))
    if not labelled:
        for example in examples[1:]:
            example.set_label(vw.CBLabel())
    return examples


def without_tallies(workspace):
    return vw.Workspace(["--quiet"], model_data=workspace.serialize()).serialize()


@pytest.mark.parametrize("params", MORE, ids=lambda params: f"{params['explorer']}-{params['cb_type']}")
def test_contract(params):
    """Every way to a cost, with either explorer, keeps the contract."""
    with every_case() as case:
        for check in POLICY_CHECKS:
            with case(check.__name__):
                check(maker(**params))


# --- VW is the oracle ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power_t", [0.0, 0.5])
@pytest.mark.parametrize("cb_type", ["mtr", "ips", "dr"])
def test_model_is_the_one_dsjson_makes(cb_type, power_t):
    """VW fed with dsjson (for mtr the arm drawn alone) makes the same model, byte for byte."""
    updates = made_updates(300)
    policy = taught(maker(cb_type=cb_type, learning_rate=0.05, power_t=power_t), updates)
    workspace = vw.Workspace(["--cb_adf", *arguments_of(cb_type, learning_rate=0.05, power_t=power_t), "--quiet"])
    parser = vw.DSJsonFormatParser(workspace)
    for update in updates:
        workspace.learn_one(parser.parse_json(dsjson_of(update, [update.arm] if cb_type == "mtr" else SORTED)))
    assert policy.state()[0]["model"].tobytes() == without_tallies(workspace)


@pytest.mark.parametrize(
    ("params", "arguments"),
    [
        ({"explorer": "epsilon", "epsilon": 0.0}, ["--epsilon", "0"]),
        ({"explorer": "epsilon", "epsilon": 0.3}, ["--epsilon", "0.3"]),
        ({"explorer": "squarecb", "epsilon": 0.0}, ["--squarecb", "--gamma_scale", "10", "--epsilon", "0"]),
        (
            {"explorer": "squarecb", "epsilon": 0.0, "gamma_scale": 3.0},
            ["--squarecb", "--gamma_scale", "3", "--epsilon", "0"],
        ),
    ],
    ids=["greedy", "epsilon", "squarecb", "squarecb_3"],
)
def test_explorers_are_vws_own(params, arguments):
    """After 0, 1 and 60 updates the pmf equals that of VW's explorer after the same rows, to float32."""
    updates = made_updates(60)
    policy = VowpalWabbit(learning_rate=0.05, **params)
    workspace = vw.Workspace(["--cb_explore_adf", *arguments, *arguments_of("mtr", learning_rate=0.05), "--quiet"])
    asked = made_updates(5, first=100)
    for step, update in enumerate([None, *updates]):
        if update is not None:
            policy.learn(update)
            workspace.learn_one(examples_of(update, [update.arm], labelled=True))
        if step in (0, 1, 60):
            for question in asked:
                theirs = dict(workspace.predict_one(examples_of(question, list(ARMS), labelled=False)))
                assert output_of(policy, question.features).pmf == pytest.approx(
                    tuple(theirs[i] for i in range(3)), abs=1e-6
                )


# --- what ours adds --------------------------------------------------------------------------------------------------


def test_scores_are_rewards():
    """An arm that pays .4 and 1 by turns, whatever is asked, scores .7 to .1; one never learned scores 0."""
    policy = VowpalWabbit()
    for update in made_updates(1000, arms=ARMS[:1]):
        policy.learn(replace(update, propensity=0.5, reward=made_reward(0.4 + 0.6 * (update.seq % 2))))
    output = output_of(policy, made_features(5), (ARMS[0], ArmName("newcomer")))
    assert output.scores == (pytest.approx(0.7, abs=0.1), 0.0)


# --- what it refuses -------------------------------------------------------------------------------------------------


def with_value(value):
    return lambda row: replace(row, reward=replace(row.reward, value=value))


def with_feature(number):
    return lambda row: replace(
        row, features=np.where(np.arange(row.features.size) == 2, np.float32(number), row.features)
    )


@pytest.mark.parametrize(
    "spoilt",
    [
        *(partial(replace, propensity=p) for p in (0.0, -0.1, 1.0000001, math.nan, math.inf, 1e-16, 5e-324)),
        *map(with_value, (math.nan, math.inf, -math.inf, 1e300, -1e15)),
        *map(with_feature, (math.nan, math.inf, 1e20)),
    ],
)
def test_row_that_would_spoil_the_model_is_refused(spoilt):
    """A probability outside (0, 1] or too small to divide by, a reward that float32 cannot carry, a feature that is not
    finite when squared there: each is a PolicyFault, and nothing is learned or counted.
    """
    policy = taught(VowpalWabbit, made_updates(20))
    before, row = sha_of(policy), spoilt(made_updates(1, first=21)[0])
    with pytest.raises(PolicyFault):
        policy.learn(row)
    assert not apply_update(policy, row)
    assert sha_of(policy) == before


def test_bytes_are_checked_before_vw_sees_them():
    """A changed byte, another array, or a model that is not VW's is a SnapshotError; the policy stays as it was."""
    arrays, facts = taught(VowpalWabbit, made_updates(20)).state()
    turned = arrays["model"].copy()
    turned[len(turned) // 2] ^= 1
    junk = np.frombuffer(b"junk" * 50, dtype=np.uint8)
    policy = taught(VowpalWabbit, made_updates(5))
    before = sha_of(policy)
    for broken, more, message in (
        ({"model": turned}, {}, "sha256"),
        (arrays | {"more": arrays["model"]}, {}, "one array"),
        ({"model": junk}, {"model_sha256": hashlib.sha256(junk.tobytes()).hexdigest()}, "cannot load"),
    ):
        with pytest.raises(SnapshotError, match=message):
            policy.restore(broken, facts | more)
        assert sha_of(policy) == before


def test_missing_wheel_names_the_extra(monkeypatch):
    """Without the wheel a policy vw is a ConfigError that says which extra to install."""
    monkeypatch.setitem(sys.modules, "vowpal_wabbit_next", None)
    with pytest.raises(ConfigError, match="vowpal_wabbit_next") as caught:
        make_policy("vw", params={})
    assert caught.value.field == "policy.name"
    assert "pip install '.[vw]'" in caught.value.remedy
