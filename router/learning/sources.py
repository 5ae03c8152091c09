"""Sources of feedback: who sent each judgement, how much it weighs, and which sources a ledger excludes.

A feedback has several sources. Settings name them as follows:

    key:ID       the API key, by its public id or name; a key and the keys that replaced it are the same source
    tenant:NAME  the tenant of the judged decision
    role:NAME    the role of the API key
    rater:NAME   the rater that the caller sent; import:... is short for rater:import:...

A name that ends in * matches every source that begins with the text before the *.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, get_args

from sqlalchemy import Connection, func, insert, select

from ragbandit.router.config.learning import LearningSettings
from ragbandit.router.learning.adjustments import AdjustedRow, Adjustment, Basis
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import TableRows
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import api_keys, feedback, quarantines
from ragbandit.shared.texts.text_forms import name_form
from ragbandit.shared.types import Feedback, FeedbackId, JoinedDecision, Json, JudgedBy, JudgeRequest, LabelRequest

DAY_S: Final = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion:
    """A source whose feedback is not learned in a ledger. The store's names for exclusions contain `quarantine`."""

    #: number of the exclusion, from 1, set by `add_exclusion`
    number: int = 0
    source: str
    #: feedback received at this time or later is excluded; None for no lower bound
    since: float | None
    #: feedback received before this time is excluded; None for no upper bound
    until: float | None
    label: str  #: label of the ledger that has learned the feedback
    new_label: str  #: label of the ledger that is learned without it
    reason: str
    actor: str
    made_at: float

    def covers(self, received_at: float) -> bool:
        return (self.since is None or received_at >= self.since) and (self.until is None or received_at < self.until)


#: key of a daily cap: (API key, rater, day in UTC as days since 1970)
RaterDay = tuple[str | None, str, int]
_ROWS: Final = TableRows(quarantines, Exclusion)


def exclusions_of(database: Database, *, new_label: str | None = None) -> list[Exclusion]:
    """Exclusions, oldest first. new_label: ledger that is learned without the feedback; None for all exclusions."""
    with database.read() as connection:
        return stored_exclusions(connection, new_label=new_label)


def stored_exclusions(connection: Connection, *, new_label: str | None = None) -> list[Exclusion]:
    query = select(quarantines).order_by(quarantines.c.number)
    if new_label is not None:
        query = query.where(quarantines.c.new_label == new_label)
    return [_ROWS.value(row) for row in connection.execute(query).mappings()]


def add_exclusion(connection: Connection, exclusion: Exclusion) -> Exclusion:
    """Store an exclusion under the next number, in the caller's write transaction."""
    last = connection.execute(select(func.coalesce(func.max(quarantines.c.number), 0))).scalar_one()
    numbered = replace(exclusion, number=int(last) + 1, actor=exclusion.actor[:128])
    connection.execute(insert(quarantines).values(**_ROWS.row(numbered)))
    return numbered


def first_above_cap(database: Database, days: Collection[RaterDay], *, cap: int) -> dict[RaterDay, tuple[float, str]]:
    """For each rater and day with more than `cap` judgements: (received_at, id) of the first one above the cap."""
    beyond: dict[RaterDay, tuple[float, str]] = {}
    with database.read() as connection:
        for number in sorted({day for _, _, day in days}):
            raters = {rater for _, rater, day in days if day == number}
            in_day = feedback.c.received_at >= number * DAY_S, feedback.c.received_at < (number + 1) * DAY_S
            names = feedback.c.rater, feedback.c.api_key
            counts = select(*names).where(feedback.c.rater.in_(raters), *in_day).group_by(*names)
            for rater, api_key in connection.execute(counts.having(func.count() > cap)).all():
                by_rater = feedback.c.rater == rater, feedback.c.api_key.is_not_distinct_from(api_key)
                query = select(feedback.c.received_at, feedback.c.id).where(*by_rater, *in_day)
                ordered = query.order_by(feedback.c.received_at, feedback.c.id).offset(cap).limit(1)
                received_at, key = connection.execute(ordered).one()
                beyond[api_key, rater, number] = (received_at, key)
    return beyond


#: prefixes of source names, the most specific one first
KINDS: Final = ("rater", "import", "key", "role", "tenant")
#: lower limit of the probability that a decision is queued for a label, as a multiple of the share that is queued
LEAST_LABELLED: Final = 0.2
#: prefix of the rater of feedback that was imported from another system
IMPORTED_RATER: Final = "import:"


def read_keys(database: Database) -> dict[str, set[str]]:
    """Public id of each API key, also of revoked ones -> further names of this source."""
    with database.read() as connection:
        rows = connection.execute(select(*api_keys.c["public_id", "name", "role"])).all()
    return {key: {f"key:{name_form(name)}", f"role:{role}"} for key, name, role in rows}


