"""Comparisons of fixed arms on imported questions that have the outcomes of several arms: a warm start.

These are paired outcomes. They show which fixed arm is the best before live traffic does, and nothing about routing.
"""

from collections import Counter, defaultdict
from typing import Final

import numpy as np
from sqlalchemy import select

from ragbandit.router.comparison import Comparison
from ragbandit.router.comparison.intervals import PARTS, paired
from ragbandit.router.reporting.reading import ReportScope, reward_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.types import IMPORTED

#: largest number of rows that are read. A warm start is at the beginning of a ledger
MOST: Final = 20_000
_ROW: Final = (*decisions.c["text", "arm", "facts"], *updates.c["quality", "value", "cost", "preset"])


def imported_comparisons(database: Database, scope: ReportScope) -> tuple[Comparison, ...]:
    """Each arm against the best arm, the best of the others first; () if the ledger does not begin with a warm start.

    The period and the tenant of the scope do not matter. Raises StoreError.
    """
    query = select(*_ROW, updates.c.cost.label("charged")).join(updates, updates.c.decision_id == decisions.c.id)
    query = query.where(updates.c.policy == scope.label).order_by(updates.c.seq)
    outcomes: dict[str, dict[str, tuple[float, ...]]] = defaultdict(dict)
    with database.read() as connection:
        first = connection.execute(query.limit(1)).mappings().first()
        if first is None or f'"{IMPORTED}":' not in first["facts"]:
            return ()
        for row in connection.execute(query.limit(MOST)).mappings():
            if f'"{IMPORTED}":' in row["facts"] and row["text"] and row["quality"] is not None:
                reward = reward_of(row, setting=scope.reward)
                outcomes[row["text"]].setdefault(row["arm"], (reward, row["quality"], row["cost"]))
    answered = Counter(arm for arms in outcomes.values() for arm in arms)
    most = max(answered.values(), default=0)
    arms = sorted(arm for arm, count in answered.items() if 2 * count > most)
    complete = [answers for answers in outcomes.values() if all(arm in answers for arm in arms)]
    if len(arms) < 2 or 2 * len(complete) <= len(outcomes):  # else imported traffic, in which a question came again
        return ()
    values = {arm: np.array([answers[arm] for answers in complete], dtype=np.float64).T for arm in arms}
    best = max(arms, key=lambda arm: float(values[arm][0].mean()))
    span = 2.0 if scope.reward is None else scope.reward.maximum - scope.reward.minimum
    theirs = dict(zip(PARTS, values.pop(best), strict=True))
    comparisons = [
        paired(f"always {arm}", f"always {best}", ours=dict(zip(PARTS, ours, strict=True)), theirs=theirs, span=span)
        for arm, ours in values.items()
    ]
    return tuple(sorted(comparisons, key=lambda one: -(one.reward.first or 0.0)))
