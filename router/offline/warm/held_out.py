"""What a policy would do on questions that it has not learned, against always one arm.

The questions are cut in folds by their text; each fold is asked of a policy that has learned the others, row after row
as the ledger gives them. Where the rows tell the outcome of every arm of every question (a table, or the log of
`ragbandit evaluate`), what it would earn is a mean over the questions. Of any other log it is a doubly robust estimate,
as in a replay, with its interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.price import Price, means_of, price_of
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.estimation.reward_models import folds_of
from ragbandit.router.offline.replay.assemble import mean_of
from ragbandit.router.offline.replay.candidates import CandidatePmf, CandidatePolicy, array_pmf, crossfitted
from ragbandit.router.offline.replay.engine import judge
from ragbandit.router.offline.replay.opening import MemoryLog, memory_log
from ragbandit.router.offline.replay.parts import MemoryPart
from ragbandit.router.offline.replay.plan import CandidateSpec, Plan, baselines
from ragbandit.router.offline.replay.results import CandidateResult, EstimateWithInterval, ReplayResult
from ragbandit.router.offline.types import Choices, Matrix, Progress, Vector, no_progress
from ragbandit.router.offline.warm.material import WarmRows, question_key, tells_every_arm
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, finite_json

#: of the intervals
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """One way to choose, on the questions held out: means per question."""

    name: str
    reward: EstimateWithInterval
    quality: EstimateWithInterval
    cost: EstimateWithInterval
    #: share of every arm
    shares: Mapping[ArmName, float]
    #: reward of the policy minus this one's, paired; None for the policy itself
    gain: EstimateWithInterval | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """The policy after its warm start, and always each arm."""

    #: "every arm": all outcomes are known; "replay": estimated from the logged draws
    by: str
    questions: int
    rows: int
    folds: int
    #: the policy first
    standings: tuple[Standing, ...]
    #: what reward.weight says of the rows; None where fewer than two arms have a quality apart from their cost
    price: Price | None
    notes: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Plain values; None for a number that is not known."""
        values: dict[str, Any] = finite_json(asdict(self))
        return values


def held_out(
    material: WarmRows,
    *,
    policy: Policy,
    name: str,
    settings: Settings,
    folds: int = 5,
    progress: Progress = no_progress,
) -> HeldOut:
    """Cross-fitted by question. policy: a fresh one; its params are those of the copies that learn.

    Raises InvalidInput for fewer questions than folds.
    """
    log = memory_log(material.rows, mixed_arms=True, described=material.source)
    keys = [question_key(row.decision.query) for row in material.rows]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    if len(numbers) < folds:
        raise InvalidInput(
            f"{len(numbers)} different questions cannot be cut in {folds} folds",
            field=material.source,
            remedy="give more questions",
        )
    question = np.array([numbers[key] for key in keys], dtype=np.intp)
    spec = CandidateSpec(name=name, kind="policy", what=policy.algorithm, params=policy.params)
    candidate = crossfitted(
        spec,
        make=lambda: CandidatePolicy(
            make_policy(policy.algorithm, params=policy.params),
            log=log,
            features=log.log.features,
            settings=settings,
            weight=None,
        ),
        folds_of_rows=_folds(log.log, question=question, folds=folds),
        folds=folds,
        progress=progress,
    )
    if tells_every_arm(material.rows):
        standings = _counted(log, question=question, pmf=candidate.pmf, name=name)
        by, notes = "every arm", candidate.notes
    else:
        result = _replayed(log, spec=spec, candidate=candidate, folds=folds, progress=progress)
        standings, by = _estimated(result, arms=log.log.arms), "replay"
        notes = (*candidate.notes, *result.notes, *result.faults)
    parts = ((row.decision, row.reward) for row in material.rows if row.reward.has_parts)
    means = means_of((one.arm, r.quality, r.cost, r.sample_weight, one.propensity) for one, r in parts)
    return HeldOut(
        by=by,
        questions=len(numbers),
        rows=len(material.rows),
        folds=folds,
        standings=standings,
        price=price_of(means, weight=settings.reward.weight) if len(means) > 1 else None,
        notes=notes,
    )


