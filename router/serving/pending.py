"""Answers for which callers wait. An answer in flight ends early in four cases:

- its caller closes the connection, only this caller can ask for the answer, and no other caller waits
  (`PendingAnswers.abandon`)
- its decision is cancelled (`Router.cancel`): the run stops, and the outcome has the cost so far
- its arm fails before a reader has got a piece, and another arm takes over (`AnswerJob.hands_over`): the callers wait
  for the decision of that arm
- its process dies, and a second run writes another text than the readers have got (`ReadStream`): their streams end
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from ragbandit.router.config.server import ServerSettings
from ragbandit.router.queue.notifier import Notifier
from ragbandit.router.serving.batching import MicroBatcher, QueueState, TenantCounts
from ragbandit.router.serving.checks.questions import check_type, checked_id
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.shared.errors import Overloaded, StoreError, TooManyRequests
from ragbandit.shared.model_servers.failures import successor_of
from ragbandit.shared.types import Decision, DecisionId, Outcome, Query

if TYPE_CHECKING:
    from ragbandit.router.queue.stream_reader import ReadStream

#: maximum number of decisions without a waiting caller that one poll looks up
POLLED = 500
#: seconds until an unanswered decision is no longer counted: longer than all time limits of arms and recovery
KEEP_S = 86_400.0
#: limit of the bytes of all unanswered conversations in this process, as a multiple of `server.max_chat_bytes`
MOST_CHATS = 256
#: Retry-After if too many decisions are unanswered, seconds
RETRY_S = 5.0


class InlineRuns(Protocol):
    """Runs arms in the service's own process: `InlineAnswers` (workers/processes/inline.py). Safe to use from several
    threads, except `begin`.
    """

    def claim(self, decisions: Sequence[Decision]) -> Mapping[DecisionId, str]:
        """Choose the decisions that this process will run. Returns id of a chosen decision -> key of this process."""

    def unclaim(self, ids: Iterable[DecisionId]) -> None:
        """Forget these decisions: they were not stored, or another request made them."""

    def begin(self, decision: Decision, *, live: bool) -> "tuple[Future[Outcome], ReadStream | None] | None":
        """Run a claimed and stored decision. Call it on the service's event loop.

        Returns (Future of the outcome, stream of the answer's pieces if `live`), or None if the decision is not claimed
        here or runs already.
        """

    def stop(self, decision_id: DecisionId) -> bool:
        """Stop the run of this decision. Returns False if it does not run in this process."""

    def close(self) -> None:
        """Release the claims, so that another process answers the decisions."""


class _Reservation(AbstractContextManager[None]):
    """A place that is reserved in `PendingAnswers`. The end of the `with` block gives the place back."""

    __slots__ = ("_answers", "_is_new", "_size", "_tenant")

    def __init__(self, answers: "PendingAnswers", tenant: str, *, is_new: bool, size: int) -> None:
        self._answers, self._tenant, self._is_new, self._size = answers, tenant, is_new, size

    def __exit__(self, *_: object) -> None:
        self._answers.give_back(self._tenant, is_new=self._is_new, size=self._size)


class PendingAnswers:
    """Decisions that workers must answer, and the callers that wait for them. Safe to use from several threads."""

    def __init__(self, store: DecisionStore, *, notifier: Notifier, server: ServerSettings) -> None:
        self._store, self._notifier = store, notifier
        self._server = server
        self._lock = threading.Lock()
        self._futures: dict[str, list[Future[Outcome]]] = {}
        #: decision without an outcome -> (tenant, time.monotonic() when it stops counting, bytes of its conversation);
        #: the decision that `poll` looked up longest ago comes first
        self._unanswered: dict[str, tuple[str, float, int]] = {}
        #: questions that are being decided, and bytes of conversations that are decided or wait for an answer
        self._deciding, self._bytes = 0, 0
        #: tenant -> number of its decisions in `_unanswered` and of its questions that are being decided
        self._by_tenant = TenantCounts()
        self._refused = {"count": 0, "tenant": 0}
        self._ending = False
        self._requests: MicroBatcher[Decision, Future[Outcome]] = MicroBatcher(
            self._request_batch, name="ragbandit-requests", limit=64, limits=server
        )

    def start(self) -> None:
        self._requests.start()

    def close(self) -> None:
        self._requests.close()

    def reserve(self, query: Query) -> "_Reservation":
        """Reserve a place for a question while it is decided. Raises Overloaded, TooManyRequests, InvalidInput."""
        check_type(query, Query, field="question", wanted="a string or a Query")
        tenant = checked_id(query.tenant, field="tenant")
        self._requests.check_admission()
        size = query.conversation.encoding.size
        with self._lock:
            new = query.id not in self._unanswered
            if new:
                self._check_place(tenant, size=size)
            self._deciding += new
            self._bytes += size
            self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + 1
        return _Reservation(self, tenant, is_new=new, size=size)

    def give_back(self, tenant: str, *, is_new: bool, size: int) -> None:
        """Give a place back. size: bytes of the question's conversation."""
        with self._lock:
            self._deciding -= is_new
            self._bytes -= size
            self._by_tenant.add(tenant, -1)

    def submit(self, decision: Decision) -> "Future[Future[Outcome]]":
        """Like `request`, without waiting for the database. Call it in the block of `reserve`."""
        return self._requests.submit(decision, admitted=True)

    def request(self, decision: Decision) -> "Future[Outcome]":
        """Ask a worker for the answer. Returns the Future of the outcome; pass it to `remove` after use."""
        return self._request_batch([decision])[0]

    def expect_outcome(self, decision: Decision) -> "Future[Outcome]":
        """Returns the Future of a decision's outcome; does not ask a worker."""
        future: Future[Outcome] = Future()
        with self._lock:
            if not self._ending:
                self._futures.setdefault(decision.id, []).append(future)
            if decision.id not in self._unanswered:
                tenant, size = decision.query.tenant, decision.query.conversation.encoding.size
                self._unanswered[decision.id] = (tenant, time.monotonic() + KEEP_S, size)
                self._bytes += size
                self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + 1
        return future

    def end_waits(self) -> None:
        """Raise TimeoutError in all waits for outcomes, now and later, because the process is about to end."""
        with self._lock:
            self._ending = True
            waiting = [future for futures in self._futures.values() for future in futures]
            self._futures.clear()
        for future in waiting:
            self._give_up(future)

    def state(self) -> QueueState:
        """State of the queue in front of Redis; `refused` also counts questions without a place."""
        state = self._requests.state()
        with self._lock:
            refused = {reason: count + self._refused.get(reason, 0) for reason, count in state.refused.items()}
        return replace(state, refused=refused)

    def remove(self, decision_id: DecisionId, future: "Future[Outcome]") -> None:
        """Stop waiting for this decision, or for its replacement."""
        if future.done() and not future.cancelled():
            return  # `deliver` has removed the Future
        with self._lock:
            is_unmoved = future in self._futures.get(decision_id, ())
            for key in [decision_id] if is_unmoved else list(self._futures):
                if future in self._futures[key]:
                    self._futures[key].remove(future)
                    if not self._futures[key]:
                        del self._futures[key]

    def abandon(self, decision_id: DecisionId, future: "Future[Outcome]", *, is_own: bool) -> bool:
        """Stop waiting for this decision, because the caller has gone. Returns whether its answer should be cancelled.

        is_own: whether only this caller can ask for the answer
        """
        self.remove(decision_id, future)
        return is_own and not self.is_awaited(decision_id)

    def is_awaited(self, decision_id: str) -> bool:
        return decision_id in self._futures

    def poll(self) -> None:
        """Look up outcomes whose notification may have been missed: all awaited ones, and up to POLLED others."""
        with self._lock:
            awaited = list(self._futures)
            others = [key for key in islice(self._unanswered, POLLED) if key not in self._futures]
            for key in others:  # to the end, so that the next poll begins with the others
                self._unanswered[key] = self._unanswered.pop(key)
            now = time.monotonic()
            expired = [key for key in others if self._unanswered[key][1] <= now]
        self.release(expired)
        if awaited:
            self.deliver(self._store.outcomes_by_id(awaited))
        if others:
            self.release(self._store.ids_with_outcome(others))

    def deliver(self, outcomes: Mapping[str, Outcome | StoreError]) -> None:
        """Pass outcomes to waiting callers. If a failed decision was replaced, its callers wait for the replacement."""
        moved = self._move_to_successors(outcomes)
        self.release(outcomes)
        with self._lock:
            awaited = [(future, outcome) for key, outcome in outcomes.items() for future in self._futures.pop(key, [])]
        for future, outcome in awaited:
            with suppress(InvalidStateError):  # the caller has cancelled the Future
                if isinstance(outcome, StoreError):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
        if moved:
            self.deliver(self._store.outcomes_by_id(moved))

    def _move_to_successors(self, outcomes: Mapping[str, Outcome | StoreError]) -> list[DecisionId]:
        """Let callers wait for the replacements of failed decisions. Returns the ids of the replacements."""
        moved = []
        for key, outcome in outcomes.items():
            successor = successor_of(outcome.made_by) if isinstance(outcome, Outcome) else None
            with self._lock:
                if successor is None or key not in self._futures:
                    continue
                self._futures.setdefault(successor, []).extend(self._futures.pop(key))
                if key in self._unanswered:
                    self._unanswered[successor] = self._unanswered.pop(key)
                moved.append(successor)
        return moved

    def release(self, ids: Iterable[str]) -> None:
        with self._lock:
            for key in ids:
                entry = self._unanswered.pop(key, None)
                if entry is not None:
                    self._by_tenant.add(entry[0], -1)
                    self._bytes -= entry[2]

    def _request_batch(self, decisions: Sequence[Decision]) -> "list[Future[Outcome]]":
        futures = [self.expect_outcome(decision) for decision in decisions]
        try:
            outcomes = self._store.outcomes_by_id([decision.id for decision in decisions])
        except Exception:  # any error: no Future may wait for ever
            for decision, future in zip(decisions, futures, strict=True):
                self.remove(decision.id, future)
            raise
        self.deliver(outcomes)
        waiting = [decision.id for decision in decisions if decision.id not in outcomes]
        if waiting:
            self._notifier.request_answers(waiting)
        if self._ending:
            for future in futures:
                self._give_up(future)
        return futures

    @staticmethod
    def _give_up(future: "Future[Outcome]") -> None:
        with suppress(InvalidStateError):  # the Future has an outcome already
            future.set_exception(TimeoutError("the process is about to end"))

    def _check_place(self, tenant: str, *, size: int) -> None:
        remedy = "try again when some are answered, with the same id"
        total, of_tenant = len(self._unanswered) + self._deciding, self._by_tenant.get(tenant, 0)
        if total >= self._server.max_unanswered:
            self._refused["count"] += 1
            message = f"{total} questions have no answer yet (server.max_unanswered)"
            raise Overloaded(message, remedy=remedy, retry_after_s=RETRY_S)
        if size and self._bytes + size > MOST_CHATS * self._server.max_chat_bytes:
            self._refused["count"] += 1
            message = f"conversations of {self._bytes} bytes have no answer yet ({MOST_CHATS} x server.max_chat_bytes)"
            raise TooManyRequests(message, remedy=remedy, retry_after_s=RETRY_S)
        if of_tenant >= self._server.tenant_unanswered:
            self._refused["tenant"] += 1
            message = f"{of_tenant} questions of the tenant {tenant!r} have no answer yet (server.tenant_unanswered)"
            raise TooManyRequests(message, field="tenant", remedy=remedy, retry_after_s=RETRY_S)
