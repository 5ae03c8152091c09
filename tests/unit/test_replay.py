"""The replay as a library: small logs by hand, refusals, and policies that must not see what they are asked about."""

import itertools
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from router.config import Settings
from router.encoder import HashingEncoder
from router.errors import ConfigError, InvalidInput, PolicyFault
from router.evaluation.reward_models import folds_of
from router.logs.checks import RowReader
from router.logs.records import Defaults
from router.policies import POLICIES, make_policy
from router.policies.base import PolicyOutput, apply
from router.policies.fixed import Uniform
from router.replay import Plan, asked_candidates, held, judge, prepared, replay
from router.replay.candidates import update_of
from router.replay.results import Skipped
from router.replay.source import Piece
from router.snapshots import SnapshotFiles, pack
from router.types import PolicyLabel
from tests.log_rows import plain_rows, with_extra

ARMS = ("fast", "deep", "slow")


def rows_from(records):
    """Rows of records, by the reader that all formats have."""
    reader = RowReader(defaults=Defaults())
    return [reader.row({"id": f"row-{n:05}", **record}, line=n + 1) for n, record in enumerate(records)]


def lived_rows(count, *, seed=0, pmf=(0.5, 0.3, 0.2), worth=(0.2, 0.5, 0.8), weight=0.05):
    """A log whose arms are right with these chances, whatever the question, and cost 0, 1 and 4."""
    random = np.random.default_rng(seed)
    records = []
    for number in range(count):
        drawn = int(random.choice(len(pmf), p=pmf))
        reward = {"quality": float(random.random() < worth[drawn]), "cost": float((0, 1, 4)[drawn]), "weight": weight}
        records.append(
            {
                "id": f"lived-{seed}-{number:06}",
                "text": f"question {number % 7} of {number % 11}",
                "context": {"device": ("mobile", "desk")[number % 2], "number": number % 15},
                "arms": list(ARMS),
                "pmf": list(pmf),
                "arm": ARMS[drawn],
                "reward": reward,
                "made_at": 1.7e9 + number,
                "features": random.normal(size=4).tolist(),
                "version": f"main-{number // 100}-x",
            }
        )
    return rows_from(records)


def judged(rows, *names, mixed_arms=False, settings=None, encoder=None, ledger=None, **plan):
    """The replay of these candidates."""
    log = held(rows, mixed_arms=mixed_arms, ledger=ledger)
    return replay(log, candidates=asked_candidates(names), plan=Plan(**plan), settings=settings, encoder=encoder)


def close(one, other, *, within=1e-9):
    """The same values and intervals, however deep, but for rounding."""
    if isinstance(one, float):
        assert one == pytest.approx(other, abs=within, nan_ok=True)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            close(value, other[key], within=within)
    elif isinstance(one, tuple):
        for mine, theirs in zip(one, other, strict=True):
            close(mine, theirs, within=within)
    elif hasattr(one, "__slots__"):
        for name in type(one).__dataclass_fields__:
            close(getattr(one, name), getattr(other, name), within=within)
    else:
        assert one == other


# ------------------------------------------------------------------------------------------------------------- by hand

#: (pmf of fast and deep, the arm drawn, reward)
HAND = [(0.8, "fast", 0.5), (0.8, "deep", 1.0), (0.5, "deep", -0.5), (0.25, "fast", 0.0), (0.5, "deep", 0.75)]


def hand_rows():
    return rows_from({"arms": ["fast", "deep"], "pmf": [p, 1 - p], "arm": a, "reward": r} for p, a, r in HAND)


def test_ips_by_hand():
    """Always deep: weights 0, 5, 2, 0, 2 give IPS (5 - 1 + 1.5) / 5 and SNIPS that over 9 / 5."""
    (found,) = judged(hand_rows(), "fixed:deep", estimator="ips").candidates
    assert found.reward.value == pytest.approx(5.5 / 5)
    assert found.others["snips"].value == pytest.approx(5.5 / 9)
    assert found.difference.value == pytest.approx(5.5 / 5 - 1.75 / 5)
    assert (found.weights.largest, found.weights.possible) == (pytest.approx(5.0), pytest.approx(5.0))
    assert found.weights.effective_rows == pytest.approx(81 / 33)
    assert found.weights.mean.value == pytest.approx(9 / 5)
    assert found.shares == {"fast": 0.0, "deep": 1.0}
    assert found.described == "always deep"


def test_dr_by_hand():
    """DR of the arms' means: every row is predicted by the other folds, shrunk to their mean by one row's worth."""
    rows = hand_rows()
    fold = folds_of(held(rows).log.keys, folds=2)
    assert len(set(fold)) == 2
    scores, models = [], []
    for place, (share, arm, reward) in enumerate(HAND):
        others = [row for row, its in zip(HAND, fold, strict=True) if its != fold[place]]
        mean = sum(row[2] for row in others) / len(others)
        own = [row[2] for row in others if row[1] == "deep"]
        model = mean + sum(each - mean for each in own) / (len(own) + 1)
        weight = 1 / (1 - share) if arm == "deep" else 0.0
        scores.append(model + weight * (reward - model))
        models.append(model)
    (found,) = judged(rows, "fixed:deep", folds=2).candidates
    assert found.reward.value == pytest.approx(np.mean(scores))
    assert found.others["dm"].value == pytest.approx(np.mean(models))
    assert found.others["dm"].biased
    assert not found.reward.biased