def sources_of(item: Feedback, *, tenant: str, keys: Mapping[str, set[str]]) -> set[str]:
    """Full names of all sources of a feedback. tenant: tenant of the judged decision. keys: see `read_keys`."""
    names = {f"tenant:{tenant}"}
    if item.rater is not None:
        names.add(f"rater:{name_form(item.rater)}")
    if item.api_key is not None:
        names |= {f"key:{item.api_key}", *keys.get(item.api_key, ())}
    return names


def matches_source(name: str, sources: Collection[str]) -> bool:
    """Whether a name of settings and commands matches one of a feedback's sources (`sources_of`)."""
    kind, _, given = name.partition(":")
    full_name = f"{'rater:import' if kind == 'import' else kind}:{name_form(given)}"
    if full_name.endswith("*"):
        return any(source.startswith(full_name[:-1]) for source in sources)
    return full_name in sources


def weight_factor(item: Feedback, *, sources: Collection[str], configured: Mapping[str, float]) -> float:
    """Factor on the weight of a feedback, >= 0. Feedback with factor 0 is stored, but not learned.

    The most specific kind of matching name counts (key, then role, tenant), then a name without *, then the longest. If
    no name matches, the factor is 1. Callers choose the names of raters, so a rater's name can only lower the factor.
    In imported files a rater's name takes precedence, since an operator has imported them. Imported scores of a model,
    which nobody has checked, have the factor 0 if no name matches.
    """
    by_kind: dict[bool, list[str]] = {True: [], False: []}
    for name in configured:
        if matches_source(name, sources):
            by_kind[name.startswith(("rater:", "import:"))].append(name)
    of_rater, of_key = (None if not names else configured[min(names, key=_specificity)] for names in by_kind.values())
    if item.api_key is None and (item.rater or "").startswith(IMPORTED_RATER):
        given = of_rater if of_rater is not None else of_key
        return given if given is not None else 0.0 if item.source == "judge" else 1.0
    bound = 1.0 if of_key is None else of_key
    return bound if of_rater is None else min(bound, of_rater)


def _specificity(name: str) -> tuple[int, bool, int, str]:
    """Order of names in `learning.sources`, the most specific one first."""
    return KINDS.index(name.partition(":")[0]), name.endswith("*"), -len(name), name


def selection_weight(facts: Mapping[str, Json], *, source: str) -> float:
    """Number of rows that a label or a judge's score counts as. It is 1 unless the decision was selected for labels or
    scores with a probability of its own. Then it is (share of selected decisions) / (probability of this decision),
    which corrects for the selection, and at most 1 / LEAST_LABELLED.
    """
    kind = {"label": LabelRequest, "judge": JudgeRequest}.get(source)
    request = None if kind is None else kind.of(facts)
    return min(request.share / request.q, 1.0 / LEAST_LABELLED) if request is not None and request.asked else 1.0


#: rater classes, the most trusted one first
_CLASSES: Final[tuple[JudgedBy, ...]] = get_args(JudgedBy)


def rater_class(item: Feedback) -> JudgedBy:
    """The rater class of a judgement. All judgements of a model belong to the class "judge"."""
    if item.source in ("judge", "event"):
        return "judge" if item.source == "judge" else "event"
    return "label" if item.source in ("code", "label") or item.kind in ("label", "reward") else "human"


def judgements_in_force(feedback: Sequence[Feedback]) -> tuple[Feedback, ...]:
    """The judgements in force, in the order received. A rater's later judgement of a kind replaces the earlier one.

    A retraction removes the earlier judgement. Raters of the same name are different raters if their API keys differ.
    Feedback with a key and without a rater belongs to the key. Feedback without both replaces nothing.
    """
    last = {_judgement_key(item): item.id for item in feedback}
    return tuple(item for item in feedback if last[_judgement_key(item)] == item.id and not is_retraction(item))


def retracted_feedback(feedback: Sequence[Feedback]) -> tuple[Feedback, ...]:
    """The judgements that their raters retracted and did not give again. feedback: in the order received."""
    last = {_judgement_key(item): item for item in feedback}
    given = {_judgement_key(item): item for item in feedback if not is_retraction(item)}
    return tuple(given[rater] for rater, item in last.items() if is_retraction(item) and rater in given)


def is_retraction(item: Feedback) -> bool:
    """Whether the feedback retracts an earlier one of its rater. An event without a value is not a retraction."""
    return item.value is None and item.kind != "event"


