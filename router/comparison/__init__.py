"""One comparison for one question: is one way of answering better than another, by how much, and at which price?

A way of answering is a policy, a fixed arm, or what was served. Every tool that compares two ways (advise, evaluate,
replay, report, rollouts) measures `Difference`s by the method of its design, and `compare` gives the verdict:

paired outcomes   the outcomes of both ways are known for the same questions; fixed-sample interval
logged draws      one arm was drawn per question with a logged probability; fixed-sample interval
live traffic      logged draws that are looked at again and again while they grow; anytime-valid interval
asked again       both ways answered a random sample of stored questions for the comparison; anytime-valid interval

`words` puts a comparison into words. An `assessment` is what a page or a screen shows of comparisons.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from ragbandit.shared.types import ArmName

Verdict = Literal["better", "worse", "as good", "not known yet"]
Design = Literal["paired outcomes", "logged draws", "live traffic", "asked again"]

NOT_KNOWN: Final = "not known yet"
#: one way is as good as another if it is worse by at most this reward per question: 5 fewer right answers in 100
#: questions, a usual margin of non-inferiority
MARGIN: Final = 0.05
#: share of the interval that must lie above 0 for the verdict "as good". For the same questions, intervals of two
#: designs differ in width by up to a fifth; without this room, one would often say "as good" and the other "worse"
ROOM: Final = 0.05
#: two costs are the same if they differ by at most this share of the second cost
SAME_COST: Final = 0.02
#: confidence of an interval on recorded outcomes that is looked at once
CONFIDENCE: Final = 0.95
#: smallest gain in reward per question that justifies a router
WORTH: Final = 0.01
#: a forecast of more than this multiple of the rated questions so far is not printed: half of them would be false
FARTHEST: Final = 5.0
#: a forecast is a range: its largest number of questions / its smallest number
_RANGE: Final = 4.0
#: largest share of the evidence for a verdict while there are too few rows for an interval
_WITHOUT_INTERVAL: Final = 0.1
#: (unit of time, its length in seconds)
_TIMES: Final = (("minute", 60.0), ("hour", 3600.0), ("day", 86_400.0), ("week", 604_800.0), ("month", 2_629_800.0))


def verdict_of(low: float, high: float) -> Verdict:
    """Better or worse if the interval excludes 0. As good if the interval is above -MARGIN (non-inferiority), and 0 is
    not in its upper twentieth (ROOM), where the first way may be worse.
    """
    if low > 0.0:
        return "better"
    if high < 0.0:
        return "worse"
    return "as good" if low >= -MARGIN and high >= ROOM * (high - low) else NOT_KNOWN


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Mean of a quantity per question, first way minus second way. A field is null if it is not known."""

    estimate: float | None = None
    """Estimate of `first` - `second`."""
    low: float | None = None
    """Lower end of the interval; null if the method of the interval does not hold for this log."""
    high: float | None = None
    """Upper end of the interval."""
    effective_rows: float = 0.0
    """Number of equally weighted rows that give the same precision."""
    first: float | None = None
    """Mean of the first way."""
    second: float | None = None
    """Mean of the second way."""

    @property
    def is_known(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def tells_nothing(self) -> bool:
        """Whether there is no interval, or an interval around 0 that is at least as wide as the range of a quality."""
        return self.low is None or self.high is None or (self.low < 0.0 < self.high and self.high - self.low >= 1.0)

    def verdict(self) -> Verdict:
        return NOT_KNOWN if self.low is None or self.high is None else verdict_of(self.low, self.high)

    def times_more(self) -> float:
        """Questions that a verdict needs / questions so far; 1 with a verdict, infinite if it is out of reach.

        Assumes that the estimate stays, and that the interval narrows like 1 / sqrt(questions).
        """
        if self.low is None or self.high is None or self.estimate is None:
            return math.inf
        if self.verdict() != NOT_KNOWN:
            return 1.0
        half, needed = (self.high - self.low) / 2.0, max(self.estimate + MARGIN, -self.estimate)
        if self.low >= -MARGIN:  # too near to "worse" for "as good"
            needed = -self.estimate
        return max((half / needed) ** 2, 1.0) if needed > 0.0 else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two ways of answering the same questions, compared by reward, quality and cost per question."""

    first: str
    """The way that is judged, such as "routing", "mba" or a version of the policy."""
    second: str
    """The way that it is compared with, in words, such as "always single_step"."""
    second_arm: ArmName | None = None
    """The arm that the second way always takes; null if the second way is a policy."""
    design: Design
    """Where the evidence comes from; it decides how the intervals are computed."""
    questions: int
    """Questions that are compared."""
    rated: int
    """Compared questions whose reward is known."""
    bounded: int = 0
    """Compared questions on which the arm of the second way had probability 0. Only bounds of its reward there are
    known, and costs are compared without these questions."""
    reward: Difference
    """Reward: quality - weight x cost."""
    quality: Difference
    """Quality of the answers."""
    cost: Difference
    """Cost, in `unit`."""
    unit: str = "cost"
    """Unit of the cost: "dollars", "steps" or "seconds"; "cost" if it is the sum that `reward.cost` defines."""
    confidence: float = 0.95
    """Confidence of the intervals. Intervals of "live traffic" and "asked again" hold at every look."""
    verdict: Verdict
    """Verdict on the reward."""
    quality_verdict: Verdict
    """Verdict on the quality."""
    missing: str | None
    """What is missing for a verdict, and about how long it takes; null if there is a verdict."""
    assumption: str | None = None
    """Assumption of the verdict about unrated answers, and a way to check it; null without verdict or assumption."""
    progress: float
    """Evidence so far / evidence that surely suffices for a verdict, in [0, 1]; 1 once there is a verdict."""


def compare(
    first: str,
    second: str,
    *,
    design: Design,
    questions: int,
    rated: int,
    reward: Difference,
    quality: Difference | None = None,
    cost: Difference | None = None,
    unit: str = "cost",
    confidence: float = 0.95,
    seconds: float | None = None,
    needed: float = 0.0,
    blocked: str | None = None,
    outlook: float | None = None,
    unsteady: str | None = None,
    bounded: int = 0,
    second_arm: ArmName | None = None,
    assumption: str | None = None,
) -> Comparison:
    """Make a comparison with its verdict.

    seconds: time in which `rated` questions were rated, for the forecast; None if traffic does not grow
    needed: effective rows that the method of the intervals needs
    blocked: why there may be no verdict, such as a log that contradicts its probabilities
    outlook: rated questions that a verdict takes / rated questions so far; None to compute it from the interval
    unsteady: why no forecast holds, although there is an outlook: something else than the policy decides questions.
        Then two ways that hardly differ are not "as good" either
    bounded, second_arm, assumption: see `Comparison`
    """
    quality = Difference() if quality is None else quality
    if quality.effective_rows < needed:  # the mean of a few answers shows nothing
        quality = replace(quality, estimate=None, second=None)
    if unsteady is not None:
        reward, quality = (_tried(one, needed=needed) for one in (reward, quality))
    verdict, quality_verdict = (
        NOT_KNOWN if blocked is not None or (unsteady is not None and one.verdict() == "as good") else one.verdict()
        for one in (reward, quality)
    )
    # With few effective rows, quality is "as good" only if the ways differ on few questions; so is the reward then.
    if verdict == NOT_KNOWN and quality_verdict == "as good" and quality.effective_rows < needed:
        quality_verdict = NOT_KNOWN
    missing, progress = blocked, 0.0
    if verdict != NOT_KNOWN:
        progress = 1.0
    elif blocked is None:
        progress = _evidence_share(reward, needed=needed)
        multiple = reward.times_more() if outlook is None else outlook
        if unsteady is not None:
            missing = f"not known how long: {unsteady}"
        elif not rated or reward.effective_rows <= 0.0:
            missing, progress = "rated answers of both ways", 0.0
        elif not reward.is_known:
            missing = f"not known how long: {reward.effective_rows:.0f} of {needed:.0f} effective rated questions"
        elif multiple <= FARTHEST:
            missing = _total(rated, multiple=multiple, seconds_each=seconds / rated if seconds else None)
        else:  # also for NaN
            missing = "not known how long: few ratings, a difference close to a limit, or an arm that is hardly drawn"
    return Comparison(
        first=first,
        second=second,
        second_arm=second_arm,
        design=design,
        questions=questions,
        rated=rated,
        bounded=bounded,
        reward=reward,
        quality=quality,
        cost=cost or Difference(),
        unit=unit,
        confidence=confidence,
        verdict=verdict,
        quality_verdict=quality_verdict,
        assumption=None if verdict == quality_verdict == NOT_KNOWN else assumption,
        missing=missing,
        progress=progress,
    )


def _tried(difference: Difference, *, needed: float) -> Difference:
    """The difference; without its interval if that gives "as good" only because one way was hardly tried."""
    if difference.effective_rows >= needed or difference.verdict() != "as good":
        return difference
    return replace(difference, estimate=None, low=None, high=None, second=None)


def _evidence_share(reward: Difference, *, needed: float) -> float:
    """Evidence so far / evidence for a verdict. An interval narrower than MARGIN nearly always gives a verdict."""
    if reward.low is None or reward.high is None:
        return 0.0 if needed <= 0.0 else _WITHOUT_INTERVAL * min(reward.effective_rows / needed, 1.0)
    return min(MARGIN / max(reward.high - reward.low, MARGIN), 0.99)


def _total(rated: int, *, multiple: float, seconds_each: float | None) -> str:
    """Rated questions that a verdict takes, as a range: "about 420 to 1,700 rated questions in all (210 so far)"."""
    least, most = forecast_ends(rated * multiple, minimum=rated)
    text = f"about {least:,.0f} to {most:,.0f} rated questions in all ({rated:,} so far)"
    return (
        text if seconds_each is None else f"{text}, within {about_time((most - rated) * seconds_each)} at today's rate"
    )


def forecast_ends(count: float, *, minimum: int = 1) -> tuple[float, float]:
    """The ends of a forecast, with two digits. minimum: smallest number that is possible"""
    low = max(float(f"{round(count / math.sqrt(_RANGE)):.2g}"), float(minimum))
    return low, float(f"{_RANGE * low:.2g}")


def about_time(seconds: float) -> str:
    """A rough time in words, at least a minute: "about 2 days", "about 5 months", "years"."""
    if seconds >= 18 * _TIMES[-1][1]:
        return "years"
    name, size = next((unit for unit in reversed(_TIMES) if seconds >= unit[1]), _TIMES[0])
    count = max(round(seconds / size), 1)
    return f"about {count} {name}s" if count > 1 else f"about {'an' if name == 'hour' else 'a'} {name}"