def test_log_by_hand():
    """The log's own table: draws, expected draws, mean rewards; an arm never drawn has no reward."""
    found = judged(hand_rows(), "uniform")
    fast, deep = found.arms
    assert (fast.name, fast.drawn, fast.expected, fast.reward) == ("fast", 0.4, pytest.approx(0.57), 0.25)
    assert (deep.drawn, deep.reward) == (0.6, pytest.approx(1.25 / 3))
    assert found.baseline_reward.value == pytest.approx(1.75 / 5)
    assert (found.rows, found.sources, found.comparisons) == (5, {"explicit": 5}, 1)
    never = rows_from({"arms": ["a", "b"], "pmf": [0.9, 0.1], "arm": "a", "reward": 0.5} for _ in range(3))
    assert [arm.reward for arm in judged(never, "uniform").arms] == [0.5, None]


def test_pieces_change_nothing():
    """A log read in pieces of any size gives the numbers of the whole log to 1e-9."""
    log = held(lived_rows(200))
    asked = asked_candidates(["fixed:slow", "uniform", "linucb"])
    plan = Plan(segments=("device",))
    ready = prepared(log, candidates=asked, plan=plan, settings=Settings())
    pmfs = [one.pmf for one in ready.judged]
    said = {"candidates": asked, "judged": ready.judged, "plan": plan, "log": "a log"}
    whole = judge(ready.log.pieces(pmfs), **said)
    for size in (3, 70, 199):
        cuts = [np.arange(start, min(start + size, 200)) for start in range(0, 200, size)]
        pieces = [Piece(log=ready.log.log.part(cut), candidates=[pmf[cut] for pmf in pmfs]) for cut in cuts]
        close(judge(pieces, **said), whole)


def test_rows_in_any_order_give_the_same_value():
    """The order of the rows changes neither the estimate nor its interval, of a candidate that does not learn."""
    rows = lived_rows(100)
    for estimator in ("dr", "ips", "snips"):
        ways = [judged(order, "fixed:deep", estimator=estimator).candidates[0] for order in (rows, rows[::-1])]
        close(ways[0].reward, ways[1].reward)
        close(ways[0].difference, ways[1].difference)


# ------------------------------------------------------------------------------------------------------------- arms


def mixed_rows():
    """Two offers: the second one without slow."""
    return rows_from(
        [
            {"arms": ["fast", "deep", "slow"], "pmf": [0.5, 0.25, 0.25], "arm": "slow", "reward": 1.0},
            {"arms": ["deep", "fast"], "pmf": [0.5, 0.5], "arm": "deep", "reward": 0.5},
        ]
    )


def test_mixed_arms_are_refused_unless_asked_for():
    """Rows with different arms are refused by line, arms and remedy; with mixed_arms each is judged among its own."""
    with pytest.raises(InvalidInput, match="offers deep, fast; the first row offers fast, deep, slow") as caught:
        held(mixed_rows())
    assert caught.value.field == "line 2 arms"
    assert "--mixed-arms" in caught.value.remedy
    log = held(mixed_rows(), mixed_arms=True).log
    assert log.arms == ("fast", "deep", "slow")
    assert log.pmf.tolist() == [[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]
    assert log.offered.tolist() == [[True] * 3, [True, True, False]]


def test_fixed_arm_that_is_not_offered():
    """Where an arm is not offered, always playing it means all offered arms alike, as the policy `fixed` does."""
    (found,) = judged(mixed_rows(), "fixed:slow", mixed_arms=True, estimator="ips").candidates
    assert found.reward.value == pytest.approx((4 * 1.0 + 1 * 0.5) / 2)
    assert found.shares == {"fast": 0.25, "deep": 0.25, "slow": 0.5}
    policy = make_policy("fixed", params={"arm": "slow"})
    for row, mine in zip(mixed_rows(), [(0, 0, 1), (0.5, 0.5)], strict=True):
        (output,) = policy.pmf([row.decision.query], features=None, arms=[row.decision.arms])
        assert output.pmf == mine


def test_same_arms_in_another_order_are_no_mixture():
    """A row that names the same arms in another order is judged like any other."""
    one = {"arms": ["fast", "deep"], "pmf": [0.75, 0.25], "arm": "deep", "reward": 1.0}
    other = {"arms": ["deep", "fast"], "pmf": [0.25, 0.75], "arm": "deep", "reward": 1.0}
    assert held(rows_from([one, other])).log.pmf.tolist() == [[0.75, 0.25]] * 2


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "has no rows"),
        ([{"arms": ["fast"], "pmf": [1.0], "arm": "fast", "reward": 1.0, "version": "main-1-x"}], "the arm fast only"),
    ],
)
def test_log_without_a_choice(rows, said):
    """An empty log and a log of one arm are refused with a remedy."""
    with pytest.raises(InvalidInput, match=said) as caught:
        held(rows_from(rows))
    assert caught.value.field == "log"
    assert caught.value.remedy


