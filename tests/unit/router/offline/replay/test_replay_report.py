"""What a replay shows: comparisons, sentences, and facts about the log."""

from dataclasses import replace

import pytest

from ragbandit.router.comparison import Difference, compare
from ragbandit.router.comparison.page import template_values
from ragbandit.router.offline.logs import BadRow
from ragbandit.router.offline.replay.plan import (
    Arm,
    CandidateResult,
    ImportanceWeights,
    Plan,
    ReplayResult,
    side_name,
)
from ragbandit.router.offline.replay.report import headline, replay_assessment

SERVED = "the logged policy"
BEGIN, DAY = 1_770_000_000.0, 86_400.0
WEIGHTS = ImportanceWeights(
    effective_rows=2310.4, largest=28.04, possible=30.0, mean=Difference(estimate=1.004, low=0.97, high=1.04)
)


def measured(value, half=None):
    ends = {} if half is None else {"low": value - half, "high": value + half}
    return Difference(estimate=value, **ends)


def compared(name, gain, half, *, blocked=None):
    """A comparison on 12,000 questions. half: None for no interval."""
    parts = {
        part: Difference(
            estimate=estimate,
            low=None if width is None else estimate - width,
            high=None if width is None else estimate + width,
            effective_rows=2310.4,
            first=second + estimate,
            second=second,
        )
        for part, estimate, width, second in (
            ("reward", gain, half, 0.512),
            ("quality", 0.05, 0.02, 0.58),
            ("cost", 0.95, 0.1, 1.36),
        )
    }
    return compare(name, SERVED, design="logged draws", questions=12_000, rated=12_000, blocked=blocked, **parts)


def candidate(name="linucb", gain=0.042, half=0.031, *, blocked=None, **changes):
    first = side_name(name, learned=changes.get("learned"))
    result = CandidateResult(
        name=name,
        described=f"{name}, learned from the other folds",
        reward=measured(0.512 + gain, half),
        quality=measured(0.63, 0.02),
        cost=measured(2.31, 0.1),
        comparison=compared(first, gain, half, blocked=blocked),
        weights=WEIGHTS,
        unsupported={},
        bounds=None,
        shares={"none": 0.2, "single_step": 0.8},
        segments={},
    )
    return replace(result, **changes)


BASELINE = candidate("random", comparison=None)


def replayed(*candidates, **changes):
    """A replay of a log of 12,000 questions."""
    result = ReplayResult(
        log="the ledger main",
        rows=12_000,
        questions=12_000,
        begin=BEGIN,
        end=BEGIN + 5 * DAY,
        since=None,
        plan=Plan(),
        baseline="the logged policy",
        against=SERVED,
        baseline_reward=measured(0.512, 0.014),
        baseline_quality=measured(0.58, 0.01),
        baseline_cost=measured(1.36, 0.05),
        comparisons=4,
        arms=(Arm(name="none", drawn=0.331, expected=0.333, plausible=True, reward=0.41, quality=None, cost=0.0),),
        candidates=candidates,
    )
    return replace(result, **changes)


NEVER_TRIED = "{} of the decisions of {} are for arms that the log never tried there (deep)"
COST = "; 70 % more cost"
TOTAL = "about 18,000 to 72,000 rated questions in all (12,000 so far)"
PARTS = f"; quality better (0.630 against 0.580){COST}"


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        (candidate(), f"linucb is better than {SERVED}: +0.042 (+0.011 to +0.073) reward a question{PARTS}"),
        (
            candidate("fixed:none", -0.05, 0.02, learned="folds"),
            f"one (learned from this log) is worse than {SERVED}: -0.050 (-0.070 to -0.030) reward a question{PARTS}",
        ),
        (
            candidate("fixed:none", 0.007, 0.1),
            f"(reward -0.093 to +0.107 a question); missing: {TOTAL}{PARTS}",
        ),
        (
            candidate("mba", -0.01, 0.2, blocked="draws of deep", unsupported={"deep": 0.123}, bounds=(0.31, 0.66)),
            f"missing: draws of deep{COST}; its reward may lie anywhere from 0.310 to 0.660",
        ),
        (
            candidate(unsupported={"deep": 0.001}, bounds=(0.52, 0.6)),
            f"; whatever the reward of what the log never tried: {NEVER_TRIED.format('0.1 %', 'linucb')}",
        ),
        (
            candidate(half=None, blocked="more draws of deep"),
            f"whether linucb is better than {SERVED} is not known yet; missing: more draws of deep{COST}",
        ),
        (candidate(same_policy=True, gain=0.0, half=0.0), f"linucb and {SERVED} are the same policy"),
    ],
)
def test_the_sentence_of_a_candidate(one, sentence):
    """The verdict with its numbers, or what is missing: rows, arms that were tried, an interval."""
    (text,) = headline(replayed(one))
    assert text.endswith(sentence)


