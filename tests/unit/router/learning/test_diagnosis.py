"""The diagnosis of what is learned: one word per arm, from made posteriors whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.learning.monitoring.diagnosis import (
    STARVED,
    ArmDiagnosis,
    Diagnosis,
    NewestDecisions,
    _common_state,
    diagnose_outputs,
    read_diagnosis,
)
from ragbandit.router.policies.base import PolicyOutput, Restraint
from ragbandit.shared.types import Query
from ragbandit.testing.policies import ARMS
from tests.support.cases import every_case
from tests.support.examples import made_decision

PAIR = ARMS[:2]
#: deviations of 64 draws: quantiles of a normal distribution, of variance 1
DRAWS = np.sort(np.random.default_rng(0).standard_normal(64))
DRAWS = (DRAWS - DRAWS.mean()) / DRAWS.std()


class Known:
    """A policy whose posterior is given."""

    noise = 0.41

    def __init__(self, alarms=None, age=1000, seen=1000):
        self.alarms, self._age, self.seen = alarms or {}, age, dict.fromkeys(ARMS, seen)

    def age(self, arm):
        return self._age


def decisions(*, pmf, count=20, apart_s=1.0):
    row = replace(made_decision(), arms=PAIR, arm=PAIR[0], pmf=pmf, query=Query(text="who?"))
    return [replace(row, made_at=apart_s * number) for number in range(count)]


def output(gap, *, spread, pmf=(0.98, 0.02), restraint=None):
    """The second arm is `gap` above the first, and uncertain by `spread`."""
    deviations = np.array([np.zeros(64), spread * DRAWS])
    return PolicyOutput(pmf=pmf, scores=(0.5, 0.5 + gap), deviations=deviations, restraint=restraint)


def read(one, *, pmf=(0.98, 0.02), labelled=1.0, policy=None, floor=0.0, apart_s=1.0):
    traffic = NewestDecisions(decisions=decisions(pmf=pmf, apart_s=apart_s), labelled=labelled)
    return diagnose_outputs(policy or Known(), [one] * 20, traffic=traffic, floors=lambda _arms: floor)


def test_worth_and_labels_are_those_of_the_equations():
    """E max(N(-.1, .2^2), 0) = .0396 to a hundredth; .1681 (2500 - 25) / 4 = 104.01 labels, 5,201 questions."""
    arm = read(output(-0.1, spread=0.2)).arms[PAIR[1]]
    assert arm.worth == pytest.approx(np.maximum(-0.1 + 0.2 * DRAWS, 0.0).mean())
    assert arm.worth == pytest.approx(0.0396, abs=0.004)
    assert (arm.state, arm.labels, arm.questions) == ("learning", 105, 5201)


def test_labels_are_counted_at_the_configured_price():
    """A policy that learned at a raised price is asked for its noise at the price of the reward setting."""
    policy = Known()
    policy.noise, policy.noise_at = 11.4, lambda weight: 0.41 if weight == 20.0 else 11.4
    given = {"policy": policy, "outputs": [output(-0.1, spread=0.2)] * 20, "floors": lambda _arms: 0.0}
    raised = NewestDecisions(decisions=decisions(pmf=(0.98, 0.02)), labelled=1.0)
    assert diagnose_outputs(**given, traffic=replace(raised, weight=20.0)).arms[PAIR[1]].labels == 105
    text = diagnose_outputs(**given, traffic=raised).sentence
    assert "needs tens of thousands more" in text


def test_few_labels_are_stuck_and_a_restraint_holds_back():
    """Without labels enough in 10,000 questions an arm is stuck; held back where the policy itself would draw it."""
    restraint = Restraint(arm=PAIR[0], risks=(0.0, 1.0), allowance=0.0, slack=0.0, reason="")
    rare = (0.9999, 0.0001)
    stuck = read(output(0.0, spread=0.2, pmf=rare), pmf=rare)
    assert (stuck.state, stuck.arms[PAIR[1]].state) == ("stuck", "stuck")
    free = read(output(0.0, spread=0.2, pmf=(0.5, 0.5), restraint=restraint), pmf=rare)
    assert free.arms[PAIR[1]].state == "held back"
    assert PAIR[1] in free.remedy
    assert read(output(0.0, spread=0.2, pmf=rare), pmf=rare, floor=0.02).arms[PAIR[1]].state == "held back"


def test_no_labels_at_all():
    """Where nothing is labelled no wait has an end; without a label for long, learning starves whatever it knew."""
    never = read(output(-0.1, spread=0.2), labelled=0.0).arms[PAIR[1]]
    assert (never.state, never.questions) == ("stuck", None)
    assert read_diagnosis('{"state":"steady"}', unlabelled=STARVED).state == "starved"
    assert (
        "no label came with the newest 500 decisions; no labels come: send" in read_diagnosis(None, unlabelled=500).line
    )
    assert read_diagnosis(None, unlabelled=0) is None


def test_an_arm_that_was_begun_anew_drifts():
    """After an alarm, until 100 rows of it are learned."""
    assert read(output(-0.5, spread=0.1), policy=Known({PAIR[1]: 1}, age=99)).state == "drifting"
    assert read(output(-0.5, spread=0.1), policy=Known({PAIR[1]: 1}, age=100)).state == "steady"


def test_a_policy_without_a_posterior_says_nothing():
    """Without draws, or without noise, there is no diagnosis."""
    assert read(PolicyOutput(pmf=(0.5, 0.5), scores=(0.5, 0.5))) is None
    bare = Known()
    bare.noise = None
    assert read(output(0.0, spread=0.2), policy=bare) is None


def test_the_word_of_all_arms_and_its_sentence():
    """Stuck where no arm but one is tried enough; with two that are, the others' word, and the stuck one is named."""

    def said(*states, **more):
        arms = {
            f"arm{at}": ArmDiagnosis(state=one, worth=0.1, labels=105, questions=9_000) for at, one in enumerate(states)
        }
        return Diagnosis(state=_common_state(states), arms=arms, judged=dict.fromkeys(arms, 2), **more)

    cases = {
        "steady, stuck": "stuck: no arm but arm0 is tried enough to know: arm1 has 2 rated answers and needs about 100"
        " more; too few labels of arm1 come",
        "stuck, stuck": "stuck: no arm is tried enough to know: arm0 has 2",
        "steady, steady, stuck": "steady: by its own estimate the policy needs no more rated answers (it has learned"
        " arm0 2, arm1 2); too few labels come of arm2",
        "learning, steady": "learning: arm0 has 2 rated answers and needs about 100 more",
        "held back, steady": "held back: the promise to arm1 (slack 17.1 of reward) lets too few questions try others:",
        "drifting, stuck": "drifting: the rewards of arm0 have changed; too few labels come of arm1; look at",
    }
    with every_case() as case:
        for states, line in cases.items():
            with case(states):
                assert said(*states.split(", "), incumbent="arm1", slack=17.1).line.startswith(line)
