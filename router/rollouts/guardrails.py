import hashlib
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from ragbandit.router.comparison import Difference
from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.rollouts.evidence import Array, Draws, LiveDifference, Outcomes, Predictions, note_rows

GuardrailName = Literal["failures", "latency", "cost"]
GUARDRAILS: Final[tuple[GuardrailName, ...]] = ("failures", "latency", "cost")
#: the limit of slow answers and the unit of cost are computed from this number of first outcomes
BURN_IN: Final = 100
#: share of the champion's answers that count as slow: those above its 95th percentile
_SLOW: Final = 0.05


@dataclass(kw_only=True, slots=True)
class Guardrail(LiveDifference):
    """The limit: candidate's mean - factor * champion's mean <= margin."""

    margin: float
    alpha: float
    _predictions: Predictions = field(default_factory=Predictions)

    def add(self, draws: Draws, value: Array) -> None:
        has_value = ~np.isnan(value)
        draws, value = draws.cut(has_value), value[has_value]
        guess = self._predictions.before(draws.arms, arm=draws.arm, value=value)
        self.take(self.columns(draws, value=value, guess=guess))

    @property
    def excess(self) -> Difference:
        return self.difference(low_alpha=self.alpha, high_alpha=self.alpha)

    @property
    def state(self) -> Literal["unknown", "passed", "kept", "unclear"]:
        """Whether the limit is proven to be kept, or to be passed; unknown without values."""
        excess = self.excess
        if not self.rows:
            return "unknown"
        if excess.low is not None and excess.low > self.margin:
            return "passed"
        return "kept" if excess.high is not None and excess.high <= self.margin else "unclear"


@dataclass(kw_only=True, slots=True)
class GuardrailEvidence:
    """The three guardrails, each with a third of `rollback_alpha` (Bonferroni)."""

    settings: RolloutSettings
    rows: int = 0
    slow_s: float | None = None  #: seconds above which an answer counts as slow; None during the burn-in
    #: cost that counts as 1; higher costs are clipped. None during the burn-in; 0 if all answers are free
    cost_unit: float | None = None
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    guardrails: dict[GuardrailName, Guardrail] = field(default_factory=dict)
    _spent: Guardrail = field(init=False)  #: costs without a factor
    _early: list[tuple[float, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.guardrails["failures"] = self._guardrail(margin=self.settings.guardrails.failures)
        self._spent = self._guardrail(margin=0.0)

    @property
    def cost(self) -> Difference:
        """Cost per question in the units of `reward.cost`, candidate minus champion."""
        alphas = {"low_alpha": self.settings.alpha, "high_alpha": self.settings.rollback_alpha}
        return self._spent.difference(**alphas, scale=self.cost_unit or 1.0)

    def add(self, outcomes: Outcomes) -> None:
        draws = outcomes.draws
        first = 0
        while first < len(draws):  # split at the end of the burn-in, so that results do not depend on the pages
            missing = BURN_IN - self.rows
            upto = min(len(draws), first + missing) if missing > 0 else len(draws)
            self._take(outcomes, slice(first, upto))
            first = upto
        note_rows(self.digest, draws.ids, outcomes.failed, outcomes.seconds, outcomes.cost)

    def _guardrail(self, *, margin: float, factor: float = 1.0) -> Guardrail:
        return Guardrail(factor=factor, margin=margin, alpha=self.settings.rollback_alpha / len(GUARDRAILS))

    def _take(self, outcomes: Outcomes, here: slice) -> None:
        draws = outcomes.draws.cut(here)
        failed, seconds, cost = outcomes.failed[here], outcomes.seconds[here], outcomes.cost[here]
        self.guardrails["failures"].add(draws, failed)
        if "latency" in self.guardrails and self.slow_s is not None:
            self.guardrails["latency"].add(draws, np.where(np.isnan(seconds), np.nan, seconds > self.slow_s))
        if "cost" in self.guardrails and self.cost_unit:
            for guardrail in (self.guardrails["cost"], self._spent):
                guardrail.add(draws, np.clip(cost / self.cost_unit, 0.0, 1.0))
        self.rows += len(draws)
        if self.rows <= BURN_IN:
            weight = draws.drawn(draws.champion) / draws.drawn(draws.pmf)
            self._early += list(zip(weight, seconds, cost, strict=True))
            if self.rows == BURN_IN:
                self._set_units()

    def _set_units(self) -> None:
        weight, seconds, cost = np.array(self._early).T
        self._early = []
        timed = ~np.isnan(seconds) & (seconds > 0.0)
        if timed.sum() >= BURN_IN / 2:
            slowest = _slowest(seconds[timed], weight=weight[timed])
            self.slow_s = (1.0 + self.settings.guardrails.latency) * slowest
            above = float((weight * (seconds > self.slow_s))[timed].sum() / max(weight[timed].sum(), 1e-12))
            self.guardrails["latency"] = self._guardrail(margin=max(_SLOW - above, 0.01))
        mean = float((weight * cost).sum() / max(weight.sum(), 1e-12))
        self.cost_unit = 2.0 * max(_slowest(cost, weight=weight), mean)
        if self.cost_unit > 0.0:
            self.guardrails["cost"] = self._guardrail(margin=0.0, factor=1.0 + self.settings.guardrails.cost)


def _slowest(values: Array, *, weight: Array) -> float:
    """The weighted quantile above which _SLOW of the values lie."""
    order = np.argsort(values)
    upto = np.cumsum(weight[order])
    return float(values[order][min(int(np.searchsorted(upto, (1.0 - _SLOW) * upto[-1])), len(values) - 1)])
