"""Completed rewards: means of what people would have said, in made worlds whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.offline.estimation.rated_rewards import Pricing, Ratings, completed
from ragbandit.shared.errors import InvalidInput

ARMS, ROWS = 3, 4000
TRUTH = np.array([0.3, 0.5, 0.7])


def world(seed, *, rate=0.1, share=1.0, knows=1.0, bias=0.2, hangs_on=None, told=False, rows=ROWS):
    """(Ratings, all qualities). knows: how much the judge's score tells; hangs_on: "score" or "quality"."""
    random = np.random.default_rng(seed)
    arm = random.integers(ARMS, size=rows)
    quality = (random.random(rows) < TRUTH[arm]).astype(np.float64)
    score = 0.5 + 0.2 * knows * (2 * quality - 1) + 0.1 * random.standard_normal(rows) + bias * (arm == 0)
    score = np.clip(score, 0.0, 1.0)
    chance = np.full(rows, rate)
    if hangs_on is not None:
        chance = rate * (0.4 + 1.2 * (score if hangs_on == "score" else quality))
    rated, sampled = random.random(rows) < chance, random.random(rows) < share
    unknown = np.full(rows, np.nan)
    ratings = Ratings(
        arm=arm,
        rated=rated,
        quality=np.where(rated, quality, 0.0),
        score=np.where(sampled, score, np.nan),
        score_chance=np.full(rows, share),
        rating_chance=chance if told else unknown,
    )
    return ratings, quality


def completed_of(ratings, **more):
    count = len(ratings.arm)
    pricing = Pricing(weight=np.full(count, 0.1), cost=np.ones(count), minimum=-1.0, maximum=1.0)
    return completed(ratings, pricing=pricing, arms=ARMS, folds_of_rows=np.arange(count) % 5, **more)


def off(seeds, values, **made):
    """Mean over seeds of (mean of the values - mean of all qualities), with its standard error."""
    gaps = []
    for seed in seeds:
        ratings, quality = world(seed, **made)
        gaps.append(float(values(ratings).mean() - quality.mean()))
    return float(np.mean(gaps)), float(np.std(gaps) / np.sqrt(len(gaps)))


@pytest.mark.parametrize(
    ("made", "told"),
    [
        *(({"share": 0.3}, told) for told in (True, False)),
        *(({"hangs_on": "score"}, told) for told in (True, False)),
        *(({"rate": 0.03}, told) for told in (True, False)),
        *(({"bias": 0.5}, False), ({"knows": 0.0}, False)),
    ],
    ids=str,
)
def test_mean_is_what_people_would_have_said(made, told):
    """Whatever the judge is biased by, or samples, and whoever is rated by score: the completed mean is right."""
    gap, error = off(range(40), lambda ratings: completed_of(ratings).quality, told=told, **made)
    # Chances that are not told are a little off where they follow the score: they are constant within a cell.
    assert abs(gap) < 4.0 * error + (0.0 if told else 0.004)


def test_the_judge_alone_and_the_rated_alone_are_off():
    """The same measure finds fault: the judge's own mean is off by its bias, that of the rated rows by who is rated."""
    gap, error = off(range(10), lambda ratings: ratings.score)
    assert abs(gap) > 10.0 * error
    gap, error = off(range(10), lambda ratings: ratings.quality[ratings.rated], hangs_on="score")
    assert gap > 5.0 * error


def test_rewards_follow_from_qualities():
    """The completed reward is the completed quality less weight times cost, where no bound cuts."""
    found = completed_of(world(1)[0])
    assert found.reward == pytest.approx(found.quality - 0.1)


def test_all_rated_stays_as_it_is():
    """Where everybody was rated for sure, the judge changes nothing."""
    ratings, quality = world(2, rate=1.0, told=True)
    assert ratings.rated.all()
    assert completed_of(ratings).quality == pytest.approx(quality)


def test_a_judge_that_knows_much_counts_much():
    """L is near 1 for a judge that tells right from wrong, and the completed scatter less; noise brings nothing."""
    sharp = completed_of(world(3, knows=2.0, rows=8000)[0]).facts
    blunt = completed_of(world(3, knows=0.0, rows=8000)[0]).facts
    assert sharp.judge_weight > 0.9
    assert sharp.gain > 1.3
    assert sharp.correlation > 0.8
    assert blunt.judge_weight < 0.7
    assert blunt.gain == pytest.approx(1.0, abs=0.05)


def test_given_weight_of_the_judge():
    """L may be set: 0 is the ratings alone, which the scores then do not change."""
    ratings = world(4, told=True)[0]
    none = replace(ratings, score=np.full(ROWS, np.nan))
    alone = completed_of(ratings, judge_weight=0.0)
    assert alone.facts.judge_weight == 0.0
    assert alone.quality == pytest.approx(completed_of(none, judge_weight=0.0).quality)


def test_warning_where_being_rated_hangs_on_the_answer():
    """Raters who like to rate what is good are seen by the judge's scores; a chance sample is not."""
    assert completed_of(world(5, hangs_on="quality")[0]).facts.selected
    assert not completed_of(world(5)[0]).facts.selected
    # Arms that are rated more often than others are no fault: who is rated is looked at within an arm.
    ratings = world(5)[0]
    often = replace(ratings, rated=ratings.rated | ((ratings.arm == 2) & (np.arange(ROWS) % 2 == 0)))
    assert not completed_of(often).facts.selected


def test_a_told_sample_by_score_is_no_fault():
    """Where the log tells that rows of high scores were sampled more often, no warning comes."""
    assert completed_of(world(6, hangs_on="score", rate=0.3)[0]).facts.selected
    assert not completed_of(world(6, hangs_on="score", rate=0.3, told=True)[0]).facts.selected


@pytest.mark.parametrize("which", ["rating_chance", "score_chance"])
def test_told_chances_that_do_not_fit(which):
    """Chances that say half of what was drawn are named."""
    ratings = world(7, told=True, share=0.4)[0]
    assert completed_of(ratings).facts.faults == ()
    (fault,) = completed_of(replace(ratings, **{which: getattr(ratings, which) / 2})).facts.faults
    assert {"rating_chance": "the chances of a rating", "score_chance": "judge_probability"}[which] in fault


def test_without_a_rating_nothing_is_known():
    """A log that nobody rated is refused: nothing says how far the judge can be trusted."""
    ratings = replace(world(8)[0], rated=np.zeros(ROWS, dtype=bool))
    with pytest.raises(InvalidInput, match="no row has a human rating"):
        completed_of(ratings)


def test_one_rating_and_no_score():
    """The least that there can be gives finite numbers."""
    ratings = world(9, rows=30)[0]
    rated = np.zeros(30, dtype=bool)
    rated[4] = True
    found = completed_of(replace(ratings, rated=rated, score=np.full(30, np.nan)))
    assert np.isfinite(found.quality).all()
    assert (found.facts.rated, found.facts.scored, found.facts.selection) == (1, 0, None)