def _judgement_key(item: Feedback) -> tuple[str, ...]:
    """What judgements have in common if a later one replaces the earlier; the own id if nobody is known."""
    if item.rater is None and item.api_key is None:
        return (item.id,)
    return (item.source, item.api_key or "", item.rater or "", item.kind, item.event or "")


class Judgements(NamedTuple):
    #: rater class -> its judgements, the most trusted class first; classes without judgements are missing
    by_class: Mapping[JudgedBy, tuple[Feedback, ...]]
    judged_by: JudgedBy
    #: judgements of the class `judged_by`, from which the reward is computed; code checks are left out if others exist
    used: tuple[Feedback, ...]


def judgements_of(feedback: Sequence[Feedback]) -> Judgements:
    """Sort a decision's feedback by rater class. At least one feedback must be in force."""
    by_class: dict[JudgedBy, tuple[Feedback, ...]] = {}
    for item in sorted(judgements_in_force(feedback), key=lambda item: _CLASSES.index(rater_class(item))):
        by_class[rater_class(item)] = (*by_class.get(rater_class(item), ()), item)
    judged_by, trusted = next(iter(by_class.items()))
    return Judgements(
        by_class=by_class, judged_by=judged_by, used=tuple(item for item in trusted if item.source != "code") or trusted
    )


class Screening(Adjustment):
    """Leaves out feedback that must not be learned, and sets factors on the weight of the rest."""

    def __init__(self, ledger: Ledger, *, settings: LearningSettings) -> None:
        self.ledger, self.settings = ledger, settings
        self._keys: Mapping[str, set[str]] = {}
        self._exclusions: tuple[Exclusion, ...] = ()
        #: result of `first_above_cap` for the decisions of the last `look_up`
        self._above_cap: Mapping[RaterDay, tuple[float, str]] = {}

    def refresh(self) -> None:
        self._keys = read_keys(self.ledger.database)
        self._exclusions = tuple(exclusions_of(self.ledger.database, new_label=self.ledger.label))

    def look_up(self, page: Sequence[JoinedDecision]) -> None:
        """Read which raters of these decisions exceed the daily cap."""
        items = (item for decision in page for item in decision.feedback)
        days = {day for day in map(_capped_day, items) if day is not None}
        cap = self.settings.rater_per_day
        self._above_cap = first_above_cap(self.ledger.database, days, cap=cap) if days and cap else {}

    def adjust(self, row: AdjustedRow, *, basis: Basis) -> AdjustedRow:  # noqa: ARG002 - of the protocol
        joined = row.joined
        usable: list[Feedback] = []
        factors: dict[str, float] = {}
        for item in joined.feedback:
            sources = sources_of(item, tenant=joined.decision.query.tenant, keys=self._keys)
            day = _capped_day(item)
            first = None if day is None else self._above_cap.get(day)
            if first is not None and (item.received_at, item.id) >= first:
                continue
            if any(rule.covers(item.received_at) and matches_source(rule.source, sources) for rule in self._exclusions):
                continue
            weight = weight_factor(item, sources=sources, configured=self.settings.sources)
            if item.source == "label" or (item.source == "judge" and "share" in item.facts):
                weight *= selection_weight(joined.decision.facts, source=item.source)
            if weight > 0.0 or is_retraction(item):
                usable.append(item)
            if weight != 1.0:
                factors[item.id] = weight
        replaced = self._replaced_ids(joined, usable)
        learnable = tuple(item for item in usable if item.id not in replaced)
        learnable_ids = {item.id for item in learnable}
        left_out = tuple(item for item in joined.feedback if item.id not in learnable_ids)
        remaining = replace(joined, feedback=learnable) if left_out else joined
        return replace(row, joined=remaining, left_out=left_out, factors=factors)

    def _replaced_ids(self, joined: JoinedDecision, items: Sequence[Feedback]) -> set[FeedbackId]:
        """Ids of retractions, and of judgements that were retracted or replaced within `wait_s`."""
        wait_s = self.settings.wait_s
        end = joined.decision.made_at + wait_s
        in_time = [item for item in items if wait_s == 0 or item.received_at <= end]
        judgements = [item for item in in_time if item.value is not None or is_retraction(item)]
        return {item.id for item in judgements} - {item.id for item in judgements_in_force(judgements)}


def _capped_day(item: Feedback) -> RaterDay | None:
    """The rater and day against whose cap a feedback counts; None if it has no rater, or comes from the operator."""
    if item.rater is None:
        return None
    if item.api_key is None and (item.source in ("judge", "code") or item.rater.startswith(IMPORTED_RATER)):
        return None
    return item.api_key, item.rater, int(item.received_at // DAY_S)
