"""Events of webhooks, read from what the store has anyway: the audit log, spent dollars, the state of learning.

Nothing that decides, learns or judges knows of webhooks. Each event has a key that follows from what happened, so that
processes that notice the same thing, and one that was started again, make the same rows.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Row, func, or_, select

from ragbandit.router.api.limiting.budgets import bounds
from ragbandit.router.cli.doctor.budgets import budget_states, state_in_words
from ragbandit.router.config.settings import Settings
from ragbandit.router.config.webhooks import EventKind
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.monitoring.sample_ratio import lately
from ragbandit.router.learning.status import status
from ragbandit.router.storage.access.spending import day_of
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import versions_of
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import audit_log
from ragbandit.router.storage.webhook_deliveries import Delivery, WebhookDeliveries, delivery_id
from ragbandit.router.telemetry.throttle import Throttle
from ragbandit.shared.types import Json, PolicyLabel

log = logging.getLogger("ragbandit.webhooks")

#: how often it is looked for events, seconds
LOOK_S: Final = 10.0
#: a process that starts looks so far back in the audit log, seconds
BACK_S: Final = 86_400.0
#: entries of the audit log that one look reads
_MOST: Final = 1000
#: shares of a budget that are told of
SHARES: Final = (0.8, 1.0)
#: facts of a verdict that its event has
_EVIDENCE: Final = ("n", "n_eff", "difference", "low", "high", "forced")
_QUIET_S: Final = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened."""

    kind: EventKind
    #: the same for everybody who notices it
    key: str
    #: seconds since the epoch
    at: float
    #: facts, with `sentence`, and `remedy` or `link`
    data: Mapping[str, Json]


def event_body(kind: str, *, at: float, data: Mapping[str, Json]) -> str:
    """An event as it is sent. at: seconds since the epoch."""
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return canonical({"type": kind, "timestamp": moment, "data": dict(data)})


