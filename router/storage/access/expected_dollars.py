"""What an answer of an arm is expected to cost, in dollars: for limits, for the order of a failover, for reservations.

`of` is the mean of the arm's newest answers with a price. All tenants' answers of its present model count. Answers to
requests that name the arm count only if there are no others: large requests of one caller would make it expensive for
all. If callers run the arm, only answers that the same tenant reported count, since callers report what they like. An
arm without such answers has its listed price. Failed answers do not count. Each turn counts by its own
cost. An arm whose newest outcomes are all failures is last in the order, also without the breaker.
"""

import math
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final

from ragbandit.router.storage.rows.outcome_rows import NOT_COUNTED, own_cost
from ragbandit.router.storage.sql.bulk_insert import run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.shared.dialects.registry import token_limits
from ragbandit.shared.model_servers.call_prices import named_tier
from ragbandit.shared.model_servers.token_usage import USUAL_CALL, Tokens
from ragbandit.shared.texts.token_estimates import estimated_tokens
from ragbandit.shared.types import Cost, Decision

_NEWEST: Final = (
    "SELECT d.arm AS arm, d.tenant AS tenant, d.run_by AS run_by, d.arm_by AS arm_by, o.status AS status, "
    "o.cost AS cost, o.steps AS steps, o.stop_reason AS stop_reason, o.made_by AS made_by "
    "FROM outcomes o JOIN decisions d ON d.id = o.decision_id "
    "WHERE o.status IN ('answered', 'failed') ORDER BY o.made_at DESC LIMIT ?"
)
#: number of newest answers that are read, seconds until they are read again, and largest number of means in memory
_READ: Final = 500
_FRESH_S: Final = 1.0
_KEPT: Final = 10_000
#: an arm comes last in the order if this number of its newest outcomes are failures
_FAILURES: Final = 5
#: (arm, the tenant of the answers; None for all tenants, True for answers to requests that name the arm)
_Key = tuple[str, str | bool | None]


class ExpectedDollars:
    def __init__(
        self,
        *,
        prices: Mapping[str, Sequence[Any]] = MappingProxyType({}),
        models: Mapping[str, str] = MappingProxyType({}),
        unpriced: Collection[str] = (),
        assumed: Sequence[Any] = (),
        searching: Collection[str] = (),
        tiers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """prices: arm -> listed dollars per million tokens. models: arm -> name of its present model. unpriced: arms
        that ask a server without a listed price. assumed: prices for these arms; () for none. searching: arms whose
        prompts have more than the question. tiers: arm -> tier of service for which its generator always asks
        """
        self._prices, self._models, self._assumed, self._tiers = prices, models, assumed, tiers
        self.unpriced, self._searching = frozenset(unpriced), frozenset(searching)
        self._read_at = -math.inf
        self.assuming = set[str]()  #: arms with calls without a price among their newest answers
        #: (mean dollars, None if no answer has a price; mean steps)
        self._means: dict[_Key, tuple[float | None, float]] = {}
        self._failing = set[_Key]()

    def of(self, arm: str, *, tenant: str) -> float | None:
        """Expected dollars of an answer; None if the price is unknown."""
        mean = self._mean(arm, tenant=tenant)
        price = self._prices.get(arm)
        if mean is not None and mean[0] is not None and (mean[0] > 0.0 or price is not None):
            return mean[0]
        return None if price is None else USUAL_CALL.dollars(price, tier=self._tiers.get(arm, ""), end=time.time())

    def estimate(self, decision: Decision) -> float:
        """Estimated dollars of one call of the arm's model by a worker, which limits count until the outcome is stored.

        The call has the estimated tokens of the prompt (for arms that search, the tokens of USUAL_CALL), and as many
        tokens of an answer as the request allows, but at most USUAL_CALL's. The price is the row of the price list that
        applies now. An arm without a listed or known price is estimated at the assumed prices. 0.0 without a price.
        """
        arm, query = decision.arm, decision.query
        price = self._prices.get(arm)
        if arm in self.unpriced and self.of(arm, tenant=query.tenant) is None:
            price = self._assumed
        if not price or decision.run_by != "worker":
            return 0.0
        sent = query.sent.tokens
        read = estimated_tokens(query.text) + 1 if sent is None else sent
        if arm in self._searching:
            read = max(read, USUAL_CALL.read)
        written = min([USUAL_CALL.written, *token_limits(query.conversation).values()])
        asked = {} if arm in self._searching else query.conversation.fields
        tier = self._tiers.get(arm) or named_tier(asked)
        return Tokens(read=read, written=written).dollars(price, tier=tier, end=decision.made_at)

    def rank(self, arm: str, *, tenant: str) -> tuple[bool, bool, float, float]:
        """A key that sorts arms by dollars, then by steps; arms of unknown price follow, and failing arms are last."""
        dollars, mean = self.of(arm, tenant=tenant), self._mean(arm, tenant=tenant)
        is_failing = not self._failing.isdisjoint({(arm, None), (arm, tenant)})
        return is_failing, dollars is None, dollars or 0.0, 0.0 if mean is None else mean[1]

    def _mean(self, arm: str, *, tenant: str) -> tuple[float | None, float] | None:
        return self._means.get((arm, None)) or self._means.get((arm, tenant)) or self._means.get((arm, True))

    def refresh(self, connection: Connection) -> None:
        """Read the newest answers, unless they were read a moment ago. Raises StoreError."""
        if time.monotonic() - self._read_at < _FRESH_S:
            return
        values: dict[_Key, list[tuple[Cost, float]]] = {}
        are_failures = defaultdict[_Key, list[bool]](list)
        for row in run_statement(connection, _NEWEST, _READ):
            arm, is_ours = row["arm"], row["run_by"] == "worker"
            model = self._models.get(arm)
            if row["stop_reason"] in NOT_COUNTED:
                continue  # the failure is no fault of the arm
            if is_ours and model is not None and object_or_empty(row["made_by"]).get("generator") != model:
                continue  # another model had another price
            key = arm, None if is_ours else row["tenant"]
            are_failures[key].append(row["status"] == "failed")
            if row["status"] == "answered":
                key = (arm, True) if is_ours and row["arm_by"] == "caller" else key
                values.setdefault(key, []).append((own_cost(row["cost"]), row["steps"]))
        self._failing = {key for key, of_key in are_failures.items() if sum(of_key[:_FAILURES]) == _FAILURES}
        if len(self._means) > _KEPT:
            self._means = {}
        for key, of_key in values.items():
            priced = [cost.charged_dollars for cost, _ in of_key if cost.dollars > 0.0 or not cost.llm_calls]
            self._means[key] = fmean(priced) if priced else None, fmean(steps for _, steps in of_key)
        self.assuming = {arm for (arm, _), of_key in values.items() if any(cost.assumed_dollars for cost, _ in of_key)}
        self._read_at = time.monotonic()
