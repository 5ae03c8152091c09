"""Evaluator: looks at every live version, keeps the verdict, and does what it says. One at a time, by a lease."""

import logging
import re
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import Connection

from ragbandit.router.config.settings import Settings
from ragbandit.router.rollouts.reading import VersionReader
from ragbandit.router.rollouts.verbs import MAX_REASON, Act, perform_within
from ragbandit.router.rollouts.verdicts import Evidence, VerdictFinding, facts_of, judge
from ragbandit.router.storage import policy_versions as store
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.shared.errors import Conflict
from ragbandit.shared.process_identity import lease_holder
from ragbandit.shared.types import (
    LIVE_STATES,
    Json,
    PolicyControl,
    PolicyLabel,
    PolicyVersion,
)

log = logging.getLogger("ragbandit.rollouts")

#: who has done it, in the audit log
ACTOR: Final = "evaluator"
#: an evaluator that is not heard of for that long has lost its place to the next one
LEASE_S: Final = 30.0
#: facts of a verdict that the audit log has as well
_AUDITED: Final = ("n", "n_eff", "difference", "low", "high", "missing", "guardrails")


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What one look at a version came to."""

    #: as it is after what was done
    version: PolicyVersion
    finding: VerdictFinding


@dataclass(kw_only=True, slots=True)
class _VersionWatch:
    """What is known of a version in its state."""

    version: PolicyVersion
    evidence: Evidence
    reader: VersionReader
    #: kind and reason without numbers, and time, of the verdict that was kept last
    kept: tuple[str, str] | None = None
    kept_at: float = 0.0


class Evaluator:
    """Judges the versions of one configuration. Keeps in memory what it has read; any other one can go on for it."""

    def __init__(self, database: Database, *, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.base = PolicyLabel(settings.policy.label)
        self.holder = lease_holder("rollouts")
        self._lease = Lease(database=database, name=f"rollouts:{self.base}")
        self._watches: dict[str, _VersionWatch] = {}

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

    def _watch(self, version: PolicyVersion, *, champion: PolicyLabel) -> _VersionWatch:
        known = self._watches.get(version.name)
        if known is not None and known.version.revision == version.revision:
            known.version = version
            return known
        return _VersionWatch(
            version=version,
            evidence=Evidence(settings=self.settings.rollout),
            reader=VersionReader(version=version, champion=champion, prices=self.settings.reward.cost),
        )

    def _look(self, version: PolicyVersion, *, control: PolicyControl, canary: str | None, now: float) -> Look:
        watch = self._watches[version.name]
        complete = watch.reader.read(self.database, evidence=watch.evidence, now=now)
        other = canary if canary != version.name else None
        finding = judge(version, evidence=watch.evidence, control=control, now=now, canary=other, complete=complete)
        try:
            return Look(version=self._kept(watch, finding=finding, now=now), finding=finding)
        except Conflict as error:  # a person was quicker, or something else is in the way: the next look sees it
            facts = {"action": "verdict", "version": version.name, "reason": str(error)}
            log.warning("a verdict was not carried out", extra=facts)
            return Look(version=version, finding=replace(finding, verb=None))

    def _kept(self, watch: _VersionWatch, *, finding: VerdictFinding, now: float) -> PolicyVersion:
        """Keep the verdict where it is news, and do what it says, in one transaction."""
        shape = _shape(finding.kind, finding.reason)
        if watch.kept is None:
            watch.kept, watch.kept_at = self._last_kept(watch.version)
        old = now - watch.kept_at >= self.settings.rollout.verdict_every_s
        if finding.verb is None and shape == watch.kept and not old:
            return watch.version
        with self.database.write() as connection:
            if not self._lease.is_held(connection, holder=self.holder):
                raise Conflict("the lease of the rollouts is not held any more")
            seen = store.version_named(connection, watch.version.name, base=self.base)
            if seen.revision != watch.version.revision:
                raise Conflict(f"the version {seen.name!r} was changed meanwhile", field="revision")
            facts = facts_of(watch.version, evidence=watch.evidence)
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
            done = seen if finding.verb is None else self._done(connection, seen, finding=finding, facts=facts, now=now)
        watch.kept, watch.kept_at = shape, now
        news = {"action": "verdict", "version": seen.name, "verdict": finding.kind, "reason": finding.reason}
        (log.info if finding.verb is None else log.warning)("a version was judged", extra=news)
        return done

    def _done(
        self,
        connection: Connection,
        seen: PolicyVersion,
        *,
        finding: VerdictFinding,
        facts: dict[str, Json],
        now: float,
    ) -> PolicyVersion:
        assert finding.verb is not None
        act = Act(
            verb=finding.verb,
            name=seen.name,
            base=self.base,
            actor=ACTOR,
            reason=finding.reason[:MAX_REASON],
            now=now,
            revision=seen.revision,
            facts={name: facts[name] for name in _AUDITED} | {"inputs_sha256": finding.inputs_sha256},
        )
        return perform_within(connection, act, settings=self.settings.rollout)

    def _last_kept(self, version: PolicyVersion) -> tuple[tuple[str, str], float]:
        with self.database.read() as connection:
            last = next(iter(store.verdicts_of(connection, version.name, limit=1)), None)
        if last is None or last.made_at < version.since:
            return ("", ""), 0.0
        return _shape(last.kind, last.reason), last.made_at


def _shape(kind: str, reason: str) -> tuple[str, str]:
    """What makes a verdict news: its kind, and its reason without the numbers."""
    return kind, re.sub(r"[\d.,+%-]+", "#", reason)
