"""Decision service: questions in, committed decisions out."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.errors import InvalidInput
from ragbandit.router.policies.draw import made_decisions, outputs_of
from ragbandit.router.serving.batching.admission import QueueLimits, QueueState
from ragbandit.router.serving.batching.micro_batching import MicroBatcher
from ragbandit.router.serving.context_counts import ContextCounts
from ragbandit.router.serving.conversations.checks import check_sticky_turns
from ragbandit.router.serving.conversations.sticky import kept_to, marked, stays_of
from ragbandit.router.serving.health.arm_health import OutcomePoller
from ragbandit.router.serving.health.circuit_breaker import EXCLUDED_ARMS, ArmHealth, Offer
from ragbandit.router.serving.validation import checked_query, new_id
from ragbandit.router.serving.versions.deciding import Offered, ask, pinned, pinned_output, with_candidates
from ragbandit.router.serving.versions.live import NOTHING_LIVE, LiveVersions, Serving
from ragbandit.router.storage.decisions import DecisionStore
from ragbandit.router.storage.idempotency import settle
from ragbandit.router.storage.rows.conversion import canonical, query_hash
from ragbandit.router.telemetry.throttle import Throttle
from ragbandit.router.types import ArmName, Decision, FeatureRows, Json, Query, RunBy

__all__ = ["RouteService", "Serving"]

log = logging.getLogger("ragbandit.service")

#: the key of a decision's facts that says that the configured policy was being rebuilt, and another one decided
REBUILDING: Final = "rebuilding"
#: least time between two log lines about the same problem, seconds
QUIET_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingRequest:
    """A checked request that waits for its batch."""

    query: Query
    run_by: RunBy
    #: the arms on offer when it was checked
    offered: tuple[ArmName, ...]


class RouteService:
    """Encodes, decides and commits in batches, on one thread."""

    def __init__(
        self,
        store: DecisionStore,
        *,
        encoder: Encoder,
        settings: Settings,
        serving: Serving,
        clock: Callable[[], float] = time.time,
        live: Callable[[], LiveVersions] = lambda: NOTHING_LIVE,
    ) -> None:
        """live: what is live of versions, asked before each batch."""
        self.store = store
        self.encoder = encoder
        self.arms: tuple[ArmName, ...]
        self.worker_arms: tuple[ArmName, ...]
        #: the policy and the settings that decide, replaced together
        self._in_use = (serving, settings)
        self.offer(settings)
        self.clock = clock
        self._live = live
        # Both counts are written by the batcher's thread alone; others read them without a lock.
        #: decisions made by the fallback since the start
        self.faults = 0
        #: questions that were offered all arms because none of theirs was healthy
        self.fail_opens = 0
        self._poller = OutcomePoller(store.database, settings=settings.health, seconds=settings.budget.seconds)
        self._throttle = Throttle(QUIET_S)
        self.context_counts = ContextCounts(settings.context)
        self._batcher: MicroBatcher[PendingRequest, Decision] = MicroBatcher(
            self._route_batch,
            name="ragbandit-route",
            limit=settings.encoder.max_batch,
            limits=QueueLimits.of(settings.server),
        )

    def start(self) -> None:
        """Start the thread that serves requests."""
        self._batcher.start()

    def submit(self, query: Query, *, run_by: RunBy) -> "Future[Decision]":
        """The decision, committed, as a Future; once cancelled, the query is dropped if its batch has not begun.

        Raises InvalidInput for a query that cannot be routed, Overloaded if it would wait too long, TooManyRequests if
        too many of its tenant wait. The Future raises Conflict if the query's id was
        used for another request.
        """
        asked = self._checked(query, run_by=run_by)
        return self._batcher.submit(asked, tenant=asked.query.tenant)

    def submit_many(self, queries: Sequence[Query], *, run_by: RunBy) -> "list[Future[Decision]]":
        """`submit` for many: a query that cannot be routed, or is one too many, has a Future that raises why.

        Raises Overloaded if not even the first of them may wait.
        """
        futures: list[Future[Decision]] = []
        sound: list[tuple[int, PendingRequest]] = []
        for at, query in enumerate(queries):
            futures.append(Future())
            try:
                sound.append((at, self._checked(query, run_by=run_by)))
            except InvalidInput as error:
                futures[at].set_exception(error)
        taken = self._batcher.submit_each(
            [asked for _, asked in sound], tenants=[asked.query.tenant for _, asked in sound]
        )
        for (at, _), future in zip(sound, taken, strict=True):
            futures[at] = future
        return futures

    def _checked(self, query: Query, *, run_by: RunBy) -> PendingRequest:
        offered = self._offered(run_by)
        query = checked_query(query, arms=offered, configured=self.arms, schema=self.settings.context)
        check_sticky_turns(query, most=self.settings.conversation.sticky_turns_cap)
        self._check_context_bytes(query)
        self.context_counts.add(query)
        return PendingRequest(query=query, run_by=run_by, offered=offered)

    def _check_context_bytes(self, query: Query) -> None:
        most = self.settings.server.max_context_bytes
        if query.context and (size := len(canonical(query.context).encode())) > most:
            remedy = f"send at most {most} bytes (server.max_context_bytes)"
            raise InvalidInput(f'"context" has {size} bytes as JSON', field="context", remedy=remedy)

    @property
    def serving(self) -> Serving:
        """The policy in use."""
        return self._in_use[0]

    @property
    def settings(self) -> Settings:
        """The settings that decide: the configuration, with what the champion version changes."""
        return self._in_use[1]

    def offer(self, settings: Settings) -> None:
        """Offer the arms of these settings from the next request on; the rest of them must be as it was."""
        self.take_over(self.serving, settings=settings)

    def take_over(self, serving: Serving, *, settings: Settings) -> None:
        """Decide with this policy, by these settings, from the next batch on."""
        self._in_use = (serving, settings)
        self.arms = tuple(ArmName(name) for name in settings.arms)
        self.worker_arms = tuple(ArmName(name) for name in settings.worker_arms)

    def swap(self, serving: Serving) -> None:
        """Decide with this policy from the next batch on."""
        self._in_use = (serving, self.settings)

    def poll_outcomes(self, *, more: Sequence[ArmName] = ()) -> None:
        """Update the circuit breaker from the newest outcomes in the store. Raises StoreError.

        more: arms that are offered beside the configured ones.
        """
        self._poller.poll((*self.arms, *(arm for arm in more if arm not in self.arms)), now=self.clock())

    def healths(self) -> list[ArmHealth]:
        """State of the arms on offer, as of the last `poll_outcomes`."""
        return self._poller.breaker.healths(self.arms, now=self.clock())

    def alive(self) -> bool:
        """True while requests are being served."""
        return self._batcher.alive()

    def depth(self) -> int:
        """Requests waiting for the next batch."""
        return self._batcher.depth()

    def check_admission(self) -> None:
        """Raises Overloaded if a question that came now would wait too long."""
        self._batcher.check_admission()

    def queue(self) -> QueueState:
        """State of the queue of questions."""
        return self._batcher.state()

    def close(self) -> None:
        """Serve what was handed in, then stop."""
        self._batcher.close()

    def _route_batch(self, batch: Sequence[PendingRequest]) -> Sequence[Decision | Exception]:
        named = [asked.query.id for asked in batch if asked.query.id is not None]
        standing = self.store.decisions_by_id(named) if named else {}
        results: list[Decision | Exception | None] = []
        for asked in batch:
            kept = standing.get(asked.query.id) if asked.query.id else None
            results.append(settle(*kept, asked=query_hash(asked.query, run_by=asked.run_by)) if kept else None)
        fresh = [index for index, result in enumerate(results) if result is None]
        if fresh:
            made = self._decide([batch[index] for index in fresh])
            kept_now = self.store.add_decisions(made)
            for index, result in zip(fresh, kept_now, strict=True):
                results[index] = result
            self._record_probes(result for result in kept_now if isinstance(result, Decision))
        return [result for result in results if result is not None]

    def _record_probes(self, decided: Iterable[Decision]) -> None:
        """Tell the circuit breaker which arms were drawn: for each tenant the first, later ones are no probes."""
        first: dict[tuple[ArmName, str], Decision] = {}
        for decision in decided:
            first.setdefault((decision.arm, decision.query.tenant), decision)
        now = self.clock()
        for (arm, tenant), decision in first.items():
            self._poller.breaker.record_probe(arm, decision_id=decision.id, now=now, tenant=tenant)

    def _offered(self, run_by: RunBy) -> tuple[ArmName, ...]:
        return self.worker_arms if run_by == "worker" else self.arms

    def _decide(self, batch: Sequence[PendingRequest]) -> list[Decision]:
        """One forward pass and one call of the policy, and of each candidate, for all of them."""
        live, using, now = self._live(), self._in_use, self.clock()
        serving, settings = using
        queries = [asked.query if asked.query.id else _with_id(asked.query) for asked in batch]
        features = self.encoder.encode([query.text for query in queries])  # (n, d)
        wanted = [query.arms or asked.offered for query, asked in zip(queries, batch, strict=True)]
        if live.control.killed == "arm":
            arms = wanted  # whoever pins an arm has the last word, whatever its health
            made = self._made(batch, queries, arms=arms, features=features, now=now, using=using, pinned=True)
            return [pinned(decision, control=live.control, settings=settings) for decision in made]
        offers = self._poller.breaker.offer(wanted, now=now, tenants=[query.tenant for query in queries])
        added = self._added(live, batch, queries, now=now)
        stays = stays_of(queries, settings=settings, database=self.store.database)
        kept = [kept_to(offer, stay, more=own) for offer, stay, own in zip(offers, stays, added, strict=True)]
        arms = [offer.arms for offer, _ in kept]
        offered = [
            Offered(at=at, query=query, arms=arms[at], added=added[at])
            for at, query in enumerate(queries)
            if live.asks and kept[at][1] is None and not query.forced
        ]
        candidates = ask(live, offered, features=features)
        made = self._made(batch, queries, arms=arms, features=features, now=now, using=using)
        decided = [
            decision if stay is None else marked(decision, stay=stay)
            for decision, (_, stay) in zip(made, kept, strict=True)
        ]
        return [
            self._remarked(decision, offer=offer, serving=serving)
            for decision, (offer, _) in zip(with_candidates(decided, candidates), kept, strict=True)
        ]

    def _made(
        self,
        batch: Sequence[PendingRequest],
        queries: Sequence[Query],
        *,
        arms: Sequence[tuple[ArmName, ...]],
        features: FeatureRows,
        now: float,
        using: tuple[Serving, Settings],
        pinned: bool = False,
    ) -> list[Decision]:
        """The champion's decisions; pinned: without its word, since an arm is pinned."""
        serving, settings = using
        return made_decisions(
            queries,
            run_by=[asked.run_by for asked in batch],
            outputs=[pinned_output(offered) for offered in arms]
            if pinned
            else outputs_of(serving.policy, queries, features=features, arms=arms),
            arms=arms,
            features=features,
            settings=settings,
            seen=serving.seen,
            version=serving.version,
            encoder_hash=self.encoder.hash,
            now=now,
        )

    def _added(
        self, live: LiveVersions, batch: Sequence[PendingRequest], queries: Sequence[Query], *, now: float
    ) -> list[tuple[ArmName, ...]]:
        """For every question the arms that candidates alone offer: none where the caller names the arms."""
        if not (live.asks and live.added):
            return [()] * len(queries)
        own = [
            () if query.arms is not None else live.added_for(asked.run_by)
            for query, asked in zip(queries, batch, strict=True)
        ]
        places = [at for at, arms in enumerate(own) if arms]
        tenants = [queries[at].tenant for at in places]
        offers = self._poller.breaker.offer([own[at] for at in places], now=now, tenants=tenants)
        healthy = {at: () if offer.fail_open else offer.arms for at, offer in zip(places, offers, strict=True)}
        return [healthy.get(at, ()) for at in range(len(queries))]

    def _remarked(self, decision: Decision, *, offer: Offer, serving: Serving) -> Decision:
        """The decision, excluded arms and a rebuild in its facts; faults and fail-opens are counted and logged."""
        if decision.fault is not None:
            self.faults += 1
            if self._throttle.lets_pass("fault"):  # a broken policy breaks for every question
                facts = {"action": "fault", "times": self.faults, "reason": decision.fault}
                log.error("the policy broke its contract: the fallback arm decided", extra=facts)
        if offer.fail_open:
            self.fail_opens += 1
            if self._throttle.lets_pass("fail_open"):
                facts = {"action": "fail_open", "times": self.fail_opens, "arms": ", ".join(offer.arms)}
                log.warning("no arm of the question is healthy: all of them are offered", extra=facts)
        more: dict[str, Json] = {EXCLUDED_ARMS: list(offer.excluded_arms)} if offer.excluded_arms else {}
        if serving.rebuilding:
            more[REBUILDING] = True
        return replace(decision, facts={**decision.facts, **more}) if more else decision


def _with_id(query: Query) -> Query:
    return replace(query, id=new_id())
