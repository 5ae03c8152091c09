"""What a process holds: claimed decisions that have not begun, and active runs."""

import contextlib

from ragbandit.router.storage.jobs.answers import ClaimedDecision
from ragbandit.shared.types import DecisionId
from ragbandit.workers.running.runs import ActiveRuns

D1, D2, D3 = map(DecisionId, ("d1", "d2", "d3"))


def run_of(key):
    return ClaimedDecision(decision_id=key, tries=0)


def test_a_decision_that_runs_is_not_begun_again():
    """While a decision runs, it is neither claimed nor begun a second time; after its end it may run again."""
    runs = ActiveRuns()
    first = runs.begin(run_of(D1))
    with contextlib.suppress(ZeroDivisionError), runs.ending(first):
        assert runs.begin(run_of(D1)) is None
        assert runs.claim([D1], most=9) == []
        assert runs.begin(run_of(D1), if_claimed=True) is None
        assert runs.stop(D1)
        assert (first.stop.done(), runs.running_ids()) == (True, [D1])
        raise ZeroDivisionError
    assert runs.claimed_ids() == []
    assert runs.begin(run_of(D1)) is not None


def test_claims_that_have_not_begun_are_held():
    """They count in what the process holds and in its room, until they begin or are given up."""
    runs = ActiveRuns()
    assert runs.claim([D1, D2, D3], most=2) == [D1, D2]
    assert (sorted(runs.claimed_ids()), runs.running_ids()) == ([D1, D2], [])
    assert runs.claim([D3], most=2) == []
    assert runs.begin(run_of(D1), if_claimed=True) is not None
    assert (sorted(runs.claimed_ids()), runs.running_ids()) == ([D1, D2], [D1])
    runs.unclaim([D2])
    assert runs.claimed_ids() == [D1]
    assert runs.begin(run_of(D2), if_claimed=True) is None


def test_a_claim_whose_caller_is_gone_is_forgotten(monkeypatch):
    """After `forget_s` a claim that has not begun takes no room, and is held no longer."""
    now = [100.0]
    monkeypatch.setattr("ragbandit.workers.running.runs.time.monotonic", lambda: now[0])
    runs = ActiveRuns(forget_s=60.0)
    runs.claim([D1], most=1)
    assert (runs.claim([D2], most=1), runs.claimed_ids()) == ([], [D1])
    now[0] += 61.0
    assert runs.claimed_ids() == []
    assert runs.claim([D2], most=1) == [D2]
    assert runs.claimed_ids() == [D2]
