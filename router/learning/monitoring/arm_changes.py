"""The row before which a ledger restarts an arm: the first one of the arm's present version.

A change is declared (`ragbandit policy restart`), or detected: `Outcome.made_by` has the arm's class, params, templates
and generator, and the first outcome with others is of a new version. A version that is known is no change: outcomes of
a worker with the old configuration, and of a configuration that comes back, are learned as they come.

The row records it (`Update.restarts`), and its transaction stores the versions: a replay needs no audit log.
"""

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, select

from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import audit_log
from ragbandit.router.storage.totals import hour_of, summed
from ragbandit.shared.formats import percent
from ragbandit.shared.types import ArmName, ArmTotals, JoinedDecision, Json, PolicyLabel, SampleStage, Vector

log = logging.getLogger("ragbandit.learner")

#: what tells two versions of an arm apart; not the index, which follows its documents, and not a question's caps
_PARTS: Final = ("arm", "params", "templates", "generator")
#: versions of an arm that are known at a time
_VERSIONS: Final = 8


_ACTION: Final = "arm.change"
_KIND: Final = "arm:"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmChange:
    """A declared change of an arm."""

    number: int
    """Number of its entry in the audit log."""
    arm: ArmName
    """Name of the arm."""
    made_at: float
    """Time of the change, seconds since 1970; later decisions belong to the changed arm."""


def declare_change(
    database: Database, arm: ArmName, *, actor: str, reason: str, now: float, label: PolicyLabel | None = None
) -> ArmChange:
    """Note that an arm has changed. Every ledger restarts it before the first decision of after `now`.

    label: that ledger alone does; the others go on.
    """
    with database.write() as connection:
        facts: dict[str, Json] = {"reason": reason}
        if label is not None:
            facts["label"] = label
        number = record(connection, actor=actor, action=_ACTION, target=f"{_KIND}{arm}", facts=facts, now=now)
    return ArmChange(number=number, arm=arm, made_at=now)


def changes_after(connection: Connection, number: int, *, label: PolicyLabel) -> list[ArmChange]:
    """The declared changes with a larger number that are about this ledger, in their order."""
    query = select(audit_log.c.number, audit_log.c.target, audit_log.c.made_at, audit_log.c.facts)
    query = query.where(audit_log.c.number > number, audit_log.c.action == _ACTION).order_by(audit_log.c.number)
    return [
        ArmChange(number=row.number, arm=ArmName(row.target.removeprefix(_KIND)), made_at=row.made_at)
        for row in connection.execute(query)
        if json.loads(row.facts).get("label", label) == label
    ]


class ArmChanges:
    """Versions of a ledger's arms, and declared changes that it has not applied yet."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._waiting: list[ArmChange] = []
        #: the last declared change that was taken up; per arm when that was made, and its versions, the newest last,
        #: each a digest of _PARTS and the time of the first decision that was learned of it
        self._number = 0
        self._declared: dict[ArmName, float] = {}
        self._versions: dict[ArmName, list[tuple[str, float]]] = {}
        self._stored = ""

    def refresh(self) -> None:
        """Read what the ledger knows, and the changes that were declared since."""
        row = self.ledger.registered()
        known = json.loads((row and row["arms"]) or "{}")
        self._number, self._declared = known.get("number", 0), dict(known.get("declared", {}))
        self._versions = {arm: [(one, at) for one, at in some] for arm, some in known.get("versions", {}).items()}
        self._stored = self._state()
        with self.ledger.database.read() as connection:
            self._waiting = changes_after(connection, self._number, label=self.ledger.label)

    def unsaved_state(self) -> str | None:
        """Arm versions as JSON if they differ from the stored ones, else None."""
        state = self._state()
        return None if state == self._stored else state

    def mark_saved(self) -> None:
        """Call after the state was written to the ledger."""
        self._stored = self._state()

    def _state(self) -> str:
        return canonical({"number": self._number, "declared": self._declared, "versions": self._versions})

    def arms_to_restart(self, joined: JoinedDecision) -> tuple[ArmName, ...] | None:
        """The arms that restart before this row is learned; None if an earlier version of its arm gave the answer."""
        decision, changed, version = joined.decision, list[ArmName](), _version(joined)
        known = self._versions.get(decision.arm, [])
        is_earlier = version is not None and known and version != known[-1][0] and decision.made_at < known[-1][1]
        if is_earlier or decision.made_at < self._declared.get(decision.arm, decision.made_at):
            return None
        while self._waiting and self._waiting[0].made_at <= decision.made_at:
            change = self._waiting.pop(0)
            self._number, self._declared[change.arm] = change.number, change.made_at
            changed.append(change.arm)
        if version is not None and version not in (one for one, _ in known):
            if known:
                changed.append(decision.arm)
            self._versions[decision.arm] = [*known[1 - _VERSIONS :], (version, decision.made_at)]
        arms = tuple(dict.fromkeys(changed))
        if arms:
            log.warning("arms have changed: what was learned of them counts for little", extra={"arms": list(arms)})
        return arms


def _version(joined: JoinedDecision) -> str | None:
    """A digest of what made the outcome; None where the outcome does not say."""
    made_by: Mapping[str, Json] = {} if joined.outcome is None else joined.outcome.made_by
    if "arm" not in made_by:
        return None
    parts: dict[str, Any] = {name: made_by.get(name) for name in _PARTS}
    return hashlib.sha256(canonical(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


#: clean logs with an alarm at any look, of those that begin at one time
FALSE_ALARMS: Final = 0.001
#: relative difference between arms from which on outcomes and ratings are uneven; draws are at any
MATTERS: Final = 0.1
#: age of a decision that is looked at, seconds: its outcome and its rating had time to come
SETTLED_S: Final = 3600.0
_WEEK_H: Final = 7 * 24
#: hours from the beginning of a week, Monday, to the epoch, a Thursday
_MONDAY_H: Final = 3 * 24
#: relative differences that are bet on
_BETS: Final = 0.01 * 2.0 ** np.arange(8.0)
_STAGES: Final[tuple[SampleStage, ...]] = ("named", "drawn", "ended", "judged")
_COUNTS: Final = (
    *(f"{stage}_{kind}" for stage in _STAGES for kind in ("excess", "spread")),
    *("decided", "answered", "failed", "cancelled", "learned"),
)
_REMEDY: Final = "see docs/learning.md#whether-the-log-is-even"


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRatio:
    """A side that a log favours beyond chance: comparisons of arms wait."""

    stage: SampleStage
    #: arms that have more, and fewer, of these rows than their probabilities promise
    more: ArmName
    less: ArmName
    #: which side is favoured, by how much, and what to do
    sentence: str


def sample_ratio(database: Database, *, policy: str, since: float, until: float) -> SampleRatio | None:
    """The side that the log favours in since <= time < until, whole hours and SETTLED_S old; None if it favours none.

    FALSE_ALARMS holds for one `since` over all `until`. Raises StoreError.
    """
    with database.read() as connection:
        hours = {"since": hour_of(since), "until": hour_of(until - SETTLED_S)}
        return uneven(summed(connection, policy=policy, **hours, names=_COUNTS))


def lately(database: Database, *, policy: str, now: float) -> SampleRatio | None:
    """The side that is favoured since the Monday before this week's (UTC): what is alarmed of."""
    week = (hour_of(now) + _MONDAY_H) // _WEEK_H
    return sample_ratio(database, policy=policy, since=3600.0 * ((week - 1) * _WEEK_H - _MONDAY_H), until=now)


