"""Checks of the database: schema, clock, what the learner has not learned, and whether its rows are even."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy import inspect, make_url, select, text

from ragbandit.router.cli.doctor.findings import Finding, Installation, fine, problem, warning
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning import status as ledger_status
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.lessons import policy_of
from ragbandit.router.learning.monitoring.sample_ratio import lately
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql import schema_window
from ragbandit.router.storage.sql.database import Database, revision_of
from ragbandit.router.storage.sql.tables import OLDEST_REVISION, SCHEMA_REVISION, decisions, leases
from ragbandit.shared.errors import StoreError
from ragbandit.shared.formats import duration
from ragbandit.shared.types import PolicyLabel

#: clocks that differ by so much are remarkable, and wrong, seconds
APART_S: Final = 1.0
WRONG_S: Final = 60.0
#: feedback that waits so long is remarkable, and a problem, seconds
LATE_S: Final = 60.0
STUCK_S: Final = 600.0
#: newest decisions whose arms are looked at
LATELY: Final = 1000
#: no lease of a setting of its own is taken for longer, seconds
LONGEST_LEASE_S: Final = 900.0


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[Database]:
    """The database as it is; one of SQLite that is not there is not made. Raises StoreError."""
    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        raise StoreError(
            f"there is no database at {url.database}",
            field="data_dir",
            remedy="check data_dir and DATABASE_URL: the service makes the database when it starts",
        )
    database = Database(settings.database)
    try:
        yield database
    finally:
        database.close()


def schema(installation: Installation) -> Sequence[Finding]:
    """Whether this version can use the schema."""
    with opened(installation.settings) as database, database.read() as connection:
        current = revision_of(connection)
        usable = current is not None and current > SCHEMA_REVISION and schema_window.may_use(connection)
    if current is None:
        means = "nothing can be stored"
        return [problem("schema", "the database has no schema", means=means, remedy="run: ragbandit migrate")]
    if usable:
        means = f"this host runs an older version, written for {SCHEMA_REVISION}, which may still use it"
        remedy = "go on with the upgrade: install the version that the other hosts run"
        return [warning("schema", f"the schema is {current}", means=means, remedy=remedy)]
    if current > SCHEMA_REVISION:
        means = f"this host runs an older version, which knows up to {SCHEMA_REVISION}"
        remedy = "install the version that the other hosts run"
        return [problem("schema", f"the schema is {current}", means=means, remedy=remedy)]
    if current < OLDEST_REVISION:
        means = f"this version needs {OLDEST_REVISION} at least: the service does not start"
        return [problem("schema", f"the schema is {current}", means=means, remedy="run: ragbandit migrate")]
    if current < SCHEMA_REVISION:
        means = f"this version works with it, without what {SCHEMA_REVISION} brings"
        remedy = "run `ragbandit migrate` when every host has this version"
        return [warning("schema", f"the schema is {current}", means=means, remedy=remedy)]
    return [fine("schema", current)]


def renamed_arms(installation: Installation) -> Sequence[Finding]:
    """Whether an arm that decided lately is gone and another one is new: perhaps one arm under two names."""
    settings = installation.settings
    with opened(settings) as database, database.read() as connection:
        newest = select(decisions.c.arm, decisions.c.policy).order_by(decisions.c.id.desc()).limit(LATELY)
        drawn = {row.arm for row in connection.execute(newest) if row.policy == settings.policy.label}
    gone, new = sorted(drawn - set(settings.arms)), sorted(set(settings.arms) - drawn)
    if not (gone and new):
        return [fine("arms", ", ".join(settings.arms))]
    means = "what was learned stays with an arm's name: one that was renamed begins anew"
    remedy = "give the arm its old name back, or leave it so if it is another one"
    text = f"{', '.join(gone)} decided lately and is not configured, {', '.join(new)} is and never did"
    return [warning("arms", text, means=means, remedy=remedy)]


def clock(installation: Installation) -> Sequence[Finding]:
    """This host's clock against the database's."""
    with opened(installation.settings) as database:
        if database.is_sqlite:
            return [fine("clock of the database", "SQLite has the clock of this host")]
        with database.read() as connection:
            connection.execute(text("SELECT 1"))  # connecting takes time
            before = installation.clock()
            theirs = float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
            after = installation.clock()
    return [judged_clock("clock of the database", (before + after) / 2 - theirs, whose="this host's clock")]


def judged_clock(check: str, ahead_s: float, *, whose: str) -> Finding:
    """What a clock means that is so far ahead, in seconds."""
    text = f"{whose} is {abs(ahead_s):.1f} s {'ahead' if ahead_s > 0 else 'behind'}"
    if abs(ahead_s) < APART_S:
        return fine(check, f"{whose} differs by {abs(ahead_s):.2f} s")
    means = "waits, windows of feedback and the order of decisions are off by as much"
    remedy = "let NTP or chrony set the clocks of all hosts (timedatectl)"
    return (warning if abs(ahead_s) < WRONG_S else problem)(check, text, means=means, remedy=remedy)


def learner(installation: Installation) -> Sequence[Finding]:
    """How long feedback has waited, and what cannot be learned."""
    settings = installation.settings
    with opened(settings) as database:
        _refuse_strange(database)
        ledger = Ledger(database, label=PolicyLabel(settings.policy.label))
        registered = ledger.registered()
        if registered is None:
            return [fine("learner", f"no router has opened the ledger {ledger.label} yet")]
        serving = policy_of(settings)
        state = ledger_status.status(ledger, serving=serving, rule=closing_rule(settings.learning), now=time.time())
    findings = []
    if state.lag_s > LATE_S:
        say = problem if state.lag_s > STUCK_S else warning
        means = "new feedback does not move the policy; nothing is lost"
        remedy = "check that `ragbandit worker --queue learn` runs, then its log; `ragbandit status` counts"
        findings.append(say("learner", f"feedback has waited for {duration(state.lag_s)}", means=means, remedy=remedy))
    if state.counters.quarantined:
        means = "these decisions are not learned"
        remedy = "`ragbandit feedback quarantined` says why"
        findings.append(warning("learner", f"{state.counters.quarantined} set apart", means=means, remedy=remedy))
    if state.counters.held:
        means = "their source has more than its share; they are not learned until they are released"
        remedy = "`ragbandit feedback held` says of whom"
        findings.append(warning("learner", f"{state.counters.held} feedback held", means=means, remedy=remedy))
    if state.missing_outcome:
        means = "feedback came for decisions whose outcome was not reported: they are not learned"
        findings.append(
            warning(
                "learner",
                f"{state.missing_outcome} without outcome",
                means=means,
                remedy="report outcomes to /v1/outcomes for every decision",
            )
        )
    return findings or [fine("learner", f"{state.last_seq} updates, lag {duration(state.lag_s)}")]


def counters(installation: Installation) -> Sequence[Finding]:
    """Whether every decision is in one place."""
    with opened(installation.settings) as database:
        _refuse_strange(database)
        counts = ledger_status.counters(Ledger(database, label=PolicyLabel(installation.settings.policy.label)))
    if not counts.balanced:
        means = "the numbers of status and metrics are wrong; rows were changed from outside"
        remedy = "run `ragbandit verify`; `ragbandit data recount` corrects the counters"
        return [problem("counters", "they do not add up", means=means, remedy=remedy)]
    return [fine("counters", f"{counts.decided} decided, {counts.learned} learned, {counts.waiting} waiting")]


def even(installation: Installation) -> Sequence[Finding]:
    """The side that the log of the present and the last week favours."""
    settings = installation.settings
    with opened(settings) as database:
        uneven = lately(database, policy=settings.policy.label, now=installation.clock())
    if uneven is None:
        text = "since last week no arm has more draws, outcomes or ratings than the logged probabilities promise"
        return [fine("sample ratio", text)]
    means = "the rows that one arm has differ from the others' by more than chance, so comparisons of arms may be wrong"
    remedy = "the page says what can be corrected, and what cannot"
    return [warning("sample ratio", uneven.sentence, means=means, remedy=remedy)]


def held(installation: Installation) -> Sequence[Finding]:
    """Who holds what only one may do, and whether one is held for longer than any of ours takes it."""
    now = installation.clock()
    with opened(installation.settings) as database:
        _refuse_strange(database)
        with database.read() as connection:
            rows = connection.execute(select(leases).where(leases.c.expires_at > now)).all()
    longest = max(LONGEST_LEASE_S, installation.settings.learning.lease_s)
    rows = [row for row in rows if not row.name.startswith("ready:")]
    long = [row for row in rows if row.expires_at > now + longest]
    if long:
        means = "a clock was ahead when it was taken; until it runs out nobody else may do this"
        remedy = "set the clocks, stop the holder, then delete this row of the table leases"
        text = ", ".join(f"{row.name} for {duration(row.expires_at - now)} by {row.holder}" for row in long)
        return [problem("leases", text, means=means, remedy=remedy)]
    return [fine("leases", ", ".join(f"{row.name} is held by {row.holder}" for row in rows) or "none is held")]


def _refuse_strange(database: Database) -> None:
    with database.read() as connection:
        if not inspect(connection).has_table("policies"):
            raise StoreError("the database has no schema of ours", remedy="run: ragbandit migrate")
