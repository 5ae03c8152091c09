"""The questions of a paired comparison: the routed questions of a period, in the random order in which they are asked.

Routing sent each question to one arm; the other way sends it to a fixed arm. Only questions with two different arms can
differ. The order follows from the store's secret and the questions' ids, so it depends on no outcome, and no caller can
choose it. The order is the same at every run, so a later run continues an earlier one.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sqlalchemy import RowMapping, and_, func, select

from ragbandit.router.config.rules import RuleBook
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.reporting.deciders import is_raised, paced_askers
from ragbandit.router.reporting.left_out import ASKER_COLUMNS, asker_of, reason_to_leave_out
from ragbandit.router.reporting.reading import ReportScope, count_decisions, count_imported, in_sample
from ragbandit.router.storage.access.shared_secrets import draw_number
from ragbandit.router.storage.rows.conversion import client_records_of
from ragbandit.router.storage.rows.outcome_rows import cost_value, own_cost
from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, QueriedFacts
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import decisions, outcomes, updates
from ragbandit.shared.texts.formats import counted
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

#: reasons why a question cannot be asked again; {} stands for the fixed arm
NOT_OFFERED: Final = "{} was not on offer: rules of the tenant or of the request"
NO_TEXT: Final = "its text was erased or not stored"
NOT_STORED: Final = "tools, images, a format or earlier turns that are not stored"
A_TASK: Final = "a task, which a single question cannot repeat"
NOT_HERE: Final = "cannot be run here"
_PAGE: Final = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedQuestion:
    """A question that routing and the other way send to different arms."""

    id: DecisionId
    #: the arm that routing drew
    arm: ArmName
    #: cost of the stored outcome, at the prices of the reward; None without an outcome
    cost: float | None
    #: why the question cannot be asked again; None if it can be
    obstacle: str | None
    #: number of characters of its text
    length: int = 0
    #: dollars of the stored outcome; None without an answer
    dollars: float | None = None


class AnswerCost(NamedTuple):
    """The cost of an answer of the period, from which costs of later answers are estimated."""

    #: number of characters of its question
    length: int
    dollars: float
    #: weight in the estimate: 1; for an answer of `against`, the odds that another arm had been drawn, since only
    #: questions of other arms are asked, and a policy may have sent the long questions to `against`
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedQuestions:
    #: the fixed arm of the other way
    against: ArmName
    #: number of all routed questions of the period, or of the sample that is read of a long period
    routed: int
    #: questions to which the two ways give different arms, in the order in which they are asked
    differing: Sequence[ComparedQuestion]
    #: arm -> costs of its answers to questions that can be asked again. If it has no such answers, costs of all its
    #: answers, including tasks, which cost many times as much
    costs: Mapping[str, Sequence[AnswerCost]] = field(default_factory=dict)

    @property
    def askable(self) -> list[ComparedQuestion]:
        return [question for question in self.differing if question.obstacle is None]

    @property
    def obstacles(self) -> Mapping[str, int]:
        """Reason -> number of questions that cannot be asked."""
        return Counter(question.obstacle for question in self.differing if question.obstacle is not None)

    @property
    def obstacle_words(self) -> str:
        return "; ".join(f"{count:,}: {reason}" for reason, count in sorted(self.obstacles.items()))

    @property
    def refusal(self) -> str | None:
        """Why no question can be asked again; None if at least one can be."""
        if not self.routed:
            return "no question of the period compares two arms"
        if not self.differing:
            nothing = f"every question of the period went to {self.against}, so nothing differs"
            return f"{nothing}; other arms must answer some"
        others = f"{counted(len(self.differing), 'question')} that other arms answered"
        return None if self.askable else f"of {others}, none can be asked again ({self.obstacle_words})"


def read_compared_questions(
    database: Database,
    scope: ReportScope,
    *,
    against: ArmName,
    secret: bytes | None,
    arms: Collection[str] | None = None,
    by_model: bool = False,
) -> ComparedQuestions:
    """The questions of the report's period, without imported decisions and decisions that no report compares.

    secret: secret of the store's draws, which gives the order; None if the order is not needed. arms: arms that can
        be run here; None if nothing is asked. by_model: whether the judge's model scores the answers. Raises
        StoreError.
    """
    counts, raised = Counter[str](), Counter[str]()  # asker -> number of questions
    differing = list[tuple[ComparedQuestion, str | None]]()  # (question, its asker if a budget raised the price)
    costs, other_costs = defaultdict[str, list[AnswerCost]](list), defaultdict[str, list[AnswerCost]](list)
    with database.read() as connection:
        for row, facts, offered in _routed(connection, scope, against=against):
            asker, has_raised = asker_of(row), is_raised(facts.budget_factor)
            counts[asker] += 1
            raised[asker] += has_raised
            edge = client_records_of(row["request"])
            sent, continues = sent_of(edge), continues_of(edge)
            obstacle = NOT_OFFERED.format(against) if against not in offered else None
            obstacle = obstacle or _obstacle(row, facts=facts, sent=sent, continues=continues, arms=arms)
            if row["cost"] is not None and row["status"] != "failed":
                known = costs if obstacle is None else other_costs
                known[row["arm"]].append(_answer_cost(row, against=against))
            if row["arm"] != against:
                obstacle = obstacle or _forbidden(row, sent=sent, against=against, rules=scope.rules, by_model=by_model)
                question = _question(row, scope=scope, obstacle=obstacle)
                differing.append((question, asker if has_raised else None))
    paced = paced_askers(counts, raised_price=raised)
    compared = [question for question, asker in differing if asker not in paced]
    if secret is not None:
        compared.sort(key=lambda question: (draw_number("decide", question.id, secret=secret), question.id))
    routed = counts.total() - sum(raised[asker] for asker in paced)
    return ComparedQuestions(against=against, routed=routed, differing=compared, costs=other_costs | costs)


def _routed(
    connection: Connection, scope: ReportScope, *, against: ArmName
) -> Iterator[tuple[RowMapping, QueriedFacts, Sequence[str]]]:
    """Yields (row, its facts, arms on offer) of the period's questions, or of a sample of its questions."""
    in_ledger = and_(updates.c.policy == scope.label, updates.c.decision_id == decisions.c.id)
    joined = decisions.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.id).outerjoin(updates, in_ledger)
    query = select(
        *decisions.c["id", "arm", "arms", "allowed", "facts", "propensity", "request", "context"],
        *ASKER_COLUMNS,
        *FACT_COLUMNS,
        func.length(decisions.c.text).label("length"),
        scope.is_open.label("is_open"),
        *outcomes.c["cost", "steps", "status"],
        updates.c.source,
    ).select_from(joined)
    whole = count_decisions(connection, scope.condition) - count_imported(connection, scope.condition)
    query = query.where(scope.condition, in_sample(whole, most=scope.most))
    with connection.execute(query.execution_options(yield_per=_PAGE)) as result:
        for row in result.mappings():
            offered, facts = json.loads(row["arms"]), QueriedFacts.of_row(row)
            if against not in offered and _came_later(row, arm=against):
                offered.append(against)
            if not facts.is_imported and reason_to_leave_out(row, facts=facts, arms=offered) is None:
                yield row, facts, offered


