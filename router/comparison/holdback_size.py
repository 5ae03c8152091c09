"""The size of a holdback: the smallest share with which a report soon knows whether routing is better.

The share stays until the verdict is expected, and then falls to `LATER`, as more answers of the arm are learned. The
forecast takes the two intervals of a report (docs/report.md): of the arm's answers in the holdback, and of what
they could be worth at best, which needs their cost but no rating of them.
"""

import math
from dataclasses import dataclass
from typing import Final

from ragbandit.router.comparison import Comparison, words
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.texts.formats import percent, rough_count

#: shares to choose from
SHARES: Final = (0.02, 0.05, 0.1)
#: the share to which a larger one falls after the verdict
LATER: Final = SHARES[0]
#: `usual_size`: the share, and the number of further learned answers of the arm at which it falls
USUAL_SHARE: Final = 0.1
USUAL_UNTIL: Final = 200
#: a verdict should come within this number of questions, or within a day
_SOON: Final = 800.0
#: a later verdict is no reason for a larger share
_LATEST: Final = 20_000.0
#: smallest half width of an interval that is looked at again and again, in standard errors
_ERRORS: Final = 3.3
#: share of rated answers if the store does not show one
RATED: Final = 0.3
#: variance of a quality whose mean is not known: the largest one
_LARGEST_VARIANCE: Final = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Facts from the store about the service's questions."""

    rated: float | None = None  #: share of the answers that are rated; None if it is not known
    learned: int = 0  #: learned answers of the arm, with those of a warm start
    per_day: float = 0.0  #: questions


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldbackSize:
    share: float
    #: number of learned answers of the arm at which the share falls to LATER; None if it does not fall
    until: int | None
    questions: float | None  #: questions until the verdict "better", about; None for `usual_size`
    sentence: str

    @property
    def setting(self) -> dict[str, float]:
        """The keys of `policy.holdback` without the arm."""
        return {"share": self.share} | ({} if self.until is None else {"until": self.until, "then": LATER})


def usual_size(sentence: str, *, learned: int = 0) -> HoldbackSize:
    """The holdback if no gain is known, or if it is too small for a verdict."""
    return HoldbackSize(share=USUAL_SHARE, until=learned + USUAL_UNTIL, questions=None, sentence=sentence)


def holdback_size(best: Comparison, *, routed: float, traffic: Traffic) -> HoldbackSize:
    """Choose the share of the best fixed arm.

    best: routing compared with the arm
    routed: share of the questions that routing gives to other arms
    """
    gain, known = best.reward.estimate, RATED if traffic.rated is None else traffic.rated
    if gain is None or gain <= 0.0 or routed <= 0.0 or known <= 0.0:
        return usual_size("no gain is known yet, so the usual one", learned=traffic.learned)
    counts = {share: _questions(best, gain=gain, share=share, routed=routed, rated=known) for share in SHARES}
    soon = [share for share, count in counts.items() if count <= max(_SOON, traffic.per_day)]
    share = min(soon, default=SHARES[-1])
    questions = counts[share]
    if questions > _LATEST:
        sentence = f"the gain is too small for a verdict before {_LATEST:,.0f} questions"
        return usual_size(sentence, learned=traffic.learned)
    text = f"a verdict after {rough_count(questions, 'question')}, if {percent(round(known, 2))} are rated"
    if best.cost.estimate is not None and best.cost.estimate < 0.0:
        text += f"; it costs about {words.amount(-best.cost.estimate * share * questions, best.unit)}"
    until = None
    if share > LATER:
        until = traffic.learned + math.ceil(questions * known * (1.0 - routed + routed * share))
        text = f"until {until:,} of its answers are learned, then falling to {percent(LATER)}: {text} until then"
    return HoldbackSize(share=share, until=until, questions=questions, sentence=text)


def _questions(best: Comparison, *, gain: float, share: float, routed: float, rated: float) -> float:
    ours, theirs = (
        _LARGEST_VARIANCE if mean is None else min(max(mean, 0.0), 1.0) * (1.0 - min(max(mean, 0.0), 1.0))
        for mean in (best.quality.first, best.quality.second)
    )
    drawn = routed * (ours + theirs * (1.0 - share) ** 2 / share) / rated
    needed = max(_ERRORS**2 * drawn / gain**2, FEWEST_EFFECTIVE / (routed * share * rated))
    if best.quality.second is None:
        return needed
    least = gain - routed * max(1.0 - best.quality.second, 0.0)  # if the arm were right on all these questions
    if least <= 0.0:
        return needed
    return min(needed, max(_ERRORS**2 * routed * ours / rated / least**2, FEWEST_EFFECTIVE / (routed * share)))