class EventWatch:
    """Looks for events and stores a delivery of each for every webhook that wants it. Not for several threads."""

    def __init__(self, database: Database, *, settings: Settings) -> None:
        self.database, self.settings = database, settings
        self.deliveries = WebhookDeliveries(database)
        self.base = PolicyLabel(settings.policy.label)
        self._ledger = Ledger(database, label=self.base)
        self._wanted = {kind for webhook in settings.webhooks.values() for kind in webhook.events}
        self._throttle = Throttle(_QUIET_S)
        #: last entry of the audit log that was looked at; None: none yet
        self._read: int | None = None

    def look(self, *, now: float) -> int:
        """Store what is new; how many deliveries. Raises StoreError."""
        rows = self._entries(now=now)
        events = [*self._of_audit(rows), *self._of_budgets(now=now), *self._of_learning(now=now)]
        added, refused = self.deliveries.add(
            [
                Delivery(
                    id=delivery_id(event.kind, key=event.key, webhook=name),
                    webhook=name,
                    event=event.kind,
                    body=event_body(event.kind, at=event.at, data=event.data),
                    made_at=now,
                    due_at=now,
                )
                for event in events
                for name, webhook in self.settings.webhooks.items()
                if event.kind in webhook.events
            ],
            now=now,
        )
        if rows:
            self._read = rows[-1].number
        if refused and self._throttle.lets_pass():
            facts = {"action": "webhook", "refused": refused}
            log.error("too many deliveries of a webhook wait: new events are not sent to it", extra=facts)
        return added

    def _entries(self, *, now: float) -> Sequence[Row[Any]]:
        """New entries of the audit log that may be events, in order."""
        columns = audit_log.c
        with self.database.read() as connection:
            if self._read is None:
                old = select(func.max(columns.number)).where(columns.made_at < now - BACK_S)
                self._read = connection.execute(old).scalar() or 0
            ours = or_(columns.action.startswith("policy."), columns.action == "ledger.restart")
            query = select(audit_log).where(columns.number > self._read, ours).order_by(columns.number)
            return connection.execute(query.limit(_MOST)).all()

    def _of_audit(self, rows: Sequence[Row[Any]]) -> Iterator[Event]:
        if not rows:
            return
        with self.database.read() as connection:
            names = {one.name for one in versions_of(connection, base=self.base)} | {self.base}
        for row in rows:
            facts, (what, _, name) = json.loads(row.facts), row.target.partition(":")
            if what == "ledger" and (name == self.base or name.startswith(f"{self.base}.")):
                yield self._restart(row, facts, label=name)
            elif what == "policy" and name in names and row.action != "policy.add":
                yield self._verdict(row, facts, name=name)

    def _verdict(self, row: Row[Any], facts: Mapping[str, Any], *, name: str) -> Event:
        verb, reason = row.action.removeprefix("policy."), facts["reason"]
        data: dict[str, Json] = {"policy": self.base, "verb": verb, "actor": row.actor, "reason": reason}
        if verb in ("kill", "unkill"):
            who = f"the arm {facts['arm']} answers every question" if facts["arm"] else "the champion alone decides"
            what = who if verb == "kill" else "the kill switch is off: versions decide again"
            data |= {"killed": facts["killed"], "arm": facts["arm"]}
        else:
            (state, weight), (former, _) = facts["to"], facts["from"]
            share = f" at {weight:.0%} of the questions" if state == "canary" else ""
            what = f"the version {name} was {former} and is {state.replace('_', ' ')}{share}"
            data |= {"version": name, "state": state, "weight": weight, "former_state": former}
            data |= {fact: facts[fact] for fact in _EVIDENCE if fact in facts}
        data |= {"sentence": f"{what} ({row.actor}: {reason})", "remedy": f"see: ragbandit policy show {name}"}
        return self._event("verdict", str(row.number), data, at=row.made_at, page=f"/policies/{quote(name)}")

    def _restart(self, row: Row[Any], facts: Mapping[str, Any], *, label: str) -> Event:
        arms = ", ".join(facts["arms"])
        data = {
            **facts,
            "policy": label,
            "sentence": f"what answers as {arms} has changed: what the ledger {label} learned of it counts for little",
            "remedy": "nothing to do where the change was meant; else look at what changed behind the arm",
        }
        return self._event("drift", str(row.number), data, at=row.made_at, page="/arms")

    def _of_budgets(self, *, now: float) -> Iterator[Event]:
        if "budget" not in self._wanted:
            return
        for budget, sums in budget_states(self.database, settings=self.settings, now=now):
            spent, (begin, end) = budget.spent_of(sums), bounds(budget.period, now=now)
            share = max((one for one in SHARES if spent >= one * budget.dollars), default=None)
            if share is None:
                continue
            spender = budget.spender
            data: dict[str, Json] = {
                spender.kind: spender.name,
                "period": budget.period,
                "ends_at": datetime.fromtimestamp(end, UTC).isoformat(),
                "dollars": budget.dollars,
                "spent": spent,
                "share": share,
                "sentence": state_in_words(budget, sums, now=now),
                "remedy": f"wait, raise {budget.setting}, or see what it spends: ragbandit top",
            }
            key = f"{spender.kind}:{spender.name}:{budget.period}:{begin:.0f}:{budget.dollars!r}:{share}"
            yield self._event("budget", key, data, at=now, page="")

    def _of_learning(self, *, now: float) -> Iterator[Event]:
        """States that are told of once a day (UTC) while they last."""
        if not self._wanted & {"alarm", "drift"}:
            return
        state = status(self._ledger, serving=None, rule=closing_rule(self.settings.learning), now=now).learning
        day = day_of(now)
        if state is not None and state.state in ("stuck", "starved", "drifting"):
            arms: list[Json] = [arm for arm, one in state.arms.items() if one.state == state.state]
            data: dict[str, Json] = {"policy": self.base, "state": state.state, "arms": arms}
            data |= {"sentence": state.sentence, "remedy": state.remedy}
            kind: EventKind = "drift" if state.state == "drifting" else "alarm"
            yield self._event(kind, f"{self.base}:{state.state}:{arms}:{day}", data, at=now, page="/arms")
        uneven = lately(self.database, policy=self.base, now=now)
        if uneven is not None:
            data = {"policy": self.base, "state": "sample ratio", "stage": uneven.stage}
            data |= {"more": uneven.more, "less": uneven.less, "sentence": uneven.sentence}
            data |= {"remedy": "docs/learning.md says what can be corrected, and what cannot"}
            key = f"{self.base}:{uneven.stage}:{uneven.more}:{uneven.less}:{day}"
            yield self._event("alarm", key, data, at=now, page="")

    def _event(self, kind: EventKind, key: str, data: Mapping[str, Json], *, at: float, page: str) -> Event:
        root = self.settings.server.public_url
        link: dict[str, Json] = {} if root is None else {"link": f"{root}/ui{page}"}
        return Event(kind=kind, key=key, at=at, data={**data, **link})