def test_wrong_row_is_named():
    """A row that cannot be true is refused by its place: the line of a file, else the decision's id."""
    rows = lived_rows(3)
    wrong = replace(rows[1], decision=replace(rows[1].decision, pmf=(0.5, 0.3, 0.3)))
    for row, place in ((wrong, "line 2 pmf"), (replace(wrong, line=0), f"decision {wrong.decision.id} pmf")):
        with pytest.raises(InvalidInput, match=r"sums to 1\.1") as caught:
            held([rows[0], row, rows[2]])
        assert caught.value.field == place


# ------------------------------------------------------------------------------------------------------------- columns


def test_column_as_list_or_object():
    """A candidate's pmf may stand in the rows as a list in the order of their arms, or by name; both say the same."""
    rows = lived_rows(50)
    lists = with_extra(rows, "new", [[0.25, 0.75, 0.0]] * 50)
    objects = with_extra(rows, "new", [{"deep": 0.75, "fast": 0.25}] * 50)
    turned = [replace(row, decision=turned_round(row.decision), extra={"new": [0.0, 0.75, 0.25]}) for row in rows]
    found = [judged(each, "column:new").candidates[0] for each in (lists, objects, turned)]
    assert found[0].shares == {"fast": 0.25, "deep": 0.75, "slow": 0.0}
    assert found[0].described == "the pmf in new"
    for other in found[1:]:
        assert other.shares == found[0].shares or other.shares == dict(reversed(found[0].shares.items()))
        close(other.reward, found[0].reward)


def turned_round(decision):
    """The same decision with its arms the other way round."""
    return replace(decision, arms=decision.arms[::-1], pmf=decision.pmf[::-1])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "is missing"),
        ([0.5, 0.5], "does not fit the arms fast, deep, slow"),
        ({"fast": 0.5, "quick": 0.5}, "does not fit the arms"),
        ("fast", "does not fit the arms"),
        ([0.5, 0.5, "0"], "does not fit the arms"),
        ([True, False, False], "does not fit the arms"),
        ([0.5, 0.5, 0.5], "is no distribution"),
        ([1.5, -0.5, 0.0], "is no distribution"),
        ({"fast": 0.5}, "is no distribution"),
        ([float("nan"), 0.5, 0.5], "is no distribution"),
    ],
)
def test_column_is_refused(value, said):
    """A row whose column is no distribution over its arms is named, with the column and a remedy."""
    rows = with_extra(lived_rows(3), "new", [[1.0, 0.0, 0.0]] * 3)
    rows[1] = replace(rows[1], extra={} if value is None else {"new": value})
    with pytest.raises(InvalidInput, match=said) as caught:
        judged(rows, "column:new")
    assert caught.value.field == "line 2 new"
    assert caught.value.remedy


# ------------------------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize("candidate", ["fixed:slow", "linucb"])
def test_weight_of_cost_after_the_fact(candidate):
    """Another weight of cost put on a log gives what the same log made with that weight gives, learners included."""
    then = judged(lived_rows(200, weight=0.2), candidate, "uniform")
    after = judged(lived_rows(200, weight=0.05), candidate, "uniform", weight=0.2)
    assert (then.weight, after.weight) == (None, 0.2)
    close(replace(after, weight=None), then)
    kept = judged(lived_rows(200, weight=0.05), candidate, "uniform")
    assert kept.candidates[0].reward.value != pytest.approx(then.candidates[0].reward.value, abs=0.05)
    assert kept.candidates[1].quality == then.candidates[1].quality


def test_whole_rewards_have_no_weight_of_cost():
    """Rewards that came whole keep their value under another weight, and a note says how many they are."""
    found = judged(hand_rows(), "fixed:deep", estimator="ips", weight=0.7)
    assert found.candidates[0].reward.value == pytest.approx(5.5 / 5)
    assert "5 rewards came whole: they keep their value whatever the weight of cost" in found.notes


# ------------------------------------------------------------------------------------------------------- comparisons


def test_baseline_may_be_a_candidate():
    """With a candidate as the baseline the others are compared with it, pairwise, and it with nobody."""
    found = judged(lived_rows(300), "fixed:fast", "fixed:slow", "uniform", baseline="fixed:fast")
    first, *others = found.candidates
    assert (first.difference, first.quality_difference, first.verdict, first.rows_needed) == (None, None, None, None)
    assert (found.baseline, found.comparisons) == ("fixed:fast", 2)
    close(found.baseline_reward, first.reward)
    for candidate in others:
        assert candidate.difference.value == pytest.approx(candidate.reward.value - first.reward.value)
        assert candidate.cost_difference.value == pytest.approx(candidate.cost.value - first.cost.value)
    assert all(stretch.difference.value == 0.0 for stretch in first.over_time)
    with pytest.raises(InvalidInput, match="'linucb' is not judged") as caught:
        judged(lived_rows(10), "uniform", baseline="linucb")
    assert caught.value.field == "baseline"


