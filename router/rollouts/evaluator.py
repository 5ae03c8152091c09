import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from sqlalchemy import Connection, RowMapping, func, select, tuple_

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.arm_changes import lately
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.rollouts.evidence import Array, Draws, Judged
from ragbandit.router.rollouts.verbs import MAX_REASON, Act, perform_within
from ragbandit.router.rollouts.verdicts import Evidence, VerdictFinding, decide, facts_of
from ragbandit.router.storage import policy_versions as store
from ragbandit.router.storage.jobs.scores import CHOSEN_FOR_USE
from ragbandit.router.storage.rows.conversion import object_or_empty, scores_value
from ragbandit.router.storage.rows.outcome_rows import cost_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease, lease_holder
from ragbandit.router.storage.sql.tables import decisions, outcomes, updates
from ragbandit.shared.confidence_sequences import FEWEST_BOTH
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import (
    CANCELLED,
    LIVE_STATES,
    CandidateNote,
    CandidateNotes,
    PolicyLabel,
    PolicyVersion,
    candidate_note,
    candidate_notes,
)

PAGE: Final = 1000
PAGES: Final = 20
#: rows younger than this number of seconds are not read yet: a row with an earlier time may still be committed
SETTLE_S: Final = 5.0

_DRAWN: Final = decisions.c["id", "arms", "arm", "facts", "policy", "pmf", "scores", "fault", "made_at"]


@dataclass(kw_only=True, slots=True)
class VersionReader:
    """Reads the evidence on a version since it entered its state: outcomes and ledger, page by page."""

    version: PolicyVersion
    champion: PolicyLabel
    prices: Mapping[str, float]  #: cost term -> price per unit
    evidence: Evidence
    stored: str = ""  #: kind of the last stored verdict
    stored_at: float = 0.0
    _last_outcome: tuple[float, str] = field(init=False)  #: (time, id) of the last outcome that was read
    _seq: int | None = None  #: seq of the last update that was read; None before the first page
    #: True if, before the version entered its state, people had rated enough of the answers that a judge scored: then
    #: only ratings by people count as rewards
    _people: bool = False

    def __post_init__(self) -> None:
        self._last_outcome = self.version.since, ""

    def read(self, database: Database, *, now: float) -> bool:
        """Add new rows to the evidence, at most PAGES pages per table. Returns whether everything was read."""
        readings = (self._read_outcomes, self._read_ledger)
        with database.read() as connection:
            done = [any(reading(connection, now) for _ in range(PAGES)) for reading in readings]
        return all(done)

    def _read_outcomes(self, connection: Connection, now: float) -> bool:
        at = outcomes.c.made_at, outcomes.c.decision_id
        query = (
            select(*_DRAWN, *outcomes.c["status", "stop_reason", "cost", "steps"], at[0].label("at"))
            .join(decisions, decisions.c.id == outcomes.c.decision_id)
            .where(at[0] >= self._last_outcome[0], at[0] < now - SETTLE_S, tuple_(*at) > tuple_(*self._last_outcome))
        )
        page = connection.execute(query.order_by(*at).limit(PAGE)).mappings().all()
        if page:
            self._last_outcome = page[-1]["at"], page[-1]["id"]
        recent = [row for row in page if row["made_at"] >= self.version.since and row["stop_reason"] != CANCELLED]
        notes = list(self._notes(recent))
        # Rows with a fault do not count against the version: there the champion failed, and the version was not asked.
        self.evidence.faults += sum(note.pmf is None and row["fault"] is None for row, note in notes)
        draws, numbers = _draws(notes, numbers=self._outcome)
        failed, cost = numbers.reshape(-1, 2).T
        self.evidence.add(draws, failed=failed, cost=cost)
        return len(page) < PAGE

    def _outcome(self, row: RowMapping) -> tuple[float, float]:
        cost, slow_s = cost_value(row["cost"]), self.evidence.settings.guardrails.slow_s
        failed = row["status"] == "failed" or (slow_s is not None and cost.seconds_total > slow_s)
        return float(failed), cost_of_terms(row["steps"], cost, terms=self.prices)

    def _read_ledger(self, connection: Connection, _now: float) -> bool:
        label = self.version.label
        last = connection.execute(select(func.max(updates.c.seq)).where(updates.c.policy == label)).scalar() or 0
        if self._seq is None:
            since = updates.c.policy == label, updates.c.made_at >= self.version.since
            first = connection.execute(select(func.min(updates.c.seq)).where(*since)).scalar()
            self._seq = last if first is None else first - 1
            both = updates.c.judged_by.in_(("label", "human")), updates.c.surrogates.contains('"judge"')
            newest = updates.c.policy == label, updates.c.seq.between(self._seq - 5 * PAGE, self._seq)
            self._people = (connection.execute(select(func.count()).where(*newest, *both)).scalar() or 0) >= FEWEST_BOTH
        end = min(self._seq + PAGE, last)
        query = (
            select(*_DRAWN, *updates.c["value", "minimum", "maximum"])
            .join(decisions, decisions.c.id == updates.c.decision_id)
            .where(updates.c.policy == label, updates.c.seq > self._seq, updates.c.seq <= end, ~CHOSEN_FOR_USE)
            .where(decisions.c.made_at >= self.version.since)
        )
        if self._people:
            query = query.where(func.coalesce(updates.c.judged_by, "") != "judge")
        page = connection.execute(query.order_by(updates.c.seq)).mappings().all()
        self._seq = end
        draws, numbers = _draws(self._notes(page), numbers=lambda row: (row["value"],))
        if len(draws):
            bounds = {"minimum": page[0]["minimum"], "maximum": page[0]["maximum"]}
            self.evidence.rewards.add_judged(Judged(draws=draws, reward=numbers[:, 0], **bounds))
        return end == last

    def _notes(self, page: Iterable[RowMapping]) -> Iterator[tuple[RowMapping, CandidateNote]]:
        """Yield (row, facts about the version) of rows decided while the version had its present state and weight."""
        for row in page:
            if row["policy"] != self.champion or f'"{CandidateNotes.key}"' not in row["facts"]:
                continue
            facts = object_or_empty(row["facts"])
            note = candidate_note(facts, self.version.name)
            if note is None or (note.state, note.weight) != (self.version.state, self.version.weight):
                continue
            yield row, replace(note, champion=candidate_notes(facts)[0].champion)


