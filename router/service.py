"""The decision: question in, committed Decision out."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from router.config import Settings
from router.edge import checked_query, new_id
from router.encoder import Encoder
from router.errors import PolicyFault
from router.grouping import Grouped
from router.policies.base import Policy, choose, gate, seed_of, with_floor
from router.rows import body_hash, query_body
from router.store import Store, settle
from router.types import ArmName, Decision, Features, Query

__all__ = ["RouteService", "Serving"]


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
    answered_by_us: bool


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
        self._grouped: Grouped[Asked, Decision] = Grouped(
            self._route_group, name="ragbandit-route", limit=settings.encoder.max_batch
        )

    def submit(self, query: Query, *, answered_by_us: bool) -> "Future[Decision]":
        """The decision, committed, as a Future. Raises InvalidInput for a query that cannot be routed.

        The Future raises Conflict if the query's id was used for another request.
        """
        offered = self.worker_arms if answered_by_us else self.arms
        query = checked_query(query, arms=offered)
        return self._grouped.submit(Asked(query=query, answered_by_us=answered_by_us))

    def swap(self, serving: Serving) -> None:
        """Decide with this policy from the next group on."""
        self.serving = serving

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
        serving, now = self.serving, self.clock()
        features = self.encoder.encode([group[index].query.text for index in fresh])  # (n, d)
        made = [
            self._decide(group[index], features=row, serving=serving, now=now)
            for index, row in zip(fresh, features, strict=True)
        ]
        if made:
            for index, result in zip(fresh, self.store.add_decisions(made), strict=True):
                results[index] = result
        return [result for result in results if result is not None]

    def _decide(self, asked: Asked, *, features: Features, serving: Serving, now: float) -> Decision:
        query = asked.query if asked.query.id else replace(asked.query, id=new_id())
        assert query.id is not None
        arms = query.arms or (self.worker_arms if asked.answered_by_us else self.arms)
        scores, fault = None, None
        try:
            output = serving.policy.pmf(query, features=features, arms=arms)
            pmf, scores = gate(output, arms=arms), output.scores
        except Exception as error:
            fault = str(error) if isinstance(error, PolicyFault) else f"{type(error).__name__}: {error}"
            fallback = self.settings.policy.fallback if self.settings.policy.fallback in arms else arms[0]
            pmf = tuple(float(arm == fallback) for arm in arms)
        pmf = with_floor(pmf, floor=self.settings.policy.floor)
        seed = seed_of(query.id, salt=self.settings.salt)
        drawn = choose(pmf, seed=seed)
        return Decision(
            id=query.id,
            query=query,
            arm=arms[drawn],
            arms=tuple(arms),
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
            answered_by_us=asked.answered_by_us,
            features=features,
            made_at=now,
        )


def _body_hash(asked: Asked) -> str:
    return body_hash(query_body(asked.query, answered_by_us=asked.answered_by_us))