def test_difference_to_the_log_is_paired():
    """A candidate near the logged policy differs from it by a narrow interval, though each value's own is wide."""
    rows = with_extra(lived_rows(300), "near", [[0.5, 0.29, 0.21]] * 300)
    (near,) = judged(rows, "column:near").candidates
    assert near.difference.high - near.difference.low < 0.5 * (near.reward.high - near.reward.low)
    assert near.difference.value == pytest.approx(near.reward.value - judged(rows, "uniform").baseline_reward.value)


@pytest.mark.parametrize("estimator", ["dr", "ips", "snips", "dros:5"])
def test_pairs_turn_round(estimator):
    """First minus second is the negative of second minus first, interval and all."""
    rows = lived_rows(200)
    (one,) = judged(rows, "fixed:fast", "fixed:slow", estimator=estimator).pairs
    (other,) = judged(rows, "fixed:slow", "fixed:fast", estimator=estimator).pairs
    assert (one.first, one.second) == (other.second, other.first) == ("fixed:fast", "fixed:slow")
    assert one.difference.value == pytest.approx(-other.difference.value)
    assert one.difference.low == pytest.approx(-other.difference.high)
    assert one.difference.high == pytest.approx(-other.difference.low)


def test_more_candidates_widen_the_differences():
    """The differences share the error among the candidates; a candidate's own interval is its own."""
    rows = lived_rows(300)
    alone = judged(rows, "fixed:slow").candidates[0]
    among = judged(rows, "fixed:slow", "fixed:fast", "fixed:deep", "uniform").candidates[0]
    assert among.difference.high - among.difference.low > 1.1 * (alone.difference.high - alone.difference.low)
    close(among.reward, alone.reward)


def test_better_and_worse():
    """On 2,000 rows the best arm is better than the log and the worst is worse, and nothing more is needed."""
    rows = with_extra(lived_rows(2000, weight=0.0), "near", [[0.49, 0.31, 0.2]] * 2000)
    found = judged(rows, "fixed:slow", "fixed:fast", "column:near")
    best, worst, near = found.candidates
    assert (best.verdict, worst.verdict, near.verdict) == ("better", "worse", "cannot tell")
    assert (best.rows_needed, worst.rows_needed) == (None, None)
    assert near.rows_needed > 2000
    assert best.reward.low < 0.8 < best.reward.high
    assert worst.reward.low < 0.2 < worst.reward.high


def test_biased_estimators_say_so():
    """A biased estimator's interval is marked and gives no verdict."""
    found = judged(lived_rows(500, weight=0.0), "fixed:slow", "fixed:fast", estimator="dm")
    for candidate in found.candidates:
        assert candidate.reward.biased
        assert candidate.difference.biased
        assert (candidate.verdict, candidate.rows_needed) == ("cannot tell", None)
    assert found.pairs[0].difference.biased


# ----------------------------------------------------------------------------------------------- segments and time


@pytest.mark.parametrize("estimator", ["dr", "ips"])
@pytest.mark.parametrize("field", ["device", "number", "version"])
def test_segments_sum_to_the_whole(field, estimator):
    """A field's segments, the small ones together as others, have all rows, and their values average to the whole."""
    (found,) = judged(lived_rows(300), "fixed:deep", segments=(field,), estimator=estimator).candidates
    segments = found.segments[field]
    assert len(segments) == {"device": 2, "number": 12, "version": 3}[field]
    assert sum(segment.rows for segment in segments) == 300
    for name in ("value", "difference"):
        parts = sum(segment.rows * getattr(segment, name).value for segment in segments)
        whole = found.reward if name == "value" else found.difference
        assert parts / 300 == pytest.approx(whole.value)
    assert [segment.name for segment in segments][-1] == ("others" if field == "number" else segments[-1].name)


def test_thin_segments_have_no_interval():
    """A segment with fewer than 20 effective rows has a value and no interval."""
    (found,) = judged(lived_rows(90), "fixed:slow", segments=("number", "device")).candidates
    assert all(segment.value.low is None for segment in found.segments["number"])
    wide = judged(lived_rows(900), "fixed:deep", segments=("device",)).candidates[0].segments["device"]
    assert all(segment.value.low < segment.value.value < segment.value.high for segment in wide)


def test_segment_of_nobody():
    """A field that no row has is refused with those that there are."""
    with pytest.raises(InvalidInput, match="no row has it") as caught:
        judged(lived_rows(5), "uniform", segments=("colour",))
    assert caught.value.field == "segment colour"
    assert "device, number" in caught.value.remedy


