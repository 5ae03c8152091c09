"""Excess: how much oftener each arm was drawn than the logged probabilities promise, summed over rows.

Of rows that were chosen without regard to the arm, as all decisions, those with an outcome or those that were judged
should be, the sum of [arm a was drawn] - p_a is a martingale whose variance grows by p_a (1 - p_a): its excess and its
spread are all that a test needs, whatever the policy did in between (router/learning/monitoring/sample_ratio.py).
"""

from collections.abc import Mapping
from typing import Any

from ragbandit.router.storage.rows.conversion import arms_value, scores_value
from ragbandit.router.storage.totals.rows import Deltas
from ragbandit.shared.types import SampleStage


def add_excess(deltas: Deltas, decision: Mapping[str, Any], *, policy: str, hour: int, stage: SampleStage) -> None:
    """Count one row, in the hour of its decision; nothing of one that had no choice, or whose draw cannot be read.

    decision: with the columns arm, arms and pmf.
    """
    try:
        arms, pmf = arms_value(decision["arms"]), scores_value(decision["pmf"]) or ()
        chances = {arm: float(p) for arm, p in zip(arms, pmf, strict=True) if 0.0 < p < 1.0}
    except (ValueError, TypeError):
        return
    if decision["arm"] not in chances:
        return
    for arm, p in chances.items():
        amounts = {f"{stage}_excess": (arm == decision["arm"]) - p, f"{stage}_spread": p * (1.0 - p)}
        deltas.add((policy, hour, arm), **amounts)
