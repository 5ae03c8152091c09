"""The schema of the database. `migrations/` creates its tables.

Rows of `updates` are never changed, but retention deletes old ones. In `feedback` only the column `late` changes.
Erasure blanks texts of users in `decisions`, `outcomes`, `feedback` and `paired_answers`. A decision that a ledger has
neither learned nor closed has a row in `waiting`. The transaction that inserts the decision's row in `updates` or
`closures` deletes this row, so until retention deletes the decision, it is in exactly one of the three tables.
"""

import functools
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    text,
)
from sqlalchemy.schema import SchemaItem

#: migration of the first release; revisions have four digits, so that they compare as text
FIRST_REVISION = "1001"
#: newest migration of this release
SCHEMA_REVISION = "1007"
#: Oldest schema that this code can use. Migrations up to this one run before its processes start; later ones may run
#: after all processes of the previous release have ended.
OLDEST_REVISION = "1007"

metadata = MetaData()


def _table(name: str, *items: SchemaItem, comment: str, **options: Any) -> Table:
    return Table(name, metadata, *items, comment=comment, **options)


def _partial_index(name: str, *columns: Column[Any], where: ColumnElement[bool], **options: Any) -> None:
    Index(name, *columns, sqlite_where=where, postgresql_where=where, **options)


ID = String(64)
LABEL = String(40)
#: 64-bit integer; a plain INTEGER on SQLite, where all integers have 64 bits
LONG = BigInteger().with_variant(Integer, "sqlite")

#: condition of the partial index `feedback_labels`; databases use the index only for queries with the same condition
IS_LABEL: Final = text("source = 'label'")


