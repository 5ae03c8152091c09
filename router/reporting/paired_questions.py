"""The questions of a paired comparison: the routed ones of a period, in the random order in which they are asked.

Routing sent each question to one arm; the other way sends it to a fixed arm. Only questions of different arms can
differ. Their order follows from the store's secret and their ids, so it depends on no outcome, and no caller can choose
it. It is the same at every run, so later runs continue earlier ones.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from sqlalchemy import RowMapping, and_, func, select

from ragbandit.router.config.rules import RuleBook
from ragbandit.router.config.sections import RewardSettings
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.reporting.deciders import is_raised, paced_askers
from ragbandit.router.reporting.left_out import asker_of, reason_to_leave_out
from ragbandit.router.reporting.reading import (
    ReportScope,
    count_decisions,
    count_imported,
    in_sample,
)
from ragbandit.router.storage.access.shared_secrets import drawn_for
from ragbandit.router.storage.rows.conversion import edge_of
from ragbandit.router.storage.rows.outcome_rows import cost_value, own_cost
from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, QueriedFacts
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import decisions, outcomes, updates
from ragbandit.shared.types import (
    AppliedRules,
    ArmName,
    Continues,
    DecisionId,
    LackingArms,
    Query,
    Sent,
    continues_of,
    sent_of,
)

#: reasons why a question cannot be asked again; the first takes the other arm's name
NOT_OFFERED: Final = "{} was not on offer: rules of the tenant or of the request"
NO_TEXT: Final = "its text was erased or not stored"
NOT_STORED: Final = "tools, images, a format or earlier turns that are not stored"
A_TASK: Final = "a task, which a single question cannot repeat"
NOT_HERE: Final = "cannot be run here"
_PAGE: Final = 2000
#: effective number of answers from which their weights are used, and number from which the length counts
_EFFECTIVE: Final = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedQuestion:
    """A question that routing and the other way send to different arms."""

    id: DecisionId
    #: the arm that routing drew
    arm: ArmName
    #: random number in [0, 1); the questions are asked in this order
    draw: float
    #: cost of the stored outcome, at the prices of the reward; None without an outcome
    cost: float | None
    #: why it cannot be asked again; None if it can be
    obstacle: str | None
    #: characters of its text
    length: int = 0
    #: dollars of the stored outcome; None without an answer
    dollars: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerPrice:
    """Expected dollars of an arm's answer by the length of the question, within what its answers have cost."""

    #: at a question without characters, and for each character
    base: float
    slope: float = 0.0
    least: float = 0.0
    most: float = math.inf

    def at(self, length: int) -> float:
        return min(max(self.base + self.slope * length, self.least), self.most)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedQuestions:
    #: the fixed arm of the other way
    against: ArmName
    #: number of all routed questions of the period, or of the sample that is read of a long period
    questions: int
    #: number of all questions in the period if only a sample of them was read
    whole: int | None
    #: questions to which the two ways give different arms, in the order in which they are asked
    differing: Sequence[ComparedQuestion]
    #: arm -> price of its answers to questions that can be asked; arms without answers are missing
    prices: Mapping[str, AnswerPrice] = field(default_factory=dict)

    @property
    def askable(self) -> list[ComparedQuestion]:
        return [question for question in self.differing if question.obstacle is None]

    @property
    def obstacles(self) -> Mapping[str, int]:
        """Reason -> number of questions that cannot be asked."""
        return Counter(question.obstacle for question in self.differing if question.obstacle is not None)


def read_paired_questions(
    database: Database,
    scope: ReportScope,
    *,
    against: ArmName,
    reward: RewardSettings,
    secret: bytes,
    arms: Collection[str] | None = None,
    by_model: bool = False,
) -> ComparedQuestions:
    """The questions of the report's period. Imported decisions, and those that no report compares, are left out.

    secret: secret of the store's draws. arms: those that can be run here; None if nothing is asked. by_model: whether
        the judge's model scores the answers. Raises StoreError.
    """
    in_ledger = and_(updates.c.policy == scope.label, updates.c.decision_id == decisions.c.id)
    joined = decisions.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.id).outerjoin(updates, in_ledger)
    query = select(
        *decisions.c["id", "arm", "arms", "allowed", "facts", "propensity", "request", "tenant", "api_key", "context"],
        *FACT_COLUMNS,
        func.length(decisions.c.text).label("length"),
        scope.is_open.label("is_open"),
        *outcomes.c["cost", "steps", "status"],
        updates.c.source,
    ).select_from(joined)
    asked, raised = Counter[str](), Counter[str]()
    differing = list[tuple[ComparedQuestion, str | None]]()  # with the asker, if a budget raised his price
    paid = _Paid(against=against)
    with database.read() as connection:
        whole = count_decisions(connection, scope.condition) - count_imported(connection, scope.condition)
        query = query.where(scope.condition, in_sample(whole, most=scope.most))
        with connection.execute(query.execution_options(yield_per=_PAGE)) as result:
            for row in result.mappings():
                offered, facts = json.loads(row["arms"]), QueriedFacts.of_row(row)
                if against not in offered and _came_later(row, arm=against):
                    offered.append(against)
                if facts.is_imported or reason_to_leave_out(row, facts=facts, arms=offered) is not None:
                    continue
                asker, has_raised = asker_of(row), is_raised(facts.budget_factor)
                asked[asker] += 1
                raised[asker] += has_raised
                edge = edge_of(row["request"])
                sent, continues = sent_of(edge), continues_of(edge)
                obstacle = NOT_OFFERED.format(against) if against not in offered else None
                obstacle = obstacle or _obstacle(row, facts=facts, sent=sent, continues=continues, arms=arms)
                paid.add(row, is_repeatable=obstacle is None)
                if row["arm"] != against:
                    obstacle = obstacle or _forbidden(
                        row, sent=sent, against=against, rules=scope.rules, by_model=by_model
                    )
                    question = _question(row, reward=reward, secret=secret, obstacle=obstacle)
                    differing.append((question, asker if has_raised else None))
    paced = paced_askers(asked, raised=raised)
    compared = [question for question, asker in differing if asker not in paced]
    return ComparedQuestions(
        against=against,
        questions=asked.total() - sum(raised[asker] for asker in paced),
        whole=whole if whole > scope.most else None,
        differing=sorted(compared, key=lambda question: (question.draw, question.id)),
        prices=paid.prices(),
    )