def uneven(arms: Mapping[ArmName, ArmTotals], *, alpha: float = FALSE_ALARMS) -> SampleRatio | None:
    """The first of the stages at which a side is favoured; it makes the later ones uneven too."""
    for stage in _STAGES:
        sums = {arm: (getattr(one, f"{stage}_excess"), getattr(one, f"{stage}_spread")) for arm, one in arms.items()}
        favoured = _favoured(
            {arm: pair for arm, pair in sums.items() if pair[1] > 0.0},
            alpha=alpha / len(_STAGES),
            matters=0.0 if stage in ("named", "drawn") else MATTERS,
        )
        if favoured is not None:
            more, less = favoured
            sentence = _sentence(stage, arms, more=more, less=less)
            return SampleRatio(stage=stage, more=more, less=less, sentence=f"{sentence} ({_REMEDY})")
    return None


def _favoured(
    sums: Mapping[ArmName, tuple[float, float]], *, alpha: float, matters: float
) -> tuple[ArmName, ArmName] | None:
    """The arms with more and with fewer rows; None if the difference may be chance, or is small."""
    if not sums:
        return None
    excess, spread = np.array(list(sums.values())).T
    capital = log_capital(excess, spread=spread)
    if np.logaddexp.reduce(capital) - math.log(len(sums)) < -math.log(alpha):
        return None
    differing = np.abs(excess) >= matters * spread
    if not differing.any():
        return None
    names, surest = list(sums), int(np.argmax(np.where(differing, capital, -np.inf)))
    more, less = int(np.argmax(excess)), int(np.argmin(excess))
    return (names[surest], names[less]) if excess[surest] > 0.0 else (names[more], names[surest])


def log_capital(excess: Vector, *, spread: Vector) -> Vector:
    """Log C of each of n sums, shape (n,): excess S, shape (n,), with spread V, shape (n,), >= 0."""
    paid = spread[:, None] * (np.expm1(_BETS) - _BETS)
    both = np.concatenate([excess[:, None] * _BETS - paid, -excess[:, None] * _BETS - paid], axis=1)
    return np.asarray(np.logaddexp.reduce(both, axis=1) - math.log(both.shape[1]))


def _sentence(stage: SampleStage, arms: Mapping[ArmName, ArmTotals], *, more: ArmName, less: ArmName) -> str:
    if stage == "named":
        oftener = f"under ids that callers named, arm {more} was drawn more often and {less} less often"
        why = "callers choose ids by what they draw, or repeat questions until another arm comes, or rows are lost"
        return f"{oftener} than the logged probabilities promise: {why}; no comparison of arms counts"
    if stage == "drawn":
        one = arms[less]
        promised = one.decided - one.drawn_excess
        drawn = f"arm {less} was drawn {one.decided:,} times where the logged probabilities promise {promised:,.0f}"
        return (
            f"{drawn}, and {more} more often than they promise: no comparison of arms counts until lost rows are found"
        )
    shares = [_share(stage, arms[arm]) for arm in (more, less)]
    what, wait = (
        ("draws with an outcome", "comparisons of arms wait until every draw has its outcome, failures too")
        if stage == "ended"
        else ("answers rated", "comparisons of quality wait until ratings come evenly, or label a random share")
    )
    if shares[0] <= shares[1]:  # shares of a time in which the policy changed say less than its probabilities do
        return f"arm {more} has more and {less} fewer {what} than the logged probabilities promise: {wait}"
    return f"arm {more} has {percent(shares[0])} of its {what} and {less} {percent(shares[1])}: {wait}"


def _share(stage: SampleStage, one: ArmTotals) -> float:
    outcomes = one.ended + one.cancelled
    rows, of = (outcomes, one.decided) if stage == "ended" else (one.learned, outcomes or one.decided)
    return min(1.0, rows / max(of, 1))
