"""`ragbandit status`: its counts, and what it finds of a ledger."""

from dataclasses import replace

import pytest

from ragbandit.router.cli.tables import show
from ragbandit.router.learning.monitoring.diagnosis import ArmDiagnosis, Diagnosis
from ragbandit.router.learning.status import Status
from ragbandit.router.operation.findings import findings_of_ledger
from ragbandit.router.storage.jobs.judged_arms import JudgedArm
from ragbandit.router.storage.judgements import JudgeState
from ragbandit.router.verbs.inspection import _judge_in_words, _ledger_facts
from ragbandit.shared.types import Counters

COUNTERS = Counters(
    decided=9, learned=5, defaulted=1, waiting=2, closed=1, quarantined=0, feedback=7, late_feedback=0, unseen=0
)
WELL = Status(
    counters=COUNTERS,
    last_seq=6,
    snapshot="main-6-0",
    snapshot_last_seq=6,
    behind=0,
    lag_s=0.5,
    unanswered=2,
    missing_outcome=0,
)
DRIFTING = Diagnosis(
    state="drifting", arms={"cheap": ArmDiagnosis(state="drifting", worth=0.1, labels=30, questions=90)}
)


def judged(**arms):
    """The state of a judge. arms: (scored, suspicious) of each."""
    return JudgeState(arms={name: JudgedArm(scored=a, suspicious=b) for name, (a, b) in arms.items()})


def test_counts_say_what_they_mean():
    """A count that is 0 is left out, every other one has its meaning; an ordinary state has no findings."""
    facts = _ledger_facts(WELL)
    assert " ".join(facts) == "decided learned defaulted waiting closed feedback unanswered ledger snapshot"
    assert facts["closed"] == "1  (decisions whose time is over, with nothing to learn)"
    assert list(findings_of_ledger(WELL)) == []
    assert list(findings_of_ledger(replace(WELL, judge=judged(a=(93, 7), b=(96, 4), few=(1, 9))))) == []


def test_facts_have_no_exponents(capsys):
    """Small and large numbers of facts are printed without an exponent, and zero without a minus."""
    show({"dollars": 1.8e-05, "spent": 123_456.7, "lead": -0.0}, as_json=False)
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["0.000018", "123,457", "0"]


def test_the_shares_of_withheld_answers_are_told_by_arm():
    """Arms with answers that address the judge have their share of 7 days; without any the line has none."""
    shown = _judge_in_words(replace(WELL, judge=judged(a=(88, 12), b=(97, 3), c=(50, 0))))
    assert shown == "0 wait; suspicious in 7 days: a 12 %, b 3 %"
    assert _judge_in_words(replace(WELL, judge=judged(a=(88, 0)))) == "0 wait"


@pytest.mark.parametrize(
    ("found", "rebuilding", "words"),
    [
        (replace(WELL, missing_outcome=3), False, ("3 decisions with feedback", "report each outcome")),
        (replace(WELL, lag_s=75.4), False, ("feedback has waited for", "check that a learner runs")),
        (replace(WELL, lag_s=9e4, backlog=7200, caught_up_s=240.0), False, ("7,200 decisions", "caught up in 4 min")),
        (replace(WELL, counters=replace(COUNTERS, decided=10)), False, ("do not add up", "ragbandit verify")),
        (
            replace(WELL, counters=replace(COUNTERS, decided=10, quarantined=1)),
            False,
            ("1 decision could not be learned", "ragbandit feedback quarantined"),
        ),
        (replace(WELL, counters=replace(COUNTERS, decided=13, unseen=4)), False, ("4 decisions without a place",)),
        (replace(WELL, judge=JudgeState(today={"given_up": 2})), False, ("2 answers could not be judged", "log")),
        (replace(WELL, judge=JudgeState(today={"skipped": 3})), False, ("3 answers not judged", "judge.md")),
        (replace(WELL, judge=JudgeState(today={"suspicious": 1})), False, ("1 answer with texts", "judge.md")),
        (replace(WELL, judge=judged(a=(88, 12), b=(88, 12))), False, ("judge: 12 % of the answers of a", "judge.md")),
        (replace(WELL, judge=judged(a=(99, 1), b=(93, 7))), False, ("7 % of the answers of b", "as few as 1 %")),
        (
            replace(WELL, learning=DRIFTING),
            False,
            ("drift: the rewards of cheap have changed", "look at what changed behind cheap"),
        ),
        (WELL, True, ("being learned again", "a learner runs")),
    ],
)
def test_what_is_not_ordinary_is_said(found, rebuilding, words):
    """Every note is one sentence with the problem and the remedy."""
    (one,) = findings_of_ledger(found, rebuilding=rebuilding)
    assert all(word in one.line for word in words)