def _draws(
    notes: Iterable[tuple[RowMapping, CandidateNote]], *, numbers: Callable[[RowMapping], tuple[float, ...]]
) -> tuple[Draws, Array]:
    """Draws between several arms for which the version gave a pmf, with `numbers` of each row, shape (n, m)."""
    rows = []
    for row, note in notes:
        with suppress(AttributeError, TypeError, ValueError):  # a damaged row
            arms, candidate, champion = tuple(json.loads(row["arms"])), note.pmf, note.champion
            if candidate is None or len(candidate) != len(arms) or len(arms) < 2:
                continue
            pmf = scores_value(row["pmf"]) or ()
            scores = scores_value(row["scores"]) or ()
            # An arm that cannot be drawn gives no evidence, so the version is compared on the other arms.
            drawable = [mass if chance > 0.0 else 0.0 for mass, chance in zip(candidate, pmf, strict=True)]
            total = math.fsum(drawable)
            if total > 0.0 and pmf[arms.index(row["arm"])] > 0.0:
                values = {
                    "pmf": pmf,
                    "candidate": [mass / total for mass in drawable],
                    "champion": champion if champion is not None and len(champion) == len(arms) else pmf,
                    "scores": scores if len(scores) == len(arms) else (math.nan,) * len(arms),
                }
                rows.append((row, arms, values, numbers(row)))
    names = tuple(sorted({arm for _, arms, _, _ in rows for arm in arms}))
    tables = {name: np.zeros((len(rows), len(names))) for name in ("pmf", "candidate", "champion", "scores")}
    for number, (_, arms, values, _) in enumerate(rows):
        columns = [names.index(arm) for arm in arms]
        for name, table in tables.items():
            table[number, columns] = values[name]
    arm = np.array([names.index(row["arm"]) for row, *_ in rows], dtype=np.intp)
    return Draws(arms=names, arm=arm, **tables), np.array([further for *_, further in rows])


log = logging.getLogger("ragbandit.rollouts")

#: if an evaluator has not renewed its lease for this number of seconds, another evaluator may take the lease
LEASE_S: Final = 30.0
#: an unchanged verdict is stored again after this number of seconds
VERDICT_EVERY_S: Final = 300.0
_AUDITED: Final = ("comparison", "failures")


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    version: PolicyVersion
    finding: VerdictFinding


