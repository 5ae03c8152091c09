"""Candidates by name are judged as they would be served, and a policy is never better than itself."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.replay import Plan, memory_log, parse_candidates, prepare, replay
from ragbandit.router.offline.replay.candidates import learned_before
from ragbandit.router.offline.replay.results import LoggedPolicy
from ragbandit.router.offline.replay.service import LoggedPolicies
from ragbandit.router.offline.reports.phrases import headline
from tests.support.logs.replay_logs import judged, lived_rows
from tests.support.logs.served_worlds import served_log

POLICIES = {
    "mba": {"name": "mba"},
    "mba with an incumbent": {"name": "mba", "incumbent": "single_step", "harm": 0.3},
    "linucb": {"name": "linucb", "floor": 0.05, "cold_start_outcomes": 60},
}
SEEDS = range(4)


@cache
def world(named, seed, late=3):
    """The settings of a service and the log that it wrote."""
    settings = Settings(policy=POLICIES[named])
    return settings, served_log(settings, seed=seed, late=late)


def against_itself(named, seed, *, log=None, **plan):
    """The replay of a policy on the log that it wrote."""
    settings, served = world(named, seed)
    name = settings.policy.name
    candidates = parse_candidates([name], params={name: settings.policy.params})
    return replay(log or served, candidates=candidates, plan=Plan(**plan), settings=settings)


@pytest.mark.parametrize("named", POLICIES)
@pytest.mark.parametrize("late", [0, 40])
def test_a_policy_that_learns_along_the_log_is_the_one_that_served_it(named, late):
    """Floors, cold start, incumbent, params and what had been learned are the service's: so is every probability."""
    settings, log = world(named, 0, late)
    ready = prepare(log, candidates=parse_candidates([settings.policy.name]), plan=Plan(learn=True), settings=settings)
    assert np.abs(ready.candidate_pmfs[0].pmf - log.log.pmf).max() < 1e-9


def test_a_against_a_along_the_log():
    """Learning along the log that it wrote, a policy is in no world better or worse than itself, and in nearly all the
    interval of the difference holds 0: at 95 %, one in twenty may leave it out.
    """
    held = 0
    for seed in SEEDS:
        found = against_itself("mba", seed, learn=True)
        (candidate,) = found.candidates
        assert candidate.verdict in ("cannot tell", "same policy")
        assert (candidate.same_policy, candidate.learned) == (True, "along")
        (said,) = headline(found)
        assert said.startswith("mba, learning along this log, against mba as it served while it learned: ")
        held += candidate.difference.low <= 0.0 <= candidate.difference.high
        assert candidate.verdict == "same policy" or said.endswith(
            "cannot tell, as it should be: it is the same policy"
        )
    assert held >= len(SEEDS) - 1


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_a_against_a_after_learning(seed):
    """Having learned the log that it wrote, a policy is not called better than itself, whatever the interval."""
    found = against_itself("mba", seed)
    (candidate,) = found.candidates
    assert candidate.verdict in ("cannot tell", "same policy")
    assert (candidate.same_policy, candidate.learned, candidate.rows_needed) == (True, "folds", None)
    assert "better;" not in headline(found)[0]


def test_what_having_learned_is_worth_is_said_with_its_number():
    """Where the interval leaves out 0, the sentence has the number and what it is: no difference between policies."""
    log = world("mba", 0)[1]
    # What the policy decided while it knew little, with rewards that are learned soon, on other questions each time.
    rows = [of_another_question(log.rows[at % 100], at=at) for at in range(600)]
    found = against_itself("mba", 0, log=memory_log(rows, logged=log.logged))
    (candidate,) = found.candidates
    assert candidate.verdict == "same policy"
    assert candidate.difference.low > 0.0
    (said,) = headline(found)
    assert said.startswith("mba, learned from this log, against mba as it served while it learned: +")
    assert said.endswith(": the same policy: this is what having learned is worth, not a better policy")


def of_another_question(row, *, at):
    """The row with another id and question, and with a reward that hangs on its arm alone."""
    query = replace(row.decision.query, text=f"another question {at}")
    value = 1.0 if row.decision.arm == "multi_step" else -1.0
    return replace(
        row,
        decision=replace(row.decision, id=f"again-{at:05}", query=query),
        reward=replace(row.reward, value=value, quality=value, cost=0.0),
        seq=at + 1,
    )


def test_other_params_along_the_log_are_another_policy():
    """A policy of the same name with other params is judged along the log, and by name it is still the same policy."""
    settings, log = world("mba", 0)
    candidates = parse_candidates(["mba"], params={"mba": {"explore": 0.0}})
    along = replay(log, candidates=candidates, plan=Plan(learn=True), settings=settings).candidates[0]
    learned = replay(log, candidates=candidates, plan=Plan(), settings=settings).candidates[0]
    assert (along.same_policy, learned.same_policy) == (False, True)


def test_two_that_have_learned():
    """With one of them as the baseline both sides have learned from the log, and the sentence says so of both."""
    settings, log = world("mba", 0)
    found = replay(log, candidates=["linucb", "mba"], plan=Plan(baseline="mba"), settings=settings)
    assert [candidate.same_policy for candidate in found.candidates] == [False, False]
    assert headline(found)[0].startswith("linucb, learned from this log, against mba, learned from this log: ")


def test_unknown_policies_are_not_compared_by_name():
    """Of a log from elsewhere, and of one that several policies decided, none of them is taken for the candidate."""
    log = world("mba", 0)[1]
    other = LoggedPolicy.of("linucb", params={})
    mine = next(iter(log.logged.labels["main"]))
    for logged in ({}, {"main": frozenset({mine, other})}):
        found = against_itself("mba", 0, log=replace(log, logged=LoggedPolicies(labels=logged)))
        assert not found.candidates[0].same_policy
        who = "linucb and mba as they served while they learned" if logged else "the logged policy as it served while"
        assert f" against {who}" in headline(found)[0]


def test_floors_are_the_services():
    """Without an option the floors are the configured ones, the cold-start floor while an arm has few outcomes."""
    settings = Settings(policy={"cold_start_outcomes": 10_000, "floor": 0.02, "cold_start_floor": 0.1})
    found = judged(lived_rows(200), "mba", settings=settings)
    assert min(found.candidates[0].shares.values()) >= 0.1 - 1e-9
    assert (
        "policies and snapshots are judged as they would be served: floor 0.02, 0.1 for an arm until it has 10000 "
        "learned outcomes"
    ) in found.notes
    assert min(judged(lived_rows(200), "mba", settings=settings, floor=0.0).candidates[0].shares.values()) < 0.1


def test_an_incumbent_that_the_log_never_offered_holds_nothing_back():
    """Policies are then judged without it, and no note says otherwise."""
    settings = Settings(policy={"incumbent": "single_step"})
    found = judged(lived_rows(60), "mba", settings=settings)
    assert not any("single_step" in note for note in found.notes)


def test_versions_tell_what_had_been_learned():
    """A row's version names the seq that its policy had learned; of another ledger's, all rows before count."""
    log = world("mba", 0, 40)[1]
    before = learned_before(log)
    assert before[:3].tolist() == [0, 0, 0]
    assert before[100] == 60
    assert learned_before(replace(log, ledger="other")).tolist() == list(range(len(log.rows)))
