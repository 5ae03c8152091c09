"""The learner: makes updates from decisions and feedback, appends them to the ledger, and applies them in its order.

The policy is a function of the ledger, so `catch_up` restores the same policy after a crash. A lease in SQL allows one
learner per label. An append is refused if another learner has appended meanwhile.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from ragbandit.router.config.learning import PolicyDefinition
from ragbandit.router.learning.adjustments import AdjustedRow, Adjustments, Basis, Repricing
from ragbandit.router.learning.examples import Joining, closing_rule, make_update, updates_to_learn
from ragbandit.router.learning.monitoring.arm_changes import ArmChanges
from ragbandit.router.learning.monitoring.diagnosis import diagnose
from ragbandit.router.learning.monitoring.frontier import EVERY_S, frontier_text
from ragbandit.router.learning.publishing import Publisher
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.learning.sources import Screening
from ragbandit.router.policies import untrained_policy
from ragbandit.router.policies.base import Policy, apply_update
from ragbandit.router.storage.ledgers.appending import LedgerBatch
from ragbandit.router.storage.ledgers.inheritance import inherit
from ragbandit.router.storage.ledgers.ledger import Ledger, is_kept
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.leases import lease_holder
from ragbandit.shared.errors import Conflict, NotReady, SnapshotError
from ragbandit.shared.texts.formats import counted
from ragbandit.shared.types import NOT_BY_POLICY, ClosedDecision, JoinedDecision, SnapshotInfo, Update

log = logging.getLogger("ragbandit.learner")

#: time limit of one call of `Learner.drain`, seconds; the next call learns the decisions that remain
DRAIN_S = 20.0
#: the lease is renewed after this share of its duration
RENEWED: Final = 0.2
#: largest number of decisions or updates that a line of the log names
MOST_NAMED: Final = 5


class Learner:
    """The learner of one ledger. joining: makes training examples. announce: called with each new snapshot."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        files: SnapshotFiles,
        policy: PolicyDefinition,
        joining: Joining,
        announce: Callable[[SnapshotInfo], None] = lambda _info: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.ledger, self.files = ledger, files
        self.definition, self.settings, self._reward = policy, joining.learning, joining.reward
        self.clock = clock or (lambda: ledger.database.clock.now())
        self.publisher = Publisher(ledger, files=files, settings=self.settings, announce=announce, clock=self.clock)
        self.holder = lease_holder("learn")
        self.last_seq = 0
        #: number of updates that the policy refused to learn; they stay in the ledger
        self.refused = 0
        #: ids of quarantined decisions, and numbers of refused updates, since the last log line about them
        self._quarantined, self._refusals = list[str](), list[int]()
        self._policy: Policy | None = None
        self._arms = ArmChanges(ledger)
        screening = Screening(ledger, settings=self.settings)
        self._adjustments = Adjustments(Repricing(ledger), screening, joining, self._arms)
        self._encoder_hash = ""
        self._decided = 0
        #: whether the last batch contained all decisions that were ready
        self._is_at_end = False
        #: number of features in the ledger's first update; None without updates, or if it has no features
        self._width: int | None = None
        self._renew_at = self._frontier_due = -math.inf
        self._lock = threading.Lock()

    @property
    def policy(self) -> Policy:
        """The live policy, after `last_seq` updates. Raises NotReady if no router runs the same policy."""
        if self._policy is None:
            self.catch_up()
        assert self._policy is not None
        return self._policy

    def prepare(self, *, encoder_hash: str) -> None:
        """Make the first snapshot for routers with these settings, while routers with other settings continue."""
        untrained = untrained_policy(self.definition)
        self._encoder_hash = encoder_hash if "features" in untrained.needs else ""
        self.catch_up(untrained)
        self.publish(force=True)

    def catch_up(self, chosen: Policy | None = None) -> None:
        """Restore the policy from a snapshot and the ledger. chosen: untrained; None for the policy of the routers."""
        untrained = self._untrained_policy_of_routers() if chosen is None else chosen
        self._policy, self.last_seq = untrained, 0
        end = self.ledger.last_seq()
        for info in self.ledger.snapshots_to_try(
            algorithm=untrained.algorithm, params=untrained.params, encoder_hash=self._encoder_hash
        ):
            if info.last_seq > end:
                continue
            try:
                self._policy, _ = self.files.load(info, encoder_hash=self._encoder_hash)
            except SnapshotError as error:
                details = {"action": "snapshot_refused", "reason": str(error)}
                log.warning("a snapshot cannot be used; an older one is tried", extra=details)
                continue
            self.last_seq = info.last_seq
            break
        else:
            if end > 0 and chosen is None:
                extra = {"action": "rebuild", "to": end}
                log.warning("no snapshot can be used: the policy is rebuilt from the ledger", extra=extra)
        self._adjustments.refresh()
        first = next(self.ledger.read_with_decisions(after=0, page=1), None)
        if first is not None:
            self._width = None if first[0].features is None else first[0].features.size
        self._apply_new_updates()

    def _untrained_policy_of_routers(self) -> Policy:
        """Returns the configured policy before learning. Raises NotReady if no router runs the same policy."""
        registered = self.ledger.policy_row()
        if registered is None:
            raise NotReady(f"no router has opened the ledger {self.ledger.label!r} yet")
        if registered["retired_at"] is not None:
            raise NotReady(f"the ledger {self.ledger.label!r} is retired", remedy="start a router with this label")
        untrained = untrained_policy(self.definition)
        params = canonical(dict(untrained.params))
        if (untrained.algorithm, params) != (registered["algorithm"], registered["params"]):
            raise NotReady(
                f"the routers of {self.ledger.label!r} run {registered['algorithm']} with {registered['params']}, "
                f"this learner has {untrained.algorithm} with {params}",
                remedy="start both with the same configuration",
            )
        self._encoder_hash = registered["encoder_hash"]
        return untrained

    def _apply_new_updates(self) -> None:
        assert self._policy is not None
        for update in updates_to_learn(self.ledger, policy=self._policy, after=self.last_seq):
            self._apply(update)
        self._log_faults()

    def _apply(self, update: Update) -> None:
        assert self._policy is not None
        if not apply_update(self._policy, update):
            self.refused += 1
            self._refusals.append(update.seq)
        self.last_seq = update.seq

    def _log_faults(self) -> None:
        """Log one line about decisions, and one about updates, that could not be learned since the last call."""
        if self._quarantined:
            message = "%s cannot be learned; see `ragbandit feedback quarantined`"
            ids = {"action": "quarantine", "decisions": self._quarantined[:MOST_NAMED]}
            log.error(message, counted(len(self._quarantined), "decision"), extra=ids)
        if self._refusals:
            message = "the policy refused %s and continues with the others"
            numbers = {"action": "refused", "seqs": self._refusals[:MOST_NAMED]}
            log.error(message, counted(len(self._refusals), "update"), extra=numbers)
        self._quarantined, self._refusals = [], []

    def drain(self, *, patience_s: float = 0.0, attended: bool = False) -> int:
        """Learn all decisions that are ready, for at most DRAIN_S.

        Returns the number of decisions that were learned, closed or found idle: 0 if none was ready, or if another
        learner has the lease; 1 while a new ledger inherits decisions. patience_s: longest wait for the lease, seconds.
        attended: whether a person waits for this call, which then does not pause or diagnose, and reads fewer pages
        """
        with self._lock:
            if not self._acquire(patience_s):
                return 0
            try:
                if self._policy is None:
                    self.catch_up()
                else:
                    self._untrained_policy_of_routers()  # routers may have been restarted with another policy
                    self._apply_new_updates()  # updates that another learner has appended since the last call
                total, give_up = 0, time.monotonic() + DRAIN_S
                if not self._inherit(give_up):
                    return 1
                if not attended:
                    self.publisher.wait()
                self._adjustments.refresh()
                while time.monotonic() < give_up:
                    closed = self._learn_batch()
                    total += closed
                    if not closed or (attended and self._is_at_end):
                        break
                # Publish even if nothing was learned, because the newest snapshot may be missing or have other params.
                self.publish(force=True)
                if not attended and self.publisher.take_new():
                    self._diagnose(self.policy)
            except BaseException:
                # A job's time limit may interrupt any line, so the policy in memory may be half updated.
                self._policy = None
                raise
            finally:
                self._log_faults()
                self.ledger.release(holder=self.holder)  # so that other learners need not wait until the lease expires
                self._renew_at = -math.inf
            return total

    def diagnose(self) -> None:
        """Store the diagnosis and the frontier after calls of `drain(attended=True)`. Raises StoreError."""
        with self._lock:
            if self._policy is not None and self.publisher.take_new():
                self._diagnose(self._policy)

    def _diagnose(self, policy: Policy) -> None:
        """Store the diagnosis of this policy and, at most every EVERY_S seconds, its frontier. Raises StoreError."""
        chosen, reward, encoder = self.definition.settings, self._reward, self._encoder_hash
        weight = reward.weight
        texts = {"diagnosis": diagnose(self.ledger, policy, settings=chosen, weight=weight, encoder_hash=encoder)}
        if time.monotonic() >= self._frontier_due:
            self._frontier_due = time.monotonic() + EVERY_S
            frontier = frontier_text(self.ledger, policy, settings=chosen, cost=reward.cost, encoder_hash=encoder)
            texts["frontier"] = frontier
        self.ledger.store_texts(**texts)

    def _inherit(self, give_up: float) -> bool:
        """Let a new ledger inherit the store's decisions. Returns False at the time `give_up` or without the lease."""
        while inherit(self.ledger, holder=self.holder) != "done":
            if time.monotonic() >= give_up or not self._acquire():
                return False
        return True

    def _acquire(self, patience_s: float = 0.0) -> bool:
        """Acquire the lease, or renew it in time. Returns False if another learner has it."""
        now, lease_s = time.monotonic(), self.settings.lease_s
        if now < self._renew_at:
            return True
        is_held = self.ledger.acquire(holder=self.holder, lease_s=lease_s, patience_s=patience_s)
        self._renew_at = time.monotonic() + RENEWED * lease_s if is_held else -math.inf
        return is_held

    def _learn_batch(self) -> int:
        """Learn one batch. Returns the number of its decisions (see `drain`); 0 if none is ready or another learns."""
        self.ledger.database.clock.measure()
        now = self.clock()
        if not self._acquire():
            return 0
        batch = self._next_batch(now)
        if not batch or not self._append(batch):
            return 0
        for update in batch.updates:
            self._apply(update)
            if is_kept(self.last_seq):
                self.publish(force=True)
        self.publish(is_behind=len(batch) > self.settings.batch // 2)
        return len(batch)

    def _next_batch(self, now: float) -> LedgerBatch:
        learning, after = self.settings, (-1.0, "")
        batch = LedgerBatch(label=self.ledger.label, now=now, holder=self.holder)
        while not batch:
            page = self.ledger.ready(closing_rule(learning), now=now, limit=learning.batch, after=after)
            self._is_at_end = len(page) < learning.batch
            if not page:
                break
            self._sort_page(page, batch=batch)
            last = page[-1]
            if isinstance(last, JoinedDecision):
                after = (last.decision.made_at, last.decision.id)
        return batch

    def _append(self, batch: LedgerBatch) -> bool:
        """Append the batch to the ledger. Returns False, and appends nothing, if another learner appended first."""
        batch.arms = self._arms.unsaved_state()
        try:
            self.ledger.append(batch)
        except Conflict as error:
            details = {"action": "append_refused", "reason": str(error)}
            log.warning("another learner wrote to this ledger; its updates stand", extra=details)
            self.catch_up()
            return False
        self._arms.mark_saved()
        self._quarantined += [closure.decision_id for closure in batch.closed if closure.state == "quarantined"]
        return True

    def _sort_page(self, page: Sequence[JoinedDecision | ClosedDecision], *, batch: LedgerBatch) -> None:
        """Add the updates, closures and idle decisions of a page to the batch; other decisions keep waiting."""
        self._decided = self.ledger.count_decided()
        self._adjustments.look_up([joined for joined in page if isinstance(joined, JoinedDecision)])
        for joined in page:
            if isinstance(joined, ClosedDecision):
                batch.closed.append(joined)
                continue
            row = self._adjust(joined, now=batch.now)
            if isinstance(row, ClosedDecision):
                batch.closed.append(row)
            elif row.example is not None:
                self._add_update(row, batch=batch)
            elif row.is_idle:
                batch.idle.append(joined)

    def _adjust(self, joined: JoinedDecision, *, now: float) -> AdjustedRow | ClosedDecision:
        needs_features, encoder = "features" in self.policy.needs, self._encoder_hash
        basis = Basis(now=now, needs_features=needs_features, encoder_hash=encoder, width=self._width)
        return self._adjustments.adjust(joined, basis=basis)

    def _add_update(self, row: AdjustedRow, *, batch: LedgerBatch) -> None:
        """Add the update of a decision to the batch."""
        decision, example = row.joined.decision, row.example
        assert example is not None
        if self._width is None and decision.features is not None:
            self._width = decision.features.size
        update = make_update(
            decision,
            example.reward,
            label=self.ledger.label,
            seq=self.last_seq + len(batch.updates) + 1,
            now=batch.now,
            feedback_ids=tuple(item.id for item in example.feedback),
            decided=None if decision.arm_by in NOT_BY_POLICY else self._decided,
            restarts=row.restarts,
        )
        batch.add_update(update, feedback=example.feedback)
        batch.in_time += [item.id for item in example.in_time]

    def publish(self, *, force: bool = False, is_behind: bool = False) -> None:
        seq, encoder = self.last_seq, self._encoder_hash
        self.publisher.publish(self.policy, last_seq=seq, encoder_hash=encoder, force=force, is_behind=is_behind)
