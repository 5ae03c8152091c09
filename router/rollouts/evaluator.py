"""Evaluator: looks at every live version, keeps the verdict, and does what it says. One at a time, by a lease."""

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from sqlalchemy import ColumnElement, Connection, RowMapping, Select, func, select, tuple_

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.arm_changes import lately
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.rollouts.evidence import Draws, Judged, Outcomes
from ragbandit.router.rollouts.overview import candidate_in, facts_in
from ragbandit.router.rollouts.verbs import MAX_REASON, Act, perform_within
from ragbandit.router.rollouts.verdicts import Evidence, VerdictFinding, decide, facts_of
from ragbandit.router.storage import policy_versions as store
from ragbandit.router.storage.rows.conversion import scores_value
from ragbandit.router.storage.rows.outcome_rows import CHOSEN_FOR_USE, cost_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.tables import decisions, outcomes, updates
from ragbandit.shared.child_process import lease_holder
from ragbandit.shared.confidence_sequences import FEWEST_BOTH, judge_score
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import CANCELLED, CANDIDATE, LIVE_STATES, PolicyControl, PolicyLabel, PolicyVersion

#: rows that are read at once
PAGE: Final = 1000
#: pages of each reading in one look; what is left is read by the next one
PAGES: Final = 20
#: decisions and outcomes younger than that are left to the next look: one that was made before may be committed after
SETTLE_S: Final = 5.0