policies = _table(
    "policies",
    Column("label", LABEL, primary_key=True),
    Column("algorithm", String(40), nullable=False),
    Column("params", Text, nullable=False, comment="JSON object"),
    Column("encoder_hash", String(64), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("retired_at", Double, comment="when the ledger was retired; NULL: in use"),
    Column("inheriting", String(16), comment="pass over older decisions, insert or again; NULL: finished"),
    Column("inherited_to", ID, comment="id of the last decision of that pass"),
    Column("inherit_after", String(20), comment="the pass continues after this transaction; NULL: not known yet"),
    Column("diagnosis", Text, comment="JSON object: how far the policy has learned"),
    Column("arms", Text, comment="JSON object: versions of the arms"),
    Column("frontier", Text, comment="JSON object: quality and cost of the policy at each weight"),
    Column("encoder", Text, comment="JSON object: model, and where its weights came from"),
    comment="the ledgers: each policy's name, params and encoder, and how far it has inherited older decisions",
)

waiting = _table(
    "waiting",
    Column("decision_id", ID, primary_key=True),
    Column("policy", LABEL, primary_key=True),
    Column("decided_at", Double, nullable=False),
    Column("run_by", String(16), nullable=False),
    Column("has_outcome", Boolean, nullable=False),
    Column("has_feedback", Boolean, nullable=False),
    Column("has_reward", Boolean, nullable=False, comment="whether the feedback includes a raw reward"),
    Column("open_until", Double, comment="end of its unit, if that is a task; NULL: one turn", info={"since": "1004"}),
    Index("waiting_age", "policy", "decided_at", "decision_id"),
    comment="decisions that a ledger has not learned or closed yet; the row is deleted when it does",
)

# Most decisions get no feedback, and then have no entry in this index. The conditions are those of queries.
Index(
    "waiting_rated",
    *waiting.c["policy", "has_outcome", "has_reward", "decided_at"],
    sqlite_where=text("has_feedback = 1"),
    postgresql_where=text("has_feedback"),
    info={"since": "1005"},
)

updates = _table(
    "updates",
    Column("policy", LABEL, primary_key=True),
    Column("seq", LONG, primary_key=True, autoincrement=False, comment="1, 2, 3 ... of this policy, without a gap"),
    Column("decision_id", ID, nullable=False),
    Column("arm", String(64), nullable=False, comment="the arm that was drawn"),
    Column("propensity", Double, nullable=False, comment="probability of the arm"),
    Column("value", Double, nullable=False, comment="the reward: quality - weight * cost, within its bounds"),
    Column("quality", Double, nullable=False),
    Column("cost", Double, nullable=False, comment="the sum of all priced terms"),
    Column("weight", Double, nullable=False, comment="weight of the cost (lambda)"),
    Column("minimum", Double, nullable=False, comment="lower bound of the value"),
    Column("maximum", Double, nullable=False, comment="upper bound of the value"),
    Column("terms", Text, nullable=False, comment="JSON object: price per unit of cost"),
    Column("preset", String(32), nullable=False, comment="measure of the quality, rating, mixed or reward"),
    Column("source", String(16), nullable=False, comment="explicit (feedback) or default"),
    Column("feedback_ids", Text, nullable=False, comment="JSON list"),
    Column("feedback_at", Double, comment="when the last of the feedback came in"),
    Column("made_at", Double, nullable=False),
    Column("judged_by", String(16), comment="label, human, judge or event"),
    Column("surrogates", Text, comment="JSON object: quality by judge and event"),
    Column("sample_weight", Double, nullable=False, comment="number of rows that this row counts as"),
    Column("decided", BigInteger, comment="decisions made by then, learned or not"),
    Column("restarts", Text, comment="JSON list: arms restarted before this row; NULL: none"),
    UniqueConstraint("policy", "decision_id", name="updates_decision_once"),
    comment="the ledger: what each policy learned, in order and without a gap; never updated",
)

closures = _table(
    "closures",
    Column("policy", LABEL, primary_key=True),
    Column("decision_id", ID, primary_key=True),
    Column("state", String(16), nullable=False, comment="closed or quarantined"),
    Column("field", String(64)),
    Column("reason", Text, nullable=False),
    Column("made_at", Double, nullable=False),
    comment="decisions that a ledger closed without learning from them, and why",
)

snapshots = _table(
    "snapshots",
    Column("version", String(128), primary_key=True),
    Column("policy", LABEL, nullable=False),
    Column("algorithm", String(40), nullable=False),
    Column("params", Text, nullable=False, comment="JSON object"),
    Column("params_sha256", String(43), nullable=False, comment="sha256 of params, short enough for an index"),
    Column("last_seq", LONG, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("encoder_hash", String(64), nullable=False),
    Column("made_at", Double, nullable=False),
    Index("snapshots_latest", "policy", "last_seq"),
    Index("snapshots_of_params", "policy", "algorithm", "params_sha256", "last_seq"),
    comment="files of policies: a cache of the ledger",
)

judge_days = _table(
    "judge_days",
    Column("day", String(10), primary_key=True, comment="UTC"),
    Column("shard", Integer, primary_key=True, autoincrement=False, comment="0: counted by judges; summed when read"),
    Column("begun", LONG, nullable=False, comment="judgements that began"),
    Column("scored", LONG, nullable=False, comment="scores stored"),
    Column("failed", LONG, nullable=False, comment="tries without a score"),
    Column("given_up", LONG, nullable=False, comment="decisions that were tried too often"),
    Column("expired", LONG, nullable=False, comment="decisions that were not judged in time"),
    Column("suspicious", LONG, nullable=False, comment="decisions with a text that gives the judge instructions"),
    Column("skipped", LONG, nullable=False, comment="decisions not judged, since the queue was full"),
    Column("prompt_tokens", LONG, nullable=False),
    Column("completion_tokens", LONG, nullable=False),
    Column("dollars", Double, nullable=False),
    comment="work and cost of the judge by day",
)

quarantines = _table(
    "quarantines",
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("source", Text, nullable=False, comment="key:PUBLIC_ID, tenant:NAME, role:NAME or rater:NAME"),
    Column("since", Double, comment="earliest feedback; NULL: no bound"),
    Column("until", Double, comment="the feedback came in before this time; NULL: no bound"),
    Column("label", LABEL, nullable=False, comment="the ledger that had learned from the feedback"),
    Column("new_label", LABEL, nullable=False, comment="the ledger that is learned without the feedback"),
    Column("reason", Text, nullable=False),
    Column("actor", String(128), nullable=False),
    Column("made_at", Double, nullable=False),
    comment="feedback that is excluded from learning; its ledger was learned again without it",
)

api_keys = _table(
    "api_keys",
    Column("public_id", String(16), primary_key=True),
    Column("secret_sha256", String(64), nullable=False, comment="sha256 of the secret part, hex digits"),
    Column("name", String(64), nullable=False),
    Column("role", String(16), nullable=False, comment="reader, app, rater, worker, operator, admin"),
    Column("scopes", Text, nullable=False, comment="JSON object: restrictions in addition to the role"),
    Column("tenant", String(64), comment="NULL: every tenant"),
    Column("made_at", Double, nullable=False),
    Column("made_by", String(64), nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    Column("last_used_at", Double, comment="written at most once a minute"),
    comment="keys of callers; of their secrets only the sha256",
)

audit_log = _table(
    "audit_log",
    Column("number", LONG, primary_key=True, autoincrement=False, comment="1, 2, 3 ..."),
    Column("made_at", Double, nullable=False),
    Column("actor", String(128), nullable=False, comment="key:PUBLIC_ID, cli:USER@HOST or process:NAME@HOST"),
    Column("action", String(64), nullable=False, comment="key.create, feedback.quarantine, ..."),
    Column("target", String(128), nullable=False, comment="object of the action"),
    Column("tenant", String(64)),
    Column("facts", Text, nullable=False, comment="JSON object"),
    comment="who changed what; append-only",
)

service_secrets = _table(
    "service_secrets",
    Column("name", String(32), primary_key=True, comment="draws: secret from which seeds of draws are computed"),
    Column("value", String(64), nullable=False, comment="hex digits"),
    Column("made_at", Double, nullable=False),
    comment="secrets that the service made for itself",
)

leases = _table(
    "leases",
    Column("name", String(64), primary_key=True),
    Column("holder", String(128), nullable=False),
    Column("expires_at", Double, nullable=False),
    comment="tasks that one process at a time may do, and the process that does them",
)

policy_versions = _table(
    "policy_versions",
    Column("name", LABEL, primary_key=True),
    Column("base", LABEL, nullable=False, comment="policy.label of the configuration that it is a version of"),
    Column("label", LABEL, nullable=False, comment="label of the version's own ledger"),
    Column("state", String(16), nullable=False),
    Column("former", String(16), comment="champion for a former champion, else NULL"),
    Column("changes", Text, nullable=False, comment="JSON object: settings that differ from the configuration"),
    Column("revision", LONG, nullable=False, comment="number of changes of this row"),
    Column("reason", Text, nullable=False),
    Column("made_by", String(128), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("since", Double, nullable=False, comment="time of the last change of state"),
    Index("policy_versions_base", "base", "state"),
    comment="versions of a policy, which people roll out by evidence",
)

policy_control = _table(
    "policy_control",
    Column("base", LABEL, primary_key=True, comment="policy.label of the configuration"),
    Column("revision", LONG, nullable=False, comment="number of changes of versions and of the switch"),
    Column("killed", String(16), comment="arm or champion; NULL: versions decide"),
    Column("arm", String(64)),
    Column("actor", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("made_at", Double, nullable=False),
    comment="the kill switch, and the number of changes of versions",
)


#: `decisions.arm_by` of a row that a former release has inserted, and that nothing has filled
UNFILLED_ARM_BY: Final = "?"
#: Flags of schema 1006 in `decisions`, which `arm_by` replaces. Nothing reads or writes them. They stay in the
#: database, since processes of the former release insert them during a rolling upgrade.
FORMER_FLAGS: Final = ("is_forced", "is_sticky", "is_pinned")
#: columns with facts that `facts` and `request` have as JSON, too; storage/rows/queried_facts.py has their meanings
_QUERIED: Final = (
    Column("is_imported", Boolean, comment="NULL: code before schema 1006 made the row; all of these are in its JSON"),
    Column("has_callers_id", Boolean),
    Column("is_of_agent", Boolean),
    Column("is_moved", Boolean),
    Column("budget_factor", Double),
    Column("task_until", Double),
    Column("belongs_to", Text, comment="JSON list of ids"),
    Column("responses", Text, comment="JSON list of ids"),
    Column(
        "arm_by",
        String(16),
        server_default=UNFILLED_ARM_BY,
        comment="who chose the arm, see ArmBy; NULL: the policy drew it; ?: a former release made the row",
        info={"since": "1007"},
    ),
)
QUERIED_FACTS: Final = tuple(column.name for column in _QUERIED)
for _column in _QUERIED:
    _column.info.setdefault("since", "1006")

decisions = _table(
    "decisions",
    Column("id", ID, primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("text", Text, nullable=False, comment="the question"),
    Column("context", Text, nullable=False, comment="JSON object, as the caller sent it"),
    Column("budget", Text, nullable=False, comment="JSON object: the caller's caps"),
    Column("allowed", Text, comment="JSON list of the arms the caller allowed; NULL: all"),
    Column("body_hash", String(43), nullable=False, comment="sha256 of the request, to recognise repeated requests"),
    Column("arms", Text, nullable=False, comment="JSON list: the arms on offer, in the order of pmf and scores"),
    Column("pmf", Text, nullable=False, comment="JSON list: probability of each arm, after the floor"),
    Column("scores", Text, comment="JSON list: the policy's value for each arm; NULL: the policy has none"),
    Column("arm", String(64), nullable=False, comment="the arm that was drawn"),
    Column("propensity", Double, nullable=False, comment="probability of the arm"),
    Column("policy", LABEL, nullable=False, comment="label of the ledger that decided"),
    Column("version", String(128), nullable=False, comment="the snapshot that decided"),
    Column("encoder_hash", String(64), nullable=False, comment="sha256 of the encoder that made the features"),
    Column("seed", String(20), nullable=False, comment="from id and the secret draws: unsigned 64-bit, decimal"),
    Column("floor", Double, nullable=False, comment="least probability of an arm"),
    Column("explored", Boolean, nullable=False, comment="whether another arm was at least as likely"),
    Column("fault", Text, comment="why the policy's pmf was not used; NULL: it was used"),
    Column("facts", Text, nullable=False, comment="JSON object: further facts that the policy logs"),
    Column("run_by", String(16), nullable=False, comment="who runs the arm: worker or caller"),
    Column("features", LargeBinary, comment="float32 or float16, little endian, see storage/rows/conversion.py"),
    Column("made_at", Double, nullable=False, comment="seconds since the epoch, like every time in this schema"),
    Column("session", String(128), comment="the conversation"),
    Column("api_key", String(16), comment="public id of the caller's key"),
    Column("request", Text, comment="JSON object: messages, asked, and facts of the edge; NULL: nothing"),
    Column("cost_weight", Double, comment="weight of cost in use; NULL: that of the setting reward"),
    Column("price", String(64), comment="the caller's weight of cost, a name or a number; NULL: none"),
    Column("turn_of", ID, comment="the decision that this turn belongs to; NULL: a decision", info={"since": "1004"}),
    *_QUERIED,
    Index("decisions_made_at", "made_at"),
    comment="every decision, with everything that its draw depends on; updated only to erase texts",
)
_partial_index(
    "decisions_session", *decisions.c["session", "tenant", "made_at"], where=decisions.c.session.is_not(None)
)

_partial_index("decisions_turns", decisions.c.turn_of, where=decisions.c.turn_of.is_not(None), info={"since": "1004"})

units = _table(
    "units",
    Column("key", String(43), primary_key=True, comment="sha256 of tenant, API key, conversation, agent and model"),
    Column("first", ID, nullable=False, comment="the decision of the newest task of this conversation"),
    Column("arm", String(64), nullable=False, comment="arm of the newest turn"),
    Column("turns", Integer, nullable=False),
    Column("until", Double, nullable=False, comment="a later request begins a new task"),
    Index("units_first", "first"),
    comment="the newest task of each conversation: its decision and the arm that its next turn gets",
    info={"since": "1004"},
)

jobs = _table(
    "jobs",
    Column("kind", String(16), primary_key=True, comment="answer, judge, check, label or pair (begun_pairs.py)"),
    Column("decision_id", ID, primary_key=True),
    Column("tenant", String(64), comment="answer: the queue is fair to tenants; NULL for other kinds"),
    Column("arm", String(64), comment="answer: the drawn arm; NULL for other kinds"),
    Column("turn", LONG, nullable=False, comment="position in the queue, the lowest is next; 0 for other kinds"),
    Column("made_at", Double, nullable=False, comment="time of the decision, or of its outcome"),
    Column("due_at", Double, nullable=False, comment="earliest time of the next try; orders equal positions"),
    Column("tries", Integer, nullable=False, comment="number of tries, without those that a failing server ended"),
    Column("claimed_by", String(128), comment="the process that works on it; NULL: none"),
    Column("claimed_until", Double, comment="by the clock of the database"),
    Column("facts", Text, nullable=False, comment="JSON object; answer: the original chat; judge: share, failures"),
    Column("api_key", String(16), comment="answer: public id of the caller's key", info={"since": "1002"}),
    Column(
        "reserved",
        LONG,
        comment="answer: its estimated cost, which budgets count until the outcome is stored, billionths of a dollar",
        info={"since": "1002"},
    ),
    comment="decisions that wait for an answer, the judge, a check or a label; the row is deleted with the result",
)
_partial_index("jobs_next", *jobs.c["kind", "turn", "due_at"], where=jobs.c.claimed_by.is_(None))
_partial_index("jobs_claimed", *jobs.c["kind", "claimed_by"], where=jobs.c.claimed_by.is_not(None))
_partial_index(
    "jobs_reserved",
    *jobs.c["tenant", "api_key", "reserved"],
    where=jobs.c.reserved.is_not(None),
    info={"since": "1002"},
)
# A job that is claimed when it is inserted has no entry in the following indexes.
_partial_index(
    "jobs_of_tenant",
    *jobs.c["kind", "tenant", "turn"],
    where=and_(jobs.c.tenant.is_not(None), jobs.c.claimed_by.is_(None)),
    info={"since": "1005"},
)
_partial_index("jobs_age", *jobs.c["kind", "made_at"], where=jobs.c.tenant.is_(None), info={"since": "1005"})

outcomes = _table(
    "outcomes",
    Column("decision_id", ID, ForeignKey("decisions.id"), primary_key=True),
    Column("body_hash", String(43), nullable=False, comment="sha256 of the reported outcome"),
    Column("status", String(16), nullable=False, comment="answered, exhausted or failed"),
    Column("answer", Text),
    Column("trace", LargeBinary, comment="JSON list of events, compressed (storage/rows/outcome_rows.py)"),
    Column("cost", Text, nullable=False, comment="JSON object; a missing key means 0"),
    Column("steps", Double, nullable=False, comment="rounds of search and generation"),
    Column("stop_reason", String(64), nullable=False),
    Column("error", Text, comment="the message of the failure"),
    Column("run_by", String(16), nullable=False, comment="who ran the arm: worker or caller"),
    Column("made_by", Text, nullable=False, comment="JSON object: params, generator, retriever, budget"),
    Column("made_at", Double, nullable=False),
    Column("sources", Text, comment="JSON list: the passages that were shown; NULL: none"),
    Column("reply", Text, comment="JSON object: parts of the model's reply other than text"),
    Column(
        "call",
        String(43),
        comment="sha256 of caller, conversation, and tool calls or answer; see continuing.py",
    ),
    Column(
        "taken_by", ID, comment="the decision with the results of these calls, or with the next turn; NULL: none yet"
    ),
    Index("outcomes_made_at", "made_at"),
    comment="outcome of a decision: the answer and its cost; at most one per decision",
)

_partial_index("outcomes_call", outcomes.c.call, where=outcomes.c.call.is_not(None))

cancellations = _table(
    "cancellations",
    Column("decision_id", ID, ForeignKey("decisions.id"), primary_key=True),
    Column("asked_at", Double, nullable=False),
    comment="decisions that callers asked to cancel",
)

feedback = _table(
    "feedback",
    Column("id", ID, primary_key=True),
    Column("decision_id", ID, ForeignKey("decisions.id"), nullable=False),
    Column("body_hash", String(43), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("value", Text, nullable=False, comment="JSON number, list of gold answers, or null"),
    Column("source", String(16), nullable=False),
    Column("late", Boolean, nullable=False, comment="whether the ledger that decided had closed the decision before"),
    Column("received_at", Double, nullable=False),
    Column("rater", String(64), comment="name of the rater"),
    Column("event", String(64), comment="name of the event"),
    Column("facts", Text, comment="JSON object: further facts from the rater"),
    Column("api_key", String(16), comment="public id of the caller's key"),
    Index("feedback_decision", "decision_id"),
    Index("feedback_rater", "rater", "received_at"),
    Index("feedback_labels", "received_at", sqlite_where=IS_LABEL, postgresql_where=IS_LABEL),
    comment="labels, ratings, rewards and events, as they came in",
)

paired_answers = _table(
    "paired_answers",
    Column("decision_id", ID, primary_key=True),
    Column("arm", String(64), primary_key=True, comment="the arm that answered"),
    Column("version", String(43), primary_key=True, comment="sha256 of the arm's definition and of its limits"),
    Column("judge", String(43), primary_key=True, comment="sha256 of the judge's definition"),
    Column("rater", String(64), nullable=False, comment="name of the judge, or path of the check"),
    Column("is_stored", Boolean, nullable=False, comment="whether it is the outcome's answer, not asked again"),
    Column("status", String(16), nullable=False, comment="as in outcomes"),
    Column("answer", Text, comment="NULL: no answer, or the outcome has it"),
    Column("cost", Text, nullable=False, comment="JSON object; a missing key means 0"),
    Column("steps", Double, nullable=False, comment="as in outcomes"),
    Column("stop_reason", String(64), nullable=False),
    Column("error", Text, comment="the message of the failure"),
    Column("quality", Double, comment="in [0, 1]; NULL: the judge gave no score, or was not asked yet"),
    Column("unjudged", Text, comment="why the judge gave no score; NULL: it gave one, or was not asked yet"),
    Column("dollars", Double, nullable=False, comment="what it cost to ask and to judge"),
    Column("actor", String(128), nullable=False, comment="who asked for it, and was charged"),
    Column("made_at", Double, nullable=False),
    comment="answers of two arms to the same questions, for `report --decide`: judged by one judge, and never learned",
    info={"since": "1003"},
)

counters = _table(
    "counters",
    Column(
        "label",
        LABEL,
        primary_key=True,
        comment="ledger; empty: store; spent:HASH: tenant, key, session, task; judge:HASH: arm",
    ),
    Column("name", String(24), primary_key=True, comment="name of the count; of spending the day, as 2026-11-22"),
    Column("shard", Integer, primary_key=True, autoincrement=False, comment="summed when read"),
    Column("value", LONG, nullable=False, comment="number of rows; of spending billionths of a dollar"),
    comment="counts that change with the rows, so that readers need not count rows",
)

#: `arm_hours.hour` of rows that sum up all hours
EVER: Final = -1
arm_hours = _table(
    "arm_hours",
    Column("policy", LABEL, primary_key=True),
    Column("hour", Integer, primary_key=True, autoincrement=False, comment="hours since the epoch, UTC"),
    Column("arm", String(64), primary_key=True),
    Column("totals", Text, nullable=False, comment="JSON object: counts and sums of types/totals.py"),
    comment="activity and rewards of each arm in each hour",
)

reading_positions = _table(
    "reading_positions",
    Column("reader", String(128), primary_key=True, comment="arm_hours:LABEL, ..."),
    Column("position", Text, nullable=False, comment="JSON object: the last rows that were read"),
    Column("moved_at", Double, nullable=False),
    comment="positions of readers that process tables in order",
)


@functools.cache
def schema_at(revision: str) -> MetaData:
    """The tables at this revision of the schema: without tables, columns and indexes of later migrations."""
    then = MetaData()
    for table in metadata.sorted_tables:
        if _is_later(table, revision=revision):
            continue
        copy = table.to_metadata(then)
        for column in copy.columns:
            if _is_later(column, revision=revision):
                column.system, column.comment = True, None  # CREATE TABLE leaves a system column out
        later = {index.name for index in table.indexes if _is_later(index, revision=revision)}  # copies have no info
        for index in [index for index in copy.indexes if index.name in later]:
            copy.indexes.remove(index)
    return then


def _is_later(item: SchemaItem, *, revision: str) -> bool:
    return bool(item.info.get("since", FIRST_REVISION) > revision)
