"""Intervals that hold at every look: the log's own order, predictions from earlier rows only, exact bets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.estimation.intervals import Interval, corrected
from ragbandit.router.offline.estimation.reward_models import progressive
from ragbandit.router.offline.types import Choices, Matrix, Progress, Vector
from ragbandit.shared.confidence_sequences import betting_ips, doubly_robust
from ragbandit.shared.types import FeatureRows

#: (candidate, "value" or "difference") or (first, second) -> interval
Sequences = Mapping[tuple[int, str] | tuple[int, int], Interval]

#: rows before the first prediction is made, and by how much the log grows between two fits of the model
_FIRST, _GROWTH = 50, 1.5


def sequences(
    logs: Sequence[Log],
    *,
    rewards: Interval,
    reward_model: str | None,
    confidence: float,
    baseline: int | None,
    progress: Progress,
) -> Sequences:
    """Confidence sequences of the reward, for all that is compared. logs: all rows, in their order.

    rewards: their bounds. reward_model: "ridge"; "mean", whatever the features; None: IPS, without predictions.
    baseline: index of the candidate that is the baseline; None: the logged policy.
    Unsupported decisions may have any reward: these intervals include them at their worst and best.
    """
    bets, pmfs = _bets(logs, rewards=rewards, reward_model=reward_model)
    count = len(pmfs)
    theirs = bets.pmf if baseline is None else pmfs[baseline]
    share = corrected(confidence, comparisons=max(1, count - (baseline is not None)))
    apart = corrected(confidence, comparisons=max(1, count * (count - 1) // 2))
    intervals: dict[tuple[int, str] | tuple[int, int], Interval] = {}
    for index, pmf in enumerate(pmfs):
        intervals[index, "value"] = bets.value(pmf, confidence=confidence)
        if index != baseline:
            intervals[index, "difference"] = bets.between(pmf, theirs, confidence=share)
        for second in range(index):
            intervals[second, index] = bets.between(pmfs[second], pmf, confidence=apart)
        progress("bets placed", index + 1, count)
    return intervals


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bets:
    """All rows of a log, in its order, and what is bet with."""

    reward: Vector
    action: Choices
    #: logged, shape (n, K)
    pmf: Matrix
    #: predicted rewards of every arm, each row's from earlier rows only, shape (n, K); None: no model is asked for
    model: Matrix | None
    rewards: Interval

    def value(self, candidate: Matrix, *, confidence: float) -> Interval:
        """The interval of a candidate's reward."""
        if self.model is not None:
            return self.between(candidate, None, confidence=confidence)
        rows = np.arange(len(self.action)), self.action
        return _last(
            betting_ips(
                candidate[rows] / self.pmf[rows],
                reward=self.reward,
                rewards=self.rewards,
                confidence=confidence,
                looks=np.array([len(self.reward)]),
            )
        )

    def between(self, candidate: Matrix, rival: Matrix | None, *, confidence: float) -> Interval:
        """The interval of a difference of rewards; without a model that of IPS, which is DR with predictions of 0."""
        return _last(
            doubly_robust(
                self.reward,
                action=self.action,
                pmf=self.pmf,
                candidate=candidate,
                model=np.zeros(self.pmf.shape) if self.model is None else self.model,
                rival=rival,
                rewards=self.rewards,
                confidence=confidence,
                looks=np.array([len(self.reward)]),
            )
        )


def _bets(logs: Sequence[Log], *, rewards: Interval, reward_model: str | None) -> tuple[_Bets, list[Matrix]]:
    """The whole log, and the candidates' probabilities on it."""
    reward, action, pmf = (np.concatenate([getattr(log, name) for log in logs]) for name in ("reward", "action", "pmf"))
    features = [log.features for log in logs if log.features is not None and reward_model != "mean"]
    model = None
    if reward_model is not None:
        model = _model(
            np.concatenate(features) if features else None,
            reward=reward,
            action=action,
            arms=pmf.shape[1],
            middle=sum(rewards) / 2.0,
        )
    columns = zip(*(log.candidates for log in logs), strict=True)
    bets = _Bets(reward=reward, action=action, pmf=pmf, model=model, rewards=rewards)
    return bets, [np.concatenate(column) for column in columns]


def _model(features: FeatureRows | None, *, reward: Vector, action: Choices, arms: int, middle: float) -> Matrix:
    return progressive(
        features,
        action=action,
        targets=reward[:, None],
        arms=arms,
        starts=_starts(len(reward)),
        first=np.array([middle]),
    )[:, :, 0]


def _last(looks: tuple[Vector, Vector]) -> Interval:
    """The interval at the end of the log."""
    low, high = looks
    return float(low[-1]), float(high[-1])


def _starts(rows: int) -> list[int]:
    """Rows at which the model is fitted again, growing geometrically: all fits together cost a few of the last."""
    starts, next_one = [0], float(_FIRST)
    while next_one < rows:
        starts.append(int(next_one))
        next_one *= _GROWTH
    return starts
