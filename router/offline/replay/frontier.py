"""Frontier of a log: quality against cost of the configured policy at each weight of cost, and of each arm alone.

The policy learns once, each fold of the questions from the others, and is asked at every weight: it keeps quality and
cost apart. Values and intervals are those of `replay` (doubly robust).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.price import LEAST_LABELS, Price, means_of, price_of
from ragbandit.router.offline.replay.candidates import CandidatePmf, CandidatePolicy, row_pmf
from ragbandit.router.offline.replay.engine import judge
from ragbandit.router.offline.replay.opening import MemoryLog, OpenLog
from ragbandit.router.offline.replay.parts import MemoryPart
from ragbandit.router.offline.replay.plan import CandidateSpec, Plan, parse_candidates
from ragbandit.router.offline.replay.prepare import MakeEncoder, Preparation
from ragbandit.router.offline.replay.results import EstimateWithInterval
from ragbandit.router.offline.replay.service import served_policy, settings_in_force
from ragbandit.router.offline.types import Matrix, Progress, no_progress
from ragbandit.router.policies.base import serves_prices
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.errors import InvalidInput

#: weights tried beside the named ones, as multiples of the proposed one
_TRIED = (0.0, *(10.0**exponent for exponent in (-1.5, -1.0, -0.5, 0.5, 1.0, 1.5)))


@dataclass(frozen=True, kw_only=True, slots=True)
class PricePoint:
    """Mean quality, and mean cost in units of `reward.cost`, of a policy at a weight, or of one arm."""

    #: of the prices at this weight, or of the arm; empty: one that was tried
    name: str
    #: None: always this arm
    weight: float | None
    quality: EstimateWithInterval
    cost: EstimateWithInterval
    #: rows of the log that say as much
    effective: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceFrontier:
    """What the log says of prices."""

    log: str
    rows: int
    policy: str
    #: the weights in order, then the arms
    points: tuple[PricePoint, ...]
    #: reward.weight against the arms' means; None where fewer than two arms have LEAST_LABELS labels
    price: Price | None
    notes: tuple[str, ...]


def price_frontier(
    log: OpenLog | MemoryLog,
    *,
    settings: Settings,
    encoder: MakeEncoder | None = None,
    folds: int = 5,
    progress: Progress = no_progress,
) -> PriceFrontier:
    """The frontier of the rows whose quality and cost are known apart. Raises InvalidInput, and as `replay` does."""
    memory = log.read(progress) if isinstance(log, OpenLog) else log
    plan, name = Plan(folds=folds), settings.policy.name
    spec = CandidateSpec(name=name, kind="policy", what=name, params=settings.policy.params)
    in_force = settings_in_force(settings, arms=memory.log.arms, floor=None)
    if not serves_prices(served_policy(spec, settings=in_force)):
        raise InvalidInput(f"{name} has one weight of cost", field="policy.name", remedy="set it to mba, for example")
    memory = _with_parts(memory)
    make = encoder or partial(make_encoder, settings.encoder)
    memory = Preparation(plan=plan, settings=in_force, encoder=make, progress=progress).with_features(
        memory, needed=True
    )
    answers = [
        (r.decision.arm, r.reward.quality, r.reward.cost, r.reward.sample_weight, r.decision.propensity)
        for r in memory.rows
    ]
    known = [one for one in means_of(answers) if one.labels >= LEAST_LABELS]
    price = price_of(known, weight=settings.reward.weight) if len(known) > 1 else None
    weights = _weights(settings, price)
    pmfs = _asked(spec, weights=list(weights), log=memory, plan=plan, settings=in_force, progress=progress)
    specs = parse_candidates(
        [*(f"column:{weight!r}" for weight in weights), *(f"fixed:{arm}" for arm in memory.log.arms)]
    )
    candidates = [
        *(CandidatePmf(described="", pmf=pmf) for pmf in pmfs),
        *(row_pmf(one, log=memory) for one in specs if one.kind == "fixed"),
    ]
    part = MemoryPart(log=replace(memory.log, candidates=tuple(one.pmf for one in candidates)))
    result = judge(
        [part], candidates=specs, candidate_pmfs=candidates, plan=plan, log=memory.described, progress=progress
    )
    named = [*weights.items(), *((None, f"always {arm}") for arm in memory.log.arms)]
    points = tuple(
        PricePoint(name=name, weight=weight, quality=one.quality, cost=one.cost, effective=one.weights.effective_rows)
        for (weight, name), one in zip(named, result.candidates, strict=True)
    )
    notes = (*result.faults, *result.notes)
    return PriceFrontier(log=memory.described, rows=result.rows, policy=name, points=points, price=price, notes=notes)


def _with_parts(log: MemoryLog) -> MemoryLog:
    apart = [row.reward.has_parts for row in log.rows]
    if not any(apart):
        raise InvalidInput(
            "no reward has its quality and its cost apart", field="log", remedy="log ratings or labels, with outcomes"
        )
    rows = [row for row, there in zip(log.rows, apart, strict=True) if there]
    return replace(log, rows=rows, log=log.log.part(np.array(apart)))


def _weights(settings: Settings, price: Price | None) -> dict[float, str]:
    """Weight -> the names of the prices that it is, in order."""
    proposed = 0.0 if price is None or price.proposed is None else price.proposed
    named: list[tuple[float, str]] = [(weight, name) for name, weight in settings.prices.items()]
    named.append((settings.reward.weight, "reward.weight"))
    if proposed > 0.0:
        named.append((proposed, "proposed"))
    unit = proposed if proposed > 0.0 else settings.reward.weight or 1.0
    weights: dict[float, str] = {}
    for weight, name in sorted([*named, *((unit * times, "") for times in _TRIED)]):
        weights[weight] = ", ".join(filter(None, (weights.get(weight, ""), name)))
    return weights


def _asked(
    spec: CandidateSpec,
    *,
    weights: Sequence[float],
    log: MemoryLog,
    plan: Plan,
    settings: Settings,
    progress: Progress,
) -> list[Matrix]:
    """The policy's probabilities at each weight, (n, K) each: every fold by one that learned the others."""
    folds = plan.folds_of_whole(log.log)
    pmfs = [np.zeros(log.log.pmf.shape) for _ in weights]
    for fold in range(plan.folds):
        make = partial(CandidatePolicy, served_policy(spec, settings=settings), features=log.log.features)
        learner = make(log=log, settings=settings, weight=None)
        for index in np.flatnonzero(folds != fold):
            learner.learn(int(index))
        rows = np.flatnonzero(folds == fold)
        for number, weight in enumerate(weights):
            priced = [replace(row, decision=replace(row.decision, cost_weight=weight)) for row in log.rows]
            pmfs[number][rows] = make(log=replace(log, rows=priced), settings=settings, weight=None).ask(rows)
            progress("weights tried", fold * len(weights) + number + 1, plan.folds * len(weights))
    return pmfs
