"""Intervals that hold at every look: the log's own order, predictions from earlier rows only, exact bets."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from router.evaluation.anytime import betting_ips, doubly_robust
from router.evaluation.comparison import corrected
from router.evaluation.intervals import Interval
from router.evaluation.moments import Matrix, Vector
from router.evaluation.reward_models import progressive
from router.replay.candidates import Progress
from router.replay.measuring import Survey, weight_of
from router.replay.source import Pieces

if TYPE_CHECKING:
    from router.replay.judging import Plan

__all__ = ["Sequences", "sequences"]

#: (candidate, "value" or "difference") or (first, second) -> interval
Sequences = Mapping[tuple[int, str] | tuple[int, int], Interval]

#: rows before the first prediction is made, and by how much the log grows between two fits of the model
_FIRST, _GROWTH = 50, 1.5


def sequences(
    pieces: Pieces, *, survey: Survey, plan: "Plan", baseline: int | None, progress: Progress
) -> Sequences | None:
    """Of the reward, for all that is compared; None if they are not asked for. Holds the log in memory."""
    if not plan.anytime:
        return None
    logs = [(piece.log, piece.candidates) for piece in pieces]
    reward = np.concatenate([log.reward for log, _ in logs])
    action = np.concatenate([log.action for log, _ in logs])
    logged = np.concatenate([log.pmf for log, _ in logs])
    count = len(survey.weights)
    pmfs = [np.concatenate([candidates[index] for _, candidates in logs]) for index in range(count)]
    features = [log.features for log, _ in logs if log.features is not None]
    rewards, looks = survey.bounds(0), np.array([len(reward)])
    model = progressive(
        np.concatenate(features) if features else None,
        action=action,
        targets=reward[:, None],
        arms=logged.shape[1],
        starts=_starts(len(reward)),
        first=np.array([sum(rewards) / 2.0]),
    )[:, :, 0]

    def between(candidate: Matrix, rival: Matrix | None, confidence: float) -> Interval:
        low, high = doubly_robust(
            reward,
            action=action,
            pmf=logged,
            candidate=candidate,
            model=model,
            rival=rival,
            rewards=rewards,
            confidence=confidence,
            looks=looks,
        )
        return float(low[0]), float(high[0])

    found: dict[tuple[int, str] | tuple[int, int], Interval] = {}
    theirs = logged if baseline is None else pmfs[baseline]
    share = corrected(plan.confidence, comparisons=max(1, count - (baseline is not None)))
    apart = corrected(plan.confidence, comparisons=max(1, count * (count - 1) // 2))
    for index, pmf in enumerate(pmfs):
        if plan.estimator == "ips":
            weight: Vector = np.concatenate([weight_of(log, candidates[index]) for log, candidates in logs])
            low, high = betting_ips(weight, reward=reward, rewards=rewards, confidence=plan.confidence, looks=looks)
            found[index, "value"] = (float(low[0]), float(high[0]))
        else:
            found[index, "value"] = between(pmf, None, plan.confidence)
        if index != baseline:
            found[index, "difference"] = between(pmf, theirs, share)
        for second in range(index):
            found[second, index] = between(pmfs[second], pmf, apart)
        progress("bets placed", index + 1, count)
    return found


def _starts(rows: int) -> list[int]:
    """Where the model is fitted again: at rows that grow like the log, so that all fits together cost a few."""
    starts, next_one = [0], float(_FIRST)
    while next_one < rows:
        starts.append(int(next_one))
        next_one *= _GROWTH
    return starts
