"""Facts of decisions as JSON of stored rows, and everything that readers of these facts read."""

import dataclasses
import json
from collections import Counter
from typing import Any, Final

from sqlalchemy import select

from ragbandit.router.reporting.deciders import newest_deciders
from ragbandit.router.reporting.reading import ReportScope, count_imported, read_log
from ragbandit.router.reporting.unrated_answers import unrated_answers
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.decisions.chains import followers
from ragbandit.router.storage.decisions.tasks import newest_decision
from ragbandit.router.storage.ledgers.ledger import lean_updates
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.rows.queried_facts import QueriedFacts
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import QUERIED_FACTS, UNFILLED_ARM_BY, decisions
from ragbandit.router.storage.totals import uncounted_hours

#: columns of a row that a release with schema 1006 has inserted
UNFILLED: Final = {"arm_by": UNFILLED_ARM_BY}
#: columns of a row that a release before schema 1006 has inserted
EMPTY: Final = dict.fromkeys(QUERIED_FACTS) | UNFILLED
_TASK: Final = {"unit": "u", "turn": 1, "until": 9.0}
#: facts and request of rows, each as a writer of it stores them, then damaged ones and those of other types
STORED: Final[list[tuple[dict[str, Any], dict[str, Any]]]] = [
    ({}, {}),
    ({"imported": "elsewhere"}, {}),
    ({"sticky": {"first": "d0", "turn": 2, "turns": 2}}, {}),
    ({"killed": {"arm": "a", "revision": 1}}, {"forced": True}),
    ({}, {"forced": True}),
    ({}, {"edge": {"named_id": True}}),
    ({"incumbent": {"arm": "a", "share": 1.0}}, {"edge": {"budget_factor": 8}}),
    ({"task": _TASK}, {}),
    ({"task": _TASK}, {"edge": {"agent": "helper"}}),
    ({"task": {**_TASK, "moved": "a budget"}}, {}),
    ({"moved": "the kill switch pinned another arm"}, {}),
    ({}, {"edge": {"failover": {"first": "d0", "failed": "d0"}}}),
    ({}, {"edge": {"failover": False}}),
    ({}, {"edge": {"tool_turn": {"first": "d1", "previous": "d1", "turn": 2}}}),
    ({}, {"edge": {"previous_response_id": "d0", "quoted": ["d2", 7, None, "d\0"]}}),
    ({}, {"edge": {"quoted": "d0", "previous_response_id": 5, "tool_turn": [], "budget_factor": "8"}}),
    ({"task": {**_TASK, "until": "soon"}}, {"edge": ["agent"], "forced": "yes"}),
    ({"task": {**_TASK, "until": 10**400}}, {"edge": {"budget_factor": 10**400, "named_id": "true"}}),
    ({}, {"edge": {"turn_limits": [{"of": "session", "unit": "turns", "most": 6, "used": 6}]}}),
]


def row_of_former_release(number: int) -> dict[str, Any]:
    """Columns of `decisions` with the STORED of this number, as a release before schema 1006 inserts them."""
    facts, request = STORED[number]
    return {"facts": canonical(facts), "request": json.dumps(request), "session": "s", **EMPTY}


def readings(router: Router, *, until: float) -> dict[str, Any]:
    """What every reader of such facts reads of the decisions before `until`."""
    settings, database = router.settings, router.database
    scope = ReportScope(label=settings.policy.label, since=0.0, until=until, reward=settings.reward)
    with database.read() as connection:
        selected = decisions.c.id == "d0"
        of_store = {
            "totals": uncounted_hours(connection, policy=settings.policy.label, weight=0.05, limit=10_000),
            "followers": [followers(connection, selected, chains=chains) for chains in (False, True)],
            "newest": newest_decision(connection, session="s", tenant="default"),
            "imported": count_imported(connection, scope.condition),
            "deciders": Counter(newest_deciders(connection, scope.condition)),
            "unrated": {arm: sorted(unrated_answers(connection, scope, arm=arm)) for arm in settings.arms},
        }
    log = read_log(database, scope)
    of_rows = zip(log.made_at.tolist(), log.arm.tolist(), log.pmf.tolist(), strict=True)
    verdict = router.verify(deep=True)
    return of_store | {
        "report": (sorted(of_rows), log.left_out, Counter(log.deciders)),
        "ledger": [(one.seq, one.imported) for one in lean_updates(router.ledger, after=0)],
        "verify": dataclasses.replace(verdict, notes=[]),
    }


def assert_filled(database: Database) -> None:
    """Every row has the facts of its JSON as columns."""
    with database.read() as connection:
        for row in connection.execute(select(decisions)).mappings():
            facts = QueriedFacts.of_unfilled(dict(row) | EMPTY)
            assert {name: row[name] for name in QUERIED_FACTS} == facts._asdict(), row["id"]