def _answer_cost(row: RowMapping, *, against: str) -> AnswerCost:
    weight = 1.0
    if row["arm"] == against:
        weight = max(1.0 - row["propensity"], 0.0) / max(row["propensity"], 1e-9)
    return AnswerCost(row["length"], own_cost(row["cost"]).dollars, weight)


def _question(row: RowMapping, *, scope: ReportScope, obstacle: str | None) -> ComparedQuestion:
    assert scope.reward is not None, "two ways are compared by the present reward"
    cost = dollars = None
    if row["cost"] is not None:
        whole = cost_value(row["cost"])
        cost = cost_of_terms(row["steps"], whole, terms=scope.reward.cost)
        dollars = None if row["status"] == "failed" else whole.dollars
    return ComparedQuestion(
        id=DecisionId(row["id"]),
        arm=ArmName(row["arm"]),
        cost=cost,
        obstacle=obstacle,
        length=row["length"] or 0,
        dollars=dollars,
    )


def _came_later(row: RowMapping, *, arm: str) -> bool:
    """Whether an arm was missing from the offer only because it was not configured or not in service, so that it can
    be asked now. False if the caller, a rule or a missing ability excluded it. `_forbidden` applies today's rules.
    """
    if row["allowed"] is not None and arm not in json.loads(row["allowed"]):
        return False
    facts = object_or_empty(row["facts"])
    rules, lacking = AppliedRules.of(facts), LackingArms.of(facts)
    return (rules is None or arm in rules.arms) and (lacking is None or arm not in lacking.needs)


def _forbidden(row: RowMapping, *, sent: Sent, against: str, rules: RuleBook | None, by_model: bool) -> str | None:
    """Why today's rules do not let both arms answer the question again, or the judge read it; None if they do."""
    if not rules:
        return None
    query = Query(
        text="", tenant=row["tenant"], api_key=row["api_key"], context=object_or_empty(row["context"]), sent=sent
    )
    for arm in (against, row["arm"]):
        if not rules.permits(query, arm=arm):
            return f"the rules do not let {arm} answer it now"
    return None if not by_model or rules.may_read(query, model="judge") else "the rules do not let the judge read it"


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
