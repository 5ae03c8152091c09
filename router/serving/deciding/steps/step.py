"""A step of deciding, and what passes through the steps: a batch of questions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from ragbandit.router.policies.base import Policy, PolicyNeed, PolicyOutput
from ragbandit.router.policies.draw import Offer, certain_decision
from ragbandit.router.policies.needs import NeedSource
from ragbandit.router.serving.loading.live import LiveVersions
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.types import ArmBy, ArmName, Decision, DecisionId, Fact, FeatureRows, Query, decided_unit

F = TypeVar("F", bound=Fact)


@dataclass(kw_only=True, slots=True)
class Question(Offer):
    """A checked question. `Offer.arms` are the arms that the champion may draw."""

    #: arms that `run_by`, the caller and its API key allow, and that can do what the request needs
    allowed: tuple[ArmName, ...]
    #: arm that a step chose without a draw; None if the arm is drawn
    certain_arm: ArmName | None = None
    #: what chose the arm; None if the policy draws it
    arm_by: ArmBy | None = None
    #: under a spent budget the arm of the earlier turns, kept unless the policy favours another arm; else None
    kept_arm: ArmName | None = None
    #: whether only the probabilities are wanted: nothing is drawn, stored, or asked of another model
    is_preview: bool = False
    #: the decision that this turn belongs to; None if the question gets a decision of its own
    turn_of: DecisionId | None = None
    #: facts that the steps store with the decision, by class
    facts: dict[type[Fact], Fact] = field(default_factory=dict)
    #: `facts` and `arm_by` after `check`, before the batch
    checked_facts: Mapping[type[Fact], Fact] = field(default_factory=dict)
    checked_arm_by: ArmBy | None = None
    #: output of the policy; None before the draw
    output: PolicyOutput | Exception | None = None
    decision: Decision | None = None  #: the decision as drawn, with later changes by steps; None before the draw

    @property
    def served(self) -> Query:
        """The query as the policy reads it, see `Decision.served`."""
        return self.query.at(self.cost_weight, unit=decided_unit({fact.key for fact in self.facts}))

    def note_choice(self, chooser: ArmBy) -> None:
        """Store what chose the arm. The caller's choice stays: a named arm, or only one allowed arm."""
        self.arm_by = self.query.arm_by or ("caller" if self.arm_by == "caller" else chooser)

    @property
    def is_drawn(self) -> bool:
        """Whether the policy draws the arm: neither a step nor the caller nor an earlier turn has chosen it."""
        is_chosen = self.certain_arm is not None or self.query.arm_by is not None or self.turn_of is not None
        return not (is_chosen or self.is_preview)

    def allow(self, arms: Sequence[ArmName], *, cause: ArmBy) -> None:
        """Allow only these arms. cause: what excludes the others"""
        self._note_single_arm(arms, before=self.allowed, cause=cause)
        self.allowed = tuple(arms)

    def offer(self, arms: Sequence[ArmName], *, cause: ArmBy) -> None:
        """Offer only these arms to the policy. cause: what excludes the others"""
        self._note_single_arm(arms, before=self.arms, cause=cause)
        self.arms = tuple(arms)

    def _note_single_arm(self, arms: Sequence[ArmName], *, before: Sequence[ArmName], cause: ArmBy) -> None:
        if len(arms) == 1 < len(before) and self.arm_by is None:
            self.arm_by = cause

    def add(self, fact: Fact) -> None:
        self.facts[type(fact)] = fact

    def fact(self, kind: type[F]) -> F | None:
        """The fact of this class that a step has added; None if no step has added one."""
        fact = self.facts.get(kind)
        return fact if isinstance(fact, kind) else None

    @property
    def finished(self) -> Decision:
        """The decision with the facts of all steps."""
        decision = self.decision
        assert decision is not None
        arm_by = self.arm_by or ("only arm" if len(decision.arms) == 1 else None)
        if not (self.facts or arm_by):
            return decision
        facts = {fact.key: fact.stored for fact in self.facts.values()}
        return replace(decision, facts={**decision.facts, **facts}, arm_by=arm_by)

    def begin_again(self) -> None:
        """Forget the choices of the steps after `check`."""
        self.certain_arm = self.kept_arm = self.turn_of = self.decision = None
        self.facts, self.arm_by = dict(self.checked_facts), self.checked_arm_by

    def settle(self, arm: ArmName) -> None:
        """Replace the draw by this arm."""
        assert self.decision is not None
        self.certain_arm, self.decision = arm, certain_decision(self.decision, arm=arm)


@dataclass(kw_only=True, slots=True)
class Batch:
    """Questions that are decided together, on one thread."""

    questions: Sequence[Question]
    #: shape (n, d)
    features: FeatureRows
    served: ServedPolicy
    live: LiveVersions
    #: the policy that is asked: `served.policy`, unless the kill switch replaces it
    policy: Policy
    now: float
    #: secret of the store, from which draws are seeded
    secret: bytes | None
    #: output or exception of `policy` for each question; empty before the draw
    outputs: Sequence[PolicyOutput | Exception] = ()


class Step:
    """One feature of deciding. A step overrides the methods that it needs; the other methods do nothing.

    `check` and `asks` run on the caller's thread, `prepare` on the event loop of asked models, `refresh` on the polling
    thread, `before`, `after` and `note_committed` on the deciding thread. A step reads the store at most once per
    batch.
    """

    #: for a step of an addition: class name of the step of the core that it follows; "" puts it before all of them
    follows: ClassVar[str] = ""
    #: value that policies need, such as a model's pick -> its source; `prepare` stores the value in the query
    provides: ClassVar[Mapping[PolicyNeed, NeedSource]] = {}
    #: whether the settings give the step something to do, set by `configure`; a step that is off is skipped
    is_on: bool = True

    def __init__(self, database: Database) -> None:
        self.database = database

    def configure(self, served: ServedPolicy) -> None:
        """Read the sections of settings that the step needs: at the start, and when another policy takes over."""

    def check(self, question: Question) -> None:
        """Read one submitted question. Raises InvalidInput or Forbidden if it cannot be decided."""

    def asks(self, question: Question, *, live: LiveVersions) -> bool:
        """Whether `prepare` has something to ask for this question. Called for each question, so it must be quick."""
        del question, live
        return False

    async def prepare(self, question: Question, *, live: LiveVersions) -> None:
        """Ask a model or a service, before the question waits for its batch, and store the reply in its query. The
        question was admitted; a repeated id is not asked about. Must not raise.
        """

    def before(self, batch: Batch) -> None:
        """Choose the arms that may be drawn, at least one of `allowed`, for the policy. Raises StoreError."""

    def after(self, batch: Batch) -> None:
        """Change the decisions that were drawn, or store facts with them. Raises StoreError."""

    def note_committed(self, decisions: Sequence[Decision], *, now: float) -> None:
        """Read new decisions that were stored. Must not raise."""

    def refresh(self, *, arms: Sequence[ArmName], now: float) -> None:
        """Read the store about once a second. arms: all arms that may be offered. Raises StoreError."""

    def counters(self) -> Iterator[tuple[str, str, Mapping[str, int]]]:
        """(metric, its description, result -> number since the start) for /metrics."""
        return iter(())

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        """Sentences about the step's effect on this decision. Facts of the decision may be missing or damaged."""
        del decision
        return iter(())