def _folds(log: Log, *, question: Choices, folds: int) -> Choices:
    """The fold of each row: of its question alone, whatever the context, and none is empty.

    question: numbers of what is the same to a policy, context included, for a log of fewer questions than folds.
    """
    mixed = folds_of(log.questions, folds=folds)
    if len(np.unique(mixed)) == folds:
        return mixed
    texts, number = np.unique(log.questions, return_inverse=True)
    return np.asarray((question if len(texts) < folds else number) % folds, dtype=np.intp)


def _counted(log: MemoryLog, *, question: Choices, pmf: Matrix, name: str) -> tuple[Standing, ...]:
    """Means over the questions of what each arm made of them."""
    arrays = log.log
    shape = int(question.max()) + 1, len(arrays.arms)
    count, shares = np.zeros(shape), np.zeros(shape)
    sums = {key: np.zeros(shape) for key in ("reward", "quality", "cost")}
    np.add.at(count, (question, arrays.action), 1.0)
    for key, total in sums.items():
        np.add.at(total, (question, arrays.action), getattr(arrays, key))
        total /= count
    shares[question] = pmf
    ways: list[tuple[str, Matrix]] = [(name, shares)]
    for column, arm in enumerate(arrays.arms):
        always = np.zeros(shape)
        always[:, column] = 1.0
        ways.append((f"always {arm}", always))
    ours, rewards = (shares * sums["reward"]).sum(axis=1), (arrays.minimum, arrays.maximum)
    apart = rewards[0] - rewards[1], rewards[1] - rewards[0]
    return tuple(
        Standing(
            name=way,
            reward=mean_of((chosen * sums["reward"]).sum(axis=1), possible=rewards, confidence=CONFIDENCE),
            quality=_mean((chosen * sums["quality"]).sum(axis=1)),
            cost=_mean((chosen * sums["cost"]).sum(axis=1)),
            shares=dict(zip(arrays.arms, map(float, chosen.mean(axis=0)), strict=True)),
            gain=None
            if chosen is shares
            else mean_of(ours - (chosen * sums["reward"]).sum(axis=1), possible=apart, confidence=CONFIDENCE),
        )
        for way, chosen in ways
    )


def _mean(values: Vector) -> EstimateWithInterval:
    return EstimateWithInterval(value=float(values.mean()))


def _replayed(
    log: MemoryLog, *, spec: CandidateSpec, candidate: CandidatePmf, folds: int, progress: Progress
) -> ReplayResult:
    fixed = [one for one in baselines(log.log.arms) if one.kind == "fixed"]
    pmfs = [candidate, *(CandidatePmf(described=one.name, pmf=array_pmf(one, log=log.log, named=str)) for one in fixed)]
    return judge(
        [MemoryPart(log=replace(log.log, candidates=tuple(one.pmf for one in pmfs)))],
        candidates=[spec, *fixed],
        candidate_pmfs=pmfs,
        plan=Plan(folds=folds),
        log=log.described,
        progress=progress,
    )


def _estimated(result: ReplayResult, *, arms: Sequence[ArmName]) -> tuple[Standing, ...]:
    ours, *fixed = result.candidates
    gain = {pair.second: pair.difference for pair in result.pairs if pair.first == ours.name}
    standings = [_standing(ours, name=ours.name, arms=arms)]
    standings += [
        _standing(one, name=f"always {one.name.removeprefix('fixed:')}", arms=arms, gain=gain.get(one.name))
        for one in fixed
    ]
    return tuple(standings)


def _standing(
    one: CandidateResult, *, name: str, arms: Sequence[ArmName], gain: EstimateWithInterval | None = None
) -> Standing:
    shares = {arm: one.shares[arm] for arm in arms}
    return Standing(name=name, reward=one.reward, quality=one.quality, cost=one.cost, shares=shares, gain=gain)
