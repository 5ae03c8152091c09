"""Canary: the pmf that is served while a candidate version has a share of it.

    pmf_a = (1 - weight) * champion_a + weight * candidate_a

Both parts are pmfs after their floors. What is logged is the mixture: the draw is from it, so that it is the propensity
of every arm, and every decision says something of both.
"""

import math
from collections.abc import Sequence


def mixed(champion: Sequence[float], candidate: Sequence[float], *, weight: float) -> tuple[float, ...]:
    """The mixture of two pmfs over the same arms, normalised exactly as `draw.gate` does. weight: in [0, 1]."""
    parts = tuple((1.0 - weight) * p + weight * q for p, q in zip(champion, candidate, strict=True))
    total = math.fsum(parts)
    return tuple(p / total for p in parts)


def mixed_floor(champion: float, candidate: float, *, weight: float, arms: int, added: int = 0) -> float:
    """The least probability that an arm can have in a mixture.

    champion, candidate: their floors. arms: of the mixture. added: those that the champion does not offer.
    """
    known = 0.0 if added else min(champion, 1.0 / arms)
    return (1.0 - weight) * known + weight * min(candidate, 1.0 / arms)
