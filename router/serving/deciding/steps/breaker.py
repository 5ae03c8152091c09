"""Breaker: arms that fail are not offered, unless all arms of a question fail (health/circuit_breaker.py)."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ragbandit.router.serving.deciding.steps.step import Batch, Question, Step
from ragbandit.router.serving.health.circuit_breaker import ArmHealth
from ragbandit.router.serving.health.gone_models import GoneModels
from ragbandit.router.serving.health.outcome_poller import OutcomePoller
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.telemetry.logs import Throttle
from ragbandit.shared.types import ArmName, Decision, Fact

log = logging.getLogger("ragbandit.service")


@dataclass(frozen=True, kw_only=True, slots=True)
class UnhealthyArms(Fact):
    key: ClassVar[str] = "unhealthy"
    #: arms that failed lately, among the arms that earlier steps offered
    arms: tuple[ArmName, ...]
    #: whether the failing arms were offered all the same, because no arm of the question was healthy
    offered: bool = False


class Breaker(Step):
    """Offers the healthy arms among the arms that earlier steps offered."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        #: number of decisions whose questions were offered failing arms; only the deciding thread writes it
        self.fail_opens = 0
        self._poller: OutcomePoller | None = None
        self._throttle = Throttle(10.0)  # seconds between two log lines

    def configure(self, served: ServedPolicy) -> None:
        if self._poller is None:  # made once: no version of the policy changes the settings that it reads
            settings, budget = served.settings, served.settings.budget
            gone = GoneModels(self.database, arms=settings.worker_arms, generators=settings.named_generators)
            self._poller = OutcomePoller(self.database, settings=settings.health, seconds=budget.seconds, gone=gone)

    @property
    def poller(self) -> OutcomePoller:
        assert self._poller is not None
        return self._poller

    def before(self, batch: Batch) -> None:
        """Offer the healthy arms. Questions whose arm the kill switch has chosen do not change."""
        breaker, questions = self.poller.breaker, list[Question]()
        wanted, tenants = list[tuple[ArmName, ...]](), list[str]()
        for question in batch.questions:
            if question.certain_arm is None:
                questions.append(question)
                wanted.append(question.arms)
                tenants.append(question.query.tenant)
        healthy = breaker.healthy(wanted, now=batch.now, tenants=tenants)
        for question, arms in zip(questions, healthy, strict=True):
            if arms == question.arms:
                continue
            known = tuple(arm for arm in question.arms if arm not in breaker.gone)
            failing = tuple(arm for arm in question.arms if arm not in arms)
            question.offer(arms or known or question.arms, cause="breaker")
            if failing:
                question.add(UnhealthyArms(arms=failing, offered=not arms))

    def _note_fail_open(self, arms: Sequence[ArmName]) -> None:
        self.fail_opens += 1
        if self._throttle.lets_pass("fail_open"):
            fields = {"action": "fail_open", "times": self.fail_opens, "arms": ", ".join(arms)}
            log.warning("no arm of the question is healthy: all of them are offered", extra=fields)

    def note_committed(self, decisions: Sequence[Decision], *, now: float) -> None:
        """Report the first draw of each arm and tenant to the circuit breaker, since this draw may be a probe."""
        first: dict[tuple[ArmName, str], Decision] = {}
        for decision in decisions:
            unhealthy = UnhealthyArms.of(decision.facts)
            if unhealthy is not None and unhealthy.offered:
                self._note_fail_open(unhealthy.arms)
            first.setdefault((decision.arm, decision.query.tenant), decision)
        for (arm, tenant), decision in first.items():
            self.poller.breaker.record_probe(arm, decision_id=decision.id, now=now, tenant=tenant)

    def refresh(self, *, arms: Sequence[ArmName], now: float) -> None:
        self.poller.poll(arms, now=now)

    def healths(self, arms: Sequence[ArmName], *, now: float) -> list[ArmHealth]:
        return self.poller.breaker.healths(arms, now=now)

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        unhealthy = UnhealthyArms.of(decision.facts)
        if unhealthy is not None and unhealthy.offered:
            yield f"No allowed arm was healthy, so all of them were offered: {', '.join(unhealthy.arms)}."
        elif unhealthy is not None:
            yield f"Left out, since they were not healthy: {', '.join(unhealthy.arms)}."
