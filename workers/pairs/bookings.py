"""Dollars of the questions of a bought verdict, and what a later run has to know of those that have not ended.

The expected dollars of a question are booked before it is asked, and replaced by its cost however the run ends.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ragbandit.router.storage.access.reservations import Reservation, reserve, settle
from ragbandit.router.storage.access.spending import Spender, Spent
from ragbandit.router.storage.begun_pairs import BegunPair, Booked, begun_pairs, keep_begun, settle_lost
from ragbandit.router.storage.paired_answers import answer_dollars
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import StoreError
from ragbandit.shared.types import ArmName, DecisionId, Source
from ragbandit.strategies.base import Account

log = logging.getLogger("ragbandit.worker")


class Bookings:
    """The begun questions in the store. Only the holder of the lease `decide` changes them."""

    def __init__(
        self, database: Database, *, payer: str, check: Callable[[Mapping[Spender, Spent]], None] = lambda _sums: None
    ) -> None:
        """payer: who is charged. check: raises TooManyRequests if their budget is spent"""
        self._database, self._spenders, self._check = database, [Spender("key", payer)], check
        self._begun: dict[DecisionId, BegunPair] = {}

    def resume(self, ids: Collection[DecisionId]) -> None:
        """Settle the estimates of processes that died, and read which of these questions were begun. Raises
        StoreError.
        """
        settle_lost(self._database)
        self._begun = begun_pairs(self._database, ids=ids)

    def begun(self, key: DecisionId) -> BegunPair:
        return self._begun.get(key) or BegunPair(decision_id=key)

    @contextlib.contextmanager
    def booked(
        self, key: DecisionId, *, expected: float, call: float, bill: Account, has_ended: Callable[[], bool]
    ) -> Iterator[None]:
        """A block in which a question is asked; what it cost is in `bill` at its end. Raises TooManyRequests.

        call: the most that one of its calls is expected to cost. has_ended: whether no later run asks it again
        """

        def note(connection: Connection, reservation: Reservation) -> None:
            paid_before = answer_dollars(connection, [key]).get(key, 0.0)
            booked = Booked(reservation=reservation, paid_before=paid_before, call=call)
            self._begun[key] = replace(self.begun(key), booked=booked)
            keep_begun(connection, pair=self._begun[key])

        reservation = reserve(
            self._database, self._spenders, dollars=expected, now=time.time(), check=self._check, note=note
        )
        try:
            yield
        finally:
            ended = BegunPair(decision_id=key) if has_ended() else replace(self._begun[key], booked=None)
            self._begun[key] = ended
            try:
                settle(self._database, reservation, dollars=bill.cost.dollars, note=partial(keep_begun, pair=ended))
            except StoreError as error:
                extra = {"action": "decide", "dollars": bill.cost.dollars, "reason": str(error)}
                log.warning("the cost of a question cannot be booked; its estimate stays booked", extra=extra)

    def count_failure(self, key: DecisionId, *, arm: ArmName) -> int:
        """Count a failure of the judge on an answer; how many there were."""
        pair = self.begun(key)
        failures = pair.failures.get(arm, 0) + 1
        self._begun[key] = replace(pair, failures={**pair.failures, arm: failures})
        return failures

    def keep_sources(self, key: DecisionId, *, arm: ArmName, sources: Sequence[Source] | None) -> None:
        """Store the passages of an answer, which the judge reads, before the answer: if the run ends meanwhile, the
        next one needs both. sources: None once the answer has a score
        """
        pair = self.begun(key)
        if (sources is not None) == (arm in pair.sources):
            return
        kept = {name: of for name, of in pair.sources.items() if name != arm}
        self._begun[key] = replace(pair, sources=kept if sources is None else {**kept, arm: sources})
        if sources is not None:
            with self._database.write() as connection:
                keep_begun(connection, pair=self._begun[key])
