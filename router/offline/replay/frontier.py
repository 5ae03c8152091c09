"""Frontier of a log: quality against cost of the configured policy at each weight of cost, and of each arm alone.

The policy learns once, each fold of the questions from the others, and is asked at every weight: it keeps quality and
cost apart. Values and intervals are those of `replay` (doubly robust).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.price import LEAST_LABELS, Price, means_of, price_of
from ragbandit.router.offline.replay.candidates import CandidatePmf, CandidatePolicy, row_pmf
from ragbandit.router.offline.replay.engine import judge
from ragbandit.router.offline.replay.opening import MemoryLog, OpenLog
from ragbandit.router.offline.replay.parts import MemoryPart
from ragbandit.router.offline.replay.plan import CandidateSpec, Plan, ReplayResult
from ragbandit.router.offline.replay.prepare import MakeEncoder, Preparation
from ragbandit.router.offline.replay.service import served_policy, settings_in_force
from ragbandit.router.offline.types import Matrix, Progress, no_progress
from ragbandit.router.policies.base import serves_prices
from ragbandit.router.serving.setup.bootstrap import encoder_of
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import number

#: weights tried beside the named ones, as multiples of the proposed one
_TRIED = (0.0, *(10.0**exponent for exponent in (-1.5, -1.0, -0.5, 0.5, 1.0, 1.5)))


def price_frontier(
    log: OpenLog | MemoryLog,
    *,
    settings: Settings,
    encoder: MakeEncoder | None = None,
    folds: int = 5,
    progress: Progress = no_progress,
) -> tuple[ReplayResult, Price | None]:
    """Candidates "WEIGHT names of prices", the lowest first, then "always ARM", on the rows whose quality and cost are
    known apart; and what the arms' means say of reward.weight, None where fewer than two arms have LEAST_LABELS labels.

    Raises InvalidInput, and as `replay` does.
    """
    memory = log.read(progress) if isinstance(log, OpenLog) else log
    plan, policy = Plan(folds=folds), settings.policy
    spec = CandidateSpec(name=policy.name, kind="policy", what=policy.name, params=policy.params)
    settings = settings_in_force(settings, arms=memory.log.arms, floor=None)
    if not serves_prices(served_policy(spec, settings=settings)):
        message = f"{policy.name} has one weight of cost for all questions"
        raise InvalidInput(message, field="policy.name", remedy="set it to one that keeps quality and cost apart: mba")
    make = encoder or partial(encoder_of, settings)
    preparation = Preparation(plan=plan, settings=settings, encoder=make, progress=progress)
    memory = preparation.with_features(_with_parts(memory), needed=True)
    rewards = ((row.decision, row.reward) for row in memory.rows)
    means = means_of((one.arm, r.quality, r.cost, r.sample_weight, one.propensity) for one, r in rewards)
    known = [one for one in means if one.labels >= LEAST_LABELS]
    price = price_of(known, weight=settings.reward.weight) if len(known) > 1 else None
    pmfs = _asked(spec, _weights(settings, price), log=memory, plan=plan, settings=settings, progress=progress)
    specs = [CandidateSpec(name=name, kind="column", what=name) for name in pmfs]
    arms = [CandidateSpec(name=f"always {arm}", kind="fixed", what=arm) for arm in memory.log.arms]
    candidates = [
        *(CandidatePmf(described=name, pmf=pmf) for name, pmf in pmfs.items()),
        *(row_pmf(one, log=memory) for one in arms),
    ]
    part = MemoryPart(log=replace(memory.log, candidates=tuple(one.pmf for one in candidates)))
    specs += arms
    judging = partial(judge, [part], candidates=specs, candidate_pmfs=candidates, plan=plan, progress=progress)
    return judging(log=memory.described), price


def _with_parts(log: MemoryLog) -> MemoryLog:
    apart = np.array([row.reward.has_parts for row in log.rows])
    if not apart.any():
        remedy = "log ratings or labels, with outcomes"
        raise InvalidInput("no reward has its quality and its cost apart", field="log", remedy=remedy)
    return replace(log, rows=[log.rows[int(row)] for row in np.flatnonzero(apart)], log=log.log.part(apart))


def _weights(settings: Settings, price: Price | None) -> Mapping[float, str]:
    """Weight -> it and the names of the prices that it is, in order."""
    named = [*((weight, name) for name, weight in settings.prices.items()), (settings.reward.weight, "reward.weight")]
    unit = settings.reward.weight or 1.0
    if price is not None and price.proposed is not None and price.proposed > 0.0:
        unit = price.proposed
        named.append((unit, "proposed"))
    weights: dict[float, str] = {}
    for weight, name in sorted([*named, *((unit * times, "") for times in _TRIED)]):
        weights[weight] = f"{weights.get(weight, number(weight))} {name}".strip()
    return weights


def _asked(
    spec: CandidateSpec,
    weights: Mapping[float, str],
    *,
    log: MemoryLog,
    plan: Plan,
    settings: Settings,
    progress: Progress,
) -> Mapping[str, Matrix]:
    """The policy's probabilities at each weight, (n, K) each: every fold by one that learned the others."""
    folds = plan.folds_of_whole(log.log)
    pmfs = {name: np.zeros(log.log.pmf.shape) for name in weights.values()}
    for fold in range(plan.folds):
        policy = served_policy(spec, settings=settings)
        make = partial(CandidatePolicy, policy, features=log.log.features, settings=settings, weight=None)
        _learn(make(log=log), np.flatnonzero(folds != fold).tolist())
        rows = np.flatnonzero(folds == fold)
        for done, (weight, name) in enumerate(weights.items()):
            priced = [replace(row, decision=replace(row.decision, cost_weight=weight)) for row in log.rows]
            pmfs[name][rows] = make(log=replace(log, rows=priced)).ask(rows)
            progress("weights tried", fold * len(weights) + done + 1, plan.folds * len(weights))
    return pmfs


def _learn(candidate: CandidatePolicy, rows: Iterable[int]) -> None:
    for row in rows:
        candidate.learn(row)