def test_a_wrong_log_is_the_sentence_and_leaves_no_verdict():
    """The faults come before any number, and nothing is better or worse."""
    blocked = candidate(blocked="a log that does not contradict its own probabilities")
    shown = replay_assessment(replayed(blocked, faults=("multi_step was drawn too often",)))
    assert shown.sentence.startswith("this log is wrong, so that no number from it is reliable: multi_step was drawn")
    assert (shown.number, shown.verdict) == ("not known yet", "not known yet")


def test_the_log_is_described():
    """Rows, dates, confidence, what was left out; arms and segments as tables."""
    shown = replay_assessment(
        replayed(
            candidate(
                notes=("3 decisions by the fallback",), segments={"tenant": {"acme": compared("linucb", 0.05, 0.04)}}
            ),
            skipped_rows=1203,
            skipped=(BadRow(line=17, field="pmf", reason="sums to 0.9, not 1", remedy=""),),
            notes=("short log",),
        )
    )
    notes = "\n".join(shown.notes)
    for part in (
        "12,000 questions from the ledger main (2026-02-02 02:40:00 UTC to 2026-02-07 02:40:00 UTC)",
        "95 % confidence; they are valid for one look, fixed in advance, and 4 comparisons share the error",
        "left out: 1,203 rows (line 17: pmf sums to 0.9, not 1)",
        "short log",
        "linucb: 3 decisions by the fallback",
    ):
        assert part in notes
    rows = {table.title.split(" ")[0]: table.rows for table in shown.tables}
    assert rows["by"][0][:2] == ("acme", "linucb")
    assert rows["by"][0][4:] == ("+0.050 (+0.010 to +0.090)", "better")
    assert rows["the"] == (("none", "33.1 %", "33.3 %", "0.410", "\u2013", "0.000", "yes"),)
    assert rows["how"][0][1:3] == ("2,310 of 12,000", "28")


def test_the_headline_has_the_verdict_of_every_candidate():
    """One line says what each candidate is against the baseline; the sentence of the first is folded below it."""
    shown = replay_assessment(replayed(BASELINE, candidate(), candidate("fixed:none", 0.0, 0.2)))
    assert shown.headline == f"Against {SERVED}: better: linucb; not known yet: fixed:none"
    assert shown.sentence.startswith("linucb is better than")
    assert replay_assessment(replayed(candidate(), faults=("it was drawn too often",))).headline == ""


def test_what_is_missing_names_each_candidate():
    """With several candidates, what is missing for a verdict stands behind the name of each that has none."""
    unknown, blocked = candidate("fixed:none", 0.007, 0.1), candidate("mba", blocked="draws of deep")
    also = candidate("fixed:deep", blocked="draws of deep")
    several = replay_assessment(replayed(BASELINE, candidate(), unknown, blocked, also))
    assert several.missing == f"{unknown.comparison.first}: {TOTAL}; mba, {also.comparison.first}: draws of deep"
    assert replay_assessment(replayed(BASELINE, unknown)).missing == TOTAL
    assert replay_assessment(replayed(BASELINE, candidate(), candidate("mba"))).missing is None


def test_the_picture_names_each_candidate_that_it_leaves_out():
    """A candidate whose reward or quality is not known has no place in the picture, and the note says why."""
    unknown = candidate("fixed:none", 0.0, 0.2)
    shown = replay_assessment(replayed(BASELINE, candidate(), unknown))
    assert [point.name for point in shown.frontier] == ["linucb", SERVED]
    assert shown.frontier_note == f"{unknown.comparison.first} is not drawn: reward not known yet"
    picture = template_values(shown)["plots"][0]
    assert picture.note == shown.frontier_note