_DRAWN: Final = decisions.c["id", "arms", "arm", "facts", "policy", "pmf", "scores", "fault", "made_at"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _DrawRow:
    """A row of a draw that the version gave a pmf for, and its probabilities by arm."""

    row: RowMapping
    arms: tuple[str, ...]
    #: "pmf", "candidate", "champion", "scores" -> a number for each arm
    values: Mapping[str, Sequence[float]]
    #: what else was read of the row
    numbers: tuple[float, ...]


@dataclass(kw_only=True, slots=True)
class VersionReader:
    """What is known of one version in one state, and where its three readings stand."""

    version: PolicyVersion
    #: the ledger of the champion that it is compared with
    champion: PolicyLabel
    #: price per unit of cost, of the configuration: what the guardrail of cost compares
    prices: Mapping[str, float]
    evidence: Evidence
    #: kind and reason without numbers, and time, of the verdict that was kept last
    kept: tuple[str, str] = ("", "")
    kept_at: float = 0.0
    _decided: tuple[float, str] = field(init=False)
    _ended: tuple[float, str] = field(init=False)
    #: None: where the ledger has its first update since then is not known yet
    _seq: int | None = None
    #: before it came to its state, people rated enough of the answers that a judge scored: their word is the reward
    _people: bool = False

    def __post_init__(self) -> None:
        self._decided = self._ended = (self.version.since, "")

    def read(self, database: Database, *, now: float) -> bool:
        """Add what is new to the evidence, PAGES pages of each reading at most; True if that is all there is."""
        readings = (self._read_decisions, self._read_outcomes, self._read_ledger)
        with database.read() as connection:
            done = [any(reading(connection, now) for _ in range(PAGES)) for reading in readings]
        return all(done)

    def _read_decisions(self, connection: Connection, now: float) -> bool:
        position = decisions.c.made_at, decisions.c.id
        page, self._decided = _page(connection, select(*_DRAWN), position=position, after=self._decided, now=now)
        notes = list(self._notes(page))
        # Where the champion itself failed nobody asked for the version's word.
        self.evidence.draws.faults += sum(note.get("pmf") is None and row["fault"] is None for row, note in notes)
        self.evidence.draws.add(_draws(_rows(notes), weight=self.version.weight))
        return len(page) < PAGE

    def _read_outcomes(self, connection: Connection, now: float) -> bool:
        query: Select[Any] = select(*_DRAWN, *outcomes.c["status", "stop_reason", "cost", "steps"])
        query = query.join(decisions, decisions.c.id == outcomes.c.decision_id)
        position = outcomes.c.made_at, outcomes.c.decision_id
        page, self._ended = _page(connection, query, position=position, after=self._ended, now=now)
        ours = [row for row in page if row["made_at"] >= self.version.since and row["stop_reason"] != CANCELLED]
        rows = _rows(self._notes(ours), numbers=self._outcome)
        failed, seconds, cost = np.array([one.numbers for one in rows]).reshape(-1, 3).T
        draws = _draws(rows, weight=self.version.weight)
        self.evidence.guardrails.add(Outcomes(draws=draws, failed=failed, seconds=seconds, cost=cost))
        return len(page) < PAGE

    def _outcome(self, row: RowMapping) -> tuple[float, float, float]:
        """1.0 where the answer failed, its seconds, NaN where they were not reported, and its cost."""
        cost = cost_value(row["cost"])
        charge = cost_of_terms(row["steps"], cost, terms=self.prices)
        return float(row["status"] == "failed"), cost.seconds_total if cost.seconds_total > 0.0 else math.nan, charge

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
        upto = min(self._seq + PAGE, last)
        query = (
            select(*_DRAWN, *updates.c["value", "minimum", "maximum", "weight", "cost", "judged_by", "surrogates"])
            .join(decisions, decisions.c.id == updates.c.decision_id)
            .where(updates.c.policy == label, updates.c.seq > self._seq, updates.c.seq <= upto, ~CHOSEN_FOR_USE)
            .where(decisions.c.made_at >= self.version.since)
        )
        page = connection.execute(query.order_by(updates.c.seq)).mappings().all()
        self._seq = upto
        if rows := _rows(self._notes(page), numbers=self._rewards):
            reward, judge = np.array([one.numbers for one in rows]).T
            bounds = {"minimum": page[0]["minimum"], "maximum": page[0]["maximum"]}
            draws = _draws(rows, weight=self.version.weight)
            self.evidence.rewards.add(
                Judged(draws=draws, reward=reward, judge=judge if self._people else None, **bounds)
            )
        return upto == last

    def _rewards(self, row: RowMapping) -> tuple[float, float]:
        """The reward, and that by a judge's score, NaN where there is none.

        Where people rate, an answer that a judge alone scored has no reward: NaN.
        """
        if not self._people:
            return row["value"], math.nan
        if row["judged_by"] == "judge":
            return math.nan, row["value"]
        judged = judge_score(row["surrogates"]) - row["weight"] * row["cost"]
        return row["value"], float(np.clip(judged, row["minimum"], row["maximum"]))

    def _notes(self, page: Iterable[RowMapping]) -> Iterator[tuple[RowMapping, Mapping[str, Any]]]:
        """The rows that say something of the version as it is now, with that and the champion's pmf in a canary.

        For a moment after a change routers decide as before: with the former champion, or by the former weight.
        """
        for row in page:
            if row["policy"] != self.champion or f'"{CANDIDATE}"' not in row["facts"]:
                continue
            facts = facts_in(row["facts"])
            note = candidate_in(facts, self.version.name)
            if note is None or (note.get("state"), note.get("weight")) != (self.version.state, self.version.weight):
                continue
            canary = facts[CANDIDATE]
            yield row, {**note, "champion": canary.get("champion") if isinstance(canary, dict) else None}


def _page(
    connection: Connection,
    query: Select[Any],
    *,
    position: tuple[ColumnElement[Any], ColumnElement[Any]],
    after: tuple[float, str],
    now: float,
) -> tuple[Sequence[RowMapping], tuple[float, str]]:
    """The next settled rows in the order of (time, id), and where they end."""
    time, _ = position
    query = query.add_columns(time.label("at")).where(time >= after[0], time < now - SETTLE_S)
    query = query.where(tuple_(*position) > tuple_(*after)).order_by(*position).limit(PAGE)
    page = connection.execute(query).mappings().all()
    return page, (page[-1]["at"], page[-1]["id"]) if page else after


def _rows(
    notes: Iterable[tuple[RowMapping, Mapping[str, Any]]],
    *,
    numbers: Callable[[RowMapping], tuple[float, ...]] = lambda _row: (),
) -> list[_DrawRow]:
    """Those of which the version gave a pmf, and which were drawn: not forced, pinned, or kept to an earlier arm.

    numbers: reads what else is wanted of a row.
    """
    rows: list[_DrawRow] = []
    for row, note in notes:
        with suppress(AttributeError, TypeError, ValueError):  # a damaged row
            arms, given, champion = tuple(json.loads(row["arms"])), note.get("pmf"), note["champion"]
            if not isinstance(given, list) or len(given) != len(arms) or len(arms) < 2:
                continue
            pmf, scores = scores_value(row["pmf"]) or (), scores_value(row["scores"]) or ()
            # What cannot be drawn, an arm that only a shadow offers or one that the champion never plays, tells
            # nothing: the version is compared by what it does with the others.
            drawable = [mass if chance > 0.0 else 0.0 for mass, chance in zip(given, pmf, strict=True)]
            seen = math.fsum(drawable)
            if seen > 0.0 and pmf[arms.index(row["arm"])] > 0.0:
                values = {
                    "pmf": pmf,
                    "candidate": [mass / seen for mass in drawable],
                    "champion": champion if isinstance(champion, list) and len(champion) == len(arms) else pmf,
                    "scores": scores if len(scores) == len(arms) else (math.nan,) * len(arms),
                }
                rows.append(_DrawRow(row=row, arms=arms, values=values, numbers=numbers(row)))
    return rows


def _draws(rows: Sequence[_DrawRow], *, weight: float) -> Draws:
    names = tuple(sorted({arm for one in rows for arm in one.arms}))
    column = {name: number for number, name in enumerate(names)}
    tables = {name: np.zeros((len(rows), len(names))) for name in ("pmf", "candidate", "champion", "scores")}
    for number, one in enumerate(rows):
        columns = [column[arm] for arm in one.arms]
        for name, table in tables.items():
            table[number, columns] = one.values[name]
    return Draws(
        ids=tuple(one.row["id"] for one in rows),
        arms=names,
        arm=np.array([column[one.row["arm"]] for one in rows], dtype=np.intp),
        weight=np.full(len(rows), weight),
        **tables,
    )


log = logging.getLogger("ragbandit.rollouts")

#: who has done it, in the audit log
ACTOR: Final = "evaluator"
#: an evaluator that is not heard of for that long has lost its place to the next one
LEASE_S: Final = 30.0
#: a verdict like the one before is kept again after that long, seconds
VERDICT_EVERY_S: Final = 300.0
#: facts of a verdict that the audit log has as well
_AUDITED: Final = ("n", "n_eff", "difference", "low", "high", "missing", "guardrails")


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What one look at a version came to."""

    #: as it is after what was done
    version: PolicyVersion
    finding: VerdictFinding


class Evaluator:
    """Judges the versions of one configuration. Keeps in memory what it has read; any other one can go on for it."""

    def __init__(self, database: Database, *, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.base = PolicyLabel(settings.policy.label)
        self.holder = lease_holder("rollouts")
        self._lease = Lease(database=database, name=f"rollouts:{self.base}")
        self._watches: dict[str, VersionReader] = {}

    def evaluate(self, *, now: float) -> list[Look]:
        """Look once at every live version; nothing where there is none, or where another process does it.

        Raises StoreError.
        """
        with self.database.read() as connection:
            control = store.control_of(connection, base=self.base)
            versions = store.versions_of(connection, base=self.base) if control.revision else []
        live = [one for one in versions if one.state in LIVE_STATES]
        champion = next((one.label for one in versions if one.state == "champion"), self.base)
        self._watches = {one.name: self._watch(one, champion=champion) for one in live}
        canary = next((one.name for one in live if one.state == "canary"), None)
        looks = []
        for one in live:  # the lease is prolonged for each: the first look at a long ledger takes a while
            if not self._lease.acquire(holder=self.holder, lease_s=LEASE_S):
                break
            looks.append(self._look(one, control=control, canary=canary, now=now))
        return looks

    def close(self) -> None:
        """Give the lease back, so that another evaluator need not wait for it to run out."""
        self._lease.release(holder=self.holder)

    def _watch(self, version: PolicyVersion, *, champion: PolicyLabel) -> VersionReader:
        known = self._watches.get(version.name)
        if known is not None and known.version.revision == version.revision:
            known.version = version
            return known
        evidence = Evidence(settings=self.settings.rollout)
        return VersionReader(version=version, champion=champion, prices=self.settings.reward.cost, evidence=evidence)

    def _look(self, version: PolicyVersion, *, control: PolicyControl, canary: str | None, now: float) -> Look:
        watch = self._watches[version.name]
        complete = watch.read(self.database, now=now)
        uneven = lately(self.database, policy=watch.champion, now=now)
        watch.evidence.alarm = uneven.sentence if uneven is not None and uneven.stage in ("named", "drawn") else None
        other = canary if canary != version.name else None
        finding = decide(version, evidence=watch.evidence, control=control, now=now, canary=other, complete=complete)
        try:
            return Look(version=self._kept(watch, finding=finding, now=now), finding=finding)
        except Conflict as error:  # a person was quicker, or something else is in the way: the next look sees it
            facts = {"action": "verdict", "version": version.name, "reason": str(error)}
            log.warning("a verdict was not carried out", extra=facts)
            return Look(version=version, finding=replace(finding, verb=None))

    def _kept(self, watch: VersionReader, *, finding: VerdictFinding, now: float) -> PolicyVersion:
        """Keep the verdict where it is news, and do what it says, in one transaction."""
        shape = finding.kind, re.sub(r"[\d.,+%-]+", "#", finding.reason)  # what is news: all but the numbers
        old = now - watch.kept_at >= VERDICT_EVERY_S
        if finding.verb is None and shape == watch.kept and not old:
            return watch.version
        facts, done = facts_of(watch.version, evidence=watch.evidence), watch.version
        with self.database.write() as connection:
            if not self._lease.is_held(connection, holder=self.holder):
                raise Conflict("the lease of the rollouts is not held any more")
            seen = store.version_named(connection, done.name, base=self.base)
            if seen.revision != done.revision:
                raise Conflict(f"the version {seen.name!r} was changed meanwhile", field="revision")
            store.add_verdict(
                connection,
                watch.version,
                kind=finding.kind,
                reason=finding.reason,
                waits_for=finding.waits_for or finding.reason,
                inputs_sha256=finding.inputs_sha256,
                facts=facts,
                now=now,
            )
            done = seen
            if finding.verb is not None:
                act = Act(
                    verb=finding.verb,
                    name=seen.name,
                    base=self.base,
                    revision=seen.revision,
                    actor=ACTOR,
                    reason=finding.reason[:MAX_REASON],
                    now=now,
                    facts={name: facts[name] for name in _AUDITED} | {"inputs_sha256": finding.inputs_sha256},
                )
                done = perform_within(connection, act, settings=self.settings.rollout)
        watch.kept, watch.kept_at = shape, now
        news = {"action": "verdict", "version": seen.name, "verdict": finding.kind, "reason": finding.reason}
        (log.info if finding.verb is None else log.warning)("a version was judged", extra=news)
        return done
