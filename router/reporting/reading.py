"""A report and its rows: the decisions of a period with their outcomes and learned rewards, as arrays.

If a period has more than `ReportScope.most` questions, a sample is read: rows are chosen by the last six digits of the
decision's seed, a hash of its id under the store's secret. Every question has the same chance whatever its time, arm or
rating, and every reader gets the same rows. (The first 53 bits of the seed draw the arm; given the arm, the last digits
are still uniform.) Independent thinning keeps the means, the order and the propensities of the rows, so the confidence
sequences of the estimates hold for a sample too. The share that is read is a power of 1/2, so the sample of a growing
period seldom changes.
"""

import json
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import fmean
from typing import Any, Final

import numpy as np
from sqlalchemy import ColumnElement, RowMapping, and_, case, exists, func, select, true

from ragbandit.router.comparison import NOT_KNOWN, Comparison, words
from ragbandit.router.comparison.assessment import LearningCurve, QuestionKind
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.rules import RuleBook
from ragbandit.router.config.sections import ConversationSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.drifts import Change
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.learning.sources import judgements_in_force, retracted_feedback, selection_weight
from ragbandit.router.reporting.deciders import Decider, decider_of, is_raised, newest_deciders, paced_askers
from ragbandit.router.reporting.estimates import LEAST_CHANCE
from ragbandit.router.reporting.left_out import (
    ASKER_COLUMNS,
    UNITS,
    UndrawnQuestions,
    UndrawnSums,
    Unit,
    asker_of,
    budget_of,
    decided_by,
    reason_to_leave_out,
)
from ragbandit.router.storage.access.corrections import Corrections, corrections_of
from ragbandit.router.storage.access.turn_sums import reached_labels, turn_spenders
from ragbandit.router.storage.rows.conversion import feedback_value
from ragbandit.router.storage.rows.outcome_rows import ASSUMED, REFUSED, Amounts, cost_value, spent_of
from ragbandit.router.storage.rows.queried_facts import (
    FACT_COLUMNS,
    IMPORTED_COLUMNS,
    QueriedFacts,
    is_imported,
    or_unfilled,
)
from ragbandit.router.storage.rows.waiting import STOPPED
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import closures, decisions, feedback, outcomes, units, updates
from ragbandit.shared.confidence_sequences import FEWEST_BOTH
from ragbandit.shared.texts.formats import counted
from ragbandit.shared.types import (
    WHOLE,
    AppliedRules,
    ArmName,
    CandidateNote,
    Feedback,
    Flags,
    Indices,
    LabelRequest,
    Matrix,
    SpenderKind,
    Vector,
    candidate_note,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Number of questions in a report's sample, and in its period."""

    questions: int
    """Questions in the sample."""
    out_of: int
    """Questions in the period, from which the sample was drawn uniformly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedComparison:
    """Served answers compared with a single arm's answers, on a random sample of the period's questions."""

    comparison: Comparison
    """Comparison for all routed questions of the period, estimated from the sample; `questions` counts all of them."""
    same: int
    """Questions that routing sent to this arm: their difference is 0."""
    differing: int
    """Questions that routing sent to another arm."""
    asked: int
    """Differing questions that both arms have answered, and whose answers one judge was asked about."""
    unjudged: int
    """Asked questions without a score for one of the answers: their difference lies between bounds."""
    waiting: int
    """Answers that wait for a label on the page Labels."""
    not_askable: Mapping[str, int]
    """Reason -> number of differing questions that cannot be asked again: their difference lies between bounds."""
    dollars: float
    """Dollars of all runs for asking and judging these questions."""
    judge: str
    """The judge, or path of the check, that scored both answers; "label queue" for people."""

    @property
    def sentence(self) -> str:
        waiting = f"{counted(self.waiting, 'label')} missing (page Labels)"
        if not self.asked:
            return f"Both were asked again: {waiting}."
        of = f"{self.asked:,} of the {counted(self.differing, 'question')} that went to other arms"
        more = f"; {waiting}" if self.waiting and self.comparison.verdict != NOT_KNOWN else ""
        return f"Both asked again on {of}: {words.sentence(self.comparison)}{more}."


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A report of a period: what was served ("routing") compared with always using one arm.

    A comparison covers only questions that the arm could have answered. Its intervals hold at every look.
    """

    sentence: str = ""
    """The report in one sentence, which begins with `state`."""
    state: str | None = None
    """What decided over half of the newest questions instead of the policy, in words; null if nothing did."""
    advice: str | None = None
    """"fix: always ARM earns as much", with the next command; null if routing pays, or if it is not known yet."""
    to_rate: int | None = None
    """Number of unrated answers of the compared arm whose ratings probably settle the verdict; null if it is not known,
    or if fewer answers can be labelled."""
    since: float
    """Start of the period, seconds since 1970."""
    until: float
    """End of the period, seconds since 1970."""
    tenant: str | None
    """The tenant whose questions are counted; null for all tenants."""
    unit: Unit
    """The unit of costs: dollars if outcomes report them, else steps or seconds."""
    why: str | None
    """Why this arm was chosen for the comparison; null if there is no arm to compare with."""
    price: str | None = None
    """What a right answer is worth by the reward setting, in words; null without a price."""
    dollars_per_reward: float | None = None
    """Dollars that a reward of 1 is worth by the reward setting; null if dollars are not the only charged cost."""
    sample: Sample | None = None
    """The sample behind comparisons; null if every question was read."""
    total: Comparison | None
    """Comparison on all questions with the compared arm; null if nothing can be compared."""
    before: str | None = None
    """Result of the same comparison on a warm start's questions, in words; null without one."""
    withdrawn: str | None = None
    """The last verdict on this comparison, and why it does not hold now; null if it holds, or without one."""
    asked: PairedComparison | None = None
    """Comparison by asking both ways again on a sample of the questions (`report --decide`); null without it."""
    changes: tuple[Change, ...] = ()
    """Changes within the period, the newest first: new arms, changed prices, drift. Means mix both times."""
    untried: str | None = None
    """Arms with fewer than ten rated answers, in words, if there is a verdict; null without such an arm."""
    kinds: tuple[QuestionKind, ...] = ()
    """Kinds of questions and their arms: the named kinds, or else all questions, or the kinds that differ most."""
    kinds_of: str = ""
    """How well the kinds tell the questions apart, or why there are none, in words."""
    curve: LearningCurve | None = None
    """Mean rewards so far of routing and of this arm, by time; null if the reward has no interval, or a wide one."""
    arms: tuple[Comparison, ...]
    """Comparisons with each arm on all questions, the most used arm first."""
    tenants: tuple[Comparison, ...]
    """Comparisons by tenant, the largest tenant first; empty if there is only one tenant."""
    prices: tuple[Comparison, ...]
    """Comparisons by price; empty if there is only one price."""
    weeks: tuple[Comparison, ...]
    """Comparisons by week, from Monday 00:00 UTC; empty if there is only one week."""
    retracted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Arm -> number of its ratings that were retracted before they were learned: `good` (0.5 or more) and `bad`."""
    questions: int = 0
    """All questions of the period, including questions in no comparison."""
    spent: float = 0.0
    """Costs of all these questions, in `unit`; estimated if the report is made from a sample."""
    unpriced: Mapping[str, int] = field(default_factory=dict)
    """Arm -> number of its answers without a price: `spent` does not include them, and no dollars are compared."""
    undrawn: tuple[UndrawnQuestions, ...] = ()
    """Questions that something else than the policy decided, by decider, the most first. They are in no comparison."""
    left_out: Mapping[str, int]
    """Reason -> number of questions that no comparison includes; estimated if the report is made from a sample."""
    notes: tuple[str, ...]
    """Notes on how to read the numbers, and on what they leave out."""
    learning: str | None = None
    """The state of learning, its reason, and what to do; null if it is unknown."""

    @property
    def compared_arm(self) -> ArmName | None:
        """The arm that routing is compared with; None if nothing can be compared."""
        return None if self.total is None else self.total.second_arm


_PAGE: Final = 2000
#: two questions are the same if this number of first characters and the length of their texts are equal
_SAME_CHARS: Final = 2000
#: default of `ReportScope.most`: reading this many questions takes about a second, and 20 MB
MOST_ROWS: Final = 30_000
_JUDGED: Final = ("quality", "reward", "by_judge", "is_drawn", "counts", "cluster", "best", "worst")
#: further numbers of the rows, besides _JUDGED
_BESIDES: Final = ("score", "score_counts", "retracted", "held")
_COLUMNS: Final = ("made_at", "tenant", "price", "asker", "raised", "stopped", "arm", *_JUDGED, *_BESIDES, *UNITS)
_OFFERED: Final = ("row", "place", "pmf", "quality", "cost", "candidate")
#: two probabilities are equal if they differ by less, so that rounding makes no policy differ from itself
_ROUNDING: Final = 1e-6
#: reasons to leave out a decision: the version gave no usable probabilities, or its router did not ask the version
NO_PMF: Final = "the version gave no probabilities"
NOT_ASKED: Final = "the version was not asked"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportScope:
    """Decisions that a report reads: since <= made_at < until, without turns of earlier decisions."""

    label: str  #: label of the policy whose ledger contains the rewards
    since: float
    until: float
    tenant: str | None = None
    #: if the period has more questions, a sample of about this number of rows or fewer is read
    most: int = MOST_ROWS
    #: version of the policy whose logged probabilities are read; rows without them are left out
    version: str | None = None
    #: reward setting, whose cost weight is applied to all rewards; None keeps the weights with which they were learned
    reward: RewardSettings | None = None
    #: the operator's present rules, under which stored questions may be asked again; None without rules
    rules: RuleBook | None = None
    #: names of the present arms; an arm that no question of the period was offered can be compared by asking it
    configured: frozenset[str] = frozenset()
    #: present limits, to count the tasks and sessions that have reached one; None not to count
    conversation: ConversationSettings | None = None

    @classmethod
    def of(
        cls, settings: Settings, *, label: str, since: float, until: float, tenant: str | None = None
    ) -> "ReportScope":
        """The scope of a period, with the reward, rules, arms and limits of these settings."""
        return cls(
            label=label,
            since=since,
            until=until,
            tenant=tenant,
            reward=settings.reward,
            rules=settings.rule_book,
            configured=frozenset(settings.arms),
            conversation=settings.conversation,
        )

    @property
    def condition(self) -> ColumnElement[bool]:
        period = and_(
            decisions.c.made_at >= self.since, decisions.c.made_at < self.until, decisions.c.turn_of.is_(None)
        )
        return period if self.tenant is None else and_(period, decisions.c.tenant == self.tenant)

    @property
    def is_open(self) -> ColumnElement[bool]:
        """Condition on `decisions`: the decision is for a task that had not ended at the end of the period."""
        return exists().where(units.c.first == decisions.c.id, units.c.until > self.until)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportRows:
    """n decisions that compare arms, the newest first. Vectors have shape (n,), matrices (n, arms)."""

    arms: tuple[str, ...]
    made_at: Vector
    tenant: Indices  #: index in `tenants`
    tenants: tuple[str, ...]
    price: Indices  #: index in `prices`
    prices: tuple[str, ...]  #: names of prices, or weights of cost as text
    arm: Indices  #: index of the drawn arm in `arms`
    pmf: Matrix  #: probabilities at the draw; 0 for arms that were not offered
    costs: Mapping[Unit, Vector]  #: unit -> costs of the outcomes, NaN without an outcome
    #: quality of the answer, from the rating, label or reward that was learned; NaN if nothing was learned
    quality: Vector
    #: the policy's predictions for every arm before the draw; NaN without a prediction
    expected_quality: Matrix
    expected_cost: Matrix
    left_out: Mapping[str, int]
    #: (arm, unit) -> cost of the questions in `left_out`
    left_costs: Mapping[tuple[str, Unit], float] = field(default_factory=dict)
    #: decider in words -> sums over its questions, which had no draw and are in `left_out`
    undrawn: Mapping[str, UndrawnSums] = field(default_factory=dict)
    #: rule of the operator -> number of questions to which it applied
    rules: Mapping[str, int] = field(default_factory=dict)
    #: whether a budget stopped the task, so that its quality is unknown; None if this was not read
    stopped: Flags | None = None
    #: (kind, arm) -> (questions whose task or session has reached a limit, questions with a limit)
    limited: Mapping[tuple[SpenderKind, str], tuple[int, int]] = field(default_factory=dict)
    #: (arm, unit) -> costs that came after the decision was closed, so that no reward includes them
    late: Mapping[tuple[str, Unit], float] = field(default_factory=dict)
    #: arm -> number of its answers whose calls have no price, including answers in `left_out`
    unpriced: Mapping[str, int] = field(default_factory=dict)
    #: arm -> number of its answers with an implausible price from the server, which does not count
    refused: Mapping[str, int] = field(default_factory=dict)
    #: number of questions in the period if only a sample of them was read; None if all were read
    whole: int | None = None
    #: reward of the same answers as `quality`: quality - weight * cost; None if it was not read
    reward: Vector | None = None
    #: number of rows that a labelled answer represents (`selection_weight`), 1 without a label; None if all are 1
    counts: Vector | None = None
    #: number of each rating's rater and question: ratings that one API key gave to one question have the same number,
    #: -1 without a rating; None if no two ratings have the same number
    cluster: Indices | None = None
    #: whether the judgement was drawn with a known probability: a label of the queue, or the judge's score
    is_drawn: Flags | None = None
    by_judge: Flags | None = None  #: whether `quality` is the judge's score
    #: the judge's score, also of an answer that people rated, and the number of rows it represents; None without scores
    score: Vector | None = None
    score_counts: Vector | None = None
    #: a rating that was retracted before it was learned, NaN without one; None if no answer has one
    retracted: Vector | None = None
    #: others x (share - 1/2) of the draw's `Decider`: the sum is above 0 if a safe start decides more than the policy;
    #: NaN if something else decided
    held: Vector | None = None
    #: probabilities that `ReportScope.version` gives the arms that could be drawn, shape (n, K); None without a version
    candidate: Matrix | None = None
    #: who or what decided the newest questions until the end of the period, the newest first
    deciders: Sequence[Decider] = ()
    #: index in `askers`, and whether a budget raised the price of the question; None if this was not read
    asker: Indices | None = None
    askers: tuple[str, ...] = ()
    raised: Flags | None = None
    #: largest and smallest possible reward of the answer at its cost, NaN without an outcome; None if `limits` is None
    best: Vector | None = None
    worst: Vector | None = None
    #: whether the arm was offered, shape (n, arms); None if an arm was offered exactly if its `pmf` is above 0
    offered: Flags | None = None
    #: smallest and largest possible reward; None if not every quality is in [0, 1], so that rewards have no bounds
    limits: tuple[float, float] | None = None

    @property
    def sample(self) -> Sample | None:
        return None if self.whole is None else Sample(questions=self.read, out_of=self.whole)

    @property
    def read(self) -> int:
        """Number of questions read, including the questions in `left_out`."""
        return len(self.arm) + sum(self.left_out.values())

    def spent(self, unit: Unit, *, arm: str | None = None) -> float:
        """Cost of the questions read, including the questions in `left_out`. arm: None for all arms"""
        rows = slice(None) if arm is None else self.arm == [*self.arms, arm].index(arm)
        left_out = (cost for (of, kind), cost in self.left_costs.items() if kind == unit and arm in (None, of))
        return float(np.nansum(self.costs[unit][rows])) + math.fsum(left_out)

    def rated_as(self, quality: Vector, *, counts: Vector | None) -> "ReportRows":
        """The same answers with other qualities; NaN if an answer has none."""
        reward = self.reward
        if reward is not None:
            other = quality
            if self.best is not None and self.worst is not None:
                other = self.worst + quality * (self.best - self.worst)
            reward = np.where(quality == self.quality, reward, other)
        return replace(self, quality=quality, reward=reward, counts=counts)

    def could_draw(self, arm: int) -> Flags:
        """The rows that could have drawn the arm."""
        return self.pmf[:, arm] >= LEAST_CHANCE

    def comparable(self, arm: int) -> Flags:
        """The rows to compare with an arm: rows that could have drawn the arm. If rewards have bounds, also rows that
        offered the arm but could not draw it.
        """
        return self.could_draw(arm) if self.limits is None else self.is_offered(arm)

    @property
    def judged(self) -> float:
        """Share of the rows that are judged; 1 if all judged rows were drawn, so that no rater chose what to judge."""
        is_judged = ~np.isnan(self.quality)
        chosen = is_judged if self.is_drawn is None else is_judged & ~self.is_drawn
        return float(is_judged.mean()) if chosen.any() else 1.0

    def is_offered(self, arm: int) -> Flags:
        return self.pmf[:, arm] > 0.0 if self.offered is None else self.offered[:, arm]

    @property
    def scale(self) -> float:
        """Number of questions in the period / number of questions read. Both include the questions in `left_out`."""
        return 1.0 if self.sample is None else self.sample.out_of / max(self.sample.questions, 1)

    def without_paced(self) -> "ReportRows":
        """The rows, but rows at a price that a budget raised are moved to `left_out` for `paced_askers`."""
        if self.asker is None or self.raised is None or not self.raised.any():
            return self
        counts = (np.bincount(of, minlength=len(self.askers)) for of in (self.asker, self.asker[self.raised]))
        asked, raised = (dict(zip(self.askers, count.tolist(), strict=True)) for count in counts)
        paced = paced_askers(asked, raised_price=raised)
        if not paced:
            return self
        is_paced = np.isin(self.asker, [place for place, asker in enumerate(self.askers) if asker in paced])
        leaves, by = self.raised & is_paced, budget_of(sorted(paced))
        left, sums = replace(self, left_costs={}).part(leaves), UndrawnSums(questions=int(leaves.sum()))
        costs = {(arm, unit): left.spent(unit, arm=arm) for arm in left.arms for unit in UNITS}
        sums.costs.update({unit: left.spent(unit) for unit in UNITS})
        sums.judged, sums.quality = int((~np.isnan(left.quality)).sum()), float(np.nansum(left.quality))
        return replace(
            self.part(~leaves),
            left_out={**self.left_out, f"decided by {by}": sums.questions},
            left_costs=Counter(self.left_costs) + Counter(costs),
            undrawn={**self.undrawn, by: sums},
        )

    def part(self, rows: Flags | slice) -> "ReportRows":
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        part: dict[str, Any] = {name: value[rows] for name, value in values.items() if isinstance(value, np.ndarray)}
        return replace(self, costs={unit: cost[rows] for unit, cost in self.costs.items()}, **part)


def read_log(database: Database, scope: ReportScope) -> ReportRows:
    """The rows of a report, the newest first: all of the period, or a sample. Raises StoreError."""
    with database.read() as connection:
        questions = count_decisions(connection, scope.condition)
        rows = _read_rows(connection, scope, questions=questions)
        # Imported decisions were counted but are not read, so the first sample may be too small.
        if rows.imported and questions > scope.most:
            questions -= count_imported(connection, scope.condition)
            rows = _read_rows(connection, scope, questions=questions)
        # Without a tenant, the deciders of the newest questions of all time are read: all reports show the same ones.
        newest = scope.condition if scope.tenant is not None else replace(scope, since=0.0).condition
        deciders = newest_deciders(connection, newest)
    return rows.log(scope, whole=questions if questions > scope.most else None, deciders=deciders)


def count_decisions(connection: Connection, condition: ColumnElement[bool]) -> int:
    return connection.execute(select(func.count()).select_from(decisions).where(condition)).scalar_one()


def newest_since(connection: Connection, scope: ReportScope, *, count: int) -> float | None:
    """Time of the oldest of the newest `count` questions, seconds since 1970; None if the scope has fewer questions."""
    query = select(decisions.c.made_at).where(scope.condition).order_by(decisions.c.made_at.desc())
    return connection.execute(query.offset(count - 1).limit(1)).scalar()


def count_imported(connection: Connection, condition: ColumnElement[bool]) -> int:
    query = select(*IMPORTED_COLUMNS).where(condition, or_unfilled(decisions.c.is_imported))
    with connection.execute(query.execution_options(yield_per=_PAGE)) as result:
        return sum(is_imported(row) for row in result)


def share_of(questions: int, *, most: int) -> float:
    """The largest power of 1/2 that leaves at most `most` of `questions`."""
    return 0.5 ** max(math.ceil(math.log2(max(questions, 1) / most)), 0)


def in_sample(questions: int, *, most: int) -> ColumnElement[bool]:
    """Condition on `decisions` for the sample of a period with this number of questions."""
    share = share_of(questions, most=most)
    if share == 1.0:
        return true()
    # The seed is stored as decimal text, so its last six characters are its last six digits.
    last_digits = func.substr(decisions.c.seed, func.length(decisions.c.seed) - 5)
    return last_digits < f"{round(1e6 * share):06}"


#: key of a cluster of ratings: the API key that rated (the first in alphabetical order if several did), the question,
#: and the hash of the request if the text is not stored
_RATED_TEXT: Final = (
    select(func.min(feedback.c.api_key))
    .where(feedback.c.decision_id == decisions.c.id, feedback.c.value != "null")
    .correlate(decisions)
    .scalar_subquery()
    .label("rated_by"),
    func.substr(decisions.c.text, 1, _SAME_CHARS).label("text_start"),
    func.length(decisions.c.text).label("text_length"),
    case((decisions.c.text == "", decisions.c.body_hash)).label("text_hash"),
)


def _read_rows(connection: Connection, scope: ReportScope, *, questions: int) -> "_Rows":
    in_ledger = and_(updates.c.policy == scope.label, updates.c.decision_id == decisions.c.id)
    in_scope = and_(scope.condition, in_sample(questions, most=scope.most))
    corrections = corrections_of(connection)
    stopped = closures.c.policy == scope.label, closures.c.reason == STOPPED
    query = select(
        *decisions.c["id", "made_at", "arms", "pmf", "arm", "facts", "price", "cost_weight"],
        *decisions.c["session", "turn_of"],
        *ASKER_COLUMNS,
        *FACT_COLUMNS,
        *outcomes.c["cost", "steps"],
        *([outcomes.c.made_by, outcomes.c.made_at.label("ended_at")] if corrections.rules else []),
        scope.is_open.label("is_open"),
        exists().where(closures.c.decision_id == decisions.c.id, *stopped).label("is_stopped"),
        *updates.c["quality", "value", "source", "sample_weight", "judged_by", "surrogates", "preset"],
        updates.c.feedback_ids,
        updates.c.cost.label("charged"),
        *_RATED_TEXT,
    ).select_from(decisions.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.id).outerjoin(updates, in_ledger))
    query = query.where(in_scope).order_by(decisions.c.made_at.desc(), decisions.c.id.desc())
    rows = _Rows(
        retracted=_retracted_ratings(connection, in_scope),
        judged=_judged_qualities(connection, and_(in_scope, or_unfilled(decisions.c.arm_by.is_not(None)))),
        reached=_reached(connection, scope.conversation),
        corrections=corrections,
    )
    with connection.execute(query.execution_options(yield_per=_PAGE)) as result:
        for row in result.mappings():
            rows.add(row, scope=scope)
    return rows


def _reached(connection: Connection, settings: ConversationSettings | None) -> dict[SpenderKind, set[str]]:
    """Kind of spender -> labels of the tasks or sessions that have reached a limit, for each kind with a limit."""
    limits = {} if settings is None else {kind: settings.limit_of(kind) for kind in settings.limited}
    return {
        kind: reached_labels(connection, dollars=limit.dollars, turns=limit.turns) for kind, limit in limits.items()
    }


def _feedback_of(connection: Connection, *conditions: ColumnElement[bool]) -> dict[str, list[Feedback]]:
    """Decision -> its feedback in the order of receipt. conditions: on `decisions` and `feedback`"""
    query = select(feedback).join(decisions, feedback.c.decision_id == decisions.c.id).where(*conditions)
    given: dict[str, list[Feedback]] = {}
    for row in connection.execute(query.order_by(*feedback.c["received_at", "id"])).mappings():
        given.setdefault(row["decision_id"], []).append(feedback_value(row))
    return given


def _judged_qualities(connection: Connection, condition: ColumnElement[bool]) -> dict[str, float]:
    """Decision -> mean of its ratings and events, which are qualities. condition: on `decisions`

    Decisions that are never learned have no quality in a ledger, so their feedback is read.
    """
    given = _feedback_of(connection, condition, feedback.c.kind.in_(("rating", "event")))
    values = {
        key: [float(item.value) for item in judgements_in_force(items) if isinstance(item.value, int | float)]
        for key, items in given.items()
    }
    return {key: fmean(of_key) for key, of_key in values.items() if of_key}


def _retracted_ratings(connection: Connection, condition: ColumnElement[bool]) -> dict[str, Feedback]:
    """Decision -> its last rating that was retracted."""
    other = feedback.alias()
    is_taken_back = other.c.decision_id == decisions.c.id, other.c.kind == "rating", other.c.value == "null"
    given = _feedback_of(connection, condition, exists().where(*is_taken_back))
    ratings = {key: [one for one in retracted_feedback(items) if one.kind == "rating"] for key, items in given.items()}
    return {key: items[-1] for key, items in ratings.items() if items}


@dataclass(kw_only=True, slots=True)
class _Rows:
    """Collects rows as plain numbers, which take little memory."""

    arms: dict[str, int] = field(default_factory=dict)
    offers: dict[str, list[str]] = field(default_factory=dict)  #: JSON of the offered arms -> their names
    tenants: dict[str, int] = field(default_factory=dict)
    prices: dict[str, int] = field(default_factory=dict)
    askers: dict[str, int] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    left_costs: Counter[tuple[str, Unit]] = field(default_factory=Counter)
    undrawn: dict[str, UndrawnSums] = field(default_factory=dict)
    judged: Mapping[str, float] = field(default_factory=dict)  #: see `_judged_qualities`
    rules: Counter[str] = field(default_factory=Counter)
    reached: Mapping[SpenderKind, set[str]] = field(default_factory=dict)  #: see `_reached`
    #: (whether the task or session has reached a limit, kind, arm) -> number of questions
    limited: Counter[tuple[bool, SpenderKind, str]] = field(default_factory=Counter)
    late: dict[tuple[str, Unit], float] = field(default_factory=dict)
    corrections: Corrections = field(default_factory=Corrections)
    unpriced: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    imported: int = 0
    is_bounded: bool = True  #: whether every quality is in [0, 1], and every reward quality - cost
    judged_twice: int = 0  #: answers with both a person's rating and a judge's score
    retracted: Mapping[str, Feedback]  #: decision -> its last retracted rating
    #: hash of a rating's rater and question -> number of the cluster
    clusters: dict[int, int] = field(default_factory=dict)
    #: values of _COLUMNS, row after row
    columns: "array[float]" = field(default_factory=lambda: array("d"))
    #: values of _OFFERED, for every offered arm of every row
    offered: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, row: RowMapping, *, scope: ReportScope) -> None:
        facts, queried = object_or_empty(row["facts"]), QueriedFacts.of_row(row)
        if queried.is_imported:
            self.imported += 1
            return
        if row["arms"] not in self.offers:
            self.offers[row["arms"]] = json.loads(row["arms"])
        arms = self.offers[row["arms"]]
        applied = AppliedRules.of(facts)
        if applied is not None:
            self.rules.update(applied.names)
        for spender in turn_spenders(row, kinds=self.reached) if self.reached else ():
            self.limited[spender.label in self.reached[spender.kind], spender.kind, row["arm"]] += 1
        reason, pmf = reason_to_leave_out(row, facts=queried, arms=arms), json.loads(row["pmf"])
        candidate = None
        if reason is None and scope.version is not None:
            note = candidate_note(facts, scope.version)
            candidate = None if note is None else _candidate_pmf(note, pmf=pmf)
            reason = NOT_ASKED if note is None else NO_PMF if candidate is None else None
        if reason is not None:
            self._leave_out(row, reason=reason, decided_by=decided_by(queried, arms=arms))
            return
        self._add_offered(arms, pmf=pmf, candidate=candidate, facts=facts)
        rated = row["source"] == "explicit" and row["sample_weight"] > 0.0
        by_judge = row["judged_by"] == "judge"
        if rated and (row["preset"] in WHOLE or not 0.0 <= row["quality"] <= 1.0):
            self.is_bounded = False
        score = row["quality"] if rated and by_judge else object_or_empty(row["surrogates"]).get("judge", np.nan)
        taken_back = self._taken_back(row)
        by = decider_of(facts, budget_factor=queried.budget_factor, pmf=dict(zip(arms, pmf, strict=True)))
        self.judged_twice += not by_judge and not np.isnan(score)
        self.columns.extend(
            (
                row["made_at"],
                self.tenants.setdefault(row["tenant"], len(self.tenants)),
                self.prices.setdefault(_price(row), len(self.prices)),
                self.askers.setdefault(asker_of(row), len(self.askers)),
                is_raised(queried.budget_factor),
                row["is_stopped"],
                self.arms[row["arm"]],
                row["quality"] if rated else np.nan,
                reward_of(row, setting=scope.reward) if rated else np.nan,
                by_judge,
                by_judge or (row["judged_by"] == "label" and _is_asked(facts)),
                selection_weight(facts, source=row["judged_by"] or ""),
                self._cluster(row) if rated or not np.isnan(taken_back) else -1,
                *_possible(row, setting=scope.reward, is_rated=rated),
                score,
                selection_weight(facts, source="judge"),
                taken_back,
                by.others * (by.share - 0.5) if by.kind in ("policy", "safe start") else np.nan,
                *self._costs(row),
            )
        )

    def _taken_back(self, row: RowMapping) -> float:
        """The rating that was retracted before it was learned; NaN if there is none."""
        item = self.retracted.get(row["id"])
        if (
            item is None
            or not isinstance(item.value, float | int)
            or item.id in json.loads(row["feedback_ids"] or "[]")
        ):
            return np.nan
        return float(item.value)

    def _cluster(self, row: RowMapping) -> int:
        """Number of the cluster of question and rater: the judge, an API key, or a session without an API key."""
        by_judge, has_key = row["judged_by"] == "judge", row["rated_by"] is not None
        session = None if by_judge or has_key else row["session"]
        named = by_judge, session, *(row[column.name] for column in _RATED_TEXT)
        return self.clusters.setdefault(hash(named), len(self.clusters))

    def _leave_out(self, row: RowMapping, *, reason: str, decided_by: str | None) -> None:
        self.left_out[reason] += 1
        amounts = zip(UNITS, self._costs(row), strict=True)
        costs: dict[Unit, float] = {unit: amount for unit, amount in amounts if not math.isnan(amount)}
        self.left_costs.update({(row["arm"], unit): amount for unit, amount in costs.items()})
        if decided_by is not None:
            is_learned = row["source"] == "explicit" and row["preset"] not in WHOLE
            quality = row["quality"] if is_learned else self.judged.get(row["id"])
            self.undrawn.setdefault(decided_by, UndrawnSums()).add(costs, quality=quality)

    def _costs(self, row: RowMapping) -> Amounts:
        """Costs of the decision and all its turns, in the order of UNITS; NaN without an outcome."""
        if row["cost"] is None:
            return np.nan, np.nan, np.nan
        costs, late = spent_of(row["cost"], steps=row["steps"])
        for unit, amount in zip(UNITS, late, strict=True):
            if amount:
                self.late[row["arm"], unit] = self.late.get((row["arm"], unit), 0.0) + amount
        if REFUSED in row["cost"] and cost_value(row["cost"]).price.get(REFUSED):
            self.refused[row["arm"]] += 1
        if not self.corrections.rules and ASSUMED not in row["cost"]:
            return costs
        cost = right = cost_value(row["cost"])
        if self.corrections.rules:
            facts = {"made_by": object_or_empty(row["made_by"]), "made_at": row["ended_at"]}
            right = self.corrections.cost(cost, decision_id=row["id"], arm=row["arm"], **facts)
        if right.assumed_dollars:
            self.unpriced[row["arm"]] += 1
        return costs[0] + right.dollars - cost.dollars, *costs[1:]

    def _add_offered(
        self, arms: list[str], *, pmf: list[float], candidate: Sequence[float] | None, facts: Mapping[str, Any]
    ) -> None:
        number, unknown = len(self.columns) // len(_COLUMNS), [np.nan] * len(arms)
        quality, cost = (_numbers(facts.get(name), count=len(arms)) or unknown for name in ("quality", "cost"))
        for arm, *numbers in zip(arms, pmf, quality, cost, candidate or pmf, strict=True):
            self.offered.extend((number, self.arms.setdefault(arm, len(self.arms)), *numbers))

    def log(self, scope: ReportScope, *, whole: int | None, deciders: Sequence[Decider]) -> ReportRows:
        columns = dict(zip(_COLUMNS, _by_column(self.columns, len(_COLUMNS)), strict=True))
        offered = dict(zip(_OFFERED, _by_column(self.offered, len(_OFFERED)), strict=True))
        cells = offered["row"].astype(np.intp), offered["place"].astype(np.intp)
        shape = len(columns["arm"]), len(self.arms)
        tables = {"pmf": np.zeros(shape), "candidate": np.zeros(shape)}
        tables |= {name: np.full(shape, np.nan) for name in ("quality", "cost")}
        is_offered = np.zeros(shape, dtype=np.bool_)
        is_offered[cells] = True
        for name, table in tables.items():
            table[cells] = offered[name]
        is_rated = columns["cluster"] >= 0.0
        if self.judged_twice >= FEWEST_BOTH:
            by_judge = columns["by_judge"] > 0.0
            columns["quality"][by_judge] = columns["reward"][by_judge] = np.nan
        return ReportRows(
            arms=tuple(self.arms),
            made_at=columns["made_at"],
            tenant=columns["tenant"].astype(np.intp),
            tenants=tuple(self.tenants),
            price=columns["price"].astype(np.intp),
            prices=tuple(self.prices),
            asker=columns["asker"].astype(np.intp),
            askers=tuple(self.askers),
            raised=columns["raised"] > 0.0,
            arm=columns["arm"].astype(np.intp),
            pmf=tables["pmf"],
            candidate=tables["candidate"],
            costs={unit: columns[unit] for unit in UNITS},
            quality=columns["quality"],
            expected_quality=tables["quality"],
            expected_cost=tables["cost"],
            left_out=dict(self.left_out),
            left_costs=dict(self.left_costs),
            undrawn=self.undrawn,
            rules=dict(self.rules),
            stopped=columns["stopped"] > 0.0,
            limited={
                (kind, arm): (count, count + self.limited[False, kind, arm])
                for (is_reached, kind, arm), count in self.limited.items()
                if is_reached
            },
            late=self.late,
            unpriced=self.unpriced,
            refused=self.refused,
            whole=whole,
            reward=columns["reward"],
            **self._bounds(columns, setting=scope.reward),
            counts=columns["counts"] if (columns["counts"] != 1.0).any() else None,
            is_drawn=columns["is_drawn"] > 0.0,
            by_judge=columns["by_judge"] > 0.0,
            **{name: columns[name] for name in _BESIDES if not np.isnan(columns[name]).all()},
            cluster=columns["cluster"].astype(np.intp) if len(self.clusters) < is_rated.sum() else None,
            deciders=deciders,
            offered=is_offered,
        )

    def _bounds(self, columns: Mapping[str, Vector], *, setting: RewardSettings | None) -> dict[str, Any]:
        if setting is None or not self.is_bounded:
            return {}
        limits = min(setting.minimum, 1.0), min(setting.maximum, 1.0)
        return {"best": columns["best"], "worst": columns["worst"], "limits": limits}


def _by_column(numbers: "array[float]", width: int) -> Matrix:
    return np.array(numbers, dtype=np.float64).reshape(-1, width).T


def _candidate_pmf(note: CandidateNote, *, pmf: Sequence[float]) -> list[float] | None:
    """The version's pmf among the arms that could be drawn; None without a usable pmf over them."""
    if note.pmf is None or len(note.pmf) != len(pmf):
        return None
    drawable = [own if p > 0.0 else 0.0 for own, p in zip(note.pmf, pmf, strict=True)]
    total = math.fsum(drawable)
    if total <= 0.0:
        return None
    shares = (own / total for own in drawable)
    return [p if abs(share - p) < _ROUNDING else share for share, p in zip(shares, pmf, strict=True)]


def reward_of(row: RowMapping, *, setting: RewardSettings | None) -> float:
    """Reward of a rated answer at the cost weight of `setting`. A reward without quality and cost is not changed."""
    if setting is None or row["preset"] in WHOLE:
        return float(row["value"])
    value = row["quality"] - setting.weight * row["charged"]
    return float(min(max(value, setting.minimum), setting.maximum))


def _possible(row: RowMapping, *, setting: RewardSettings | None, is_rated: bool) -> tuple[float, float]:
    """Largest and smallest possible reward of an answer at its cost; NaN without an outcome."""
    if setting is None or (row["cost"] is None and not is_rated):
        return math.nan, math.nan
    cost = row["charged"]
    if not is_rated:
        cost = cost_of_terms(row["steps"], cost_value(row["cost"]), terms=setting.cost)
    best, worst = (quality - setting.weight * cost for quality in (1.0, 0.0))
    return min(max(best, setting.minimum), setting.maximum), min(max(worst, setting.minimum), setting.maximum)


def _is_asked(facts: Mapping[str, Any]) -> bool:
    """Whether the label queue drew the answer."""
    request = LabelRequest.of(facts)
    return request is not None and request.asked


def _price(row: RowMapping) -> str:
    if row["price"] is not None:
        return str(row["price"])
    return "as configured" if row["cost_weight"] is None else f"weight {row['cost_weight']:g}"


def _numbers(value: Any, *, count: int) -> list[float] | None:
    if not isinstance(value, list) or len(value) != count or not {int, float}.issuperset(map(type, value)):
        return None
    return value if max(map(abs, value)) < 1e15 else None
