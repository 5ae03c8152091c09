"""Life of a router: its parts put together, started, kept up to date with the learner, and closed."""

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.jobs.notifier import Notifier
from ragbandit.router.jobs.queue import Jobs, RedisJobs, Subscription
from ragbandit.router.jobs.streams.keys import STREAM_SECRET
from ragbandit.router.jobs.streams.reader import StreamReader
from ragbandit.router.learning.lessons import policy_of
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.rollouts.served import settings_of
from ragbandit.router.serving.answers.pending import PendingAnswers
from ragbandit.router.serving.batching.admission import QueueLimits
from ragbandit.router.serving.batching.micro_batching import MicroBatcher
from ragbandit.router.serving.conversations.queries import ConversationQueries
from ragbandit.router.serving.deciding.live import Serving
from ragbandit.router.serving.deciding.service import RouteService
from ragbandit.router.serving.following.polling import PollingThread
from ragbandit.router.serving.following.snapshots import SnapshotFollower
from ragbandit.router.serving.following.versions import VersionFollower, opened
from ragbandit.router.serving.health.readiness import LEARNER, REDIS, Readiness, TrialWrites, learner_check
from ragbandit.router.serving.setup.bootstrap import (
    encoder_hash_of,
    judge_sample,
    make_encoder,
    make_jobs,
    open_database,
)
from ragbandit.router.storage.access.service_secrets import shared_secret
from ragbandit.router.storage.decisions import DecisionStore
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.ledgers.registration import register_policy
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.vote_limits import VoteLimit
from ragbandit.shared.errors import ConfigError, Conflict, NotReady, RagBanditError
from ragbandit.shared.types import Feedback, Outcome, PolicyLabel, PolicyVersion, Receipt

__all__ = ["RouterLifecycle"]

log = logging.getLogger("ragbandit.versions")

#: most outcomes, or items of feedback, in one transaction
MAX_WRITES = 500
#: seconds between two polls for new snapshots, awaited outcomes and the arms' health; a notification comes sooner
POLL_S = 1.0


