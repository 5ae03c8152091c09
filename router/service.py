"""The decision: question in, committed Decision out."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from router.config import Settings
from router.edge import checked_query, new_id
from router.encoder import Encoder
from router.errors import PolicyFault
from router.grouping import Grouped
from router.policies.base import FeatureRows, Policy, PolicyOutput, choose, gate, seed_of, with_floor
from router.rows import body_hash, query_body
from router.store import Store, settle
from router.types import ArmName, Decision, Features, Query, RunBy

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
        self.settings = settings
        self.serving = serving
        self.clock = clock
        self.arms: tuple[ArmName, ...] = tuple(ArmName(name) for name in settings.arms)
        self.worker_arms: tuple[ArmName, ...] = tuple(ArmName(name) for name in settings.worker_arms)
        #: decisions made by the fallback since the start
        self.faults = 0
        self._said = -QUIET_S
        self._grouped: Grouped[Asked, Decision] = Grouped(
            self._route_group, name="ragbandit-route", limit=settings.encoder.max_batch
        )

    def submit(self, query: Query, *, run_by: RunBy) -> "Future[Decision]":
        """The decision, committed, as a Future. Raises InvalidInput for a query that cannot be routed.

        The Future raises Conflict if the query's id was used for another request.
        """
        offered = self._offered(run_by)
        query = checked_query(query, arms=offered)
        return self._grouped.submit(Asked(query=query, run_by=run_by))

    def swap(self, serving: Serving) -> None:
        """Decide with this policy from the next group on."""
        self.serving = serving

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
        return [result for result in results if result is not None]

    def _offered(self, run_by: RunBy) -> tuple[ArmName, ...]:
        return self.worker_arms if run_by == "worker" else self.arms

    def _decide(self, group: Sequence[Asked]) -> list[Decision]:
        """One forward pass and one call of the policy for all of them."""
        serving, now = self.serving, self.clock()
        queries = [asked.query if asked.query.id else replace(asked.query, id=new_id()) for asked in group]
        features = self.encoder.encode([query.text for query in queries])  # (n, d)
        arms = [query.arms or self._offered(asked.run_by) for query, asked in zip(queries, group, strict=True)]
        drawn = []
        for index, output in enumerate(self._outputs(serving.policy, queries, features=features, arms=arms)):
            asked = Asked(query=queries[index], run_by=group[index].run_by)
            drawn.append(
                self._draw(asked, output=output, arms=arms[index], features=features[index], serving=serving, now=now)
            )
        return drawn

    def _outputs(
        self, policy: Policy, queries: list[Query], *, features: FeatureRows, arms: list[tuple[ArmName, ...]]
    ) -> list[PolicyOutput | Exception]:
        """The policy's word on each question; where the group breaks it, each question for itself."""
        try:
            return list(policy.pmf(queries, features=features, arms=arms))
        except Exception as error:  # a policy must never cost a caller the answer
            if len(queries) == 1:
                return [error]
        found: list[PolicyOutput | Exception] = []
        for index, query in enumerate(queries):
            found += self._outputs(policy, [query], features=features[index : index + 1], arms=[arms[index]])
        return found

    def _draw(
        self,
        asked: Asked,
        *,
        output: PolicyOutput | Exception,
        arms: tuple[ArmName, ...],
        features: Features,
        serving: Serving,
        now: float,
    ) -> Decision:
        """Gate, floor, draw. A pmf that fails the gate is replaced by the fallback arm's, and the row says so."""
        query = asked.query
        assert query.id is not None
        scores, facts, fault = None, {}, None
        try:
            if isinstance(output, Exception):
                raise output
            pmf, scores, facts = gate(output, arms=arms), output.scores, dict(output.facts)
        except Exception as error:
            fault = str(error) if isinstance(error, PolicyFault) else f"{type(error).__name__}: {error}"
            self._warn(fault)
            fallback = self.settings.policy.fallback if self.settings.policy.fallback in arms else arms[0]
            pmf = tuple(float(arm == fallback) for arm in arms)
        pmf = with_floor(pmf, floor=self.settings.policy.floor)
        seed = seed_of(query.id)
        drawn = choose(pmf, seed=seed)
        return Decision(
            id=query.id,
            query=query,
            arm=arms[drawn],
            arms=arms,
            pmf=pmf,
            propensity=pmf[drawn],
            scores=None if scores is None else tuple(scores),
            policy=self.store.label,
            version=serving.version,
            encoder_hash=self.encoder.hash,
            seed=seed,
            floor=self.settings.policy.floor,
            explored=pmf[drawn] < max(pmf),
            fault=fault,
            facts=facts,
            run_by=asked.run_by,
            features=features,
            made_at=now,
        )

    def _warn(self, fault: str) -> None:
        self.faults += 1
        if time.monotonic() > self._said + QUIET_S:  # a broken policy breaks for every question
            self._said = time.monotonic()
            log.error("the fallback arm was played", extra={"action": "fault", "times": self.faults, "reason": fault})


def _body_hash(asked: Asked) -> str:
    return body_hash(query_body(asked.query, run_by=asked.run_by))
