"""The size of a holdback: the smallest share with which a report soon knows whether routing is better.

The share stays until the verdict is expected, and then falls to `LATER`, as more answers of the arm are learned. The
forecast uses the two intervals of a report (docs/report.md). One comes from the rated answers of the arm in the
holdback. The other comes from the highest possible rewards of the arm's answers, and needs their costs but no ratings.
"""

import math
from dataclasses import dataclass
from typing import Final

from ragbandit.router.comparison import Comparison, words
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.texts.formats import percent, rough_count

#: possible shares of a holdback
SHARES: Final = (0.02, 0.05, 0.1)
#: the share to which a larger share falls after the verdict
LATER: Final = SHARES[0]
#: `usual_size`: its share, and the number of further learned answers of the arm after which the share falls
USUAL_SHARE: Final = 0.1
USUAL_UNTIL: Final = 200
#: the smallest share is chosen that gives a verdict within this number of questions, or within a day
_SOON: Final = 800.0
#: if a verdict takes more questions than this, the usual size is chosen
_LATEST: Final = 20_000.0
#: smallest half width of an interval that holds at every look, in standard errors
_ERRORS: Final = 3.3
#: assumed share of rated answers if the store does not show it
RATED: Final = 0.3
#: largest variance of a quality in [0, 1]; assumed if the mean quality is not known
_LARGEST_VARIANCE: Final = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Facts from the store about the service's questions."""

    rated: float | None = None  #: share of the answers that are rated; None if it is not known
    learned: int = 0  #: number of the arm's learned answers, including answers of a warm start
    per_day: float = 0.0  #: questions a day


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldbackSize:
    share: float
    #: number of learned answers of the arm at which the share falls to LATER; None if it does not fall
    until: int | None
    questions: float | None  #: rough number of questions until the verdict "better"; None for `usual_size`
    sentence: str

    @property
    def setting(self) -> dict[str, float]:
        """The keys of the setting `policy.holdback`, except its arm."""
        return {"share": self.share} | ({} if self.until is None else {"until": self.until, "then": LATER})


def usual_size(sentence: str, *, learned: int = 0) -> HoldbackSize:
    """The holdback if no gain is known, or if it is too small for a verdict."""
    return HoldbackSize(share=USUAL_SHARE, until=learned + USUAL_UNTIL, questions=None, sentence=sentence)


def holdback_size(best: Comparison, *, routed: float, traffic: Traffic) -> HoldbackSize:
    """Choose the share of the questions that go to the best fixed arm as a holdback.

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
    least = gain - routed * max(1.0 - best.quality.second, 0.0)  # the gain if the arm answered them all right
    if least <= 0.0:
        return needed
    return min(needed, max(_ERRORS**2 * routed * ours / rated / least**2, FEWEST_EFFECTIVE / (routed * share)))
