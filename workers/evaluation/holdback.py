"""The size of a holdback: the smallest share with which a report soon knows whether routing is better.

The forecast takes the two intervals of a report (docs/report.md): of the arm's answers in the holdback, and of what
they could be worth at best, which needs their cost but no rating of them.
"""

from dataclasses import dataclass
from typing import Final

from ragbandit.router.comparison import Comparison, words
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.texts.formats import percent, roughly

#: shares to choose from
SHARES: Final = (0.02, 0.05, 0.1)
#: a verdict should come within this number of questions
_SOON: Final = 800.0
#: a later verdict is no reason for a larger share
_LATEST: Final = 20_000.0
#: standard errors by which an interval that is looked at again and again lies below its middle, at its narrowest
_ERRORS: Final = 3.3
#: share of rated answers if the store does not show one
RATED: Final = 0.3
#: spread of a quality that is not known
_LARGEST_VARIANCE: Final = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldbackSize:
    share: float
    questions: float | None  #: questions until the verdict "better", about; None if no gain is known
    sentence: str


def holdback_size(best: Comparison, *, routed: float, rated: float | None) -> HoldbackSize:
    """Choose the share of the best fixed arm.

    best: routing compared with the arm
    routed: share of the questions that routing gives to other arms
    rated: share of the answers that are rated; None if it is not known
    """
    gain, known = best.reward.estimate, RATED if rated is None else rated
    if gain is None or gain <= 0.0 or routed <= 0.0 or known <= 0.0:
        return HoldbackSize(share=SHARES[1], questions=None, sentence="no gain is known yet, so the usual share")
    counts = {share: _questions(best, gain=gain, share=share, routed=routed, rated=known) for share in SHARES}
    soon = [share for share, count in counts.items() if count <= _SOON]
    share = min(soon, default=SHARES[-1])
    if counts[share] > _LATEST:
        sentence = f"the gain is too small for a verdict before {_LATEST:,.0f} questions"
        return HoldbackSize(share=SHARES[1], questions=None, sentence=sentence)
    text = f"a verdict after {roughly(counts[share])} questions, if {percent(round(known, 2))} are rated"
    if best.cost.estimate is not None and best.cost.estimate < 0.0:
        text += f"; it costs about {words.amount(-best.cost.estimate * share * counts[share], best.unit)}"
    return HoldbackSize(share=share, questions=counts[share], sentence=text)


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