class Evaluator:
    """Judges live versions, stores the verdicts and carries them out. A lease allows only one process to do so."""

    def __init__(self, database: Database, *, settings: Settings) -> None:
        self.database, self.settings = database, settings
        self.base = PolicyLabel(settings.policy.label)
        self.holder = lease_holder("rollouts")
        self._lease = Lease(database=database, name=f"rollouts:{self.base}")
        self._watches: dict[str, VersionReader] = {}

    def evaluate(self, *, now: float) -> list[Look]:
        """Judge every live version once. Returns [] if another process holds the lease. Raises StoreError."""
        with self.database.read() as connection:
            versions = store.versions_of(connection, base=self.base)
        live = [version for version in versions if version.state in LIVE_STATES]
        champion = next((version for version in versions if version.state == "champion"), None)
        self._watches = {version.name: self._watch(version, champion=champion) for version in live}
        looks = []
        for version in live:  # renew the lease for each version, because reading a long ledger takes time
            if not self._lease.acquire(holder=self.holder, lease_s=LEASE_S):
                break
            if self._watches[version.name].read(self.database, now=now):
                looks.append(self._look(version, now=now))
        return looks

    def close(self) -> None:
        self._lease.release(holder=self.holder)

    def _watch(self, version: PolicyVersion, *, champion: PolicyVersion | None) -> VersionReader:
        reader = self._watches.get(version.name)
        if reader is not None and reader.version.revision == version.revision:
            reader.version = version
            return reader
        name, label = (self.base, self.base) if champion is None else (champion.name, champion.label)
        evidence = Evidence(settings=self.settings.rollout, champion=name)
        return VersionReader(version=version, champion=label, prices=self.settings.reward.cost, evidence=evidence)

    def _look(self, version: PolicyVersion, *, now: float) -> Look:
        watch = self._watches[version.name]
        uneven = lately(self.database, policy=watch.champion, now=now)
        watch.evidence.alarm = uneven.sentence if uneven is not None and uneven.stage in ("named", "drawn") else None
        finding = decide(version, evidence=watch.evidence, now=now)
        try:
            return Look(version=self._store_verdict(watch, finding=finding, now=now), finding=finding)
        except Conflict as error:  # a person changed the version, or the action is blocked; the next look tries again
            fields = {"action": "verdict", "version": version.name, "reason": str(error)}
            log.warning("a verdict was not carried out", extra=fields)
            return Look(version=version, finding=finding)

    def _store_verdict(self, watch: VersionReader, *, finding: VerdictFinding, now: float) -> PolicyVersion:
        """In one transaction, store the verdict if it is new or due, and carry it out. Returns the changed version."""
        is_due = finding.kind != watch.stored or now - watch.stored_at >= VERDICT_EVERY_S
        if not (is_due or finding.rolls_back):
            return watch.version
        facts = facts_of(watch.evidence, comparison=finding.comparison)
        with self.database.write() as connection:
            if not self._lease.is_held(connection, holder=self.holder):
                raise Conflict("the lease of the rollouts was lost: another process judges the versions now")
            seen = store.version_named(connection, watch.version.name, base=self.base)
            if seen.revision != watch.version.revision:
                raise Conflict(f"the version {seen.name!r} was changed while it was judged", field="revision")
            store.add_verdict(
                connection,
                watch.version,
                kind=finding.kind,
                reason=finding.reason,
                waits_for=finding.waits_for or finding.reason,
                facts=facts,
                now=now,
            )
            done = seen
            if finding.rolls_back:
                act = Act(
                    verb="rollback",
                    name=seen.name,
                    base=self.base,
                    revision=seen.revision,
                    actor="evaluator",
                    reason=finding.reason[:MAX_REASON],
                    now=now,
                    facts={name: facts[name] for name in _AUDITED},
                )
                done = perform_within(connection, act, settings=self.settings.rollout)
        watch.stored = finding.kind
        watch.stored_at = now
        fields = {"action": "verdict", "version": seen.name, "verdict": finding.kind, "reason": finding.reason}
        (log.warning if finding.rolls_back else log.info)("a version was judged", extra=fields)
        return done
