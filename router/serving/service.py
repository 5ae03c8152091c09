"""The decision: question in, committed Decision out."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.policies.base import Policy
from ragbandit.router.policies.draw import made_decision, outputs_of
from ragbandit.router.serving.arm_health import Watch
from ragbandit.router.serving.circuit_breaker import LEFT_OUT, ArmHealth, Offer
from ragbandit.router.serving.micro_batching import Grouped
from ragbandit.router.serving.validation import checked_query, new_id
from ragbandit.router.storage.decisions import Store, settle
from ragbandit.router.storage.rows import body_hash, query_body
from ragbandit.router.types import ArmName, Decision, Query, RunBy

__all__ = ["RouteService", "Serving"]

log = logging.getLogger("ragbandit.service")

#: least time between two reports of the same trouble, seconds
QUIET_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """The policy in force. Swapped whole; its `learn` is never called here."""

    policy: Policy
    version: str
    last_seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A checked request on its way through the group."""

    query: Query
    run_by: RunBy
    #: what was on offer when it was checked
    offered: tuple[ArmName, ...]


class RouteService:
    """Encodes, decides and commits in groups, on one thread."""

    def __init__(
        self,
        store: Store,
        *,
        encoder: Encoder,
        settings: Settings,
        serving: Serving,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.encoder = encoder
        self.settings: Settings
        self.arms: tuple[ArmName, ...]
        self.worker_arms: tuple[ArmName, ...]
        self.offer(settings)
        self.serving = serving
        self.clock = clock
        #: decisions made by the fallback since the start
        self.faults = 0
        #: questions none of whose arms was healthy
        self.forced = 0
        self._watch = Watch(store.database, settings=settings.health, seconds=settings.budget.seconds)
        self._said = {"fault": -QUIET_S, "forced": -QUIET_S}
        self._grouped: Grouped[Asked, Decision] = Grouped(
            self._route_group, name="ragbandit-route", limit=settings.encoder.max_batch
        )

    def submit(self, query: Query, *, run_by: RunBy) -> "Future[Decision]":
        """The decision, committed, as a Future. Raises InvalidInput for a query that cannot be routed.

        The Future raises Conflict if the query's id was used for another request.
        """
        offered = self._offered(run_by)
        query = checked_query(query, arms=offered, configured=self.arms)
        return self._grouped.submit(Asked(query=query, run_by=run_by, offered=offered))

    def offer(self, settings: Settings) -> None:
        """Offer the arms of these settings from the next request on; the rest of them must be as it was."""
        self.settings = settings
        self.arms = tuple(ArmName(name) for name in settings.arms)
        self.worker_arms = tuple(ArmName(name) for name in settings.worker_arms)

    def swap(self, serving: Serving) -> None:
        """Decide with this policy from the next group on."""
        self.serving = serving

    def look(self) -> None:
        """Take in how the arms' last outcomes ended. Raises StoreError."""
        self._watch.look(self.arms, now=self.clock())

    def healths(self) -> list[ArmHealth]:
        """How the arms on offer are, as far as `look` has seen."""
        return self._watch.breaker.healths(self.arms, now=self.clock())

    def alive(self) -> bool:
        """Whether requests are being served."""
        return self._grouped.alive()

    def depth(self) -> int:
        """Requests that wait for their group."""
        return self._grouped.depth()

    def close(self) -> None:
        """Serve what was handed in, then stop."""
        self._grouped.close()

    def _route_group(self, group: Sequence[Asked]) -> Sequence[Decision | Exception]:
        named = [asked.query.id for asked in group if asked.query.id is not None]
        standing = self.store.decisions_by_id(named) if named else {}
        results: list[Decision | Exception | None] = []
        for asked in group:
            kept = standing.get(asked.query.id) if asked.query.id else None
            results.append(settle(*kept, asked=_body_hash(asked)) if kept else None)
        fresh = [index for index, result in enumerate(results) if result is None]
        if fresh:
            made = self._decide([group[index] for index in fresh])
            for index, result in zip(fresh, self.store.add_decisions(made), strict=True):
                results[index] = result
                if isinstance(result, Decision):
                    self._watch.breaker.drew(result.arm, decision_id=result.id, now=self.clock())
        return [result for result in results if result is not None]

    def _offered(self, run_by: RunBy) -> tuple[ArmName, ...]:
        return self.worker_arms if run_by == "worker" else self.arms

    def _decide(self, group: Sequence[Asked]) -> list[Decision]:
        """One forward pass and one call of the policy for all of them."""
        serving, now = self.serving, self.clock()
        queries = [asked.query if asked.query.id else replace(asked.query, id=new_id()) for asked in group]
        features = self.encoder.encode([query.text for query in queries])  # (n, d)
        wanted = [query.arms or asked.offered for query, asked in zip(queries, group, strict=True)]
        offers = self._watch.breaker.offer(wanted, now=now)
        arms = [offer.arms for offer in offers]
        made = []
        for index, output in enumerate(outputs_of(serving.policy, queries, features=features, arms=arms)):
            decision = made_decision(
                queries[index],
                run_by=group[index].run_by,
                output=output,
                arms=arms[index],
                features=features[index],
                settings=self.settings,
                seen=serving.policy.seen,
                version=serving.version,
                encoder_hash=self.encoder.hash,
                now=now,
            )
            made.append(self._remarked(decision, offer=offers[index]))
        return made

    def _remarked(self, decision: Decision, *, offer: Offer) -> Decision:
        """The decision with the arms that were left out; what went wrong with it is counted and said."""
        if decision.fault is not None:
            self.faults += 1
            if self._may_say("fault"):  # a broken policy breaks for every question
                facts = {"action": "fault", "times": self.faults, "reason": decision.fault}
                log.error("the fallback arm was played", extra=facts)
        if offer.forced:
            self.forced += 1
            if self._may_say("forced"):
                facts = {"action": "forced", "times": self.forced, "arms": ", ".join(offer.arms)}
                log.warning("none of the arms is healthy: all of them are offered", extra=facts)
        if not offer.left_out:
            return decision
        return replace(decision, facts={**decision.facts, LEFT_OUT: list(offer.left_out)})

    def _may_say(self, what: str) -> bool:
        if time.monotonic() <= self._said[what] + QUIET_S:
            return False
        self._said[what] = time.monotonic()
        return True


def _body_hash(asked: Asked) -> str:
    return body_hash(query_body(asked.query, run_by=asked.run_by))
