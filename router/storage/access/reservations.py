"""Reservations: a running answer's estimated cost counts in budgets until its outcome is stored.

The estimate is a column of the answer's row in `jobs`, which is inserted with the decision and deleted with the
outcome. So every gateway sees it, and none is left after a crash. If the process that runs an answer dies, its estimate
is charged, since the model may have been asked.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ragbandit.router.storage.access.spending import Spender, Spent, lock, spent
from ragbandit.router.storage.sql.bulk_insert import run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import Decision, DecisionId, SpendLimit

_RECENT: Final = (
    "SELECT d.arm AS arm, o.cost AS cost FROM outcomes o JOIN decisions d ON d.id = o.decision_id"
    " ORDER BY o.made_at DESC LIMIT 200"
)
_STORED: Final = "SELECT id FROM decisions WHERE id IN ?"
#: seconds for which the mean costs of arms are used again
_FRESH_S: Final = 1.0


class Reservations:
    """Refuses new decisions of spenders whose budget is spent."""

    def __init__(self) -> None:
        self._means: Mapping[str, float] = {}
        self._read_at = -_FRESH_S

    def admit(
        self, connection: Connection, group: Sequence[Decision], *, estimates: dict[DecisionId, float]
    ) -> dict[DecisionId, RagBanditError]:
        """Returns id -> error for the new decisions of the group that a spent budget refuses. In a write transaction.

        A decision is admitted while spending and reservations are below its budgets; each admitted one counts at once.
        So in all, a budget is passed by at most one estimate, and by what answers cost above their estimates.
        estimates: raised to the mean cost of the arm's newest answers if that is larger
        """
        limited = [decision for decision in group if decision.query.limits and decision.run_by == "worker"]
        if not limited:
            return {}
        spenders = {Spender(limit.kind, limit.name) for decision in limited for limit in decision.query.limits}
        lock(connection, spenders)
        known = {row["id"] for row in run_statement(connection, _STORED, sorted({decision.id for decision in limited}))}
        means = self._mean_costs(connection)
        sums = spent(connection, sorted(spenders, key=repr), now=limited[0].made_at)
        refused = dict[DecisionId, RagBanditError]()
        admitted = dict.fromkeys(spenders, 0.0)
        for decision in limited:
            if decision.id in known:  # a repeated request gets its stored decision, also if both come at once
                continue
            over = _spent_limit(decision.query.limits, sums=sums, admitted=admitted)
            if over is not None:
                refused[decision.id] = over.refusal
                continue
            known.add(decision.id)
            amount = estimates[decision.id] = max(estimates.get(decision.id, 0.0), means.get(decision.arm, 0.0))
            for spender in {Spender(limit.kind, limit.name) for limit in decision.query.limits}:
                admitted[spender] += amount
        return refused

    def _mean_costs(self, connection: Connection) -> Mapping[str, float]:
        """Arm -> mean dollars of its answers among the newest outcomes."""
        if time.monotonic() - self._read_at >= _FRESH_S:
            costs: dict[str, list[float]] = {}
            for row in run_statement(connection, _RECENT):
                dollars = object_or_empty(row["cost"]).get("dollars", 0.0)
                costs.setdefault(row["arm"], []).append(float(dollars))
            self._means = {arm: sum(of_arm) / len(of_arm) for arm, of_arm in costs.items()}
            self._read_at = time.monotonic()
        return self._means


def _spent_limit(
    limits: Iterable[SpendLimit], *, sums: Mapping[Spender, Spent], admitted: Mapping[Spender, float]
) -> SpendLimit | None:
    for limit in limits:
        spender = Spender(limit.kind, limit.name)
        if sums[spender].of(limit.period) + admitted[spender] >= limit.dollars:
            return limit
    return None