@pytest.mark.parametrize("count", [3, 300])
def test_stretches_of_time(count):
    """Twelve stretches of equally many rows, one after another, average to the whole; fewer where rows are fewer."""
    (found,) = judged(lived_rows(count, seed=1), "fixed:deep", estimator="ips").candidates
    stretches = found.over_time
    assert [stretch.rows for stretch in stretches] == [count // min(12, count)] * min(12, count)
    assert sum(stretch.rows * stretch.value.value for stretch in stretches) / count == pytest.approx(found.reward.value)
    assert (stretches[0].begin, stretches[-1].end) == (1.7e9, 1.7e9 + count - 1)
    assert all(one.end < other.begin for one, other in itertools.pairwise(stretches))


# ------------------------------------------------------------------------------------------------- holes and faults


def holed_rows(count, *, seed, hidden):
    """Every other row cannot draw slow, whose reward there would be `hidden`; elsewhere each arm is worth a half."""
    random = np.random.default_rng(seed)
    records, truth = [], []
    for number in range(count):
        pmf = [0.5, 0.5, 0.0] if number % 2 else [0.4, 0.3, 0.3]
        drawn = int(random.choice(3, p=pmf))
        records.append({"arms": list(ARMS), "pmf": pmf, "arm": ARMS[drawn], "reward": float(random.random() < 0.5)})
        truth.append(hidden if number % 2 else 0.5)
    return rows_from(records), float(np.mean(truth))


@pytest.mark.parametrize("estimator", ["dr", "ips", "snips"])
def test_hole_is_named_and_bounded(estimator):
    """What the log never tried is named by its arm, and the value stands with bounds that hold at the very worst."""
    inside = 0
    for seed in range(12):
        hidden = -1.0 if seed % 2 else 1.0
        rows, truth = holed_rows(200, seed=seed, hidden=hidden)
        (found,) = judged(rows, "fixed:slow", estimator=estimator).candidates
        assert found.holes == {"slow": 0.5}
        assert found.bounds == (found.reward.low, found.reward.high)
        low, high = found.bounds
        assert -1.0 <= low <= found.reward.value <= high <= 1.0
        assert found.rows_needed is None
        if estimator != "dr":  # which takes the model's word; these count what was never tried as 0
            assert found.reward.value == pytest.approx(0.25, abs=0.15)
        assert found.difference.high - found.difference.low > high - low - 1e-9
        inside += low <= truth <= high
    assert inside == 12
    assert judged(rows, "fixed:deep", estimator=estimator).candidates[0].bounds is None


@pytest.mark.parametrize("candidate", ["uniform", "fixed:fast"])
def test_wrong_propensities_are_found(candidate):
    """A log whose pmfs are not those that drew is called wrong, by its arms; the same log with the true ones is not."""
    rows = lived_rows(600)
    assert judged(rows, candidate).faults == ()
    wrong = [replace(row, decision=relabelled(row.decision)) for row in rows]
    found = judged(wrong, candidate)
    assert any("fast was drawn" in fault for fault in found.faults)
    assert not found.arms[0].plausible


def relabelled(decision):
    """With the probabilities of the first and the last arm exchanged."""
    pmf = decision.pmf[::-1]
    return replace(decision, pmf=pmf, propensity=pmf[decision.arms.index(decision.arm)])


# -------------------------------------------------------------------------------------------------------- snapshots


def snapshot_of(rows, settings, *, label="imported", encoder_hash="", name="linucb"):
    """A snapshot of a policy that learned these rows, in the folder of these settings; its version."""
    policy = make_policy(name, params={})
    features = np.stack([row.decision.features for row in rows])
    for index, row in enumerate(rows):
        assert apply(policy, update_of(row, features=features, index=index, weight=None))
    info, tensors, facts = pack(
        policy, label=PolicyLabel(label), last_seq=rows[-1].seq, encoder_hash=encoder_hash, now=0.0
    )
    files = SnapshotFiles(settings.snapshot_root)
    files.write(info, tensors, facts)
    return info.version


def test_snapshot_is_not_judged_on_its_lessons(settings):
    """Rows that a snapshot has learned are left out, and a note says how many; the rest is judged by it as it was."""
    made, rows = settings(), lived_rows(200)
    version = snapshot_of(rows[:120], made)
    found = judged(rows, version, "uniform", settings=made)
    assert (found.rows, found.notes[0]) == (80, "120 rows are left out: a snapshot has learned them")
    assert found.candidates[0].described == "linucb after 120 updates of imported"
    close(found.candidates[0].reward, judged(rows[120:], version, settings=made).candidates[0].reward)
    policy, _ = SnapshotFiles(made.snapshot_root).load(version)
    features = np.stack([row.decision.features for row in rows[120:]])
    queries = [row.decision.query for row in rows[120:]]
    shares = np.mean([out.pmf for out in policy.pmf(queries, features=features, arms=[ARMS] * 80)], axis=0)
    floor = made.policy.floor
    assert [found.candidates[0].shares[arm] for arm in ARMS] == pytest.approx(
        (1 - 3 * floor) * shares + floor, abs=0.05
    )


def test_in_sample(settings):
    """With in_sample the learned rows are judged too, under a note that it looks better than it is."""
    made, rows = settings(), lived_rows(200)
    version = snapshot_of(rows[:120], made)
    found = judged(rows, version, settings=made, in_sample=True)
    assert found.rows == 200
    assert found.notes[0].startswith("120 rows were learned by a snapshot that is judged on them")


def test_snapshot_that_learned_all(settings):
    """A log that a snapshot has learned to the last row is refused, with the ways out."""
    made, rows = settings(), lived_rows(50)
    version = snapshot_of(rows, made)
    with pytest.raises(InvalidInput, match="all 50 rows were learned") as caught:
        judged(rows, version, settings=made)
    assert "--in-sample" in caught.value.remedy


def test_snapshot_of_another_ledger(settings):
    """Only rows of the ledger that a snapshot learned count as its lessons, whatever their numbers."""
    made, rows = settings(), lived_rows(50)
    version = snapshot_of(rows, made)
    assert judged(rows, version, settings=made, ledger="other").rows == 50
    with pytest.raises(InvalidInput, match="all 50 rows"):
        judged(rows, version, settings=made, ledger="imported")


def test_unknown_snapshot(settings):
    """A name that is neither a policy nor a snapshot is refused, with the folder that was looked in."""
    made = settings()
    with pytest.raises(InvalidInput, match="'main-7-abc' is no policy and no snapshot") as caught:
        judged(lived_rows(5), "main-7-abc", settings=made)
    assert made.snapshot_root in caught.value.message
    assert "linucb" in caught.value.remedy


def test_snapshot_of_another_encoder(settings):
    """A snapshot made with another encoder than the configured one is refused: its features cannot be had."""
    made, rows = settings(), lived_rows(60)
    version = snapshot_of(rows[:30], made, encoder_hash="f" * 64)
    with pytest.raises(InvalidInput, match="was made with encoder ffffffffffff, not") as caught:
        judged(rows, version, settings=made, encoder=lambda: HashingEncoder(4))
    assert caught.value.field == "encoder"


def test_features_are_made_where_they_are_missing(settings):
    """Rows without features are encoded again, and policies then do as with the features that were logged."""
    made, encoder = settings(), HashingEncoder(4)
    rows = [
        replace(row, decision=replace(row.decision, features=vector, encoder_hash=encoder.hash))
        for row, vector in zip(plain_rows(60), encoder.encode([f"question {n}?" for n in range(60)]), strict=True)
    ]
    bare = [replace(row, decision=replace(row.decision, features=None)) for row in rows]
    version = snapshot_of(rows[:20], made, label="main", encoder_hash=encoder.hash)
    kept = judged(rows, version, "linucb", settings=made, encoder=lambda: pytest.fail("nothing to encode"))
    again = judged(bare, version, "linucb", settings=made, encoder=lambda: encoder)
    for one, other in zip(kept.candidates, again.candidates, strict=True):
        close(other, one)


def test_features_that_cannot_be_made(settings):
    """A policy that needs features of rows without them is refused where there is no encoder, or no question."""
    bare = [replace(row, decision=replace(row.decision, features=None)) for row in lived_rows(20)]
    with pytest.raises(ConfigError, match="a policy needs features"):
        judged(bare, "linucb", settings=settings())
    silent = rows_from({"arms": ["a", "b"], "pmf": [0.5, 0.5], "arm": "a", "reward": 1.0} for _ in range(5))
    with pytest.raises(InvalidInput, match="has no question") as caught:
        judged(silent, "linucb", settings=settings(), encoder=lambda: HashingEncoder(4))
    assert caught.value.field == "text"


def test_features_of_two_encoders_are_not_mixed(settings):
    """Where the rows were encoded by two encoders, no model reads their features, and a note says so."""
    rows = lived_rows(40)
    rows[3] = replace(rows[3], decision=replace(rows[3].decision, encoder_hash="f" * 64))
    assert any("the rows have no features" in note for note in judged(rows, "uniform", settings=settings()).notes)
    assert not any("features" in note for note in judged(lived_rows(40), "uniform", settings=settings()).notes)


# ------------------------------------------------------------------------------------------------ policies that learn


class Spy(Uniform):
    """A policy that always says the same, and tells what it had learned when it was asked about a question."""

    said: ClassVar[tuple[float, ...]] = (0.2, 0.3, 0.5)
    #: (number of the student, question asked about, decisions learned until then)
    heard: ClassVar[list[tuple[int, str, tuple[str, ...]]]] = []
    numbers: ClassVar["itertools.count[int]"] = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.number, self.learned = next(self.numbers), []

    def pmf(self, queries, *, features, arms):
        self.heard.extend((self.number, query.id, tuple(self.learned)) for query in queries)
        return [PolicyOutput(pmf=self.said) for _ in queries]

    def learn(self, update):
        self.learned.append(update.decision_id)


@pytest.fixture
def spy(monkeypatch):
    """Spy in the registry, with nothing heard yet."""
    monkeypatch.setitem(POLICIES, "spy", f"{__name__}:Spy")
    monkeypatch.setattr(Spy, "heard", [])
    monkeypatch.setattr(Spy, "numbers", itertools.count())
    return Spy


def lives_of(spy):
    """Per student that was asked at all, in that order: (question, decisions learned until then)."""
    numbers = dict.fromkeys(number for number, _, _ in spy.heard)
    return [[(asked, learned) for each, asked, learned in spy.heard if each == number] for number in numbers]


@pytest.mark.parametrize("folds", [2, 5])
def test_crossfitted_policy_never_saw_the_row(spy, folds):
    """A policy is asked once about every row, having learned all rows of the other folds in the log's order."""
    rows = lived_rows(60)
    ids = [row.decision.id for row in rows]
    judged(rows, "spy", folds=folds)
    fold = dict(zip(ids, folds_of(held(rows).log.keys, folds=folds), strict=True))
    assert sorted(asked for _, asked, _ in spy.heard) == sorted(ids)
    for _, asked, learned in spy.heard:
        assert list(learned) == [each for each in ids if fold[each] != fold[asked]]


def test_learning_policy_is_asked_before_it_learns(spy):
    """With learn, the first life learns every row after it was asked about it, the second only some of those before."""
    rows = lived_rows(60)
    ids = [row.decision.id for row in rows]
    (found,) = judged(rows, "spy", learn=True).candidates
    first, second = lives_of(spy)
    assert first == [(asked, tuple(ids[:place])) for place, asked in enumerate(ids)]
    assert [asked for asked, _ in second] == ids
    for place, (_, learned) in enumerate(second):
        assert set(learned) <= set(ids[:place])
    assert found.described == "spy, learning while it goes"
    (note,) = found.notes
    accepted = int(note.removeprefix("rejection accepted ").split()[0])
    assert 0 < accepted < 60
    assert accepted - len(second[-1][1]) in (0, 1), "the last row is learned after the last question"


def test_floor_of_candidates(spy):
    """A policy is judged with the floor that it would be served with, the configured or the given one."""
    (found,) = judged(lived_rows(20), "spy", floor=0.0).candidates
    assert found.shares == pytest.approx({"fast": 0.2, "deep": 0.3, "slow": 0.5})
    (found,) = judged(lived_rows(20), "spy", floor=0.25).candidates
    assert found.shares == pytest.approx({"fast": 0.3, "deep": 0.325, "slow": 0.375})


def test_rejection_accepts_as_often_as_it_must(spy):
    """A row is accepted once in 1 / c, c the largest 1 / p; the accepted ones are drawn as the candidate would draw."""
    rows = lived_rows(4000, weight=0.0)
    (found,) = judged(rows, "spy", learn=True, floor=0.0).candidates
    learned = set(lives_of(spy)[1][-1][1])
    assert abs(len(learned) - 800) < 4 * np.sqrt(4000 * 0.2 * 0.8)
    drawn = [row.decision.arm for row in rows if row.decision.id in learned]
    for arm, share in zip(ARMS, spy.said, strict=True):
        assert drawn.count(arm) / len(drawn) == pytest.approx(share, abs=4 * np.sqrt(0.25 / 800))
    truth = 0.2 * 0.2 + 0.3 * 0.5 + 0.5 * 0.8
    rejection = found.others["rejection"]
    assert rejection.low < truth < rejection.high
    assert found.reward.low < truth < found.reward.high


def test_rejection_is_unbiased(spy):
    """Over 40 logs the mean of the rejection estimates is the candidate's value, within three standard errors."""
    found = [
        judged(lived_rows(120, seed=seed, weight=0.0), "spy", learn=True, floor=0.0).candidates[0].others["rejection"]
        for seed in range(40)
    ]
    values = np.array([each.value for each in found])
    assert abs(values.mean() - 0.59) < 3 * values.std(ddof=1) / np.sqrt(40)
    assert np.mean([each.low <= 0.59 <= each.high for each in found]) >= 0.9


def test_fallback_is_counted(spy, monkeypatch):
    """Where a policy fails the fallback plays, as it would have live, and a note counts these decisions."""
    monkeypatch.setattr(spy, "said", (0.5, 0.6, 0.5))
    (found,) = judged(lived_rows(30), "spy", floor=0.0).candidates
    (note,) = found.notes
    assert note.startswith("30 decisions were the fallback's: ")
    assert found.shares["fast"] == pytest.approx(1.0)


def test_refused_rows_are_counted(spy, monkeypatch):
    """Rows that a policy would not learn are counted once, however many folds offered them."""

    def learn(_, update):
        if update.arm == "slow":
            raise PolicyFault("no")

    monkeypatch.setattr(spy, "learn", learn)
    rows = lived_rows(40)
    (found,) = judged(rows, "spy").candidates
    slow = sum(row.decision.arm == "slow" for row in rows)
    assert found.notes == (f"the policy would not learn {slow} rows",)


def test_linucb_learns_which_arm_is_best():
    """A learner that is judged by the other folds has found the best arm, and its value is near that arm's."""
    found = judged(lived_rows(1500, weight=0.0), "linucb")
    assert found.candidates[0].shares["slow"] > 0.7
    assert found.candidates[0].reward.low < 0.8
    assert found.candidates[0].verdict == "better"


# --------------------------------------------------------------------------------------------------------- anytime


def test_anytime_needs_the_past_only(spy):
    """A policy that learned later rows too cannot be judged at every look; one that learns as it goes can."""
    with pytest.raises(InvalidInput, match="a policy that learned later rows too") as caught:
        judged(lived_rows(20), "spy", anytime=True)
    assert caught.value.field == "anytime"
    assert "--learn" in caught.value.remedy
    assert judged(lived_rows(20), "spy", anytime=True, learn=True).anytime


@pytest.mark.parametrize("estimator", ["dr", "ips", "snips"])
def test_anytime_intervals_are_wider(estimator):
    """Intervals that hold at every look contain the estimate and are wider than those of one look."""
    rows = lived_rows(1000, weight=0.0)
    names = ("fixed:slow", "fixed:fast", "uniform")
    once = judged(rows, *names, estimator=estimator)
    ever = judged(rows, *names, estimator=estimator, anytime=True)
    pairs = [(one.difference, other.difference) for one, other in zip(once.pairs, ever.pairs, strict=True)]
    for one, other in zip(once.candidates, ever.candidates, strict=True):
        pairs += [(one.reward, other.reward), (one.difference, other.difference)]
        assert all(segment.value.low is None for segment in other.over_time)
    for one, other in pairs:
        assert one.value == other.value
        assert other.low <= one.value <= other.high
        assert other.high - other.low > one.high - one.low
    best = ever.candidates[0].reward
    assert best.low < 0.8 < best.high


def test_anytime_baseline():
    """With a candidate as the baseline the anytime intervals are of the differences to it."""
    found = judged(lived_rows(300), "fixed:slow", "fixed:fast", anytime=True, baseline="fixed:fast")
    assert found.candidates[1].difference is None
    assert found.candidates[0].difference.value == pytest.approx(found.pairs[0].difference.value)
    assert found.candidates[0].difference.low == pytest.approx(found.pairs[0].difference.low)


# ----------------------------------------------------------------------------------------- reward models, notes, plan


class Doubling:
    """A regressor: twice the mean."""

    def fit(self, features, targets):
        self.mean = 2.0 * targets.mean()

    def predict(self, features):
        return np.full(len(features), self.mean)


@pytest.mark.parametrize("model", ["ridge", "mean", "mrdr", f"{__name__}:Doubling"])
def test_any_reward_model_serves(model):
    """DR tells the truth with every reward model, also with one that is wrong."""
    (found,) = judged(lived_rows(1500, weight=0.0), "fixed:slow", reward_model=model).candidates
    assert found.reward.low < 0.8 < found.reward.high


def test_regressor_needs_features():
    """A regressor of one's own has nothing to read in rows without features, and that is said."""
    with pytest.raises(ConfigError, match="the rows have no features"):
        judged(hand_rows(), "fixed:deep", reward_model=f"{__name__}:Doubling")


def test_rows_left_out_are_counted():
    """All rows that were left out are counted, and the first twenty named."""
    skipped = [Skipped(where=f"line {n}", reason="bad") for n in range(25)]
    found = replay(held(hand_rows()), candidates=asked_candidates(["uniform"]), skipped=skipped, notes=["a word"])
    assert (found.skipped_rows, len(found.skipped), found.skipped[0]) == (25, 20, skipped[0])
    assert found.notes[0] == "a word"


def test_sources_of_rewards():
    """Default rewards, late feedback and rows without features are counted and noted."""
    rows = lived_rows(6)
    rows[0] = replace(rows[0], reward=replace(rows[0].reward, source="default", preset="default"))
    rows[1] = replace(rows[1], late=True)
    found = judged(rows, "uniform")
    assert found.sources == {"explicit": 5, "default": 1, "late": 1}
    assert found.notes == ("1 of 6 rewards are the default: nobody judged those answers",)
    assert judged(hand_rows(), "uniform").notes == (
        "the rows have no features: the reward model knows the arms' means only",
    )


def test_versions_of_the_log():
    """The versions in the log are counted, the largest by name and the rest together."""
    assert judged(lived_rows(250), "uniform").versions == {"main-0-x": 100, "main-1-x": 100, "main-2-x": 50}
    many = [replace(row, decision=replace(row.decision, version=f"v{n // 2}")) for n, row in enumerate(lived_rows(30))]
    versions = judged(many, "uniform").versions
    assert (len(versions), sum(versions.values())) == (5, 30)


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({"estimator": "best"}, "estimator"),
        ({"estimator": "dros"}, "estimator"),
        ({"estimator": "dm", "anytime": True}, "estimator"),
        ({"estimator": "switch_dr:3", "anytime": True}, "estimator"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.0}, "confidence"),
        ({"confidence": float("nan")}, "confidence"),
        ({"folds": 1}, "folds"),
        ({"weight": -0.1}, "lambda"),
        ({"weight": float("nan")}, "lambda"),
        ({"weight": float("inf")}, "lambda"),
        ({"floor": 0.6}, "floor"),
        ({"floor": float("nan")}, "floor"),
    ],
)
def test_plan_is_refused(plan, field):
    """A plan that cannot be is refused by the name of what is wrong, with a remedy."""
    with pytest.raises(InvalidInput) as caught:
        Plan(**plan)
    assert caught.value.field == field
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "names none"),
        (["uniform", "uniform"], "stands twice"),
        (["arm:fast"], "is no candidate"),
        (["fixed:"], "is no candidate"),
        ([""], "is no candidate"),
    ],
)
def test_candidates_are_refused(names, said):
    """Names that cannot be candidates are refused with the ways to name one."""
    with pytest.raises(InvalidInput, match=said) as caught:
        asked_candidates(names)
    assert caught.value.field == "policy"
    assert caught.value.remedy


def test_unknown_arm():
    """A fixed arm that the log does not know is refused with those that it knows."""
    with pytest.raises(InvalidInput, match="'quick' is not in the log") as caught:
        judged(lived_rows(5), "fixed:quick")
    assert caught.value.field == "fixed:quick"
    assert caught.value.remedy == "use one of fast, deep, slow"