class RouterLifecycle:
    """The parts of one process's router, from assembly to close. What they are for is in Router."""

    def __init__(self, settings: Settings, *, encoder: Encoder, database: Database, jobs: Jobs) -> None:
        """Assemble the parts; nothing is read, written or started before `start`. Raises ConfigError."""
        self.settings = settings
        self.encoder = encoder
        self.database = database
        self.jobs = jobs
        label = PolicyLabel(settings.policy.label)
        self.store = DecisionStore(
            database,
            label=label,
            text=settings.log.text,
            context=frozenset(settings.context),
            judge=judge_sample(settings),
        )
        self.ledger = Ledger(database, label=label)
        self.files = SnapshotFiles(settings.snapshot_root)
        check_policy(settings)
        self._fresh = policy_of(settings, registered=None)
        #: a policy that uses no features may be served with any encoder
        encoder_hash = encoder.hash if "features" in self._fresh.needs else ""
        self.snapshots = SnapshotFollower(
            self.ledger, files=self.files, settings=settings, fresh=self._fresh, encoder_hash=encoder_hash
        )
        nothing_learned = Serving(policy=self._fresh, version="", last_seq=0)
        #: what the database says of versions, followed here
        self.versions = VersionFollower(
            database,
            base=label,
            files=self.files,
            encoder=encoder,
            settings=lambda: self.settings,
            wake=lambda: self._poll.wake(),
        )
        self.service = RouteService(
            self.store, encoder=encoder, settings=settings, serving=nothing_learned, live=self.versions.glance
        )
        #: makes questions of chats
        self.conversations = ConversationQueries(settings, store=self.store)
        self._notifier = Notifier(jobs, label=label)
        limits = QueueLimits.of(settings.server)
        self._feedback: MicroBatcher[tuple[Feedback, VoteLimit | None], Receipt] = MicroBatcher(
            self._add_feedback, name="ragbandit-feedback", limit=MAX_WRITES, limits=limits
        )
        self._outcomes: MicroBatcher[Outcome, bool] = MicroBatcher(
            self._add_outcomes, name="ragbandit-outcomes", limit=MAX_WRITES, limits=limits
        )
        self._pending = PendingAnswers(
            self.store,
            notifier=self._notifier,
            limits=limits,
            max_unanswered=settings.server.max_unanswered,
            tenant_unanswered=settings.server.tenant_unanswered,
        )
        self._poll = PollingThread(self._catch_up, name="ragbandit-follow", every_s=POLL_S)
        self._poll_health_at = 0.0
        self._following = threading.Lock()
        #: follows the snapshots of the configuration itself
        self._configured = self.snapshots
        #: the version that decides; None: the configuration itself
        self._champion: PolicyVersion | None = None
        #: that cannot be used here; logged once
        self._refused_champion: PolicyVersion | None = None
        self._listener: Subscription | None = None
        self.readiness = Readiness(
            {
                "database": TrialWrites(database).write,
                REDIS: self._check_redis,
                LEARNER: learner_check(lambda: self.jobs, label=label),
            },
            alive=self.service.alive,
        )
        #: answers that are read while workers write them; None: without Redis they come whole
        self.streams: StreamReader | None = None
        self._owns_jobs = False

    @classmethod
    def open(
        cls,
        config: "str | Path | Settings | None" = None,
        *,
        encoder: Encoder | None = None,
        jobs: Jobs | None = None,
    ) -> Self:
        """A started Router on the configured database, Redis and encoder.

        config: a file, ready Settings, or None for ./config.yaml and the environment. Raises ConfigError for a
        wrong setting and StoreError for a database that cannot be used; Redis may be down.
        """
        settings = config if isinstance(config, Settings) else load(config).settings
        database = open_database(settings)
        try:
            if encoder is None:
                ledger = Ledger(database, label=PolicyLabel(settings.policy.label))
                encoder = make_encoder(settings.encoder, known_hash=encoder_hash_of(ledger))
            router = cls(
                settings,
                encoder=encoder,
                database=database,
                jobs=jobs or make_jobs(settings),
            )
            router._owns_jobs = jobs is None
            router.start()
            return router
        except BaseException:
            database.close()
            raise

    def start(self) -> None:
        """Register the policy, take over the newest snapshot, start the threads. Once. Raises StoreError."""
        self.service.offer(self.settings)
        self._fresh = policy_of(self.settings, registered=self.ledger.registered())
        self.snapshots.fresh = self._fresh
        register_policy(
            self.database,
            label=self.store.label,
            algorithm=self._fresh.algorithm,
            params=canonical(dict(self._fresh.params)),
            encoder_hash=self.snapshots.encoder_hash,
            now=time.time(),
        )
        self._take_over(self.versions.champion_version())
        self.versions.follow()
        self.service.poll_outcomes(more=self.versions.live.added)
        if self.service.serving.last_seq < self.ledger.last_seq():
            # The newest snapshot is lost or has other params: the learner makes it from the ledger.
            self._notifier.notify_learner()
        self.service.start()
        self._feedback.start()
        self._outcomes.start()
        self._pending.start()
        self._poll.start()
        if isinstance(self.jobs, RedisJobs):
            secret = shared_secret(self.database, name=STREAM_SECRET, now=time.time())
            self.streams = StreamReader(self.jobs.client, outage=self.jobs.outage, secret=secret)
        self._listener = self.jobs.listen(self._handle_notification)

    def _add_feedback(self, batch: Sequence[tuple[Feedback, VoteLimit | None]]) -> Sequence[Receipt | Exception]:
        limits = {item.id: limit for item, limit in batch if limit is not None}
        results = self.store.add_feedback([item for item, _ in batch], limits=limits)
        if any(isinstance(result, Receipt) and not result.duplicate for result in results):
            self._notifier.notify_learner()
        return results

    def _add_outcomes(self, batch: Sequence[Outcome]) -> Sequence[bool | Exception]:
        results = self.store.add_outcomes(batch)
        if True in results:
            self._notifier.notify_learner()
        return results

    def refresh(self) -> bool:
        """Take over the newest snapshot if there is a newer one; True if the policy was swapped."""
        with self._following:  # a caller of `learn` and the thread that polls
            self.versions.follow()
            self._follow_champion()
        return self.snapshots.refresh(lambda: self.service.serving, swap=self.service.swap)

    def _offer_settings(self, settings: Settings) -> None:
        """Offer the arms of these settings, with the champion's own. Raises ConfigError if it does not fit them."""
        self.service.offer(settings if self._champion is None else settings_of(settings, self._champion))
        self.settings = settings
        self.versions.reload()

    def _follow_champion(self) -> None:
        """Let another version decide, if the database says so; one that cannot be used here changes nothing."""
        wanted = self.versions.champion
        if self._champion == wanted:
            return
        if wanted is not None and self._champion is not None and wanted.name == self._champion.name:
            self._champion = wanted  # the same, in another revision
            return
        try:
            self._take_over(wanted)
        except RagBanditError as error:
            if self._refused_champion != wanted:
                self._refused_champion = wanted
                facts = {"action": "champion", "version": _name_of(wanted), "reason": str(error)}
                log.error("the champion cannot be used here: the one before it goes on deciding", extra=facts)

    def _take_over(self, version: PolicyVersion | None) -> None:
        """Decide with this version; None: with the configuration. Raises ConfigError, Conflict, StoreError."""
        if version is None:
            settings, snapshots, serving = self.settings, self._configured, self._configured.first()
        else:
            try:
                settings = settings_of(self.settings, version)
                found = opened(self.database, settings, files=self.files, encoder=self.encoder)
            except (ConfigError, Conflict) as error:
                raise ConfigError(
                    f"the champion is the version {version.name!r}, and what it changes does not fit this "
                    f"configuration: {error.message}",
                    field=error.field,
                    remedy=f"{error.remedy or 'set it back'}; or: ragbandit policy rollback {version.name}",
                ) from error
            snapshots, serving = found.snapshots, found.serving
        self.service.take_over(serving, settings=settings)
        self.snapshots, self.ledger, self._fresh = snapshots, snapshots.ledger, snapshots.fresh
        self.store.label = self.ledger.label
        changed, self._champion = self._champion != version, version
        if changed:
            facts = {"action": "champion", "version": _name_of(version), "snapshot": serving.version}
            log.info("another version decides from now on", extra=facts)

    def close(self) -> None:
        """Finish the requests handed in, stop all threads, close the connections."""
        self.service.close()
        self._feedback.close()
        self._outcomes.close()
        self._pending.close()
        self._poll.close()
        self.versions.close()
        if self._listener is not None:
            self._listener.close()
        if self.streams is not None:
            self.streams.close()
        if self._owns_jobs:
            self.jobs.close()
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def redis_fault(self) -> str | None:
        """What this process cannot do with Redis, or met there that is not ours; None: nothing."""
        faults = (self.listener_fault(), self._notifier.fault(), self.jobs.outage.foreign.recent())
        return "; ".join(fault for fault in faults if fault) or None

    def listener_fault(self) -> str | None:
        """Why notifications do not arrive in this process now; None: they do, or it has not started."""
        return None if self._listener is None else self._listener.fault()

    def _check_redis(self) -> None:
        """Raises QueueError, NotReady."""
        self.jobs.ping()
        fault = self.redis_fault()
        if fault is not None:
            raise NotReady(fault)

    def _handle_notification(self, notification: str) -> None:
        kind, _, key = notification.partition(":")
        if kind == "snapshot":
            self._poll.wake()
        elif kind == "outcome":
            if self._pending.is_awaited(key):
                self._pending.deliver(self.store.outcomes_by_id([key]))
            else:
                self._pending.answered([key])

    def _catch_up(self) -> None:
        """Poll for what a notification may have missed: the arms' health, new snapshots, awaited outcomes."""
        if time.monotonic() >= self._poll_health_at:
            self._poll_health_at = time.monotonic() + POLL_S
            self.service.poll_outcomes(more=self.versions.live.added)
        self.refresh()
        self._pending.poll()


def _name_of(version: PolicyVersion | None) -> str:
    return "the configuration" if version is None else version.name