class _Paid:
    """What answers of the period cost, to expect what answers to its askable questions will cost.

    A task costs many times as much as a question, so answers to questions that can be asked again count first. Those
    went to other arms than `against`: its own answers are weighted by the odds of that, since a policy may have sent it
    the long ones. Without enough weight, its price follows the length of the question.
    """

    def __init__(self, *, against: ArmName) -> None:
        self._against = against
        #: arm -> (length, dollars, weight) of its answers to questions that can be asked again, and to other ones
        self._repeatable: dict[str, list[tuple[int, float, float]]] = {}
        self._others: dict[str, list[tuple[int, float, float]]] = {}

    def add(self, row: RowMapping, *, is_repeatable: bool) -> None:
        if row["cost"] is None or row["status"] == "failed":
            return
        weight = 1.0
        if row["arm"] == self._against:
            weight = max(1.0 - row["propensity"], 0.0) / max(row["propensity"], 1e-9)
        answers = self._repeatable if is_repeatable else self._others
        answers.setdefault(row["arm"], []).append((row["length"], own_cost(row["cost"]).dollars, weight))

    def prices(self) -> dict[str, AnswerPrice]:
        return {arm: _price(answers) for arm, answers in (self._others | self._repeatable).items()}


def _price(answers: Sequence[tuple[int, float, float]]) -> AnswerPrice:
    """The weighted mean of (length, dollars, weight). If few weights outweigh all others, least squares by length."""
    lengths, dollars, weights = np.array(answers).T
    if weights.sum() ** 2 > _EFFECTIVE * (weights**2).sum():
        return AnswerPrice(base=float(np.average(dollars, weights=weights)))
    spread = lengths.var()
    has_line = len(answers) >= _EFFECTIVE and spread > 0.0
    slope = np.mean((lengths - lengths.mean()) * dollars) / spread if has_line else 0.0
    base, ends = dollars.mean() - slope * lengths.mean(), (float(dollars.min()), float(dollars.max()))
    return AnswerPrice(base=float(base), slope=float(slope), least=ends[0], most=ends[1])


def _question(row: RowMapping, *, reward: RewardSettings, secret: bytes, obstacle: str | None) -> ComparedQuestion:
    cost = dollars = None
    if row["cost"] is not None:
        whole = cost_value(row["cost"])
        cost = cost_of_terms(row["steps"], whole, terms=reward.cost)
        dollars = None if row["status"] == "failed" else whole.dollars
    key = DecisionId(row["id"])
    return ComparedQuestion(
        id=key,
        arm=ArmName(row["arm"]),
        draw=drawn_for("decide", key, secret=secret),
        cost=cost,
        obstacle=obstacle,
        length=row["length"] or 0,
        dollars=dollars,
    )


def _came_later(row: RowMapping, *, arm: str) -> bool:
    """Whether an arm that was not on offer could be asked: neither the caller nor a rule kept it away, nor did it lack
    an ability, so it was not configured yet or not in service. The rules of now have their own say (`_forbidden`).
    """
    if row["allowed"] is not None and arm not in json.loads(row["allowed"]):
        return False
    facts = object_or_empty(row["facts"])
    rules, lacking = AppliedRules.of(facts), LackingArms.of(facts)
    return (rules is None or arm in rules.arms) and (lacking is None or arm not in lacking.needs)


def _forbidden(row: RowMapping, *, sent: Sent, against: str, rules: RuleBook | None, by_model: bool) -> str | None:
    """Why the rules of now do not let both arms answer the question again, or the judge read it; None if they do."""
    if not rules:
        return None
    query = Query(
        text="",
        tenant=row["tenant"],
        api_key=row["api_key"],
        context=object_or_empty(row["context"]),
        sent=sent,
    )
    for arm in (against, row["arm"]):
        if not rules.permits(query, arm=arm):
            return f"the rules do not let {arm} answer it now"
    return None if not by_model or rules.lets_read(query, model="judge") else "the rules do not let the judge read it"


def _obstacle(
    row: RowMapping, *, facts: QueriedFacts, sent: Sent, continues: Continues, arms: Collection[str] | None
) -> str | None:
    """Why the question cannot be asked again, if the other arm was on offer; None if it can be."""
    if not row["length"]:
        return NO_TEXT
    if sent.needs or sent.optional_needs or sent.clipped or continues.loop or continues.previous or continues.quoted:
        return NOT_STORED
    if facts.task_until is not None:
        return A_TASK
    if arms is not None and row["arm"] not in arms:
        return f"{row['arm']} {NOT_HERE}"
    return None
